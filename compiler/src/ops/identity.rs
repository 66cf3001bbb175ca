//! Identity: passes its operand on.
//!
//! <https://onnx.ai/onnx/operators/onnx__Identity.html>

use super::view::Result;
use super::{InferCx, LayoutRule, OpDef};
use crate::lower::LowerCx;

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "Identity", &[1, 13, 14, 16, 19, 21, 23, 24, 25], infer, lower)
    .with_dims(|cx| cx.dims(0))
    .with_layout(LayoutRule::Elementwise)];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let ty = cx.any_ty(0)?.clone();
    cx.set(0, ty);
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    if cx.is_object(0)? {
        let x = cx.object(0)?;
        cx.same_object(0, x);
        return Ok(());
    }
    cx.view_of(0, 0)
}
