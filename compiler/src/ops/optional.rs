//! Optional values: Optional, OptionalHasElement, OptionalGetElement.
//!
//! Of a tensor or a sequence the answers are known; an optional value is an object that may be nothing.
//! <https://onnx.ai/onnx/operators/onnx__Optional.html>, <https://onnx.ai/onnx/operators/onnx__OptionalHasElement.html>,
//! <https://onnx.ai/onnx/operators/onnx__OptionalGetElement.html>

use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::{Attr, Tensor, Type};
use crate::lower::LowerCx;
use kiln_kernels::{ClearObject, Dtype, GetElement, HasElement};
use std::sync::Arc;

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "Optional", &[15], infer_optional, lower_optional),
    OpDef::new("", "OptionalHasElement", &[15, 18], infer_has, lower_has),
    OpDef::new("", "OptionalGetElement", &[15, 18], infer_get, lower_get),
];

fn infer_optional(cx: &mut InferCx<'_>) -> Result<()> {
    let inner = if cx.has(0) {
        cx.any_ty(0)?.clone()
    } else {
        match cx.node.attrs.get("type") {
            Some(Attr::Type(ty)) => ty.clone(),
            _ => return Err(wrong("is missing, and so is the operand").at_attribute("type")),
        }
    };
    cx.set(0, Type::Optional(Box::new(inner)));
    Ok(())
}

fn lower_optional(cx: &mut LowerCx<'_>) -> Result<()> {
    if cx.has(0) {
        let x = cx.object(0)?;
        cx.same_object(0, x);
        return Ok(());
    }
    let y = cx.object_y(0);
    cx.call(&[], ClearObject { y })
}

/// Whether it is known that there is a value.
fn is_there(cx: &NodeView<'_>) -> Result<Option<bool>> {
    if !cx.has(0) {
        return Ok(Some(false));
    }
    Ok(if matches!(cx.any_ty(0)?, Type::Optional(_)) { None } else { Some(true) })
}

fn infer_has(cx: &mut InferCx<'_>) -> Result<()> {
    cx.set(0, tensor(Dtype::Bool, Vec::new()));
    if let Some(there) = is_there(cx)? {
        let t = Tensor::new(Dtype::Bool, Vec::new(), vec![u8::from(there)].into());
        cx.set_constant(0, Arc::new(t.ok_or_else(|| wrong("size"))?));
    }
    Ok(())
}

fn lower_has(cx: &mut LowerCx<'_>) -> Result<()> {
    let d = HasElement { y: cx.y(0)?, x: cx.object(0)? };
    cx.call(&[Dtype::U8], d)
}

fn infer_get(cx: &mut InferCx<'_>) -> Result<()> {
    match cx.any_ty(0)? {
        Type::Optional(inner) => match &**inner {
            Type::Tensor(t) => {
                let mut shape = Vec::with_capacity(t.rank());
                for d in &t.shape {
                    let bounded = d.as_const().is_some();
                    shape.push(if bounded { d.clone() } else { cx.data_dim("element", d.lower(), d.upper()) });
                }
                let dtype = t.dtype;
                cx.set(0, tensor(dtype, shape));
            }
            other => cx.set(0, other.clone()),
        },
        other => cx.set(0, other.clone()),
    }
    Ok(())
}

fn lower_get(cx: &mut LowerCx<'_>) -> Result<()> {
    if is_there(cx)?.is_some() {
        if cx.is_object(0)? {
            let x = cx.object(0)?;
            cx.same_object(0, x);
            return Ok(());
        }
        return cx.view_of(0, 0);
    }
    let x = cx.object(0)?;
    match cx.node.output(0).map(|v| cx.graph.value(v).ty.as_ref()) {
        Some(Some(Type::Tensor(_))) => cx.take_tensor(0, x),
        _ => {
            let y = cx.object_y(0);
            cx.call(&[], GetElement { x, y })
        }
    }
}
