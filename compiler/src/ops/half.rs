//! 16-bit floats through `f32` kernels: operands widened into scratch, results rounded once at the end.

use super::cast::convert_plain;
use super::view::{NodeView, Result, wrong};
use crate::ir::{Dim, TensorType};
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

/// An operand of any number type, converted to the type that a kernel computes in (f32 or f64).
pub fn x_as(cx: &mut LowerCx<'_>, i: usize, to: Dtype) -> Result<Operand<Dim>> {
    let ty = cx.ty(i)?;
    if ty.dtype == to || to == compute_dtype(ty.dtype) {
        return x(cx, i);
    }
    let (n, x) = (ty.numel(), cx.x(i)?);
    let y = cx.scratch(n.clone() * Dim::from(to.size_bytes()));
    convert_plain(cx, (ty.dtype, x), (to, y.clone()), &n)?;
    Ok(y)
}

/// The type for operands that need not agree: f64 where any of them is, or is an integer that f32 cannot hold.
pub fn joint_dtype(cx: &NodeView<'_>, operands: &[usize]) -> Result<Dtype> {
    for &i in operands {
        if cx.has(i) {
            let dtype = cx.dtype(i)?;
            if dtype == Dtype::F64 || (dtype.is_int() && dtype.size_bytes() > 2) {
                return Ok(Dtype::F64);
            }
        }
    }
    Ok(Dtype::F32)
}

/// A result that a kernel writes in the type it computes in; [`Output::finish`] after the kernel's call.
#[must_use]
pub struct Output {
    /// Where the kernel writes.
    pub at: Operand<Dim>,
    /// What is made of it: the result's memory and type.
    rounded: Option<(Operand<Dim>, TensorType)>,
    computed: Dtype,
}

/// A result's memory.
pub fn y(cx: &mut LowerCx<'_>, i: usize) -> Result<Output> {
    let computed = compute_dtype(cx.out_ty(i)?.dtype);
    y_as(cx, i, computed)
}

/// A result of any number type, written in the type that the kernel computes in.
pub fn y_as(cx: &mut LowerCx<'_>, i: usize, computed: Dtype) -> Result<Output> {
    let ty = cx.out_ty(i)?.clone();
    let y = cx.y(i)?;
    if ty.dtype == computed {
        return Ok(Output { at: y, rounded: None, computed });
    }
    let at = cx.scratch(ty.numel() * Dim::from(computed.size_bytes()));
    Ok(Output { at, rounded: Some((y, ty)), computed })
}

/// As [`y`], for a result that may be unwanted.
pub fn opt_y(cx: &mut LowerCx<'_>, i: usize) -> Result<Option<Output>> {
    if cx.wants(i) { y(cx, i).map(Some) } else { Ok(None) }
}

impl Output {
    /// A result that the kernel writes as it is.
    pub fn exact(at: Operand<Dim>) -> Self {
        Self { at, rounded: None, computed: Dtype::F32 }
    }

    /// Rounds the result, if it is of another type than it was computed in.
    pub fn finish(self, cx: &mut LowerCx<'_>) -> Result<()> {
        match self.rounded {
            None => Ok(()),
            Some((y, ty)) if is_half(ty.dtype) && self.computed == Dtype::F32 => {
                cx.call(&[Dtype::F32, ty.dtype], Narrow { x: self.at, y })
            }
            Some((y, ty)) => convert_plain(cx, (self.computed, self.at), (ty.dtype, y), &ty.numel()),
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
