//! ONNX Runtime's MatMulIntegerToFloat and DynamicQuantizeMatMul: floats of the sums.
//!
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>

use super::super::quant::as_f32;
use super::super::view::{Result, wrong};
use super::super::{InferCx, tensor};
use super::{
    BYTES, Factor, Packed, Product, Scaled, Side, Steps, check_scale, check_zero, factor, gemm, packed, rows_agree,
    steps, sums, sums_scratch,
};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{DequantizeSums, Dtype, DynamicQuantize, Operand};

/// Checks scale, zero point and bias of a product that becomes a float: scales and bias one for all or one a column.
fn infer_float(cx: &mut InferCx<'_>, p: Product, b_scale: usize, bias: usize) -> Result<()> {
    check_scale(cx, &p, b_scale, Side::B)?;
    if let Some(ty) = cx.opt_ty(bias)?
        && (ty.rank() != 1 || (ty.shape[0] != p.n && ty.shape[0].as_const().is_some() && p.n.as_const().is_some()))
    {
        return Err(wrong(format!("expected a vector of {}, found {ty}", p.n)).at_input(bias));
    }
    cx.set(0, tensor(Dtype::F32, p.shape));
    Ok(())
}

/// The call that makes floats of sums.
fn floats(
    cx: &mut LowerCx<'_>,
    p: &Product,
    x: Operand<Dim>,
    a_scale: (Operand<Dim>, Dim),
    b_scale: usize,
    bias: usize,
) -> Result<()> {
    let b_steps = steps(p, cx.ty(b_scale)?, Side::B, b_scale)?;
    if b_steps.batch.iter().any(|b| !b.is(0)) {
        return Err(wrong("a scale for each product of a batch is not supported").at_input(b_scale));
    }
    let d = DequantizeSums {
        x,
        a_scale: a_scale.0,
        b_scale: as_f32(cx, b_scale)?,
        bias: if cx.has(bias) { Some(as_f32(cx, bias)?) } else { None },
        y: cx.y(0)?,
        rows: p.batch.iter().cloned().product::<Dim>() * p.m.clone(),
        n: p.n.clone(),
        a_row: a_scale.1,
        b_column: b_steps.each,
    };
    cx.call(&[Dtype::I32, Dtype::F32], d)
}

/// The tuned kernel's call that makes floats.
fn gemm_to_float(
    cx: &mut LowerCx<'_>,
    p: &Product,
    a: (Operand<Dim>, Option<Operand<Dim>>, Dtype),
    a_scale: Operand<Dim>,
    b: Packed,
    b_scale: usize,
    bias: usize,
) -> Result<()> {
    let s = Scaled {
        a_scale: Some(a_scale),
        b_scale: Some(as_f32(cx, b_scale)?),
        bias_f32: if cx.has(bias) { Some(as_f32(cx, bias)?) } else { None },
        ..Scaled::default()
    };
    let y = cx.y(0)?;
    gemm(cx, p, a, b, s, (y, Dtype::F32))
}

pub(super) fn infer_to_float(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    cx.expect_dtype(1, BYTES)?;
    let p = Product::of(cx, 0, 1)?;
    cx.expect_dtype(2, &[Dtype::F32])?;
    if !cx.ty(2)?.numel().is(1) {
        return Err(wrong(format!("expected one scale, found {}", cx.ty(2)?)).at_input(2));
    }
    check_zero(cx, &p, 4, 0, Side::A)?;
    check_zero(cx, &p, 5, 1, Side::B)?;
    infer_float(cx, p, 3, 6)
}

pub(super) fn lower_to_float(cx: &mut LowerCx<'_>) -> Result<()> {
    let p = Product::of(cx, 0, 1)?;
    if rows_agree(cx, &p, 4)?
        && let Some(b) = packed(cx, 1, 5, false)?
    {
        let a = (cx.x(0)?, cx.opt(4)?, cx.dtype(0)?);
        let a_scale = as_f32(cx, 2)?;
        return gemm_to_float(cx, &p, a, a_scale, b, 3, 6);
    }
    let (a, b) = (factor(cx, &p, 0, 4, Side::A)?, factor(cx, &p, 1, 5, Side::B)?);
    let x = sums_scratch(cx, &p);
    sums(cx, &p, a, b, x.clone())?;
    let a_scale = (as_f32(cx, 2)?, Dim::Const(0));
    floats(cx, &p, x, a_scale, 3, 6)
}

pub(super) fn infer_dynamic(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::F32])?;
    cx.expect_dtype(1, BYTES)?;
    let p = Product::of(cx, 0, 1)?;
    check_zero(cx, &p, 3, 1, Side::B)?;
    infer_float(cx, p, 2, 4)
}

pub(super) fn lower_dynamic(cx: &mut LowerCx<'_>) -> Result<()> {
    let p = Product::of(cx, 0, 1)?;
    let x = cx.x(0)?;
    let a = cx.scratch(cx.ty(0)?.numel());
    let (scale, zero) = (cx.scratch(Dim::Const(4)), cx.scratch(Dim::Const(1)));
    let d = DynamicQuantize { x, y: a.clone(), scale: scale.clone(), zero: zero.clone() };
    cx.call(&[Dtype::F32, Dtype::U8], d)?;
    if let Some(b) = packed(cx, 1, 3, false)? {
        return gemm_to_float(cx, &p, (a, Some(zero), Dtype::U8), scale, b, 2, 4);
    }
    let b = factor(cx, &p, 1, 3, Side::B)?;
    let one = Steps { each: Dim::Const(0), batch: std::array::from_fn(|_| Dim::Const(0)) };
    let a = Factor { at: a, dtype: Dtype::U8, zero: Some((zero, one)) };
    let x = sums_scratch(cx, &p);
    sums(cx, &p, a, b, x.clone())?;
    floats(cx, &p, x, (scale, Dim::Const(0)), 2, 4)
}
