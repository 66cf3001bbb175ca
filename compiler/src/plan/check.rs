//! The proof of a schedule, from the graph and the steps alone.
//!
//! In: the task graph, the target, tasks with their buffers, and the steps. Out: nothing, or the first fault found.
//! Proven: every node runs exactly once (all shards), on a device that can run it; every kernel reads each of its operands
//! in its own device's memory and form, every copy moves one value between the memories of its link; streams do not
//! deadlock; every read happens after the writes it needs, whatever the timing; outputs end up where the caller reads them.
//! With offsets also: buffers that share bytes are never in use at once.
//! Invariant: shares no code with insertion, schedulers, waits or [`order`](super::order): it derives who reads and writes
//! what from nodes and values, and has its own clocks.

use super::graph::{Form, Source, TaskGraph};
use super::id::{BufferId, DeviceId, NodeId, ValueId};
use super::insert::{Resource, Task, TaskKind, TaskList};
use super::schedule::{Schedule, Step};
use super::target::Target;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Why a plan is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

type Result<T = ()> = std::result::Result<T, Fault>;

fn fault<T>(message: impl Into<String>) -> Result<T> {
    Err(Fault(message.into()))
}

/// One access: by which shard of which task, and when.
#[derive(Clone, Copy, Debug)]
struct Use {
    stream: usize,
    step: usize,
    shard: u32,
    of: u32,
}

/// What a task must read and write, by the graph.
struct Needs {
    reads: Vec<(BufferId, bool)>,
    writes: Vec<BufferId>,
}

struct Check<'a> {
    graph: &'a TaskGraph,
    target: &'a Target,
    list: &'a TaskList,
    producer: Vec<Option<NodeId>>,
    /// When each task's shards run, by shard.
    uses: Vec<Vec<Use>>,
    /// Each buffer's writer.
    writer: Vec<Option<usize>>,
    needs: Vec<Needs>,
    /// For each stream and step, how much of each stream is over when it begins.
    seen: Vec<Vec<Vec<usize>>>,
}

/// Checks tasks and steps.
pub fn check(graph: &TaskGraph, target: &Target, list: &TaskList, schedule: &Schedule) -> Result {
    Check::new(graph, target, list, schedule)?.all()
}

/// Checks offsets as well: `offsets[b]` is where buffer `b` lies in its memory; `None` for one outside the arenas.
pub fn check_memory(
    graph: &TaskGraph,
    target: &Target,
    list: &TaskList,
    schedule: &Schedule,
    offsets: &[Option<u64>],
) -> Result {
    let check = Check::new(graph, target, list, schedule)?;
    check.all()?;
    check.memory(offsets)
}

impl<'a> Check<'a> {
    fn new(graph: &'a TaskGraph, target: &'a Target, list: &'a TaskList, schedule: &'a Schedule) -> Result<Check<'a>> {
        let mut producer = vec![None; graph.values.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            for v in &node.outputs {
                match producer.get_mut(v.idx()) {
                    Some(p) => *p = Some(NodeId::new(i)),
                    None => return fault(format!("node {i} makes a value that is not there")),
                }
            }
        }
        let uses = uses(target, list, schedule)?;
        let seen = clocks(schedule)?;
        let mut check = Check { graph, target, list, producer, uses, writer: Vec::new(), needs: Vec::new(), seen };
        for t in 0..list.tasks.len() {
            let needs = check.needs(t)?;
            check.needs.push(needs);
        }
        check.writer = vec![None; list.buffers.len()];
        for (t, needs) in check.needs.iter().enumerate() {
            for b in &needs.writes {
                if check.writer[b.idx()].replace(t).is_some() {
                    return fault(format!("{b} is written by two tasks"));
                }
            }
        }
        Ok(check)
    }

    fn all(&self) -> Result {
        self.nodes_once()?;
        self.sources()?;
        for (t, needs) in self.needs.iter().enumerate() {
            for &(b, rowwise) in &needs.reads {
                self.read_after_write(t, b, rowwise)?;
            }
        }
        self.outputs()
    }

    fn buffer(&self, b: BufferId) -> Result<&'a super::insert::Buffer> {
        match self.list.buffers.get(b.idx()) {
            Some(buffer) if buffer.value.idx() < self.graph.values.len() => Ok(buffer),
            _ => fault(format!("{b} is not there")),
        }
    }

    /// Whether a buffer holds a value as a device wants it.
    fn holds(&self, b: BufferId, v: ValueId, device: DeviceId) -> Result<bool> {
        let buffer = self.buffer(b)?;
        let form: Form = self.graph.values[v.idx()].forms[device.idx()];
        let there = buffer.memory == self.target.devices[device.idx()].memory;
        Ok(buffer.value == v && there && buffer.form == form)
    }

    fn needs(&self, t: usize) -> Result<Needs> {
        let task = &self.list.tasks[t];
        match &task.kind {
            TaskKind::Launch { nodes, claim } => self.launch(t, task, nodes, *claim),
            TaskKind::Copy { value, from, to, .. } => {
                let ([read], [write]) = (&task.reads[..], &task.writes[..]) else {
                    return fault(format!("copy t{t} does not have one source and one destination"));
                };
                let n = self.target.devices.len();
                if value.idx() >= self.graph.values.len() || from.idx() >= n || to.idx() >= n {
                    return fault(format!("copy t{t} names what is not there"));
                }
                if !self.holds(read.buffer, *value, *from)? || !self.holds(*write, *value, *to)? {
                    return fault(format!("copy t{t}: its buffers are not {value} at {from} and at {to}"));
                }
                let link = self.target.links.iter().find(|l| l.from == *from && l.to == *to);
                let on = link.map(|l| l.dma.map_or(Resource::Device(l.by), Resource::Dma));
                if on != Some(task.on) {
                    return fault(format!("copy t{t} runs where no link leads from {from} to {to}"));
                }
                Ok(Needs { reads: vec![(read.buffer, false)], writes: vec![*write] })
            }
        }
    }

    fn launch(&self, t: usize, task: &Task, nodes: &[NodeId], claim: Option<usize>) -> Result<Needs> {
        let Resource::Device(device) = task.on else { return fault(format!("kernel t{t} runs on an engine")) };
        let set: BTreeSet<NodeId> = nodes.iter().copied().collect();
        if set.len() != nodes.len() || nodes.iter().any(|n| n.idx() >= self.graph.nodes.len()) || nodes.is_empty() {
            return fault(format!("kernel t{t} names nodes that are not there, or twice, or none"));
        }
        let claimed = match claim {
            None => false,
            Some(c) => match self.graph.claims.get(c) {
                Some(c) if c.device == device && c.nodes.iter().copied().collect::<BTreeSet<_>>() == set => true,
                _ => return fault(format!("kernel t{t} is not what its claim says")),
            },
        };
        if !claimed && nodes.len() != 1 {
            return fault(format!("kernel t{t} runs several nodes without a claim"));
        }
        for n in nodes {
            let node = &self.graph.nodes[n.idx()];
            let can = claimed || node.cost_ns.get(device.idx()).is_some_and(Option::is_some);
            if !can || node.pin.is_some_and(|pin| pin != device) {
                return fault(format!("node \"{}\" may not run on {device}", node.name));
            }
        }
        let only = &self.graph.nodes[nodes[0].idx()];
        let mut reads = Vec::new();
        for v in nodes.iter().flat_map(|n| &self.graph.nodes[n.idx()].inputs) {
            let inside = self.producer[v.idx()].is_some_and(|p| set.contains(&p));
            if inside || self.graph.values[v.idx()].source == Source::Constant {
                continue;
            }
            let mut found = None;
            for r in &task.reads {
                if self.holds(r.buffer, *v, device)? {
                    found = Some(r.buffer);
                }
            }
            let Some(b) = found else { return fault(format!("kernel t{t} has no buffer for {v} on {device}")) };
            reads.push((b, nodes.len() == 1 && only.rowwise.contains(v)));
        }
        if let Some(r) = task.reads.iter().find(|r| reads.iter().all(|(b, _)| *b != r.buffer)) {
            return fault(format!("kernel t{t} reads {} without need", r.buffer));
        }
        let mut writes = task.writes.clone();
        for &b in &writes {
            let v = self.buffer(b)?.value;
            let made = self.producer[v.idx()].is_some_and(|p| set.contains(&p));
            if !made || !self.holds(b, v, device)? {
                return fault(format!("kernel t{t} does not make {b}"));
            }
        }
        writes.sort_unstable();
        writes.dedup();
        Ok(Needs { reads, writes })
    }

    fn nodes_once(&self) -> Result {
        let mut times = vec![0u32; self.graph.nodes.len()];
        for task in &self.list.tasks {
            if let TaskKind::Launch { nodes, .. } = &task.kind {
                nodes.iter().for_each(|n| times[n.idx()] += 1);
            }
        }
        match times.iter().position(|&n| n != 1) {
            Some(i) => fault(format!("node \"{}\" runs {} times", self.graph.nodes[i].name, times[i])),
            None => Ok(()),
        }
    }

    /// Buffers that no task writes are graph inputs where the caller puts them.
    fn sources(&self) -> Result {
        for (i, buffer) in self.list.buffers.iter().enumerate() {
            let b = BufferId::new(i);
            let Source::Input(d) = self.graph.values[self.buffer(b)?.value.idx()].source else { continue };
            if self.writer[i].is_none() && !self.holds(b, buffer.value, d)? {
                return fault(format!("{b} is not where the caller puts {}", buffer.value));
            }
        }
        Ok(())
    }

    fn read_after_write(&self, t: usize, b: BufferId, rowwise: bool) -> Result {
        let Some(w) = self.writer[b.idx()] else {
            return match self.graph.values[self.buffer(b)?.value.idx()].source {
                Source::Input(_) => Ok(()),
                _ => fault(format!("t{t} reads {b}, which nobody writes")),
            };
        };
        for reader in &self.uses[t] {
            for writer in &self.uses[w] {
                let other_rows = rowwise && reader.of == writer.of && reader.shard != writer.shard;
                if !other_rows && self.seen[reader.stream][reader.step][writer.stream] <= writer.step {
                    let Use { stream, step, .. } = reader;
                    return fault(format!("step {step} of stream {stream} may read {b} before t{w} wrote it"));
                }
            }
        }
        Ok(())
    }

    fn outputs(&self) -> Result {
        for (v, value) in self.graph.values.iter().enumerate() {
            let (Some(d), true) = (value.output, value.source != Source::Constant) else { continue };
            let mut there = false;
            for i in (0..self.list.buffers.len()).filter(|&i| self.list.buffers[i].output) {
                let given = self.writer[i].is_some() || matches!(value.source, Source::Input(_));
                there |= given && self.holds(BufferId::new(i), ValueId::new(v), d)?;
            }
            if !there {
                return fault(format!("output \"{}\" does not arrive at {d}", value.name));
            }
        }
        Ok(())
    }

    /// Pairs of buffers that share bytes: all uses of one are over before any of the other begins.
    fn memory(&self, offsets: &[Option<u64>]) -> Result {
        if offsets.len() != self.list.buffers.len() {
            return fault("not one offset for each buffer");
        }
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); offsets.len()];
        for (t, needs) in self.needs.iter().enumerate() {
            let all = needs.reads.iter().map(|(b, _)| *b).chain(needs.writes.iter().copied());
            all.for_each(|b| users[b.idx()].push(t));
        }
        let mut by_memory: BTreeMap<_, Vec<(u64, u64, usize)>> = BTreeMap::new();
        for (i, at) in offsets.iter().enumerate() {
            let buffer = &self.list.buffers[i];
            let Some(at) = at else { continue };
            let memory = &self.target.memories[buffer.memory.idx()];
            let end = at.checked_add(buffer.form.bytes).filter(|end| *end <= memory.capacity_bytes);
            let Some(end) = end else { return fault(format!("b{i} does not fit into \"{}\"", memory.name)) };
            if at % memory.alignment_bytes != 0 {
                return fault(format!("b{i} is not aligned"));
            }
            if end > *at {
                by_memory.entry(buffer.memory).or_default().push((*at, end, i));
            }
        }
        for mut spans in by_memory.into_values() {
            spans.sort_unstable();
            for (k, &(_, end, a)) in spans.iter().enumerate() {
                for &(_, _, b) in spans[k + 1..].iter().take_while(|s| s.0 < end) {
                    if !self.apart(a, b, &users) && !self.apart(b, a, &users) {
                        return fault(format!("b{a} and b{b} share bytes and may be in use at once"));
                    }
                }
            }
        }
        Ok(())
    }

    fn apart(&self, a: usize, b: usize, users: &[Vec<usize>]) -> bool {
        let from_start = self.writer[b].is_none();
        if self.list.buffers[a].output || from_start {
            return false;
        }
        let uses = |b: usize| users[b].iter().flat_map(|&t| &self.uses[t]);
        uses(a).all(|x| uses(b).all(|y| self.seen[y.stream][y.step][x.stream] > x.step))
    }
}

/// Every shard of every task once, on the right kind of stream.
fn uses(target: &Target, list: &TaskList, schedule: &Schedule) -> Result<Vec<Vec<Use>>> {
    let mut uses: Vec<Vec<Use>> = vec![Vec::new(); list.tasks.len()];
    let mut n_streams: BTreeMap<Resource, usize> = BTreeMap::new();
    for (stream, s) in schedule.streams.iter().enumerate() {
        *n_streams.entry(s.on).or_default() += 1;
        for (step, what) in s.steps.iter().enumerate() {
            let (task, shard, of, copies, engine) = match *what {
                Step::Signal(_) | Step::Wait { .. } => continue,
                Step::Launch(p) => (p.task, p.shard, p.of, false, false),
                Step::Copy(t) => (t, 0, 1, true, false),
                Step::Dma(t) => (t, 0, 1, true, true),
            };
            let Some(t) = list.tasks.get(task.idx()) else { return fault(format!("{task} is not there")) };
            let is_copy = matches!(t.kind, TaskKind::Copy { .. });
            if is_copy != copies || t.on != s.on || matches!(s.on, Resource::Dma(_)) != engine {
                return fault(format!("{task} is on a stream or in a step of the wrong kind"));
            }
            if shard >= of || of > t.splits.max(1) {
                return fault(format!("{task} is cut into shards it does not have"));
            }
            uses[task.idx()].push(Use { stream, step, shard, of });
        }
    }
    for (on, n) in n_streams {
        let most = match on {
            Resource::Device(d) => target.devices.get(d.idx()).map(|d| d.streams),
            Resource::Dma(d) => target.dmas.get(d.idx()).map(|d| d.channels),
        };
        if most.is_none_or(|most| n > most) {
            return fault(format!("{n} streams on {on:?} are more than it has"));
        }
    }
    for (t, parts) in uses.iter_mut().enumerate() {
        parts.sort_by_key(|p| p.shard);
        let complete = parts.first().is_some_and(|p| p.of as usize == parts.len());
        if !complete || parts.iter().enumerate().any(|(i, p)| p.shard as usize != i || p.of as usize != parts.len()) {
            return fault(format!("t{t} does not run exactly once"));
        }
    }
    Ok(uses)
}

/// Runs the steps in some order that waits and signals allow, keeping what each stream has seen of the others.
fn clocks(schedule: &Schedule) -> Result<Vec<Vec<Vec<usize>>>> {
    let n = schedule.streams.len();
    let mut signalled: Vec<Option<Vec<usize>>> = vec![None; schedule.n_events];
    let mut at = vec![vec![0usize; n]; n];
    let mut seen: Vec<Vec<Vec<usize>>> = schedule.streams.iter().map(|s| Vec::with_capacity(s.steps.len())).collect();
    loop {
        let mut moved = false;
        for s in 0..n {
            while let Some(step) = schedule.streams[s].steps.get(at[s][s]) {
                if let Step::Wait { event, .. } = step {
                    let Some(signal) = signalled.get(event.idx()) else {
                        return fault(format!("{event} is not there"));
                    };
                    let Some(signal) = signal else { break };
                    for other in 0..n {
                        at[s][other] = at[s][other].max(signal[other]);
                    }
                }
                seen[s].push(at[s].clone());
                at[s][s] += 1;
                moved = true;
                if let Step::Signal(event) = step {
                    let Some(slot) = signalled.get_mut(event.idx()) else {
                        return fault(format!("{event} is not there"));
                    };
                    if slot.replace(at[s].clone()).is_some() {
                        return fault(format!("{event} is signalled twice"));
                    }
                }
            }
        }
        if !moved {
            break;
        }
    }
    match (0..n).find(|&s| at[s][s] < schedule.streams[s].steps.len()) {
        Some(s) => fault(format!("deadlock: stream {s} waits for ever at step {}", at[s][s])),
        None => Ok(seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::solve;
    use crate::plan::insert::insert;
    use crate::plan::order::{HappensBefore, accesses, conflicts};
    use crate::plan::placement::{priority, sum};
    use crate::plan::schedule::{Planned, Scheduler, all};
    use crate::plan::testing::{Kit, Random, random_graph, random_target};

    struct Plan {
        kit: Kit,
        list: TaskList,
        planned: Planned,
    }

    /// Random plans of all kinds.
    fn plans(seed: u64, n: usize) -> Vec<Plan> {
        let mut r = Random(seed);
        let mut plans = Vec::new();
        while plans.len() < n {
            let target = random_target(&mut r, 1 + plans.len() % 3);
            let n_nodes = 2 + r.below(20) as usize;
            let kit = random_graph(&mut r, target, n_nodes);
            let shape = kit.shape();
            let p = match r.below(2) {
                0 => priority::place(&kit.graph, &shape, &kit.target),
                _ => sum::place(&kit.graph, &shape, &kit.target),
            };
            let list = insert(&kit.graph, &shape, &kit.target, &p);
            let mut ways = all(&list, &kit.target, true);
            let planned = ways.swap_remove(r.below(ways.len() as u64) as usize);
            plans.push(Plan { kit, list, planned });
        }
        plans
    }

    impl Plan {
        fn check(&self) -> Result {
            check(&self.kit.graph, &self.kit.target, &self.list, &self.planned.schedule)
        }

        fn steps(&mut self, s: usize) -> &mut Vec<Step> {
            &mut self.planned.schedule.streams[s].steps
        }

        fn positions(&self, wanted: impl Fn(&Step) -> bool) -> Vec<(usize, usize)> {
            let mut all = Vec::new();
            for (s, stream) in self.planned.schedule.streams.iter().enumerate() {
                all.extend((0..stream.steps.len()).filter(|&i| wanted(&stream.steps[i])).map(|i| (s, i)));
            }
            all
        }
    }

    #[test]
    fn plans_are_accepted() {
        for plan in plans(61, 400) {
            plan.check().unwrap_or_else(|e| panic!("{e} ({:?})", plan.planned.by));
        }
    }

    /// No wait can be left out: each one is needed (barriers wait for more than data does).
    #[test]
    fn a_dropped_wait_is_rejected() {
        let mut n = 0;
        for mut plan in plans(62, 300) {
            if plan.planned.by == Scheduler::Levels {
                continue;
            }
            for (s, i) in plan.positions(|s| matches!(s, Step::Wait { .. })) {
                let wait = plan.steps(s).remove(i);
                assert!(plan.check().is_err());
                plan.steps(s).insert(i, wait);
                n += 1;
            }
        }
        assert!(n > 300, "{n}");
    }

    #[test]
    fn a_dropped_signal_or_a_doubled_one_is_rejected() {
        for mut plan in plans(63, 200) {
            for (s, i) in plan.positions(|s| matches!(s, Step::Signal(_))) {
                let signal = plan.steps(s).remove(i);
                assert!(plan.check().unwrap_err().0.contains("deadlock"));
                plan.steps(s).insert(i, signal);
                plan.steps(s).insert(i, signal);
                assert!(plan.check().unwrap_err().0.contains("twice"));
                plan.steps(s).remove(i);
            }
        }
    }

    /// Two neighbours of a stream, the second reading what the first writes.
    #[test]
    fn swapped_steps_are_rejected() {
        let mut n = 0;
        for mut plan in plans(64, 200) {
            for (s, i) in plan.positions(|s| s.part().is_some()) {
                let steps = plan.steps(s);
                let (Some(a), Some(b)) = (steps[i].part(), steps.get(i + 1).and_then(Step::part)) else { continue };
                let (a, b) = (&plan.list.tasks[a.task.idx()], &plan.list.tasks[b.task.idx()]);
                if b.reads.iter().any(|r| a.writes.contains(&r.buffer) && !r.rowwise) {
                    plan.steps(s).swap(i, i + 1);
                    assert!(plan.check().is_err());
                    plan.steps(s).swap(i, i + 1);
                    n += 1;
                }
            }
        }
        assert!(n > 200, "{n}");
    }

    #[test]
    fn dropped_doubled_and_misplaced_work_is_rejected() {
        for mut plan in plans(65, 200) {
            for (s, i) in plan.positions(|s| s.part().is_some()) {
                let step = plan.steps(s).remove(i);
                assert!(plan.check().is_err());
                plan.steps(s).insert(i, step);
                plan.steps(s).insert(i, step);
                assert!(plan.check().is_err());
                plan.steps(s).remove(i);
                let other =
                    plan.planned.schedule.streams.iter().position(|o| o.on != plan.planned.schedule.streams[s].on);
                if let Some(other) = other {
                    let step = plan.steps(s).remove(i);
                    plan.steps(other).push(step);
                    assert!(plan.check().is_err());
                    plan.steps(other).pop();
                    plan.steps(s).insert(i, step);
                }
            }
            plan.check().unwrap();
        }
    }

    #[test]
    fn retargeted_copies_and_reads_are_rejected() {
        let mut n = 0;
        for mut plan in plans(66, 200) {
            for t in 0..plan.list.tasks.len() {
                let good = plan.list.tasks[t].clone();
                for d in plan.kit.target.device_ids() {
                    if let TaskKind::Copy { to, .. } = &mut plan.list.tasks[t].kind
                        && *to != d
                    {
                        *to = d;
                        let shared =
                            plan.kit.target.devices[d.idx()].memory == plan.list.buffers[good.writes[0].idx()].memory;
                        assert!(plan.check().is_err() || shared);
                        plan.list.tasks[t] = good.clone();
                        n += 1;
                    }
                }
                for i in 0..good.reads.len() {
                    // Any other buffer: another value, or the same one elsewhere.
                    let other = BufferId::new((good.reads[i].buffer.idx() + 1) % plan.list.buffers.len());
                    if good.reads.iter().all(|r| r.buffer != other) {
                        plan.list.tasks[t].reads[i].buffer = other;
                        assert!(plan.check().is_err());
                        plan.list.tasks[t] = good.clone();
                        n += 1;
                    }
                }
                if let Some(b) = good.writes.first() {
                    let memory = plan.list.buffers[b.idx()].memory;
                    plan.list.buffers[b.idx()].memory = super::super::id::MemoryId(77);
                    assert!(plan.check().is_err());
                    plan.list.buffers[b.idx()].memory = memory;
                }
            }
        }
        assert!(n > 1000, "{n}");
    }

    #[test]
    fn offsets_are_checked_against_the_partial_order() {
        let mut shared = 0;
        for plan in plans(67, 60) {
            let Plan { kit, list, planned } = &plan;
            let hb = HappensBefore::new(&planned.schedule).unwrap();
            let edges = conflicts(&hb, &accesses(list, &planned.schedule));
            let mut offsets = vec![None; list.buffers.len()];
            for m in 0..kit.target.memories.len() {
                let here = |b: usize| list.buffers[b].memory.idx() == m;
                let size = |b: usize| if here(b) { list.buffers[b].form.bytes } else { 0 };
                let sizes: Vec<u64> = (0..offsets.len()).map(size).collect();
                let problem = solve::Problem::from_conflicts(&sizes, &vec![64; sizes.len()], &edges).unwrap();
                let solution = solve::solve(&problem, &solve::Options { climb_steps: 100, search_steps: 100 });
                (0..offsets.len()).filter(|&b| here(b)).for_each(|b| offsets[b] = Some(solution.offsets[b]));
            }
            let check =
                |offsets: &[Option<u64>]| check_memory(&kit.graph, &kit.target, list, &planned.schedule, offsets);
            check(&offsets).unwrap();
            // Moving one buffer onto another that it conflicts with must be seen.
            for &(a, b) in edges.iter().filter(|(a, b)| list.buffers[*a].memory == list.buffers[*b].memory) {
                let mut bad = offsets.clone();
                bad[a] = bad[b];
                assert!(check(&bad).unwrap_err().0.contains("in use at once"));
                shared += 1;
            }
            let mut odd = offsets.clone();
            odd[0] = Some(32);
            assert!(check(&odd).is_err());
            odd[0] = Some(1 << 40);
            assert!(check(&odd).unwrap_err().0.contains("fit"));
        }
        assert!(shared > 500, "{shared}");
    }

    /// Buffers that are disjoint in time in one linear order only: the proof sees that another order is possible.
    #[test]
    fn one_lucky_timing_is_not_enough() {
        let mut kit = Kit::new(1, 0);
        kit.target.devices[0].streams = 2;
        let x = kit.input(64);
        // Two chains on two streams; the first is long over, by simulated time, when the second's end begins.
        let a = kit.node(&[x], &[1]);
        let b = kit.node(&[a], &[1]);
        let c = kit.node(&[x], &[100]);
        let d = kit.node(&[c], &[100]);
        kit.output(b);
        kit.output(d);
        let shape = kit.shape();
        let list = insert(&kit.graph, &shape, &kit.target, &priority::place(&kit.graph, &shape, &kit.target));
        let planned = super::super::schedule::best(&list, &kit.target, false);
        assert_eq!(planned.schedule.n_waits(), 0);
        let offset = |v: ValueId| list.buffers.iter().position(|o| o.value == v).unwrap();
        let mut offsets: Vec<Option<u64>> = (0..list.buffers.len() as u64).map(|i| Some(i * 64)).collect();
        let check = |o: &[Option<u64>]| check_memory(&kit.graph, &kit.target, &list, &planned.schedule, o);
        check(&offsets).unwrap();
        // `a` is dead at 2 ns, `d` is born at 100 ns; but nothing makes the one wait for the other.
        offsets[offset(a)] = offsets[offset(d)];
        assert!(check(&offsets).unwrap_err().0.contains("in use at once"));
    }
}
