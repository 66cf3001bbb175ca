//! The logical vector as four 128-bit NEON registers (part of every aarch64).
//!
//! Invariant: this module is compiled only where NEON is part of the target, so its instructions run everywhere it does.

use super::{F32x16, I32x16, LANES, Simd};
use crate::isa::Isa;
use core::arch::aarch64::*;
use core::array::from_fn;
use core::ops::{Add, Div, Mul, Neg, Sub};

/// Registers to a logical vector.
const N: usize = 4;

/// The token of NEON.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

impl Neon {
    /// The token: NEON is part of the compile target.
    #[inline(always)]
    pub const fn new() -> Self {
        Self(())
    }
}

impl Default for Neon {
    fn default() -> Self {
        Self::new()
    }
}

/// Sixteen f32 in four registers.
#[derive(Clone, Copy, Debug)]
pub struct F32([float32x4_t; N]);

impl Simd for Neon {
    type F32 = F32;
    type I32 = I32;
    const ISA: Isa = Isa::Neon;

    #[inline(always)]
    fn splat(self, x: f32) -> F32 {
        // SAFETY: NEON is part of the target.
        F32([unsafe { vdupq_n_f32(x) }; N])
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F32 {
        // SAFETY: NEON is part of the target; the caller vouches for 16 lanes.
        F32(from_fn(|i| unsafe { vld1q_f32(p.add(4 * i)) }))
    }

    #[inline(always)]
    unsafe fn load_n(self, p: *const f32, n: usize) -> F32 {
        let mut a = [0.0; LANES];
        // SAFETY: the caller vouches for `n <= 16` lanes.
        unsafe { core::ptr::copy_nonoverlapping(p, a.as_mut_ptr(), n) };
        self.array(a)
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
        Neon(()).array(self.0.map(|x| x as f32))
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

/// One instruction on each of the four registers.
macro_rules! each {
    ($i:ident => $e:expr) => {
        // SAFETY: NEON is part of the target; registers only.
        from_fn(|$i| unsafe { $e })
    };
}

macro_rules! operator {
    ($($trait:ident $method:ident $instruction:ident),*) => {$(
        impl $trait for F32 {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self(each!(i => $instruction(self.0[i], other.0[i])))
            }
        }
    )*};
}
operator!(Add add vaddq_f32, Sub sub vsubq_f32, Mul mul vmulq_f32, Div div vdivq_f32);

impl Neg for F32 {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Self(each!(i => vnegq_f32(self.0[i])))
    }
}

/// Defines a reduction by halves.
macro_rules! reduce {
    ($name:ident, $instruction:ident) => {
        #[inline(always)]
        fn $name(self) -> f32 {
            let [a, b, c, d] = self.0;
            // SAFETY: NEON is part of the target; registers only.
            unsafe {
                let v = $instruction($instruction(a, c), $instruction(b, d));
                let v = $instruction(v, vextq_f32::<2>(v, v));
                vgetq_lane_f32::<0>($instruction(v, vextq_f32::<1>(v, v)))
            }
        }
    };
}

/// `a < b ? a : b`.
///
/// # Safety
/// NEON runs here.
#[inline(always)]
unsafe fn min4(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: registers only.
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

/// `a > b ? a : b`.
///
/// # Safety
/// NEON runs here.
#[inline(always)]
unsafe fn max4(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: registers only.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

impl F32x16 for F32 {
    type Mask = [uint32x4_t; N];

    #[inline(always)]
    fn splat_like(self, x: f32) -> Self {
        Self(each!(_i => vdupq_n_f32(x)))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        for i in 0..N {
            // SAFETY: NEON is part of the target; the caller vouches for 16 lanes.
            unsafe { vst1q_f32(p.add(4 * i), self.0[i]) }
        }
    }

    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        let a = self.to_array();
        // SAFETY: the caller vouches for `n <= 16` lanes.
        unsafe { core::ptr::copy_nonoverlapping(a.as_ptr(), p, n) }
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Self(each!(i => vfmaq_f32(c.0[i], self.0[i], b.0[i])))
    }

    #[inline(always)]
    fn fnma(self, b: Self, c: Self) -> Self {
        Self(each!(i => vfmsq_f32(c.0[i], self.0[i], b.0[i])))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(each!(i => min4(self.0[i], other.0[i])))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(each!(i => max4(self.0[i], other.0[i])))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(each!(i => vabsq_f32(self.0[i])))
    }

    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        Self(each!(i => vbslq_f32(vdupq_n_u32(0x8000_0000), sign.0[i], self.0[i])))
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(each!(i => vsqrtq_f32(self.0[i])))
    }

    #[inline(always)]
    fn round(self) -> Self {
        Self(each!(i => vrndnq_f32(self.0[i])))
    }

    #[inline(always)]
    fn floor(self) -> Self {
        Self(each!(i => vrndmq_f32(self.0[i])))
    }

    #[inline(always)]
    fn lt(self, other: Self) -> Self::Mask {
        each!(i => vcltq_f32(self.0[i], other.0[i]))
    }

    #[inline(always)]
    fn le(self, other: Self) -> Self::Mask {
        each!(i => vcleq_f32(self.0[i], other.0[i]))
    }

    #[inline(always)]
    fn eq(self, other: Self) -> Self::Mask {
        each!(i => vceqq_f32(self.0[i], other.0[i]))
    }

    #[inline(always)]
    fn is_nan(self) -> Self::Mask {
        each!(i => vmvnq_u32(vceqq_f32(self.0[i], self.0[i])))
    }

    #[inline(always)]
    fn and(a: Self::Mask, b: Self::Mask) -> Self::Mask {
        each!(i => vandq_u32(a[i], b[i]))
    }

    #[inline(always)]
    fn or(a: Self::Mask, b: Self::Mask) -> Self::Mask {
        each!(i => vorrq_u32(a[i], b[i]))
    }

    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        Self(each!(i => vbslq_f32(mask[i], a.0[i], b.0[i])))
    }

    #[inline(always)]
    fn mul_pow2(self, n: Self) -> Self {
        Self(each!(i => {
            let n = vcvtnq_s32_f32(n.0[i]);
            let half = vshrq_n_s32::<1>(n);
            let bias = vdupq_n_s32(127);
            let low = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(half, bias)));
            let high = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vsubq_s32(n, half), bias)));
            vmulq_f32(vmulq_f32(self.0[i], low), high)
        }))
    }

    #[inline(always)]
    fn split_pow2(self) -> (Self, Self) {
        let mantissa = each!(i => {
            let bits = vandq_u32(vreinterpretq_u32_f32(self.0[i]), vdupq_n_u32(0x007f_ffff));
            vreinterpretq_f32_u32(vorrq_u32(bits, vdupq_n_u32(0x3f80_0000)))
        });
        let exponent = each!(i => {
            let biased = vreinterpretq_s32_u32(vshrq_n_u32::<23>(vreinterpretq_u32_f32(self.0[i])));
            vcvtq_f32_s32(vsubq_s32(biased, vdupq_n_s32(127)))
        });
        (Self(mantissa), Self(exponent))
    }

    reduce!(sum, vaddq_f32);
    reduce!(max_lane, max4);
    reduce!(min_lane, min4);
}
