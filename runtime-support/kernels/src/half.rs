//! The 16-bit floats' values, and whole tensors of them widened to `f32` and rounded back.
//!
//! Operators whose kernels exist in `f32` compute 16-bit tensors between these two: in `f32` throughout, one rounding.
//! Rounding is to nearest, ties to even; NaN stays NaN; what is too large becomes an infinity.
//! Source: IEEE 754-2019, 3.4 (binary16); bfloat16 is the upper half of binary32.

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
        HalfKind::F16 => x.iter().zip(y).for_each(|(&x, y)| *y = f16_to_f32(x)),
        HalfKind::Bf16 => x.iter().zip(y).for_each(|(&x, y)| *y = bf16_to_f32(x)),
    }
    Ok(())
}

fn narrow(_: Isa, d: &Narrow, x: &[f32], y: &mut [u16]) -> Result<(), Fault> {
    if x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    match d.kind {
        HalfKind::F16 => x.iter().zip(y).for_each(|(&x, y)| *y = f32_to_f16(x)),
        HalfKind::Bf16 => x.iter().zip(y).for_each(|(&x, y)| *y = f32_to_bf16(x)),
    }
    Ok(())
}

/// The value of a binary16.
#[inline]
pub fn f16_to_f32(x: u16) -> f32 {
    let sign = u32::from(x & 0x8000) << 16;
    let magnitude = u32::from(x & 0x7fff) << 13;
    if magnitude >= 0x0f80_0000 {
        // Infinity or NaN: the exponent becomes all ones.
        return f32::from_bits(sign | 0x7f80_0000 | magnitude);
    }
    // The exponents' biases differ by 112; the product is exact, for subnormals too.
    f32::from_bits(sign | (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits())
}

/// The nearest binary16, ties to even.
#[inline]
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00; // 65536 and above
    }
    if magnitude < 0x3880_0000 {
        // Below 2^-14 the spacing is 2^-24: adding 2^-1 · 2^-24 · 2^24 rounds there.
        let rounded = f32::from_bits(magnitude) + 0.5;
        return sign | (rounded.to_bits() - 0x3f00_0000) as u16;
    }
    // Half a unit less one, plus the lowest kept bit: ties go to even. A carry into the exponent is right.
    let rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    sign | ((rounded - (112 << 23)) >> 13) as u16
}

/// The value of a bfloat16.
#[inline]
pub fn bf16_to_f32(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// The nearest bfloat16, ties to even.
#[inline]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        for (half, value) in [
            (0x0000u16, 0.0f32),
            (0x8000, -0.0),
            (0x0001, 5.960_464_5e-8),
            (0x03ff, 6.097_555e-5),
            (0x0400, 6.103_515_6e-5),
            (0x3c00, 1.0),
            (0x7bff, 65504.0),
            (0x7c00, f32::INFINITY),
            (0xfc00, f32::NEG_INFINITY),
        ] {
            assert_eq!(f16_to_f32(half).to_bits(), value.to_bits(), "{half:#x}");
            assert_eq!(f32_to_f16(value), half, "{value}");
        }
        assert!(f16_to_f32(0x7e00).is_nan() && f16_to_f32(f32_to_f16(f32::NAN)).is_nan());
    }

    #[test]
    fn every_half_survives_and_ties_go_to_even() {
        for x in 0..=u16::MAX {
            if !f16_to_f32(x).is_nan() {
                assert_eq!(f32_to_f16(f16_to_f32(x)), x);
            }
            if !bf16_to_f32(x).is_nan() {
                assert_eq!(f32_to_bf16(bf16_to_f32(x)), x);
            }
            // Halfway to the next value in magnitude: to the even code.
            if (x & 0x7fff) < 0x7bff {
                let (a, b) = (f16_to_f32(x), f16_to_f32(x + 1));
                assert_eq!(f32_to_f16(a + (b - a) / 2.0), if x & 1 == 0 { x } else { x + 1 }, "{x:#x}");
            }
        }
        for (x, half) in [(65519.0, 0x7bffu16), (65520.0, 0x7c00), (2.9e-8, 0), (3.0e-8, 1), (1e30, 0x7c00)] {
            assert_eq!(f32_to_f16(x), half, "{x}");
        }
        assert_eq!(f32_to_bf16(f32::MAX), 0x7f80);
    }
}
