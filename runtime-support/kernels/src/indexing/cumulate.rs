//! CumSum and CumProd: running sums and products along an axis.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__CumSum.html>, <https://onnx.ai/onnx/operators/onnx__CumProd.html>

use super::{Join, Update};
use crate::movement::{IndexElem, holds};
use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y[…, j, …]` joins `x[…, ..=j, …]` (`exclusive`: `..j`; `reverse`: from the end). The axis is the first element of
    /// `axis`, or `at` if that is absent, among the last `rank` of `dims`.
    pub struct Cumulate {
        operands { read x: T, opt axis: I, write y: T }
        nums { rank, at }
        arrays { dims: 8 }
        params { how: Update, exclusive: bool, reverse: bool }
    }
    entries {
        cumulate_f32 { T = f32, I = i64 } cumulate_f64 { T = f64, I = i64 } cumulate_f16 { T = f16, I = i64 }
        cumulate_bf16 { T = bf16, I = i64 } cumulate_i32 { T = i32, I = i64 } cumulate_i64 { T = i64, I = i64 }
        cumulate_u32 { T = u32, I = i64 } cumulate_u64 { T = u64, I = i64 }
    }
    body = cumulate;
}

/// Neutral elements.
trait Neutral: Join + Default {
    /// One.
    const ONE: Self;
}

macro_rules! neutral {
    ($($t:ty = $one:expr),*) => { $(impl Neutral for $t { const ONE: Self = $one; })* };
}
neutral!(f32 = 1.0, f64 = 1.0, f16 = f16::ONE, bf16 = bf16::ONE, i32 = 1, i64 = 1, u32 = 1, u64 = 1);

fn cumulate<T: Neutral>(_: Isa, d: &Cumulate, x: &[T], axis: Option<&[i64]>, y: &mut [T]) -> Result<(), Fault> {
    let dims = d.dims.len().checked_sub(d.rank).and_then(|at| d.dims.get(at..)).ok_or(Fault::Descriptor)?;
    if !holds(x.len(), dims) || !holds(y.len(), dims) {
        return Err(Fault::Descriptor);
    }
    let at = match axis {
        Some(a) => a.first().ok_or(Fault::Descriptor)?.position(d.rank).ok_or(Fault::IndexOutOfRange)?,
        None => d.at,
    };
    let (outer, rest) = dims.split_at_checked(at).ok_or(Fault::Descriptor)?;
    let (&n, inner) = rest.split_first().ok_or(Fault::Descriptor)?;
    let (outer, inner) = (outer.iter().product::<usize>(), inner.iter().product::<usize>());
    let neutral = if d.how == Update::Mul { T::ONE } else { T::default() };
    let len = n * inner;
    for o in 0..outer {
        let (x, y) = (&x[o * len..(o + 1) * len], &mut y[o * len..(o + 1) * len]);
        for step in 0..n {
            let row = |step: usize| if d.reverse { n - 1 - step } else { step } * inner;
            // The row whose elements this one adds, and the one whose sums it adds them to.
            let from = if d.exclusive { step.checked_sub(1) } else { Some(step) };
            for i in 0..inner {
                y[row(step) + i] = match (from, step.checked_sub(1)) {
                    (None, _) => neutral,
                    (Some(from), None) => neutral.join(d.how, x[row(from) + i]),
                    (Some(from), Some(before)) => y[row(before) + i].join(d.how, x[row(from) + i]),
                };
            }
        }
    }
    Ok(())
}
