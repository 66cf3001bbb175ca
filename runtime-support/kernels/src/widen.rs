//! Whole tensors of 16-bit floats widened to `f32` and rounded back.
//!
//! Operators whose kernels exist in `f32` compute 16-bit tensors between these two: in `f32` throughout, one rounding.
//! Rounding is to nearest, ties to even; NaN stays NaN; what is too large becomes an infinity.
//! Source: IEEE 754-2019, 3.4 (binary16); bfloat16 is the upper half of binary32.

use crate::half::{bf16, f16};
use crate::{Fault, Isa, kernel, param_enum};

param_enum! {
    /// Which 16-bit float.
    pub enum HalfKind {
        /// IEEE 754 binary16.
        F16,
        /// The upper half of an `f32`.
        Bf16,
    }
}

kernel! {
    /// `y = f32(x)`, `x` in 16-bit floats.
    pub struct Widen {
        operands { read x: T, write y: F }
        params { kind: HalfKind }
    }
    entries { widen_half_f32 { T = u16, F = f32 } }
    body = widen;
}

kernel! {
    /// `y = round(x)`, `y` in 16-bit floats.
    pub struct Narrow {
        operands { read x: F, write y: T }
        params { kind: HalfKind }
    }
    entries { narrow_half_f32 { F = f32, T = u16 } }
    body = narrow;
}

fn widen(_: Isa, d: &Widen, x: &[u16], y: &mut [f32]) -> Result<(), Fault> {
    if x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    match d.kind {
        HalfKind::F16 => x.iter().zip(y).for_each(|(&x, y)| *y = f16::from_bits(x).to_f32()),
        HalfKind::Bf16 => x.iter().zip(y).for_each(|(&x, y)| *y = bf16::from_bits(x).to_f32()),
    }
    Ok(())
}

fn narrow(_: Isa, d: &Narrow, x: &[f32], y: &mut [u16]) -> Result<(), Fault> {
    if x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    match d.kind {
        HalfKind::F16 => x.iter().zip(y).for_each(|(&x, y)| *y = f16::from_f32(x).to_bits()),
        HalfKind::Bf16 => x.iter().zip(y).for_each(|(&x, y)| *y = bf16::from_f32(x).to_bits()),
    }
    Ok(())
}
