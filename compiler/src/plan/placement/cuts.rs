//! Minimum cuts between two devices: the exact best way to share out the nodes of both, all others staying where they are.
//!
//! In: groups, their devices, two devices. Out: new devices for the groups that were on either. With two devices in the
//! target the result is the minimum of node plus crossing costs. A copy that several readers share is one auxiliary vertex
//! per value and direction.
//! Source: Boykov, Veksler, Zabih, "Fast approximate energy minimization via graph cuts" (2001), swap moves.

use super::groups::Groups;
use crate::cut::{INFINITE, Network, SINK, SOURCE};
use crate::plan::cost::{Hop, hops_ns};
use crate::plan::graph::{Shape, Source, TaskGraph, Value};
use crate::plan::id::DeviceId;
use crate::plan::target::Target;

/// Costs are capped here, so that no sum reaches what no cut crosses.
const CAP: u64 = INFINITE / (1 << 20);

/// Shares out the groups that are on `a` (source side) or `b`.
pub(super) fn swap(
    graph: &TaskGraph,
    shape: &Shape,
    target: &Target,
    groups: &Groups,
    device: &mut [DeviceId],
    (a, b): (DeviceId, DeviceId),
) {
    let mut net = Network::default();
    let vertex: Vec<Option<usize>> = device.iter().map(|d| (*d == a || *d == b).then(|| net.vertex())).collect();
    for (group, v) in vertex.iter().enumerate() {
        let cost = |d: DeviceId| match groups.cost_ns[group][d.idx()] {
            super::NEVER => INFINITE,
            ns => ns.min(CAP),
        };
        if let Some(v) = *v {
            net.edge(v, SINK, cost(a));
            net.edge(SOURCE, v, cost(b));
        }
    }
    let mut cut = Cut { net, target, a, b, scratch: Vec::new() };
    let (mut movable, mut fixed) = (Vec::new(), Vec::new());
    for (v, value) in graph.values.iter().enumerate() {
        let origin = match (value.source, shape.producer[v]) {
            (Source::Constant, _) => continue,
            (Source::Input(d), _) => Err(d),
            (Source::Node, Some(n)) => vertex[groups.of[n.idx()]].ok_or(device[groups.of[n.idx()]]),
            (Source::Node, None) => continue,
        };
        movable.clear();
        fixed.clear();
        fixed.extend(value.output);
        for n in &shape.readers[v] {
            let group = groups.of[n.idx()];
            match vertex[group] {
                Some(u) if Ok(u) == origin => {}
                Some(u) => movable.push(u),
                None => fixed.push(device[group]),
            }
        }
        movable.sort_unstable();
        movable.dedup();
        fixed.sort_unstable();
        fixed.dedup();
        match origin {
            Err(from) => cut.of_fixed(value, from, &movable, &fixed),
            Ok(from) => cut.of_movable(value, from, &movable, &fixed),
        }
    }
    let side = cut.net.min_cut().1;
    for (d, v) in device.iter_mut().zip(vertex) {
        if let Some(v) = v {
            *d = if side[v] { a } else { b };
        }
    }
}

struct Cut<'a> {
    net: Network,
    target: &'a Target,
    a: DeviceId,
    b: DeviceId,
    scratch: Vec<Hop>,
}

impl Cut<'_> {
    fn way_ns(&mut self, value: &Value, from: DeviceId, to: DeviceId) -> u64 {
        hops_ns(self.target, value, from, &[to], &mut self.scratch).min(CAP)
    }

    /// Pays `ns` if `from` is on `a` and any of the readers on `b`.
    fn forward(&mut self, from: usize, readers: &[usize], ns: u64) {
        if let ([to], true) = (readers, ns > 0) {
            self.net.edge(from, *to, ns);
        } else if ns > 0 && !readers.is_empty() {
            let copy = self.net.vertex();
            self.net.edge(from, copy, ns);
            readers.iter().for_each(|&r| self.net.edge(copy, r, INFINITE));
        }
    }

    /// Pays `ns` if `from` is on `b` and any of the readers on `a`.
    fn backward(&mut self, from: usize, readers: &[usize], ns: u64) {
        if let ([to], true) = (readers, ns > 0) {
            self.net.edge(*to, from, ns);
        } else if ns > 0 && !readers.is_empty() {
            let copy = self.net.vertex();
            self.net.edge(copy, from, ns);
            readers.iter().for_each(|&r| self.net.edge(r, copy, INFINITE));
        }
    }

    /// The value starts on a device that is not in question here.
    fn of_fixed(&mut self, value: &Value, from: DeviceId, movable: &[usize], fixed: &[DeviceId]) {
        let (a, b) = (self.a, self.b);
        if from != b && !fixed.contains(&b) {
            let ns = self.way_ns(value, from, b);
            self.forward(SOURCE, movable, ns);
        }
        if from != a && !fixed.contains(&a) {
            let ns = self.way_ns(value, from, a);
            self.backward(SINK, movable, ns);
        }
    }

    /// The value's producer is on `a` or `b`; readers elsewhere are paid for on either side.
    fn of_movable(&mut self, value: &Value, from: usize, movable: &[usize], fixed: &[DeviceId]) {
        let (a, b) = (self.a, self.b);
        for &d in fixed {
            let (on_a, on_b) = (self.way_ns(value, a, d), self.way_ns(value, b, d));
            self.net.edge(from, SINK, if d == a { 0 } else { on_a });
            self.net.edge(SOURCE, from, if d == b { 0 } else { on_b });
        }
        if !fixed.contains(&b) {
            let ns = self.way_ns(value, a, b);
            self.forward(from, movable, ns);
        }
        if !fixed.contains(&a) {
            let ns = self.way_ns(value, b, a);
            self.backward(from, movable, ns);
        }
    }
}
