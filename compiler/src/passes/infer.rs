//! Types of all values, and constant folding, in one walk in topological order.
//!
//! In: a graph whose inputs and constants are typed. Out: every value typed; nodes with constant operands and results of
//! reasonable size evaluated by their own kernels and gone. Every error is collected; nodes behind a failed one are passed over.

use super::{bodies, sequences, strings};
use crate::error::{CompileError, CompileErrors, Stage};
use crate::exec;
use crate::ir::{Attr, Dim, Graph, Node, Tensor, TensorType, Type, ValueId};
use crate::lower::{self, Lowered};
use crate::ops::{self, InferCx, OpDef, read_ints::element_name, view::NodeView};
use kiln_kernels::{Dtype, isa::Isa};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

/// A folded constant may be this large in any case …
const FOLD_BYTES: usize = 1 << 16;
/// … or this many times its operands' size …
const FOLD_GROWTH: usize = 4;
/// … up to this size.
const FOLD_MAX_BYTES: usize = 1 << 28;

/// Infers types and folds constants.
pub fn infer(graph: &mut Graph) -> Result<(), CompileErrors> {
    let mut next_slot = graph.nodes.iter().map(ops::read_ints::slots_end).max().unwrap_or(0);
    let result = infer_in(graph, &mut next_slot);
    graph.n_slots = next_slot;
    result
}

/// The same for a graph or a body; `next_slot` numbers the extents found at run time.
pub(super) fn infer_in(graph: &mut Graph, next_slot: &mut usize) -> Result<(), CompileErrors> {
    super::expand::expand(graph);
    super::flex::expand(graph);
    let mut errors = CompileErrors::default();
    let nodes = std::mem::take(&mut graph.nodes);
    let mut kept = Vec::with_capacity(nodes.len());
    let mut ahead: VecDeque<Node> = nodes.into();
    let mut equal = Equal::default();
    while let Some(mut node) = ahead.pop_front() {
        equal.follow(&mut node);
        if let Some(branch) = bodies::taken(graph, &node) {
            branch.into_iter().rev().for_each(|n| ahead.push_front(n));
            continue;
        }
        if let Some(others) = sequences::folded(graph, &node).or_else(|| strings::replaced(graph, &node)) {
            others.into_iter().rev().for_each(|n| ahead.push_front(n));
            continue;
        }
        let named = |e: CompileError| e.at_node(&node.name, &node.full_op());
        let op = match ops::find(&node) {
            Ok(op) => op,
            Err(e) => {
                errors.push(named(e));
                kept.push(node);
                continue;
            }
        };
        let untyped = node.inputs.iter().flatten().any(|v| graph.value(*v).ty.is_none());
        if untyped {
            // Behind a failed node: its error is enough.
            kept.push(node);
            continue;
        }
        if let Some(reader) = reader_of(graph, &mut node, next_slot) {
            ahead.push_front(node);
            ahead.push_front(reader);
            continue;
        }
        // Before types are made, so that equal nodes do not get extents of their own.
        if equal.is_known(&node, op) {
            continue;
        }
        if !node.bodies.is_empty()
            && let Err(e) = bodies::infer(graph, &mut node, next_slot)
        {
            let hint = deciding_input(graph, &kept, &node);
            for mut e in e.0 {
                if let Some(hint) = &hint {
                    let _ = write!(e.message, " ({hint})");
                }
                errors.push(e.at_node(&node.name, &node.full_op()));
            }
            kept.push(node);
            continue;
        }
        let named = |e: CompileError| e.at_node(&node.name, &node.full_op());
        match infer_node(graph, &node, op, next_slot) {
            // Weights keep their codes until the quantised patterns were looked for.
            Ok(()) if node.is("DequantizeLinear") => kept.push(node),
            Ok(()) if is_object(graph, &node) => {
                sequences::note_elements(graph, &node);
                kept.push(node);
            }
            Ok(()) => match fold_node(graph, &node, op) {
                Ok(true) => {}
                Ok(false) => kept.push(node),
                Err(e) => {
                    errors.push(named(e));
                    kept.push(node);
                }
            },
            Err(e) => {
                errors.push(named(e));
                kept.push(node);
            }
        }
    }
    graph.nodes = kept;
    graph.substitute(&equal.same);
    errors.or_ok(())
}

/// What to give so that only one branch of an If is left, where its condition comes from one input of few integers.
fn deciding_input(graph: &Graph, before: &[Node], node: &Node) -> Option<String> {
    // A condition over more values than this is no plain comparison.
    const MOST_VALUES: usize = 100;
    if !node.is("If") {
        return None;
    }
    let (mut ahead, mut seen, mut found) = (vec![node.input(0)?], HashSet::new(), Vec::new());
    while let Some(v) = ahead.pop() {
        if !seen.insert(v) {
            continue;
        }
        if seen.len() > MOST_VALUES {
            return None;
        }
        if graph.inputs.contains(&v) {
            found.push(v);
        } else if let Some(n) = before.iter().find(|n| n.outputs.contains(&Some(v))) {
            ahead.extend(n.inputs.iter().flatten());
        }
    }
    let [v] = found[..] else { return None };
    let t = graph.tensor_type(v).ok()?;
    let n = t.numel().as_const().filter(|n| t.rank() <= 1 && (1..=64).contains(n))?;
    if !matches!(t.dtype, Dtype::I64 | Dtype::I32) {
        return None;
    }
    let input = &graph.value(v).name;
    let element = element_name(input, 0);
    let each = if n == 1 { String::new() } else { format!(" for each of its {n} elements") };
    Some(format!(
        "in a branch that the input {input:?} decides on: where its value is known, give it{each}, which leaves only the branch \
         taken, as in --dim '{}=N', in source dims({element:?} = N)",
        element.replace('\'', "'\\''")
    ))
}

/// Where an operand's values have bounds of their own and are known only at run time: the node that reads them, and what it
/// makes in the operand's place.
fn reader_of(graph: &mut Graph, node: &mut Node, next_slot: &mut usize) -> Option<Node> {
    let (i, bounds) = ops::read_ints::own_bounds(&NodeView { graph, node })?;
    let x = node.input(i)?;
    let value = graph.value(x).clone();
    let name = format!("{} read", value.name);
    let read = graph.add_value(value);
    let reader = ops::read_ints::node(&name, [x, read], &bounds, *next_slot);
    *next_slot += bounds.len();
    node.inputs[i] = Some(read);
    Some(reader)
}

/// Nodes seen so far, and the values that are others.
#[derive(Default)]
struct Equal {
    seen: HashMap<String, Vec<Option<ValueId>>>,
    same: BTreeMap<ValueId, ValueId>,
}

impl Equal {
    /// Names operands and captured values by the values they are.
    fn follow(&self, node: &mut Node) {
        let captured = node.bodies.values_mut().flat_map(|b| &mut b.captures).map(|(outer, _)| outer);
        for v in node.inputs.iter_mut().flatten().chain(captured) {
            if let Some(first) = self.same.get(v) {
                *v = *first;
            }
        }
    }

    /// Whether an earlier node computes the same: its results stand for this one's from here on.
    fn is_known(&mut self, node: &Node, op: &OpDef) -> bool {
        let large = node.attrs.values().any(|a| matches!(a, Attr::Tensor(_) | Attr::Tensors(_)));
        if !op.pure || !node.bodies.is_empty() || large {
            return false;
        }
        match self.seen.entry(super::dead::key(node)) {
            Entry::Vacant(free) => {
                free.insert(node.outputs.clone());
                false
            }
            Entry::Occupied(first) => {
                let pairs = node.outputs.iter().zip(first.get());
                self.same.extend(pairs.filter_map(|(mine, theirs)| mine.zip(*theirs)));
                true
            }
        }
    }
}

/// Folds what has constant operands in an inferred graph.
pub(super) fn fold(graph: &mut Graph) -> Result<(), CompileErrors> {
    let mut errors = CompileErrors::default();
    let nodes = std::mem::take(&mut graph.nodes);
    let mut kept = Vec::with_capacity(nodes.len());
    for node in nodes {
        match ops::find(&node).and_then(|op| fold_node(graph, &node, op)) {
            Ok(true) => {}
            Ok(false) => kept.push(node),
            Err(e) => {
                errors.push(e.at_node(&node.name, &node.full_op()));
                kept.push(node);
            }
        }
    }
    graph.nodes = kept;
    errors.or_ok(())
}

/// Whether a node reads or makes strings, sequences or optional values: it runs in the module.
fn is_object(graph: &Graph, node: &Node) -> bool {
    let constant = |v: &ValueId| graph.constant(*v).is_some_and(|t| t.dtype() != kiln_kernels::Dtype::Str);
    let all = node.inputs.iter().chain(&node.outputs).flatten();
    let known = node.outputs.iter().flatten().all(constant) && node.outputs.iter().any(Option::is_some);
    !known && all.into_iter().any(|v| graph.value(*v).ty.as_ref().is_some_and(Type::is_object))
}

fn infer_node(graph: &mut Graph, node: &Node, op: &OpDef, next_slot: &mut usize) -> Result<(), CompileError> {
    let view = NodeView { graph, node };
    let mut cx = InferCx::new(view, next_slot);
    (op.infer)(&mut cx)?;
    cx.check_types()?;
    let types = std::mem::take(&mut cx.types);
    let constants = std::mem::take(&mut cx.constants);
    let dims = op.dims.and_then(|f| f(&view));
    for (i, ((id, ty), constant)) in node.outputs.iter().zip(types).zip(constants).enumerate() {
        let Some(id) = id else { continue };
        let Some(ty) = ty else {
            let name = &graph.value(*id).name;
            return Err(CompileError::new(Stage::Infer, format!("the operator has no result \"{name}\"")).at_output(i));
        };
        let value = graph.value_mut(*id);
        check_declared(value.ty.as_ref(), &ty).map_err(|e| e.at_output(i))?;
        value.ty = Some(ty);
        value.constant = constant;
    }
    if let (Some(dims), Some(id)) = (dims, node.output(0)) {
        set_dims(graph, id, dims);
    }
    Ok(())
}

/// A declared element type that contradicts the inferred one is an error; declared extents are only hints.
fn check_declared(declared: Option<&Type>, inferred: &Type) -> Result<(), CompileError> {
    match (declared, inferred) {
        (Some(Type::Tensor(d)), Type::Tensor(i)) if d.dtype != i.dtype => {
            Err(CompileError::new(Stage::Infer, format!("declared {}, inferred {i}", d.dtype)))
        }
        _ => Ok(()),
    }
}

/// Keeps a value's elements as expressions; where all are constant it becomes a constant.
fn set_dims(graph: &mut Graph, id: ValueId, dims: Vec<Dim>) {
    let Ok(ty) = graph.tensor_type(id) else { return };
    let (dtype, shape) = (ty.dtype, ty.const_dims());
    let Some(shape) = shape else { return };
    if shape.iter().product::<usize>() != dims.len() {
        return;
    }
    let ints: Option<Vec<i64>> = dims.iter().map(Dim::as_const).collect();
    let tensor = match (ints, dtype) {
        (Some(v), kiln_kernels::Dtype::I64) => Some(Tensor::from_i64s(&shape, &v)),
        (Some(v), kiln_kernels::Dtype::I32) => {
            v.iter().map(|&x| i32::try_from(x).ok()).collect::<Option<Vec<_>>>().map(|v| Tensor::from_i32s(&shape, &v))
        }
        _ => None,
    };
    let value = graph.value_mut(id);
    value.constant = tensor.map(Arc::new);
    value.dims = Some(dims);
}

/// Evaluates a node whose operands are constant. True when its results are constants now.
fn fold_node(graph: &mut Graph, node: &Node, op: &OpDef) -> Result<bool, CompileError> {
    // Checks stay, whatever is known of what they check.
    if node.is_kiln("Expect") || node.is_kiln("ReadInts") {
        return Ok(false);
    }
    let done = node.outputs.iter().flatten().all(|v| graph.constant(*v).is_some());
    if done && node.outputs.iter().any(Option::is_some) {
        return Ok(true);
    }
    let constant = node.inputs.iter().flatten().all(|v| graph.constant(*v).is_some());
    if is_object(graph, node) {
        return Ok(false);
    }
    if !constant || !op.pure || !node.bodies.is_empty() {
        return Ok(false);
    }
    let operand_bytes: usize =
        node.inputs.iter().flatten().filter_map(|v| graph.constant(*v)).map(|t| t.data().len()).sum();
    let mut result_bytes = 0usize;
    for v in node.outputs.iter().flatten() {
        let Ok(ty) = graph.tensor_type(*v) else { return Ok(false) };
        let Some(bytes) = ty.bytes().upper().and_then(|b| usize::try_from(b).ok()) else { return Ok(false) };
        result_bytes = result_bytes.saturating_add(bytes);
    }
    let limit = FOLD_BYTES.max(operand_bytes.saturating_mul(FOLD_GROWTH)).min(FOLD_MAX_BYTES);
    if result_bytes > limit {
        return Ok(false);
    }
    let results = evaluate(graph, node)?;
    let wanted: Vec<ValueId> = node.outputs.iter().flatten().copied().collect();
    for (v, t) in wanted.into_iter().zip(results) {
        // Extents that kernels find are known now.
        let ty = TensorType::fixed(t.dtype(), t.dims());
        let value = graph.value_mut(v);
        value.ty = Some(ty.into());
        value.constant = Some(Arc::new(t));
    }
    Ok(true)
}

/// A node's results for constant operands, by the scalar kernels, whose results do not depend on the processor.
pub(crate) fn evaluate(graph: &Graph, node: &Node) -> Result<Vec<Tensor>, CompileError> {
    let mut alone = Graph::default();
    let mut node = node.clone();
    for v in node.inputs.iter_mut().chain(&mut node.outputs).flatten() {
        *v = alone.add_value(graph.value(*v).clone());
    }
    alone.outputs = node.outputs.iter().flatten().map(|v| (String::new(), *v)).collect();
    alone.nodes.push(node);
    let first =
        |mut e: CompileErrors| if e.0.is_empty() { CompileError::new(Stage::Fold, "failed") } else { e.0.remove(0) };
    let lowered: Lowered = lower::lower(&alone).map_err(first)?;
    exec::run_unplanned(&alone, &lowered, &[], Isa::Scalar)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Build;
    use super::*;

    #[test]
    fn an_error_in_a_branch_names_the_input_that_decides_on_it() {
        let mut b = Build::default();
        let (x, rate) = (b.input(Dtype::F32, &[2, 3]), b.input(Dtype::I64, &[]));
        let known = b.0.add_constant("known", Tensor::from_i64s(&[], &[16000]));
        let condition = b.node("Equal", &[rate, known], &[]);
        let y = b.node("If", &[condition], &[]);
        let branch = |op: &str, operands: usize| {
            let mut body = Build::default();
            let inner = body.0.add_value(b.0.value(x).clone());
            let result = body.node(op, &vec![inner; operands], &[]);
            body.0.captures.push((x, inner));
            body.0.outputs.push(("y".into(), result));
            Box::new(body.0)
        };
        let (works, fails) = (branch("Identity", 1), branch("MatMul", 2));
        let node = b.0.nodes.last_mut().unwrap();
        node.bodies.extend([("then_branch".to_owned(), works), ("else_branch".to_owned(), fails)]);
        b.0.outputs.push(("y".into(), y));
        let e = infer(&mut b.0).unwrap_err();
        assert_eq!(e.0.len(), 1);
        assert!(
            e.0[0].message.contains("the input \"x1\" decides on") && e.0[0].message.contains("x1[0]=N"),
            "{}",
            e.0[0]
        );
    }
}
