//! Reduction over any set of axes of any element type, by strides.
//!
//! In: `x`, row-major, with the kept and the reduced dimensions as two lists of extents and strides. Out: `y` in the order
//! of the kept dimensions. An empty set of elements gives the neutral value (0, 1, the least or greatest of the type).
//! Floats are accumulated in `f64`; integers in their own type, wrapping.

use super::ReduceOp;
use crate::{Elem, Fault, Isa, kernel};

kernel! {
    /// `y[kept] = op over dims of x`.
    pub struct ReduceNd {
        operands { read x: T, write y: T }
        arrays { kept: 8, kept_strides: 8, dims: 8, strides: 8 }
        params { op: ReduceOp }
    }
    entries {
        reduce_nd_f32 { T = f32 } reduce_nd_f64 { T = f64 }
        reduce_nd_i8 { T = i8 } reduce_nd_i16 { T = i16 } reduce_nd_i32 { T = i32 } reduce_nd_i64 { T = i64 }
        reduce_nd_u8 { T = u8 } reduce_nd_u16 { T = u16 } reduce_nd_u32 { T = u32 } reduce_nd_u64 { T = u64 }
    }
    body = reduce_nd;
}

/// Element types that can be reduced: how to begin, take elements in, and finish.
trait Reduce: Elem {
    /// What is carried along.
    type Acc: Copy;
    /// The value of no elements.
    fn start(op: ReduceOp) -> Self::Acc;
    /// Takes elements in. `shift` is subtracted in exponents (LogSumExp).
    fn fold(op: ReduceOp, acc: Self::Acc, shift: f64, x: impl Iterator<Item = Self>) -> Self::Acc;
    /// The result over `n` elements.
    fn finish(op: ReduceOp, acc: Self::Acc, shift: f64, n: usize) -> Self;
    /// What to shift exponents by, given the greatest element.
    fn shift(max: Self::Acc) -> f64;
}

macro_rules! float_reduce {
    ($($t:ident)*) => { $(impl Reduce for $t {
        type Acc = f64;
        fn start(op: ReduceOp) -> f64 {
            match op {
                ReduceOp::Max => f64::NEG_INFINITY,
                ReduceOp::Min => f64::INFINITY,
                ReduceOp::Prod => 1.0,
                _ => 0.0,
            }
        }
        fn fold(op: ReduceOp, acc: f64, shift: f64, x: impl Iterator<Item = Self>) -> f64 {
            let x = x.map(|x| x as f64);
            match op {
                ReduceOp::Sum | ReduceOp::Mean | ReduceOp::LogSum => x.fold(acc, |a, x| a + x),
                ReduceOp::Max => x.fold(acc, |a, x| if a > x || a.is_nan() { a } else { x }),
                ReduceOp::Min => x.fold(acc, |a, x| if a < x || a.is_nan() { a } else { x }),
                ReduceOp::Prod => x.fold(acc, |a, x| a * x),
                ReduceOp::L1 => x.fold(acc, |a, x| a + x.abs()),
                ReduceOp::L2 | ReduceOp::SumSquare => x.fold(acc, |a, x| a + x * x),
                ReduceOp::LogSumExp => x.fold(acc, |a, x| a + libm::exp(x - shift)),
            }
        }
        fn finish(op: ReduceOp, acc: f64, shift: f64, n: usize) -> Self {
            (match op {
                ReduceOp::Mean => acc / n as f64,
                ReduceOp::L2 => libm::sqrt(acc),
                ReduceOp::LogSum => libm::log(acc),
                ReduceOp::LogSumExp => libm::log(acc) + shift,
                _ => acc,
            }) as Self
        }
        fn shift(max: f64) -> f64 {
            if max.is_infinite() { 0.0 } else { max }
        }
    })* };
}
float_reduce!(f32 f64);

macro_rules! int_reduce {
    ($($t:ident)*) => { $(impl Reduce for $t {
        type Acc = (Self, f64);
        fn start(op: ReduceOp) -> Self::Acc {
            let int = match op {
                ReduceOp::Max => Self::MIN,
                ReduceOp::Min => Self::MAX,
                ReduceOp::Prod => 1,
                _ => 0,
            };
            (int, 0.0)
        }
        fn fold(op: ReduceOp, (acc, exps): Self::Acc, shift: f64, x: impl Iterator<Item = Self>) -> Self::Acc {
            let acc = match op {
                ReduceOp::Sum | ReduceOp::Mean | ReduceOp::LogSum => x.fold(acc, |a, x| a.wrapping_add(x)),
                ReduceOp::Max => x.fold(acc, |a, x| a.max(x)),
                ReduceOp::Min => x.fold(acc, |a, x| a.min(x)),
                ReduceOp::Prod => x.fold(acc, |a, x| a.wrapping_mul(x)),
                #[allow(unused_comparisons, reason = "also for unsigned types")]
                ReduceOp::L1 => x.fold(acc, |a, x| a.wrapping_add(if x < 0 { (0 as Self).wrapping_sub(x) } else { x })),
                ReduceOp::L2 | ReduceOp::SumSquare => x.fold(acc, |a, x| a.wrapping_add(x.wrapping_mul(x))),
                ReduceOp::LogSumExp => return (acc, x.fold(exps, |a, x| a + libm::exp(x as f64 - shift))),
            };
            (acc, exps)
        }
        fn finish(op: ReduceOp, (acc, exps): Self::Acc, shift: f64, n: usize) -> Self {
            match op {
                ReduceOp::Mean => Self::try_from(n).ok().filter(|&n| n != 0).map_or(0, |n| acc.wrapping_div(n)),
                ReduceOp::L2 => libm::sqrt(acc as f64) as Self,
                ReduceOp::LogSum => libm::log(acc as f64) as Self,
                ReduceOp::LogSumExp => (libm::log(exps) + shift) as Self,
                _ => acc,
            }
        }
        fn shift(max: Self::Acc) -> f64 {
            max.0 as f64
        }
    })* };
}
int_reduce!(i8 i16 i32 i64 u8 u16 u32 u64);

fn reduce_nd<T: Reduce>(_: Isa, d: &ReduceNd, x: &[T], y: &mut [T]) -> Result<(), Fault> {
    let n_kept = product(&d.kept).ok_or(Fault::Descriptor)?;
    let n = product(&d.dims).ok_or(Fault::Descriptor)?;
    if y.len() != n_kept {
        return Err(Fault::Descriptor);
    }
    if n == 0 {
        y.fill(T::finish(d.op, T::start(d.op), 0.0, 0));
        return Ok(());
    }
    let last = reach(&d.kept, &d.kept_strides).zip(reach(&d.dims, &d.strides)).and_then(|(a, b)| a.checked_add(b));
    if n_kept != 0 && last.is_none_or(|last| last >= x.len()) {
        return Err(Fault::Descriptor);
    }
    let mut at = Odometer::new(&d.kept, &d.kept_strides);
    for y in y {
        let shift = match d.op {
            ReduceOp::LogSumExp => T::shift(over(d, ReduceOp::Max, x, at.offset, 0.0)),
            _ => 0.0,
        };
        *y = T::finish(d.op, over(d, d.op, x, at.offset, shift), shift, n);
        at.step(8);
    }
    Ok(())
}

/// The elements that one result is made of, taken in run by run.
fn over<T: Reduce>(d: &ReduceNd, op: ReduceOp, x: &[T], start: usize, shift: f64) -> T::Acc {
    let mut acc = T::start(op);
    let mut at = Odometer::new(&d.dims, &d.strides);
    loop {
        let from = start + at.offset;
        acc = T::fold(op, acc, shift, (0..d.dims[7]).map(|i| x[from + i * d.strides[7]]));
        if !at.step(7) {
            return acc;
        }
    }
}

/// The product of extents; `None` on overflow.
pub(crate) fn product(dims: &[usize]) -> Option<usize> {
    if dims.contains(&0) {
        return Some(0);
    }
    dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

/// The offset of the last element of a view without an extent of zero; `None` on overflow.
pub(crate) fn reach(dims: &[usize], strides: &[usize]) -> Option<usize> {
    dims.iter().zip(strides).try_fold(0usize, |sum, (&d, &s)| sum.checked_add(d.saturating_sub(1).checked_mul(s)?))
}

/// Walks a view of eight dimensions in row-major order.
pub(crate) struct Odometer<'a> {
    dims: &'a [usize; 8],
    strides: &'a [usize; 8],
    idx: [usize; 8],
    /// The present element's offset.
    pub(crate) offset: usize,
}

impl<'a> Odometer<'a> {
    /// At the first element.
    pub(crate) fn new(dims: &'a [usize; 8], strides: &'a [usize; 8]) -> Self {
        Self { dims, strides, idx: [0; 8], offset: 0 }
    }

    /// To the next element of the first `n_axes` dimensions; false after the last (and back at the first).
    pub(crate) fn step(&mut self, n_axes: usize) -> bool {
        for axis in (0..n_axes).rev() {
            self.idx[axis] += 1;
            if self.idx[axis] < self.dims[axis] {
                self.offset += self.strides[axis];
                return true;
            }
            self.offset -= self.strides[axis] * (self.idx[axis] - 1);
            self.idx[axis] = 0;
        }
        false
    }
}
