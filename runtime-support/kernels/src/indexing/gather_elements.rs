//! GatherElements: for every index the element at it along one axis, the other coordinates being the index's own.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__GatherElements.html>

use super::scatter_elements::{Lines, lines};
use crate::movement::{IndexElem, holds};
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[i…] = x[i…, with indices[i…] on the axis]`. `dims` are the indices' extents, `strides` those of `x` (0 on the
    /// axis), which has `extent` elements `step` apart.
    pub struct GatherElements {
        operands { read x: T, read indices: I, write y: T }
        nums { extent, step }
        arrays { dims: 8, strides: 8 }
    }
    entries {
        gather_elements_b8_i64 { T = u8, I = i64 } gather_elements_b16_i64 { T = u16, I = i64 }
        gather_elements_b32_i64 { T = u32, I = i64 } gather_elements_b64_i64 { T = u64, I = i64 }
        gather_elements_b128_i64 { T = [u64; 2], I = i64 }
        gather_elements_b8_i32 { T = u8, I = i32 } gather_elements_b16_i32 { T = u16, I = i32 }
        gather_elements_b32_i32 { T = u32, I = i32 } gather_elements_b64_i32 { T = u64, I = i32 }
        gather_elements_b128_i32 { T = [u64; 2], I = i32 }
    }
    body = gather_elements;
}

fn gather_elements<T: Copy, I: IndexElem>(
    _: Isa,
    d: &GatherElements,
    x: &[T],
    indices: &[I],
    y: &mut [T],
) -> Result<(), Fault> {
    if !holds(indices.len(), &d.dims) || !holds(y.len(), &d.dims) {
        return Err(Fault::Descriptor);
    }
    let Lines { count, len, stride } = Lines::of(&d.dims, &d.strides, d.extent, d.step, x.len())?;
    lines(&d.dims, &d.strides, count, |line, base| {
        let at = line * len..(line + 1) * len;
        for (j, (y, i)) in y[at.clone()].iter_mut().zip(&indices[at]).enumerate() {
            *y = x[base + j * stride + i.position(d.extent).ok_or(Fault::IndexOutOfRange)? * d.step];
        }
        Ok(())
    })
}
