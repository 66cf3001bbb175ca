//! What stayed on a slow device although it is heavy, and what that costs.
//!
//! In: a placement. Out: one [`Fallback`] per heavy node on a device much slower than the target's fastest, dearest first.

use super::Placement;
use crate::plan::cost::{Hop, hops_ns, ns_at};
use crate::plan::graph::{Shape, TaskGraph};
use crate::plan::id::{DeviceId, NodeId};
use crate::plan::target::Target;

/// A heavy node on a slow device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The node.
    pub node: NodeId,
    /// Where it runs.
    pub device: DeviceId,
    /// How long it takes there.
    pub ns: u64,
    /// The device that is fastest at its type.
    pub fastest: DeviceId,
    /// How long it takes there, or would by that device's peak rate if a kernel existed.
    pub fastest_ns: u64,
    /// The fastest device cannot run it.
    pub unsupported: bool,
    /// Crossings saved if it ran on the fastest device, all else unchanged.
    pub crossing_ns: u64,
}

impl Fallback {
    /// What the fallback costs: the longer time and the crossings.
    pub fn cost_ns(&self) -> u64 {
        self.ns.saturating_sub(self.fastest_ns).saturating_add(self.crossing_ns)
    }
}

/// A device is slow for a node if another's peak rate is at least this many times its own.
const SLOWER: u64 = 2;

/// Nodes that take at least `permille` thousandths of all computing time, on slow devices.
pub fn fallbacks(graph: &TaskGraph, shape: &Shape, target: &Target, p: &Placement, permille: u64) -> Vec<Fallback> {
    let total = u128::from(super::compute_ns(graph, p));
    let mut all = Vec::new();
    let mut device = p.device.clone();
    for (i, node) in graph.nodes.iter().enumerate() {
        let at = device[i];
        // A node inside a claim has no time of its own where it cannot run alone.
        let Some(ns) = node.cost_ns[at.idx()] else { continue };
        let Some(out) = node.outputs.first().map(|v| &graph.values[v.idx()]) else { continue };
        let rate = |d: DeviceId| target.device(d).rate(out.forms[d.idx()].dtype);
        let Some(fastest) = target.device_ids().max_by_key(|&d| (rate(d), std::cmp::Reverse(d))) else { continue };
        let heavy = u128::from(ns) * 1000 >= total * u128::from(permille) && ns > 0;
        if !heavy || node.macs == 0 || rate(fastest) / SLOWER < rate(at) {
            continue;
        }
        let by_rate = target.device(fastest).launch_ns.saturating_add(ns_at(node.macs, rate(fastest)));
        let fastest_ns = node.cost_ns[fastest.idx()].unwrap_or(by_rate);
        let here = around_ns(graph, shape, target, &device, i);
        device[i] = fastest;
        let there = around_ns(graph, shape, target, &device, i);
        device[i] = at;
        let unsupported = node.cost_ns[fastest.idx()].is_none();
        let crossing_ns = here.saturating_sub(there);
        all.push(Fallback { node: NodeId::new(i), device: at, ns, fastest, fastest_ns, unsupported, crossing_ns });
    }
    all.sort_by_key(|f| (std::cmp::Reverse(f.cost_ns()), f.node));
    all
}

/// Crossings of the values a node reads and makes.
fn around_ns(graph: &TaskGraph, shape: &Shape, target: &Target, device: &[DeviceId], node: usize) -> u64 {
    let (mut readers, mut scratch): (_, Vec<Hop>) = (Vec::new(), Vec::new());
    let mut values: Vec<_> = graph.nodes[node].inputs.iter().chain(&graph.nodes[node].outputs).collect();
    values.sort_unstable();
    values.dedup();
    values.into_iter().fold(0u64, |sum, v| {
        let Some(source) = shape.origin(graph, device, v.idx()) else { return sum };
        shape.reading_devices(graph, device, v.idx(), &mut readers);
        sum.saturating_add(hops_ns(target, &graph.values[v.idx()], source, &readers, &mut scratch))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::Kit;

    #[test]
    fn the_gather_of_the_sandwich_costs_its_crossings() {
        let mut kit = Kit::sandwich(0, 0);
        kit.target.devices[0].mac_per_s = [(crate::plan::id::DtypeId(0), 1_000_000_000_000)].into();
        kit.graph.nodes[1].macs = 1_000_000;
        let p = Placement { device: vec![DeviceId(0), DeviceId(1), DeviceId(0)], claims: vec![] };
        let all = fallbacks(&kit.graph, &kit.shape(), &kit.target, &p, 10);
        let want = Fallback {
            node: NodeId(1),
            device: DeviceId(1),
            ns: 10_000,
            fastest: DeviceId(0),
            fastest_ns: 1_000,
            unsupported: true,
            crossing_ns: 345_000,
        };
        assert_eq!(all, [want]);
        assert_eq!(all[0].cost_ns(), 354_000);
        // Neither light nodes nor those on the fastest device count.
        assert!(fallbacks(&kit.graph, &kit.shape(), &kit.target, &p, 200).is_empty());
    }
}
