//! Floats of 8, 6 and 4 bits, one code per byte: conversion from and to f32.
//!
//! In: an f32 and a [`SmallFloat`] format. Out: the code in the low bits of a byte, rounded to nearest, ties to even, with
//! ONNX Cast's rules for what does not fit. `f8e8m0` (powers of two, no sign) has rounding modes of its own.
//! Source: <https://onnx.ai/onnx/operators/onnx__Cast.html>, <https://onnx.ai/onnx/technical/float8.html>, and the OCP
//! microscaling formats (MX) v1.0.

use crate::{Dtype, param_enum};

param_enum! {
    /// A float format whose code takes at most a byte.
    pub enum SmallFloat {
        /// 1-4-3, no infinities, NaN is all ones.
        F8E4M3FN,
        /// 1-4-3, bias 8, NaN is 0x80, no negative zero.
        F8E4M3FNUZ,
        /// 1-5-2, IEEE-like.
        F8E5M2,
        /// 1-5-2, bias 16, NaN is 0x80, no negative zero.
        F8E5M2FNUZ,
        /// 1-2-1, finite values only.
        F4E2M1,
        /// 1-2-3, finite values only.
        F6E2M3,
        /// 1-3-2, finite values only.
        F6E3M2,
        /// Powers of two from 2^-127 to 2^127, NaN is 0xff.
        F8E8M0
    }
}

param_enum! {
    /// How `f8e8m0` rounds (the others always round to nearest, ties to even).
    pub enum PowerRounding {
        /// Away from zero.
        Up,
        /// Towards zero.
        Down,
        /// To nearest, ties away from zero.
        Nearest
    }
}

/// Field widths, bias and greatest finite code.
#[derive(Clone, Copy)]
struct Shape {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    max_code: u8,
    /// Code of NaN without its sign, where there is one.
    nan: Option<u8>,
    /// Code of infinity without its sign, where there is one.
    infinity: Option<u8>,
    /// NaN and zero have one code only.
    unsigned_zero: bool,
}

impl SmallFloat {
    /// The format of an element type.
    pub const fn of(dtype: Dtype) -> Option<Self> {
        Some(match dtype {
            Dtype::F8E4M3FN => Self::F8E4M3FN,
            Dtype::F8E4M3FNUZ => Self::F8E4M3FNUZ,
            Dtype::F8E5M2 => Self::F8E5M2,
            Dtype::F8E5M2FNUZ => Self::F8E5M2FNUZ,
            Dtype::F4E2M1 => Self::F4E2M1,
            Dtype::F6E2M3 => Self::F6E2M3,
            Dtype::F6E3M2 => Self::F6E3M2,
            Dtype::F8E8M0 => Self::F8E8M0,
            _ => return None,
        })
    }

    const fn shape(self) -> Shape {
        let (exponent_bits, mantissa_bits, bias, max_code, nan, infinity, unsigned_zero) = match self {
            Self::F8E4M3FN => (4, 3, 7, 0x7e, Some(0x7f), None, false),
            Self::F8E4M3FNUZ => (4, 3, 8, 0x7f, Some(0x80), None, true),
            Self::F8E5M2 => (5, 2, 15, 0x7b, Some(0x7e), Some(0x7c), false),
            Self::F8E5M2FNUZ => (5, 2, 16, 0x7f, Some(0x80), None, true),
            Self::F4E2M1 => (2, 1, 1, 0x07, None, None, false),
            Self::F6E2M3 => (2, 3, 1, 0x1f, None, None, false),
            Self::F6E3M2 => (3, 2, 3, 0x1f, None, None, false),
            Self::F8E8M0 => (8, 0, 127, 0xfe, Some(0xff), None, true),
        };
        Shape { exponent_bits, mantissa_bits, bias, max_code, nan, infinity, unsigned_zero }
    }

    /// The exact value of a code.
    pub fn decode(self, code: u8) -> f32 {
        let s = self.shape();
        if matches!(self, Self::F8E8M0) {
            return match code {
                0xff => f32::NAN,
                0 => f32::from_bits(1 << 22), // 2^-127
                _ => f32::from_bits(u32::from(code) << 23),
            };
        }
        let sign_bit = 1u8 << (s.exponent_bits + s.mantissa_bits);
        let sign = if code & sign_bit != 0 { -1.0f32 } else { 1.0 };
        let magnitude = code & (sign_bit - 1);
        if s.unsigned_zero && code == 0x80 {
            return f32::NAN;
        }
        if s.infinity == Some(magnitude) {
            return f32::INFINITY.copysign(sign);
        }
        if !s.unsigned_zero && s.nan.is_some() && magnitude > s.max_code {
            return f32::NAN.copysign(sign);
        }
        let exponent = i32::from(magnitude >> s.mantissa_bits);
        let fraction = u32::from(magnitude) & ((1 << s.mantissa_bits) - 1);
        let (fraction, exponent) =
            if exponent == 0 { (fraction, 1) } else { (fraction | 1 << s.mantissa_bits, exponent) };
        // An integer of few bits times a power of two that f32 holds as a normal number.
        let unit = exponent - s.bias - s.mantissa_bits as i32;
        (fraction as f32 * f32::from_bits(((unit + 127) as u32) << 23)).copysign(sign)
    }

    /// The code of a value; not for `F8E8M0`, see [`encode_e8m0`].
    ///
    /// What does not fit becomes the greatest finite value of its sign where `saturate` says so, else infinity or NaN.
    /// `infinity_saturates` is for infinity in the FNUZ formats alone: it became NaN before opset 24, and saturates
    /// since. Formats without infinity and NaN always saturate; NaN becomes their negative zero.
    #[inline(always)]
    pub fn encode(self, x: f32, saturate: bool, infinity_saturates: bool) -> u8 {
        let s = self.shape();
        let bits = x.to_bits();
        let sign = if bits >> 31 == 1 { 1u8 << (s.exponent_bits + s.mantissa_bits) } else { 0 };
        let rest = bits & 0x7fff_ffff;
        if rest > 0x7f80_0000 {
            return match s.nan {
                Some(nan) if s.unsigned_zero => nan,
                Some(nan) => nan | sign,
                None => 1 << (s.exponent_bits + s.mantissa_bits),
            };
        }
        let infinite = rest == 0x7f80_0000;
        let code = if infinite { u32::MAX } else { round_code(rest, s) };
        if code <= u32::from(s.max_code) {
            let code = code as u8;
            return if code == 0 && s.unsigned_zero { 0 } else { code | sign };
        }
        if s.nan.is_none() || saturate && (infinity_saturates || !infinite || !s.unsigned_zero) {
            return s.max_code | sign;
        }
        match (s.infinity, s.nan) {
            (Some(infinity), _) => infinity | sign,
            (None, Some(nan)) if s.unsigned_zero => nan,
            (None, Some(nan)) => nan | sign,
            (None, None) => s.max_code | sign,
        }
    }
}

/// The magnitude code of a finite f32's magnitude, beyond `max_code` where it does not fit.
#[inline(always)]
fn round_code(rest: u32, s: Shape) -> u32 {
    let (mut mantissa, exponent) = (rest & 0x7f_ffff, (rest >> 23) as i32);
    let exponent = if exponent == 0 {
        1
    } else {
        mantissa |= 0x80_0000;
        exponent
    };
    // Weight of the target's last bit: of the value's own binade, or of the denormals.
    let exponent = exponent - 127;
    let least = 1 - s.bias;
    let target = exponent.max(least);
    let shift = (23 - s.mantissa_bits as i32 + target - exponent).min(31) as u32;
    let kept = (u64::from(mantissa) >> shift) as u32;
    let cut = mantissa & (1u32 << shift).wrapping_sub(1);
    let half = 1u32 << (shift - 1);
    let rounded = kept + u32::from(cut > half || cut == half && kept & 1 == 1);
    // A carry out of the mantissa raises the exponent by itself; denormals have `target == least` and no implicit bit.
    (((target - least) as u32) << s.mantissa_bits) + rounded
}

/// The `f8e8m0` code of a magnitude (its sign is not looked at).
///
/// Values beyond the range become the nearest limit (`saturate`) or NaN; zero counts as beyond it.
pub fn encode_e8m0(x: f32, rounding: PowerRounding, saturate: bool) -> u8 {
    let rest = x.to_bits() & 0x7fff_ffff;
    if rest > 0x7f80_0000 {
        return 0xff;
    }
    // Denormals scaled into the normal range: exponents from -149 on.
    let (bits, scale) =
        if rest < 0x0080_0000 { ((f32::from_bits(rest) * 16_777_216.0).to_bits(), 24) } else { (rest, 0) };
    let mantissa = bits & 0x7f_ffff;
    let up = match rounding {
        PowerRounding::Up => mantissa > 0,
        PowerRounding::Down => false,
        PowerRounding::Nearest => mantissa >= 0x40_0000,
    };
    let code = (bits >> 23) as i32 - scale + i32::from(up);
    match (saturate, rest == 0 || code < 0, code > 0xfe) {
        (_, false, false) => code as u8,
        (true, true, _) => 0,
        (true, _, true) => 0xfe,
        _ => 0xff,
    }
}

#[cfg(test)]
mod tests {
    use super::SmallFloat::*;
    use super::*;

    const ALL: [(SmallFloat, u32, f32); 7] = [
        (F8E4M3FN, 8, 448.0),
        (F8E4M3FNUZ, 8, 240.0),
        (F8E5M2, 8, 57344.0),
        (F8E5M2FNUZ, 8, 57344.0),
        (F4E2M1, 4, 6.0),
        (F6E2M3, 6, 7.5),
        (F6E3M2, 6, 28.0),
    ];

    #[test]
    fn every_code_survives_and_middles_round_to_even() {
        for (format, bits, max) in ALL {
            assert_eq!(format.decode(format.shape().max_code), max);
            for code in 0..(1u32 << bits) as u16 {
                let code = code as u8;
                let x = format.decode(code);
                let back = format.encode(x, false, true);
                assert!(back == code || x.is_nan() && format.decode(back).is_nan(), "{format:?} {code:#x} {x}");
            }
            for code in 0..format.shape().max_code {
                let (a, b) = (format.decode(code), format.decode(code + 1));
                let middle = (a + b) / 2.0;
                let even = code + (code & 1);
                for (x, want) in [(middle.next_down(), code), (middle, even), (middle.next_up(), code + 1)] {
                    assert_eq!(format.encode(x, true, true), want, "{format:?} {x}");
                }
            }
        }
    }

    #[test]
    fn overflow_rules() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for (format, x, saturated, not_saturated) in [
            (F8E4M3FN, 1e6, 0x7e, 0x7f),
            (F8E4M3FN, -inf, 0xfe, 0xff),
            (F8E4M3FN, 464.0, 0x7e, 0x7e),
            (F8E4M3FN, 465.0, 0x7e, 0x7f),
            (F8E4M3FN, -0.0, 0x80, 0x80),
            (F8E4M3FNUZ, inf, 0x7f, 0x80),
            (F8E4M3FNUZ, -0.0, 0, 0),
            (F8E4M3FNUZ, -1e-9, 0, 0),
            (F8E4M3FNUZ, nan, 0x80, 0x80),
            (F8E5M2, inf, 0x7b, 0x7c),
            (F8E5M2, -1e6, 0xfb, 0xfc),
            (F8E5M2, nan, 0x7e, 0x7e),
            (F8E5M2FNUZ, -inf, 0xff, 0x80),
            (F4E2M1, 100.0, 7, 7),
            (F4E2M1, -inf, 15, 15),
            (F4E2M1, -0.0, 8, 8),
            (F4E2M1, nan, 8, 8),
            (F6E3M2, nan, 0x20, 0x20),
        ] {
            assert_eq!(format.encode(x, true, true), saturated, "{format:?} {x}");
            assert_eq!(format.encode(x, false, true), not_saturated, "{format:?} {x}");
        }
        assert_eq!(F8E4M3FNUZ.encode(inf, true, false), 0x80);
        assert_eq!(F8E4M3FN.encode(inf, true, false), 0x7e);
    }

    #[test]
    fn powers_of_two() {
        use PowerRounding::*;
        for (x, up, down, nearest, not_saturated) in [
            (1.0, 127, 127, 127, 127),
            (1.4, 128, 127, 127, 127),
            (1.5, 128, 127, 128, 128),
            (0.0, 0, 0, 0, 0xff),
            (f32::MAX, 0xfe, 0xfe, 0xfe, 0xff),
            (f32::INFINITY, 0xfe, 0xfe, 0xfe, 0xff),
            (1e-45, 0, 0, 0, 0xff),
            (5.877472e-39, 0, 0, 0, 0),
            (8.816208e-39, 1, 0, 1, 1),
        ] {
            let got = [Up, Down, Nearest].map(|r| encode_e8m0(x, r, true));
            assert_eq!(got, [up, down, nearest], "{x:e}");
            assert_eq!(encode_e8m0(x, Nearest, false), not_saturated, "{x:e}");
        }
        assert_eq!(encode_e8m0(f32::NAN, Up, true), 0xff);
        for code in 0..0xffu8 {
            assert_eq!(encode_e8m0(F8E8M0.decode(code), Nearest, false), code);
        }
    }
}
