//! Scan: a body over the slices of its operands, with carried state and results stacked over the slices.
//!
//! A Loop in disguise: each iteration copies its slices into the body's memory, and its results into the stacks.
//! <https://onnx.ai/onnx/operators/onnx__Scan.html>

use super::{body, carry, counter, result_tensor};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Graph, Symbol, SymbolSource};
use crate::lower::control::{BodyCx, Flow};
use crate::lower::{LowerCx, Place};
use crate::ops::view::{NodeView, Result, resolve_axis, wrong};
use crate::ops::{InferCx, OpDef, tensor};
use kiln_kernels::{CopyNd, Dtype, LoopHead, NO_SLOT, Operand, Role};

pub(in crate::ops) static OPS: &[OpDef] =
    &[OpDef::new("", "Scan", &[9, 11, 16, 19, 21, 23, 24, 25], infer, lower).impure()];

/// How a tensor is cut into slices: axis, and whether from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) axis: usize,
    backwards: bool,
}

/// Numbers of states, of operands that are cut, and of stacked results.
pub(crate) fn counts(cx: &NodeView<'_>, graph: &Graph) -> Result<[usize; 3]> {
    let cut = cx.opt_int("num_scan_inputs")?.and_then(|n| usize::try_from(n).ok());
    let cut = cut.ok_or_else(|| wrong("must be given and not negative").at_attribute("num_scan_inputs"))?;
    let states = graph.inputs.len().checked_sub(cut);
    let states = states.ok_or_else(|| wrong("more than the body takes").at_attribute("num_scan_inputs"))?;
    let stacked = graph.outputs.len().checked_sub(states);
    let stacked =
        stacked.ok_or_else(|| wrong(format!("fewer results than the {states} states")).at_attribute("body"))?;
    if cx.n_inputs() < states + cut {
        return Err(wrong(format!("{} operands, the body takes {}", cx.n_inputs(), states + cut)));
    }
    if cut == 0 {
        return Err(wrong("nothing to scan").at_attribute("num_scan_inputs"));
    }
    Ok([states, cut, stacked])
}

fn cut(cx: &NodeView<'_>, what: &str, i: usize, rank: usize) -> Result<Cut> {
    let (axes, directions) = (format!("scan_{what}_axes"), format!("scan_{what}_directions"));
    let at = |name: &str| -> Result<i64> {
        match cx.opt_ints(name)? {
            None => Ok(0),
            Some(v) => v.get(i).copied().ok_or_else(|| wrong(format!("no value for {what} {i}")).at_attribute(name)),
        }
    };
    let axis = resolve_axis(at(&axes)?, rank).map_err(|e| e.at_attribute(&axes))?;
    Ok(Cut { axis, backwards: at(&directions)? != 0 })
}

/// How operand `states + i` is cut.
pub(crate) fn input_cut(cx: &NodeView<'_>, states: usize, i: usize) -> Result<Cut> {
    cut(cx, "input", i, cx.rank(states + i)?)
}

/// The number of slices.
fn n_slices(cx: &NodeView<'_>, states: usize) -> Result<Dim> {
    Ok(cx.shape(states)?[input_cut(cx, states, 0)?.axis].clone())
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let view = cx.view();
    let graph = body(&view, "body")?;
    let [states, n_cut, _] = counts(&view, graph)?;
    let n = n_slices(&view, states)?;
    for i in 1..n_cut {
        let other = &view.shape(states + i)?[input_cut(&view, states, i)?.axis];
        if *other != n {
            return Err(wrong(format!("{other} slices, the first operand has {n}")).at_input(states + i));
        }
    }
    for i in 0..cx.n_outputs() {
        if i < states {
            let ty = graph.tensor_type(graph.inputs[i])?.clone();
            if *result_tensor(graph, i)? != ty {
                return Err(wrong(format!("state {i} is {ty} and becomes {}", result_tensor(graph, i)?)));
            }
            cx.set(i, ty);
            continue;
        }
        let each = result_tensor(graph, i)?;
        let place = cut(&view, "output", i - states, each.rank() + 1)?;
        let (dtype, mut shape) = (each.dtype, each.shape.clone());
        shape.insert(place.axis, n.clone());
        cx.set(i, tensor(dtype, shape));
    }
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let graph = body(&view, "body")?;
    let [n_states, n_cut, n_stacked] = counts(&view, graph)?;
    let n = n_slices(&view, n_states)?;
    let cell = counter(cx)?;
    let mut states = Vec::with_capacity(n_states);
    for i in 0..n_states {
        let state = cx.y_or(i, graph.tensor_type(graph.inputs[i])?)?;
        let x = cx.x(i)?;
        cx.copy(x, state.clone())?;
        states.push(state);
    }
    let iteration_slot = cx.slot();
    let iteration = Dim::symbol(Symbol {
        name: format!("slice{iteration_slot}"),
        min: 0,
        max: n.upper().map(|n| (n - 1).max(0)),
        source: SymbolSource::Data { slot: iteration_slot },
    });
    let mut inner = cx.body(graph)?;
    for (i, state) in states.iter().enumerate() {
        inner.bind(cx, graph.inputs[i], Place { buffer: state.mem, off: state.off });
    }
    for i in 0..n_cut {
        let x = cx.x(n_states + i)?;
        let v = graph.inputs[n_states + i];
        let y = inner.allocate(v, graph.tensor_type(v)?.bytes());
        let place = input_cut(&view, n_states, i)?;
        let strip = Strip::of(&view.ty(n_states + i)?.shape, view.dtype(n_states + i)?, place, &n, &iteration);
        let x = inner.outside(cx, &x);
        strip.take(&mut inner, x, y)?;
    }
    inner.nodes().map_err(|e| e.at_attribute("body"))?;
    let mut stacked = Vec::new();
    for i in n_states..n_states + n_stacked {
        if !view.wants(i) {
            continue;
        }
        let y = cx.y(i)?;
        let ty = view.out_ty(i)?;
        let place = cut(&view, "output", i - n_states, ty.rank())?;
        let strip = Strip::of(&ty.shape, ty.dtype, place, &n, &iteration);
        let x = inner.operand(graph.outputs[i].1)?;
        let to = inner.outside(cx, &y);
        strip.put(&mut inner, x, to)?;
        stacked.push((y, Role::Write));
    }
    carry(cx, &mut inner, graph.outputs.iter().map(|(_, v)| *v).zip(&states))?;
    let inner = cx.finish_body(inner)?;
    let again = cx.slot();
    let most = Dim::Const(n.upper().ok_or_else(|| CompileError::new(Stage::Lower, format!("{n} slices: no bound")))?);
    let (iteration, count) = (iteration_slot, NO_SLOT);
    let head = LoopHead { cell: cell.clone(), limit: None, cond: None, trips: n, most, iteration, count, again };
    let mut writes = vec![(cell, Role::Update)];
    writes.extend(states.into_iter().map(|s| (s, Role::Update)));
    writes.extend(stacked);
    cx.control(Flow::Loop { again }, &[Dtype::I64, Dtype::U8], head, vec![inner], writes)
}

/// One slice of a tensor, in bytes: `outer` rows of `row` bytes each, `step` apart.
struct Strip {
    outer: Dim,
    row: Dim,
    step: Dim,
    start: Dim,
}

impl Strip {
    fn of(shape: &[Dim], dtype: Dtype, cut: Cut, n: &Dim, iteration: &Dim) -> Self {
        let row = shape[cut.axis + 1..].iter().cloned().product::<Dim>() * Dim::from(dtype.size_bytes());
        let at = if cut.backwards { n.clone() - Dim::Const(1) - iteration.clone() } else { iteration.clone() };
        Self {
            outer: shape[..cut.axis].iter().cloned().product(),
            step: n.clone() * row.clone(),
            start: at * row.clone(),
            row,
        }
    }

    fn strides(&self, of_whole: bool) -> [Dim; 8] {
        let row = if of_whole { &self.step } else { &self.row };
        std::array::from_fn(|i| match i {
            6 => row.clone(),
            7 => Dim::Const(1),
            _ => Dim::Const(0),
        })
    }

    fn copy(&self, inner: &mut BodyCx<'_>, x: Operand<Dim>, y: Operand<Dim>, take: bool) -> Result<()> {
        let zero = Dim::Const(0);
        let dims = std::array::from_fn(|i| match i {
            6 => self.outer.clone(),
            7 => self.row.clone(),
            _ => Dim::Const(1),
        });
        let (x_start, y_start) = if take { (self.start.clone(), zero) } else { (zero, self.start.clone()) };
        let (x_strides, y_strides) = (self.strides(take), self.strides(!take));
        inner.call(&[Dtype::U8], CopyNd { x, y, x_start, y_start, dims, x_strides, y_strides })
    }

    /// From the whole tensor into a slice.
    fn take(&self, inner: &mut BodyCx<'_>, whole: Operand<Dim>, slice: Operand<Dim>) -> Result<()> {
        self.copy(inner, whole, slice, true)
    }

    /// From a slice into the whole tensor.
    fn put(&self, inner: &mut BodyCx<'_>, slice: Operand<Dim>, whole: Operand<Dim>) -> Result<()> {
        self.copy(inner, slice, whole, false)
    }
}
