//! Control flow: If, Loop and Scan. Their bodies are lowered and planned inside one step (see [`crate::lower::control`]).

mod branch;
mod extents;
mod repeat;
mod scan;

pub(super) use branch::OPS as BRANCH;
pub(super) use repeat::OPS as REPEAT;
pub(super) use scan::OPS as SCAN;

pub(crate) use repeat::trips;
pub(crate) use scan::{counts as scan_counts, input_cut};

use super::view::{NodeView, Result, wrong};
use crate::ir::{Dim, Graph, TensorType, Type, ValueId};
use crate::lower::LowerCx;
use crate::lower::control::BodyCx;
use kiln_kernels::Operand;

/// A body by its attribute name.
fn body<'a>(cx: &NodeView<'a>, name: &str) -> Result<&'a Graph> {
    cx.node.bodies.get(name).map(AsRef::as_ref).ok_or_else(|| wrong("the body is missing").at_attribute(name))
}

/// The inferred type of a body's result.
fn result_type(body: &Graph, i: usize) -> Result<&Type> {
    let (name, v) = body.outputs.get(i).ok_or_else(|| wrong(format!("the body has no result {i}")))?;
    let value = body.value(*v);
    value.ty.as_ref().ok_or_else(|| wrong(format!("the type of the body's result \"{name}\" is not known")))
}

/// The inferred tensor type of a body's result.
fn result_tensor(body: &Graph, i: usize) -> Result<&TensorType> {
    match result_type(body, i)? {
        Type::Tensor(t) => Ok(t),
        other => Err(wrong(format!("the body's result {i} is {other}, expected a tensor"))),
    }
}

/// The cell in which a loop counts, before its first iteration.
fn counter(cx: &mut LowerCx<'_>) -> Result<Operand<Dim>> {
    let start = cx.i64_weights(&[-1]);
    let cell = cx.scratch(Dim::Const(8));
    cx.copy(start, cell.clone())?;
    Ok(cell)
}

/// Copies the body's results over the states. A result that lies in memory outside (another state, perhaps) is copied
/// aside first, so that the states may change places.
fn carry<'s>(
    cx: &LowerCx<'_>,
    inner: &mut BodyCx<'_>,
    states: impl Iterator<Item = (ValueId, &'s Operand<Dim>)>,
) -> Result<()> {
    let mut copies = Vec::new();
    for (result, state) in states {
        let x = inner.operand(result)?;
        // What a state can become at most was derived from the trip count; the expression's own bound may be larger.
        let room = state.bytes.upper().map_or_else(|| state.bytes.clone(), Dim::Const);
        let bytes = x.bytes.at_most(&room);
        let (x, y) = (Operand { bytes: bytes.clone(), ..x }, Operand { bytes, ..state.clone() });
        let y = inner.outside(cx, &y);
        if (x.mem, x.off) == (y.mem, y.off) {
            continue;
        }
        copies.push((if inner.is_outside(&x) { inner.staged(&x)? } else { x }, y));
    }
    copies.into_iter().try_for_each(|(x, y)| inner.copy(x, y))
}
