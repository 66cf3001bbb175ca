//! The Parallax paper's policy: `priority`, then delegate regions that are too small by fixed thresholds go back to the host.
//!
//! Source: Parallax, arXiv 2512.11532, §3.1 and appendix B. Kept by name to reproduce the paper; the exact test is
//! [`break_even_macs`](crate::plan::cost::break_even_macs), and no real CPU has these thresholds.

use super::regions::regions;
use super::{Placement, choose_claims, priority};
use crate::plan::graph::{Shape, TaskGraph};
use crate::plan::target::Target;

/// Regions below any of these go back to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Least number of nodes.
    pub n_nodes: usize,
    /// Least work.
    pub macs: u64,
    /// Least work for each byte that crosses the border.
    pub macs_per_byte: u64,
}

impl Default for Thresholds {
    /// The paper's: 3 nodes, 1e9 MAC, 0.1 byte per MAC.
    fn default() -> Self {
        Self { n_nodes: 3, macs: 1_000_000_000, macs_per_byte: 10 }
    }
}

/// What a region amounts to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionSize {
    /// Nodes.
    pub n_nodes: usize,
    /// Work.
    pub macs: u64,
    /// Bytes that enter and leave.
    pub border_bytes: u64,
}

impl Thresholds {
    /// Whether a region stays on its device.
    pub fn keeps(&self, region: &RegionSize) -> bool {
        let bytes_ok = u128::from(region.border_bytes) * u128::from(self.macs_per_byte) <= u128::from(region.macs);
        region.n_nodes >= self.n_nodes && region.macs >= self.macs && bytes_ok
    }
}

/// Places as the paper does.
pub fn place(graph: &TaskGraph, shape: &Shape, target: &Target, thresholds: &Thresholds) -> Placement {
    let mut placement = priority::place(graph, shape, target);
    let regions = regions(&shape.dag, &placement.device);
    let sizes = sizes(graph, shape, &regions.of, &placement);
    for (i, node) in graph.nodes.iter().enumerate() {
        let dropped = !thresholds.keeps(&sizes[regions.of[i]]);
        if dropped && placement.device[i] != target.host && node.pin.is_none() {
            placement.device[i] = target.host;
        }
    }
    placement.claims = choose_claims(graph, shape, &placement.device);
    // A node that only runs as part of a claim goes back to the host when another part of the claim went.
    let mut claimed = vec![false; graph.nodes.len()];
    placement.claims.iter().flat_map(|&c| &graph.claims[c].nodes).for_each(|n| claimed[n.idx()] = true);
    for (i, node) in graph.nodes.iter().enumerate() {
        if !claimed[i] && node.cost_ns[placement.device[i].idx()].is_none() {
            placement.device[i] = target.host;
        }
    }
    placement.claims = choose_claims(graph, shape, &placement.device);
    placement
}

fn sizes(graph: &TaskGraph, shape: &Shape, of: &[usize], placement: &Placement) -> Vec<RegionSize> {
    let mut sizes = vec![RegionSize::default(); of.iter().max().map_or(0, |m| m + 1)];
    for (i, node) in graph.nodes.iter().enumerate() {
        let size = &mut sizes[of[i]];
        size.n_nodes += 1;
        size.macs = size.macs.saturating_add(node.macs);
    }
    let mut inside: Vec<usize> = Vec::new();
    for (v, value) in graph.values.iter().enumerate() {
        let Some(source) = shape.origin(graph, &placement.device, v) else { continue };
        let home = shape.producer[v].map(|n| of[n.idx()]);
        inside.clear();
        inside.extend(shape.readers[v].iter().map(|n| of[n.idx()]).filter(|r| Some(*r) != home));
        inside.sort_unstable();
        inside.dedup();
        let leaves = !inside.is_empty() || value.output.is_some();
        if let (Some(home), true) = (home, leaves) {
            sizes[home].border_bytes += value.forms[source.idx()].bytes;
        }
        for &r in &inside {
            let device = shape.readers[v].iter().find(|n| of[n.idx()] == r).map(|n| placement.device[n.idx()]);
            sizes[r].border_bytes += device.map_or(0, |d| value.forms[d.idx()].bytes);
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::id::DeviceId;
    use crate::plan::testing::Kit;

    #[test]
    fn thresholds_at_their_edges() {
        let t = Thresholds::default();
        let edge = RegionSize { n_nodes: 3, macs: 1_000_000_000, border_bytes: 100_000_000 };
        assert!(t.keeps(&edge));
        assert!(!t.keeps(&RegionSize { n_nodes: 2, ..edge }));
        assert!(!t.keeps(&RegionSize { macs: 999_999_999, ..edge }));
        assert!(!t.keeps(&RegionSize { border_bytes: 100_000_001, ..edge }));
    }

    #[test]
    fn small_regions_go_back_to_the_host_and_large_ones_stay() {
        let mut kit = Kit::new(2, 10);
        let mut v = kit.input(8);
        for i in 0..8 {
            // Three on the accelerator, one that it lacks, then two, then two more the host runs anyway.
            let acc = [1, 1, 1, 0, 1, 1, 0, 0][i];
            v = kit.node(&[v], &[acc, 9]);
            kit.graph.nodes[i].macs = 500_000_000;
        }
        kit.output(v);
        let p = place(&kit.graph, &kit.shape(), &kit.target, &Thresholds::default());
        assert_eq!(p.device.iter().map(|d| d.0).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1, 1, 1]);
        let shape = kit.shape();
        let first = priority::place(&kit.graph, &shape, &kit.target);
        let regions = regions(&shape.dag, &first.device);
        let s = sizes(&kit.graph, &shape, &regions.of, &first);
        assert_eq!(s[0], RegionSize { n_nodes: 3, macs: 1_500_000_000, border_bytes: 16 });
        kit.graph.nodes[4].pin = Some(DeviceId(0));
        let p = place(&kit.graph, &kit.shape(), &kit.target, &Thresholds::default());
        assert_eq!(p.device[4..6], [DeviceId(0), DeviceId(1)]);
    }
}
