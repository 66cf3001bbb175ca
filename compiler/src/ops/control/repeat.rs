//! Loop: a body again and again, with carried state and results stacked over the iterations.
//!
//! A state lies in one place for the whole loop, where the body's result is copied after each iteration. Extents of states
//! that change are symbols with a slot (see `passes/bodies.rs`, which types the body).
//! <https://onnx.ai/onnx/operators/onnx__Loop.html>

use super::extents::Settings;
use super::{body, carry, counter, result_tensor};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Graph, TensorType, Type, ValueId};
use crate::lower::control::{BodyCx, Flow};
use crate::lower::{LowerCx, Slot};
use crate::ops::found::slot;
use crate::ops::view::{NodeView, Result, wrong};
use crate::ops::{InferCx, OpDef, tensor};
use kiln_kernels::{CopyNd, Dtype, LoopHead, NO_SLOT, Operand, Role};

pub(in crate::ops) static OPS: &[OpDef] =
    &[OpDef::new("", "Loop", &[1, 11, 13, 16, 19, 21, 23, 24, 25], infer, lower).impure()];

/// Operands before the states.
const FIRST_STATE: usize = 2;

/// The trip count as an expression, where it is known to inference: `None` also where there is none.
pub(crate) fn trips(cx: &NodeView<'_>) -> Option<Dim> {
    let m = cx.dims(0)?.into_iter().next()?;
    Some(m.at_least(&Dim::Const(0)))
}

/// Whether the loop never ends by its condition: there is none, or it is true, and the body hands it on or gives true.
fn never_stops(cx: &NodeView<'_>, graph: &Graph) -> bool {
    let is_true = |v: Option<f64>| v.is_some_and(|v| v != 0.0);
    let starts = !cx.has(1) || cx.constant(1).is_some_and(|t| is_true(t.scalar_f64()));
    let Some(&(_, mut out)) = graph.outputs.first() else { return false };
    let producers = graph.producers();
    while let Some(i) = producers[out.0 as usize]
        && graph.nodes[i].is("Identity")
        && let Some(x) = graph.nodes[i].input(0)
    {
        out = x;
    }
    let handed_on = graph.inputs.get(1) == Some(&out);
    starts && (handed_on || graph.constant(out).is_some_and(|t| is_true(t.scalar_f64())))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let view = cx.view();
    let graph = body(&view, "body")?;
    if cx.has(0) {
        cx.expect_dtype(0, &[Dtype::I64])?;
    }
    if cx.has(1) {
        cx.expect_dtype(1, &[Dtype::Bool])?;
    }
    let n_states = graph.inputs.len().checked_sub(FIRST_STATE).ok_or_else(|| {
        wrong(format!("the body takes {} values, expected at least 2", graph.inputs.len())).at_attribute("body")
    })?;
    if graph.outputs.len() < 1 + n_states || cx.n_inputs() < FIRST_STATE + n_states {
        return Err(wrong(format!("{} operands for a body of {n_states} states", cx.n_inputs())));
    }
    for i in 0..n_states {
        let ty = graph.value(graph.inputs[FIRST_STATE + i]).ty.clone();
        cx.set(i, ty.ok_or_else(|| wrong("the type of a state is not known"))?);
    }
    let known = trips(&view);
    let mut count = if never_stops(&view, graph) { known.clone() } else { None };
    for i in n_states..cx.n_outputs() {
        if known.as_ref().is_none_or(|k| k.upper().is_none()) {
            return Err(wrong("the trip count must be known or bounded, since results are stacked").at_input(0));
        }
        let each = result_tensor(graph, 1 + i)?;
        let count = count.get_or_insert_with(|| cx.data_dim("trips", 0, known.as_ref().and_then(Dim::upper)));
        let (dtype, mut shape) = (each.dtype, vec![count.clone()]);
        shape.extend(each.shape.iter().cloned());
        cx.set(i, tensor(dtype, shape));
    }
    Ok(())
}

/// The slot of a symbol; none for a constant.
fn slot_or_none(dim: &Dim) -> usize {
    slot(dim).unwrap_or(NO_SLOT)
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let graph = body(&view, "body")?;
    let n_states = graph.inputs.len() - FIRST_STATE;
    // The counter.
    let cell = counter(cx)?;
    let trips = trips(&view);
    let limit = match (&trips, cx.has(0)) {
        (None, true) => Some(Operand { bytes: Dim::Const(8), ..cx.x(0)? }),
        _ => None,
    };
    // The condition.
    let cond = if never_stops(&view, graph) {
        None
    } else {
        let first = if cx.has(1) { Operand { bytes: Dim::Const(1), ..cx.x(1)? } } else { cx.weights(vec![1u8]) };
        let cond = cx.scratch(Dim::Const(1));
        cx.copy(first, cond.clone())?;
        Some(cond)
    };
    // The states, each where its result will be.
    let mut states = Vec::with_capacity(n_states);
    let mut objects = Vec::new();
    let mut pairs = Vec::new();
    for i in 0..n_states {
        if is_object(graph, i) {
            let (x, y) = (cx.object(FIRST_STATE + i)?, cx.object_y(i));
            cx.copy_object(x, y)?;
            objects.push((i, y));
            continue;
        }
        let ty = state_type(graph, i)?;
        let place = cx.y_or(i, ty)?;
        let x = cx.x(FIRST_STATE + i)?;
        cx.copy(x.clone(), Operand { bytes: x.bytes.clone(), ..place.clone() })?;
        pairs.extend(ty.shape.iter().zip(&view.ty(FIRST_STATE + i)?.shape));
        states.push((i, place));
    }
    Settings::between(pairs.into_iter())?.outside(cx)?;
    let mut inner = cx.body(graph)?;
    let place = |o: &Operand<Dim>| crate::lower::Place { buffer: o.mem, off: o.off };
    inner.bind(cx, graph.inputs[0], place(&cell));
    let truth = match &cond {
        Some(c) => c.clone(),
        None => cx.weights(vec![1u8]),
    };
    inner.bind(cx, graph.inputs[1], place(&truth));
    for (i, state) in &states {
        inner.bind(cx, graph.inputs[FIRST_STATE + i], place(state));
    }
    for (i, slot) in &objects {
        inner.bind_object(graph.inputs[FIRST_STATE + i], *slot);
    }
    inner.nodes().map_err(|e| e.at_attribute("body"))?;
    let iteration = iteration(graph)?;
    let mut stacked = Vec::new();
    for i in n_states..view.n_outputs() {
        if view.wants(i) {
            let y = cx.y(i)?;
            // How many there will be is not known before the last: the stack is as large as it can become.
            let y = Operand { bytes: y.bytes.upper().map_or_else(|| y.bytes.clone(), Dim::Const), ..y };
            stack(cx, &mut inner, graph.outputs[1 + i].1, &y, &iteration)?;
            stacked.push((y, Role::Write));
        }
    }
    carry(cx, &mut inner, states.iter().map(|(i, state)| (graph.outputs[1 + i].1, state)))?;
    carry_objects(&mut inner, graph, &objects)?;
    if let Some(cond) = &cond {
        let x = inner.operand(graph.outputs[0].1)?;
        let y = inner.outside(cx, cond);
        inner.copy(Operand { bytes: Dim::Const(1), ..x }, y)?;
    }
    let mut pairs = Vec::new();
    for i in (0..n_states).filter(|&i| !is_object(graph, i)) {
        pairs.extend(state_type(graph, i)?.shape.iter().zip(&result_tensor(graph, 1 + i)?.shape));
    }
    Settings::between(pairs.into_iter())?.inside(&mut inner)?;
    let inner = cx.finish_body(inner)?;
    let count = (n_states..view.n_outputs()).find(|&i| view.wants(i)).map(|i| view.out_shape(i)).transpose()?;
    let head = LoopHead {
        cell: cell.clone(),
        limit,
        cond: cond.clone(),
        trips: trips.clone().unwrap_or(Dim::Const(-1)),
        most: Dim::Const(count.and_then(|c| c[0].upper()).unwrap_or(-1)),
        iteration: slot_or_none(&iteration),
        count: count.map_or(NO_SLOT, |c| if Some(&c[0]) == trips.as_ref() { NO_SLOT } else { slot_or_none(&c[0]) }),
        again: cx.slot(),
    };
    let mut writes = vec![(cell, Role::Update)];
    writes.extend(cond.map(|c| (c, Role::Update)));
    writes.extend(states.into_iter().map(|(_, s)| (s, Role::Update)));
    writes.extend(stacked);
    let again = head.again;
    cx.control(Flow::Loop { again }, &[Dtype::I64, Dtype::U8], head, vec![inner], writes)
}

/// Whether a state is an object.
fn is_object(graph: &Graph, i: usize) -> bool {
    graph.value(graph.inputs[FIRST_STATE + i]).ty.as_ref().is_some_and(Type::is_object)
}

/// Hands the body's objects on to the next iteration. One that lies outside is copied aside first, so that states may
/// change places; one of the body's own is moved, unless it becomes two states.
fn carry_objects(inner: &mut BodyCx<'_>, graph: &Graph, states: &[(usize, Slot)]) -> Result<()> {
    let mut copies = Vec::with_capacity(states.len());
    for &(i, y) in states {
        let x = inner.object(graph.outputs[1 + i].1)?;
        if x == y {
            continue;
        }
        copies.push((if inner.is_outside_object(x) { inner.staged_object(x)? } else { x }, y));
    }
    for (n, &(x, y)) in copies.iter().enumerate() {
        if copies[n + 1..].iter().any(|(later, _)| *later == x) {
            inner.copy_object(x, y)?;
        } else {
            inner.move_object(x, y)?;
        }
    }
    Ok(())
}

/// The type of a state inside the body.
fn state_type(graph: &Graph, i: usize) -> Result<&TensorType> {
    graph.tensor_type(graph.inputs[FIRST_STATE + i])
}

/// The number of the present iteration, as inference named it.
fn iteration(graph: &Graph) -> Result<Dim> {
    let dims = graph.value(graph.inputs[0]).dims.as_ref();
    let first = dims.and_then(|d| d.first()).cloned();
    first.ok_or_else(|| CompileError::new(Stage::Lower, "the loop's counter has no symbol (a bug in the compiler)"))
}

/// Copies a result of this iteration to its place in the stack.
fn stack(cx: &LowerCx<'_>, inner: &mut BodyCx<'_>, v: ValueId, y: &Operand<Dim>, iteration: &Dim) -> Result<()> {
    let x = inner.operand(v)?;
    let y = inner.outside(cx, y);
    let bytes = x.bytes.clone();
    let one = |i: usize| Dim::Const(i64::from(i == 7));
    let copy = CopyNd {
        y_start: iteration.clone() * bytes.clone(),
        dims: std::array::from_fn(|i| if i == 7 { bytes.clone() } else { Dim::Const(1) }),
        x,
        y,
        x_start: Dim::Const(0),
        x_strides: std::array::from_fn(one),
        y_strides: std::array::from_fn(one),
    };
    inner.call(&[Dtype::U8], copy)
}
