//! Providers, claims and placement through the real trait, with the goldens of planning.md.

use super::pin::Pin;
use super::place::{Wish, place};
use super::tasks::{Tasks, tasks};
use super::{Border, Candidate, Decline, ExecutionProvider, Offer, Providers};
use crate::ir::{Attr, Graph, Layout, Node, Tensor, TensorType, Value, ValueId};
use crate::passes;
use crate::plan::graph::Shape;
use crate::plan::insert::insert;
use crate::plan::placement::{Objective, Placement, Policy, sum_ns, text};
use crate::plan::target::Target;
use kiln_kernels::Dtype;

fn node(graph: &mut Graph, name: &str, op: &str, inputs: &[ValueId], attrs: &[(&str, Attr)]) -> ValueId {
    let out = graph.add_value(Value { name: format!("{name}_out"), ..Value::default() });
    graph.nodes.push(Node {
        name: name.into(),
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

fn input(graph: &mut Graph, dtype: Dtype, dims: &[usize]) -> ValueId {
    let id = graph.add_typed("x", TensorType::fixed(dtype, dims), Layout::Plain);
    graph.inputs.push(id);
    id
}

fn constant(graph: &mut Graph, dims: &[usize]) -> ValueId {
    let n: usize = dims.iter().product();
    let data: Vec<u8> = (0..n).flat_map(|i| ((i % 13) as f32 * 0.1 - 0.6).to_le_bytes()).collect();
    let t = Tensor::new(Dtype::F32, dims.to_vec(), data.into()).unwrap();
    graph.add_constant("w", t)
}

/// Two convolutions with an operator between that the NPU has no kernel for.
fn conv_top_conv(side: usize) -> Graph {
    let mut g = Graph::default();
    let x = input(&mut g, Dtype::F32, &[1, 32, side, side]);
    let w = constant(&mut g, &[32, 32, 3, 3]);
    let pads = ("pads", Attr::Ints(vec![1; 4]));
    let a = node(&mut g, "first", "Conv", &[x, w], std::slice::from_ref(&pads));
    let b = node(&mut g, "middle", "Erf", &[a], &[]);
    let c = node(&mut g, "last", "Conv", &[b, w], &[pads]);
    g.outputs.push(("y".into(), c));
    passes::infer(&mut g).unwrap_or_else(|e| panic!("{e}"));
    passes::simplify(&mut g).unwrap_or_else(|e| panic!("{e}"));
    g
}

fn soc() -> Target {
    Target::shipped("soc-npu").unwrap().unwrap()
}

fn on_soc(graph: &Graph, pins: &[&str]) -> Result<Tasks, String> {
    let pins: Vec<Pin> = pins.iter().map(|p| Pin::parse(p).unwrap()).collect();
    tasks(graph, &soc(), &Providers::default(), &pins).map_err(|e| e.to_string())
}

#[test]
fn the_cpu_claims_all_and_the_npu_says_why_not() {
    let graph = conv_top_conv(32);
    let tasks = on_soc(&graph, &[]).unwrap();
    let shape = Shape::new(&tasks.graph, &soc()).unwrap();
    assert_eq!(shape.producer.iter().flatten().count(), graph.nodes.len());
    let at = |name: &str| graph.nodes.iter().position(|n| n.name == name).unwrap();
    let (npu, cpu) = (0, 1);
    for (i, n) in tasks.graph.nodes.iter().enumerate() {
        assert!(n.cost_ns[cpu].is_some() && tasks.declines[i][cpu].is_none());
        assert_eq!(n.cost_ns[npu].is_none(), tasks.declines[i][npu].is_some());
    }
    let why = tasks.declines[at("middle")][npu].as_ref().unwrap().to_string();
    assert!(why.contains("no kernel for Erf"), "{why}");
    // 32·32·9·32² multiply-accumulates at 100 G and 38 G a second; launches of 5 us and 50 ns.
    let first = &tasks.graph.nodes[at("first")];
    assert_eq!(first.macs, 9 * 32 * 32 * 32 * 32);
    assert_eq!(first.cost_ns[npu], Some(5_000 + 94_372));
    assert_eq!(first.cost_ns[cpu], Some(50 + 248_347));
    assert!(first.splits > 1);
}

#[test]
fn dynamic_sizes_and_foreign_types_are_declined() {
    let mut g = Graph::default();
    let x = g.add_typed("x", TensorType::fixed(Dtype::F64, &[4, 4]), Layout::Plain);
    g.inputs.push(x);
    let symbol = crate::ir::Symbol {
        name: "n".into(),
        min: 1,
        max: Some(8),
        source: crate::ir::SymbolSource::Input { input_idx: 1, axis: 0 },
    };
    let free = TensorType::new(Dtype::F32, vec![crate::ir::Dim::symbol(symbol)]);
    let z = g.add_typed("z", free, Layout::Plain);
    g.inputs.push(z);
    let y = node(&mut g, "double", "Relu", &[x], &[]);
    let v = node(&mut g, "free", "Relu", &[z], &[]);
    g.outputs = vec![("y".into(), y), ("v".into(), v)];
    passes::infer(&mut g).unwrap_or_else(|e| panic!("{e}"));
    let tasks = on_soc(&g, &[]).unwrap();
    let why = |i: usize| tasks.declines[i][0].as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(why(0).contains("does not compute in f64"), "{}", why(0));
    assert!(why(1).contains("sizes are not known"), "{}", why(1));
}

#[test]
fn what_no_tile_fits_is_declined_with_the_bytes() {
    let mut target = soc();
    let sram = target.device(target.device_named("npu").unwrap()).memory;
    target.memories[sram.idx()].capacity_bytes = 8 << 10;
    let graph = conv_top_conv(32);
    let tasks = tasks(&graph, &target, &Providers::default(), &[]).unwrap();
    let why = tasks.declines.iter().flatten().flatten().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(why.contains("its smallest tile needs") && why.contains("of 8192"), "{why}");
}

#[test]
fn pins_hold_and_impossible_ones_are_errors() {
    let graph = conv_top_conv(16);
    let tasks = on_soc(&graph, &["^first$=cpu", "last=npu"]).unwrap();
    let decided = place(&tasks, &soc(), &Wish::default()).unwrap();
    let at = |name: &str| graph.nodes.iter().position(|n| n.name == name).unwrap();
    let device = |name: &str| decided.placed.placement.device[at(name)].idx();
    assert_eq!((device("first"), device("last")), (1, 0));
    let e = on_soc(&graph, &["middle=npu"]).unwrap_err();
    assert!(e.contains("\"middle\"") && e.contains("no kernel for Erf"), "{e}");
    assert!(on_soc(&graph, &["middle=gpu"]).unwrap_err().contains("no device \"gpu\""));
}

#[test]
fn placements_are_saved_and_loaded_and_heavy_fallbacks_named() {
    let graph = conv_top_conv(64);
    let (tasks, target) = (on_soc(&graph, &[]).unwrap(), soc());
    let optimal = place(&tasks, &target, &Wish::default()).unwrap();
    for policy in [Policy::Priority, Policy::Parallax, Policy::Optimal(Objective::Sum)] {
        let other = place(&tasks, &target, &Wish { policy, ..Wish::default() }).unwrap();
        assert!(optimal.placed.planned.timeline.end_ns <= other.placed.planned.timeline.end_ns, "{policy:?}");
    }
    let priority = place(&tasks, &target, &Wish { policy: Policy::Priority, ..Wish::default() }).unwrap();
    let saved = text::save(&tasks.graph, &target, &priority.placed.placement);
    let again = place(&tasks, &target, &Wish { saved: Some(saved), ..Wish::default() }).unwrap();
    assert_eq!(again.placed.placement, priority.placed.placement);
    // The operator between the convolutions is left on the slow device.
    let warnings = priority.warnings.join("\n");
    assert!(warnings.contains("\"middle\" stays on cpu") && warnings.contains("no kernel for Erf"), "{warnings}");
    let broken = place(&tasks, &target, &Wish { saved: Some("x".into()), ..Wish::default() }).unwrap_err();
    assert!(broken.to_string().contains("the saved placement: line 1"), "{broken}");
}

/// The lesson's devices: costs in ns by node name, and what they want at their border.
#[derive(Debug)]
struct Lesson {
    name: &'static str,
    costs: [(&'static str, Option<u64>); 3],
    border: (Layout, Dtype),
}

impl ExecutionProvider for Lesson {
    fn name(&self) -> &str {
        self.name
    }

    fn claim(&self, node: &Candidate<'_>) -> Result<Offer, Decline> {
        let cost = self.costs.iter().find(|(name, _)| *name == node.view.node.name).and_then(|(_, cost)| *cost);
        let cost_ns = cost.ok_or_else(|| Decline("the lesson has none".into()))?;
        Ok(Offer { cost_ns, splits: 1 })
    }

    fn border(&self, _: &TensorType, _: Layout) -> Border {
        Border { layout: self.border.0, dtype: self.border.1 }
    }
}

const LESSON: &str = r#"
name = "lesson"
host = "cpu"
[[memory]]
name = "dram"
capacity_bytes = 1_000_000_000
bytes_per_s = 10_000_000_000
[[memory]]
name = "sram"
capacity_bytes = 1_000_000
bytes_per_s = 10_000_000_000
[[device]]
name = "npu"
ep = "lesson-npu"
memory = "sram"
mac_per_s = { i8 = 1_000_000_000_000 }
dtypes = ["i8"]
layouts = ["blocked16"]
[[device]]
name = "cpu"
ep = "lesson-cpu"
memory = "dram"
mac_per_s = { u8 = 10_000_000_000 }
dtypes = ["u8"]
layouts = ["plain"]
[[link]]
from = "cpu"
to = "npu"
handshake_ns = 150_000
copy_bytes_per_s = 20_000_000_000
repack_bytes_per_s = 20_000_000_000
convert_ps_per_element = 50
[[link]]
from = "npu"
to = "cpu"
handshake_ns = 150_000
copy_bytes_per_s = 20_000_000_000
repack_bytes_per_s = 20_000_000_000
convert_ps_per_element = 50
"#;

/// Sums of the per-operator-fastest placement, of all on the CPU, and of the least; and what the least is.
fn sandwich(npu_gather: Option<u64>, cpu_conv: u64) -> (u64, u64, Vec<usize>) {
    // 150,000 values of a byte; the first and the last crossing are left out, as in the lesson: the input is a constant
    // and nothing is an output.
    let mut g = Graph::default();
    let x = g.add_typed("x", TensorType::fixed(Dtype::U8, &[1, 16, 75, 125]), Layout::Plain);
    let a = node(&mut g, "conv1", "Identity", &[x], &[]);
    let b = node(&mut g, "gather", "Identity", &[a], &[]);
    node(&mut g, "conv2", "Identity", &[b], &[]);
    passes::infer(&mut g).unwrap_or_else(|e| panic!("{e}"));
    let npu = Lesson {
        name: "lesson-npu",
        costs: [("conv1", Some(40_000)), ("gather", npu_gather), ("conv2", Some(40_000))],
        border: (Layout::Blocked16, Dtype::I8),
    };
    let cpu = Lesson {
        name: "lesson-cpu",
        costs: [("conv1", Some(cpu_conv)), ("gather", Some(10_000)), ("conv2", Some(cpu_conv))],
        border: (Layout::Plain, Dtype::U8),
    };
    let target = Target::parse(LESSON, "lesson").unwrap_or_else(|e| panic!("{e}"));
    let more: [&dyn ExecutionProvider; 2] = [&npu, &cpu];
    let tasks = tasks(&g, &target, &Providers::with(&more), &[]).unwrap_or_else(|e| panic!("{e}"));
    let shape = Shape::new(&tasks.graph, &target).unwrap();
    let id = |name| target.device_named(name).unwrap();
    let fastest = Placement { device: vec![id("npu"), id("cpu"), id("npu")], claims: vec![] };
    let list = insert(&tasks.graph, &shape, &target, &fastest);
    assert_eq!(list.copies().count(), 2);
    let wish = Wish { policy: Policy::Optimal(Objective::Sum), ..Wish::default() };
    let least = place(&tasks, &target, &wish).unwrap().placed.placement;
    let sums = [&fastest, &least].map(|p| sum_ns(&tasks.graph, &shape, &target, p));
    (sums[0], sums[1], least.device.iter().map(|d| d.idx()).collect())
}

/// planning.md §3: 435 us; a kernel for the gather wins below 355 us; all on the CPU wins below 425 us for both convolutions.
#[test]
fn the_sandwich_through_the_trait() {
    let (npu, cpu) = (0, 1);
    let never = 1_000_000_000;
    assert_eq!(sandwich(None, never), (435_000, 435_000, vec![npu, cpu, npu]));
    assert_eq!(sandwich(Some(354_999), never).2, [npu, npu, npu]);
    assert_eq!(sandwich(Some(355_001), never).2, [npu, cpu, npu]);
    assert_eq!(sandwich(None, 212_499), (435_000, 434_998, vec![cpu, cpu, cpu]));
    assert_eq!(sandwich(None, 212_501).2, [npu, cpu, npu]);
}

#[test]
fn a_device_without_a_provider_is_an_error() {
    let target = Target::shipped("host+gpu").unwrap().unwrap();
    let e = tasks(&conv_top_conv(16), &target, &Providers::default(), &[]).unwrap_err().to_string();
    assert!(e.contains("no execution provider \"gpu\" for device \"gpu\""), "{e}");
}
