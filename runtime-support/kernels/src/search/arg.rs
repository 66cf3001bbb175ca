//! ArgMax and ArgMin: where along an axis the greatest or smallest element stands.
//!
//! In: `x` as `[outer, n, inner]`. Out: positions as `[outer, inner]`. A NaN counts as the one looked for, as in NumPy.
//! Source: <https://onnx.ai/onnx/operators/onnx__ArgMax.html>

use super::Ordered;
use crate::movement::holds;
use crate::{Fault, Isa, bf16, f16, kernel, simd_fn};
use core::cmp::Ordering;

kernel! {
    /// `y[o, i]` = the first (or last) `j` with the greatest (or smallest) `x[o, j, i]`.
    pub struct Arg {
        operands { read x: T, write y: I }
        nums { outer, n, inner }
        params { max: bool, last: bool }
    }
    entries {
        arg_f32 { T = f32, I = i64 } arg_f64 { T = f64, I = i64 } arg_f16 { T = f16, I = i64 } arg_bf16 { T = bf16, I = i64 }
        arg_i8 { T = i8, I = i64 } arg_i16 { T = i16, I = i64 } arg_i32 { T = i32, I = i64 } arg_i64 { T = i64, I = i64 }
        arg_u8 { T = u8, I = i64 } arg_u16 { T = u16, I = i64 } arg_u32 { T = u32, I = i64 } arg_u64 { T = u64, I = i64 }
    }
    body = arg;
}

/// Columns that are searched side by side.
const COLUMNS: usize = 64;

fn arg<T: Search>(isa: Isa, d: &Arg, x: &[T], y: &mut [i64]) -> Result<(), Fault> {
    let Arg { outer, n, inner, max, last, .. } = *d;
    if !holds(x.len(), &[outer, n, inner]) || !holds(y.len(), &[outer, inner]) {
        return Err(Fault::Descriptor);
    }
    if n == 0 && outer * inner > 0 {
        return Err(Fault::ShapeMismatch);
    }
    for o in 0..outer {
        let x = &x[o * n * inner..(o + 1) * n * inner];
        let y = &mut y[o * inner..(o + 1) * inner];
        if inner == 1
            && let Some(at) = T::row(isa, x, max, last)
        {
            y[0] = at as i64;
            continue;
        }
        for (c, y) in y.chunks_mut(COLUMNS).enumerate() {
            let first = c * COLUMNS;
            y.fill(0);
            let mut best = [x[first]; COLUMNS];
            best[..y.len()].copy_from_slice(&x[first..first + y.len()]);
            for j in 1..n {
                let row = &x[j * inner + first..][..y.len()];
                for ((y, best), &v) in y.iter_mut().zip(&mut best).zip(row) {
                    if better(v, *best, max, last) {
                        *best = v;
                        *y = j as i64;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Whether a later element takes the place of the best one so far.
#[inline(always)]
fn better<T: Ordered>(v: T, best: T, max: bool, last: bool) -> bool {
    let order = match (v.is_nan(), best.is_nan()) {
        (false, false) => {
            if max {
                v.order(best)
            } else {
                best.order(v)
            }
        }
        (a, b) => a.cmp(&b),
    };
    order == Ordering::Greater || (last && order == Ordering::Equal)
}

/// Elements with a fast way to search one row.
trait Search: Ordered {
    /// The position of the element looked for, if there is such a way and no NaN in the row.
    fn row(_: Isa, _x: &[Self], _max: bool, _last: bool) -> Option<usize> {
        None
    }
}

impl Search for f64 {}
impl Search for f16 {}
impl Search for bf16 {}
impl Search for i8 {}
impl Search for i16 {}
impl Search for i32 {}
impl Search for i64 {}
impl Search for u8 {}
impl Search for u16 {}
impl Search for u32 {}
impl Search for u64 {}
impl Search for f32 {
    fn row(isa: Isa, x: &[f32], max: bool, last: bool) -> Option<usize> {
        let best = extreme(isa, x, max)?;
        if last { x.iter().rposition(|&v| v == best) } else { x.iter().position(|&v| v == best) }
    }
}

simd_fn! {
    /// The greatest or smallest element of a row without NaN.
    fn extreme<S>(s, x: &[f32], max: bool) -> Option<f32> {
        let _ = s;
        let sign = if max { 1.0 } else { -1.0 };
        let mut best = [f32::NEG_INFINITY; 32];
        let mut nan = [false; 32];
        let chunks = x.chunks_exact(32);
        let rest = chunks.remainder();
        for c in chunks {
            for l in 0..32 {
                let v = c[l] * sign;
                nan[l] |= v.is_nan();
                best[l] = if v > best[l] { v } else { best[l] };
            }
        }
        for &v in rest {
            let v = v * sign;
            nan[0] |= v.is_nan();
            best[0] = if v > best[0] { v } else { best[0] };
        }
        if nan.contains(&true) {
            return None;
        }
        Some(best.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a }) * sign)
    }
}
