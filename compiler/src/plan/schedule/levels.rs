//! The layered schedule: layers of branches one after another, a barrier between any two.
//!
//! In: a task list. Out: an order with barriers; its time is the sum over layers of the longest branch, where branches do
//! not outnumber streams; else they are packed onto the streams, longest first.
//! Source: Parallax, arXiv 2512.11532, §3.3.

use super::{Lane, Order, Part, lanes};
use crate::plan::branch::branches;
use crate::plan::id::TaskId;
use crate::plan::insert::{Resource, TaskKind, TaskList};
use crate::plan::target::Target;

/// Orders by layers.
pub(super) fn order(list: &TaskList, target: &Target) -> Order {
    let dag = list.dag();
    let is_copy = |t: usize| matches!(list.tasks[t].kind, TaskKind::Copy { .. });
    let same = |a: usize, b: usize| list.tasks[a].on == list.tasks[b].on && is_copy(a) == is_copy(b);
    let found = branches(&dag, |_| false, same);
    let groups = found.layers.iter().map(|layer| {
        let branch = |b: &usize| found.nodes[*b].iter().map(|&t| TaskId::new(t)).collect();
        layer.iter().map(branch).collect()
    });
    pack(list, lanes(target), groups)
}

/// Packs layers of chains onto lanes, longest chain first, each onto the lane that has least to do in the layer.
pub(super) fn pack(list: &TaskList, mut lanes: Vec<Lane>, layers: impl Iterator<Item = Vec<Vec<TaskId>>>) -> Order {
    let mut barriers = Vec::new();
    for layer in layers {
        if lanes.iter().any(|l| !l.parts.is_empty()) {
            barriers.push(lanes.iter().map(|l| l.parts.len()).collect());
        }
        let time = |chain: &Vec<TaskId>| chain.iter().map(|t| list.tasks[t.idx()].cost_ns).sum::<u64>();
        let mut chains: Vec<(u64, Vec<TaskId>)> = layer.into_iter().map(|c| (time(&c), c)).collect();
        chains.sort_by_key(|(ns, _)| std::cmp::Reverse(*ns));
        let mut load = vec![0u64; lanes.len()];
        for (ns, chain) in chains {
            let Some(on) = chain.first().map(|t| list.tasks[t.idx()].on) else { continue };
            let Some(lane) = least_loaded(&lanes, &load, on) else { continue };
            load[lane] += ns;
            lanes[lane].parts.extend(chain.into_iter().map(|task| Part { task, shard: 0, of: 1 }));
        }
    }
    Order { lanes, barriers }
}

fn least_loaded(lanes: &[Lane], load: &[u64], on: Resource) -> Option<usize> {
    (0..lanes.len()).filter(|&l| lanes[l].on == on).min_by_key(|&l| (load[l], l))
}

#[cfg(test)]
mod tests {
    use super::super::{Scheduler, planned};
    use super::*;
    use crate::plan::insert::insert;
    use crate::plan::placement::single_device;
    use crate::plan::testing::{Random, random_graph, random_target};

    /// With a stream for every branch and no sync cost the time is the sum over layers of the longest branch.
    #[test]
    fn time_is_the_sum_of_the_longest_branches() {
        let mut r = Random(41);
        for _ in 0..200 {
            let mut target = random_target(&mut r, 1);
            (target.devices[0].streams, target.devices[0].sync_ns) = (64, 0);
            let kit = random_graph(&mut r, target, 20);
            let shape = kit.shape();
            let p = single_device(&kit.graph, &shape, &kit.target, kit.target.host);
            let list = insert(&kit.graph, &shape, &kit.target, &p);
            let found = branches(&list.dag(), |_| false, |_, _| true);
            let time = |b: &usize| found.nodes[*b].iter().map(|&t| list.tasks[t].cost_ns).sum::<u64>();
            let want: u64 = found.layers.iter().filter_map(|l| l.iter().map(time).max()).sum();
            assert_eq!(planned(&list, &kit.target, Scheduler::Levels).unwrap().timeline.end_ns, want);
        }
    }
}
