//! Schedules for several sizes of memory: from the widest to the one-stream one, so that the model can choose at start.
//!
//! In: tasks, their branches, and a function that says what arena a schedule needs. Out: a short list of [`Variant`]s, the
//! fastest first, none of which another beats in both time and memory.
//! Source: Parallax, arXiv 2512.11532, §3.2 and §3.3: per layer the largest set of branches whose peaks fit the budget runs
//! in parallel, the rest one after another.

use super::branch::{Branches, branches};
use super::id::TaskId;
use super::insert::TaskList;
use super::schedule::{self, Planned, Schedule, Stream};
use super::target::Target;

/// What a branch needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Most bytes it has alive at once (M_i).
    pub peak_bytes: u64,
    /// Its time or work (F_i).
    pub work: u64,
}

/// The branches of a layer that run at once under a budget, and the rest: ascending peaks, of equals the most work first.
pub fn select(loads: &[Load], budget_bytes: u64) -> (Vec<usize>, Vec<usize>) {
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by_key(|&i| (loads[i].peak_bytes, std::cmp::Reverse(loads[i].work), i));
    let mut sum = 0u64;
    let fits = order.iter().take_while(|&&i| {
        sum = sum.saturating_add(loads[i].peak_bytes);
        sum <= budget_bytes
    });
    let n = fits.count();
    // One branch alone is not parallel.
    let rest = order.split_off(if n < 2 { 0 } else { n });
    (order, rest)
}

/// What may be used of the memory that is free: all but the margin.
pub fn budget_bytes(free_bytes: u64, margin_percent: u64) -> u64 {
    let bytes = u128::from(free_bytes) * u128::from(100 - margin_percent.min(100)) / 100;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The margin unless another is asked for.
pub const MARGIN_PERCENT: u64 = 40;

/// Peak and work of each branch: what its tasks write lives until its last reader in the branch, or to the branch's end
/// if anyone else reads it. One sweep.
pub fn loads(list: &TaskList, found: &Branches) -> Vec<Load> {
    let mut last_reader: Vec<Option<usize>> = vec![None; list.buffers.len()];
    let mut leaves: Vec<bool> = list.buffers.iter().map(|b| b.output).collect();
    for (t, task) in list.tasks.iter().enumerate() {
        for r in &task.reads {
            let buffer = &list.buffers[r.buffer.idx()];
            let own = buffer.writer.is_some_and(|w| found.of[w.idx()] == found.of[t]);
            leaves[r.buffer.idx()] |= !own;
            last_reader[r.buffer.idx()] = Some(t);
        }
    }
    let load = |branch: &Vec<usize>| {
        let (mut now, mut peak, mut work) = (0u64, 0u64, 0u64);
        for &t in branch {
            let task = &list.tasks[t];
            work = work.saturating_add(task.cost_ns);
            let bytes = |b: usize| list.buffers[b].form.bytes;
            now = task.writes.iter().fold(now, |sum, b| sum.saturating_add(bytes(b.idx())));
            peak = peak.max(now);
            let own = |b: usize| list.buffers[b].writer.is_some_and(|w| found.of[w.idx()] == found.of[t]);
            let dead = |b: &usize| own(*b) && !leaves[*b] && last_reader[*b].is_none_or(|r| r == t);
            let mut touched: Vec<usize> = task.reads.iter().map(|r| r.buffer.idx()).collect();
            touched.extend(task.writes.iter().map(|b| b.idx()));
            touched.sort_unstable();
            touched.dedup();
            now = touched.into_iter().filter(dead).fold(now, |sum, b| sum.saturating_sub(bytes(b)));
        }
        Load { peak_bytes: peak, work }
    };
    found.nodes.iter().map(load).collect()
}

/// A schedule for a size of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Most branches that run at once.
    pub width: usize,
    /// The schedule and its predicted time.
    pub planned: Planned,
    /// What it needs, exactly.
    pub arena_bytes: u64,
}

/// More variants than this are not baked.
pub const MAX_VARIANTS: usize = 5;

/// The schedules worth having, fastest first, the last one needing the least memory. `arena` says exactly how many bytes
/// a schedule needs.
pub fn variants(
    list: &TaskList,
    target: &Target,
    shards: bool,
    mut arena: impl FnMut(&Schedule) -> u64,
) -> Vec<Variant> {
    let dag = list.dag();
    let found = branches(&dag, |_| false, |a, b| list.tasks[a].on == list.tasks[b].on);
    let loads = loads(list, &found);
    let widest = found.layers.iter().map(Vec::len).max().unwrap_or(0);
    let streams = target.devices.iter().map(|d| d.streams).max().unwrap_or(1);
    let mut all: Vec<(usize, Planned)> = vec![(widest.min(streams), schedule::best(list, target, shards))];
    // Budgets at which layers fall apart: halves of what the widest layer needs.
    let layer_bytes = |layer: &Vec<usize>| layer.iter().fold(0u64, |sum, &b| sum.saturating_add(loads[b].peak_bytes));
    let mut budget = found.layers.iter().map(layer_bytes).max().unwrap_or(0);
    while streams > 1 && budget > 0 && all.len() < 8 {
        let (width, layers) = layers_within(&found, &loads, budget);
        all.extend(schedule::planned_layers(list, target, layers).map(|p| (width, p)));
        if width <= 1 {
            break;
        }
        budget /= 2;
    }
    all.extend(sequential(list, target).map(|p| (1, p)));
    let mut all: Vec<Variant> = all
        .into_iter()
        .map(|(width, planned)| Variant { arena_bytes: arena(&planned.schedule), width, planned })
        .collect();
    all.sort_by_key(|v| (v.planned.timeline.end_ns, v.arena_bytes, v.width));
    let mut least = u64::MAX;
    all.retain(|v| {
        let smaller = v.arena_bytes < least;
        least = least.min(v.arena_bytes);
        smaller
    });
    while all.len() > MAX_VARIANTS {
        // The one that saves least against its faster neighbour.
        let saves = |i: &usize| all[*i - 1].arena_bytes - all[*i].arena_bytes;
        let Some(drop) = (1..all.len() - 1).min_by_key(saves) else { break };
        all.remove(drop);
    }
    all
}

/// The first variant that fits: the fastest. Nothing if not even the smallest does.
pub fn pick(variants: &[Variant], budget_bytes: u64) -> Option<usize> {
    variants.iter().position(|v| v.arena_bytes <= budget_bytes)
}

/// Layers in which only what fits the budget runs at once; and the most branches that do.
fn layers_within(found: &Branches, loads: &[Load], budget: u64) -> (usize, Vec<Vec<Vec<TaskId>>>) {
    let chain = |&b: &usize| found.nodes[b].iter().map(|&t| TaskId::new(t)).collect::<Vec<_>>();
    let (mut width, mut layers) = (1, Vec::new());
    for layer in &found.layers {
        let of: Vec<Load> = layer.iter().map(|&b| loads[b]).collect();
        let (parallel, rest) = select(&of, budget);
        width = width.max(parallel.len());
        if !parallel.is_empty() {
            layers.push(parallel.iter().map(|&i| chain(&layer[i])).collect());
        }
        layers.extend(rest.iter().map(|&i| vec![chain(&layer[i])]));
    }
    (width, layers)
}

/// One stream per device, in the model's order.
fn sequential(list: &TaskList, target: &Target) -> Option<Planned> {
    let mut narrow = target.clone();
    narrow.devices.iter_mut().for_each(|d| d.streams = 1);
    narrow.dmas.iter_mut().for_each(|d| d.channels = 1);
    let by = schedule::Scheduler::List { first: schedule::First::ModelOrder, shards: schedule::Shards::Never };
    let Planned { by, schedule: narrow, mut timeline } = schedule::planned(list, &narrow, by)?;
    // As many streams as all other variants have; the others of each resource stay empty.
    let (mut streams, mut steps) = (Vec::new(), Vec::new());
    for (stream, spans) in narrow.streams.into_iter().zip(std::mem::take(&mut timeline.steps)) {
        let on = stream.on;
        streams.push(stream);
        steps.push(spans);
        for _ in 1..on.n_streams(target) {
            streams.push(Stream { on, steps: Vec::new() });
            steps.push(Vec::new());
        }
    }
    timeline.steps = steps;
    Some(Planned { by, schedule: Schedule { streams, n_events: narrow.n_events }, timeline })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::solve;
    use crate::plan::check::check;
    use crate::plan::insert::insert;
    use crate::plan::order::{HappensBefore, accesses, conflicts};
    use crate::plan::placement::priority;
    use crate::plan::testing::{Kit, Random, random_graph, random_target};

    #[test]
    fn the_largest_set_that_fits_runs_at_once() {
        let load = |peak_bytes, work| Load { peak_bytes, work };
        let loads = [load(50, 1), load(20, 1), load(20, 9), load(30, 1)];
        assert_eq!(select(&loads, 120), (vec![2, 1, 3, 0], vec![]));
        assert_eq!(select(&loads, 119), (vec![2, 1, 3], vec![0]));
        assert_eq!(select(&loads, 69), (vec![2, 1], vec![3, 0]));
        assert_eq!(select(&loads, 39), (vec![], vec![2, 1, 3, 0]));
        assert_eq!((budget_bytes(1000, MARGIN_PERCENT), budget_bytes(u64::MAX, 0)), (600, u64::MAX));
    }

    #[test]
    fn peaks_of_branches() {
        let mut kit = Kit::new(1, 0);
        let x = kit.input(8);
        let a = kit.node(&[x], &[1]);
        let b = kit.node(&[a], &[1]);
        let c = kit.node(&[b], &[1]);
        kit.output(c);
        for (v, bytes) in [(a, 100), (b, 10), (c, 30)] {
            kit.graph.values[v.idx()].forms[0].bytes = bytes;
        }
        let shape = kit.shape();
        let list = insert(&kit.graph, &shape, &kit.target, &priority::place(&kit.graph, &shape, &kit.target));
        let found = branches(&list.dag(), |_| false, |_, _| true);
        assert_eq!(loads(&list, &found), [Load { peak_bytes: 110, work: 3 }]);
    }

    fn arena(list: &TaskList, schedule: &Schedule) -> u64 {
        let hb = HappensBefore::new(schedule).unwrap();
        let edges = conflicts(&hb, &accesses(list, schedule));
        let sizes: Vec<u64> = list.buffers.iter().map(|b| b.form.bytes).collect();
        let problem = solve::Problem::from_conflicts(&sizes, &vec![1; sizes.len()], &edges).unwrap();
        solve::solve(&problem, &solve::Options { climb_steps: 0, search_steps: 0 }).height
    }

    #[test]
    fn wider_schedules_are_faster_and_need_more() {
        let mut kit = Kit::new(1, 0);
        kit.target.devices[0].streams = 4;
        let x = kit.input(1);
        let mut ends = Vec::new();
        for _ in 0..8 {
            let mut v = x;
            for bytes in [1000, 1000, 1000, 1] {
                v = kit.node(&[v], &[100]);
                kit.graph.values[v.idx()].forms[0].bytes = bytes;
            }
            ends.push(v);
        }
        let y = kit.node(&ends, &[100]);
        kit.output(y);
        let shape = kit.shape();
        let list = insert(&kit.graph, &shape, &kit.target, &priority::place(&kit.graph, &shape, &kit.target));
        let all = variants(&list, &kit.target, true, |s| arena(&list, s));
        assert!(all.len() >= 3, "{}", all.len());
        assert_eq!(all[0].planned.timeline.end_ns, 900);
        assert_eq!(all[all.len() - 1].planned.timeline.end_ns, 3300);
        for pair in all.windows(2) {
            assert!(pair[0].planned.timeline.end_ns < pair[1].planned.timeline.end_ns);
            assert!(pair[0].arena_bytes > pair[1].arena_bytes);
        }
        for v in &all {
            check(&kit.graph, &kit.target, &list, &v.planned.schedule).unwrap();
            assert_eq!(v.planned.schedule.streams.len(), 4);
        }
        let least = all[all.len() - 1].arena_bytes;
        assert_eq!(pick(&all, u64::MAX), Some(0));
        assert_eq!(pick(&all, least), Some(all.len() - 1));
        assert_eq!(pick(&all, least - 1), None);
    }

    #[test]
    fn random_variants_are_sound() {
        let mut r = Random(83);
        for at in 0..60 {
            let target = random_target(&mut r, 1 + at % 3);
            let kit = random_graph(&mut r, target, 14);
            let shape = kit.shape();
            let list = insert(&kit.graph, &shape, &kit.target, &priority::place(&kit.graph, &shape, &kit.target));
            let all = variants(&list, &kit.target, true, |s| arena(&list, s));
            assert!(!all.is_empty() && all.len() <= MAX_VARIANTS);
            for v in &all {
                check(&kit.graph, &kit.target, &list, &v.planned.schedule).unwrap();
            }
        }
    }
}
