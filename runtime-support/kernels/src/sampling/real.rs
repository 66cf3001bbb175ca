//! The arithmetic that coordinates need, in f32 and f64.

use crate::resize::sample::{Sample, Sum};
use crate::{bf16, f16};
use core::ops::{Div, Sub};

/// A real number of coordinates and weights.
pub(super) trait Real: Sum + PartialOrd + Sub<Output = Self> + Div<Output = Self> {
    /// To the greatest integer not above.
    fn floor(self) -> Self;
    /// To the nearest integer, ties to even.
    fn rint(self) -> Self;
    /// Truncated, saturating; NaN is 0.
    fn to_i64(self) -> i64;
    /// Truncated to a count, saturating; NaN and negative numbers are 0.
    fn to_usize(self) -> usize;
    /// A count as a number.
    fn of(n: usize) -> Self {
        Self::from_f64(n as f64)
    }
    /// The greater of two; the first if either is NaN.
    fn at_least(self, low: Self) -> Self {
        if self < low { low } else { self }
    }
    /// The smaller of two; the first if either is NaN.
    fn at_most(self, high: Self) -> Self {
        if self > high { high } else { self }
    }
}

macro_rules! real {
    ($($t:ident = $floor:path, $rint:path;)*) => { $(impl Real for $t {
        #[inline(always)]
        fn floor(self) -> Self {
            $floor(self)
        }
        #[inline(always)]
        fn rint(self) -> Self {
            $rint(self)
        }
        #[inline(always)]
        fn to_i64(self) -> i64 {
            self as i64
        }
        #[inline(always)]
        fn to_usize(self) -> usize {
            self as usize
        }
    })* };
}
real! { f32 = libm::floorf, libm::rintf; f64 = libm::floor, libm::rint; }

/// Elements of images, with the type that coordinates and sums are in.
pub(super) trait ImageElem: Sample<Self::W> {
    /// f32, or f64 for f64.
    type W: Real;
}

macro_rules! image_elems {
    ($($t:ty = $w:ty),*) => { $(impl ImageElem for $t { type W = $w; })* };
}
image_elems!(f32 = f32, f64 = f64, f16 = f32, bf16 = f32);
