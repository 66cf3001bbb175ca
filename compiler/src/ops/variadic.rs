//! Min, Max, Sum and Mean of any number of operands that broadcast.
//!
//! A chain of calls with two operands; the later ones work in place on the result.
//! <https://onnx.ai/onnx/operators/onnx__Max.html> and the operators' own pages.

use super::binary::{NUMBERS, arithmetic, expressions, zip};
use super::broadcast::{operand, result_extents};
use super::unary::FLOATS;
use super::view::{NodeView, Result, broadcast, wrong};
use super::{InferCx, LayoutRule, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{BinaryOp, Dtype, bf16, f16};

const fn op(name: &'static str, since: &'static [i64]) -> OpDef {
    OpDef::new("", name, since, infer, lower).with_flops(flops).with_layout(LayoutRule::Elementwise)
}

pub(super) static OPS: &[OpDef] = &[
    op("Min", &[1, 6, 8, 12, 13]).with_dims(|cx| dims(cx, |a, b| Some(a.at_most(b)))),
    op("Max", &[1, 6, 8, 12, 13]).with_dims(|cx| dims(cx, |a, b| Some(a.at_least(b)))),
    op("Sum", &[1, 6, 8, 13]),
    op("Mean", &[1, 6, 8, 13]),
];

fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.out_ty(0)?.numel() * Dim::from(cx.n_inputs()))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    if cx.n_inputs() == 0 {
        return Err(wrong("needs at least one operand"));
    }
    let allowed = if matches!(cx.node.op.as_str(), "Min" | "Max") { NUMBERS } else { FLOATS };
    cx.expect_dtype(0, allowed)?;
    let mut shapes = Vec::with_capacity(cx.n_inputs());
    for i in 0..cx.n_inputs() {
        cx.expect_same_dtype(i, 0)?;
        shapes.push(cx.shape(i)?);
    }
    let shape = broadcast(&shapes)?;
    let dtype = cx.dtype(0)?;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let n = cx.n_inputs();
    if n == 1 {
        return cx.view_of(0, 0);
    }
    let op = match cx.node.op.as_str() {
        "Min" => BinaryOp::Min,
        "Max" => BinaryOp::Max,
        _ => BinaryOp::Add,
    };
    let dtype = cx.dtype(0)?;
    let whole = result_extents(cx)?;
    let shape = cx.shape(0)?.to_vec();
    let (mut a, mut a_extents) = operand(cx, 0, &shape)?;
    let y = cx.y(0)?;
    for i in 1..n {
        let shape = cx.shape(i)?.to_vec();
        let (b, b_extents) = operand(cx, i, &shape)?;
        arithmetic(cx, op, dtype, (a, &a_extents), (b, &b_extents), y.clone())?;
        (a, a_extents) = (y.clone(), whole.clone());
    }
    if cx.node.op == "Mean" {
        let count = scalar(dtype, n as f64).ok_or_else(|| wrong(format!("a mean of {dtype}")))?;
        let count = cx.weights(count);
        arithmetic(cx, BinaryOp::Div, dtype, (a, &a_extents), (count, &[]), y)?;
    }
    Ok(())
}

/// The bytes of one float element.
pub(super) fn scalar(dtype: Dtype, value: f64) -> Option<Vec<u8>> {
    Some(match dtype {
        Dtype::F32 => (value as f32).to_le_bytes().to_vec(),
        Dtype::F64 => value.to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f64(value).to_bits().to_le_bytes().to_vec(),
        Dtype::Bf16 => bf16::from_f64(value).to_bits().to_le_bytes().to_vec(),
        _ => return None,
    })
}

fn dims(cx: &NodeView<'_>, f: fn(&Dim, &Dim) -> Option<Dim>) -> Option<Vec<Dim>> {
    if (0..cx.n_inputs()).all(|i| cx.constant(i).is_some()) {
        return None;
    }
    let mut all = expressions(cx, 0)?;
    for i in 1..cx.n_inputs() {
        all = zip(&all, &expressions(cx, i)?, f)?;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use crate::ir::Tensor;
    use crate::ops::testing::case;

    #[test]
    fn chains() {
        let a = Tensor::from_f32s(&[2, 1], &[1., 5.]);
        let b = Tensor::from_f32s(&[3], &[0., 4., f32::NAN]);
        let c = Tensor::from_f32s(&[], &[3.]);
        let run = |op: &str| case("", op, 13).input(a.clone()).input(b.clone()).input(c.clone()).run_f32();
        assert_eq!(run("Sum")[..2], [4., 8.]);
        assert_eq!(run("Mean")[3..5], [8. / 3., 4.]);
        let (min, max) = (run("Min"), run("Max"));
        assert!(min[..2] == [0., 1.] && min[2].is_nan() && min[3..5] == [0., 3.]);
        assert!(max[..2] == [3., 4.] && max[2].is_nan() && max[3..5] == [5., 5.]);
        let one = case("", "Mean", 13).input(a.clone()).run().unwrap();
        assert_eq!(one[0], a);
        let i = case("", "Max", 12).input(Tensor::from_u8s(&[2], &[1, 200])).input(Tensor::from_u8s(&[1], &[9]));
        assert_eq!(i.run().unwrap()[0], Tensor::from_u8s(&[2], &[9, 200]));
        assert!(case("", "Sum", 13).infer().is_err());
    }
}
