//! Clip: to between two bounds, attributes before opset 11, operands since.
//!
//! <https://onnx.ai/onnx/operators/onnx__Clip.html>

use super::binary::NUMBERS;
use super::broadcast::result_extents;
use super::variadic::scalar;
use super::view::{Result, wrong};
use super::{InferCx, LayoutRule, OpDef, flops_per_element};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Clip, Operand};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "Clip", &[1, 6, 11, 12, 13], infer, lower)
    .with_flops(flops_per_element)
    .with_layout(LayoutRule::Elementwise)];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, if cx.version() < 11 { super::unary::FLOATS } else { NUMBERS })?;
    for i in [1, 2] {
        if let Some(bound) = cx.opt_ty(i)? {
            cx.expect_same_dtype(i, 0)?;
            if bound.numel().as_const().is_some_and(|n| n != 1) {
                return Err(wrong(format!("expected one element, found {bound}")).at_input(i));
            }
        }
    }
    cx.same_as_input()
}

fn bound(cx: &mut LowerCx<'_>, i: usize, name: &str, default: f32) -> Result<Option<Operand<Dim>>> {
    if cx.version() >= 11 {
        return cx.opt(i);
    }
    // Opset 6 gives defaults, opset 1 none.
    let value = if cx.version() < 6 { cx.opt_float(name)? } else { Some(cx.float(name, default)?) };
    let Some(value) = value else { return Ok(None) };
    let data = scalar(cx.dtype(0)?, value.into()).ok_or_else(|| wrong("bounds of an integer").at_attribute(name))?;
    Ok(Some(cx.weights(data)))
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let lo = bound(cx, 1, "min", f32::MIN)?;
    let hi = bound(cx, 2, "max", f32::MAX)?;
    let n = result_extents(cx)?.into_iter().product();
    let dtype = cx.dtype(0)?;
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    cx.call(&[dtype], Clip { x, lo, hi, y, n })
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn forms() {
        let x = Tensor::from_f32s(&[3], &[-2.0, 0.5, f32::INFINITY]);
        let at = |v: f32| Tensor::from_f32s(&[], &[v]);
        let y = case("", "Clip", 6).input(x.clone()).attr("min", Attr::Float(-1.0)).run_f32();
        assert_eq!(y, [-1.0, 0.5, f32::MAX]);
        let y = case("", "Clip", 1).input(x.clone()).attr("min", Attr::Float(-1.0)).run_f32();
        assert_eq!(y, [-1.0, 0.5, f32::INFINITY]);
        let y = case("", "Clip", 13).input(x.clone()).constant(at(0.0)).input(at(1.0)).run_f32();
        assert_eq!(y, [0.0, 0.5, 1.0]);
        let y = case("", "Clip", 13).input(x.clone()).absent().input(at(0.0)).run_f32();
        assert_eq!(y, [-2.0, 0.0, 0.0]);
        let i = case("", "Clip", 12).input(Tensor::from_i64s(&[2], &[-5, 5])).input(Tensor::from_i64s(&[], &[0]));
        assert_eq!(i.run().unwrap()[0], Tensor::from_i64s(&[2], &[0, 5]));
        let two = Tensor::from_f32s(&[2], &[0., 1.]);
        assert!(case("", "Clip", 13).input(x).input(two).infer().is_err());
    }
}
