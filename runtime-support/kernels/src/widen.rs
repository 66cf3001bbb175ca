//! Whole tensors of 16-bit floats widened to `f32`, and rounded back.
//!
//! Operators whose kernels exist in `f32` compute 16-bit tensors between these two: in `f32` throughout, one rounding.

use crate::{Elem, Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y = f32(x)`.
    pub struct Widen {
        operands { read x: T, write y: F }
    }
    entries { widen_f16 { T = f16, F = f32 } widen_bf16 { T = bf16, F = f32 } }
    body = widen;
}

kernel! {
    /// `y = round(x)`, ties to even.
    pub struct Narrow {
        operands { read x: F, write y: T }
    }
    entries { narrow_f16 { F = f32, T = f16 } narrow_bf16 { F = f32, T = bf16 } }
    body = narrow;
}

trait Half: Elem {
    fn widen(self) -> f32;
    fn round(x: f32) -> Self;
}

macro_rules! halves {
    ($($t:ident)*) => { $(impl Half for $t {
        #[inline(always)]
        fn widen(self) -> f32 {
            self.to_f32()
        }
        #[inline(always)]
        fn round(x: f32) -> Self {
            Self::from_f32(x)
        }
    })* };
}
halves!(f16 bf16);

fn widen<T: Half>(_: Isa, _: &Widen, x: &[T], y: &mut [f32]) -> Result<(), Fault> {
    if x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    x.iter().zip(y).for_each(|(&x, y)| *y = x.widen());
    Ok(())
}

fn narrow<T: Half>(_: Isa, _: &Narrow, x: &[f32], y: &mut [T]) -> Result<(), Fault> {
    if x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    x.iter().zip(y).for_each(|(&x, y)| *y = T::round(x));
    Ok(())
}
