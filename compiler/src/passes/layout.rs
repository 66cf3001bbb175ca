//! Layouts over the whole graph: which values lie in blocks of 16 channels, and where conversions stand.
//!
//! Convolutions with a blocked kernel take and give the blocked layout; operators that work in either follow whatever
//! makes the bytes converted fewest: a minimum cut, exact. A value is converted once for all its readers.

use crate::cut::{INFINITE, Network, SINK, SOURCE};
use crate::ir::{Attr, Graph, Layout, Node, TensorType, Value, ValueId};
use crate::ops::conv::{BlockedForm, blocked_form};
use crate::ops::view::NodeView;
use crate::ops::{self, LayoutRule};
use crate::ops::{conv_transpose, int_conv};
use kiln_kernels::Dtype;
use std::collections::HashMap;

/// What a conversion costs beyond its bytes, in bytes: a call and its cache misses.
const CALL_BYTES: u64 = 1024;

/// How a node stands to the blocked layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Plain only.
    Plain,
    /// Blocked only.
    Blocked,
    /// Plain operands, blocked result.
    First,
    /// Either, all operands and results alike.
    Either,
}

/// Chooses layouts and inserts the conversions.
pub fn assign(graph: &mut Graph) {
    let modes: Vec<Mode> = graph.nodes.iter().map(|n| mode(graph, n)).collect();
    if !modes.iter().any(|m| matches!(m, Mode::Blocked | Mode::First)) {
        return;
    }
    let blocked = labels(graph, &modes);
    apply(graph, &modes, &blocked);
}

/// Whether a value can lie in the blocked layout at all.
fn blockable(ty: &TensorType) -> bool {
    matches!(ty.dtype, Dtype::F32 | Dtype::U8 | Dtype::I8)
        && ty.rank() >= 3
        && ty.shape[1].as_const().is_some()
        && !ty.shape.iter().any(|d| d.is(0))
}

fn mode(graph: &Graph, node: &Node) -> Mode {
    let view = NodeView { graph, node };
    let Ok(out) = view.out_ty(0) else { return Mode::Plain };
    if !blockable(out) {
        return Mode::Plain;
    }
    if node.is("Conv") || node.is_kiln("Conv") {
        return match blocked_form(&view) {
            None => Mode::Plain,
            Some(BlockedForm::First) => Mode::First,
            Some(BlockedForm::Direct | BlockedForm::Depthwise) => Mode::Blocked,
        };
    }
    if node.is("ConvTranspose") || node.is_kiln("ConvTranspose") {
        return if conv_transpose::blocked_shape(&view).is_some() { Mode::Blocked } else { Mode::Plain };
    }
    if let Some(form) = int_conv::blocked_form(&view) {
        return if form == BlockedForm::First { Mode::First } else { Mode::Blocked };
    }
    let bytes = |ty: &TensorType| ty.dtype != Dtype::F32;
    if (bytes(out) || view.ty(0).is_ok_and(bytes)) && !takes_blocked_bytes(node) {
        return Mode::Plain;
    }
    let Ok(op) = ops::find(node) else { return Mode::Plain };
    let fits = match op.layout {
        LayoutRule::Plain => false,
        LayoutRule::Elementwise => elementwise_fits(&view, out),
        LayoutRule::Channelwise => channelwise_fits(&view, out),
        LayoutRule::ChannelConcat => concat_fits(&view),
    };
    if fits { Mode::Either } else { Mode::Plain }
}

/// Whether an operator has kernels over blocked tensors of 8-bit codes.
fn takes_blocked_bytes(node: &Node) -> bool {
    match node.op.as_str() {
        "QuantizeLinear" | "DequantizeLinear" | "MaxPool" | "QLinearAdd" | "QLinearMul" | "QLinearSigmoid"
        | "QLinearLeakyRelu" | "CodeTable" => true,
        "QLinearGlobalAveragePool" => !matches!(node.attrs.get("channels_last"), Some(Attr::Int(v)) if *v != 0),
        _ => false,
    }
}

fn elementwise_fits(view: &NodeView<'_>, out: &TensorType) -> bool {
    let mut full = false;
    for i in 0..view.n_inputs() {
        let Ok(Some(ty)) = view.opt_ty(i) else { if view.has(i) { return false } else { continue } };
        if ty.numel().is(1) && (view.constant(i).is_some() || ty.rank() < out.rank()) {
            continue;
        }
        if view.constant(i).is_some() {
            // One per channel: packed when lowered.
            let axis = (ty.rank() + 1).checked_sub(out.rank());
            let single = |a: usize| Some(a) == axis || ty.shape[a].is(1);
            if axis.is_none() || !(0..ty.rank()).all(single) || ty.shape[axis.unwrap_or(0)] != out.shape[1] {
                return false;
            }
            continue;
        }
        let same = ty.rank() == out.rank()
            && (ty.dtype == Dtype::F32
                || (matches!(ty.dtype, Dtype::U8 | Dtype::I8) && takes_blocked_bytes(view.node)))
            && ty.shape[1] == out.shape[1]
            && ty.shape.iter().zip(&out.shape).all(|(a, b)| a == b || a.is(1));
        if !same {
            return false;
        }
        full = true;
    }
    full
}

fn channelwise_fits(view: &NodeView<'_>, out: &TensorType) -> bool {
    let Ok(x) = view.ty(0) else { return false };
    let pool = view.node.op.contains("Pool");
    blockable(x)
        && x.rank() == out.rank()
        && x.shape[1] == out.shape[1]
        && (!pool || matches!(x.rank(), 3 | 4))
        && (1..view.n_outputs()).all(|i| !view.wants(i))
        && (1..view.n_inputs()).all(|i| !view.has(i) || view.constant(i).is_some())
}

fn concat_fits(view: &NodeView<'_>) -> bool {
    let Ok(rank) = view.rank(0) else { return false };
    let Ok(axis) = view.axis("axis", 0, rank) else { return false };
    let whole = |ty: &TensorType| blockable(ty) && (axis != 1 || ty.shape[1].as_const().is_some_and(|c| c % 16 == 0));
    let split = view.node.op == "Split";
    let n_data = if split { 1 } else { view.n_inputs() };
    (0..n_data).all(|i| view.ty(i).is_ok_and(whole) && view.constant(i).is_none())
        && (0..view.n_outputs()).all(|i| !view.wants(i) || view.out_ty(i).is_ok_and(whole))
}

/// The operands of a node that share its layout.
fn data_operands<'g>(graph: &'g Graph, node: &'g Node, mode: Mode) -> impl Iterator<Item = ValueId> + 'g {
    let conv = matches!(mode, Mode::Blocked | Mode::First);
    let out_rank = node.output(0).and_then(|v| graph.tensor_type(v).ok()).map_or(0, TensorType::rank);
    node.inputs.iter().enumerate().filter_map(move |(i, v)| {
        let v = (*v)?;
        let data = if conv { i == 0 || i == 3 } else { true };
        let ty = graph.tensor_type(v).ok()?;
        // Scalars and constants have no layout of their own.
        (data && graph.constant(v).is_none() && (ty.rank() == out_rank || mode == Mode::Plain)).then_some(v)
    })
}

fn bytes(graph: &Graph, v: ValueId) -> u64 {
    let ty = graph.tensor_type(v).ok();
    ty.and_then(|t| t.bytes().upper()).and_then(|b| u64::try_from(b).ok()).unwrap_or(0)
}

/// For every node, whether it works on blocked values (`First`: gives one).
fn labels(graph: &Graph, modes: &[Mode]) -> Vec<bool> {
    let mut net = Network::default();
    let nodes: Vec<usize> = modes
        .iter()
        .map(|m| match m {
            Mode::Plain => SOURCE,
            Mode::Blocked | Mode::First => SINK,
            Mode::Either => net.vertex(),
        })
        .collect();
    // Readers of each value: their vertex.
    let mut readers: HashMap<ValueId, Vec<usize>> = HashMap::new();
    for ((node, &mode), &vertex) in graph.nodes.iter().zip(modes).zip(&nodes) {
        for v in data_operands(graph, node, mode) {
            // A first layer reads plain data; its residual is blocked.
            let plain = mode == Mode::First && node.input(0) == Some(v);
            readers.entry(v).or_default().push(if plain { SOURCE } else { vertex });
        }
        for (outer, _) in node.bodies.values().flat_map(|b| &b.captures) {
            readers.entry(*outer).or_default().push(SOURCE);
        }
    }
    for (_, v) in &graph.outputs {
        readers.entry(*v).or_default().push(SOURCE);
    }
    let producers = graph.producers();
    let mut values: Vec<_> = readers.into_iter().collect();
    values.sort_by_key(|(v, _)| *v);
    for (v, mut readers) in values {
        readers.sort_unstable();
        readers.dedup();
        let producer = producers[v.0 as usize].map_or(SOURCE, |i| nodes[i]);
        let Ok(ty) = graph.tensor_type(v) else { continue };
        let blocked_possible = blockable(ty);
        if !blocked_possible {
            continue;
        }
        let free = ops::layout::is_free(&ty.shape);
        let cost = if free { 0 } else { 2 * bytes(graph, v) + CALL_BYTES };
        if cost == 0 {
            continue;
        }
        let to_blocked = net.vertex();
        net.edge(producer, to_blocked, cost);
        let to_plain = net.vertex();
        net.edge(to_plain, producer, cost);
        for r in readers {
            net.edge(to_blocked, r, INFINITE);
            net.edge(r, to_plain, INFINITE);
        }
    }
    let (_, source_side) = net.min_cut();
    nodes.iter().map(|&v| !source_side[v]).collect()
}

fn apply(graph: &mut Graph, modes: &[Mode], blocked: &[bool]) {
    for (i, &b) in blocked.iter().enumerate() {
        if !b {
            continue;
        }
        for v in graph.nodes[i].outputs.clone().into_iter().flatten() {
            if graph.tensor_type(v).is_ok_and(blockable) {
                graph.value_mut(v).layout = Layout::Blocked16;
            }
        }
    }
    let nodes = std::mem::take(&mut graph.nodes);
    let mut out: Vec<Node> = Vec::with_capacity(nodes.len());
    let mut converted: HashMap<(ValueId, Layout), ValueId> = HashMap::new();
    for (i, mut node) in nodes.into_iter().enumerate() {
        let out_rank = node.output(0).and_then(|v| graph.tensor_type(v).ok()).map_or(0, TensorType::rank);
        for slot in 0..node.inputs.len() {
            let Some(v) = node.inputs[slot] else { continue };
            if graph.constant(v).is_some() {
                continue;
            }
            let conv = matches!(modes[i], Mode::Blocked | Mode::First);
            let first_data = modes[i] == Mode::First && slot == 0;
            let layout_bound = if conv { slot == 0 || slot == 3 } else { true };
            let same_rank = graph.tensor_type(v).is_ok_and(|t| t.rank() == out_rank && blockable(t));
            let want =
                if blocked[i] && layout_bound && same_rank && !first_data { Layout::Blocked16 } else { Layout::Plain };
            node.inputs[slot] = Some(convert(graph, &mut out, &mut converted, v, want));
        }
        for b in node.bodies.values_mut() {
            for (outer, _) in &mut b.captures {
                *outer = convert(graph, &mut out, &mut converted, *outer, Layout::Plain);
            }
        }
        out.push(node);
    }
    for k in 0..graph.outputs.len() {
        let v = graph.outputs[k].1;
        graph.outputs[k].1 = convert(graph, &mut out, &mut converted, v, Layout::Plain);
    }
    graph.nodes = out;
}

fn convert(
    graph: &mut Graph,
    out: &mut Vec<Node>,
    converted: &mut HashMap<(ValueId, Layout), ValueId>,
    v: ValueId,
    want: Layout,
) -> ValueId {
    let value = graph.value(v);
    if value.layout == want || value.constant.is_some() {
        return v;
    }
    if let Some(&c) = converted.get(&(v, want)) {
        return c;
    }
    let (suffix, op) = if want == Layout::Blocked16 { ("blocked", "ToBlocked") } else { ("plain", "FromBlocked") };
    let name = format!("{} ({suffix})", value.name);
    let copy = Value { name: name.clone(), ty: value.ty.clone(), layout: want, ..Value::default() };
    let id = graph.add_value(copy);
    out.push(Node {
        name,
        domain: "kiln".into(),
        op: op.into(),
        version: 1,
        attrs: Default::default(),
        inputs: vec![Some(v)],
        outputs: vec![Some(id)],
        bodies: Default::default(),
    });
    converted.insert((v, want), id);
    id
}
