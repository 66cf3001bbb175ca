//! 8-bit depthwise convolution of a band on AVX2 without `vpdpbusd`.
//!
//! Kernel rows are taken in pairs: bytes of two rows are interleaved and widened to i16, so that `vpmaddwd` sums two taps of
//! each channel exactly; an odd last row is paired with zeros. What a column gives serves every output pixel of a tile that
//! it reaches. A register has channels 0 to 3 and 8 to 11, or those between.

use super::conv_wide::{Limits, emit_two};
use super::depthwise::Band;
use crate::simd::LANES;
use core::arch::x86_64::*;

/// Pixels of a tile.
const TILE: usize = 4;
/// Most kernel rows and columns of the fixed sizes.
const MOST: usize = 5;

/// Weights of two kernel rows at one tap: i16 pairs. `next` is 0 where there is no second.
///
/// # Safety
/// AVX2 runs here; 64 bytes at `row`, and `next` bytes further where that is not 0, are valid for reads.
#[inline(always)]
unsafe fn weights(row: *const i8, next: usize, tap: usize) -> [__m256i; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        // Four taps of a channel lie side by side: the wanted one goes to the top, then down with its sign.
        let shift = _mm_cvtsi32_si128(24 - 8 * tap as i32);
        let mut pairs = [_mm256_setzero_si256(); 2];
        for half in 0..2 {
            let row = row.add(32 * half);
            let first = _mm256_sll_epi32(_mm256_loadu_si256(row.cast()), shift);
            let mut second = _mm256_setzero_si256();
            if next > 0 {
                second = _mm256_sll_epi32(_mm256_loadu_si256(row.add(next).cast()), shift);
            }
            let second = _mm256_slli_epi32::<16>(_mm256_srai_epi32::<24>(second));
            pairs[half] = _mm256_blend_epi16::<0b1010_1010>(_mm256_srai_epi32::<24>(first), second);
        }
        split(pairs[0], pairs[1])
    }
}

/// One column of two rows, or of one (`next` 0): i16 pairs of a tap of the first row and one of the second.
///
/// # Safety
/// AVX2 runs here; 16 bytes at `x`, and `next` bytes further where that is not 0, are valid for reads.
#[inline(always)]
unsafe fn column(x: *const u8, next: usize) -> [__m256i; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        // Widened on load: from a register it is three times slower.
        let first = _mm256_cvtepu8_epi16(_mm_loadu_si128(x.cast()));
        let mut second = _mm256_setzero_si256();
        if next > 0 {
            second = _mm256_cvtepu8_epi16(_mm_loadu_si128(x.add(next).cast()));
        }
        [_mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second)]
    }
}

/// 16 values in the channels' order here.
///
/// # Safety
/// AVX2 runs here; 16 values of 32 bits are valid for reads.
#[inline(always)]
unsafe fn ordered(from: *const __m256i) -> [__m256i; 2] {
    // SAFETY: the caller's promise.
    unsafe { split(_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))) }
}

/// Channels 0 to 7 and 8 to 15 as the two registers of the channels' order here.
///
/// # Safety
/// AVX2 runs here.
#[inline(always)]
unsafe fn split(low: __m256i, high: __m256i) -> [__m256i; 2] {
    // SAFETY: the caller's promise.
    unsafe { [_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high)] }
}

/// What a band's results are limited by, what its sums start from and what they are multiplied by.
///
/// # Safety
/// AVX2 runs here; 16 values of bias and of factors are valid for reads.
#[inline(always)]
unsafe fn ends(b: &Band<'_>) -> (Limits, [__m256i; 2], [__m256; 2]) {
    // SAFETY: the caller's promise.
    unsafe {
        let factor = ordered(b.factor.as_ptr().cast());
        let factor = [_mm256_castsi256_ps(factor[0]), _mm256_castsi256_ps(factor[1])];
        (Limits::new(b.emission), ordered(b.bias.as_ptr().cast()), factor)
    }
}

/// Writes the first `n` of four pixels.
///
/// # Safety
/// AVX2 runs here; `16·n` bytes at `y` are valid for writes.
#[inline(always)]
unsafe fn emit(sums: [[__m256i; 2]; TILE], e: &Limits, factor: [__m256; 2], y: *mut u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        for i in 0..TILE / 2 {
            let bytes = emit_two([sums[2 * i], sums[2 * i + 1]], e, factor);
            let y = y.add(2 * i * LANES);
            if n >= 2 * i + 2 {
                _mm256_storeu_si256(y.cast(), bytes);
            } else if n == 2 * i + 1 {
                _mm_storeu_si128(y.cast(), _mm256_castsi256_si128(bytes));
            }
        }
    }
}

/// Kernels of a fixed size, taps side by side. A tile's columns beyond the row's last tap lie within its slack.
///
/// # Safety
/// AVX2 runs here; scratch, weights, bias and factors are as long as the extents say, which are `KH`, `KW` and `SX`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn fixed<const KH: usize, const KW: usize, const SX: usize>(b: &Band<'_>, y: &mut [u8]) {
    const { assert!(KH <= MOST && KW <= MOST && (TILE - 1) * SX < super::depthwise::SLACK) };
    let g = b.s;
    // SAFETY: the caller's promise; a tile reads at most `3·SX` columns beyond the row's last tap and writes what the row
    // has left.
    unsafe {
        let fours = KW.div_ceil(4);
        let mut w = [[[_mm256_setzero_si256(); 2]; MOST]; MOST.div_ceil(2)];
        for pair in 0..KH.div_ceil(2) {
            for kx in 0..KW {
                let row = b.weights.as_ptr().add((2 * pair * fours + kx / 4) * 64);
                w[pair][kx] = weights(row, if 2 * pair + 1 < KH { fours * 64 } else { 0 }, kx % 4);
            }
        }
        let (limits, bias, factor) = ends(b);
        let row_bytes = g.dy * b.pitch * LANES;
        for (row, y) in y.chunks_exact_mut(g.ow * LANES).enumerate() {
            let x = b.x.as_ptr().add(row * g.sy * b.pitch * LANES);
            for q in (0..g.ow).step_by(TILE) {
                let mut sums = [bias; TILE];
                let x = x.add(q * SX * LANES);
                for pair in 0..KH.div_ceil(2) {
                    let x = x.add(2 * pair * row_bytes);
                    let next = if 2 * pair + 1 < KH { row_bytes } else { 0 };
                    for c in 0..(TILE - 1) * SX + KW {
                        let taps = column(x.add(c * LANES), next);
                        for p in 0..TILE {
                            if c >= p * SX && c - p * SX < KW {
                                let w = w[pair][c - p * SX];
                                let (low, high) = (_mm256_madd_epi16(taps[0], w[0]), _mm256_madd_epi16(taps[1], w[1]));
                                sums[p] = [_mm256_add_epi32(sums[p][0], low), _mm256_add_epi32(sums[p][1], high)];
                            }
                        }
                    }
                }
                emit(sums, &limits, factor, y.as_mut_ptr().add(q * LANES), g.ow - q);
            }
        }
    }
}

/// Kernels of any size. Of a tile's four pixels those beyond the row are computed at its last pixel.
///
/// # Safety
/// AVX2 runs here; scratch, weights, bias and factors are as long as the extents say.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn any(b: &Band<'_>, y: &mut [u8]) {
    let g = b.s;
    // SAFETY: the caller's promise.
    unsafe {
        let fours = g.kw.div_ceil(4);
        let (limits, bias, factor) = ends(b);
        let row_bytes = g.dy * b.pitch * LANES;
        for (row, y) in y.chunks_exact_mut(g.ow * LANES).enumerate() {
            let x = b.x.as_ptr().add(row * g.sy * b.pitch * LANES);
            for q in (0..g.ow).step_by(TILE) {
                let mut sums = [bias; TILE];
                for ky in (0..g.kh).step_by(2) {
                    let two = ky + 1 < g.kh;
                    for kx in 0..g.kw {
                        let at = b.weights.as_ptr().add((ky * fours + kx / 4) * 64);
                        let w = weights(at, if two { fours * 64 } else { 0 }, kx % 4);
                        for i in 0..TILE {
                            let pixel = if q + i < g.ow { q + i } else { g.ow - 1 };
                            let x = x.add(ky * row_bytes + (pixel * g.sx + kx * g.dx) * LANES);
                            let taps = column(x, if two { row_bytes } else { 0 });
                            let (low, high) = (_mm256_madd_epi16(taps[0], w[0]), _mm256_madd_epi16(taps[1], w[1]));
                            sums[i] = [_mm256_add_epi32(sums[i][0], low), _mm256_add_epi32(sums[i][1], high)];
                        }
                    }
                }
                emit(sums, &limits, factor, y.as_mut_ptr().add(q * LANES), g.ow - q);
            }
        }
    }
}
