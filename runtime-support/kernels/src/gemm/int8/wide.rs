//! Products of 8-bit integers on AVX2 without `vpdpbusd`: bytes of A are widened to i16 once for a tile, B's as they are
//! loaded, and `vpmaddwd` sums pairs of products exactly (`vpmaddubsw` would saturate).
//!
//! In: rows of bytes; B packed as for `vpdpbusd`, 16 columns × 4 steps of k in 64 bytes. Out: sums of `Q` rows × 8 columns.
//! A register holds two sums for each of four columns, which [`joined`] adds.
//! Invariant: the functions are inlined into ones that are compiled for AVX2.

use super::dot::DotTile;
use crate::gemm::pack::PANEL;
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Most rows of a tile: 12 registers of sums, two of B, one of A and one product are all that there are.
pub(crate) const ROWS: usize = 6;
/// Steps of k that are widened at a time, a multiple of 4: six rows of them leave room in L1 for what is read of B.
pub(crate) const CHUNK: usize = 1536;
/// From row to row of widened values; not a power of two, so that rows lie in different sets of L1.
const PITCH: usize = CHUNK + 16;

/// Sums of `Q` rows × 8 columns.
pub(crate) type Half<const Q: usize> = [[__m256i; 2]; Q];

/// At most [`ROWS`] rows of widened values.
#[repr(align(32))]
pub(crate) struct Widened([MaybeUninit<i16>; ROWS * PITCH]);

impl Widened {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self([MaybeUninit::uninit(); ROWS * PITCH])
    }

    /// Widens `n` bytes, each exclusive-or `flip`, as the values `at..at + n` of a row.
    ///
    /// # Safety
    /// AVX2 runs here; `row < ROWS`, `at + n <= CHUNK`; `n` bytes are valid for reads.
    #[inline(always)]
    pub(crate) unsafe fn put(&mut self, row: usize, at: usize, from: *const u8, n: usize, flip: u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.0.as_mut_ptr().cast::<i16>().add(row * PITCH + at);
            let flips = _mm_set1_epi8(flip as i8);
            let (mut i, step) = (0, if n >= 16 { 16 } else { 8 });
            while i < n {
                // The last step goes back to end at `n`.
                let at = if i + step <= n { i } else { n.max(step) - step };
                let (from, to) = (from.add(at), to.add(at));
                if n >= 16 {
                    let bytes = _mm_xor_si128(_mm_loadu_si128(from.cast()), flips);
                    _mm256_storeu_si256(to.cast(), _mm256_cvtepu8_epi16(bytes));
                } else if n >= 8 {
                    let bytes = _mm_xor_si128(_mm_loadl_epi64(from.cast()), flips);
                    _mm_storeu_si128(to.cast(), _mm_cvtepu8_epi16(bytes));
                } else if n == 4 {
                    let bytes = _mm_xor_si128(_mm_cvtsi32_si128(from.cast::<i32>().read_unaligned()), flips);
                    _mm_storel_epi64(to.cast(), _mm_cvtepu8_epi16(bytes));
                } else {
                    for j in 0..n {
                        *to.add(j) = i16::from(*from.add(j) ^ flip);
                    }
                }
                i += step;
            }
        }
    }

    /// Zeros as the values `from..to` of a row.
    ///
    /// # Safety
    /// `row < ROWS`, `to <= CHUNK`.
    #[inline(always)]
    unsafe fn clear(&mut self, row: usize, from: usize, to: usize) {
        for i in from..to {
            self.0[row * PITCH + i] = MaybeUninit::new(0);
        }
    }

    /// Adds four products to each sum for each of `steps`, from the rows' first values on.
    ///
    /// # Safety
    /// AVX2 runs here; `Q <= ROWS`, and `4·steps` values of `Q` rows were put; for each step the first 32 of the 64 bytes
    /// at `b` are valid for reads.
    #[inline(always)]
    pub(crate) unsafe fn add<const Q: usize>(&self, mut sums: Half<Q>, b: *const i8, steps: usize) -> Half<Q> {
        // SAFETY: the caller's promise.
        unsafe {
            let (mut a, mut b) = (self.0.as_ptr().cast::<i16>(), b);
            // Plain index loops: only those are unrolled early enough for the sums to become registers.
            for _ in 0..steps {
                let low = _mm256_cvtepi8_epi16(_mm_loadu_si128(b.cast()));
                let high = _mm256_cvtepi8_epi16(_mm_loadu_si128(b.add(16).cast()));
                for i in 0..Q {
                    let four = _mm256_set1_epi64x(a.add(i * PITCH).cast::<i64>().read_unaligned());
                    let (left, right) = (_mm256_madd_epi16(four, low), _mm256_madd_epi16(four, high));
                    sums[i][0] = _mm256_add_epi32(sums[i][0], left);
                    sums[i][1] = _mm256_add_epi32(sums[i][1], right);
                }
                a = a.add(4);
                b = b.add(4 * PANEL);
            }
            sums
        }
    }
}

/// Sums that start from 8 values in every row.
///
/// # Safety
/// AVX2 runs here; 8 i32 are valid for reads.
#[inline(always)]
pub(crate) unsafe fn start<const Q: usize>(from: *const i32) -> Half<Q> {
    // SAFETY: the caller's promise.
    unsafe {
        let low = _mm256_cvtepu32_epi64(_mm_loadu_si128(from.cast()));
        let high = _mm256_cvtepu32_epi64(_mm_loadu_si128(from.add(4).cast()));
        [[low, high]; Q]
    }
}

/// One row's sums, in the order of columns 0 1 4 5 2 3 6 7.
///
/// # Safety
/// AVX2 runs here.
#[inline(always)]
pub(crate) unsafe fn joined(sums: [__m256i; 2]) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_hadd_epi32(sums[0], sums[1]) }
}

/// The microkernel of `MR` rows and `NV` panels.
///
/// # Safety
/// [`DotFn`](super::dot::DotFn)'s contract.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn kernel<const MR: usize, const NV: usize>(t: &DotTile) {
    const { assert!(MR <= ROWS) };
    // SAFETY: `DotFn`'s contract; a chunk of each row is put before it is read.
    unsafe {
        let mut wide = Widened::new();
        for first in (0..t.k.max(1)).step_by(CHUNK) {
            let n = CHUNK.min(t.k - first);
            let steps = n.div_ceil(4);
            for i in 0..MR {
                wide.put(i, 0, t.a.add(i * t.lda + first), n, t.flip as u8);
                wide.clear(i, n, 4 * steps);
            }
            for j in 0..2 * NV {
                let b = t.b.add(j / 2 * t.b_panel + first * PANEL + j % 2 * 32);
                let sums = wide.add([[_mm256_setzero_si256(); 2]; MR], b, steps);
                for i in 0..MR {
                    let to = t.sums.add(i * NV * PANEL + j * 8).cast::<__m256i>();
                    let mut sum = _mm256_permute4x64_epi64::<0b11_01_10_00>(joined(sums[i]));
                    if first > 0 {
                        sum = _mm256_add_epi32(sum, _mm256_loadu_si256(to));
                    }
                    _mm256_storeu_si256(to, sum);
                }
            }
        }
    }
}
