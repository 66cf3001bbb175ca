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
use crate::lower::{Buffer, BufferKind, Lowered, Step};
use crate::plan::id::{DeviceId, EventId, TaskId};
use crate::plan::insert::Resource;
use crate::plan::order::StepAt;
use crate::plan::schedule::{self as planner, Part, Planned};
use crate::plan::target::Target;
use kiln_kernels::Role;
use std::collections::BTreeSet;

/// One step of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamStep {
    /// Runs a step of the program.
    Run(usize),
    /// Goes on once another stream has done its first `count` runs.
    Wait {
        /// The other stream.
        stream: usize,
        /// How many of its runs must be done.
        count: usize,
    },
}

/// What each stream does, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The streams; at least one.
    pub streams: Vec<Vec<StreamStep>>,
    /// What the target says the run takes, in nanoseconds.
    pub predicted_ns: u64,
    /// The same for one stream.
    pub sequential_ns: u64,
    /// Begin and end of every step of the program, as predicted, in nanoseconds.
    pub times: Vec<(u64, u64)>,
}

impl Schedule {
    /// One stream that runs all steps in order; `costs` are their predicted times.
    pub fn one(costs: &[u64]) -> Self {
        let mut now = 0u64;
        let mut next = |ns: &u64| {
            let start = now;
            now = now.saturating_add(*ns);
            (start, now)
        };
        let times: Vec<_> = costs.iter().map(&mut next).collect();
        let streams = vec![(0..costs.len()).map(StreamStep::Run).collect()];
        Self { streams, predicted_ns: now, sequential_ns: now, times }
    }

    /// The counts of each stream that others wait for: after so many runs it says how far it is.
    pub fn signals(&self) -> Vec<BTreeSet<usize>> {
        let mut all = vec![BTreeSet::new(); self.streams.len()];
        for step in self.streams.iter().flatten() {
            if let StreamStep::Wait { stream, count } = *step {
                all[stream].insert(count);
            }
        }
        all
    }

    /// Number of waits.
    pub fn n_waits(&self) -> usize {
        self.streams.iter().flatten().filter(|s| matches!(s, StreamStep::Wait { .. })).count()
    }

    /// The same with events in place of counts, and where each step of the program stands: what the planner's partial
    /// order works on.
    pub(crate) fn events(&self) -> (planner::Schedule, Vec<StepAt>) {
        let mut n_events = 0;
        let mut signals: Vec<std::collections::BTreeMap<usize, EventId>> = Vec::new();
        for counts in self.signals() {
            let event = |count| {
                n_events += 1;
                (count, EventId::new(n_events - 1))
            };
            signals.push(counts.into_iter().map(event).collect());
        }
        let n_steps = self.streams.iter().flatten().filter(|s| matches!(s, StreamStep::Run(_))).count();
        let mut at = vec![StepAt { stream: 0, step: 0 }; n_steps];
        let mut streams = Vec::new();
        for (s, steps) in self.streams.iter().enumerate() {
            let (mut out, mut done) = (Vec::new(), 0);
            for step in steps {
                match *step {
                    StreamStep::Run(i) => {
                        at[i] = StepAt { stream: s, step: out.len() };
                        out.push(planner::Step::Launch(Part { task: TaskId::new(i), shard: 0, of: 1 }));
                        done += 1;
                        out.extend(signals[s].get(&done).map(|&e| planner::Step::Signal(e)));
                    }
                    StreamStep::Wait { stream, count } => {
                        let event = signals[stream].get(&count);
                        out.extend(event.map(|&event| planner::Step::Wait { event, latency_ns: 0 }));
                    }
                }
            }
            streams.push(planner::Stream { on: Resource::Device(DeviceId(0)), steps: out });
        }
        (planner::Schedule { streams, n_events }, at)
    }
}

/// A schedule must end this many thousandths earlier than one stream, or there is only one.
const LEAST_GAIN_PERMILLE: u64 = 30;

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
    let n_streams = target.device(target.host).streams;
    let costs = costs(graph, &lowered, target);
    let one = Schedule::one(&costs);
    if n_streams < 2 || lowered.steps.is_empty() {
        return Ok((lowered, one));
    }
    let private = private_scratch(&lowered, &lowered.steps);
    let list = tasks::list(&lowered, &costs, &private, target, n_streams);
    let best = planner::best(&list, target, true);
    let gain = one.predicted_ns.saturating_sub(best.timeline.end_ns);
    if u128::from(gain) * 1000 < u128::from(one.predicted_ns) * u128::from(LEAST_GAIN_PERMILLE) {
        return Ok((lowered, one));
    }
    let deadlock = || CompileError::new(Stage::Plan, "a schedule that deadlocks (a bug in the compiler)");
    let (lowered, mut schedule) = carry_out(lowered, &best).ok_or_else(deadlock)?;
    schedule.sequential_ns = one.predicted_ns;
    Ok((lowered, schedule))
}

/// Turns a schedule of tasks into calls in one order, and streams of them.
fn carry_out(mut lowered: Lowered, planned: &Planned) -> Option<(Lowered, Schedule)> {
    let steps: Vec<Step> = std::mem::take(&mut lowered.steps);
    let private = private_scratch(&lowered, &steps);
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
                schedule.streams[s].push(StreamStep::Run(lowered.steps.len()));
                schedule.times.push(planned.timeline.steps[used[s]][next[s]]);
                done[s] += 1;
                let from = &steps[part.task.idx()];
                let call = split::part(&*from.call, part.shard, part.of)?;
                let mut step = Step { call, node_idx: from.node_idx };
                if part.shard > 0 {
                    own_scratch(&mut lowered, &mut step, &private);
                }
                lowered.steps.push(step);
            }
        }
        next[s] += 1;
    }
    let all = (0..used.len()).all(|s| next[s] == planned.schedule.streams[used[s]].steps.len());
    all.then_some((lowered, schedule))
}

/// Scratch that one call alone uses: each of its parts gets its own.
fn private_scratch(lowered: &Lowered, steps: &[Step]) -> Vec<bool> {
    let mut users = vec![0usize; lowered.buffers.len()];
    for step in steps {
        let touched: BTreeSet<u32> = step.call.operands().iter().map(|o| o.operand.mem).collect();
        touched.into_iter().for_each(|b| users[b as usize] += 1);
    }
    let scratch = |b: &Buffer| b.kind == BufferKind::Scratch;
    lowered.buffers.iter().zip(users).map(|(b, n)| scratch(b) && n == 1).collect()
}

fn own_scratch(lowered: &mut Lowered, step: &mut Step, private: &[bool]) {
    let written = step.call.operands().into_iter().filter(|o| matches!(o.role, Role::Write | Role::Update));
    let mine: BTreeSet<u32> = written.map(|o| o.operand.mem).filter(|&b| private[b as usize]).collect();
    for old in mine {
        let new = lowered.buffers.len() as u32;
        lowered.buffers.push(lowered.buffers[old as usize].clone());
        step.call.relocate(&mut |o| {
            if o.mem == old {
                o.mem = new;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StreamStep::{Run, Wait};

    #[test]
    fn one_stream_has_no_waits() {
        let one = Schedule::one(&[3, 4]);
        assert_eq!(one.streams, [[Run(0), Run(1)]]);
        assert_eq!((one.predicted_ns, one.times), (7, vec![(0, 3), (3, 7)]));
    }

    #[test]
    fn waits_become_events() {
        let streams = vec![vec![Run(0), Run(2)], vec![Run(1), Wait { stream: 0, count: 1 }, Run(3)]];
        let schedule = Schedule { streams, ..Schedule::default() };
        assert_eq!(schedule.signals(), [BTreeSet::from([1]), BTreeSet::new()]);
        let (events, at) = schedule.events();
        let order = crate::plan::order::HappensBefore::new(&events).unwrap();
        let before = |a: usize, b: usize| order.before(at[a], at[b]);
        assert!(before(0, 3) && before(0, 2) && before(1, 3));
        assert!(!before(2, 3) && !before(0, 1) && !before(3, 2));
    }
}
