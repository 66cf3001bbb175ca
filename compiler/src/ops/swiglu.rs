//! SwiGLU: `Y = A · sigmoid(alpha · A) · B`, shapes alike.
//!
//! <https://onnx.ai/onnx/operators/onnx__SwiGLU.html>

use super::binary::arithmetic;
use super::broadcast::{operand, result_extents};
use super::unary::{FLOATS, Function, apply};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, LayoutRule, OpDef};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{BinaryOp, MathOp};

pub(super) static OPS: &[OpDef] =
    &[OpDef::new("", "SwiGLU", &[28], infer, lower).with_flops(flops).with_layout(LayoutRule::Elementwise)];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, FLOATS)?;
    cx.expect_same_dtype(1, 0)?;
    cx.expect_rank(1, cx.rank(0)?)?;
    let (a, b) = (cx.ty(0)?, cx.ty(1)?);
    let differ = |(a, b): (&Dim, &Dim)| a != b && a.as_const().is_some() && b.as_const().is_some();
    if a.shape.iter().zip(&b.shape).any(differ) {
        return Err(wrong(format!("{b} is not of the gate's shape {a}")).at_input(1));
    }
    cx.same_as_input()
}

fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.out_ty(0)?.numel() * Dim::Const(2))
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let alpha = cx.float("alpha", 1.0)?;
    let dtype = cx.dtype(0)?;
    let gate = cx.x(0)?;
    let swish = cx.scratch(gate.bytes.clone());
    apply(cx, Function::Math(MathOp::Swish), dtype, alpha, 0.0, gate, swish.clone())?;
    let shape = cx.shape(1)?.to_vec();
    let (b, extents) = operand(cx, 1, &shape)?;
    let whole = result_extents(cx)?;
    let y = cx.y(0)?;
    arithmetic(cx, BinaryOp::Mul, dtype, (swish, &whole), (b, &extents), y)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn gates() {
        let a = Tensor::from_f32s(&[3], &[-1.0, 0.0, 2.0]);
        let b = Tensor::from_f32s(&[3], &[2.0, 5.0, -3.0]);
        for alpha in [1.0f32, 0.5] {
            let c = case("", "SwiGLU", 28).input(a.clone()).input(b.clone());
            let y = c.attr("alpha", Attr::Float(alpha)).run_f32();
            for (i, (a, b)) in [(-1.0f64, 2.0), (0.0, 5.0), (2.0, -3.0)].into_iter().enumerate() {
                let want = a / (1.0 + (-f64::from(alpha) * a).exp()) * b;
                assert!((f64::from(y[i]) - want).abs() < 1e-6, "{y:?}");
            }
        }
        let other = Tensor::from_f32s(&[1], &[1.0]);
        assert!(case("", "SwiGLU", 28).input(a).input(other).infer().is_err());
    }
}
