//! 8-bit depthwise convolution over the blocked layout: one kernel per channel, 16 channels to a vector, requantised.
//!
//! In and out as [`QConvBlocked`](super::QConvBlocked), weights from
//! [`pack_qdepthwise_weights`](super::pack_qdepthwise_weights). A band of rows of one channel block is copied to scratch with
//! `x_zero` around it. With `vpdpbusd`, four neighbouring pixels of 16 channels are transposed so that each lane holds four
//! taps of one channel; at stride 1 with at most three taps, the same lanes serve the next pixel with the weights shifted.
//!
//! Invariant: lanes never mix, so pad lanes reach nothing; a unit is one band of one channel block.

use super::conv_blocked::{most, reach};
#[cfg(target_arch = "x86_64")]
use super::conv_tile::emit_four;
use super::conv_tile::{Emission, emit_one};
#[cfg(target_arch = "x86_64")]
use super::depthwise_wide;
use crate::conv::ConvShape;
use crate::descriptor::part_end;
use crate::gemm::int8::dot::Kernels;
use crate::simd::LANES;
use crate::{Fault, Isa, PartOut, kernel, simd_fn};

kernel! {
    /// Depthwise convolution. Units `part_begin..part_end` of [`qdepthwise_units`]. Codes, flips and limits as in
    /// [`QConvBlocked`](super::QConvBlocked).
    pub struct QDepthwise {
        operands { read x: B, read weights: W, read bias: I, read factor: F, write scratch: B, write_parts y: B }
        nums { n, c, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, part_begin, part_end }
        params { x_zero: u8, x_flip: u8, y_zero: i32, y_low: u8, y_high: u8, y_flip: u8 }
    }
    entries { qdepthwise_b8 { B = u8, W = i8, I = i32, F = f32 } }
    body = qdepthwise;
}

/// Bytes of a band in scratch: it stays in L1.
const BAND_BYTES: usize = 24 << 10;
/// Columns after a row's last tap that a whole load may touch.
pub(super) const SLACK: usize = 8;

/// Units of work: batch · channel blocks · bands of rows.
pub const fn qdepthwise_units(shape: ConvShape) -> usize {
    shape.n * shape.ic.div_ceil(16) * shape.oh.div_ceil(band_rows(&shape))
}

/// Bytes of scratch of a [`QDepthwise`].
pub const fn qdepthwise_scratch_bytes(shape: ConvShape) -> usize {
    reach(band_rows(&shape), shape.sy, shape.kh, shape.dy) * pitch(&shape) * LANES
}

/// Bytes of scratch that are enough at every batch, height and width up to those of `most`.
pub const fn qdepthwise_scratch_bound(most: ConvShape) -> usize {
    let one_row = reach(1, 1, most.kh, most.dy) * pitch(&most) * LANES;
    let all = reach(most.oh, most.sy, most.kh, most.dy).saturating_mul(pitch(&most) * LANES);
    let band = if one_row > BAND_BYTES { one_row } else { BAND_BYTES };
    if all < band { all } else { band }
}

const fn pitch(s: &ConvShape) -> usize {
    reach(s.ow, s.sx, s.kw, s.dx) + SLACK
}

const fn band_rows(s: &ConvShape) -> usize {
    let rows = BAND_BYTES / (pitch(s) * LANES) + s.sy;
    let fit = most(1, rows.saturating_sub(reach(1, 1, s.kh, s.dy)) / most(1, s.sy));
    let bands = most(1, s.oh.div_ceil(fit));
    most(1, s.oh.div_ceil(bands))
}

impl QDepthwise {
    /// The extents.
    pub const fn shape(&self) -> ConvShape {
        let &Self { n, c, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, .. } = self;
        ConvShape { n, ic: c, oc: c, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups: c }
    }
}

fn qdepthwise(
    isa: Isa,
    d: &QDepthwise,
    x: &[u8],
    weights: &[i8],
    bias: &[i32],
    factor: &[f32],
    scratch: &mut [u8],
    mut y: PartOut<'_, u8>,
) -> Result<(), Fault> {
    let s = d.shape();
    if !s.is_bounded() {
        return Err(Fault::Descriptor);
    }
    let end = part_end(d.part_end, qdepthwise_units(s));
    if d.part_begin > end || end > qdepthwise_units(s) {
        return Err(Fault::Descriptor);
    }
    let channels = s.ic.next_multiple_of(16);
    let fours = s.kw.div_ceil(4);
    let enough = x.len() >= s.n * channels * s.h * s.w
        && weights.len() >= channels * s.kh * fours * 4
        && bias.len() >= channels
        && factor.len() >= channels
        && scratch.len() >= qdepthwise_scratch_bytes(s)
        && y.len() >= s.n * channels * s.oh * s.ow;
    if !enough {
        return Err(Fault::Descriptor);
    }
    // Rows without pixels.
    if s.ow == 0 {
        return Ok(());
    }
    let emission = Emission {
        zero: d.y_zero,
        low: d.y_low,
        high: d.y_high,
        flip: d.y_flip,
        small: factor.iter().all(|f| f.abs() <= 0.25),
    };
    let (rows, blocks, pitch) = (band_rows(&s), s.ic.div_ceil(16), pitch(&s));
    let bands = s.oh.div_ceil(rows);
    let kernels = Kernels::of(isa);
    for unit in d.part_begin..end {
        let (plane, band) = (unit / bands, unit % bands);
        let first = band * rows;
        let rows = rows.min(s.oh - first);
        copy_rows(&s, &x[plane * s.h * s.w * LANES..][..s.h * s.w * LANES], first, rows, d.x_zero, d.x_flip, scratch);
        let block = plane % blocks;
        let at = (plane * s.oh + first) * s.ow * LANES;
        let call = Band {
            s: &s,
            x: scratch,
            pitch,
            weights: &weights[block * s.kh * fours * 64..][..s.kh * fours * 64],
            bias: &bias[block * LANES..][..LANES],
            factor: &factor[block * LANES..][..LANES],
            emission: &emission,
        };
        // SAFETY: the unit's rows, which are the part's alone.
        run_band(isa, kernels, &call, unsafe { y.own(at..at + rows * s.ow * LANES) });
    }
    Ok(())
}

/// A band's input rows, with the zero point around the image.
fn copy_rows(s: &ConvShape, x: &[u8], first: usize, rows: usize, zero: u8, flip: u8, scratch: &mut [u8]) {
    let pitch = pitch(s);
    let from = s.pl.min(pitch);
    let to = (from + s.w).min(pitch);
    for (r, out) in scratch.chunks_exact_mut(pitch * LANES).take(reach(rows, s.sy, s.kh, s.dy)).enumerate() {
        let Some(y) = (first * s.sy + r).checked_sub(s.pt).filter(|&y| y < s.h) else {
            out.fill(zero);
            continue;
        };
        out[..from * LANES].fill(zero);
        out[to * LANES..].fill(zero);
        let x = &x[y * s.w * LANES..][..(to - from) * LANES];
        let out = &mut out[from * LANES..to * LANES];
        if flip == 0 {
            out.copy_from_slice(x);
        } else {
            for (o, x) in out.iter_mut().zip(x) {
                *o = x ^ flip;
            }
        }
    }
}

/// One band of one channel block.
pub(super) struct Band<'a> {
    pub(super) s: &'a ConvShape,
    pub(super) x: &'a [u8],
    pub(super) pitch: usize,
    pub(super) weights: &'a [i8],
    pub(super) bias: &'a [i32],
    pub(super) factor: &'a [f32],
    pub(super) emission: &'a Emission,
}

fn run_band(isa: Isa, kernels: Kernels, b: &Band<'_>, y: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if kernels == Kernels::Avx512Vnni && b.s.dx == 1 {
        // SAFETY: the set runs here; scratch and weights are as long as the extents say.
        unsafe {
            match (b.s.sx, b.s.kh, b.s.kw) {
                (1, 3, 3) => vnni::shared::<3>(b, y),
                (1, 5, 3) => vnni::shared::<5>(b, y),
                _ => vnni::each(b, y),
            }
        }
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if matches!(kernels, Kernels::Avx2 | Kernels::AvxVnni) {
        // SAFETY: AVX2 runs here, as these say; scratch and weights are as long as the extents say.
        unsafe {
            match (b.s.kh, b.s.kw, b.s.sx, b.s.dx) {
                (3, 3, 1, 1) => depthwise_wide::fixed::<3, 3, 1>(b, y),
                (3, 3, 2, 1) => depthwise_wide::fixed::<3, 3, 2>(b, y),
                (5, 5, 1, 1) => depthwise_wide::fixed::<5, 5, 1>(b, y),
                (5, 5, 2, 1) => depthwise_wide::fixed::<5, 5, 2>(b, y),
                _ => depthwise_wide::any(b, y),
            }
        }
        return;
    }
    let _ = kernels;
    any_set(isa, b, y);
}

simd_fn! {
    /// Any kernel on any set: widened products, tap by tap.
    fn any_set<S>(s, b: &Band<'_>, y: &mut [u8]) {
        let g = b.s;
        let fours = g.kw.div_ceil(4);
        let factor = s.load_slice(b.factor, 0);
        for (row, y) in y.chunks_exact_mut(g.ow * LANES).enumerate() {
            for (q, y) in y.chunks_exact_mut(LANES).enumerate() {
                let mut sums: [i32; LANES] = core::array::from_fn(|l| b.bias[l]);
                for ky in 0..g.kh {
                    for kx in 0..g.kw {
                        let at = ((row * g.sy + ky * g.dy) * b.pitch + q * g.sx + kx * g.dx) * LANES;
                        let x = &b.x[at..at + LANES];
                        let w = &b.weights[(ky * fours + kx / 4) * 64..][..64];
                        for l in 0..LANES {
                            let product = i32::from(x[l]) * i32::from(w[l * 4 + kx % 4]);
                            sums[l] = sums[l].wrapping_add(product);
                        }
                    }
                }
                y.copy_from_slice(&emit_one(s, sums, b.emission, factor));
            }
        }
    }
}

/// 512-bit `vpdpbusd`.
#[cfg(target_arch = "x86_64")]
mod vnni {
    use super::{Band, LANES, emit_four};
    use core::arch::x86_64::*;

    /// Four pixels of 16 channels with the four bytes of each channel side by side.
    ///
    /// # Safety
    /// 64 bytes are valid for reads; the set runs here.
    #[inline(always)]
    unsafe fn taps(x: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let pixels = _mm512_loadu_si512(x.cast());
            // Part p of 128 bits takes channels 4p..4p+4 of the four pixels, then their bytes are transposed.
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
            _mm512_shuffle_epi8(_mm512_permutexvar_epi32(order, pixels), bytes)
        }
    }

    /// Stores `n` pixels, at most four.
    ///
    /// # Safety
    /// `16·n` bytes are valid for writes; the set runs here.
    #[inline(always)]
    unsafe fn store(y: *mut u8, bytes: __m512i, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if n >= 4 {
                _mm512_storeu_si512(y.cast(), bytes);
            } else {
                _mm512_mask_storeu_epi32(y.cast(), (1u16 << (4 * n)) - 1, bytes);
            }
        }
    }

    /// Stride 1, at most three taps a row: each load serves two pixels.
    ///
    /// # Safety
    /// The set runs here; scratch, weights, bias and factors are as long as the extents say.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn shared<const KH: usize>(b: &Band<'_>, y: &mut [u8]) {
        let g = b.s;
        // SAFETY: the caller's promise; a tile of four pixels reads two whole loads, the last of them within the row's
        // slack, and writes what the row has left.
        unsafe {
            let factor = _mm512_loadu_ps(b.factor.as_ptr());
            let bias = _mm512_loadu_si512(b.bias.as_ptr().cast());
            let mut even = [_mm512_setzero_si512(); KH];
            let mut odd = [_mm512_setzero_si512(); KH];
            for ky in 0..KH {
                even[ky] = _mm512_loadu_si512(b.weights.as_ptr().add(ky * 64).cast());
                odd[ky] = _mm512_slli_epi32::<8>(even[ky]);
            }
            for (row, y) in y.chunks_exact_mut(g.ow * LANES).enumerate() {
                let x = b.x.as_ptr().add(row * g.sy * b.pitch * LANES);
                for q in (0..g.ow).step_by(4) {
                    let mut sums = [bias; 4];
                    for ky in 0..KH {
                        let x = x.add((ky * g.dy * b.pitch + q) * LANES);
                        let (first, second) = (taps(x), taps(x.add(2 * LANES)));
                        sums[0] = _mm512_dpbusd_epi32(sums[0], first, even[ky]);
                        sums[1] = _mm512_dpbusd_epi32(sums[1], first, odd[ky]);
                        sums[2] = _mm512_dpbusd_epi32(sums[2], second, even[ky]);
                        sums[3] = _mm512_dpbusd_epi32(sums[3], second, odd[ky]);
                    }
                    let bytes = emit_four(sums, b.emission, factor);
                    store(y.as_mut_ptr().add(q * LANES), bytes, g.ow - q);
                }
            }
        }
    }

    /// Any stride and number of taps, none apart from each other: one load a pixel and four taps.
    ///
    /// # Safety
    /// As for `shared`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn each(b: &Band<'_>, y: &mut [u8]) {
        let g = b.s;
        let fours = g.kw.div_ceil(4);
        // SAFETY: the caller's promise; a load reaches at most three pixels beyond the row's last tap, within its slack;
        // of a tile's four pixels those beyond the row are computed at its last pixel.
        unsafe {
            let factor = _mm512_loadu_ps(b.factor.as_ptr());
            let bias = _mm512_loadu_si512(b.bias.as_ptr().cast());
            for (row, y) in y.chunks_exact_mut(g.ow * LANES).enumerate() {
                let x = b.x.as_ptr().add(row * g.sy * b.pitch * LANES);
                for q in (0..g.ow).step_by(4) {
                    let mut sums = [bias; 4];
                    for ky in 0..g.kh {
                        for four in 0..fours {
                            let w = _mm512_loadu_si512(b.weights.as_ptr().add((ky * fours + four) * 64).cast());
                            for i in 0..4 {
                                let pixel = if q + i < g.ow { q + i } else { g.ow - 1 };
                                let at = ky * g.dy * b.pitch + pixel * g.sx + four * 4;
                                sums[i] = _mm512_dpbusd_epi32(sums[i], taps(x.add(at * LANES)), w);
                            }
                        }
                    }
                    let bytes = emit_four(sums, b.emission, factor);
                    store(y.as_mut_ptr().add(q * LANES), bytes, g.ow - q);
                }
            }
        }
    }
}
