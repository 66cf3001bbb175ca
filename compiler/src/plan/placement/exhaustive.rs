//! Exhaustive search over the devices of a few groups, cut short by what is already spent.
//!
//! In: groups and a legal assignment of them. Out: the cheapest devices by sum of node and crossing costs: the given ones
//! unless others are cheaper, and of several the first in the order of device numbers.

use super::groups::Groups;
use crate::plan::cost::{Hop, hops_ns};
use crate::plan::graph::{Shape, TaskGraph};
use crate::plan::id::DeviceId;
use crate::plan::target::Target;

struct Search<'a> {
    graph: &'a TaskGraph,
    target: &'a Target,
    groups: &'a Groups,
    /// For each group, the values whose groups are all placed once it is: value, producer or fixed source, readers.
    closing: Vec<Vec<Closing>>,
    /// Least cost of the groups from here on.
    least_left: Vec<u64>,
    device: Vec<DeviceId>,
    best: (u64, Vec<DeviceId>),
    readers: Vec<DeviceId>,
    hops: Vec<Hop>,
}

struct Closing {
    value: usize,
    from: Result<usize, DeviceId>,
    readers: Vec<usize>,
}

/// The best devices for the groups; `start` is a legal assignment.
pub(super) fn search(
    graph: &TaskGraph,
    shape: &Shape,
    target: &Target,
    groups: &Groups,
    start: (u64, Vec<DeviceId>),
) -> Vec<DeviceId> {
    let n = groups.len();
    let mut least_left = vec![0u64; n + 1];
    for g in (0..n).rev() {
        let least = groups.cost_ns[g].iter().min().copied().unwrap_or(0);
        least_left[g] = least_left[g + 1].saturating_add(least);
    }
    let mut closing: Vec<Vec<Closing>> = (0..n).map(|_| Vec::new()).collect();
    let mut settled_ns = 0u64;
    let mut hops = Vec::new();
    for (v, value) in graph.values.iter().enumerate() {
        let from = match (value.source, shape.producer[v]) {
            (crate::plan::graph::Source::Input(d), _) => Err(d),
            (_, Some(p)) => Ok(groups.of[p.idx()]),
            _ => continue,
        };
        let mut readers: Vec<usize> = shape.readers[v].iter().map(|r| groups.of[r.idx()]).collect();
        readers.sort_unstable();
        readers.dedup();
        match readers.iter().copied().chain(from.ok()).max() {
            Some(last) => closing[last].push(Closing { value: v, from, readers }),
            None => {
                let (Err(d), Some(out)) = (from, value.output) else { continue };
                settled_ns = settled_ns.saturating_add(hops_ns(target, value, d, &[out], &mut hops));
            }
        }
    }
    let device = vec![target.host; n];
    let mut s = Search { graph, target, groups, closing, least_left, device, best: start, readers: Vec::new(), hops };
    s.place(0, settled_ns);
    s.best.1
}

impl Search<'_> {
    fn place(&mut self, group: usize, spent: u64) {
        if spent.saturating_add(self.least_left[group]) >= self.best.0 {
            return;
        }
        if group == self.groups.len() {
            self.best = (spent, self.device.clone());
            return;
        }
        for d in self.target.device_ids() {
            let cost = self.groups.cost_ns[group][d.idx()];
            if cost < super::NEVER {
                self.device[group] = d;
                let total = spent.saturating_add(cost).saturating_add(self.closing_ns(group));
                self.place(group + 1, total);
            }
        }
    }

    fn closing_ns(&mut self, group: usize) -> u64 {
        let mut sum = 0u64;
        for c in &self.closing[group] {
            let value = &self.graph.values[c.value];
            let source = match c.from {
                Ok(g) => self.device[g],
                Err(d) => d,
            };
            self.readers.clear();
            self.readers.extend(c.readers.iter().map(|&g| self.device[g]));
            self.readers.extend(value.output);
            self.readers.sort_unstable();
            self.readers.dedup();
            sum = sum.saturating_add(hops_ns(self.target, value, source, &self.readers, &mut self.hops));
        }
        sum
    }
}
