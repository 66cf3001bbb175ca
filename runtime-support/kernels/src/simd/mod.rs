//! One logical vector of 16 lanes (f32, i32) over every instruction set, and the macro that compiles a kernel body once per set.
//!
//! [`Simd`] is a zero-sized token: holding one proves that its instruction set runs here. It makes vectors
//! ([`F32x16`], [`I32x16`]), and a vector in hand is the same proof, so arithmetic on vectors is safe; only loads and stores through
//! pointers are not. A kernel is written once with [`simd_fn!`](crate::simd_fn) and chosen by [`Isa`].
//!
//! Invariants:
//! - every function between `simd_fn!` and a vector method is `#[inline(always)]`, or it is compiled without the
//!   instruction set and each operation becomes a call;
//! - reductions have one order on every set (halves: lanes `i` and `i+8`, then 4, 2, 1);
//! - `fma` is fused on every set but the scalar one, which multiplies, rounds, adds: its results depend on no processor.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
pub mod exp1;
pub mod math;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
pub mod neon;
pub mod scalar;
#[cfg(test)]
mod tests;
pub mod trig;

use crate::isa::Isa;
use core::ops::{Add, Div, Mul, Neg, Sub};

/// Lanes of a logical vector.
pub const LANES: usize = 16;

/// Proof that an instruction set runs on this processor, and the maker of its vectors.
pub trait Simd: Copy + 'static {
    /// The logical vector of 16 f32.
    type F32: F32x16;
    /// The logical vector of 16 i32.
    type I32: I32x16<F32 = Self::F32>;
    /// The instruction set.
    const ISA: Isa;
    /// Whether a dozen logical vectors and more stay in registers: else a kernel keeps fewer in flight.
    const MANY_REGISTERS: bool = matches!(Self::ISA, Isa::Avx512);

    /// All lanes equal to `x`.
    fn splat(self, x: f32) -> Self::F32;

    /// All lanes zero.
    #[inline(always)]
    fn zero(self) -> Self::F32 {
        self.splat(0.0)
    }

    /// Reads 16 lanes, unaligned.
    ///
    /// # Safety
    /// `p` is valid for reads of 16 f32.
    unsafe fn load(self, p: *const f32) -> Self::F32;

    /// Reads the first `n` lanes, unaligned; the others are zero and their memory is not touched.
    ///
    /// # Safety
    /// `n <= 16` and `p` is valid for reads of `n` f32.
    unsafe fn load_n(self, p: *const f32, n: usize) -> Self::F32;

    /// All lanes equal to `x`.
    fn splat_i32(self, x: i32) -> Self::I32;

    /// Reads 16 lanes, unaligned.
    ///
    /// # Safety
    /// `p` is valid for reads of 16 i32.
    unsafe fn load_i32(self, p: *const i32) -> Self::I32;

    /// Reads the first `n` lanes, unaligned; the others are zero and their memory is not touched.
    ///
    /// # Safety
    /// `n <= 16` and `p` is valid for reads of `n` i32.
    #[inline(always)]
    unsafe fn load_i32_n(self, p: *const i32, n: usize) -> Self::I32 {
        let mut a = [0; LANES];
        // SAFETY: the caller vouches for `n <= 16` lanes.
        unsafe { core::ptr::copy_nonoverlapping(p, a.as_mut_ptr(), n) };
        self.array_i32(a)
    }

    /// Rounds to the nearest integer (ties to even) and converts; lanes outside i32, and NaN, become `i32::MIN`.
    fn to_i32(self, x: Self::F32) -> Self::I32;

    /// The lanes of an array.
    #[inline(always)]
    fn array_i32(self, a: [i32; LANES]) -> Self::I32 {
        // SAFETY: the array has 16 lanes.
        unsafe { self.load_i32(a.as_ptr()) }
    }

    /// Reads what a slice has of 16 lanes at `at`, with zeros after its end.
    #[inline(always)]
    fn load_slice(self, x: &[f32], at: usize) -> Self::F32 {
        let rest = x.get(at..).unwrap_or_default();
        if rest.is_empty() {
            // A masked load whose whole address is invalid does not fault, but takes hundreds of cycles.
            return self.zero();
        }
        // SAFETY: at most the slice's remaining lanes are read.
        unsafe { if rest.len() >= LANES { self.load(rest.as_ptr()) } else { self.load_n(rest.as_ptr(), rest.len()) } }
    }

    /// The lanes of an array.
    #[inline(always)]
    fn array(self, a: [f32; LANES]) -> Self::F32 {
        // SAFETY: the array has 16 lanes.
        unsafe { self.load(a.as_ptr()) }
    }
}

/// A logical vector of 16 f32 lanes.
///
/// NaN: arithmetic, `sqrt`, `round`, `floor`, `neg`, `abs` and reductions by sum propagate it (its payload is unspecified);
/// comparisons with it are false; for `min` and `max` see there.
pub trait F32x16:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
{
    /// The result of a comparison, lane by lane.
    type Mask: Copy;

    /// All lanes equal to `x`, in the set of `self` (whose value is not used).
    fn splat_like(self, x: f32) -> Self;

    /// Writes 16 lanes, unaligned.
    ///
    /// # Safety
    /// `p` is valid for writes of 16 f32.
    unsafe fn store(self, p: *mut f32);

    /// Writes the first `n` lanes, unaligned; memory after them is not touched.
    ///
    /// # Safety
    /// `n <= 16` and `p` is valid for writes of `n` f32.
    unsafe fn store_n(self, p: *mut f32, n: usize);

    /// `self * b + c`, rounded once (scalar set: rounded twice).
    fn fma(self, b: Self, c: Self) -> Self;

    /// `c - self * b`, rounded once (scalar set: rounded twice).
    fn fnma(self, b: Self, c: Self) -> Self;

    /// `if self < other { self } else { other }`: when either is NaN, and for zeros of two signs, it is `other`.
    fn min(self, other: Self) -> Self;

    /// `if self > other { self } else { other }`: when either is NaN, and for zeros of two signs, it is `other`.
    /// So `zero.max(x)` keeps a NaN in `x`, `x.max(zero)` drops it.
    fn max(self, other: Self) -> Self;

    /// Clears the sign bit.
    fn abs(self) -> Self;

    /// The magnitude of `self` with the sign bit of `sign`.
    fn copysign(self, sign: Self) -> Self;

    /// Correctly rounded square root; NaN below zero.
    fn sqrt(self) -> Self;

    /// To the nearest integer, ties to even.
    fn round(self) -> Self;

    /// To the greatest integer not above.
    fn floor(self) -> Self;

    /// To the least integer not below.
    #[inline(always)]
    fn ceil(self) -> Self {
        -(-self).floor()
    }

    /// To the nearest integer not farther from zero.
    #[inline(always)]
    fn trunc(self) -> Self {
        self.abs().floor().copysign(self)
    }

    /// `self < other`.
    fn lt(self, other: Self) -> Self::Mask;

    /// `self <= other`.
    fn le(self, other: Self) -> Self::Mask;

    /// `self == other`.
    fn eq(self, other: Self) -> Self::Mask;

    /// `self` is NaN.
    fn is_nan(self) -> Self::Mask;

    /// Both masks.
    fn and(a: Self::Mask, b: Self::Mask) -> Self::Mask;

    /// Either mask.
    fn or(a: Self::Mask, b: Self::Mask) -> Self::Mask;

    /// Lanes of `a` where the mask holds, of `b` elsewhere.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;

    /// `self * 2^n`, rounded once.
    ///
    /// Holds for `n` an integer in -252..=252 and `self` zero, or of a magnitude between 2^-20 and 2^20, or infinite or
    /// NaN; a lane with another `n` is unspecified, except that a NaN in `self` stays one.
    fn mul_pow2(self, n: Self) -> Self;

    /// Mantissa in 1..2 and exponent of positive normal numbers; other lanes are unspecified.
    fn split_pow2(self) -> (Self, Self);

    /// The sum of all lanes, in the order of the module's invariants.
    fn sum(self) -> f32;

    /// The maximum of all lanes by [`F32x16::max`], in the order of the module's invariants.
    fn max_lane(self) -> f32;

    /// The minimum of all lanes by [`F32x16::min`], in the order of the module's invariants.
    fn min_lane(self) -> f32;

    /// Writes what a slice has room for of 16 lanes at `at`.
    #[inline(always)]
    fn store_slice(self, x: &mut [f32], at: usize) {
        let rest = x.get_mut(at..).unwrap_or_default();
        // SAFETY: at most the slice's remaining lanes are written.
        unsafe {
            if rest.len() >= LANES {
                self.store(rest.as_mut_ptr())
            } else {
                self.store_n(rest.as_mut_ptr(), rest.len())
            }
        }
    }

    /// The lanes as an array.
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut a = [0.0; LANES];
        // SAFETY: the array has 16 lanes.
        unsafe { self.store(a.as_mut_ptr()) };
        a
    }
}

/// A logical vector of 16 i32 lanes; arithmetic wraps.
pub trait I32x16: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// The f32 vector of the same set.
    type F32: F32x16;

    /// The nearest f32, ties to even.
    fn to_f32(self) -> Self::F32;

    /// Writes 16 lanes, unaligned.
    ///
    /// # Safety
    /// `p` is valid for writes of 16 i32.
    unsafe fn store(self, p: *mut i32);

    /// The lanes saturated to 0..=255.
    fn to_u8(self) -> [u8; LANES];

    /// The lanes saturated to -128..=127.
    fn to_i8(self) -> [i8; LANES];

    /// The lanes as an array.
    #[inline(always)]
    fn to_array(self) -> [i32; LANES] {
        let mut a = [0; LANES];
        // SAFETY: the array has 16 lanes.
        unsafe { self.store(a.as_mut_ptr()) };
        a
    }
}

/// Asks for the cache line at `p` to be brought near; never faults, whatever `p` is.
#[inline(always)]
pub fn prefetch(p: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint that cannot fault; SSE is part of x86-64.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(p.cast())
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// As [`prefetch`], of a line that will be written.
#[inline(always)]
pub fn prefetch_write(p: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint that cannot fault; where the processor has none for writing, it does nothing.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(p.cast())
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Writes a function once and compiles it for every instruction set.
///
/// ```
/// use kiln_kernels::{isa::Isa, simd::{F32x16, Simd}, simd_fn};
/// simd_fn! {
///     /// y = x²
///     fn square<S>(s, x: &[f32], y: &mut [f32]) {
///         for at in (0..x.len().min(y.len())).step_by(16) {
///             let v = s.load_slice(x, at);
///             (v * v).store_slice(y, at);
///         }
///     }
/// }
/// let mut y = [0.0; 3];
/// square(Isa::detect(), &[1.0, 2.0, 3.0], &mut y);
/// assert_eq!(y, [1.0, 4.0, 9.0]);
/// ```
/// The function gets a first argument `isa: Isa`, the body a token `s: S` with `S: Simd`. Generic functions that the body
/// calls must be `#[inline(always)]`. More generic parameters follow `S` in two brackets, declared and named:
/// `fn f<S>[const N: usize, A: Act][N, A](s, …)`. `unsafe fn` is allowed; the body then starts with its own `unsafe`.
#[macro_export]
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident <$S:ident> $([$($decl:tt)*] [$($use:tt)*])?
     ($s:ident $(, $arg:ident : $ty:ty)* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis unsafe fn $name $(<$($decl)*>)? (isa: $crate::isa::Isa $(, $arg: $ty)*) $(-> $ret)? {
            $crate::simd_fn!(@inner [unsafe] [$($($decl)*)?] [$($($use)*)?] isa $S $s ($($arg: $ty),*) [$($ret)?] $body)
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident <$S:ident> $([$($decl:tt)*] [$($use:tt)*])?
     ($s:ident $(, $arg:ident : $ty:ty)* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$($decl)*>)? (isa: $crate::isa::Isa $(, $arg: $ty)*) $(-> $ret)? {
            $crate::simd_fn!(@inner [] [$($($decl)*)?] [$($($use)*)?] isa $S $s ($($arg: $ty),*) [$($ret)?] $body)
        }
    };
    (@inner [$($unsafe:tt)?] [$($decl:tt)*] [$($use:tt)*] $isa:ident $S:ident $s:ident ($($arg:ident : $ty:ty),*) [$($ret:ty)?] $body:block) => {{
        #[inline(always)]
        $($unsafe)? fn body<$S: $crate::simd::Simd, $($decl)*>($s: $S $(, $arg: $ty)*) $(-> $ret)? $body

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn avx512<$($decl)*>($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function is only entered with `Isa::Avx512`; its own contract is the outer function's.
            unsafe { body::<$crate::simd::avx512::Avx512, $($use)*>($crate::simd::avx512::Avx512::assume() $(, $arg)*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2<$($decl)*>($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function is only entered with `Isa::Avx2`; its own contract is the outer function's.
            unsafe { body::<$crate::simd::avx2::Avx2, $($use)*>($crate::simd::avx2::Avx2::assume() $(, $arg)*) }
        }
        #[allow(unused_unsafe)]
        match $isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` other than `Scalar` proves its instruction set; the outer function's contract is passed on.
            $crate::isa::Isa::Avx512 { .. } => unsafe { avx512::<$($use)*>($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            $crate::isa::Isa::Avx2 { .. } => unsafe { avx2::<$($use)*>($($arg),*) },
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            // SAFETY: NEON is part of this compile target; the outer function's contract is passed on.
            $crate::isa::Isa::Neon { .. } => unsafe {
                body::<$crate::simd::neon::Neon, $($use)*>($crate::simd::neon::Neon::new() $(, $arg)*)
            },
            // SAFETY: the outer function's contract is passed on.
            _ => unsafe { body::<$crate::simd::scalar::Scalar, $($use)*>($crate::simd::scalar::Scalar $(, $arg)*) },
        }
    }};
}
