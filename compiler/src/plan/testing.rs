//! For tests: targets and graphs in a line or two, and random ones from a seed.

use super::graph::{Form, Node, Shape, Source, TaskGraph, Value};
use super::id::{DeviceId, DtypeId, LayoutId, MemoryId, ValueId};
use super::target::{Device, Link, Memory, Target};
use std::collections::BTreeMap;

/// A target and a graph under construction.
pub(crate) struct Kit {
    pub target: Target,
    pub graph: TaskGraph,
}

/// A value whose forms are all alike until edited: layout 0, type 0, a byte an element.
pub(crate) fn value(target: &Target, name: &str, elements: u64, edit: impl Fn(&mut Form, usize)) -> Value {
    let form = |d| {
        let mut form = Form { layout: LayoutId(0), dtype: DtypeId(0), bytes: elements };
        edit(&mut form, d);
        form
    };
    let forms = (0..target.n_devices()).map(form).collect();
    Value { name: name.into(), elements, forms, source: Source::Input(target.host), output: None }
}

impl Kit {
    /// Devices with a memory each, all linked; the last is the host. A byte takes a nanosecond.
    pub(crate) fn target(n_devices: usize, handshake_ns: u64) -> Target {
        let memory = |i| Memory {
            name: format!("m{i}"),
            capacity_bytes: 1 << 30,
            bytes_per_s: 1_000_000_000,
            latency_ns: 0,
            alignment_bytes: 64,
            weights_only: false,
            behind: None,
        };
        let device = |i| Device {
            name: format!("d{i}"),
            ep: format!("ep{i}"),
            memory: MemoryId::new(i),
            streams: 1,
            launch_ns: 0,
            sync_ns: 0,
            mac_per_s: BTreeMap::from([(DtypeId(0), 1_000_000_000)]),
            dtypes: vec![DtypeId(0), DtypeId(1)],
            layouts: vec![LayoutId(0), LayoutId(1)],
        };
        let pairs = (0..n_devices).flat_map(|a| (0..n_devices).map(move |b| (a, b))).filter(|(a, b)| a != b);
        let link = |(a, b)| Link {
            from: DeviceId::new(a),
            to: DeviceId::new(b),
            handshake_ns,
            copy_bytes_per_s: Some(1_000_000_000),
            repack_bytes_per_s: 1_000_000_000,
            convert_ps_per_element: 1000,
            dma: None,
            by: DeviceId::new(a),
        };
        Target {
            name: "test".into(),
            memories: (0..n_devices).map(memory).collect(),
            devices: (0..n_devices).map(device).collect(),
            dmas: Vec::new(),
            links: pairs.map(link).collect(),
            host: DeviceId::new(n_devices - 1),
            layouts: vec!["plain".into(), "blocked".into()],
            dtypes: vec!["f32".into(), "i8".into()],
        }
    }

    /// The lesson's machine: device 0 an NPU, device 1 the CPU, 150 us of handshake, 20 GB/s, 50 ps an element.
    pub(crate) fn sandwich_target() -> Target {
        let mut t = Self::target(2, 150_000);
        for l in &mut t.links {
            l.copy_bytes_per_s = Some(20_000_000_000);
            l.repack_bytes_per_s = 20_000_000_000;
            l.convert_ps_per_element = 50;
        }
        t
    }

    pub(crate) fn new(n_devices: usize, handshake_ns: u64) -> Kit {
        Self::on(Self::target(n_devices, handshake_ns))
    }

    pub(crate) fn on(target: Target) -> Kit {
        Kit { target, graph: TaskGraph::default() }
    }

    /// A graph input of so many bytes.
    pub(crate) fn input(&mut self, bytes: u64) -> ValueId {
        let v = value(&self.target, &format!("in{}", self.graph.values.len()), bytes, |_, _| ());
        self.graph.values.push(v);
        ValueId::new(self.graph.values.len() - 1)
    }

    /// A node with one result of 8 bytes; cost 0 stands for a device that cannot run it.
    pub(crate) fn node(&mut self, inputs: &[ValueId], cost_ns: &[u64]) -> ValueId {
        let out = self.input(8);
        self.graph.values[out.idx()].source = Source::Node;
        let cost_ns = cost_ns.iter().map(|&c| (c > 0).then_some(c)).collect();
        self.graph.nodes.push(Node {
            name: format!("node{}", self.graph.nodes.len()),
            inputs: inputs.to_vec(),
            outputs: vec![out],
            macs: 1,
            cost_ns,
            pin: None,
            control_flow: false,
            splits: 1,
            rowwise: Vec::new(),
        });
        out
    }

    /// Marks a graph output.
    pub(crate) fn output(&mut self, v: ValueId) {
        self.graph.values[v.idx()].output = Some(self.target.host);
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape::new(&self.graph, &self.target).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The sandwich of planning.md §3: convolutions of 40 us on the NPU around a gather of 10 us on the CPU, first and
    /// last crossing left out. `npu_gather` and `cpu_conv` are what the alternatives cost in ns, 0 for none.
    pub(crate) fn sandwich(npu_gather: u64, cpu_conv: u64) -> Kit {
        let mut kit = Kit::on(Self::sandwich_target());
        let x = kit.input(150_000);
        kit.graph.values[x.idx()].source = Source::Constant;
        // The host must be able to run everything; where the lesson has no such kernel it is too slow to matter.
        let cpu_conv = if cpu_conv == 0 { 1_000_000_000 } else { cpu_conv };
        let a = kit.node(&[x], &[40_000, cpu_conv]);
        let b = kit.node(&[a], &[npu_gather, 10_000]);
        let c = kit.node(&[b], &[40_000, cpu_conv]);
        for v in [a, b, c] {
            let elements = 150_000;
            let differ = |f: &mut Form, d: usize| (f.layout, f.dtype) = (LayoutId(d as u32), DtypeId(d as u32));
            let forms = value(&kit.target, "", elements, differ).forms;
            let v = &mut kit.graph.values[v.idx()];
            (v.elements, v.forms) = (elements, forms);
        }
        kit
    }
}

/// A stream of random numbers.
pub(crate) struct Random(pub u64);

impl Random {
    /// Below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n.max(1)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A random target of so many devices: some share a memory, some pairs have no direct link, streams and rates differ.
pub(crate) fn random_target(r: &mut Random, n_devices: usize) -> Target {
    let handshake = [0, 3, 30, 300][r.below(4) as usize];
    let mut t = Kit::target(n_devices, handshake);
    if n_devices > 1 && r.chance(30) {
        t.devices[0].memory = t.devices[1].memory;
    }
    let memories: Vec<MemoryId> = t.devices.iter().map(|d| d.memory).collect();
    for l in &mut t.links {
        l.handshake_ns += r.below(10);
        l.copy_bytes_per_s = (memories[l.from.idx()] != memories[l.to.idx()]).then(|| 500_000_000 * (1 + r.below(4)));
        l.repack_bytes_per_s = 1_000_000_000 * (1 + r.below(3));
        l.convert_ps_per_element = 500 * r.below(4);
        l.by = if r.chance(50) { l.from } else { l.to };
    }
    let host = t.host;
    if r.chance(30) {
        t.links.retain(|l| l.from == host || l.to == host || l.shared());
    }
    for d in &mut t.devices {
        d.streams = 1 + r.below(3) as usize;
        d.sync_ns = [0, 0, 2][r.below(3) as usize];
    }
    t
}

/// A random graph of `n` nodes on a target: chains, forks and joins, operators a device lacks, pins, several results.
pub(crate) fn random_graph(r: &mut Random, target: Target, n: usize) -> Kit {
    let mut kit = Kit::on(target);
    let n_devices = kit.target.n_devices();
    let mut made = vec![kit.input(1 + r.below(40)), kit.input(1 + r.below(40))];
    if r.chance(30) {
        kit.graph.values[0].source = Source::Constant;
    }
    let far = r.chance(50);
    for _ in 0..n {
        let n_inputs = 1 + r.below(3) as usize;
        let reach = if far { made.len() } else { made.len().min(4) };
        let inputs: Vec<ValueId> =
            (0..n_inputs).map(|_| made[made.len() - 1 - r.below(reach as u64) as usize]).collect();
        let mut costs: Vec<u64> = (0..n_devices).map(|_| 1 + r.below(60)).collect();
        for c in &mut costs[..n_devices - 1] {
            if r.chance(20) {
                *c = 0;
            }
        }
        let v = kit.node(&inputs, &costs);
        made.push(v);
        let node = kit.graph.nodes.len() - 1;
        kit.graph.nodes[node].macs = r.below(100);
        if r.chance(10) {
            let at = r.below(n_devices as u64) as usize;
            kit.graph.nodes[node].pin = (costs[at] > 0).then_some(DeviceId::new(at));
        }
        if r.chance(10) {
            let second = kit.input(1 + r.below(20));
            kit.graph.values[second.idx()].source = Source::Node;
            kit.graph.nodes[node].outputs.push(second);
            made.push(second);
        }
        if r.chance(25) {
            kit.graph.nodes[node].splits = 2 + r.below(3) as u32;
            kit.graph.nodes[node].rowwise = if r.chance(50) { vec![inputs[0]] } else { Vec::new() };
        }
    }
    for v in &mut kit.graph.values {
        let bytes = 1 + r.below(40);
        v.elements = bytes;
        let odd = r.below(3);
        for (d, f) in v.forms.iter_mut().enumerate() {
            f.layout = LayoutId((odd as u32 * d as u32) % 2);
            f.dtype = DtypeId(u32::from(odd == 1 && d == 1));
            // A form's size follows from its layout and type.
            f.bytes = bytes * u64::from(1 + f.layout.0 + 2 * f.dtype.0);
        }
        if r.chance(15) {
            v.output = Some(kit.target.host);
        }
    }
    if let Some(v) = made.last() {
        kit.output(*v);
    }
    kit
}
