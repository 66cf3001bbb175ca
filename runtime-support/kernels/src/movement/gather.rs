//! Gather along one axis: rows of `x` chosen by indices.
//!
//! In: `x` as `[outer, axis, inner]`, `n` indices. Out: `y` as `[outer, n, inner]`. An index outside the axis is a fault.
//! Source: <https://onnx.ai/onnx/operators/onnx__Gather.html>

use super::index::{IndexElem, holds};
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[o, j, i] = x[o, indices[j], i]`.
    pub struct Gather {
        operands { read x: T, read indices: I, write y: T }
        nums { outer, axis, n, inner }
    }
    entries {
        gather_b8_i64 { T = u8, I = i64 } gather_b16_i64 { T = u16, I = i64 } gather_b32_i64 { T = u32, I = i64 }
        gather_b64_i64 { T = u64, I = i64 } gather_b128_i64 { T = [u64; 2], I = i64 }
        gather_b8_i32 { T = u8, I = i32 } gather_b16_i32 { T = u16, I = i32 } gather_b32_i32 { T = u32, I = i32 }
        gather_b64_i32 { T = u64, I = i32 } gather_b128_i32 { T = [u64; 2], I = i32 }
    }
    body = gather;
}

fn gather<T: Copy, I: IndexElem>(_: Isa, d: &Gather, x: &[T], indices: &[I], y: &mut [T]) -> Result<(), Fault> {
    let Gather { outer, axis, n, inner, .. } = *d;
    if !holds(x.len(), &[outer, axis, inner]) || !holds(y.len(), &[outer, n, inner]) || indices.len() < n {
        return Err(Fault::Descriptor);
    }
    let indices = &indices[..n];
    if outer * n * inner == 0 {
        // Nothing moves, but an index outside the axis is still wrong.
        return if indices.iter().all(|i| i.position(axis).is_some()) { Ok(()) } else { Err(Fault::IndexOutOfRange) };
    }
    if axis == 0 {
        return Err(Fault::IndexOutOfRange);
    }
    for (x, y) in x.chunks_exact(axis * inner).zip(y.chunks_exact_mut(n * inner)).take(outer) {
        if inner == 1 {
            for (y, i) in y.iter_mut().zip(indices) {
                *y = x[i.position(axis).ok_or(Fault::IndexOutOfRange)?];
            }
        } else {
            for (y, i) in y.chunks_exact_mut(inner).zip(indices) {
                let at = i.position(axis).ok_or(Fault::IndexOutOfRange)? * inner;
                y.copy_from_slice(&x[at..at + inner]);
            }
        }
    }
    Ok(())
}
