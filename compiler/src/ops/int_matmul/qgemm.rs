//! ONNX Runtime's QGemm: a product of two matrices, either transposed, with a bias, quantised again or as floats.
//!
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>

use super::super::quant::{as_f32, const_scale, expect_one_scale, expect_one_zero};
use super::super::strided::{StridedCopy, row_major};
use super::super::view::{NodeView, Result, wrong};
use super::super::{InferCx, tensor};
use super::{BYTES, Product, Scaled, Side, check_scale, check_zero, gemm, packed};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::Dtype;

/// QGemm's product, and whether A and B are transposed.
pub(super) fn gemm_product(cx: &NodeView<'_>) -> Result<(Product, bool, bool)> {
    cx.expect_rank(0, 2)?;
    cx.expect_rank(3, 2)?;
    let (ta, tb) = (cx.int("transA", 0)? != 0, cx.int("transB", 0)? != 0);
    let (mut a, mut b) = (cx.shape(0)?.to_vec(), cx.shape(3)?.to_vec());
    if ta {
        a.reverse();
    }
    if tb {
        b.reverse();
    }
    let (m, k, k_b, n) = (a[0].clone(), a[1].clone(), b[0].clone(), b[1].clone());
    if k != k_b && k.as_const().is_some() && k_b.as_const().is_some() {
        return Err(wrong(format!("inner extents {k} and {k_b} differ")));
    }
    let shape = vec![m.clone(), n.clone()];
    Ok((Product { batch: Vec::new(), m, n, k, a, b, shape }, ta, tb))
}

/// A, its scale and zero point, B, its, C in `i32`, the result's scale and zero point.
pub(super) fn infer_gemm(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    cx.expect_dtype(3, BYTES)?;
    let (p, ..) = gemm_product(cx)?;
    expect_one_scale(cx, 1)?;
    expect_one_zero(cx, 2, 0)?;
    check_scale(cx, &p, 4, Side::B)?;
    check_zero(cx, &p, 5, 3, Side::B)?;
    if let Some(c) = cx.opt_ty(6)? {
        cx.expect_dtype(6, &[Dtype::I32])?;
        let last = c.shape.last();
        if !c.numel().is(1) && (last != Some(&p.n) || c.numel() != p.n) {
            return Err(wrong(format!("expected a value for each of {} columns, found {c}", p.n)).at_input(6));
        }
    }
    if cx.constant(3).is_none() || (cx.has(5) && cx.constant(5).is_none() && cx.dtype(3)? == Dtype::U8) {
        return Err(wrong("must be constant here").at_input(3));
    }
    let dtype = if cx.has(7) {
        expect_one_scale(cx, 7)?;
        match cx.opt_ty(8)? {
            None => cx.dtype(0)?,
            Some(zero) => {
                cx.expect_dtype(8, BYTES)?;
                expect_one_zero(cx, 8, 8)?;
                zero.dtype
            }
        }
    } else {
        Dtype::F32
    };
    cx.set(0, tensor(dtype, p.shape));
    Ok(())
}

pub(super) fn lower_gemm(cx: &mut LowerCx<'_>) -> Result<()> {
    let (p, ta, tb) = gemm_product(cx)?;
    let mut a = cx.x(0)?;
    let dtype = cx.dtype(0)?;
    if ta {
        let dense = cx.scratch(cx.ty(0)?.numel());
        let copy = StridedCopy {
            dims: p.a.clone(),
            x_start: Dim::Const(0),
            x_strides: vec![Dim::Const(1), p.m.clone()],
            y_start: Dim::Const(0),
            y_strides: row_major(&p.a),
        };
        copy.lower(cx, dtype, a, dense.clone())?;
        a = dense;
    }
    let alpha = cx.float("alpha", 1.0)?;
    let a_scale = if alpha == 1.0 {
        as_f32(cx, 1)?
    } else {
        let scale = alpha * const_scale(cx, 1)?;
        cx.f32_weights(&[scale])
    };
    let bias = match cx.constant(6) {
        Some(c) if c.numel() == 1 => {
            let n = p.n.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
            Some(cx.weights(c.data().repeat(n)))
        }
        _ if cx.opt_ty(6)?.is_some_and(|c| c.numel().is(1) && !p.n.is(1)) => {
            return Err(wrong("one value for all columns must be constant").at_input(6));
        }
        _ => cx.opt(6)?,
    };
    let b = packed(cx, 3, 5, tb)?.ok_or_else(|| wrong("must be constant here").at_input(3))?;
    let c_scale = if cx.has(7) { Some(as_f32(cx, 7)?) } else { None };
    let s = Scaled {
        bias,
        a_scale: Some(a_scale),
        b_scale: Some(as_f32(cx, 4)?),
        c_scale,
        c_zero: cx.opt(8)?,
        bias_f32: None,
    };
    let a = (a, cx.opt(2)?, dtype);
    let y = (cx.y(0)?, cx.out_ty(0)?.dtype);
    gemm(cx, &p, a, b, s, y)
}
