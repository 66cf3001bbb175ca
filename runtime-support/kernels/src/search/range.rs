//! Range: an arithmetic progression from operands known at run time.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__Range.html>

use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y[i] = start + i·delta` for `i < n`, which must be the count up to `limit`.
    pub struct Range {
        operands { read start: T, read limit: T, read delta: T, write y: T }
        nums { n }
    }
    entries {
        range_f32 { T = f32 } range_f64 { T = f64 } range_f16 { T = f16 } range_bf16 { T = bf16 }
        range_i16 { T = i16 } range_i32 { T = i32 } range_i64 { T = i64 }
    }
    body = range;
}

kernel! {
    /// Finds how many elements a range has, which must not be more than `most`.
    pub struct RangeCount {
        operands { read start: T, read limit: T, read delta: T }
        nums { most }
        found { count }
    }
    entries {
        range_count_f32 { T = f32 } range_count_f64 { T = f64 } range_count_f16 { T = f16 } range_count_bf16 { T = bf16 }
        range_count_i16 { T = i16 } range_count_i32 { T = i32 } range_count_i64 { T = i64 }
    }
    body = range_count;
}

fn range_count<T: Progress>(
    _: Isa,
    d: &RangeCount,
    start: &[T],
    limit: &[T],
    delta: &[T],
) -> Result<[usize; 1], Fault> {
    let (Some(&start), Some(&limit), Some(&delta)) = (start.first(), limit.first(), delta.first()) else {
        return Err(Fault::Descriptor);
    };
    let count = T::count(start, limit, delta).ok_or(Fault::ShapeMismatch)?;
    if count <= d.most { Ok([count]) } else { Err(Fault::BoundExceeded) }
}

fn range<T: Progress>(_: Isa, d: &Range, start: &[T], limit: &[T], delta: &[T], y: &mut [T]) -> Result<(), Fault> {
    let (Some(&start), Some(&limit), Some(&delta)) = (start.first(), limit.first(), delta.first()) else {
        return Err(Fault::Descriptor);
    };
    if T::count(start, limit, delta) != Some(d.n) {
        return Err(Fault::ShapeMismatch);
    }
    for (i, y) in y.get_mut(..d.n).ok_or(Fault::Descriptor)?.iter_mut().enumerate() {
        *y = T::at(start, delta, i);
    }
    Ok(())
}

/// Elements of a progression.
trait Progress: Copy {
    /// `start + i·delta`, wrapping.
    fn at(start: Self, delta: Self, i: usize) -> Self;
    /// The number of elements before the limit; `None` for a step of 0.
    fn count(start: Self, limit: Self, delta: Self) -> Option<usize>;
}

fn float_count(start: f64, limit: f64, delta: f64) -> Option<usize> {
    let n = libm::ceil((limit - start) / delta);
    if delta == 0.0 || n.is_nan() { None } else { Some(n.max(0.0) as usize) }
}

macro_rules! ints {
    ($($t:ty)*) => { $(impl Progress for $t {
        #[inline(always)]
        fn at(start: Self, delta: Self, i: usize) -> Self {
            start.wrapping_add(delta.wrapping_mul(i as $t))
        }

        fn count(start: Self, limit: Self, delta: Self) -> Option<usize> {
            let way = (i128::from(limit) - i128::from(start)) * i128::from(delta).signum();
            let step = i128::from(delta).abs();
            if step == 0 { None } else { usize::try_from((way.max(0) + step - 1) / step).ok() }
        }
    })* };
}
ints!(i16 i32 i64);

macro_rules! floats {
    ($($t:ty)*) => { $(impl Progress for $t {
        #[inline(always)]
        fn at(start: Self, delta: Self, i: usize) -> Self {
            start + delta * i as $t
        }

        fn count(start: Self, limit: Self, delta: Self) -> Option<usize> {
            float_count(start.into(), limit.into(), delta.into())
        }
    })* };
}
floats!(f32 f64);

macro_rules! halves {
    ($($t:ty)*) => { $(impl Progress for $t {
        #[inline(always)]
        fn at(start: Self, delta: Self, i: usize) -> Self {
            Self::from_f32(start.to_f32() + delta.to_f32() * i as f32)
        }

        fn count(start: Self, limit: Self, delta: Self) -> Option<usize> {
            float_count(start.to_f32().into(), limit.to_f32().into(), delta.to_f32().into())
        }
    })* };
}
halves!(f16 bf16);
