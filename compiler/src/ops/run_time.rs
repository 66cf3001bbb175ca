//! Operands that give extents, where they are known only at run time: the declared shape is planned for, and checked.

use super::view::Result;
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{CheckInts, Operand};

/// Checks that operand `i` holds `planned` from element `at` on.
pub(super) fn check_ints(cx: &mut LowerCx<'_>, i: usize, at: usize, planned: &[Dim]) -> Result<()> {
    check_either(cx, i, at, planned, planned)
}

/// Checks that operand `i` holds `planned` from element `at` on, or `other` in their places.
pub(super) fn check_either(cx: &mut LowerCx<'_>, i: usize, at: usize, planned: &[Dim], other: &[Dim]) -> Result<()> {
    let dtype = cx.dtype(i)?;
    let x = cx.x(i)?;
    let size = dtype.size_bytes();
    let fits = cx.ty(i)?.numel().as_const().is_some_and(|n| n >= (at + planned.len()) as i64);
    if !fits {
        return Err(CompileError::new(Stage::Lower, format!("fewer than {} elements", at + planned.len())).at_input(i));
    }
    for (k, (part, other)) in planned.chunks(8).zip(other.chunks(8)).enumerate() {
        let eight = |v: &[Dim]| std::array::from_fn(|i| v.get(i).cloned().unwrap_or(Dim::Const(0)));
        let off = x.off + ((at + 8 * k) * size) as u64;
        let d = CheckInts {
            x: Operand::at(x.mem, off, Dim::from(part.len() * size)),
            n: Dim::from(part.len()),
            planned: eight(part),
            other: eight(other),
        };
        cx.call(&[dtype], d)?;
    }
    Ok(())
}
