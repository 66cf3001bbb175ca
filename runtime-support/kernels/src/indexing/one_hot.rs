//! OneHot: indices as rows that hold one value at the index and another elsewhere.
//!
//! In: indices as `[outer, inner]`, `values` as `[off, on]`. Out: `y` as `[outer, depth, inner]`. An index outside the depth
//! gives no "on", as ONNX has it. Source: <https://onnx.ai/onnx/operators/onnx__OneHot.html>

use crate::movement::{IndexElem, holds};
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[o, indices[o, i], i] = values[1]`, all else `values[0]`. A `stated` depth must be that of the plan.
    pub struct OneHot {
        operands { read indices: I, read values: T, opt stated: I, write y: T }
        nums { outer, depth, inner }
    }
    entries {
        one_hot_b8 { I = i64, T = u8 } one_hot_b16 { I = i64, T = u16 } one_hot_b32 { I = i64, T = u32 }
        one_hot_b64 { I = i64, T = u64 } one_hot_b128 { I = i64, T = [u64; 2] }
    }
    body = one_hot;
}

fn one_hot<T: Copy>(
    _: Isa,
    d: &OneHot,
    indices: &[i64],
    values: &[T],
    stated: Option<&[i64]>,
    y: &mut [T],
) -> Result<(), Fault> {
    let OneHot { outer, depth, inner, .. } = *d;
    let [off, on] = *values else { return Err(Fault::Descriptor) };
    if !holds(indices.len(), &[outer, inner]) || !holds(y.len(), &[outer, depth, inner]) {
        return Err(Fault::Descriptor);
    }
    if stated.is_some_and(|s| s.first() != Some(&(depth as i64))) {
        return Err(Fault::ShapeMismatch);
    }
    y[..outer * depth * inner].fill(off);
    for o in 0..outer {
        for i in 0..inner {
            if let Some(at) = indices[o * inner + i].position(depth) {
                y[(o * depth + at) * inner + i] = on;
            }
        }
    }
    Ok(())
}
