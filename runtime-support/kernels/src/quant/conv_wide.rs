//! The tile of 8-bit convolution on AVX2 without `vpdpbusd`: `Q` output pixels of a row × any number of output blocks.
//!
//! In and out as for the other tiles ([`ConvTile`]). The taps of each pixel are gathered side by side and widened to i16
//! once for all output blocks ([`Widened`]), a chunk of the reduction at a time; eight output channels then keep their sums
//! in registers over the chunk.

use super::conv_tile::{ConvTile, Emission, MAX_BLOCKS};
use crate::gemm::int8::wide::{CHUNK, Half, ROWS, Widened, joined, start};
use crate::simd::LANES;
use core::arch::x86_64::*;

/// Where a tile is in its reduction.
#[derive(Clone, Copy)]
struct Place {
    block: usize,
    row: usize,
    run: usize,
    step: usize,
}

/// Puts what comes next into `wide`; gives the number of steps.
///
/// # Safety
/// AVX2 runs here; the input that `t` spans from `x` on is valid for reads; `Q <= ROWS`.
#[inline(always)]
unsafe fn gather<const Q: usize>(t: &ConvTile, x: *const u8, p: &mut Place, wide: &mut Widened) -> usize {
    let mut at = 0;
    while at < CHUNK && p.block < t.blocks {
        let steps = (t.steps - p.step).min((CHUNK - at) / 4);
        // SAFETY: the caller's promise; the steps lie in one run and in the chunk.
        unsafe {
            let from = x.add(p.block * t.x_block + p.row * t.x_row + p.run * t.x_run + p.step * 4);
            // The usual lengths as constants: taps of 1×1 and 3×3 kernels, and of the first 3×3 and 7×7.
            match steps {
                4 => put::<Q>(wide, at, from, t.x_pixel, 16),
                12 => put::<Q>(wide, at, from, t.x_pixel, 48),
                3 => put::<Q>(wide, at, from, t.x_pixel, 12),
                7 => put::<Q>(wide, at, from, t.x_pixel, 28),
                _ => put::<Q>(wide, at, from, t.x_pixel, 4 * steps),
            }
        }
        at += 4 * steps;
        p.step += steps;
        if p.step == t.steps {
            (p.step, p.run) = (0, p.run + 1);
        }
        if p.run == t.runs {
            (p.run, p.row) = (0, p.row + 1);
        }
        if p.row == t.rows {
            (p.row, p.block) = (0, p.block + 1);
        }
    }
    at / 4
}

/// `n` bytes of each pixel as the values from `at` on.
///
/// # Safety
/// AVX2 runs here; `n` bytes of `Q` pixels are valid for reads; `Q <= ROWS`, `at + n <= CHUNK`.
#[inline(always)]
unsafe fn put<const Q: usize>(wide: &mut Widened, at: usize, from: *const u8, x_pixel: usize, n: usize) {
    for i in 0..Q {
        // SAFETY: the caller's promise.
        unsafe { wide.put(i, at, from.add(i * x_pixel), n, 0) };
    }
}

/// # Safety
/// As for the other tiles, with `t.out_blocks` blocks of packed weights, bias, factors and output.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile<const Q: usize>(t: &ConvTile) {
    const { assert!(Q <= ROWS) };
    // SAFETY: the caller vouches for all addresses; of the kept sums only those of an earlier chunk are read.
    unsafe {
        let limits = Limits::new(&t.emission);
        let mut wide = Widened::new();
        let mut kept: [Half<Q>; 2 * MAX_BLOCKS] = [[[_mm256_setzero_si256(); 2]; Q]; 2 * MAX_BLOCKS];
        for tile in 0..t.n_tiles {
            let x = t.x.add(tile * Q * t.x_pixel);
            let y = t.y.add(tile * Q * LANES);
            let mut place = Place { block: 0, row: 0, run: 0, step: 0 };
            let mut done = 0;
            loop {
                let steps = gather::<Q>(t, x, &mut place, &mut wide);
                let last = place.block == t.blocks;
                for j in 0..2 * t.out_blocks.min(MAX_BLOCKS) {
                    let (block, half) = (j / 2, j % 2);
                    let first = if done == 0 { start(t.bias.add(j * 8)) } else { kept[j] };
                    let w = t.w.add(block * t.w_block + half * 32 + done * 64);
                    let sums = wide.add(first, w, steps);
                    if last {
                        let to = y.add(block * t.y_block + half * 8);
                        emit(sums, &limits, t.factor.add(j * 8), to);
                    } else {
                        kept[j] = sums;
                    }
                }
                done += steps;
                if last {
                    break;
                }
            }
        }
    }
}

/// An [`Emission`] in registers.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    zero: __m256i,
    low: __m256i,
    high: __m256i,
    flip: __m256i,
    small: bool,
}

impl Limits {
    /// # Safety
    /// AVX2 runs here.
    #[inline(always)]
    pub(super) unsafe fn new(e: &Emission) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                zero: _mm256_set1_epi32(e.zero),
                low: _mm256_set1_epi8(e.low as i8),
                high: _mm256_set1_epi8(e.high as i8),
                flip: _mm256_set1_epi8(e.flip as i8),
                small: e.small,
            }
        }
    }

    /// Scaled sums as codes, not yet within a byte.
    ///
    /// # Safety
    /// AVX2 runs here.
    #[inline(always)]
    unsafe fn code(&self, sums: __m256i, factor: __m256) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            let mut scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), factor);
            if !self.small {
                let (low, high) = (_mm256_set1_ps(-1_048_576.0), _mm256_set1_ps(1_048_576.0));
                scaled = _mm256_max_ps(low, _mm256_min_ps(high, scaled));
            }
            _mm256_add_epi32(_mm256_cvtps_epi32(scaled), self.zero)
        }
    }

    /// Bytes within the limits, their highest bits flipped.
    ///
    /// # Safety
    /// AVX2 runs here.
    #[inline(always)]
    unsafe fn limited(&self, bytes: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_xor_si256(_mm256_min_epu8(_mm256_max_epu8(bytes, self.low), self.high), self.flip) }
    }
}

/// Writes 8 channels of `Q` pixels.
///
/// # Safety
/// AVX2 runs here; 8 factors are valid for reads, 8 bytes at every 16 of `16·Q` for writes.
#[inline(always)]
unsafe fn emit<const Q: usize>(sums: Half<Q>, e: &Limits, factor: *const f32, y: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        // The order of joined sums: 0 1 4 5 2 3 6 7.
        let pairs = _mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(_mm256_loadu_ps(factor)));
        let factor = _mm256_castpd_ps(pairs);
        let pixels = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
        let mut q = 0;
        while q < Q {
            let mut codes = [_mm256_setzero_si256(); 4];
            for i in 0..4 {
                if q + i < Q {
                    codes[i] = e.code(joined(sums[q + i]), factor);
                }
            }
            let low = _mm256_packs_epi32(codes[0], codes[1]);
            let high = _mm256_packs_epi32(codes[2], codes[3]);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), pixels);
            let bytes = e.limited(_mm256_shuffle_epi8(bytes, order));
            let (front, back) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
            let y = y.add(q * LANES);
            _mm_storel_epi64(y.cast(), front);
            if q + 1 < Q {
                _mm_storeh_pd(y.add(LANES).cast(), _mm_castsi128_pd(front));
            }
            if q + 2 < Q {
                _mm_storel_epi64(y.add(2 * LANES).cast(), back);
            }
            if q + 3 < Q {
                _mm_storeh_pd(y.add(3 * LANES).cast(), _mm_castsi128_pd(back));
            }
            q += 4;
        }
    }
}

/// Two pixels of 16 sums as 32 bytes. A register has channels 0 to 3 and 8 to 11, the other those between.
///
/// # Safety
/// AVX2 runs here.
#[inline(always)]
pub(super) unsafe fn emit_two(sums: [[__m256i; 2]; 2], e: &Limits, factor: [__m256; 2]) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let first = _mm256_packs_epi32(e.code(sums[0][0], factor[0]), e.code(sums[0][1], factor[1]));
        let second = _mm256_packs_epi32(e.code(sums[1][0], factor[0]), e.code(sums[1][1], factor[1]));
        // Each 128-bit part has half of the channels of both pixels.
        let bytes = _mm256_packus_epi16(first, second);
        e.limited(_mm256_permute4x64_epi64::<0b11_01_10_00>(bytes))
    }
}
