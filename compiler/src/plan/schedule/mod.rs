//! The schedule: which stream runs what, in which order, and where streams wait for each other.
//!
//! In: a task list and a target. Out: a [`Schedule`] of steps per stream, with its simulated timeline. Two schedulers,
//! [`levels`] and [`list`] (with and without shards), are always computed and the one that ends first is taken; [`waits`]
//! turns an order of tasks into steps with as few waits as possible, [`simulate`] predicts their times.
//! Invariants: every shard of every task stands on one stream of its resource; a schedule made here has no deadlock.

mod levels;
mod list;
mod simulate;
mod waits;

pub use simulate::{Timeline, simulate};

use super::id::{DeviceId, DmaId, EventId, TaskId};
use super::insert::{Resource, Task, TaskKind, TaskList};
use super::target::Target;

/// A task, or one of its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The task.
    pub task: TaskId,
    /// Which shard, from 0.
    pub shard: u32,
    /// Of how many.
    pub of: u32,
}

impl Part {
    /// How long it takes: the launch, and its share of the rest.
    pub fn ns(self, task: &Task) -> u64 {
        let rest = task.cost_ns.saturating_sub(task.launch_ns);
        (task.cost_ns - rest) + rest.div_ceil(u64::from(self.of.max(1)))
    }
}

/// One step of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Runs a kernel or a shard of one.
    Launch(Part),
    /// Copies on a device's own stream.
    Copy(TaskId),
    /// Copies on a DMA engine.
    Dma(TaskId),
    /// Everything before it on this stream is done.
    Signal(EventId),
    /// Goes on once the event was signalled.
    Wait {
        /// The event.
        event: EventId,
        /// From the signal until it is seen here.
        latency_ns: u64,
    },
}

impl Step {
    /// The task it works on.
    pub fn part(&self) -> Option<Part> {
        match *self {
            Step::Launch(part) => Some(part),
            Step::Copy(task) | Step::Dma(task) => Some(Part { task, shard: 0, of: 1 }),
            Step::Signal(_) | Step::Wait { .. } => None,
        }
    }
}

/// An ordered queue on one device or engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// What it runs on.
    pub on: Resource,
    /// Its steps.
    pub steps: Vec<Step>,
}

/// Steps per stream: a stream for each of the target's streams and channels, some perhaps empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The streams: devices' first, then engines'.
    pub streams: Vec<Stream>,
    /// Events are numbered below this.
    pub n_events: usize,
}

impl Schedule {
    /// Number of waits.
    pub fn n_waits(&self) -> usize {
        self.streams.iter().flat_map(|s| &s.steps).filter(|s| matches!(s, Step::Wait { .. })).count()
    }
}

/// Which scheduler made a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// Layers of branches with barriers between them.
    Levels,
    /// List scheduling.
    List {
        /// Which of the ready tasks goes first.
        first: First,
        /// Whether heavy tasks are cut into shards.
        shards: Shards,
    },
}

/// Which of the ready tasks goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// The one with the longest way to the end.
    CriticalPath,
    /// The one that comes first in the model.
    ModelOrder,
}

/// When tasks that may be cut into shards are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shards {
    /// Never.
    Never,
    /// As far as no other ready task could use the streams.
    WhereIdle,
    /// Always, over all streams.
    Always,
}

/// A schedule with its prediction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Who made it.
    pub by: Scheduler,
    /// The steps.
    pub schedule: Schedule,
    /// When they run.
    pub timeline: Timeline,
}

/// Parts in order on each stream, without waits yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    lanes: Vec<Lane>,
    /// For each barrier, how many parts of each lane come before it.
    barriers: Vec<Vec<usize>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Lane {
    on: Resource,
    parts: Vec<Part>,
}

/// An empty lane for each stream and channel.
fn lanes(target: &Target) -> Vec<Lane> {
    let devices = (0..target.n_devices()).map(|d| Resource::Device(DeviceId::new(d)));
    let engines = (0..target.dmas.len()).map(|d| Resource::Dma(DmaId::new(d)));
    let lane = |on| Lane { on, parts: Vec::new() };
    devices.chain(engines).flat_map(|on| (0..on.n_streams(target)).map(move |_| lane(on))).collect()
}

/// The schedulers there are to choose from, in order of preference among equals. With one stream for everything there is
/// one: the model's order.
fn schedulers(list: &TaskList, target: &Target, shards: bool) -> Vec<Scheduler> {
    if lanes(target).len() == 1 {
        return vec![Scheduler::List { first: First::ModelOrder, shards: Shards::Never }];
    }
    let cuts = |t: &Task| t.splits > 1 && t.on.n_streams(target) > 1;
    let shards = shards && list.tasks.iter().any(cuts);
    let cuts: &[Shards] = if shards { &[Shards::Never, Shards::WhereIdle, Shards::Always] } else { &[Shards::Never] };
    let mut ways = vec![];
    for first in [First::ModelOrder, First::CriticalPath] {
        ways.extend(cuts.iter().map(|&shards| Scheduler::List { first, shards }));
    }
    ways.push(Scheduler::Levels);
    ways
}

/// The schedules of all schedulers.
pub fn all(list: &TaskList, target: &Target, shards: bool) -> Vec<Planned> {
    schedulers(list, target, shards).into_iter().filter_map(|by| planned(list, target, by)).collect()
}

/// The schedule of one scheduler.
pub fn planned(list: &TaskList, target: &Target, by: Scheduler) -> Option<Planned> {
    let order = match by {
        Scheduler::Levels => levels::order(list, target),
        Scheduler::List { first, shards } => list::order(list, target, first, shards),
    };
    let schedule = waits::steps(list, target, &order)?;
    let timeline = simulate(list, &schedule)?;
    Some(Planned { by, schedule, timeline })
}

/// One task after the other with a barrier between any two, each cut over as many streams as make it end earlier: the order
/// of accesses to memory is that of one stream, so it needs no more memory.
pub fn planned_in_step(list: &TaskList, target: &Target) -> Option<Planned> {
    let mut order = Order { lanes: lanes(target), barriers: Vec::new() };
    for (t, task) in list.tasks.iter().enumerate() {
        let own: Vec<usize> = (0..order.lanes.len()).filter(|&l| order.lanes[l].on == task.on).collect();
        let most = (task.splits as usize).min(own.len()).max(1) as u32;
        let part = |shard, of| Part { task: TaskId::new(t), shard, of };
        let end = |of: &u32| part(0, *of).ns(task) + if *of > 1 { 2 * list::sync_ns(target, task.on) } else { 0 };
        let of = (1..=most).min_by_key(|of| (end(of), *of)).unwrap_or(1);
        if order.lanes.iter().any(|l| !l.parts.is_empty()) {
            order.barriers.push(order.lanes.iter().map(|l| l.parts.len()).collect());
        }
        for (&lane, shard) in own.iter().zip(0..of) {
            order.lanes[lane].parts.push(part(shard, of));
        }
    }
    let schedule = waits::steps(list, target, &order)?;
    let timeline = simulate(list, &schedule)?;
    Some(Planned { by: Scheduler::Levels, schedule, timeline })
}

/// A schedule of layers of chains with a barrier between any two layers.
pub fn planned_layers(list: &TaskList, target: &Target, layers: Vec<Vec<Vec<TaskId>>>) -> Option<Planned> {
    let order = levels::pack(list, lanes(target), layers.into_iter());
    let schedule = waits::steps(list, target, &order)?;
    let timeline = simulate(list, &schedule)?;
    Some(Planned { by: Scheduler::Levels, schedule, timeline })
}

/// The schedule that ends first; of equals the one with fewest waits, then the first of [`all`].
pub fn best(list: &TaskList, target: &Target, shards: bool) -> Planned {
    let rank = |p: &Planned| (p.timeline.end_ns, p.schedule.n_waits());
    let ways = schedulers(list, target, shards).into_iter();
    let best = ways.filter_map(|by| planned(list, target, by)).reduce(|a, b| if rank(&b) < rank(&a) { b } else { a });
    best.unwrap_or_else(empty)
}

/// Of the schedules that end at most so many thousandths later than the first, the one that needs the least memory:
/// `arena` says how many bytes a schedule needs.
pub fn best_within(
    list: &TaskList,
    target: &Target,
    shards: bool,
    slack_permille: u64,
    mut arena: impl FnMut(&Schedule) -> u64,
) -> Planned {
    let mut all = all(list, target, shards);
    let first = all.iter().map(|p| p.timeline.end_ns).min().unwrap_or(0);
    let latest = u128::from(first) * (1000 + u128::from(slack_permille)) / 1000;
    all.retain(|p| u128::from(p.timeline.end_ns) <= latest);
    let best = all.into_iter().min_by_key(|p| (arena(&p.schedule), p.timeline.end_ns, p.schedule.n_waits()));
    best.unwrap_or_else(empty)
}

fn empty() -> Planned {
    Planned { by: Scheduler::Levels, schedule: Schedule::default(), timeline: Timeline::default() }
}

/// Which step a task needs on a resource.
fn step(list: &TaskList, part: Part) -> Step {
    let task = &list.tasks[part.task.idx()];
    match (&task.kind, task.on) {
        (TaskKind::Launch { .. }, _) => Step::Launch(part),
        (TaskKind::Copy { .. }, Resource::Dma(_)) => Step::Dma(part.task),
        (TaskKind::Copy { .. }, Resource::Device(_)) => Step::Copy(part.task),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::insert::insert;
    use crate::plan::placement::single_device;
    use crate::plan::testing::{Kit, Random, random_graph, random_target};

    fn host_list(kit: &Kit) -> TaskList {
        let shape = kit.shape();
        insert(&kit.graph, &shape, &kit.target, &single_device(&kit.graph, &shape, &kit.target, kit.target.host))
    }

    fn host(streams: usize) -> Kit {
        let mut kit = Kit::new(1, 0);
        kit.target.devices[0].streams = streams;
        kit
    }

    /// planning.md §6: {A=3, B=5} -> C on two streams ends at 5+c, not 8+c.
    #[test]
    fn two_branches_run_at_once() {
        let c = 4;
        let mut kit = host(2);
        let x = kit.input(8);
        let a = kit.node(&[x], &[3]);
        let b = kit.node(&[x], &[5]);
        let y = kit.node(&[a, b], &[c]);
        kit.output(y);
        let list = host_list(&kit);
        for p in all(&list, &kit.target, true) {
            assert_eq!(p.timeline.end_ns, 5 + c, "{:?}", p.by);
            assert_eq!(p.schedule.n_waits(), 1, "{:?}", p.by);
        }
        kit.target.devices[0].streams = 1;
        assert_eq!(best(&list, &kit.target, true).timeline.end_ns, 8 + c);
    }

    /// planning.md §6: with sharding off a chain takes its sum whatever the number of streams, with no sync point.
    #[test]
    fn a_chain_takes_its_sum() {
        for streams in [1, 2, 5] {
            let mut kit = host(streams);
            kit.target.devices[0].sync_ns = 1;
            let mut v = kit.input(8);
            for c in 1..=10 {
                v = kit.node(&[v], &[c]);
                kit.graph.nodes[c as usize - 1].splits = 8;
            }
            let list = host_list(&kit);
            for p in all(&list, &kit.target, false) {
                assert_eq!((p.timeline.end_ns, p.schedule.n_waits()), (55, 0), "{:?} on {streams}", p.by);
                let all: usize = p.schedule.streams.iter().map(|s| s.steps.len()).sum();
                assert_eq!(all, 10);
            }
        }
    }

    #[test]
    fn a_little_time_can_be_given_for_memory() {
        let mut kit = host(2);
        let x = kit.input(8);
        let a = kit.node(&[x], &[100]);
        let b = kit.node(&[x], &[3]);
        let y = kit.node(&[a, b], &[100]);
        kit.output(y);
        let list = host_list(&kit);
        // As if every wait cost memory.
        let by_waits = |s: &Schedule| s.n_waits() as u64;
        assert_eq!(best_within(&list, &kit.target, false, 0, by_waits), best(&list, &kit.target, false));
        let p = best_within(&list, &kit.target, false, 50, by_waits);
        assert!(p.timeline.end_ns <= 210);
    }

    #[test]
    fn shards_keep_two_streams_busy_in_a_chain() {
        let mut kit = host(2);
        kit.target.devices[0].launch_ns = 2;
        kit.target.devices[0].sync_ns = 1;
        let mut v = kit.input(8);
        for i in 0..4 {
            let before = v;
            v = kit.node(&[v], &[102]);
            kit.graph.nodes[i].splits = 4;
            // The last two work row by row: no sync point before them.
            kit.graph.nodes[i].rowwise = if i >= 2 { vec![before] } else { vec![] };
        }
        let p = best(&host_list(&kit), &kit.target, true);
        // 2 + 50 each, one nanosecond of sync before the second.
        assert_eq!(p.timeline.end_ns, 4 * 52 + 1);
        assert_eq!(p.schedule.n_waits(), 2);
        // Light work is not worth a sync point.
        kit.graph.nodes.iter_mut().for_each(|n| n.cost_ns = vec![Some(3)]);
        kit.target.devices[0].sync_ns = 10;
        let p = best(&host_list(&kit), &kit.target, true);
        assert_eq!((p.timeline.end_ns, p.schedule.n_waits()), (12, 0));
    }

    #[test]
    fn a_copy_overlaps_with_work_that_does_not_need_it() {
        let t = Target::shipped("soc-npu").unwrap().unwrap();
        let (npu, cpu) = (DeviceId(0), t.host);
        let mut kit = Kit::on(t);
        let x = kit.input(20_000);
        let y = kit.node(&[x], &[10_000, 1]);
        let z = kit.node(&[x], &[1, 200_000]);
        kit.output(y);
        kit.output(z);
        kit.graph.nodes[0].pin = Some(npu);
        kit.graph.nodes[1].pin = Some(cpu);
        let p = best(&host_list(&kit), &kit.target, true);
        // In 152 us, NPU 10 us, out 151 us and a rounded byte; the CPU's 200 us lie beside them.
        assert_eq!(p.timeline.end_ns, 152_000 + 10_000 + 151_001);
        let steps: Vec<usize> = p.schedule.streams.iter().map(|s| s.steps.len()).collect();
        assert_eq!(steps, [3, 1, 2, 2]);
    }

    /// Every schedule holds every part once, ends no earlier than the critical path and the busiest resource allow, and
    /// list scheduling on one device keeps Graham's bound.
    #[test]
    fn random_schedules_are_sound() {
        let mut r = Random(31);
        for at in 0..400 {
            let target = random_target(&mut r, 1 + at % 3);
            let n = 1 + r.below(25) as usize;
            let kit = random_graph(&mut r, target, n);
            let shape = kit.shape();
            let placed = crate::plan::placement::priority::place(&kit.graph, &shape, &kit.target);
            let list = insert(&kit.graph, &shape, &kit.target, &placed);
            for p in all(&list, &kit.target, true) {
                let mut left: Vec<u64> = vec![1_000_000; list.tasks.len()];
                for part in p.schedule.streams.iter().flat_map(|s| &s.steps).filter_map(Step::part) {
                    left[part.task.idx()] -= 1_000_000 / u64::from(part.of);
                }
                assert!(left.iter().all(|l| *l < 10), "{:?}", p.by);
            }
            let dag = list.dag();
            let mut end = vec![0; list.tasks.len()];
            for t in dag.order() {
                let ready = dag.preds(t).iter().map(|&p| end[p as usize]).max().unwrap_or(0);
                end[t] = ready + list.tasks[t].cost_ns;
            }
            let path = end.iter().max().copied().unwrap_or(0);
            let work: u64 = list.tasks.iter().map(|t| t.cost_ns).sum();
            let single = best(&list, &kit.target, false);
            assert!(single.timeline.end_ns >= path);
            let streams = kit.target.devices[0].streams as u64;
            if kit.target.n_devices() == 1 && kit.target.devices[0].sync_ns == 0 {
                assert!(single.timeline.end_ns >= work.div_ceil(streams));
                assert!(single.timeline.end_ns <= work / streams + path, "{at}");
            }
            assert!(best(&list, &kit.target, true).timeline.end_ns <= single.timeline.end_ns);
        }
    }
}
