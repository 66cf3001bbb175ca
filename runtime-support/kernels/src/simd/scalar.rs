//! The logical vector as an array, in portable Rust: the baseline of every target and the oracle of the others.
//!
//! Invariant: every method gives the same bits on every processor: no fused multiply-add, correctly rounded square root.
//! The compiler turns the loops into what vectors the target's baseline has.

use super::{F32x16, I32x16, LANES, Simd};
use crate::isa::Isa;
use core::array::from_fn;
use core::ops::{Add, Div, Mul, Neg, Sub};

/// The token of portable code.
#[derive(Clone, Copy, Debug)]
pub struct Scalar;

/// Sixteen f32.
#[derive(Clone, Copy, Debug)]
pub struct F32([f32; LANES]);

impl Simd for Scalar {
    type F32 = F32;
    type I32 = I32;
    const ISA: Isa = Isa::Scalar;

    #[inline(always)]
    fn splat(self, x: f32) -> F32 {
        F32([x; LANES])
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F32 {
        // SAFETY: the caller vouches for 16 lanes; an array of f32 has the alignment of f32.
        F32(unsafe { p.cast::<[f32; LANES]>().read() })
    }

    #[inline(always)]
    unsafe fn load_n(self, p: *const f32, n: usize) -> F32 {
        let mut a = [0.0; LANES];
        // SAFETY: the caller vouches for `n <= 16` lanes.
        unsafe { core::ptr::copy_nonoverlapping(p, a.as_mut_ptr(), n) };
        F32(a)
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> I32 {
        I32([x; LANES])
    }

    #[inline(always)]
    unsafe fn load_i32(self, p: *const i32) -> I32 {
        // SAFETY: the caller vouches for 16 lanes; an array of i32 has the alignment of i32.
        I32(unsafe { p.cast::<[i32; LANES]>().read() })
    }

    #[inline(always)]
    fn to_i32(self, x: F32) -> I32 {
        // The first value that does not fit is 2^31; the comparison is false for NaN.
        let convert = |x: f32| if (-2_147_483_648.0..2_147_483_648.0).contains(&x) { x as i32 } else { i32::MIN };
        I32(x.round().to_array().map(convert))
    }
}

/// Sixteen i32.
#[derive(Clone, Copy, Debug)]
pub struct I32([i32; LANES]);

macro_rules! integer_operator {
    ($($trait:ident $method:ident $wrapping:ident),*) => {$(
        impl $trait for I32 {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self(from_fn(|i| self.0[i].$wrapping(other.0[i])))
            }
        }
    )*};
}
integer_operator!(Add add wrapping_add, Sub sub wrapping_sub, Mul mul wrapping_mul);

impl I32x16 for I32 {
    type F32 = F32;

    #[inline(always)]
    fn to_f32(self) -> F32 {
        F32(self.0.map(|x| x as f32))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut i32) {
        // SAFETY: the caller vouches for 16 lanes; an array of i32 has the alignment of i32.
        unsafe { p.cast::<[i32; LANES]>().write(self.0) }
    }

    #[inline(always)]
    fn to_u8(self) -> [u8; LANES] {
        self.0.map(|x| x.clamp(0, 255) as u8)
    }

    #[inline(always)]
    fn to_i8(self) -> [i8; LANES] {
        self.0.map(|x| x.clamp(-128, 127) as i8)
    }
}

macro_rules! operator {
    ($($trait:ident $method:ident $op:tt),*) => {$(
        impl $trait for F32 {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                self.zip(other, |a, b| a $op b)
            }
        }
    )*};
}
operator!(Add add +, Sub sub -, Mul mul *, Div div /);

impl Neg for F32 {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        self.map(|x| -x)
    }
}

impl F32 {
    #[inline(always)]
    fn map(self, f: impl Fn(f32) -> f32) -> Self {
        Self(from_fn(|i| f(self.0[i])))
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(from_fn(|i| f(self.0[i], other.0[i])))
    }

    #[inline(always)]
    fn compare(self, other: Self, f: impl Fn(f32, f32) -> bool) -> [u32; LANES] {
        from_fn(|i| if f(self.0[i], other.0[i]) { !0 } else { 0 })
    }

    /// Halves until one lane is left.
    #[inline(always)]
    fn reduce(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut a = self.0;
        let mut n = LANES / 2;
        while n > 0 {
            for i in 0..n {
                a[i] = f(a[i], a[i + n]);
            }
            n /= 2;
        }
        a[0]
    }
}

#[inline(always)]
fn min(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

#[inline(always)]
fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// To the nearest integer, ties to even: the addition of 2^23 rounds.
#[inline(always)]
pub fn round(x: f32) -> f32 {
    const FIRST_WITHOUT_FRACTION: f32 = 8_388_608.0;
    let magnitude = x.abs();
    let rounded = ((magnitude + FIRST_WITHOUT_FRACTION) - FIRST_WITHOUT_FRACTION).copysign(x);
    if magnitude < FIRST_WITHOUT_FRACTION { rounded } else { x }
}

/// To the greatest integer not above.
#[inline(always)]
pub fn floor(x: f32) -> f32 {
    let rounded = round(x);
    if rounded > x { rounded - 1.0 } else { rounded }
}

/// Correctly rounded square root.
#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        use core::arch::x86_64::*;
        _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)))
    }
    #[cfg(not(target_arch = "x86_64"))]
    sqrt_by_integers(x)
}

/// Correctly rounded square root where the target has no instruction for it that stable `core` reaches.
#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
pub(super) fn sqrt_by_integers(x: f32) -> f32 {
    if x.is_nan() || x == 0.0 || x == f32::INFINITY {
        return x;
    }
    if x < 0.0 {
        return f32::NAN;
    }
    let (bits, bias) = if x < f32::MIN_POSITIVE { ((x * 16_777_216.0).to_bits(), 151) } else { (x.to_bits(), 127) };
    let mut exponent = (bits >> 23) as i32 - bias;
    let mut mantissa = u64::from(bits & 0x007f_ffff | 0x0080_0000); // x = mantissa · 2^(exponent - 23)
    if exponent & 1 != 0 {
        mantissa <<= 1;
        exponent -= 1;
    }
    // The root of mantissa · 2^25 has 25 bits: 24 of result and one to round by. An exact half cannot occur.
    let root = ((mantissa << 25).isqrt() + 1) >> 1;
    f32::from_bits((root as u32).wrapping_add(((exponent / 2 + 126) as u32) << 23))
}

impl F32x16 for F32 {
    type Mask = [u32; LANES];

    #[inline(always)]
    fn splat_like(self, x: f32) -> Self {
        Self([x; LANES])
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller vouches for 16 lanes; an array of f32 has the alignment of f32.
        unsafe { p.cast::<[f32; LANES]>().write(self.0) }
    }

    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        // SAFETY: the caller vouches for `n <= 16` lanes.
        unsafe { core::ptr::copy_nonoverlapping(self.0.as_ptr(), p, n) }
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        self * b + c
    }

    #[inline(always)]
    fn fnma(self, b: Self, c: Self) -> Self {
        c - self * b
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, min)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, max)
    }

    #[inline(always)]
    fn abs(self) -> Self {
        self.map(f32::abs)
    }

    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        self.zip(sign, f32::copysign)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.map(sqrt)
    }

    #[inline(always)]
    fn round(self) -> Self {
        self.map(round)
    }

    #[inline(always)]
    fn floor(self) -> Self {
        self.map(floor)
    }

    #[inline(always)]
    fn lt(self, other: Self) -> Self::Mask {
        self.compare(other, |a, b| a < b)
    }

    #[inline(always)]
    fn le(self, other: Self) -> Self::Mask {
        self.compare(other, |a, b| a <= b)
    }

    #[inline(always)]
    fn eq(self, other: Self) -> Self::Mask {
        self.compare(other, |a, b| a == b)
    }

    #[inline(always)]
    fn is_nan(self) -> Self::Mask {
        self.compare(self, |a, _| a.is_nan())
    }

    #[inline(always)]
    fn and(a: Self::Mask, b: Self::Mask) -> Self::Mask {
        from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    fn or(a: Self::Mask, b: Self::Mask) -> Self::Mask {
        from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        Self(from_fn(|i| f32::from_bits(a.0[i].to_bits() & mask[i] | b.0[i].to_bits() & !mask[i])))
    }

    #[inline(always)]
    fn mul_pow2(self, n: Self) -> Self {
        self.zip(n, |x, n| {
            // Wraps for the `n` outside the contract, whose result is unspecified.
            let n = n as i32;
            let half = n >> 1;
            let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
            x * power(half) * power(n.wrapping_sub(half))
        })
    }

    #[inline(always)]
    fn split_pow2(self) -> (Self, Self) {
        (
            self.map(|x| f32::from_bits(x.to_bits() & 0x007f_ffff | 0x3f80_0000)),
            self.map(|x| (x.to_bits() >> 23) as i32 as f32 - 127.0),
        )
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.reduce(|a, b| a + b)
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        self.reduce(max)
    }

    #[inline(always)]
    fn min_lane(self) -> f32 {
        self.reduce(min)
    }
}
