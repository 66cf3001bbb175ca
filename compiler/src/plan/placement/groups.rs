//! Groups: nodes that are placed together because a claim runs them as one kernel.

use super::{NEVER, Placement};
use crate::plan::dag::Dag;
use crate::plan::graph::{Shape, TaskGraph};
use crate::plan::id::DeviceId;

/// Nodes in groups, with each group's cost on each device.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    /// The group of each node.
    pub of: Vec<usize>,
    /// Cost of each group on each device; [`NEVER`] where it cannot run.
    pub cost_ns: Vec<Vec<u64>>,
    /// The claim each group stands for.
    pub claim: Vec<Option<usize>>,
}

/// The group of each node under these disjoint claims, and their number; groups are numbered by their first node.
fn number(n_nodes: usize, graph: &TaskGraph, claims: &[usize]) -> (Vec<usize>, usize, Vec<Option<usize>>) {
    let mut claim_of = vec![None; n_nodes];
    for &c in claims {
        graph.claims[c].nodes.iter().for_each(|n| claim_of[n.idx()] = Some(c));
    }
    let mut group_of_claim = std::collections::BTreeMap::new();
    let (mut of, mut claim) = (Vec::with_capacity(n_nodes), Vec::new());
    for c in claim_of {
        let fresh = claim.len();
        let group = c.map_or(fresh, |c| *group_of_claim.entry(c).or_insert(fresh));
        if group == fresh {
            claim.push(c);
        }
        of.push(group);
    }
    (of, claim.len(), claim)
}

/// The graph of kernels under these claims, if it has no cycle.
pub(crate) fn contract(shape: &Shape, graph: &TaskGraph, claims: &[usize]) -> Option<Dag> {
    let (of, n, _) = number(graph.nodes.len(), graph, claims);
    shape.dag.contract(&of, n).ok()
}

impl Groups {
    pub(super) fn new(graph: &TaskGraph, n_devices: usize, claims: &[usize]) -> Groups {
        let (of, n, claim) = number(graph.nodes.len(), graph, claims);
        let mut cost_ns = vec![vec![0u64; n_devices]; n];
        for (i, node) in graph.nodes.iter().enumerate() {
            for d in 0..n_devices {
                let pinned_away = node.pin.is_some_and(|pin| pin.idx() != d);
                let as_one = claim[of[i]].is_some_and(|c| graph.claims[c].device.idx() == d);
                let cost = match node.cost_ns[d] {
                    _ if pinned_away => NEVER,
                    _ if as_one => 0,
                    cost => cost.unwrap_or(NEVER),
                };
                let sum = &mut cost_ns[of[i]][d];
                *sum = sum.saturating_add(cost).min(NEVER);
            }
        }
        for (group, c) in claim.iter().enumerate() {
            if let Some(c) = c {
                let claim = &graph.claims[*c];
                let sum = &mut cost_ns[group][claim.device.idx()];
                *sum = sum.saturating_add(claim.cost_ns).min(NEVER);
            }
        }
        Groups { of, cost_ns, claim }
    }

    pub(super) fn len(&self) -> usize {
        self.claim.len()
    }

    /// The placement that puts each group on a device; claims on other devices than their own fall apart.
    pub(super) fn placement(&self, graph: &TaskGraph, device: &[DeviceId]) -> Placement {
        let kept = self.claim.iter().zip(device).filter_map(|(c, d)| c.filter(|&c| graph.claims[c].device == *d));
        let mut claims: Vec<usize> = kept.collect();
        claims.sort_unstable();
        Placement { device: self.of.iter().map(|&g| device[g]).collect(), claims }
    }
}

/// Keeps, in the given order, the claims that are disjoint and leave the graph of kernels without a cycle.
pub(super) fn compatible(graph: &TaskGraph, shape: &Shape, wanted: &[usize]) -> Vec<usize> {
    let mut taken = vec![false; graph.nodes.len()];
    let mut disjoint = Vec::new();
    for &c in wanted {
        let nodes = &graph.claims[c].nodes;
        if nodes.iter().all(|n| !taken[n.idx()]) {
            nodes.iter().for_each(|n| taken[n.idx()] = true);
            disjoint.push(c);
        }
    }
    // Fusions are local, so all of them together are nearly always fine.
    let mut kept = Vec::new();
    add_acyclic(graph, shape, &disjoint, &mut kept);
    kept.sort_unstable();
    kept
}

/// Adds as many of the claims as go, halving where some do not.
fn add_acyclic(graph: &TaskGraph, shape: &Shape, claims: &[usize], kept: &mut Vec<usize>) {
    if claims.is_empty() {
        return;
    }
    let before = kept.len();
    kept.extend_from_slice(claims);
    if contract(shape, graph, kept).is_some() {
        return;
    }
    kept.truncate(before);
    if claims.len() > 1 {
        let (a, b) = claims.split_at(claims.len() / 2);
        add_acyclic(graph, shape, a, kept);
        add_acyclic(graph, shape, b, kept);
    }
}

/// Whether none of a claim's nodes is pinned to another device.
pub(super) fn respects_pins(graph: &TaskGraph, claim: usize) -> bool {
    let c = &graph.claims[claim];
    c.nodes.iter().all(|n| graph.nodes[n.idx()].pin.is_none_or(|pin| pin == c.device))
}

/// What a claim saves against its nodes one by one, on its device.
pub(super) fn saving_ns(graph: &TaskGraph, claim: usize) -> u64 {
    let c = &graph.claims[claim];
    let alone = c.nodes.iter().fold(0u64, |sum, n| {
        let cost = graph.nodes[n.idx()].cost_ns[c.device.idx()].unwrap_or(NEVER);
        sum.saturating_add(cost)
    });
    alone.saturating_sub(c.cost_ns)
}

/// The claims that pay for nodes placed like this, greatest saving first, as far as they are compatible.
pub fn choose_claims(graph: &TaskGraph, shape: &Shape, device: &[DeviceId]) -> Vec<usize> {
    let fits = |&c: &usize| graph.claims[c].nodes.iter().all(|n| device[n.idx()] == graph.claims[c].device);
    let mut wanted: Vec<usize> = (0..graph.claims.len()).filter(fits).filter(|&c| saving_ns(graph, c) > 0).collect();
    wanted.sort_by_key(|&c| (std::cmp::Reverse(saving_ns(graph, c)), c));
    compatible(graph, shape, &wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::graph::Claim;
    use crate::plan::id::NodeId;
    use crate::plan::testing::Kit;

    /// Two claims that are convex each but wait for each other: only one is kept.
    #[test]
    fn claims_that_would_wait_for_each_other_are_not_both_kept() {
        let mut kit = Kit::new(1, 0);
        let x = kit.input(8);
        let a = kit.node(&[x], &[10]);
        let b = kit.node(&[x], &[10]);
        kit.node(&[a], &[10]);
        kit.node(&[b], &[10]);
        let claim = |a, b, cost_ns| Claim { device: DeviceId(0), nodes: vec![NodeId(a), NodeId(b)], cost_ns };
        // {0, 3} and {1, 2}: 0 -> 2 and 1 -> 3.
        kit.graph.claims = vec![claim(0, 3, 15), claim(1, 2, 12), claim(0, 2, 19)];
        let shape = kit.shape();
        let device = vec![DeviceId(0); 4];
        assert_eq!(choose_claims(&kit.graph, &shape, &device), [1]);
        assert!(contract(&shape, &kit.graph, &[0, 1]).is_none());
        let groups = Groups::new(&kit.graph, 1, &[1]);
        assert_eq!(groups.of, [0, 1, 1, 2]);
        assert_eq!(groups.cost_ns, [[10], [12], [10]]);
        assert_eq!(groups.placement(&kit.graph, &[DeviceId(0); 3]).claims, [1]);
    }
}
