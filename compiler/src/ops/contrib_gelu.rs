//! ONNX Runtime's GELU family: Gelu, FastGelu, BiasGelu, QuickGelu. A bias is added first, along the last axis.
//!
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>

use super::binary::arithmetic;
use super::broadcast::{operand, result_extents};
use super::unary::{FLOATS, Function, apply};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, LayoutRule, OpDef, flops_per_element};
use crate::lower::LowerCx;
use kiln_kernels::{BinaryOp, MathOp};

const fn op(name: &'static str) -> OpDef {
    OpDef::new("com.microsoft", name, &[1], infer, lower)
        .with_flops(flops_per_element)
        .with_layout(LayoutRule::Elementwise)
}

pub(super) static OPS: &[OpDef] = &[op("Gelu"), op("FastGelu"), op("BiasGelu"), op("QuickGelu")];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, FLOATS)?;
    if cx.node.op == "BiasGelu" {
        cx.id(1)?;
    }
    if let Some(bias) = cx.opt_ty(1)? {
        cx.expect_same_dtype(1, 0)?;
        let (x, b) = (cx.ty(0)?, &bias.shape);
        let fits = b.len() == 1 && x.shape.last().is_some_and(|n| *n == b[0] || n.as_const().is_none());
        if !fits {
            return Err(wrong(format!("{bias} does not fit the last axis of {x}")).at_input(1));
        }
    }
    cx.same_as_input()
}

fn function(cx: &NodeView<'_>) -> Result<(MathOp, f32)> {
    Ok(match cx.node.op.as_str() {
        "FastGelu" => (MathOp::GeluTanh, 0.0),
        "QuickGelu" => (MathOp::Swish, cx.float("alpha", 1.702)?),
        _ => (MathOp::Gelu, 0.0),
    })
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let (op, alpha) = function(cx)?;
    let dtype = cx.dtype(0)?;
    let (mut x, y) = (cx.x(0)?, cx.y(0)?);
    if cx.has(1) {
        let shape = cx.shape(1)?.to_vec();
        let (bias, extents) = operand(cx, 1, &shape)?;
        let whole = result_extents(cx)?;
        arithmetic(cx, BinaryOp::Add, dtype, (x, &whole), (bias, &extents), y.clone())?;
        x = y.clone();
    }
    apply(cx, Function::Math(op), dtype, alpha, 0.0, x, y)
}

#[cfg(test)]
mod tests {
    use crate::ir::Tensor;
    use crate::ops::testing::case;

    #[test]
    fn with_and_without_bias() {
        let x = Tensor::from_f32s(&[2, 2], &[-1.0, 0.5, 1.0, 2.0]);
        let bias = Tensor::from_f32s(&[2], &[1.0, 0.5]);
        let gelu = |x: f64| x * 0.5 * (1.0 + (0.797_884_560_8 * (x + 0.044715 * x * x * x)).tanh());
        let y = case("com.microsoft", "FastGelu", 1).input(x.clone()).input(bias.clone()).run_f32();
        for (y, x) in y.iter().zip([0.0, 1.0, 2.0, 2.5]) {
            assert!((f64::from(*y) - gelu(x)).abs() < 1e-6);
        }
        let y = case("com.microsoft", "BiasGelu", 1).input(x.clone()).input(bias).run_f32();
        assert!((y[1] - 0.841_344_8).abs() < 1e-6);
        let y = case("com.microsoft", "QuickGelu", 1).input(x.clone()).run_f32();
        assert!((y[2] - 0.845_795_75).abs() < 1e-6);
        assert!(case("com.microsoft", "BiasGelu", 1).input(x).infer().is_err());
    }
}
