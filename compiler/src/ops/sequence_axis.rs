//! Operators that walk along one axis: ReverseSequence, CumSum, CumProd.
//!
//! <https://onnx.ai/onnx/operators/onnx__ReverseSequence.html>, <https://onnx.ai/onnx/operators/onnx__CumSum.html>

use super::index::{as_i64, last8};
use super::view::{NodeView, Result, resolve_axis, wrong};
use super::{InferCx, OpDef, flops_per_element};
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Cumulate, Dtype, ReverseSequence, Update};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "ReverseSequence", &[10, 28], infer_reverse, lower_reverse),
    OpDef::new("", "CumSum", &[11, 14], infer_cumulate, |cx| lower_cumulate(cx, Update::Add))
        .with_flops(flops_per_element),
    OpDef::new("", "CumProd", &[26], infer_cumulate, |cx| lower_cumulate(cx, Update::Mul))
        .with_flops(flops_per_element),
];

/// Whether the batch axis comes first; it and the time axis are axes 0 and 1.
fn batch_first(cx: &NodeView<'_>) -> Result<bool> {
    match (cx.int("batch_axis", 1)?, cx.int("time_axis", 0)?) {
        (0, 1) => Ok(true),
        (1, 0) => Ok(false),
        (b, t) => Err(wrong(format!("batch axis {b} and time axis {t}; they must be 0 and 1"))),
    }
}

fn infer_reverse(cx: &mut InferCx<'_>) -> Result<()> {
    let first = batch_first(cx)?;
    cx.expect_dtype(1, &[Dtype::I64])?;
    cx.expect_rank(1, 1)?;
    let x = cx.ty(0)?;
    let batch = x.shape.get(usize::from(!first)).ok_or_else(|| wrong(format!("rank of {x} is below 2")).at_input(0))?;
    if x.rank() < 2 {
        return Err(wrong(format!("rank of {x} is below 2")).at_input(0));
    }
    let n = &cx.shape(1)?[0];
    if n.as_const().is_some() && batch.as_const().is_some() && n != batch {
        return Err(wrong(format!("{n} lengths for a batch of {batch}")).at_input(1));
    }
    cx.same_as_input()
}

fn lower_reverse(cx: &mut LowerCx<'_>) -> Result<()> {
    let batch_first = batch_first(cx)?;
    let x = cx.ty(0)?;
    let [a, b, inner @ ..] = &x.shape[..] else { return Err(wrong("rank below 2")) };
    let (batch, time) = if batch_first { (a, b) } else { (b, a) };
    let d = ReverseSequence {
        x: cx.x(0)?,
        lengths: cx.x(1)?,
        y: cx.y(0)?,
        time: time.clone(),
        batch: batch.clone(),
        inner: inner.iter().cloned().product(),
        batch_first,
    };
    cx.call(&[width_of(x.dtype)?, Dtype::I64], d)
}

/// The axis operand, if it is constant.
fn const_axis(cx: &NodeView<'_>) -> Result<Option<usize>> {
    match cx.const_ints(1).as_deref() {
        None => Ok(None),
        Some([a]) => resolve_axis(*a, cx.rank(0)?).map(Some).map_err(|e| e.at_input(1)),
        Some(other) => Err(wrong(format!("expected one element, found {}", other.len())).at_input(1)),
    }
}

fn infer_cumulate(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(
        0,
        &[Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16, Dtype::I32, Dtype::I64, Dtype::U32, Dtype::U64],
    )?;
    cx.expect_dtype(1, &[Dtype::I32, Dtype::I64])?;
    if cx.rank(0)? == 0 {
        return Err(wrong("a scalar has no axis").at_input(0));
    }
    const_axis(cx)?;
    cx.same_as_input()
}

fn lower_cumulate(cx: &mut LowerCx<'_>, how: Update) -> Result<()> {
    let x = cx.ty(0)?;
    let (axis, dims, rank, at) = match const_axis(cx)? {
        Some(a) => {
            let sides = [&x.shape[..a], &x.shape[a..=a], &x.shape[a + 1..]];
            let dims = sides.map(|s| s.iter().cloned().product::<Dim>());
            (None, last8(&dims, 1), 3, 1)
        }
        None => (Some(as_i64(cx, 1)?), last8(&x.shape, 1), x.rank(), 0),
    };
    let dims = dims.ok_or_else(|| CompileError::new(Stage::Lower, format!("rank {rank}, the kernel takes 8")))?;
    let d = Cumulate {
        x: cx.x(0)?,
        axis,
        y: cx.y(0)?,
        rank: Dim::from(rank),
        at: Dim::Const(at),
        dims,
        how,
        exclusive: cx.int("exclusive", 0)? != 0,
        reverse: cx.int("reverse", 0)? != 0,
    };
    cx.call(&[x.dtype, Dtype::I64], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn running() {
        let x = Tensor::from_i64s(&[3, 2], &[1, 2, 3, 4, 5, 6]);
        for (op, axis, exclusive, reverse, want) in [
            ("CumSum", 0, 0, 0, [1, 2, 4, 6, 9, 12]),
            ("CumSum", -1, 0, 0, [1, 3, 3, 7, 5, 11]),
            ("CumSum", 0, 1, 0, [0, 0, 1, 2, 4, 6]),
            ("CumSum", 0, 0, 1, [9, 12, 8, 10, 5, 6]),
            ("CumSum", 0, 1, 1, [8, 10, 5, 6, 0, 0]),
            ("CumProd", 0, 0, 0, [1, 2, 3, 8, 15, 48]),
            ("CumProd", 1, 1, 1, [2, 1, 4, 1, 6, 1]),
        ] {
            for constant in [true, false] {
                let a = Tensor::from_i32s(&[], &[axis]);
                let c = case("", op, 26).input(x.clone());
                let c = if constant { c.constant(a) } else { c.input(a) };
                let y = c.attr("exclusive", Attr::Int(exclusive)).attr("reverse", Attr::Int(reverse)).run().unwrap();
                assert_eq!(y[0].to_i64s().unwrap(), want, "{op} {axis} {exclusive} {reverse}");
            }
        }
    }

    #[test]
    fn reversed() {
        let x = Tensor::from_f32s(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
        let lengths = Tensor::from_i64s(&[2], &[2, 3]);
        let c = case("", "ReverseSequence", 10).input(x.clone()).input(lengths);
        let c = c.attr("batch_axis", Attr::Int(0)).attr("time_axis", Attr::Int(1));
        assert_eq!(c.run_f32(), [2., 1., 3., 6., 5., 4.]);
        let c = case("", "ReverseSequence", 10).input(x.clone()).input(Tensor::from_i64s(&[3], &[2, 1, 0]));
        assert_eq!(c.run_f32(), [4., 2., 3., 1., 5., 6.]);
        let c = case("", "ReverseSequence", 10).input(x).input(Tensor::from_i64s(&[3], &[3, 1, 0]));
        assert!(c.run().is_err());
    }
}
