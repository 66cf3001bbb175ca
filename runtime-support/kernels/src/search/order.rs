//! The order in which searching kernels compare elements: as numbers, zeros of both signs equal, NaN greatest.

use crate::{bf16, f16};
use core::cmp::Ordering;

/// Elements in a total preorder.
pub trait Ordered: Copy {
    /// How `self` stands to `other`.
    fn order(self, other: Self) -> Ordering;
    /// Whether it is no number.
    #[inline(always)]
    fn is_nan(self) -> bool {
        false
    }
}

macro_rules! ordered_ints {
    ($($t:ty)*) => { $(impl Ordered for $t {
        #[inline(always)]
        fn order(self, other: Self) -> Ordering {
            self.cmp(&other)
        }
    })* };
}
ordered_ints!(i8 i16 i32 i64 u8 u16 u32 u64);

macro_rules! ordered_floats {
    ($($t:ty)*) => { $(impl Ordered for $t {
        #[inline(always)]
        fn order(self, other: Self) -> Ordering {
            if self < other {
                Ordering::Less
            } else if self > other {
                Ordering::Greater
            } else {
                // Equal, or one of them is NaN.
                <$t>::is_nan(self).cmp(&<$t>::is_nan(other))
            }
        }

        #[inline(always)]
        fn is_nan(self) -> bool {
            <$t>::is_nan(self)
        }
    })* };
}
ordered_floats!(f32 f64);

macro_rules! ordered_halves {
    ($($t:ty)*) => { $(impl Ordered for $t {
        #[inline(always)]
        fn order(self, other: Self) -> Ordering {
            self.to_f32().order(other.to_f32())
        }

        #[inline(always)]
        fn is_nan(self) -> bool {
            self.to_f32().is_nan()
        }
    })* };
}
ordered_halves!(f16 bf16);

/// Sorts positions. One sort for all element types: each comparison is a call, and no two positions may be equal.
pub(super) fn sort(order: &mut [u32], compare: &dyn Fn(u32, u32) -> Ordering) {
    order.sort_unstable_by(|&a, &b| compare(a, b));
}

/// Moves the `k` first positions to the front, in no order.
pub(super) fn select(order: &mut [u32], k: usize, compare: &dyn Fn(u32, u32) -> Ordering) {
    if 0 < k && k < order.len() {
        order.select_nth_unstable_by(k - 1, |&a, &b| compare(a, b));
    }
}
