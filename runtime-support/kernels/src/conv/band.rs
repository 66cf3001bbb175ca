//! Copies a band's input to scratch: zeros around it, columns sorted by phase (column modulo stride).
//!
//! In: one group of one image, blocked or plain. Out: scratch as `[block][row][phase][pitch][LANE]`; element
//! `(row, phase, i)` is input row `first + row` (or, for kernels of one row, the `row`-th row that an output row needs),
//! column `first + i·stride + phase`, or zero outside the image.

use super::blocked::Band;
use super::geometry::Plan;
use crate::simd_fn;

simd_fn! {
    /// Copies the input of one band. `x` starts at the group's first channel; it and `scratch` are as long as the plan says.
    pub(crate) fn copy_band<S>[const LANE: usize][LANE](s, plan: &Plan, band: &Band, x: &[f32], scratch: &mut [f32]) {
        let _ = s;
        copy::<LANE>(plan, band, x, scratch);
    }
}

#[inline(always)]
fn copy<const LANE: usize>(plan: &Plan, band: &Band, x: &[f32], scratch: &mut [f32]) {
    let s = &plan.shape;
    // Input rows that lie between two scratch rows.
    let skip = if s.kh == 1 { s.sy } else { 1 };
    let rows = if s.kh == 1 { band.rows } else { (band.rows - 1) * s.sy + (s.kh - 1) * s.dy + 1 };
    let row_len = plan.phases * plan.pitch * LANE;
    for block in 0..plan.ic_blocks {
        let from = &x[block * s.h * s.w * LANE..][..s.h * s.w * LANE];
        let to = &mut scratch[block * plan.block_len()..][..plan.block_len()];
        for row in 0..rows {
            let to = &mut to[row * row_len..][..row_len];
            // Position in the padded image; less the padding, in the image.
            let y = (band.row * s.sy + row * skip).wrapping_sub(s.pt);
            if y >= s.h {
                to.fill(0.0);
                continue;
            }
            let from = &from[y * s.w * LANE..][..s.w * LANE];
            for (phase, to) in to.chunks_exact_mut(plan.pitch * LANE).enumerate() {
                let first = band.col * s.sx + phase;
                copy_phase::<LANE>(from, to, first, s.pl, s.sx);
            }
        }
    }
}

/// `to[i] = from[first + i·stride − pad]`, zero outside; elements are of `LANE` floats.
#[inline(always)]
pub(super) fn copy_phase<const LANE: usize>(from: &[f32], to: &mut [f32], first: usize, pad: usize, stride: usize) {
    let (from, _) = from.as_chunks::<LANE>();
    let (to, _) = to.as_chunks_mut::<LANE>();
    // The first element inside the image, and the first after it.
    let start = pad.saturating_sub(first).div_ceil(stride).min(to.len());
    let end = (from.len() + pad).saturating_sub(first).div_ceil(stride).clamp(start, to.len());
    to[..start].fill([0.0; LANE]);
    to[end..].fill([0.0; LANE]);
    if start == end {
        return;
    }
    let from = &from[first + start * stride - pad..];
    let to = &mut to[start..end];
    match stride {
        1 => to.copy_from_slice(&from[..to.len()]),
        2 => strided::<LANE>(from, to, 2),
        _ => strided::<LANE>(from, to, stride),
    }
}

/// `to[i] = from[i·stride]`
#[inline(always)]
fn strided<const LANE: usize>(from: &[[f32; LANE]], to: &mut [[f32; LANE]], stride: usize) {
    // Whole groups of `stride`, then the last element, which may stand alone.
    let Some((last, to)) = to.split_last_mut() else { return };
    *last = from[to.len() * stride];
    for (to, from) in to.iter_mut().zip(from.chunks_exact(stride)) {
        *to = from[0];
    }
}
