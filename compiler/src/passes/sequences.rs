//! Sequences whose elements are known one by one: what is taken out of them is what was put in, and no sequence is made.
//! SequenceMap becomes the loop that defines it.
//!
//! In: a node whose operands are typed. Out: other nodes, or for a node that makes a sequence the list of its elements.
//! <https://onnx.ai/onnx/operators/onnx__SequenceMap.html>

use super::rewrite::{beside, fresh};
use crate::ir::{Attr, Graph, Node, Tensor, TensorType, Type, Value, ValueId};
use std::sync::Arc;

/// A tensor is split into no more parts than this at compile time.
const MOST_PARTS: usize = 256;

/// The nodes that do a node's work without a sequence; `None` where there are none.
pub(super) fn folded(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    if !node.domain.is_empty() {
        return None;
    }
    match node.op.as_str() {
        "SequenceMap" => sequence_map(graph, node),
        "SequenceAt" => {
            let all = elements(graph, node.input(0)?)?;
            let at = position(graph, node.input(1), all.len(), 0)?;
            Some(vec![beside(node, ("", "Identity", 13), Vec::new(), vec![Some(*all.get(at)?)], node.outputs.clone())])
        }
        "SequenceLength" => {
            let n = i64::try_from(elements(graph, node.input(0)?)?.len()).ok()?;
            let value = graph.value_mut(node.output(0)?);
            value.ty = Some(TensorType::new(kiln_kernels::Dtype::I64, Vec::new()).into());
            value.constant = Some(Arc::new(Tensor::from_i64s(&[], &[n])));
            Some(Vec::new())
        }
        "SplitToSequence" => split(graph, node),
        "ConcatFromSequence" => concat(graph, node),
        _ => None,
    }
}

/// Keeps the elements of the sequence that a node makes, where they are known.
pub(super) fn note_elements(graph: &mut Graph, node: &Node) {
    let Some(y) = node.output(0).filter(|_| node.domain.is_empty()) else { return };
    graph.value_mut(y).elements = made(graph, node);
}

fn made(graph: &Graph, node: &Node) -> Option<Vec<ValueId>> {
    match node.op.as_str() {
        "SequenceEmpty" => Some(Vec::new()),
        "SequenceConstruct" => node.inputs.iter().copied().collect(),
        "Identity" => elements(graph, node.input(0)?),
        "SequenceInsert" => {
            let mut all = elements(graph, node.input(0)?)?;
            let at = match node.input(2).map(|v| graph.constant(v).and_then(|t| t.to_ints())) {
                None => all.len(),
                Some(at) if *at.as_ref()?.first()? == i64::try_from(all.len()).ok()? => all.len(),
                Some(_) => position(graph, node.input(2), all.len(), 0)?,
            };
            all.insert(at, node.input(1)?);
            Some(all)
        }
        "SequenceErase" => {
            let mut all = elements(graph, node.input(0)?)?;
            let last = all.len().checked_sub(1)?;
            all.remove(position(graph, node.input(1), all.len(), last)?);
            Some(all)
        }
        _ => None,
    }
}

fn elements(graph: &Graph, v: ValueId) -> Option<Vec<ValueId>> {
    graph.value(v).elements.clone()
}

/// A constant position among `n` places, or the default where none is given; `None` also where there is no such place (the
/// run reports it).
fn position(graph: &Graph, at: Option<ValueId>, n: usize, default: usize) -> Option<usize> {
    let Some(at) = at else { return (default < n).then_some(default) };
    let at = *graph.constant(at)?.to_ints()?.first()?;
    let at = if at < 0 { at.checked_add(i64::try_from(n).ok()?)? } else { at };
    usize::try_from(at).ok().filter(|at| *at < n)
}

fn int(node: &Node, name: &str, default: i64) -> Option<i64> {
    match node.attrs.get(name) {
        None => Some(default),
        Some(Attr::Int(n)) => Some(*n),
        Some(_) => None,
    }
}

/// Split, and a sequence of the parts.
fn split(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    let ty = graph.tensor_type(node.input(0)?).ok()?.clone();
    let axis = crate::ops::view::resolve_axis(int(node, "axis", 0)?, ty.rank()).ok()?;
    let extent = ty.shape[axis].as_const()?;
    let lengths: Vec<i64> = match node.input(1) {
        None => vec![1; usize::try_from(extent).ok().filter(|n| *n <= MOST_PARTS)?],
        Some(v) => {
            let t = graph.constant(v)?;
            let ints = t.to_ints()?;
            if t.dims().is_empty() {
                let each = *ints.first().filter(|n| **n > 0)?;
                let n = usize::try_from((extent + each - 1) / each).ok().filter(|n| *n <= MOST_PARTS)?;
                (0..n as i64).map(|i| each.min(extent - i * each)).collect()
            } else {
                ints
            }
        }
    };
    let fits = lengths.iter().all(|n| *n >= 0) && lengths.iter().sum::<i64>() == extent;
    if !fits || lengths.is_empty() || lengths.len() > MOST_PARTS {
        return None;
    }
    let n = lengths.len();
    let sizes = graph.add_constant("split", Tensor::from_i64s(&[n], &lengths));
    let mut parts: Vec<_> = (0..n).map(|_| Some(fresh(graph, node, "part"))).collect();
    let along = vec![("axis", Attr::Int(axis as i64))];
    let mut out = vec![beside(node, ("", "Split", 13), along, vec![node.input(0), Some(sizes)], parts.clone())];
    if node.input(1).is_none() && int(node, "keepdims", 1)? == 0 {
        let axes = graph.add_constant("axis", Tensor::from_i64s(&[1], &[axis as i64]));
        for part in &mut parts {
            let slice = Some(fresh(graph, node, "slice"));
            out.push(beside(node, ("", "Squeeze", 13), Vec::new(), vec![*part, Some(axes)], vec![slice]));
            *part = slice;
        }
    }
    out.push(beside(node, ("", "SequenceConstruct", 11), Vec::new(), parts, node.outputs.clone()));
    Some(out)
}

/// Concat of the elements, with a new axis where one is asked for.
fn concat(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    let all = elements(graph, node.input(0)?)?;
    let rank = graph.tensor_type(*all.first()?).ok()?.rank();
    let new_axis = int(node, "new_axis", 0)? != 0;
    let axis = int(node, "axis", i64::MAX)?;
    let axis = crate::ops::view::resolve_axis(axis, rank + usize::from(new_axis)).ok()?;
    let mut out = Vec::new();
    let mut parts: Vec<_> = all.into_iter().map(Some).collect();
    if new_axis {
        let axes = graph.add_constant("axis", Tensor::from_i64s(&[1], &[axis as i64]));
        for part in &mut parts {
            let slice = Some(fresh(graph, node, "slice"));
            out.push(beside(node, ("", "Unsqueeze", 13), Vec::new(), vec![*part, Some(axes)], vec![slice]));
            *part = slice;
        }
    }
    let along = vec![("axis", Attr::Int(axis as i64))];
    out.push(beside(node, ("", "Concat", 13), along, parts, node.outputs.clone()));
    Some(out)
}

/// A loop over the first sequence whose body takes the elements out, does the map's work and puts the results into
/// sequences.
fn sequence_map(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    let map = node.bodies.get("body")?;
    if map.inputs.len() != node.inputs.len() || map.outputs.len() < node.outputs.len() {
        return None;
    }
    let mut body = (**map).clone();
    let named = |name: &str| Value { name: format!("{} {name}", node.name), ..Value::default() };
    let (iteration, condition) = (body.add_value(named("iteration")), body.add_value(named("condition")));
    let mut nodes = Vec::new();
    for (&outer, inner) in node.inputs.iter().zip(std::mem::take(&mut body.inputs)) {
        let outer = outer?;
        let ty = graph.value(outer).ty.clone()?;
        let captured = body.add_value(Value { ty: Some(ty.clone()), ..named("operand") });
        body.captures.push((outer, captured));
        nodes.push(match ty {
            Type::Sequence(_) => {
                let inputs = vec![Some(captured), Some(iteration)];
                beside(node, ("", "SequenceAt", 11), Vec::new(), inputs, vec![Some(inner)])
            }
            _ => beside(node, ("", "Identity", 13), Vec::new(), vec![Some(captured)], vec![Some(inner)]),
        });
    }
    nodes.append(&mut body.nodes);
    body.inputs = vec![iteration, condition];
    let results: Vec<ValueId> = std::mem::take(&mut body.outputs).into_iter().map(|(_, v)| v).collect();
    body.outputs = vec![("condition".to_owned(), condition)];
    let length = fresh(graph, node, "length");
    let first = node.input(0)?;
    let mut out = vec![beside(node, ("", "SequenceLength", 11), Vec::new(), vec![Some(first)], vec![Some(length)])];
    let mut operands = vec![Some(length), None];
    for (&result, _) in results.iter().zip(&node.outputs) {
        let (before, after) = (body.add_value(named("so far")), body.add_value(named("and one more")));
        body.inputs.push(before);
        let inputs = vec![Some(before), Some(result)];
        nodes.push(beside(node, ("", "SequenceInsert", 11), Vec::new(), inputs, vec![Some(after)]));
        body.outputs.push(("sequence".to_owned(), after));
        let empty = fresh(graph, node, "empty");
        out.push(beside(node, ("", "SequenceEmpty", 11), Vec::new(), Vec::new(), vec![Some(empty)]));
        operands.push(Some(empty));
    }
    body.nodes = nodes;
    let mut repeat = beside(node, ("", "Loop", 16), Vec::new(), operands, node.outputs.clone());
    repeat.bodies.insert("body".into(), Box::new(body));
    out.push(repeat);
    Some(out)
}
