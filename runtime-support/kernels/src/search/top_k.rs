//! TopK: the `k` greatest or smallest elements along an axis, in order.
//!
//! In: `x` as `[outer, n, inner]`. Out: values and positions as `[outer, k, inner]`. Of equal elements the one with the
//! lower position comes first; NaN counts as greatest. Always sorted, which an unsorted request allows.
//! Source: <https://onnx.ai/onnx/operators/onnx__TopK.html>

use super::Ordered;
use super::order::{select, sort};
use crate::movement::holds;
use crate::{Fault, Isa, bf16, f16, kernel};
use core::cmp::Ordering;

kernel! {
    /// `values[o, j, i]` = the `j`-th of `x[o, :, i]`, `indices[o, j, i]` its position. `order` is scratch for `n` positions.
    pub struct TopK {
        operands { read x: T, write values: T, write indices: I, write order: P }
        nums { outer, n, inner, k }
        params { largest: bool }
    }
    entries {
        top_k_f32 { T = f32, I = i64, P = u32 } top_k_f64 { T = f64, I = i64, P = u32 }
        top_k_f16 { T = f16, I = i64, P = u32 } top_k_bf16 { T = bf16, I = i64, P = u32 }
        top_k_i8 { T = i8, I = i64, P = u32 } top_k_i16 { T = i16, I = i64, P = u32 }
        top_k_i32 { T = i32, I = i64, P = u32 } top_k_i64 { T = i64, I = i64, P = u32 }
        top_k_u8 { T = u8, I = i64, P = u32 } top_k_u16 { T = u16, I = i64, P = u32 }
        top_k_u32 { T = u32, I = i64, P = u32 } top_k_u64 { T = u64, I = i64, P = u32 }
    }
    body = top_k;
}

fn top_k<T: Ordered>(
    _: Isa,
    d: &TopK,
    x: &[T],
    values: &mut [T],
    indices: &mut [i64],
    order: &mut [u32],
) -> Result<(), Fault> {
    let TopK { outer, n, inner, k, largest, .. } = *d;
    let results = [outer, k, inner];
    if !holds(x.len(), &[outer, n, inner]) || !holds(values.len(), &results) || !holds(indices.len(), &results) {
        return Err(Fault::Descriptor);
    }
    if k > n {
        return Err(Fault::ShapeMismatch);
    }
    let order = order.get_mut(..n).ok_or(Fault::Descriptor)?;
    if k == 0 {
        return Ok(());
    }
    for o in 0..outer {
        for i in 0..inner {
            let at = |j: u32| x[(o * n + j as usize) * inner + i];
            let compare = |a: u32, b: u32| -> Ordering {
                let by_value = if largest { at(b).order(at(a)) } else { at(a).order(at(b)) };
                by_value.then(a.cmp(&b))
            };
            for (j, p) in order.iter_mut().enumerate() {
                *p = j as u32;
            }
            select(order, k, &compare);
            sort(&mut order[..k], &compare);
            for (j, &p) in order[..k].iter().enumerate() {
                let to = (o * k + j) * inner + i;
                values[to] = at(p);
                indices[to] = i64::from(p);
            }
        }
    }
    Ok(())
}
