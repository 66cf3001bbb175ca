//! The baseline: execution providers are asked in order, and each takes what it can of what is left.
//!
//! Source: ONNX Runtime's GetCapability walk.

use super::{Placement, groups};
use crate::plan::graph::{Shape, TaskGraph};
use crate::plan::target::Target;

/// Places by provider order; fused claims go before single nodes.
pub fn place(graph: &TaskGraph, shape: &Shape, target: &Target) -> Placement {
    let mut device: Vec<_> = graph.nodes.iter().map(|n| n.pin.unwrap_or(target.host)).collect();
    let mut free: Vec<bool> = vec![true; graph.nodes.len()];
    let mut claims: Vec<usize> = Vec::new();
    for d in target.device_ids() {
        let open = |i: usize| free[i] && graph.nodes[i].pin.is_none_or(|pin| pin == d);
        let fits = |&c: &usize| graph.claims[c].device == d && graph.claims[c].nodes.iter().all(|n| open(n.idx()));
        let mut wanted = claims.clone();
        wanted.extend((0..graph.claims.len()).filter(fits));
        claims = groups::compatible(graph, shape, &wanted);
        let mut take: Vec<usize> = Vec::new();
        for &c in claims.iter().filter(|&&c| graph.claims[c].device == d) {
            take.extend(graph.claims[c].nodes.iter().map(|n| n.idx()));
        }
        take.extend((0..graph.nodes.len()).filter(|&i| open(i) && graph.nodes[i].cost_ns[d.idx()].is_some()));
        for i in take {
            (free[i], device[i]) = (false, d);
        }
    }
    Placement { device, claims }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::graph::Claim;
    use crate::plan::id::{DeviceId, NodeId};
    use crate::plan::placement::is_legal;
    use crate::plan::testing::Kit;

    #[test]
    fn first_come_whatever_it_costs() {
        let mut kit = Kit::new(3, 1000);
        let x = kit.input(8);
        let a = kit.node(&[x], &[90, 1, 1]);
        let b = kit.node(&[a], &[0, 90, 1]);
        let c = kit.node(&[b], &[0, 0, 1]);
        kit.node(&[c], &[5, 5, 5]);
        kit.graph.nodes[3].pin = Some(DeviceId(1));
        let p = place(&kit.graph, &kit.shape(), &kit.target);
        assert_eq!(p.device.iter().map(|d| d.0).collect::<Vec<_>>(), [0, 1, 2, 1]);
        // A claim makes nodes runnable that are not alone.
        kit.graph.claims.push(Claim { device: DeviceId(0), nodes: vec![NodeId(1), NodeId(2)], cost_ns: 7 });
        let p = place(&kit.graph, &kit.shape(), &kit.target);
        assert_eq!(p.device.iter().map(|d| d.0).collect::<Vec<_>>(), [0, 0, 0, 1]);
        assert_eq!(p.claims, [0]);
        assert!(is_legal(&kit.graph, &kit.shape(), &p));
    }
}
