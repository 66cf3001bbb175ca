//! The 16-bit floats: [`struct@f16`] (IEEE 754 binary16) and [`bf16`] (the upper half of an f32), as newtypes over their bits.
//!
//! In and out: f32 and f64, converted exactly where the target holds the value, else rounded once to nearest, ties to
//! even. NaN stays NaN (quiet, sign and upper payload kept), overflow gives infinity, denormals are exact.
//! Integer arithmetic only: the same bits on every processor.

use crate::{Dtype, Elem};
use core::cmp::Ordering;

/// IEEE 754 binary16.
#[allow(non_camel_case_types, reason = "spelled as the primitive floats are")]
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct f16(u16);

/// The upper half of an f32: 8 exponent bits, 7 mantissa bits.
#[allow(non_camel_case_types, reason = "spelled as the primitive floats are")]
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct bf16(u16);

/// An f64 as the f32 whose rounding to a float with at least two mantissa bits less gives the f64's own rounding:
/// truncated, with the last bit set where anything was cut off ("round to odd").
#[inline(always)]
pub fn f64_to_f32_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    if back == x || x.is_nan() || near.to_bits() & 1 == 1 {
        return near;
    }
    // `near` is even and off: its odd neighbour on the other side of `x` is the answer.
    let up = back.abs() < x.abs();
    f32::from_bits(if up { near.to_bits() + 1 } else { near.to_bits() - 1 })
}

impl f16 {
    /// The value 1.
    pub const ONE: Self = Self(0x3c00);

    /// The float with these bits.
    #[inline(always)]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[inline(always)]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// The exact value.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let bits = u32::from(self.0);
        let (sign, rest) = ((bits & 0x8000) << 16, (bits & 0x7fff) << 13);
        let magnitude = if rest >= 0x0f80_0000 {
            f32::from_bits(rest.wrapping_add(224 << 23)) // infinity, NaN
        } else if rest >= 0x0080_0000 {
            f32::from_bits(rest.wrapping_add(112 << 23))
        } else {
            // 2^-14 · (1 + mantissa) - 2^-14 is exact.
            f32::from_bits(rest.wrapping_add(113 << 23)) - f32::from_bits(113 << 23)
        };
        f32::from_bits(magnitude.to_bits() | sign)
    }

    /// Rounded to nearest, ties to even.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        let sign = (bits >> 16 & 0x8000) as u16;
        let rest = bits & 0x7fff_ffff;
        let magnitude = if rest > 0x7f80_0000 {
            0x7e00 | (rest >> 13 & 0x3ff)
        } else if rest >= 0x4780_0000 {
            0x7c00
        } else if rest < 0x3880_0000 {
            // Below 2^-14: adding 1/2 rounds at the last bit of a denormal.
            (f32::from_bits(rest) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits())
        } else {
            rest.wrapping_sub((112 << 23) - 0xfff).wrapping_add(rest >> 13 & 1) >> 13
        };
        Self(magnitude as u16 | sign)
    }

    /// Rounded once to nearest, ties to even.
    #[inline(always)]
    pub fn from_f64(x: f64) -> Self {
        Self::from_f32(f64_to_f32_odd(x))
    }
}

impl bf16 {
    /// The value 1.
    pub const ONE: Self = Self(0x3f80);

    /// The float with these bits.
    #[inline(always)]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[inline(always)]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// The exact value.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Rounded to nearest, ties to even.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        Self(if x.is_nan() {
            (bits >> 16) as u16 | 0x40
        } else {
            (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
        })
    }

    /// Rounded once to nearest, ties to even.
    #[inline(always)]
    pub fn from_f64(x: f64) -> Self {
        Self::from_f32(f64_to_f32_odd(x))
    }
}

macro_rules! traits {
    ($($t:ident = $d:ident),*) => { $(
        impl Elem for $t {
            const DTYPE: Dtype = Dtype::$d;
        }
        impl From<$t> for f32 {
            #[inline(always)]
            fn from(x: $t) -> f32 {
                x.to_f32()
            }
        }
        impl From<$t> for f64 {
            #[inline(always)]
            fn from(x: $t) -> f64 {
                f64::from(x.to_f32())
            }
        }
        impl PartialEq for $t {
            #[inline(always)]
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }
        impl PartialOrd for $t {
            #[inline(always)]
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }
        impl core::fmt::Debug for $t {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.to_f32().fmt(f)
            }
        }
    )* };
}
traits!(f16 = F16, bf16 = Bf16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_survives() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            for (x, back) in [
                (h.to_f32(), f16::from_f32(h.to_f32()).to_bits()),
                (b.to_f32(), bf16::from_f32(b.to_f32()).to_bits()),
                (h.to_f32(), f16::from_f64(h.into()).to_bits()),
                (b.to_f32(), bf16::from_f64(b.into()).to_bits()),
            ] {
                assert!(x.is_nan() && (back ^ bits) & 0x8000 == 0 || back == bits, "{bits:#x} -> {x} -> {back:#x}");
            }
        }
    }

    /// Between two neighbours: below the middle to the lower, above to the upper, the middle itself to the even one.
    #[test]
    fn rounds_to_nearest_even() {
        for bits in 0..0x7bffu16 {
            let even = bits + (bits & 1);
            let (a, b) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits + 1).to_f32());
            let middle = (a + b) / 2.0;
            for (x, want) in [(middle.next_down(), bits), (middle, even), (middle.next_up(), bits + 1)] {
                assert_eq!(f16::from_f32(x).to_bits(), want, "{x}");
                assert_eq!(f16::from_f32(-x).to_bits(), want | 0x8000, "{x}");
            }
            let middle = f64::from(middle);
            for (x, want) in [(middle.next_down(), bits), (middle, even), (middle.next_up(), bits + 1)] {
                assert_eq!(f16::from_f64(x).to_bits(), want, "{x}");
            }
        }
        for bits in 0..0x7f7fu16 {
            let even = bits + (bits & 1);
            let (a, b) = (f64::from(bf16::from_bits(bits)), f64::from(bf16::from_bits(bits + 1)));
            let middle = (a + b) / 2.0;
            for (x, want) in [(middle.next_down(), bits), (middle, even), (middle.next_up(), bits + 1)] {
                assert_eq!(bf16::from_f64(x).to_bits(), want, "{x}");
            }
            let middle = middle as f32;
            for (x, want) in [(middle.next_down(), bits), (middle, even), (middle.next_up(), bits + 1)] {
                assert_eq!(bf16::from_f32(x).to_bits(), want, "{x}");
            }
        }
    }

    #[test]
    fn limits() {
        for (x, half, brain) in [
            (65504.0, 0x7bffu16, 0x4780u16),
            (65519.99, 0x7bff, 0x4780),
            (65520.0, 0x7c00, 0x4780),
            (f32::INFINITY, 0x7c00, 0x7f80),
            (f32::MAX, 0x7c00, 0x7f80),
            (f32::MIN, 0xfc00, 0xff80),
            (5.9604645e-8, 0x0001, 0x3380),
            (2.9802322e-8, 0x0000, 0x3300),
            (2.980233e-8, 0x0001, 0x3300),
            (1e-45, 0x0000, 0x0000),
            (-0.0, 0x8000, 0x8000),
        ] {
            assert_eq!((f16::from_f32(x).to_bits(), bf16::from_f32(x).to_bits()), (half, brain), "{x:e}");
        }
        assert!(f16::from_f32(f32::NAN).to_f32().is_nan() && bf16::from_f32(f32::NAN).to_f32().is_nan());
        assert!(f32::from(bf16::from_f32(f32::from_bits(0x7f80_0001))).is_nan());
        assert_eq!(f16::from_f64(1e300).to_bits(), 0x7c00);
        assert_eq!(f16::from_f64(-1e-300).to_bits(), 0x8000);
        assert!(f16::from_bits(0x8000) == f16::from_bits(0) && f16::from_bits(0x7e00) != f16::from_bits(0x7e00));
    }
}
