//! MatMulInteger: the sums as they are.
//!
//! <https://onnx.ai/onnx/operators/onnx__MatMulInteger.html>

use super::super::view::Result;
use super::super::{InferCx, tensor};
use super::{BYTES, Product, Scaled, Side, check_zero, factor, gemm, packed, rows_agree, sums};
use crate::lower::LowerCx;
use kiln_kernels::Dtype;

pub(super) fn infer_integer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    cx.expect_dtype(1, BYTES)?;
    let p = Product::of(cx, 0, 1)?;
    check_zero(cx, &p, 2, 0, Side::A)?;
    check_zero(cx, &p, 3, 1, Side::B)?;
    cx.set(0, tensor(Dtype::I32, p.shape));
    Ok(())
}

pub(super) fn lower_integer(cx: &mut LowerCx<'_>) -> Result<()> {
    let p = Product::of(cx, 0, 1)?;
    if rows_agree(cx, &p, 2)?
        && let Some(b) = packed(cx, 1, 3, false)?
    {
        let (a, y) = ((cx.x(0)?, cx.opt(2)?, cx.dtype(0)?), cx.y(0)?);
        return gemm(cx, &p, a, b, Scaled::default(), (y, Dtype::I32));
    }
    let (a, b) = (factor(cx, &p, 0, 2, Side::A)?, factor(cx, &p, 1, 3, Side::B)?);
    let y = cx.y(0)?;
    sums(cx, &p, a, b, y)
}
