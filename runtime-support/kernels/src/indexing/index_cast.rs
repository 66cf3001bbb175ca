//! Indices of any numeric type as `i64`, towards zero, saturating: what index kernels with few instantiations read.

use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y[i] = x[i]` as an integer.
    pub struct IndexCast {
        operands { read x: T, write y: I }
        nums { n }
    }
    entries {
        index_cast_f32 { T = f32, I = i64 } index_cast_f64 { T = f64, I = i64 }
        index_cast_f16 { T = f16, I = i64 } index_cast_bf16 { T = bf16, I = i64 }
        index_cast_i8 { T = i8, I = i64 } index_cast_i16 { T = i16, I = i64 } index_cast_i32 { T = i32, I = i64 }
        index_cast_u8 { T = u8, I = i64 } index_cast_u16 { T = u16, I = i64 } index_cast_u32 { T = u32, I = i64 }
        index_cast_u64 { T = u64, I = i64 }
    }
    body = index_cast;
}

/// A number that can be an index.
trait ToIndex: Copy {
    fn to_index(self) -> i64;
}

macro_rules! by_cast {
    ($($t:ty)*) => { $(impl ToIndex for $t {
        #[inline(always)]
        fn to_index(self) -> i64 {
            self as i64
        }
    })* };
}
by_cast!(f32 f64 i8 i16 i32 u8 u16 u32);

impl ToIndex for u64 {
    #[inline(always)]
    fn to_index(self) -> i64 {
        i64::try_from(self).unwrap_or(i64::MAX)
    }
}

impl ToIndex for f16 {
    #[inline(always)]
    fn to_index(self) -> i64 {
        self.to_f32() as i64
    }
}

impl ToIndex for bf16 {
    #[inline(always)]
    fn to_index(self) -> i64 {
        self.to_f32() as i64
    }
}

fn index_cast<T: ToIndex>(_: Isa, d: &IndexCast, x: &[T], y: &mut [i64]) -> Result<(), Fault> {
    let (Some(x), Some(y)) = (x.get(..d.n), y.get_mut(..d.n)) else { return Err(Fault::Descriptor) };
    for (y, &x) in y.iter_mut().zip(x) {
        *y = x.to_index();
    }
    Ok(())
}
