//! Range: an arithmetic progression from operands known at run time.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__Range.html>

use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y[i] = start + i·delta` for `i < n`.
    pub struct Range {
        operands { read start: T, read delta: T, write y: T }
        nums { n }
    }
    entries {
        range_f32 { T = f32 } range_f64 { T = f64 } range_f16 { T = f16 } range_bf16 { T = bf16 }
        range_i16 { T = i16 } range_i32 { T = i32 } range_i64 { T = i64 }
    }
    body = range;
}

fn range<T: Progress>(_: Isa, d: &Range, start: &[T], delta: &[T], y: &mut [T]) -> Result<(), Fault> {
    let (Some(&start), Some(&delta)) = (start.first(), delta.first()) else { return Err(Fault::Descriptor) };
    for (i, y) in y.get_mut(..d.n).ok_or(Fault::Descriptor)?.iter_mut().enumerate() {
        *y = T::at(start, delta, i);
    }
    Ok(())
}

/// Elements of a progression.
trait Progress: Copy {
    /// `start + i·delta`, wrapping.
    fn at(start: Self, delta: Self, i: usize) -> Self;
}

macro_rules! ints {
    ($($t:ty)*) => { $(impl Progress for $t {
        #[inline(always)]
        fn at(start: Self, delta: Self, i: usize) -> Self {
            start.wrapping_add(delta.wrapping_mul(i as $t))
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
    })* };
}
floats!(f32 f64);

macro_rules! halves {
    ($($t:ty)*) => { $(impl Progress for $t {
        #[inline(always)]
        fn at(start: Self, delta: Self, i: usize) -> Self {
            Self::from_f32(start.to_f32() + delta.to_f32() * i as f32)
        }
    })* };
}
halves!(f16 bf16);
