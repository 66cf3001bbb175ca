//! How scattered values join what is there.

use crate::{bf16, f16, param_enum};

param_enum! {
    /// A reduction of the scatter operators.
    pub enum Update {
        /// The new value replaces the old.
        Replace,
        /// The sum; integers wrap.
        Add,
        /// The product; integers wrap.
        Mul,
        /// The smaller.
        Min,
        /// The greater.
        Max,
    }
}

/// Elements that can be joined.
pub trait Join: Copy {
    /// The old value joined with a new one.
    fn join(self, how: Update, new: Self) -> Self;
}

macro_rules! ints {
    ($($t:ty)*) => { $(impl Join for $t {
        #[inline(always)]
        fn join(self, how: Update, new: Self) -> Self {
            match how {
                Update::Replace => new,
                Update::Add => self.wrapping_add(new),
                Update::Mul => self.wrapping_mul(new),
                Update::Min => if new < self { new } else { self },
                Update::Max => if new > self { new } else { self },
            }
        }
    })* };
}
ints!(i8 i16 i32 i64 u8 u16 u32 u64);

macro_rules! floats {
    ($($t:ty)*) => { $(impl Join for $t {
        #[inline(always)]
        fn join(self, how: Update, new: Self) -> Self {
            match how {
                Update::Replace => new,
                Update::Add => self + new,
                Update::Mul => self * new,
                // A NaN stays, whichever it is.
                Update::Min => if new < self || new.is_nan() { new } else { self },
                Update::Max => if new > self || new.is_nan() { new } else { self },
            }
        }
    })* };
}
floats!(f32 f64);

macro_rules! halves {
    ($($t:ty)*) => { $(impl Join for $t {
        #[inline(always)]
        fn join(self, how: Update, new: Self) -> Self {
            if how == Update::Replace { new } else { Self::from_f32(self.to_f32().join(how, new.to_f32())) }
        }
    })* };
}
halves!(f16 bf16);

impl Join for [u64; 2] {
    #[inline(always)]
    fn join(self, _: Update, new: Self) -> Self {
        new
    }
}
