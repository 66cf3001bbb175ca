//! Compress: the entries of an axis at which a condition holds.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__Compress.html>

use super::index::holds;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[o, j, :] = x[o, i, :]`, `i` the `j`-th position with `condition[i]` true; `x` as `[outer, axis, inner]`. Conditions
    /// beyond the axis must be false.
    pub struct Compress {
        operands { read x: T, read condition: B, write y: T }
        nums { outer, axis, inner, n_conditions }
        found { count }
    }
    entries {
        compress_b8 { T = u8, B = u8 } compress_b16 { T = u16, B = u8 } compress_b32 { T = u32, B = u8 }
        compress_b64 { T = u64, B = u8 } compress_b128 { T = [u64; 2], B = u8 }
    }
    body = compress;
}

fn compress<T: Copy>(_: Isa, d: &Compress, x: &[T], condition: &[u8], y: &mut [T]) -> Result<[usize; 1], Fault> {
    let Compress { outer, axis, inner, n_conditions, .. } = *d;
    let condition = condition.get(..n_conditions).ok_or(Fault::Descriptor)?;
    if !holds(x.len(), &[outer, axis, inner]) {
        return Err(Fault::Descriptor);
    }
    if condition.iter().skip(axis).any(|&c| c != 0) {
        return Err(Fault::IndexOutOfRange);
    }
    let count = condition.iter().filter(|&&c| c != 0).count();
    if !holds(y.len(), &[outer, count, inner]) {
        return Err(Fault::BoundExceeded);
    }
    let mut to = 0;
    for o in 0..outer {
        for (i, _) in condition.iter().enumerate().filter(|(_, c)| **c != 0) {
            let from = (o * axis + i) * inner;
            y[to..to + inner].copy_from_slice(&x[from..from + inner]);
            to += inner;
        }
    }
    Ok([count])
}
