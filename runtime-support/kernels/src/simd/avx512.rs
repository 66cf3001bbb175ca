//! The logical vector as one 512-bit register (AVX-512 F, BW, DQ, VL and the AVX2 set).
//!
//! Invariant: an [`Avx512`] exists only where these instructions run, and an [`F32`] only where an [`Avx512`] did.

use super::{F32x16, I32x16, LANES, Simd};
use crate::isa::Isa;
use core::arch::x86_64::*;
use core::ops::{Add, Div, Mul, Neg, Sub};

/// Proof that AVX-512 runs here.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// The token of `isa`, if it is this one.
    #[inline(always)]
    pub fn new(isa: Isa) -> Option<Self> {
        (isa == Isa::Avx512).then_some(Self(()))
    }

    /// The token, unchecked.
    ///
    /// # Safety
    /// The processor and its operating system support [`Isa::Avx512`].
    #[inline(always)]
    pub const unsafe fn assume() -> Self {
        Self(())
    }
}

/// Sixteen f32 in a register.
#[derive(Clone, Copy, Debug)]
pub struct F32(pub(crate) __m512);

/// Sixteen i32 in a register.
#[derive(Clone, Copy, Debug)]
pub struct I32(__m512i);

/// The mask of the first `n` lanes.
#[inline(always)]
const fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

impl Simd for Avx512 {
    type F32 = F32;
    type I32 = I32;
    const ISA: Isa = Isa::Avx512;

    #[inline(always)]
    fn splat(self, x: f32) -> F32 {
        // SAFETY: the token proves AVX-512.
        F32(unsafe { _mm512_set1_ps(x) })
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F32 {
        // SAFETY: the token proves AVX-512; the caller vouches for the memory.
        F32(unsafe { _mm512_loadu_ps(p) })
    }

    #[inline(always)]
    unsafe fn load_n(self, p: *const f32, n: usize) -> F32 {
        // SAFETY: as for `load`; masked lanes do not touch memory.
        F32(unsafe { _mm512_maskz_loadu_ps(first(n), p) })
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> I32 {
        // SAFETY: the token proves AVX-512.
        I32(unsafe { _mm512_set1_epi32(x) })
    }

    #[inline(always)]
    unsafe fn load_i32(self, p: *const i32) -> I32 {
        // SAFETY: the token proves AVX-512; the caller vouches for the memory.
        I32(unsafe { _mm512_loadu_si512(p.cast()) })
    }

    #[inline(always)]
    unsafe fn load_i32_n(self, p: *const i32, n: usize) -> I32 {
        // SAFETY: as for `load_i32`; masked lanes do not touch memory.
        I32(unsafe { _mm512_maskz_loadu_epi32(first(n), p) })
    }

    #[inline(always)]
    fn to_i32(self, x: F32) -> I32 {
        // SAFETY: the token proves AVX-512.
        I32(unsafe { _mm512_cvtps_epi32(x.0) })
    }
}

/// One instruction on registers.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: a vector in hand proves AVX-512 (see the module's invariant); the instruction works on registers only.
        unsafe { $e }
    };
}

macro_rules! operator {
    ($($V:ident $trait:ident $method:ident $instruction:ident),*) => {$(
        impl $trait for $V {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self(op!($instruction(self.0, other.0)))
            }
        }
    )*};
}
operator!(F32 Add add _mm512_add_ps, F32 Sub sub _mm512_sub_ps, F32 Mul mul _mm512_mul_ps, F32 Div div _mm512_div_ps);
operator!(I32 Add add _mm512_add_epi32, I32 Sub sub _mm512_sub_epi32, I32 Mul mul _mm512_mullo_epi32);

impl I32x16 for I32 {
    type F32 = F32;

    #[inline(always)]
    fn to_f32(self) -> F32 {
        F32(op!(_mm512_cvtepi32_ps(self.0)))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut i32) {
        // SAFETY: the vector proves AVX-512; the caller vouches for the memory.
        unsafe { _mm512_storeu_si512(p.cast(), self.0) }
    }

    #[inline(always)]
    fn to_u8(self) -> [u8; LANES] {
        let mut a = [0; LANES];
        // SAFETY: the vector proves AVX-512; the array has 16 bytes.
        unsafe {
            let bytes = _mm512_cvtusepi32_epi8(_mm512_max_epi32(self.0, _mm512_setzero_si512()));
            _mm_storeu_si128(a.as_mut_ptr().cast(), bytes);
        }
        a
    }

    #[inline(always)]
    fn to_i8(self) -> [i8; LANES] {
        let mut a = [0; LANES];
        // SAFETY: the vector proves AVX-512; the array has 16 bytes.
        unsafe { _mm_storeu_si128(a.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(self.0)) };
        a
    }
}

impl Neg for F32 {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Self(op!(_mm512_xor_ps(self.0, _mm512_set1_ps(-0.0))))
    }
}

impl F32 {
    /// The lanes 0..8 and 8..16.
    #[inline(always)]
    fn halves(self) -> (__m256, __m256) {
        op!((_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0)))
    }
}

impl F32x16 for F32 {
    type Mask = __mmask16;

    #[inline(always)]
    fn splat_like(self, x: f32) -> Self {
        Self(op!(_mm512_set1_ps(x)))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the vector proves AVX-512; the caller vouches for the memory.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }

    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        // SAFETY: as for `store`; masked lanes do not touch memory.
        unsafe { _mm512_mask_storeu_ps(p, first(n), self.0) }
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Self(op!(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }

    #[inline(always)]
    fn fnma(self, b: Self, c: Self) -> Self {
        Self(op!(_mm512_fnmadd_ps(self.0, b.0, c.0)))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(op!(_mm512_min_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(op!(_mm512_max_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(op!(_mm512_abs_ps(self.0)))
    }

    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        let minus_zero = self.splat_like(-0.0);
        Self(op!(_mm512_or_ps(_mm512_andnot_ps(minus_zero.0, self.0), _mm512_and_ps(minus_zero.0, sign.0))))
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(op!(_mm512_sqrt_ps(self.0)))
    }

    #[inline(always)]
    fn round(self) -> Self {
        Self(op!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)))
    }

    #[inline(always)]
    fn floor(self) -> Self {
        Self(op!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(self.0)))
    }

    #[inline(always)]
    fn lt(self, other: Self) -> __mmask16 {
        op!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, other.0))
    }

    #[inline(always)]
    fn le(self, other: Self) -> __mmask16 {
        op!(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(self.0, other.0))
    }

    #[inline(always)]
    fn eq(self, other: Self) -> __mmask16 {
        op!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, other.0))
    }

    #[inline(always)]
    fn is_nan(self) -> __mmask16 {
        op!(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0))
    }

    #[inline(always)]
    fn and(a: __mmask16, b: __mmask16) -> __mmask16 {
        a & b
    }

    #[inline(always)]
    fn or(a: __mmask16, b: __mmask16) -> __mmask16 {
        a | b
    }

    #[inline(always)]
    fn select(mask: __mmask16, a: Self, b: Self) -> Self {
        Self(op!(_mm512_mask_blend_ps(mask, b.0, a.0)))
    }

    #[inline(always)]
    fn mul_pow2(self, n: Self) -> Self {
        Self(op!(_mm512_scalef_ps(self.0, n.0)))
    }

    #[inline(always)]
    fn split_pow2(self) -> (Self, Self) {
        op!((Self(_mm512_getmant_ps::<_MM_MANT_NORM_1_2, _MM_MANT_SIGN_ZERO>(self.0)), Self(_mm512_getexp_ps(self.0))))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let (low, high) = self.halves();
        super::avx2::sum8(op!(_mm256_add_ps(low, high)))
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        let (low, high) = self.halves();
        super::avx2::max8(op!(_mm256_max_ps(low, high)))
    }

    #[inline(always)]
    fn min_lane(self) -> f32 {
        let (low, high) = self.halves();
        super::avx2::min8(op!(_mm256_min_ps(low, high)))
    }
}
