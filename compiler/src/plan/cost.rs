//! What things cost: work on a device, a crossing between two, in nanoseconds.
//!
//! Every quotient is rounded up, in 128 bits: no overflow, no floating point.
//! Formula: `cross = handshake + bytes/copy_bw + [layouts differ] bytes/repack_bw + [dtypes differ] elements·convert`.

use super::graph::{Form, Value};
use super::id::{DeviceId, DtypeId};
use super::target::{Link, Target};
use std::ops::Add;

/// Time of `amount` units at `per_s` units a second, rounded up.
pub fn ns_at(amount: u64, per_s: u64) -> u64 {
    let ns = (u128::from(amount) * 1_000_000_000).div_ceil(u128::from(per_s.max(1)));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Time of a kernel: its launch, then whatever takes longer, computing or moving its bytes (the roofline).
pub fn kernel_ns(target: &Target, device: DeviceId, dtype: DtypeId, macs: u64, bytes: u64) -> u64 {
    let d = target.device(device);
    let moving = ns_at(bytes, target.memories[d.memory.idx()].bytes_per_s);
    d.launch_ns.saturating_add(ns_at(macs, d.rate(dtype)).max(moving))
}

/// A crossing's cost, item by item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossCost {
    /// Fixed part.
    pub handshake_ns: u64,
    /// Moving the bytes.
    pub copy_ns: u64,
    /// Changing the layout.
    pub repack_ns: u64,
    /// Changing the element type.
    pub convert_ns: u64,
}

impl CrossCost {
    /// The sum of the items.
    pub fn total_ns(&self) -> u64 {
        [self.copy_ns, self.repack_ns, self.convert_ns]
            .iter()
            .fold(self.handshake_ns, |sum, ns| sum.saturating_add(*ns))
    }
}

impl Add for CrossCost {
    type Output = CrossCost;

    fn add(self, o: CrossCost) -> CrossCost {
        CrossCost {
            handshake_ns: self.handshake_ns.saturating_add(o.handshake_ns),
            copy_ns: self.copy_ns.saturating_add(o.copy_ns),
            repack_ns: self.repack_ns.saturating_add(o.repack_ns),
            convert_ns: self.convert_ns.saturating_add(o.convert_ns),
        }
    }
}

/// Cost of bringing a value over a link, from one form to another.
pub fn cross(target: &Target, link: &Link, elements: u64, from: Form, to: Form) -> CrossCost {
    let engine_ns = link.dma.map_or(0, |d| target.dmas[d.idx()].latency_ns);
    let copy_ns = link.copy_bytes_per_s.map_or(0, |rate| engine_ns.saturating_add(ns_at(from.bytes, rate)));
    let repack_ns = if from.layout == to.layout { 0 } else { ns_at(from.bytes, link.repack_bytes_per_s) };
    // Picoseconds an element: `per_s` elements in 10^12 / ps seconds.
    let convert_ps = u128::from(elements) * u128::from(link.convert_ps_per_element);
    let convert_ns = u64::try_from(convert_ps.div_ceil(1000)).unwrap_or(u64::MAX);
    let convert_ns = if from.dtype == to.dtype { 0 } else { convert_ns };
    CrossCost { handshake_ns: link.handshake_ns, copy_ns, repack_ns, convert_ns }
}

/// One leg of a value's way to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Where it comes from.
    pub from: DeviceId,
    /// Where it goes.
    pub to: DeviceId,
    /// Cost.
    pub cost: CrossCost,
    /// Nothing is written: the destination reads the source's buffer (shared memory, same form). Only the handshake is paid.
    pub elided: bool,
}

/// All hops that bring a value made on device `source` to the devices `readers` (ascending, without repeats), each
/// destination (memory, layout, type) once: readers there share the copy. Without a direct link the way is by the host.
pub fn hops(target: &Target, value: &Value, source: DeviceId, readers: &[DeviceId], out: &mut Vec<Hop>) {
    out.clear();
    let key = |d: DeviceId| (target.device(d).memory, value.forms[d.idx()].layout, value.forms[d.idx()].dtype);
    // Where the value can be read so far: at the source, and at the end of every hop.
    fn reach(
        t: &Target,
        v: &Value,
        source: DeviceId,
        d: DeviceId,
        key: &dyn Fn(DeviceId) -> PlaceKey,
        out: &mut Vec<Hop>,
    ) {
        if d == source || out.iter().any(|h| h.to == d) {
            return;
        }
        let there = out.iter().filter(|h| !h.elided).map(|h| h.to).find(|&e| key(e) == key(d));
        let there = if key(source) == key(d) { Some(source) } else { there };
        if let Some(from) = there {
            let handshake_ns = t.link(from, d).map_or(0, |l| l.handshake_ns);
            let cost = CrossCost { handshake_ns, ..CrossCost::default() };
            out.push(Hop { from, to: d, cost, elided: true });
            return;
        }
        let (from, link) = match t.link(source, d) {
            Some(link) => (source, link),
            None => {
                reach(t, v, source, t.host, key, out);
                match t.link(t.host, d) {
                    Some(link) => (t.host, link),
                    // Targets have a link from the host to each device.
                    None => return,
                }
            }
        };
        let cost = cross(t, link, v.elements, v.forms[from.idx()], v.forms[d.idx()]);
        out.push(Hop { from, to: d, cost, elided: false });
    }
    for &d in readers {
        reach(target, value, source, d, &key, out);
    }
}

type PlaceKey = (super::id::MemoryId, super::id::LayoutId, DtypeId);

/// Sum of the hops' costs.
pub fn hops_ns(target: &Target, value: &Value, source: DeviceId, readers: &[DeviceId], scratch: &mut Vec<Hop>) -> u64 {
    hops(target, value, source, readers, scratch);
    scratch.iter().fold(0, |sum, h| h.cost.total_ns().saturating_add(sum))
}

/// Work in multiply-accumulates from which an accelerator pays: the solution of `L + F/R_acc + B/B_bw = F/R_cpu`, rounded
/// up. `None` where the accelerator is not faster.
pub fn break_even_macs(cpu_mac_per_s: u64, acc_mac_per_s: u64, fixed_ns: u64, border_ns: u64) -> Option<u64> {
    let faster = acc_mac_per_s.checked_sub(cpu_mac_per_s).filter(|&d| d > 0)?;
    let overhead_ns = u128::from(fixed_ns) + u128::from(border_ns);
    // F = overhead · R_cpu·R_acc / (R_acc − R_cpu), and overhead is in 1e-9 s.
    let scaled = (overhead_ns * u128::from(cpu_mac_per_s)).div_ceil(1_000_000_000);
    u64::try_from((scaled * u128::from(acc_mac_per_s)).div_ceil(u128::from(faster))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::id::{LayoutId, MemoryId};
    use crate::plan::testing::{Kit, value};

    #[test]
    fn quotients_round_up_and_saturate() {
        assert_eq!((ns_at(1, 1_000_000_000), ns_at(1, 3_000_000_000), ns_at(0, 5)), (1, 1, 0));
        assert_eq!(ns_at(u64::MAX, 1), u64::MAX);
        assert_eq!(ns_at(150_000, 20_000_000_000), 7_500);
    }

    #[test]
    fn roofline() {
        let t = Target::shipped("host").unwrap().unwrap();
        let f32 = t.dtype_named("f32").unwrap();
        assert_eq!(kernel_ns(&t, t.host, f32, 38_000_000, 10), 50 + 1_000_000);
        assert_eq!(kernel_ns(&t, t.host, f32, 38, 10_000_000), 50 + 1_000_000);
    }

    /// The sandwich's crossing: 150 us + 7.5 + 7.5 + 7.5.
    #[test]
    fn a_crossing_is_the_sum_of_its_items() {
        let t = Kit::sandwich_target();
        let v = value(&t, "x", 150_000, |f, d| (f.layout, f.dtype) = (LayoutId(d as u32), DtypeId(d as u32)));
        let link = t.link(DeviceId(0), DeviceId(1)).unwrap();
        let cost = cross(&t, link, v.elements, v.forms[0], v.forms[1]);
        assert_eq!(cost, CrossCost { handshake_ns: 150_000, copy_ns: 7_500, repack_ns: 7_500, convert_ns: 7_500 });
        assert_eq!(cost.total_ns(), 172_500);
        let same = cross(&t, link, v.elements, v.forms[0], v.forms[0]);
        assert_eq!((same.repack_ns, same.convert_ns, same.total_ns()), (0, 0, 157_500));
    }

    #[test]
    fn copies_are_shared_folded_routed_and_elided() {
        // Devices 0, 1 share memory 0; 2 has its own; 3 is the host, in memory 2. There is no link between 0 or 1 and 2.
        let mut t = Kit::target(4, 100);
        for (d, m) in [(0, 0), (1, 0), (2, 1), (3, 2)] {
            t.devices[d].memory = MemoryId(m);
        }
        t.links.retain(|l| l.from.0 == 3 || l.to.0 == 3 || l.from.0.max(l.to.0) < 2);
        for l in &mut t.links {
            if l.from.0.max(l.to.0) < 2 {
                l.copy_bytes_per_s = None;
            }
        }
        let v = value(&t, "x", 10, |_, _| ());
        let mut out = Vec::new();
        let d = DeviceId;
        let shape = |out: &[Hop]| out.iter().map(|h| (h.from.0, h.to.0, h.elided)).collect::<Vec<_>>();
        hops(&t, &v, d(0), &[d(0), d(1)], &mut out);
        assert_eq!(shape(&out), [(0, 1, true)]);
        assert_eq!(out[0].cost, CrossCost { handshake_ns: 100, ..CrossCost::default() });
        // By way of the host, which also wants it: one copy to the host, not two.
        hops(&t, &v, d(0), &[d(2), d(3)], &mut out);
        assert_eq!(shape(&out), [(0, 3, false), (3, 2, false)]);
        // Two readers in one memory share the copy; the second pays a handshake.
        hops(&t, &v, d(3), &[d(0), d(1)], &mut out);
        assert_eq!(shape(&out), [(3, 0, false), (0, 1, true)]);
        // In another form it is a copy of its own.
        let w = value(&t, "y", 10, |f, i| f.layout = LayoutId(u32::from(i == 1)));
        hops(&t, &w, d(0), &[d(1)], &mut out);
        assert_eq!(shape(&out), [(0, 1, false)]);
        assert!(out[0].cost.copy_ns == 0 && out[0].cost.repack_ns > 0);
        hops(&t, &v, d(2), &[d(2)], &mut out);
        assert!(out.is_empty());
    }

    /// planning.md §4: 2e5, 6e6, 2e7 MAC for CPUs of 1e9, 3e10, 1e11 MAC/s.
    #[test]
    fn break_even_work_of_the_exact_test() {
        for (cpu, golden) in [(1_000_000_000, 200_000), (30_000_000_000, 6_000_000), (100_000_000_000, 20_000_000)] {
            let macs = break_even_macs(cpu, 26_000_000_000_000, 200_000, 0).unwrap();
            assert!(macs.abs_diff(golden) * 200 <= golden, "{macs} is not within 0.5 % of {golden}");
            // Just below it the CPU wins, just above it the accelerator.
            let pays = |f: u64| 200_000 + ns_at(f, 26_000_000_000_000) < ns_at(f, cpu);
            assert!(!pays(macs - macs / 100) && pays(macs + macs / 100));
            // The paper's fixed threshold is far off for each.
            assert!(macs < 1_000_000_000 / 10);
        }
        assert_eq!(break_even_macs(5, 5, 1, 0), None);
    }
}
