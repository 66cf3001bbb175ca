//! Placement: which device runs each node, and which claims run as one kernel.
//!
//! In: a task graph, its shape, a target. Out: a [`Placement`]. Policies: [`priority`], [`parallax`], and the exact and
//! searched ones under [`optimal`]; [`fallback`] lists what stayed on a slow device, [`text`] saves and loads.
//! Invariants of a placement made here: pins hold; each node can run where it is, alone or as part of a chosen claim;
//! chosen claims are disjoint and can run as one kernel each without a cycle.

mod cuts;
mod exhaustive;
pub mod fallback;
mod groups;
pub mod optimal;
pub mod parallax;
pub mod priority;
pub mod regions;
pub mod sum;
pub mod text;

use super::cost::{Hop, hops_ns};
use super::graph::{Shape, TaskGraph};
use super::id::DeviceId;
use super::target::Target;
pub use groups::choose_claims;

/// Where each node runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The device of each node.
    pub device: Vec<DeviceId>,
    /// The chosen claims, ascending positions in the graph's list.
    pub claims: Vec<usize>,
}

/// How nodes are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Providers in order, first come.
    Priority,
    /// The same, without delegate regions that are too small by fixed thresholds.
    Parallax,
    /// By cost.
    Optimal(Objective),
}

/// What the optimal placement minimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The simulated end of the schedule.
    Makespan,
    /// The sum of node and crossing costs.
    Sum,
}

/// A cost that stands for "cannot run there".
pub(crate) const NEVER: u64 = u64::MAX / 8;

/// Time of all kernels, one after another.
pub fn compute_ns(graph: &TaskGraph, placement: &Placement) -> u64 {
    let mut claimed = vec![false; graph.nodes.len()];
    let mut sum = 0u64;
    for &c in &placement.claims {
        sum = sum.saturating_add(graph.claims[c].cost_ns);
        graph.claims[c].nodes.iter().for_each(|n| claimed[n.idx()] = true);
    }
    let nodes = graph.nodes.iter().zip(&placement.device).zip(&claimed).filter(|(_, claimed)| !**claimed);
    nodes.fold(sum, |sum, ((node, d), _)| sum.saturating_add(node.cost_ns[d.idx()].unwrap_or(NEVER)))
}

/// Time of all crossings, one after another.
pub fn crossing_ns(graph: &TaskGraph, shape: &Shape, target: &Target, device: &[DeviceId]) -> u64 {
    let (mut readers, mut scratch): (_, Vec<Hop>) = (Vec::new(), Vec::new());
    let mut sum = 0u64;
    for (v, value) in graph.values.iter().enumerate() {
        if let Some(source) = shape.origin(graph, device, v) {
            shape.reading_devices(graph, device, v, &mut readers);
            sum = sum.saturating_add(hops_ns(target, value, source, &readers, &mut scratch));
        }
    }
    sum
}

/// The objective [`Objective::Sum`]: node and crossing costs.
pub fn sum_ns(graph: &TaskGraph, shape: &Shape, target: &Target, placement: &Placement) -> u64 {
    compute_ns(graph, placement).saturating_add(crossing_ns(graph, shape, target, &placement.device))
}

/// Whether every node can run where it is, pins hold, and the chosen claims are disjoint, on their devices and acyclic.
pub fn is_legal(graph: &TaskGraph, shape: &Shape, placement: &Placement) -> bool {
    if placement.device.len() != graph.nodes.len() || placement.claims.iter().any(|&c| c >= graph.claims.len()) {
        return false;
    }
    let mut claimed = vec![false; graph.nodes.len()];
    for &c in &placement.claims {
        for n in &graph.claims[c].nodes {
            if std::mem::replace(&mut claimed[n.idx()], true) || placement.device[n.idx()] != graph.claims[c].device {
                return false;
            }
        }
    }
    let runs = |i: usize| {
        let (node, d) = (&graph.nodes[i], placement.device[i]);
        let can = d.idx() < node.cost_ns.len() && (claimed[i] || node.cost_ns[d.idx()].is_some());
        can && node.pin.is_none_or(|pin| pin == d)
    };
    (0..graph.nodes.len()).all(runs) && groups::contract(shape, graph, &placement.claims).is_some()
}

/// Everything on one device that can run there, the rest on the host, pins as they are.
pub fn single_device(graph: &TaskGraph, shape: &Shape, target: &Target, device: DeviceId) -> Placement {
    let at = |n: &super::graph::Node| match n.pin {
        Some(pin) => pin,
        None if n.cost_ns[device.idx()].is_some() => device,
        None => target.host,
    };
    let device: Vec<DeviceId> = graph.nodes.iter().map(at).collect();
    let claims = choose_claims(graph, shape, &device);
    Placement { device, claims }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::graph::Claim;
    use crate::plan::id::NodeId;
    use crate::plan::testing::Kit;

    /// The per-operator-fastest placement of the sandwich costs 435 us: 90 of computing and 345 of transition.
    #[test]
    fn sandwich_435() {
        let kit = Kit::sandwich(0, 0);
        let (npu, cpu) = (DeviceId(0), DeviceId(1));
        let p = Placement { device: vec![npu, cpu, npu], claims: vec![] };
        assert_eq!(compute_ns(&kit.graph, &p), 90_000);
        assert_eq!(crossing_ns(&kit.graph, &kit.shape(), &kit.target, &p.device), 345_000);
        assert_eq!(sum_ns(&kit.graph, &kit.shape(), &kit.target, &p), 435_000);
    }

    #[test]
    fn claims_count_once_and_are_checked() {
        let mut kit = Kit::new(2, 5);
        let x = kit.input(8);
        let a = kit.node(&[x], &[10, 30]);
        let b = kit.node(&[a], &[0, 30]);
        kit.output(b);
        let nodes = vec![NodeId(0), NodeId(1)];
        kit.graph.claims.push(Claim { device: DeviceId(0), nodes, cost_ns: 12 });
        let shape = kit.shape();
        let all = |d: u32| vec![DeviceId(d); 2];
        let p = single_device(&kit.graph, &shape, &kit.target, DeviceId(0));
        // Node 1 alone cannot run there.
        assert_eq!(p, Placement { device: vec![DeviceId(0), DeviceId(1)], claims: vec![] });
        let fused = Placement { device: all(0), claims: vec![0] };
        assert_eq!(compute_ns(&kit.graph, &fused), 12);
        assert!(is_legal(&kit.graph, &shape, &fused));
        assert!(!is_legal(&kit.graph, &shape, &Placement { device: all(0), claims: vec![] }));
        assert!(!is_legal(&kit.graph, &shape, &Placement { device: all(1), claims: vec![0] }));
        assert!(!is_legal(&kit.graph, &shape, &Placement { device: all(0), claims: vec![0, 0] }));
        assert!(!is_legal(&kit.graph, &shape, &Placement { device: all(0), claims: vec![3] }));
        kit.graph.nodes[0].pin = Some(DeviceId(1));
        assert!(!is_legal(&kit.graph, &shape, &fused));
    }
}
