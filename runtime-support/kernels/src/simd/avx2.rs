//! The logical vector as two 256-bit registers (AVX2, FMA, F16C).
//!
//! Invariant: an [`Avx2`] exists only where these instructions run, and an [`F32`] only where an [`Avx2`] did.

use super::{F32x16, I32x16, LANES, Simd};
use crate::isa::Isa;
use core::arch::x86_64::*;
use core::ops::{Add, Div, Mul, Neg, Sub};

/// Proof that AVX2, FMA and F16C run here.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The token of `isa`, if it is this set or one that contains it.
    #[inline(always)]
    pub fn new(isa: Isa) -> Option<Self> {
        matches!(isa, Isa::Avx2 | Isa::Avx512).then_some(Self(()))
    }

    /// The token, unchecked.
    ///
    /// # Safety
    /// The processor and its operating system support [`Isa::Avx2`].
    #[inline(always)]
    pub const unsafe fn assume() -> Self {
        Self(())
    }
}

/// Sixteen f32 in two registers.
#[derive(Clone, Copy, Debug)]
pub struct F32(__m256, __m256);

/// Sixteen i32 in two registers.
#[derive(Clone, Copy, Debug)]
pub struct I32(__m256i, __m256i);

/// A window at `8 - n` has the mask of the first `n` of 8 lanes.
static FIRST: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// The masks of the first `n` of 16 lanes.
///
/// # Safety
/// `n <= 16`, and AVX2 runs here.
#[inline(always)]
unsafe fn first(n: usize) -> (__m256i, __m256i) {
    let low = n.min(8);
    // SAFETY: `low` and `n - low` are at most 8, so both windows lie in the table.
    unsafe {
        (
            _mm256_loadu_si256(FIRST.as_ptr().add(8 - low).cast()),
            _mm256_loadu_si256(FIRST.as_ptr().add(8 - (n - low)).cast()),
        )
    }
}

impl Simd for Avx2 {
    type F32 = F32;
    type I32 = I32;
    const ISA: Isa = Isa::Avx2;

    #[inline(always)]
    fn splat(self, x: f32) -> F32 {
        // SAFETY: the token proves AVX2.
        unsafe { F32(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F32 {
        // SAFETY: the token proves AVX2; the caller vouches for the memory.
        unsafe { F32(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_n(self, p: *const f32, n: usize) -> F32 {
        // SAFETY: as for `load`; masked lanes do not touch memory.
        unsafe {
            let (low, high) = first(n);
            F32(_mm256_maskload_ps(p, low), _mm256_maskload_ps(p.wrapping_add(8), high))
        }
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> I32 {
        // SAFETY: the token proves AVX2.
        unsafe { I32(_mm256_set1_epi32(x), _mm256_set1_epi32(x)) }
    }

    #[inline(always)]
    unsafe fn load_i32(self, p: *const i32) -> I32 {
        // SAFETY: the token proves AVX2; the caller vouches for the memory.
        unsafe { I32(_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())) }
    }

    #[inline(always)]
    fn to_i32(self, x: F32) -> I32 {
        // SAFETY: the token proves AVX2.
        unsafe { I32(_mm256_cvtps_epi32(x.0), _mm256_cvtps_epi32(x.1)) }
    }
}

/// Instructions on registers.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: a vector in hand proves AVX2 (see the module's invariant); the instructions work on registers only.
        unsafe { $e }
    };
}

macro_rules! operator {
    ($($V:ident $trait:ident $method:ident $instruction:ident),*) => {$(
        impl $trait for $V {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                op!(Self($instruction(self.0, other.0), $instruction(self.1, other.1)))
            }
        }
    )*};
}
operator!(F32 Add add _mm256_add_ps, F32 Sub sub _mm256_sub_ps, F32 Mul mul _mm256_mul_ps, F32 Div div _mm256_div_ps);
operator!(I32 Add add _mm256_add_epi32, I32 Sub sub _mm256_sub_epi32, I32 Mul mul _mm256_mullo_epi32);

impl I32 {
    /// The lanes saturated to i16, in order.
    #[inline(always)]
    fn to_i16(self) -> __m256i {
        op!(_mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(self.0, self.1)))
    }
}

impl I32x16 for I32 {
    type F32 = F32;

    #[inline(always)]
    fn to_f32(self) -> F32 {
        op!(F32(_mm256_cvtepi32_ps(self.0), _mm256_cvtepi32_ps(self.1)))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut i32) {
        // SAFETY: the vector proves AVX2; the caller vouches for the memory.
        unsafe {
            _mm256_storeu_si256(p.cast(), self.0);
            _mm256_storeu_si256(p.add(8).cast(), self.1);
        }
    }

    #[inline(always)]
    fn to_u8(self) -> [u8; LANES] {
        let (mut a, words) = ([0; LANES], self.to_i16());
        // SAFETY: the vector proves AVX2; the array has 16 bytes.
        unsafe {
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(a.as_mut_ptr().cast(), bytes);
        }
        a
    }

    #[inline(always)]
    fn to_i8(self) -> [i8; LANES] {
        let (mut a, words) = ([0; LANES], self.to_i16());
        // SAFETY: the vector proves AVX2; the array has 16 bytes.
        unsafe {
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(a.as_mut_ptr().cast(), bytes);
        }
        a
    }
}

impl Neg for F32 {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        let sign = self.splat_like(-0.0);
        op!(Self(_mm256_xor_ps(self.0, sign.0), _mm256_xor_ps(self.1, sign.1)))
    }
}

/// `v * 2^n` for integer `n` in -252..=252, by two factors that are powers of two.
///
/// # Safety
/// AVX2 runs here.
#[inline(always)]
unsafe fn mul_pow2(v: __m256, n: __m256) -> __m256 {
    // SAFETY: the caller guarantees AVX2; registers only.
    unsafe {
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        let bias = _mm256_set1_epi32(127);
        let power = |n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, bias)));
        _mm256_mul_ps(_mm256_mul_ps(v, power(half)), power(_mm256_sub_epi32(n, half)))
    }
}

/// Mantissa and exponent of positive normal numbers.
///
/// # Safety
/// AVX2 runs here.
#[inline(always)]
unsafe fn split_pow2(v: __m256) -> (__m256, __m256) {
    // SAFETY: the caller guarantees AVX2; registers only.
    unsafe {
        let bits = _mm256_castps_si256(v);
        let exponent = _mm256_sub_epi32(_mm256_srli_epi32::<23>(bits), _mm256_set1_epi32(127));
        let one = _mm256_set1_epi32(0x3f80_0000);
        let mantissa = _mm256_or_si256(_mm256_and_si256(bits, _mm256_set1_epi32(0x007f_ffff)), one);
        (_mm256_castsi256_ps(mantissa), _mm256_cvtepi32_ps(exponent))
    }
}

/// Defines a reduction of eight lanes by halves.
macro_rules! reduce8 {
    ($name:ident, $op128:ident, $op32:ident, $what:literal) => {
        #[doc = $what]
        #[inline(always)]
        pub(super) fn $name(v: __m256) -> f32 {
            // SAFETY: a 256-bit vector in this crate proves AVX2; registers only.
            unsafe {
                let v = $op128(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
                let v = $op128(v, _mm_movehl_ps(v, v));
                _mm_cvtss_f32($op32(v, _mm_movehdup_ps(v)))
            }
        }
    };
}
reduce8!(sum8, _mm_add_ps, _mm_add_ss, "The sum of eight lanes, by halves.");
reduce8!(max8, _mm_max_ps, _mm_max_ss, "The maximum of eight lanes, by halves.");
reduce8!(min8, _mm_min_ps, _mm_min_ss, "The minimum of eight lanes, by halves.");

/// Transposes 8×8 f32: `to[i][j] = from[j][i]`, rows `from_stride` and `to_stride` apart.
///
/// # Safety
/// AVX2 runs here; every row is valid for 8 reads or writes.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) unsafe fn transpose8(to: *mut f32, to_stride: usize, from: *const f32, from_stride: usize) {
    // SAFETY: the caller vouches for the rows; the rest works on registers.
    unsafe {
        let row = |i: usize| _mm256_loadu_ps(from.add(i * from_stride));
        // Pairs of rows, then quads; a register then holds two columns' halves that lie four columns apart.
        let pair = |i: usize| (_mm256_unpacklo_ps(row(i), row(i + 1)), _mm256_unpackhi_ps(row(i), row(i + 1)));
        let quad = |i: usize| {
            let ((a_low, a_high), (b_low, b_high)) = (pair(i), pair(i + 2));
            [
                _mm256_shuffle_ps::<0x44>(a_low, b_low),
                _mm256_shuffle_ps::<0xee>(a_low, b_low),
                _mm256_shuffle_ps::<0x44>(a_high, b_high),
                _mm256_shuffle_ps::<0xee>(a_high, b_high),
            ]
        };
        let (top, bottom) = (quad(0), quad(4));
        for i in 0..4 {
            _mm256_storeu_ps(to.add(i * to_stride), _mm256_permute2f128_ps::<0x20>(top[i], bottom[i]));
            _mm256_storeu_ps(to.add((i + 4) * to_stride), _mm256_permute2f128_ps::<0x31>(top[i], bottom[i]));
        }
    }
}

impl F32x16 for F32 {
    type Mask = (__m256, __m256);

    #[inline(always)]
    fn splat_like(self, x: f32) -> Self {
        op!(Self(_mm256_set1_ps(x), _mm256_set1_ps(x)))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the vector proves AVX2; the caller vouches for the memory.
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        // SAFETY: as for `store`; masked lanes do not touch memory.
        unsafe {
            let (low, high) = first(n);
            _mm256_maskstore_ps(p, low, self.0);
            _mm256_maskstore_ps(p.wrapping_add(8), high, self.1);
        }
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        op!(Self(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)))
    }

    #[inline(always)]
    fn fnma(self, b: Self, c: Self) -> Self {
        op!(Self(_mm256_fnmadd_ps(self.0, b.0, c.0), _mm256_fnmadd_ps(self.1, b.1, c.1)))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        op!(Self(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1)))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        op!(Self(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        let sign = self.splat_like(-0.0);
        op!(Self(_mm256_andnot_ps(sign.0, self.0), _mm256_andnot_ps(sign.1, self.1)))
    }

    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        let mask = self.splat_like(-0.0);
        let magnitude = self.abs();
        op!(Self(
            _mm256_or_ps(magnitude.0, _mm256_and_ps(mask.0, sign.0)),
            _mm256_or_ps(magnitude.1, _mm256_and_ps(mask.1, sign.1))
        ))
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        op!(Self(_mm256_sqrt_ps(self.0), _mm256_sqrt_ps(self.1)))
    }

    #[inline(always)]
    fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        op!(Self(_mm256_round_ps::<NEAREST>(self.0), _mm256_round_ps::<NEAREST>(self.1)))
    }

    #[inline(always)]
    fn floor(self) -> Self {
        op!(Self(_mm256_floor_ps(self.0), _mm256_floor_ps(self.1)))
    }

    #[inline(always)]
    fn lt(self, other: Self) -> Self::Mask {
        op!((_mm256_cmp_ps::<_CMP_LT_OQ>(self.0, other.0), _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, other.1)))
    }

    #[inline(always)]
    fn le(self, other: Self) -> Self::Mask {
        op!((_mm256_cmp_ps::<_CMP_LE_OQ>(self.0, other.0), _mm256_cmp_ps::<_CMP_LE_OQ>(self.1, other.1)))
    }

    #[inline(always)]
    fn eq(self, other: Self) -> Self::Mask {
        op!((_mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0), _mm256_cmp_ps::<_CMP_EQ_OQ>(self.1, other.1)))
    }

    #[inline(always)]
    fn is_nan(self) -> Self::Mask {
        op!((_mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0), _mm256_cmp_ps::<_CMP_UNORD_Q>(self.1, self.1)))
    }

    #[inline(always)]
    fn and(a: Self::Mask, b: Self::Mask) -> Self::Mask {
        op!((_mm256_and_ps(a.0, b.0), _mm256_and_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn or(a: Self::Mask, b: Self::Mask) -> Self::Mask {
        op!((_mm256_or_ps(a.0, b.0), _mm256_or_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        op!(Self(_mm256_blendv_ps(b.0, a.0, mask.0), _mm256_blendv_ps(b.1, a.1, mask.1)))
    }

    #[inline(always)]
    fn mul_pow2(self, n: Self) -> Self {
        op!(Self(mul_pow2(self.0, n.0), mul_pow2(self.1, n.1)))
    }

    #[inline(always)]
    fn split_pow2(self) -> (Self, Self) {
        let (low, high) = op!((split_pow2(self.0), split_pow2(self.1)));
        (Self(low.0, high.0), Self(low.1, high.1))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        sum8(op!(_mm256_add_ps(self.0, self.1)))
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        max8(op!(_mm256_max_ps(self.0, self.1)))
    }

    #[inline(always)]
    fn min_lane(self) -> f32 {
        min8(op!(_mm256_min_ps(self.0, self.1)))
    }
}
