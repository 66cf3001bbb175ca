//! Branches and layers: chains of nodes that run on one stream, and which of them may run at once.
//!
//! In: a graph's structure, each node's device, and which nodes are control flow. Out: a branch per node, the graph of
//! branches, and their layers. O(V+E).
//! Invariants: every node is in exactly one branch; a branch is a path on one device; edges between branches lead to
//! higher layers.
//! Source: Parallax, arXiv 2512.11532, §3.1, algorithm 1, with the repairs of planning.md §5: nodes are visited in
//! topological order, so no branch is missed, and layers come from Kahn's algorithm on the contracted graph.

use super::dag::Dag;
use super::id::DeviceId;
use super::placement::regions::Regions;

/// A node by its number of predecessors and successors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// At most one in, at most one out.
    Sequential,
    /// At most one in, more out.
    Splitter,
    /// More in, at most one out.
    Merger,
    /// More in and out, and all control flow.
    SplitMerge,
}

/// Classifies a node.
pub fn classify(dag: &Dag, v: usize, control_flow: bool) -> Class {
    match (dag.preds(v).len() > 1, dag.succs(v).len() > 1) {
        _ if control_flow => Class::SplitMerge,
        (false, false) => Class::Sequential,
        (false, true) => Class::Splitter,
        (true, false) => Class::Merger,
        (true, true) => Class::SplitMerge,
    }
}

/// A graph cut into branches and layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branches {
    /// The nodes of each branch, in order.
    pub nodes: Vec<Vec<usize>>,
    /// The branch of each node.
    pub of: Vec<usize>,
    /// The graph of branches.
    pub dag: Dag,
    /// The branches of each layer, ascending.
    pub layers: Vec<Vec<usize>>,
}

/// Finds branches and layers. `same` says whether two nodes may share a branch (they are on one device).
pub fn branches(dag: &Dag, control_flow: impl Fn(usize) -> bool, same: impl Fn(usize, usize) -> bool) -> Branches {
    let mut of = vec![usize::MAX; dag.len()];
    let mut nodes: Vec<Vec<usize>> = Vec::new();
    let sequential = |v: usize| classify(dag, v, control_flow(v)) == Class::Sequential;
    for start in dag.order() {
        if of[start] != usize::MAX {
            continue;
        }
        let mut branch = vec![start];
        of[start] = nodes.len();
        let mut at = start;
        while let (true, [next]) = (sequential(at), dag.succs(at)) {
            let next = *next as usize;
            if !sequential(next) || of[next] != usize::MAX || !same(at, next) {
                break;
            }
            of[next] = nodes.len();
            branch.push(next);
            at = next;
        }
        nodes.push(branch);
    }
    // Branches are paths of nodes with at most one predecessor each, so contracting them makes no cycle.
    let contracted = dag.contract(&of, nodes.len()).unwrap_or_default();
    let level = contracted.levels();
    let mut layers = vec![Vec::new(); level.iter().max().map_or(0, |m| *m as usize + 1)];
    level.iter().enumerate().for_each(|(b, l)| layers[*l as usize].push(b));
    Branches { nodes, of, dag: contracted, layers }
}

/// How far apart the work of branches that run at once may be, in thousandths: 1.5.
pub const BETA_PERMILLE: u64 = 1500;

impl Branches {
    /// The branches of a layer that the paper runs at once: more than two nodes each, and work within β of each other.
    /// Of several such sets the one with the most branches, then the most work; the rest of the layer is sequential.
    pub fn candidates(&self, layer: usize, work: impl Fn(usize) -> u64, beta_permille: u64) -> Vec<usize> {
        let total = |b: usize| self.nodes[b].iter().fold(0u64, |sum, &v| sum.saturating_add(work(v)));
        let long = self.layers[layer].iter().filter(|&&b| self.nodes[b].len() > 2);
        let mut by_work: Vec<(u64, usize)> = long.map(|&b| (total(b), b)).collect();
        by_work.sort_unstable();
        let within = |lo: u64, hi: u64| u128::from(hi) * 1000 <= u128::from(lo) * u128::from(beta_permille);
        let (mut best, mut lo) = (0..0, 0);
        for hi in 0..by_work.len() {
            while !within(by_work[lo].0, by_work[hi].0) {
                lo += 1;
            }
            // Later windows of the same size hold more work.
            if hi + 1 - lo >= best.len() {
                best = lo..hi + 1;
            }
        }
        if best.len() < 2 {
            return Vec::new();
        }
        let mut chosen: Vec<usize> = by_work[best].iter().map(|(_, b)| *b).collect();
        chosen.sort_unstable();
        chosen
    }

    /// The counts of the paper's table 7.
    pub fn counts(&self, work: impl Fn(usize) -> u64) -> Counts {
        let widths = || self.layers.iter().map(Vec::len);
        let candidate = |&l: &usize| !self.candidates(l, &work, BETA_PERMILLE).is_empty();
        Counts {
            n_nodes: self.of.len(),
            n_branches: self.nodes.len(),
            n_layers: self.layers.len(),
            n_parallel_layers: widths().filter(|&w| w > 1).count(),
            n_candidate_layers: (0..self.layers.len()).filter(candidate).count(),
            max_branches: widths().max().unwrap_or(0),
        }
    }
}

/// The structure of a graph in a few numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Nodes; a delegate region is one.
    pub n_nodes: usize,
    /// Branches.
    pub n_branches: usize,
    /// Layers.
    pub n_layers: usize,
    /// Layers of more than one branch.
    pub n_parallel_layers: usize,
    /// Layers in which the paper's test finds branches to run at once.
    pub n_candidate_layers: usize,
    /// Most branches in a layer.
    pub max_branches: usize,
}

/// Counts of a graph in which each delegate region is one node; nodes on `host` stay single.
pub fn delegated(
    dag: &Dag,
    regions: &Regions,
    host: DeviceId,
    control_flow: impl Fn(usize) -> bool,
    work: impl Fn(usize) -> u64,
) -> Counts {
    let mut group_of_region = vec![usize::MAX; regions.device.len()];
    let (mut of, mut first): (Vec<usize>, Vec<usize>) = (Vec::with_capacity(dag.len()), Vec::new());
    let mut total: Vec<u64> = Vec::new();
    for v in 0..dag.len() {
        let region = regions.of[v];
        let delegate = regions.device[region] != host;
        let group =
            if delegate && group_of_region[region] != usize::MAX { group_of_region[region] } else { first.len() };
        if group == first.len() {
            first.push(v);
            total.push(0);
        }
        if delegate {
            group_of_region[region] = group;
        }
        total[group] = total[group].saturating_add(work(v));
        of.push(group);
    }
    // Regions leave no cycle.
    let Ok(small) = dag.contract(&of, first.len()) else { return Counts::default() };
    let device = |g: usize| regions.device[regions.of[first[g]]];
    let single = |g: usize| device(g) == host && control_flow(first[g]);
    branches(&small, single, |a, b| device(a) == device(b)).counts(|g| total[g])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::placement::regions::regions;
    use crate::plan::testing::Random;

    fn find(n: usize, edges: &[(usize, usize)]) -> Branches {
        branches(&Dag::new(n, edges.iter().copied()).unwrap(), |_| false, |_, _| true)
    }

    #[test]
    fn classes_by_degree() {
        let dag = Dag::new(6, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (1, 2)]).unwrap();
        let all: Vec<Class> = (0..6).map(|v| classify(&dag, v, v == 5)).collect();
        use Class::*;
        assert_eq!(all, [Splitter, Splitter, Merger, SplitMerge, Sequential, SplitMerge]);
    }

    #[test]
    fn a_diamond_of_chains() {
        // 0 splits into 1-2 and 3-4-5, 6 merges, 7-8 follow.
        let b = find(9, &[(0, 1), (1, 2), (0, 3), (3, 4), (4, 5), (2, 6), (5, 6), (6, 7), (7, 8)]);
        assert_eq!(b.nodes, [vec![0], vec![1, 2], vec![3, 4, 5], vec![6], vec![7, 8]]);
        assert_eq!(b.layers, [vec![0], vec![1, 2], vec![3], vec![4]]);
        let counts = b.counts(|_| 1);
        let want = Counts {
            n_nodes: 9,
            n_branches: 5,
            n_layers: 4,
            n_parallel_layers: 1,
            n_candidate_layers: 0,
            max_branches: 2,
        };
        assert_eq!(counts, want);
    }

    #[test]
    fn a_branch_ends_where_the_device_or_control_flow_changes() {
        let dag = Dag::new(6, (0..5).map(|i| (i, i + 1))).unwrap();
        let b = branches(&dag, |v| v == 3, |a, b| (a < 2) == (b < 2));
        assert_eq!(b.nodes, [vec![0, 1], vec![2], vec![3], vec![4, 5]]);
    }

    /// planning.md §5: more than two nodes, and F_max/F_min at most 1.5.
    #[test]
    fn candidates_are_long_and_alike() {
        // Node 0 splits into chains of 3, 3, 3, 2 nodes.
        let mut edges = Vec::new();
        for start in [1, 4, 7] {
            edges.extend([(0, start), (start, start + 1), (start + 1, start + 2)]);
        }
        edges.extend([(0, 10), (10, 11)]);
        let b = find(12, &edges);
        assert_eq!(b.layers[1], [1, 2, 3, 4]);
        let work = |v: usize| [0, 10, 10, 10, 15, 15, 15, 16, 16, 16, 10, 10][v];
        assert_eq!(b.candidates(1, work, BETA_PERMILLE), [2, 3]);
        assert_eq!(b.candidates(1, |_| 10, BETA_PERMILLE), [1, 2, 3]);
        assert_eq!(b.candidates(0, work, BETA_PERMILLE), [0usize; 0]);
        assert_eq!(b.counts(work).n_candidate_layers, 1);
    }

    #[test]
    fn a_delegate_region_is_one_node() {
        // 0-1-2 on the accelerator, 3 and 4 beside them on the host, 5 joins.
        let dag = Dag::new(6, [(0, 1), (1, 2), (2, 5), (3, 4), (4, 5)]).unwrap();
        let device: Vec<DeviceId> = [0, 0, 0, 1, 1, 1].map(DeviceId).to_vec();
        let r = regions(&dag, &device);
        let counts = delegated(&dag, &r, DeviceId(1), |_| false, |_| 1);
        assert_eq!((counts.n_nodes, counts.n_branches, counts.n_layers, counts.max_branches), (4, 3, 2, 2));
    }

    #[test]
    fn random_graphs_keep_the_invariants() {
        let mut r = Random(9);
        for _ in 0..300 {
            let n = 1 + r.below(60) as usize;
            let mut edges = Vec::new();
            for b in 1..n {
                (0..1 + r.below(3)).for_each(|_| edges.push((b - 1 - r.below(b.min(6) as u64) as usize, b)));
            }
            let dag = Dag::new(n, edges).unwrap();
            let device: Vec<u64> = (0..n).map(|_| r.below(2)).collect();
            let b = branches(&dag, |_| false, |a, b| device[a] == device[b]);
            let mut seen: Vec<usize> = b.nodes.iter().flatten().copied().collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
            assert_eq!(b.layers.iter().map(Vec::len).sum::<usize>(), b.nodes.len());
            let mut layer = vec![0; b.nodes.len()];
            b.layers.iter().enumerate().for_each(|(l, all)| all.iter().for_each(|&x| layer[x] = l));
            for v in 0..n {
                for &w in dag.succs(v) {
                    let (from, to) = (b.of[v], b.of[w as usize]);
                    assert!(from == to || layer[from] < layer[to]);
                    assert!(from != to || device[v] == device[w as usize]);
                }
            }
        }
    }
}
