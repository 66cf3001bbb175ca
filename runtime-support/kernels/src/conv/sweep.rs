//! Inner kernel of the plain-layout convolutions: output channels × vectors of pixels over gathered input rows.
//!
//! In: rows of input pixels, gathered so that output pixel `p` reads `row[p + offset of the tap]`, and unpacked weights.
//! Out: sums for `O` channels × `V` vectors of 16 pixels. Per row and tap, `V` vectors are loaded and `O` weights broadcast.

use crate::simd::{F32x16, LANES};
use crate::{Isa, simd_fn};

/// Channels of a tile.
pub(super) const CHANNELS: usize = 4;
/// Most vectors of pixels in a tile.
pub(super) const VECTORS: usize = 4;

/// The terms of a sum, one per row and column tap. All steps are in elements, two's complement.
#[derive(Clone, Copy)]
pub(super) struct Sweep {
    /// Gathered rows at pixel 0 and the first tap.
    pub(super) x: *const f32,
    /// Weight of the first channel and tap.
    pub(super) w: *const f32,
    /// Input channels, then taps by depth, height and width.
    pub(super) counts: [usize; 4],
    /// From one gathered row (input channel, depth tap, height tap) to the next.
    pub(super) x_row: usize,
    /// From one column tap to the next while the phase does not wrap.
    pub(super) x_tap: usize,
    /// Phases to go on by per column tap, their number, and what wrapping adds.
    pub(super) phase_step: usize,
    pub(super) phases: usize,
    pub(super) x_wrap: usize,
    /// Weight steps in the order of `counts`.
    pub(super) w_steps: [usize; 4],
    /// From one output channel's weights to the next's.
    pub(super) w_channel: usize,
}

/// A tile's sums.
pub(super) type Sums = [[f32; VECTORS * LANES]; CHANNELS];

/// Sums of `channels <= CHANNELS` channels for `vectors <= VECTORS` vectors of pixels from pixel `at`; the rest of `out` is
/// unspecified. `start` is what each channel's sums begin with.
///
/// # Safety
/// For every term, `x + at` is valid for reads of `vectors` vectors, and `w` for every channel.
pub(super) unsafe fn sums(
    isa: Isa,
    a: &Sweep,
    at: usize,
    channels: usize,
    vectors: usize,
    start: &[f32; CHANNELS],
    out: &mut Sums,
) {
    // Two registers to a vector leave room for one; a register each, for four.
    let most = if isa == Isa::Avx512 { VECTORS } else { 1 };
    let mut done = 0;
    while done < vectors {
        let v = most.min(vectors - done);
        let at = at + done * LANES;
        macro_rules! tile {
            ($o:literal, $a:expr, $start:expr, $out:expr) => {
                // SAFETY: the caller's promise.
                unsafe {
                    match v {
                        1 => tile::<$o, 1>(isa, $a, at, $start, $out, done),
                        2 => tile::<$o, 2>(isa, $a, at, $start, $out, done),
                        3 => tile::<$o, 3>(isa, $a, at, $start, $out, done),
                        _ => tile::<$o, 4>(isa, $a, at, $start, $out, done),
                    }
                }
            };
        }
        if channels == CHANNELS {
            tile!(4, a, start, out);
        } else {
            for c in 0..channels {
                let one = Sweep { w: a.w.wrapping_add(c.wrapping_mul(a.w_channel)), ..*a };
                tile!(1, &one, &start[c..], &mut out[c..]);
            }
        }
        done += v;
    }
}

simd_fn! {
    /// # Safety
    /// As for `sums`, with `O` channels and `V` vectors.
    unsafe fn tile<S>[const O: usize, const V: usize][O, V](
        s, a: &Sweep, at: usize, start: &[f32], out: &mut [[f32; VECTORS * LANES]], first: usize,
    ) {
        let mut acc = [[s.zero(); V]; O];
        for o in 0..O {
            acc[o] = [s.splat(start[o]); V];
        }
        let mut row = a.x.wrapping_add(at);
        for c in 0..a.counts[0] {
            for z in 0..a.counts[1] {
                for y in 0..a.counts[2] {
                    let offset = c.wrapping_mul(a.w_steps[0])
                        .wrapping_add(z.wrapping_mul(a.w_steps[1]))
                        .wrapping_add(y.wrapping_mul(a.w_steps[2]));
                    let mut w = a.w.wrapping_add(offset);
                    let (mut x, mut phase) = (row, 0);
                    for _ in 0..a.counts[3] {
                        // SAFETY: the caller vouches for every term.
                        unsafe {
                            let mut v = [s.zero(); V];
                            for i in 0..V {
                                v[i] = s.load(x.add(i * LANES));
                            }
                            for o in 0..O {
                                let weight = s.splat(*w.wrapping_add(o.wrapping_mul(a.w_channel)));
                                for i in 0..V {
                                    acc[o][i] = v[i].fma(weight, acc[o][i]);
                                }
                            }
                        }
                        w = w.wrapping_add(a.w_steps[3]);
                        x = x.wrapping_add(a.x_tap);
                        phase += a.phase_step;
                        if phase >= a.phases {
                            phase -= a.phases;
                            x = x.wrapping_add(a.x_wrap);
                        }
                    }
                    row = row.wrapping_add(a.x_row);
                }
            }
        }
        for o in 0..O {
            for i in 0..V {
                acc[o][i].store_slice(&mut out[o], (first + i) * LANES);
            }
        }
    }
}
