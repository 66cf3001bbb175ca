//! 16-bit floats through `f32` kernels: operands widened into scratch, results rounded once at the end.

use super::view::{NodeView, Result, wrong};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, Narrow, Operand, Widen};

/// Whether a type is a 16-bit float.
pub fn is_half(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F16 | Dtype::Bf16)
}

/// The type that a kernel computes this type in.
pub fn compute_dtype(dtype: Dtype) -> Dtype {
    if is_half(dtype) { Dtype::F32 } else { dtype }
}

/// An operand, widened to `f32` if it is a 16-bit float.
pub fn x(cx: &mut LowerCx<'_>, i: usize) -> Result<Operand<Dim>> {
    let ty = cx.ty(i)?;
    let x = cx.x(i)?;
    if !is_half(ty.dtype) {
        return Ok(x);
    }
    let y = cx.scratch(ty.numel() * Dim::Const(4));
    cx.call(&[ty.dtype, Dtype::F32], Widen { x, y: y.clone() })?;
    Ok(y)
}

/// As [`x`], for an operand that may be absent.
pub fn opt(cx: &mut LowerCx<'_>, i: usize) -> Result<Option<Operand<Dim>>> {
    if cx.has(i) { x(cx, i).map(Some) } else { Ok(None) }
}

/// A result that a kernel writes in [`compute_dtype`]; [`Output::finish`] after the kernel's call.
#[must_use]
pub struct Output {
    /// Where the kernel writes.
    pub at: Operand<Dim>,
    rounded: Option<(Operand<Dim>, Dtype)>,
}

/// A result's memory.
pub fn y(cx: &mut LowerCx<'_>, i: usize) -> Result<Output> {
    let ty = cx.out_ty(i)?;
    let y = cx.y(i)?;
    Ok(if is_half(ty.dtype) {
        Output { at: cx.scratch(ty.numel() * Dim::Const(4)), rounded: Some((y, ty.dtype)) }
    } else {
        Output { at: y, rounded: None }
    })
}

/// As [`y`], for a result that may be unwanted.
pub fn opt_y(cx: &mut LowerCx<'_>, i: usize) -> Result<Option<Output>> {
    if cx.wants(i) { y(cx, i).map(Some) } else { Ok(None) }
}

impl Output {
    /// A result that the kernel writes as it is.
    pub fn exact(at: Operand<Dim>) -> Self {
        Self { at, rounded: None }
    }

    /// Rounds the result, if it is a 16-bit float.
    pub fn finish(self, cx: &mut LowerCx<'_>) -> Result<()> {
        match self.rounded {
            None => Ok(()),
            Some((y, dtype)) => cx.call(&[Dtype::F32, dtype], Narrow { x: self.at, y }),
        }
    }
}

/// Refuses an operand that is none of the types which kernels compute in `f32` or `f64`.
pub fn expect_float(cx: &NodeView<'_>, i: usize) -> Result<()> {
    cx.expect_dtype(i, &[Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16])
}

/// Refuses an operand that is not a vector of `n` elements.
pub fn expect_vector(cx: &NodeView<'_>, i: usize, n: &Dim) -> Result<()> {
    let ty = cx.ty(i)?;
    expect_float(cx, i)?;
    if ty.rank() == 1 && (&ty.shape[0] == n || ty.shape[0].as_const().is_none() || n.as_const().is_none()) {
        return Ok(());
    }
    Err(wrong(format!("expected a vector of {n}, found {ty}")).at_input(i))
}

/// Refuses types that do not meet in one kernel: 16-bit floats and `f32` do, `f64` stands alone.
pub fn expect_one_kernel(cx: &NodeView<'_>, operands: &[usize]) -> Result<Dtype> {
    let dtype = compute_dtype(cx.dtype(0)?);
    for &i in operands {
        if cx.has(i) && compute_dtype(cx.dtype(i)?) != dtype {
            return Err(wrong(format!("{} together with {} is not supported", cx.dtype(i)?, cx.dtype(0)?)).at_input(i));
        }
    }
    Ok(dtype)
}
