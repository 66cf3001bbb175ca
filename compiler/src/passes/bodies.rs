//! Types inside the bodies of control flow.
//!
//! In: a node whose operands are typed. Out: its bodies inferred, with the types of their inputs that hold in every
//! iteration: where a carried state changes an extent, that extent is a symbol of its own with a bound derived from the trip
//! count. An If whose condition is constant is replaced by the nodes of its branch.

use super::infer::infer_in;
use crate::error::{CompileError, CompileErrors, Stage};
use crate::ir::{Dim, Elements, Graph, Node, Symbol, SymbolSource, TensorType, Type, Value, ValueId, bounded_extent};
use crate::ops::control::{input_cut, scan_counts, trips};
use crate::ops::view::NodeView;
use kiln_kernels::Dtype;
use std::collections::HashMap;

/// Attempts to find types of the states that hold in every iteration.
const ATTEMPTS: usize = 8;

fn wrong(message: impl Into<String>) -> CompileErrors {
    CompileError::new(Stage::Infer, message).into()
}

/// Gives the captured values what is known of them outside.
fn refresh(graph: &Graph, body: &mut Graph) {
    for (outer, inner) in body.captures.clone() {
        let known = graph.value(outer).clone();
        let value = body.value_mut(inner);
        value.ty = known.ty;
        value.constant = known.constant;
        value.dims = known.dims;
    }
}

fn infer_body(graph: &Graph, body: &mut Graph, next_slot: &mut usize) -> Result<(), CompileErrors> {
    refresh(graph, body);
    infer_in(body, next_slot)
}

/// Infers the bodies of a node.
pub(super) fn infer(graph: &Graph, node: &mut Node, next_slot: &mut usize) -> Result<(), CompileErrors> {
    match node.op.as_str() {
        "Loop" if node.domain.is_empty() => infer_loop(graph, node, next_slot),
        "Scan" if node.domain.is_empty() => infer_scan(graph, node, next_slot),
        _ => node.bodies.values_mut().try_for_each(|body| infer_body(graph, body, next_slot)),
    }
}

fn symbol(name: &str, min: i64, max: Option<i64>, next_slot: &mut usize) -> Dim {
    let slot = *next_slot;
    *next_slot += 1;
    Dim::symbol(Symbol { name: format!("{name}{slot}"), min, max, source: SymbolSource::Data { slot } })
}

fn infer_loop(graph: &Graph, node: &mut Node, next_slot: &mut usize) -> Result<(), CompileErrors> {
    let Some(body) = node.bodies.get("body") else { return Err(wrong("the body is missing")) };
    if body.inputs.len() < 2 {
        return Err(wrong(format!("the body takes {} values, expected at least 2", body.inputs.len())));
    }
    let most = trips(&NodeView { graph, node }).and_then(|t| t.upper());
    let mut states = Vec::new();
    for i in 2..body.inputs.len() {
        let v = node.input(i).ok_or_else(|| wrong(format!("input {i}: a state is missing")))?;
        let ty = graph.value(v).ty.clone();
        states.push(ty.ok_or_else(|| wrong(format!("input {i}: the type of a state is not known")))?);
    }
    let iteration = symbol("iteration", 0, most.map(|m| (m - 1).max(0)), next_slot);
    let start = |body: &mut Graph, states: &[Type]| {
        let counter = body.inputs[0];
        let shape = small_shape(body.value(counter));
        let value = body.value_mut(counter);
        value.ty = Some(TensorType::new(Dtype::I64, shape).into());
        value.dims = Some(vec![iteration.clone()]);
        let shape = small_shape(body.value(body.inputs[1]));
        let cond = body.inputs[1];
        body.value_mut(cond).ty = Some(TensorType::new(Dtype::Bool, shape).into());
        for (i, ty) in states.iter().enumerate() {
            let v = body.inputs[2 + i];
            body.value_mut(v).ty = Some(ty.clone());
        }
    };
    let done = settle(graph, body, states, 1, most, next_slot, &start)?;
    node.bodies.insert("body".into(), Box::new(done));
    Ok(())
}

/// A shape of one element: what the body declares, or a scalar.
fn small_shape(value: &Value) -> Vec<Dim> {
    match &value.ty {
        Some(Type::Tensor(t)) if t.numel().is(1) => t.shape.clone(),
        _ => Vec::new(),
    }
}

fn infer_scan(graph: &Graph, node: &mut Node, next_slot: &mut usize) -> Result<(), CompileErrors> {
    let Some(body) = node.bodies.get("body") else { return Err(wrong("the body is missing")) };
    let view = NodeView { graph, node };
    let [n_states, n_cut, _] = scan_counts(&view, body)?;
    let mut states = Vec::new();
    for i in 0..n_states {
        states.push(Type::from(view.ty(i)?.clone()));
    }
    let mut slices = Vec::new();
    for i in 0..n_cut {
        let mut ty = view.ty(n_states + i)?.clone();
        ty.shape.remove(input_cut(&view, n_states, i)?.axis);
        slices.push(Type::from(ty));
    }
    let start = |body: &mut Graph, states: &[Type]| {
        for (i, ty) in states.iter().chain(&slices).enumerate() {
            let v = body.inputs[i];
            body.value_mut(v).ty = Some(ty.clone());
        }
    };
    let done = settle(graph, body, states, 0, None, next_slot, &start)?;
    node.bodies.insert("body".into(), Box::new(done));
    Ok(())
}

/// A symbol for an extent of a state that changes.
struct Widened {
    state: usize,
    axis: usize,
    symbol: Dim,
    bounded: bool,
}

/// Infers the body with wider and wider types of its states until they hold from iteration to iteration.
fn settle(
    graph: &Graph,
    body: &Graph,
    first: Vec<Type>,
    first_result: usize,
    most: Option<i64>,
    next_slot: &mut usize,
    start: &dyn Fn(&mut Graph, &[Type]),
) -> Result<Graph, CompileErrors> {
    let mut states = first.clone();
    let mut widened: Vec<Widened> = Vec::new();
    let mut grown = vec![false; first.len()];
    for round in 0..ATTEMPTS {
        let mut attempt = body.clone();
        start(&mut attempt, &states);
        infer_body(graph, &mut attempt, next_slot)?;
        let mut stable = widened.iter().all(|w| w.bounded);
        for (i, state) in states.iter_mut().enumerate() {
            let Some((name, out)) = attempt.outputs.get(first_result + i) else {
                return Err(wrong(format!("the body has no result for state {i}")));
            };
            let (Type::Tensor(state), Type::Tensor(first)) = (&mut *state, &first[i]) else {
                let out = attempt.value(*out).ty.as_ref().ok_or_else(|| wrong("the type of a result is not known"))?;
                let next = joined(state, out, &mut grown[i], most, round)
                    .ok_or_else(|| wrong(format!("state \"{name}\" is {state} and becomes {out}")))?;
                stable &= next == *state;
                *state = next;
                continue;
            };
            let out = attempt.tensor_type(*out)?;
            if out.dtype != state.dtype || out.rank() != state.rank() {
                return Err(wrong(format!("state \"{name}\" is {state} and becomes {out}")));
            }
            for axis in 0..out.rank() {
                let before = &first.shape[axis];
                match widened.iter_mut().find(|w| w.state == i && w.axis == axis) {
                    Some(w) if !w.bounded => {
                        stable = false;
                        // What was assumed of the least extent must follow from itself.
                        let least = w.symbol.lower();
                        if least > 0 && !keeps(&w.symbol, &out.shape[axis], least) {
                            w.symbol = symbol("state", 0, None, next_slot);
                            state.shape[axis] = w.symbol.clone();
                            continue;
                        }
                        let bound = bound(&w.symbol, before, &out.shape[axis], most).ok_or_else(|| {
                            wrong(format!(
                                "extent {axis} of state \"{name}\" changes from {} to {} in an iteration and has no bound: \
                                 the trip count must be known or bounded",
                                w.symbol, out.shape[axis]
                            ))
                        })?;
                        w.symbol = symbol("state", least, Some(bound), next_slot);
                        w.bounded = true;
                        state.shape[axis] = w.symbol.clone();
                    }
                    Some(_) => {}
                    None if out.shape[axis] != state.shape[axis] => {
                        stable = false;
                        let symbol = symbol("state", before.lower().max(0), None, next_slot);
                        state.shape[axis] = symbol.clone();
                        widened.push(Widened { state: i, axis, symbol, bounded: false });
                    }
                    None => {}
                }
            }
        }
        if stable {
            return Ok(attempt);
        }
    }
    Err(wrong("the extents of the states do not settle"))
}

/// The type of a state that is an object and becomes `out`: what holds of both. `grown` says whether its length was found to
/// grow: what it can become is then reckoned from the trip count. Bounds that still change after some rounds have none.
fn joined(state: &Type, out: &Type, grown: &mut bool, most: Option<i64>, round: usize) -> Option<Type> {
    let mut next = state.join(out)?;
    let inner = |ty: &mut Type| match ty {
        Type::Optional(t) => t.clone(),
        other => Box::new(other.clone()),
    };
    let (mut before, mut after) = (inner(&mut state.clone()), inner(&mut next.clone()));
    if let (Type::Sequence(before), Type::Sequence(after)) = (&mut *before, &mut *after) {
        if *grown {
            after.most = before.most;
        } else if after.most != before.most {
            *grown = true;
            let growth = after.most.zip(before.most).map(|(a, b)| a.saturating_sub(b));
            after.most = growth.zip(most).zip(before.most).map(|((g, n), b)| b.saturating_add(g.saturating_mul(n)));
        }
        if round >= ATTEMPTS / 2 && after.elements != before.elements {
            after.elements = match &after.elements {
                Elements::Ranked(shape) => Elements::Ranked(shape.iter().map(|_| bounded_extent(0, None)).collect()),
                _ => Elements::Any,
            };
        }
        let sequence = Type::Sequence(after.clone());
        next = if matches!(next, Type::Optional(_)) { Type::Optional(Box::new(sequence)) } else { sequence };
    }
    Some(next)
}

/// Whether an extent that is at least `least` stays so when it becomes `after`.
fn keeps(symbol: &Dim, after: &Dim, least: i64) -> bool {
    after.lower() >= least || (after.clone() - symbol.clone()).lower() >= 0
}

/// The greatest extent that a state can have which starts as `before` and becomes `after`, an expression over `symbol`.
fn bound(symbol: &Dim, before: &Dim, after: &Dim, most: Option<i64>) -> Option<i64> {
    let start = before.upper()?;
    let mut mentions = false;
    after.symbols(&mut |s| mentions |= Some(&**s) == symbol.as_symbol());
    if !mentions {
        return Some(start.max(after.upper()?));
    }
    let growth = after.clone() - symbol.clone();
    let mut again = false;
    growth.symbols(&mut |s| again |= Some(&**s) == symbol.as_symbol());
    let growth = if again { return None } else { growth.upper()? };
    if growth <= 0 {
        return Some(start);
    }
    Some(start.saturating_add(growth.saturating_mul(most?)))
}

/// The nodes of the branch that a constant condition takes; `None` where the node is no such If.
pub(super) fn taken(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    if !node.is("If") {
        return None;
    }
    let cond = graph.constant(node.input(0)?)?.scalar_f64()?;
    let mut body = node.bodies.get(if cond != 0.0 { "then_branch" } else { "else_branch" })?.clone();
    super::expand::expand(&mut body);
    super::flex::expand(&mut body);
    if body.outputs.len() < node.outputs.len() {
        return None;
    }
    let mut map: HashMap<ValueId, ValueId> = body.captures.iter().map(|&(outer, inner)| (inner, outer)).collect();
    for (i, value) in body.values.iter().enumerate() {
        let inner = ValueId(u32::try_from(i).ok()?);
        map.entry(inner).or_insert_with(|| graph.add_value(value.clone()));
    }
    let mapped = |v: &mut ValueId| {
        if let Some(outer) = map.get(v) {
            *v = *outer;
        }
    };
    let mut nodes = body.nodes.clone();
    for n in &mut nodes {
        n.inputs.iter_mut().chain(&mut n.outputs).flatten().for_each(mapped);
        for (outer, _) in n.bodies.values_mut().flat_map(|b| &mut b.captures) {
            mapped(outer);
        }
    }
    for ((_, v), out) in body.outputs.iter().zip(&node.outputs) {
        let mut from = *v;
        mapped(&mut from);
        nodes.push(Node {
            name: node.name.clone(),
            domain: String::new(),
            op: "Identity".into(),
            version: node.version.max(1),
            attrs: Default::default(),
            inputs: vec![Some(from)],
            outputs: vec![*out],
            bodies: Default::default(),
        });
    }
    Some(nodes)
}
