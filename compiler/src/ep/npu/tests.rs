//! Whole plans for the NPU, run in the compiler and compared with the CPU's: tiled for small memories, with random shapes;
//! and plans that were tampered with, which the verifier must refuse.

mod cascades;

use super::expand::Lane;
use super::plan::{device, plan_with};
use crate::exec;
use crate::ir::{Attr, Graph, Layout, Node, Tensor, TensorType, Value, ValueId};
use crate::lower;
use crate::memory;
use crate::passes;
use crate::plan::target::Target;
use crate::plan::testing::Random;
use crate::program::{Meta, Program, assemble_on};
use crate::schedule::{Schedule, StreamStep};
use crate::verify::{self, Expectation};
use kiln_kernels::Dtype;
use kiln_kernels::isa::Isa;

struct Net(Graph);

impl Net {
    fn new(dims: &[usize]) -> (Self, ValueId) {
        let mut g = Graph::default();
        let x = g.add_typed("x", TensorType::fixed(Dtype::F32, dims), Layout::Plain);
        g.inputs.push(x);
        (Self(g), x)
    }

    fn constant(&mut self, dims: &[usize], seed: u64) -> ValueId {
        let n: usize = dims.iter().product();
        let mut r = Random(seed);
        let data: Vec<u8> = (0..n).flat_map(|_| (r.below(2000) as f32 / 1000.0 - 1.0).to_le_bytes()).collect();
        self.0.add_constant(format!("w{seed}"), Tensor::new(Dtype::F32, dims.to_vec(), data.into()).unwrap())
    }

    fn node(&mut self, op: &str, inputs: &[ValueId], attrs: &[(&str, Attr)]) -> ValueId {
        let n = self.0.nodes.len();
        let out = self.0.add_value(Value { name: format!("v{n}"), ..Value::default() });
        self.0.nodes.push(Node {
            name: format!("{op}{n}"),
            domain: String::new(),
            op: op.into(),
            version: 17,
            attrs: attrs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
            inputs: inputs.iter().map(|v| Some(*v)).collect(),
            outputs: vec![Some(out)],
            bodies: Default::default(),
        });
        out
    }

    fn done(mut self, y: ValueId) -> Graph {
        self.0.outputs.push(("y".into(), y));
        passes::infer(&mut self.0).unwrap_or_else(|e| panic!("{e}"));
        passes::simplify(&mut self.0).unwrap_or_else(|e| panic!("{e}"));
        self.0
    }
}

fn soc(sram_bytes: u64) -> Target {
    let mut target = Target::shipped("soc-npu").unwrap().unwrap();
    let memory = target.device(device(&target).unwrap()).memory;
    target.memories[memory.idx()].capacity_bytes = sram_bytes;
    target
}

/// Everything on the NPU that it takes; the number of nodes there.
fn on_npu(graph: &Graph, target: &Target) -> Option<(Program, Expectation, usize)> {
    planned(graph, target, true)
}

fn planned(graph: &Graph, target: &Target, cascades: bool) -> Option<(Program, Expectation, usize)> {
    let npu = device(target).unwrap();
    let tasks = crate::ep::tasks::tasks(graph, target, &crate::ep::Providers::default(), &[]).unwrap();
    let nodes: Vec<bool> = tasks.graph.nodes.iter().map(|n| n.cost_ns[npu.idx()].is_some()).collect();
    let n = nodes.iter().filter(|n| **n).count();
    if n == 0 {
        return None;
    }
    let lowered = lower::lower(graph).unwrap_or_else(|e| panic!("{e}"));
    let (lowered, schedule, device) = plan_with(graph, lowered, target, npu, &nodes, (&Default::default(), cascades))
        .unwrap_or_else(|e| panic!("{e}"));
    let expected = verify::expectation(&lowered);
    let arena = memory::plan_on_streams(&lowered, &schedule).unwrap_or_else(|e| panic!("{e}"));
    let program = assemble_on(graph, lowered, schedule, arena, Some(device), &[], Meta::default());
    let program = program.unwrap_or_else(|e| panic!("{e}"));
    verify::verify(&program, &expected).unwrap_or_else(|e| panic!("{e}"));
    Some((program, expected, n))
}

/// Runs a graph both ways on the same random input. Returns how many kernels and stores the device had.
fn same_as_the_cpu(graph: &Graph, target: &Target) -> Option<(usize, usize)> {
    let dims = graph.tensor_type(graph.inputs[0]).unwrap().const_dims().unwrap();
    let mut r = Random(7);
    let n: usize = dims.iter().product();
    let x: Vec<u8> = (0..n).flat_map(|_| (r.below(2000) as f32 / 1000.0 - 1.0).to_le_bytes()).collect();
    let (program, _, _) = on_npu(graph, target)?;
    let isa = Isa::detect();
    let got = exec::run_program(&program, &[&x], isa).unwrap_or_else(|e| panic!("{e}"));
    let lowered = lower::lower(graph).unwrap_or_else(|e| panic!("{e}"));
    let want = exec::run_unplanned(graph, &lowered, &[&x], isa).unwrap_or_else(|e| panic!("{e}"));
    for (got, want) in got.iter().zip(&want) {
        let (got, want) = (got.to_f32s().unwrap(), want.to_f32s().unwrap());
        let scale = want.iter().fold(1.0f32, |m, v| m.max(v.abs()));
        for (a, b) in got.iter().zip(&want) {
            assert!((a - b).abs() <= 2e-5 * scale, "{a} is not {b}");
        }
    }
    let lanes = &program.device.as_ref().unwrap().lanes;
    let count = |lane| lanes.iter().filter(|l| **l == lane).count();
    Some((count(Lane::Compute), count(Lane::Store)))
}

fn ints(name: &'static str, v: &[i64]) -> (&'static str, Attr) {
    (name, Attr::Ints(v.to_vec()))
}

/// A small network of all that the NPU can cut: first layer, depthwise, 1x1, strided, Winograd's 3x3, pools, a product.
fn mixed() -> Graph {
    let (mut n, x) = Net::new(&[1, 3, 40, 36]);
    let w = n.constant(&[40, 3, 3, 3], 1);
    let b = n.constant(&[40], 2);
    let v = n.node("Conv", &[x, w, b], &[ints("pads", &[1; 4]), ints("strides", &[2, 2])]);
    let v = n.node("Relu", &[v], &[]);
    let w = n.constant(&[40, 1, 3, 3], 3);
    let v = n.node("Conv", &[v, w], &[ints("pads", &[1; 4]), ("group", Attr::Int(40))]);
    let w = n.constant(&[64, 40, 1, 1], 4);
    let skip = n.node("Conv", &[v, w], &[]);
    let w = n.constant(&[64, 64, 3, 3], 5);
    let v = n.node("Conv", &[skip, w], &[ints("pads", &[1; 4])]);
    let v = n.node("Add", &[v, skip], &[]);
    let v = n.node("MaxPool", &[v], &[ints("kernel_shape", &[3, 3]), ints("pads", &[1; 4]), ints("strides", &[2, 2])]);
    let v = n.node("AveragePool", &[v], &[ints("kernel_shape", &[2, 2]), ints("pads", &[1, 0, 0, 1])]);
    let v = n.node("GlobalAveragePool", &[v], &[]);
    let v = n.node("Flatten", &[v], &[]);
    let w = n.constant(&[64, 50], 6);
    let b = n.constant(&[50], 7);
    let v = n.node("Gemm", &[v, w, b], &[]);
    n.done(v)
}

#[test]
fn memories_of_every_size_give_the_cpus_results() {
    let graph = mixed();
    let mut kernels = Vec::new();
    for kib in [2048, 512, 256, 128, 96, 64, 48, 32] {
        let target = soc(kib << 10);
        kernels.push(same_as_the_cpu(&graph, &target).unwrap_or_default());
    }
    let (first, last) = (kernels[0], kernels[kernels.len() - 1]);
    // With room for all, only what leaves the device is stored.
    assert!(first.1 <= 2, "{kernels:?}");
    assert!(last.0 > 3 * first.0 && last.1 > 10 * first.1, "a small memory needs tiles: {kernels:?}");
}

#[test]
fn one_engine_for_loads_and_stores() {
    let mut target = soc(64 << 10);
    let npu = device(&target).unwrap();
    assert!(super::fit::Pad::of(&target, npu).is_some_and(|p| !p.one_engine));
    for link in &mut target.links {
        link.dma = None;
    }
    assert!(super::fit::Pad::of(&target, npu).is_some_and(|p| p.one_engine));
    let (kernels, stores) = same_as_the_cpu(&mixed(), &target).unwrap();
    assert!(kernels > 10 && stores == 0, "the loading engine stores as well");
}

#[test]
fn random_convolutions_in_random_memories() {
    let mut r = Random(17);
    let mut tiled = 0;
    for at in 0..60 {
        let depthwise = r.chance(30);
        let ic = [3, 16, 24, 33, 64][r.below(if depthwise { 4 } else { 5 }) as usize] as usize;
        let oc = if depthwise { ic } else { 1 + r.below(100) as usize };
        let (kh, kw) = (1 + r.below(4) as usize, 1 + r.below(4) as usize);
        let (h, w) = (kh + 3 + r.below(30) as usize, kw + 3 + r.below(30) as usize);
        let (mut n, x) = Net::new(&[1, ic, h, w]);
        let per_group = if depthwise { 1 } else { ic };
        let weights = n.constant(&[oc, per_group, kh, kw], at + 100);
        let bias = n.constant(&[oc], at + 1000);
        let mut pad = |k: usize| r.below(k as u64) as i64;
        let pads = [pad(kh), pad(kw), pad(kh), pad(kw)];
        let strides = [1 + r.below(2) as i64, 1 + r.below(2) as i64];
        let group = if depthwise { ic as i64 } else { 1 };
        let attrs = [ints("pads", &pads), ints("strides", &strides), ("group", Attr::Int(group))];
        let v = n.node("Conv", &[x, weights, bias], &attrs);
        let graph = n.done(v);
        let target = soc((24 + r.below(200)) << 10);
        if let Some((kernels, _)) = same_as_the_cpu(&graph, &target) {
            tiled += usize::from(kernels > graph.nodes.len());
        }
    }
    assert!(tiled > 10, "only {tiled} of 60 were tiled");
}

/// Every kind of tampering, at every place: the verifier refuses all of it.
#[test]
fn tampered_plans_are_refused() {
    let graph = mixed();
    let (program, expected, _) = on_npu(&graph, &soc(64 << 10)).unwrap();
    let refused = |p: &Program, what: &str| assert!(verify::verify(p, &expected).is_err(), "{what} was accepted");
    let edit = |f: &dyn Fn(&mut Program)| {
        let mut p = program.clone();
        f(&mut p);
        p
    };
    let streams = &program.schedule.streams;
    let mut dropped = 0;
    for (s, steps) in streams.iter().enumerate() {
        for (i, step) in steps.iter().enumerate() {
            if matches!(step, StreamStep::Wait { .. }) {
                dropped += 1;
                refused(&edit(&|p| _ = p.schedule.streams[s].remove(i)), "a dropped wait");
            }
        }
    }
    assert!(dropped > 20, "{dropped}");
    let n = program.steps.len();
    let device = program.device_region().unwrap();
    for i in (0..n).step_by(3) {
        let shift = edit(&|p| p.steps[i].call.relocate(&mut |o| o.off += if o.mem == device { 64 } else { 0 }));
        let touches = program.steps[i].call.operands().iter().any(|o| o.operand.mem == device);
        if touches {
            refused(&shift, "a shifted buffer");
            refused(&edit(&|p| p.steps[i].call.relocate(&mut |o| o.mem = 0)), "a step out of the device's memory");
        }
        let lane = program.device.as_ref().unwrap().lanes[i];
        let other = if lane == Lane::Compute { Lane::Host } else { Lane::Compute };
        refused(&edit(&|p| p.device.as_mut().unwrap().lanes[i] = other), "a step on another engine");
    }
    refused(&edit(&|p| p.device.as_mut().unwrap().capacity_bytes = 1 << 10), "too small a memory");
    refused(&edit(&|p| p.schedule = Schedule::one(&vec![0; n])), "one stream for all engines");
}
