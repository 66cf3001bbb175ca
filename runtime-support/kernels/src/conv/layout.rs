//! Conversion between the plain layout `[N, C, spatial]` and the blocked one `[N, C/16, spatial, 16]`.
//!
//! In: one of them. Out: the other; to blocked, pad lanes become zero, from blocked, they are not read.
//! A unit is one channel block of one image; units write disjoint elements.

use crate::{Fault, Isa, PartOut, kernel};

kernel! {
    /// Plain to blocked. Units `part_begin..part_end` of n·⌈c/16⌉.
    pub struct ToBlocked16 {
        operands { read x: T, write_parts y: T }
        nums { n, c, spatial, part_begin, part_end }
    }
    entries { to_blocked16_f32 { T = f32 } }
    body = to_blocked16;
}

kernel! {
    /// Blocked to plain. Units `part_begin..part_end` of n·⌈c/16⌉.
    pub struct FromBlocked16 {
        operands { read x: T, write_parts y: T }
        nums { n, c, spatial, part_begin, part_end }
    }
    entries { from_blocked16_f32 { T = f32 } }
    body = from_blocked16;
}

/// Units of work of a layout conversion.
pub const fn blocked16_units(n: usize, c: usize) -> usize {
    n * c.div_ceil(16)
}

/// The extents' product if it fits the operands and the part its units.
fn check(len: usize, blocked: usize, [n, c, spatial, begin, end]: [usize; 5]) -> Result<(), Fault> {
    let plain = n.checked_mul(c).and_then(|v| v.checked_mul(spatial));
    let padded = c.checked_next_multiple_of(16).and_then(|c| n.checked_mul(c)).and_then(|v| v.checked_mul(spatial));
    let fits = plain.is_some_and(|v| v <= len) && padded.is_some_and(|v| v <= blocked);
    if fits && begin <= end && end <= blocked16_units(n, c) { Ok(()) } else { Err(Fault::Descriptor) }
}

fn to_blocked16(isa: Isa, d: &ToBlocked16, x: &[f32], mut y: PartOut<'_, f32>) -> Result<(), Fault> {
    check(x.len(), y.len(), [d.n, d.c, d.spatial, d.part_begin, d.part_end])?;
    if d.spatial == 0 {
        return Ok(());
    }
    let blocks = d.c.div_ceil(16);
    for unit in d.part_begin..d.part_end {
        let (image, block) = (unit / blocks, unit % blocks);
        let lanes = (d.c - block * 16).min(16);
        let from = &x[(image * d.c + block * 16) * d.spatial..][..lanes * d.spatial];
        // SAFETY: the unit's block of one image, which is the part's alone.
        let to = unsafe { y.own(unit * d.spatial * 16..(unit + 1) * d.spatial * 16) };
        let whole = d.spatial / 8 * 8;
        for half in 0..2 {
            let lanes = lanes.saturating_sub(half * 8).min(8);
            let mut done = 0;
            if lanes == 8 {
                for p in (0..whole).step_by(8) {
                    transpose8(isa, &from[half * 8 * d.spatial + p..], d.spatial, &mut to[p * 16 + half * 8..], 16);
                }
                done = whole;
            }
            for p in done..d.spatial {
                for l in 0..8 {
                    to[p * 16 + half * 8 + l] = if l < lanes { from[(half * 8 + l) * d.spatial + p] } else { 0.0 };
                }
            }
        }
    }
    Ok(())
}

fn from_blocked16(isa: Isa, d: &FromBlocked16, x: &[f32], mut y: PartOut<'_, f32>) -> Result<(), Fault> {
    check(y.len(), x.len(), [d.n, d.c, d.spatial, d.part_begin, d.part_end])?;
    if d.spatial == 0 {
        return Ok(());
    }
    let blocks = d.c.div_ceil(16);
    for unit in d.part_begin..d.part_end {
        let (image, block) = (unit / blocks, unit % blocks);
        let lanes = (d.c - block * 16).min(16);
        let from = &x[unit * d.spatial * 16..][..d.spatial * 16];
        let at = (image * d.c + block * 16) * d.spatial;
        // SAFETY: the unit's channels of one image, which are the part's alone.
        let to = unsafe { y.own(at..at + lanes * d.spatial) };
        let whole = d.spatial / 8 * 8;
        for half in 0..2 {
            let lanes = lanes.saturating_sub(half * 8).min(8);
            let mut done = 0;
            if lanes == 8 {
                for p in (0..whole).step_by(8) {
                    transpose8(isa, &from[p * 16 + half * 8..], 16, &mut to[half * 8 * d.spatial + p..], d.spatial);
                }
                done = whole;
            }
            for l in 0..lanes {
                let to = &mut to[(half * 8 + l) * d.spatial..][..d.spatial];
                for p in done..d.spatial {
                    to[p] = from[p * 16 + half * 8 + l];
                }
            }
        }
    }
    Ok(())
}

/// `y[j·y_stride + i] = x[i·x_stride + j]` for `i, j < 8`; strides at least 8.
#[inline(always)]
fn transpose8(isa: Isa, x: &[f32], x_stride: usize, y: &mut [f32], y_stride: usize) {
    let (x, y) = (&x[..7 * x_stride + 8], &mut y[..7 * y_stride + 8]);
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: these sets prove AVX2; eight rows of eight lie in both slices.
        Isa::Avx2 | Isa::Avx512 => unsafe {
            transpose8_avx2(x.as_ptr(), x_stride, y.as_mut_ptr(), y_stride);
        },
        _ => {
            for i in 0..8 {
                for j in 0..8 {
                    y[j * y_stride + i] = x[i * x_stride + j];
                }
            }
        }
    }
}

/// # Safety
/// AVX2 runs here; `x` is valid for reads of eight rows of eight, `y` for writes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn transpose8_avx2(x: *const f32, x_stride: usize, y: *mut f32, y_stride: usize) {
    use core::arch::x86_64::*;
    // SAFETY: the caller's promise.
    unsafe {
        // Register `i` holds columns 0..4 (i < 4) or 4..8 of rows `i % 4` and `i % 4 + 4`.
        let row = |i: usize, at: usize| _mm_loadu_ps(x.add(i * x_stride + at));
        let pair = |i: usize, at: usize| _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(row(i, at)), row(i + 4, at));
        for at in [0, 4] {
            let (a, b, c, d) = (pair(0, at), pair(1, at), pair(2, at), pair(3, at));
            let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let out = [
                _mm256_shuffle_ps::<0x44>(ab_low, cd_low),
                _mm256_shuffle_ps::<0xee>(ab_low, cd_low),
                _mm256_shuffle_ps::<0x44>(ab_high, cd_high),
                _mm256_shuffle_ps::<0xee>(ab_high, cd_high),
            ];
            for (j, v) in out.into_iter().enumerate() {
                _mm256_storeu_ps(y.add((at + j) * y_stride), v);
            }
        }
    }
}
