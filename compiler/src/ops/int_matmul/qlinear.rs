//! QLinearMatMul: the sums quantised again.
//!
//! <https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html>

use super::super::quant::{as_f32, limits, precision};
use super::super::view::{NodeView, Result, may_equal, wrong};
use super::super::{InferCx, tensor};
use super::{
    BYTES, Product, Scaled, Side, check_scale, check_zero, factor, gemm, is_one, packed, rows_agree, steps, sums,
    sums_scratch,
};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, Precision, Requantize};

pub(super) fn infer_qlinear(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    cx.expect_dtype(3, BYTES)?;
    let p = Product::of(cx, 0, 3)?;
    check_scale(cx, &p, 1, Side::A)?;
    check_zero(cx, &p, 2, 0, Side::A)?;
    check_scale(cx, &p, 4, Side::B)?;
    check_zero(cx, &p, 5, 3, Side::B)?;
    check_scale(cx, &p, 6, Side::A)?;
    let dtype = match cx.opt_ty(7)? {
        None => cx.dtype(0)?,
        Some(zero) => {
            cx.expect_dtype(7, BYTES)?;
            let scalars = zero.numel().is(1) && cx.ty(6)?.numel().is(1);
            if !may_equal(&zero.shape, cx.shape(6)?) && !scalars {
                return Err(wrong(format!("expected the scale's shape, {}, found {zero}", cx.ty(6)?)).at_input(7));
            }
            zero.dtype
        }
    };
    cx.set(0, tensor(dtype, p.shape));
    Ok(())
}

/// Strides of a scale over `[batch, m, n]`.
fn scale_strides(cx: &NodeView<'_>, p: &Product, i: usize, side: Side) -> Result<[Dim; 3]> {
    let ty = cx.ty(i)?;
    let s = steps(p, ty, side, i)?;
    let batch = if ty.rank() > 2 && s.batch.iter().any(|b| !b.is(0)) {
        let lead: Dim = ty.shape[..ty.rank() - 2].iter().cloned().product();
        if lead != p.batch.iter().cloned().product::<Dim>() {
            return Err(wrong("scales that repeat over a part of the batch are not supported").at_input(i));
        }
        ty.shape[ty.rank() - 2].clone() * ty.shape[ty.rank() - 1].clone()
    } else {
        Dim::Const(0)
    };
    Ok(match side {
        Side::A => [batch, s.each, Dim::Const(0)],
        Side::B => [batch, Dim::Const(0), s.each],
    })
}

pub(super) fn lower_qlinear(cx: &mut LowerCx<'_>) -> Result<()> {
    let p = Product::of(cx, 0, 3)?;
    let dtype = cx.out_ty(0)?.dtype;
    let tuned = rows_agree(cx, &p, 2)? && is_one(cx, 1)? && is_one(cx, 6)? && precision(cx.dtype(1)?) == Precision::F32;
    if tuned && let Some(b) = packed(cx, 3, 5, false)? {
        let s = Scaled {
            bias: cx.opt(8)?,
            a_scale: Some(as_f32(cx, 1)?),
            b_scale: Some(as_f32(cx, 4)?),
            c_scale: Some(as_f32(cx, 6)?),
            c_zero: cx.opt(7)?,
            ..Scaled::default()
        };
        let (a, y) = ((cx.x(0)?, cx.opt(2)?, cx.dtype(0)?), cx.y(0)?);
        return gemm(cx, &p, a, b, s, (y, dtype));
    }
    if cx.has(8) {
        return Err(wrong("a bias needs constant weights").at_input(8));
    }
    let (a, b) = (factor(cx, &p, 0, 2, Side::A)?, factor(cx, &p, 3, 5, Side::B)?);
    let x = sums_scratch(cx, &p);
    sums(cx, &p, a, b, x.clone())?;
    let (lo, hi) = limits(dtype).ok_or_else(|| wrong(format!("cannot quantise to {dtype}")))?;
    let d = Requantize {
        x,
        a_scale: as_f32(cx, 1)?,
        b_scale: as_f32(cx, 4)?,
        y_scale: as_f32(cx, 6)?,
        y_zero: cx.opt(7)?,
        y: cx.y(0)?,
        dims: [p.batch.iter().cloned().product(), p.m.clone(), p.n.clone()],
        a_strides: scale_strides(cx, &p, 1, Side::A)?,
        b_strides: scale_strides(cx, &p, 4, Side::B)?,
        y_strides: scale_strides(cx, &p, 6, Side::A)?,
        lo,
        hi,
        precision: precision(cx.dtype(1)?),
    };
    cx.call(&[Dtype::I32, Dtype::F32, dtype], d)
}
