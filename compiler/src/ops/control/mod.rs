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
use crate::ir::{Graph, TensorType, Type};

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
