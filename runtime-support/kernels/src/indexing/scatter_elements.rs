//! ScatterElements: a copy of `x` in which elements chosen by indices along one axis are updated.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__ScatterElements.html>

use super::{Join, Update};
use crate::movement::{IndexElem, holds};
use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y = x`, then `y[i…, with indices[i…] on the axis]` joined with `updates[i…]`, in the order of the indices. `dims`
    /// are the indices' extents, `strides` those of `y` (0 on the axis), which has `extent` elements `step` apart.
    pub struct ScatterElements {
        operands { alias x: T, read indices: I, read updates: T, write y: T }
        nums { extent, step }
        arrays { dims: 8, strides: 8 }
        params { how: Update }
    }
    entries {
        scatter_elements_u8_i64 { T = u8, I = i64 } scatter_elements_u16_i64 { T = u16, I = i64 }
        scatter_elements_u32_i64 { T = u32, I = i64 } scatter_elements_u64_i64 { T = u64, I = i64 }
        scatter_elements_b128_i64 { T = [u64; 2], I = i64 }
        scatter_elements_i8_i64 { T = i8, I = i64 } scatter_elements_i16_i64 { T = i16, I = i64 }
        scatter_elements_i32_i64 { T = i32, I = i64 } scatter_elements_i64_i64 { T = i64, I = i64 }
        scatter_elements_f16_i64 { T = f16, I = i64 } scatter_elements_bf16_i64 { T = bf16, I = i64 }
        scatter_elements_f32_i64 { T = f32, I = i64 } scatter_elements_f64_i64 { T = f64, I = i64 }
    }
    body = scatter_elements;
}

/// How the elements that indices name lie: lines along the innermost axis.
pub(super) struct Lines {
    /// Number of lines.
    pub count: usize,
    /// Elements of a line.
    pub len: usize,
    /// Their distance in the indexed tensor.
    pub stride: usize,
}

impl Lines {
    /// Checks that every element that indices can name lies in a slice of this length.
    pub fn of(
        dims: &[usize; 8],
        strides: &[usize; 8],
        extent: usize,
        step: usize,
        indexed: usize,
    ) -> Result<Self, Fault> {
        let none = Self { count: 0, len: 0, stride: 0 };
        if dims.contains(&0) {
            return Ok(none);
        }
        if extent == 0 {
            return Err(Fault::IndexOutOfRange);
        }
        let mut last = (extent - 1).checked_mul(step).ok_or(Fault::Descriptor)?;
        for (&n, &s) in dims.iter().zip(strides) {
            last = (n - 1).checked_mul(s).and_then(|r| r.checked_add(last)).ok_or(Fault::Descriptor)?;
        }
        if last >= indexed {
            return Err(Fault::Descriptor);
        }
        Ok(Self { count: dims[..7].iter().product(), len: dims[7], stride: strides[7] })
    }
}

/// Calls `f` with every line's number and the place its other coordinates come to.
pub(super) fn lines(
    dims: &[usize; 8],
    strides: &[usize; 8],
    count: usize,
    mut f: impl FnMut(usize, usize) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut at = [0usize; 7];
    let mut base = 0;
    for line in 0..count {
        f(line, base)?;
        for a in (0..7).rev() {
            at[a] += 1;
            base += strides[a];
            if at[a] < dims[a] {
                break;
            }
            base -= strides[a] * at[a];
            at[a] = 0;
        }
    }
    Ok(())
}

fn scatter_elements<T: Join, I: IndexElem>(
    _: Isa,
    d: &ScatterElements,
    x: Option<&[T]>,
    indices: &[I],
    updates: &[T],
    y: &mut [T],
) -> Result<(), Fault> {
    if !holds(indices.len(), &d.dims) || !holds(updates.len(), &d.dims) {
        return Err(Fault::Descriptor);
    }
    if let Some(x) = x {
        if x.len() != y.len() {
            return Err(Fault::Descriptor);
        }
        y.copy_from_slice(x);
    }
    let Lines { count, len, stride } = Lines::of(&d.dims, &d.strides, d.extent, d.step, y.len())?;
    lines(&d.dims, &d.strides, count, |line, base| {
        let at = line * len..(line + 1) * len;
        for (j, (&new, i)) in updates[at.clone()].iter().zip(&indices[at]).enumerate() {
            let y = &mut y[base + j * stride + i.position(d.extent).ok_or(Fault::IndexOutOfRange)? * d.step];
            *y = y.join(d.how, new);
        }
        Ok(())
    })
}
