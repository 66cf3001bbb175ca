//! States that are kept in place: a cache to which a run adds rows, or in which it writes some.
//!
//! In: the graph and the pairs (output, input). Out: pairs marked where input and output can be one piece of memory: the
//! output is the input with rows behind its own (`Concat`, `Attention`, `MultiHeadAttention`, `GroupQueryAttention`) or with
//! some elements replaced (`TensorScatter`, `ScatterElements`, `ScatterND`), and nobody else reads the input. A cache whose
//! rows are not outermost gets [`Layout::Reserved`]: each of its lines begins where it begins with all rows there is room
//! for. Readers that do not know this layout read a copy (`kiln.Compact`).

use super::rewrite::beside;
use crate::error::CompileError;
use crate::ir::{Attr, Dim, Graph, Layout, Node, Value, ValueId};
use crate::lower::state::StatePair;
use crate::ops::view::NodeView;
use kiln_kernels::Dtype;

/// Marks the states that can be kept in place, and changes the graph so that they are.
pub fn keep_in_place(graph: &mut Graph, pairs: &mut [StatePair]) -> Result<(), CompileError> {
    for k in 0..pairs.len() {
        let pair = pairs[k];
        let (from, to) = (graph.outputs[pair.output_idx].1, graph.inputs[pair.input_idx]);
        let Some((node_idx, kind)) = candidate(graph, from, to) else { continue };
        pairs[k].held = match kind {
            Kind::Replaced => Some(Layout::Plain),
            Kind::Grown(axis) => {
                let Some(layout) = grown(graph, from, axis) else { continue };
                append(graph, node_idx, from, axis)?;
                if layout != Layout::Plain {
                    graph.value_mut(from).layout = layout;
                    graph.value_mut(to).layout = layout;
                    compact(graph, from);
                }
                Some(layout)
            }
        };
    }
    Ok(())
}

/// How an output comes from the input it is bound to.
#[derive(Clone, Copy)]
enum Kind {
    /// Rows are added along this axis.
    Grown(usize),
    /// Elements are replaced.
    Replaced,
}

/// The node that makes the output from the input, if it can do so in place.
fn candidate(graph: &Graph, from: ValueId, to: ValueId) -> Option<(usize, Kind)> {
    let plain = |v: ValueId| graph.value(v).layout == Layout::Plain && graph.tensor_type(v).is_ok();
    let once = graph.outputs.iter().filter(|(_, v)| *v == from).count() == 1;
    if !once || n_reads(graph, to) != 1 || !plain(from) || !plain(to) {
        return None;
    }
    let node_idx = graph.nodes.iter().position(|n| n.outputs.contains(&Some(from)))?;
    let node = &graph.nodes[node_idx];
    let view = NodeView { graph, node };
    let reads = |i: usize| node.input(i) == Some(to);
    let makes = |i: usize| node.output(i) == Some(from);
    let same = graph.tensor_type(from).ok() == graph.tensor_type(to).ok();
    let all_f32 = |n: usize| (0..n).all(|i| !view.has(i) || view.dtype(i).is_ok_and(|d| d == Dtype::F32));
    let cache = |past: usize| (0..2).any(|i| reads(past + i) && makes(1 + i));
    let kind = match (node.domain.as_str(), node.op.as_str()) {
        ("", "Concat") if reads(0) && node.inputs.len() > 1 => {
            Kind::Grown(view.axis("axis", 1, view.rank(0).ok()?).ok()?)
        }
        ("", "TensorScatter") if reads(0) && same => Kind::Replaced,
        ("", "Scatter" | "ScatterElements" | "ScatterND")
            if reads(0) && same && view.text("reduction", "none").is_ok_and(|r| r == "none") =>
        {
            Kind::Replaced
        }
        // Other types are computed in f32, on a copy.
        ("", "Attention") if cache(4) && all_f32(3) => Kind::Grown(2),
        ("com.microsoft", "MultiHeadAttention") if cache(6) && all_f32(3) => Kind::Grown(2),
        ("com.microsoft", "GroupQueryAttention") if cache(3) && all_f32(5) => {
            if same {
                Kind::Replaced
            } else {
                Kind::Grown(2)
            }
        }
        _ => return None,
    };
    Some((node_idx, kind))
}

/// How often a value's elements are read: not where only its extents are.
fn n_reads(graph: &Graph, v: ValueId) -> usize {
    let of_node = |n: &Node| {
        let operands =
            if n.is("Shape") || n.is("Size") { 0 } else { n.inputs.iter().flatten().filter(|x| **x == v).count() };
        operands + n.bodies.values().flat_map(|b| &b.captures).filter(|(outer, _)| *outer == v).count()
    };
    graph.nodes.iter().map(of_node).sum::<usize>() + graph.outputs.iter().filter(|(_, x)| *x == v).count()
}

/// The layout of a value with room for all rows it can have along an axis.
fn grown(graph: &Graph, v: ValueId, axis: usize) -> Option<Layout> {
    let shape = &graph.tensor_type(v).ok()?.shape;
    if shape.iter().any(|d| d.upper().is_none()) {
        return None;
    }
    if shape.get(..axis)?.iter().all(|d| d.is(1)) {
        return Some(Layout::Plain);
    }
    Some(Layout::Reserved { axis: u8::try_from(axis).ok()?, rows: u32::try_from(shape[axis].upper()?).ok()? })
}

/// Turns a `Concat` into `kiln.Append`, what is appended joined before; other nodes append by themselves.
fn append(graph: &mut Graph, node_idx: usize, y: ValueId, axis: usize) -> Result<(), CompileError> {
    let node = graph.nodes[node_idx].clone();
    if !node.is("Concat") {
        return Ok(());
    }
    let axis_attr = || vec![("axis", Attr::Int(axis as i64))];
    let mut new = node.input(1);
    if node.inputs.len() > 2 {
        let rest = node.inputs[1..].to_vec();
        let rows: Dim = {
            let of = |v: &Option<ValueId>| v.and_then(|v| Some(graph.tensor_type(v).ok()?.shape[axis].clone()));
            rest.iter().filter_map(of).fold(Dim::Const(0), |sum, d| sum + d)
        };
        let mut ty = graph.tensor_type(y)?.clone();
        ty.shape[axis] = rows;
        let joined = graph.add_typed(format!("{} new rows", node.name), ty, Layout::Plain);
        let concat = Node { inputs: rest, outputs: vec![Some(joined)], ..node.clone() };
        graph.nodes.insert(node_idx, concat);
        new = Some(joined);
    }
    let at = node_idx + usize::from(node.inputs.len() > 2);
    let inputs = vec![node.input(0), new];
    graph.nodes[at] = beside(&node, ("kiln", "Append", 1), axis_attr(), inputs, node.outputs.clone());
    Ok(())
}

/// Whether a node reads this operand where its layout says, whatever that is.
fn knows_layout(graph: &Graph, node: &Node, operand: usize) -> bool {
    let view = NodeView { graph, node };
    let product = (node.is("MatMul") || node.is_kiln("MatMul")) && operand < 2;
    let attention = node.is_kiln("Attention") && (1..3).contains(&operand);
    attention || product && view.dtype(operand).is_ok_and(|d| d == Dtype::F32)
}

/// Gives readers that do not know the layout a copy without room between the rows.
fn compact(graph: &mut Graph, v: ValueId) {
    let Some(maker) = graph.producers()[v.0 as usize] else { return };
    let mut needed = Vec::new();
    let mut captured = false;
    for (n, node) in graph.nodes.iter().enumerate() {
        let reads = node.inputs.iter().enumerate().filter(|(_, x)| **x == Some(v));
        needed.extend(reads.filter(|(i, _)| !knows_layout(graph, node, *i)).map(|(i, _)| (n, i)));
        captured |= node.bodies.values().flat_map(|b| &b.captures).any(|(outer, _)| *outer == v);
    }
    if needed.is_empty() && !captured {
        return;
    }
    let value = graph.value(v);
    let copy = Value { name: format!("{} without room", value.name), layout: Layout::Plain, ..value.clone() };
    let copy = graph.add_value(copy);
    for (n, i) in needed {
        graph.nodes[n].inputs[i] = Some(copy);
    }
    for (outer, _) in graph.nodes.iter_mut().flat_map(|n| n.bodies.values_mut()).flat_map(|b| &mut b.captures) {
        if *outer == v {
            *outer = copy;
        }
    }
    let node = &graph.nodes[maker];
    let node = beside(node, ("kiln", "Compact", 1), Vec::new(), vec![Some(v)], vec![Some(copy)]);
    graph.nodes.insert(maker + 1, node);
}
