//! Elements that are interpolated, and the types that their weighted sums are kept in.

use super::Weight;
use crate::{bf16, f16};

/// What sums are kept in.
pub(crate) trait Sum: Weight + Default + core::ops::Add<Output = Self> + core::ops::Mul<Output = Self> {}
impl Sum for f32 {}
impl Sum for f64 {}

/// Elements that convert to the sum's type and, rounded, back.
pub(crate) trait Sample<W>: Copy {
    /// Whether pictures come in this type: its loops are compiled for every instruction set.
    const COMMON: bool = false;
    /// As the sum's type.
    fn load(self) -> W;
    /// From the sum's type, rounded; integers saturate.
    fn store(sum: W) -> Self;
}

macro_rules! same {
    ($($t:ty: $common:literal)*) => { $(impl Sample<$t> for $t {
        const COMMON: bool = $common;
        #[inline(always)]
        fn load(self) -> $t { self }
        #[inline(always)]
        fn store(sum: $t) -> $t { sum }
    })* };
}
same!(f32: true f64: false);

macro_rules! halves {
    ($($t:ty)*) => { $(impl Sample<f32> for $t {
        const COMMON: bool = true;
        #[inline(always)]
        fn load(self) -> f32 { self.to_f32() }
        #[inline(always)]
        fn store(sum: f32) -> $t { <$t>::from_f32(sum) }
    })* };
}
halves!(f16 bf16);

macro_rules! ints {
    ($w:ident $big:literal: $($t:ty $(=> $common:literal)?),*) => { $(impl Sample<$w> for $t {
        $(const COMMON: bool = $common;)?
        #[inline(always)]
        fn load(self) -> $w { self as $w }
        #[inline(always)]
        fn store(sum: $w) -> $t {
            // Adding and taking away 1.5 · 2^mantissa bits rounds to nearest, ties to even, below that size.
            let rounded = if sum.abs() < $big / 2.0 { (sum + $big * 1.5) - $big * 1.5 } else { sum };
            rounded as $t
        }
    })* };
}
ints!(f32 8_388_608.0: u8 => true, i8, u16, i16);
ints!(f64 4_503_599_627_370_496.0: u32, i32, u64, i64);
