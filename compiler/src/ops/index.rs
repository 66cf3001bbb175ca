//! Index operands as kernels with few instantiations read them.

use super::view::{NodeView, Result, wrong};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, IndexCast, Operand};

/// An operand's elements as `i64`: itself, or converted in scratch memory.
pub(super) fn as_i64(cx: &mut LowerCx<'_>, i: usize) -> Result<Operand<Dim>> {
    let x = cx.x(i)?;
    let ty = cx.ty(i)?;
    if ty.dtype == Dtype::I64 {
        return Ok(x);
    }
    let n = ty.numel();
    let y = cx.scratch(n.clone() * Dim::Const(8));
    cx.call(&[ty.dtype, Dtype::I64], IndexCast { x, y: y.clone(), n })?;
    Ok(y)
}

/// The first eight of some extents, filled up in front.
pub(super) fn last8(dims: &[Dim], pad: i64) -> Option<[Dim; 8]> {
    let missing = 8usize.checked_sub(dims.len())?;
    Some(std::array::from_fn(|i| i.checked_sub(missing).map_or(Dim::Const(pad), |i| dims[i].clone())))
}

/// Refuses constant indices that lie outside the axes they select from: element `i` of operand `operand` belongs to
/// extent `i mod extents.len()`. Indices known only at run time are checked by the kernels.
pub(super) fn check_constant(cx: &NodeView<'_>, operand: usize, extents: &[Dim]) -> Result<()> {
    let Some(values) = cx.const_ints(operand) else { return Ok(()) };
    for (i, v) in values.into_iter().enumerate() {
        let n = extents.get(i % extents.len().max(1)).and_then(Dim::as_const);
        if let Some(n) = n
            && (v >= n || v < -n)
        {
            return Err(wrong(format!("index {v} is out of range for an extent of {n}")).at_input(operand));
        }
    }
    Ok(())
}
