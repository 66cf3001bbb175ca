//! Streams: which thread runs which kernel call, in which order, and where threads wait for each other.
//!
//! In: lowered calls. Out: the same calls, heavy ones cut into parts ([`split`]), in one order that fits, and a [`Schedule`].
//! The calls become tasks with costs and dependencies ([`tasks`]), [`crate::plan::schedule`] orders them, and here the
//! order becomes calls and waits again. One stream stays one list, whenever no gain is predicted too.
//! Invariants: every call stands on one stream, once; the order of the list fits all streams and waits at once.

pub mod split;
mod tasks;

pub use tasks::costs;

use crate::error::{CompileError, Stage};
use crate::ir::Graph;
use crate::lower::{Buffer, BufferKind, Call, Lowered, Step};
use crate::memory;
use crate::plan::schedule::{self as planner, Planned};
use crate::plan::target::Target;
use crate::profile::Profile;
use crate::schedule::{Schedule, StreamStep};
use std::collections::BTreeSet;

/// A schedule must end this many thousandths earlier than one stream, or there is only one.
const LEAST_GAIN_PERMILLE: u128 = 30;
/// Several streams may make the arena so many thousandths larger than one stream's. Where no schedule keeps to that, they
/// must save at least as large a part of the time as they add to the memory, or there is one stream.
const MOST_MEMORY_PERMILLE: u128 = 100;
/// How much later than the quickest a schedule may end that needs less memory, in thousandths.
const MOST_DELAY_PERMILLE: u128 = 50;
/// Calls that are kept whole for memory, at most.
const MAX_ROUNDS: usize = 8;

/// Decides streams for the machine the program runs on: see [`plan_for`].
pub fn plan(graph: &Graph, lowered: Lowered, n_streams: usize) -> Result<(Lowered, Schedule), CompileError> {
    plan_for(graph, lowered, &host(n_streams)?)
}

/// The host target with so many streams.
pub fn host(n_streams: usize) -> Result<Target, CompileError> {
    let error = |m: String| CompileError::new(Stage::Plan, m);
    let target = Target::shipped("host").ok_or_else(|| error("there is no target \"host\"".into()))?;
    Ok(target.map_err(|e| error(e.to_string()))?.with_host_streams(n_streams))
}

/// Decides streams for a target: cuts heavy calls into parts, orders all, and says who waits for whom.
pub fn plan_for(graph: &Graph, lowered: Lowered, target: &Target) -> Result<(Lowered, Schedule), CompileError> {
    plan_with(graph, lowered, target, &Profile::default())
}

/// The same with measured times of nodes.
pub fn plan_with(
    graph: &Graph,
    lowered: Lowered,
    target: &Target,
    profile: &Profile,
) -> Result<(Lowered, Schedule), CompileError> {
    let n_streams = target.device(target.host).streams;
    let mut costs = costs(graph, &lowered, target);
    let name = |s: &Step| graph.nodes.get(s.node_idx).map_or("", |n| n.name.as_str());
    profile.put(&lowered.steps.iter().map(name).collect::<Vec<_>>(), &mut costs);
    let one = Schedule::one(&costs);
    if n_streams < 2 || lowered.steps.is_empty() {
        return Ok((lowered, one));
    }
    let mut list = tasks::list(&lowered, &costs, &private_scratch(&lowered), target, n_streams);
    let least = u128::from(memory::least(&lowered, &one)?.0);
    let allowed = least * (1000 + MOST_MEMORY_PERMILLE) / 1000;
    for round in 0.. {
        let mut all = planner::all(&list, target, true);
        all.sort_by_key(|p| (p.timeline.end_ns, p.schedule.n_waits()));
        let Some(first) = all.first().map(|p| u128::from(p.timeline.end_ns)) else { break };
        if first * 1000 > u128::from(one.predicted_ns) * (1000 - LEAST_GAIN_PERMILLE) {
            break;
        }
        all.retain(|p| u128::from(p.timeline.end_ns) * 1000 <= first * (1000 + MOST_DELAY_PERMILLE));
        // The last resort: slower, but in the order of one stream.
        let worth = |p: &Planned| {
            u128::from(p.timeline.end_ns) * 1000 <= u128::from(one.predicted_ns) * (1000 - LEAST_GAIN_PERMILLE)
        };
        all.extend(planner::planned_in_step(&list, target).filter(worth));
        let (bytes, carried, peak) = smallest(&lowered, &all, allowed)?;
        let whole = if bytes <= allowed { None } else { largest_scratch(&carried.lowered, &peak, &carried.tasks) };
        match whole.filter(|_| round < MAX_ROUNDS) {
            Some(task) => list.tasks[task].splits = 1,
            None if bytes > allowed && !pays(least, bytes, one.predicted_ns, carried.schedule.predicted_ns) => break,
            None => {
                let schedule = Schedule { sequential_ns: one.predicted_ns, ..carried.schedule };
                return Ok((carried.lowered, schedule));
            }
        }
    }
    Ok((lowered, one))
}

/// Whether more memory pays: the part of the time that is saved is no smaller than the part of the memory that is added.
fn pays(least_bytes: u128, bytes: u128, one_ns: u64, ns: u64) -> bool {
    let saved = u128::from(one_ns.saturating_sub(ns));
    bytes.saturating_sub(least_bytes) * u128::from(one_ns) <= saved * least_bytes
}

/// Of schedules, the quickest first, the first that needs no more bytes than allowed, or else the smallest one; with its
/// bytes and the buffers that need them.
fn smallest(whole: &Lowered, all: &[Planned], allowed: u128) -> Result<(u128, Carried, Vec<usize>), CompileError> {
    let deadlock = || CompileError::new(Stage::Plan, "a schedule that deadlocks (a bug in the compiler)");
    let mut best: Option<(u128, Carried, Vec<usize>)> = None;
    for planned in all {
        let carried = carry_out(whole, planned).ok_or_else(deadlock)?;
        let (bytes, peak) = memory::least(&carried.lowered, &carried.schedule)?;
        let bytes = u128::from(bytes);
        if best.as_ref().is_none_or(|(least, ..)| bytes < *least) {
            best = Some((bytes, carried, peak));
        }
        if bytes <= allowed {
            break;
        }
    }
    best.ok_or_else(deadlock)
}

/// The task with the largest scratch of its own for each part, of those that are there when memory is fullest.
fn largest_scratch(lowered: &Lowered, peak: &[usize], tasks: &[(usize, bool)]) -> Option<usize> {
    let mut best: Option<(Option<i64>, usize)> = None;
    for (step, &(task, is_part)) in lowered.steps.iter().zip(tasks) {
        for o in step.call.operands().iter().filter(|o| is_part && o.writes()) {
            let b = o.operand.mem as usize;
            let scratch = lowered.buffers[b].kind == BufferKind::Scratch && peak.contains(&b);
            let bytes = lowered.buffers[b].bytes.upper();
            if scratch && best.is_none_or(|(most, _)| most < bytes) {
                best = Some((bytes, task));
            }
        }
    }
    best.map(|(_, task)| task)
}

/// A schedule as calls.
struct Carried {
    lowered: Lowered,
    schedule: Schedule,
    /// For each call its task, and whether it is one of several parts.
    tasks: Vec<(usize, bool)>,
}

/// Turns a schedule of tasks into calls in one order, and streams of them.
fn carry_out(whole: &Lowered, planned: &Planned) -> Option<Carried> {
    let private = private_scratch(whole);
    let (mut steps, mut buffers, mut tasks) = (Vec::new(), whole.buffers.clone(), Vec::new());
    let used: Vec<usize> =
        (0..planned.schedule.streams.len()).filter(|&s| !planned.schedule.streams[s].steps.is_empty()).collect();
    let mut schedule = Schedule { streams: vec![Vec::new(); used.len()], ..Schedule::default() };
    schedule.predicted_ns = planned.timeline.end_ns;
    // Where each event was signalled: stream and count of runs.
    let mut signalled: Vec<Option<(usize, usize)>> = vec![None; planned.schedule.n_events];
    let (mut next, mut done) = (vec![0; used.len()], vec![0; used.len()]);
    loop {
        // Of the streams that can go on, the one whose next step begins first.
        let ready = |s: usize| {
            let step = planned.schedule.streams[used[s]].steps.get(next[s])?;
            let open =
                if let planner::Step::Wait { event, .. } = step { signalled[event.idx()].is_some() } else { true };
            open.then(|| (planned.timeline.steps[used[s]][next[s]].0, s))
        };
        let Some((_, s)) = (0..used.len()).filter_map(ready).min() else { break };
        match planned.schedule.streams[used[s]].steps[next[s]] {
            planner::Step::Signal(event) => signalled[event.idx()] = Some((s, done[s])),
            planner::Step::Wait { event, .. } => {
                let (stream, count) = signalled[event.idx()]?;
                schedule.streams[s].push(StreamStep::Wait { stream, count });
            }
            ref step => {
                let part = step.part()?;
                schedule.streams[s].push(StreamStep::Run(steps.len()));
                schedule.times.push(planned.timeline.steps[used[s]][next[s]]);
                done[s] += 1;
                let from = &whole.steps[part.task.idx()];
                let mut call = split::part(&*from.call, part.shard, part.of)?;
                if part.shard > 0 {
                    own_scratch(&mut buffers, &mut *call, &private);
                }
                steps.push(Step { call, node_idx: from.node_idx });
                tasks.push((part.task.idx(), part.of > 1));
            }
        }
        next[s] += 1;
    }
    let all = (0..used.len()).all(|s| next[s] == planned.schedule.streams[used[s]].steps.len());
    all.then(|| Carried { lowered: whole.with_steps(steps, buffers), schedule, tasks })
}

/// Scratch that one call alone uses: each of its parts gets its own.
fn private_scratch(lowered: &Lowered) -> Vec<bool> {
    let mut users = vec![0usize; lowered.buffers.len()];
    for step in &lowered.steps {
        let touched: BTreeSet<u32> = step.call.operands().iter().map(|o| o.operand.mem).collect();
        touched.into_iter().for_each(|b| users[b as usize] += 1);
    }
    let scratch = |b: &Buffer| b.kind == BufferKind::Scratch;
    lowered.buffers.iter().zip(users).map(|(b, n)| scratch(b) && n == 1).collect()
}

/// Gives a part scratch of its own.
fn own_scratch(buffers: &mut Vec<Buffer>, call: &mut dyn Call, private: &[bool]) {
    let written = call.operands().into_iter().filter(|o| o.writes());
    let mine: BTreeSet<u32> = written.map(|o| o.operand.mem).filter(|&b| private[b as usize]).collect();
    for old in mine {
        let new = buffers.len() as u32;
        buffers.push(buffers[old as usize].clone());
        call.relocate(&mut |o| {
            if o.mem == old {
                o.mem = new;
            }
        });
    }
}
