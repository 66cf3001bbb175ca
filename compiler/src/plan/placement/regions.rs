//! Delegate regions: maximal connected sets of nodes on one device that can run as one unit.
//!
//! In: the graph's structure and each node's device. Out: a region per node. O(V+E).
//! Method: a node's phase counts the changes of device on the longest way to it; nodes of one device and phase that are
//! connected are a region. A way that leaves a device and comes back gains two phases, and every edge between different
//! regions gains one, so each region is convex and the graph of regions has no cycle.

use crate::plan::dag::Dag;
use crate::plan::id::DeviceId;

/// Nodes in regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regions {
    /// The region of each node, numbered by first node.
    pub of: Vec<usize>,
    /// The device of each region.
    pub device: Vec<DeviceId>,
}

/// Finds the regions.
pub fn regions(dag: &Dag, device: &[DeviceId]) -> Regions {
    let mut phase = vec![0u32; dag.len()];
    for v in dag.order() {
        let from = |&p: &u32| phase[p as usize] + u32::from(device[p as usize] != device[v]);
        phase[v] = dag.preds(v).iter().map(from).max().unwrap_or(0);
    }
    let mut root: Vec<usize> = (0..dag.len()).collect();
    for v in 0..dag.len() {
        for &w in dag.succs(v) {
            let w = w as usize;
            if device[v] == device[w] && phase[v] == phase[w] {
                let (a, b) = (find(&mut root, v), find(&mut root, w));
                root[a.max(b)] = a.min(b);
            }
        }
    }
    let (mut of, mut devices) = (vec![0; dag.len()], Vec::new());
    for v in 0..dag.len() {
        let r = find(&mut root, v);
        of[v] = if r == v { devices.len() } else { of[r] };
        if r == v {
            devices.push(device[v]);
        }
    }
    Regions { of, device: devices }
}

fn find(root: &mut [usize], mut v: usize) -> usize {
    while root[v] != v {
        root[v] = root[root[v]];
        v = root[v];
    }
    v
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::Random;

    #[test]
    fn a_region_is_not_split_by_a_parallel_branch_but_by_a_detour() {
        // 0 -> 1 -> 3 on device 0; 0 -> 2 -> 3 with 2 elsewhere: 3 cannot join 0 and 1. 4 reads 1 only.
        let dag = Dag::new(5, [(0, 1), (1, 3), (0, 2), (2, 3), (1, 4)]).unwrap();
        let (a, b) = (DeviceId(0), DeviceId(1));
        let r = regions(&dag, &[a, a, b, a, a]);
        assert_eq!(r.of, [0, 0, 1, 2, 0]);
        assert_eq!(r.device, [a, b, a]);
        assert_eq!(regions(&dag, &[a; 5]).of, [0; 5]);
    }

    #[test]
    fn regions_never_wait_for_each_other() {
        let mut r = Random(5);
        for _ in 0..500 {
            let n = 1 + r.below(40) as usize;
            let mut edges = Vec::new();
            for b in 1..n {
                (0..r.below(4)).for_each(|_| edges.push((r.below(b as u64) as usize, b)));
            }
            let dag = Dag::new(n, edges).unwrap();
            let device: Vec<DeviceId> = (0..n).map(|_| DeviceId(r.below(3) as u32)).collect();
            let regions = regions(&dag, &device);
            assert!(dag.contract(&regions.of, regions.device.len()).is_ok());
            assert!((0..n).all(|v| regions.device[regions.of[v]] == device[v]));
        }
    }
}
