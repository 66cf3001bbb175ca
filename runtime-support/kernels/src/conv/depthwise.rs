//! Depthwise convolution over the blocked layout: one kernel per channel, 16 channels to a vector.
//!
//! In: `x` as `[N, C/16, H, W, 16]`, weights from [`pack_depthwise_weights`](super::pack_depthwise_weights) as
//! `[C/16][kh·kw][16]`, bias padded to blocks. Out: `y` as `[N, C/16, OH, OW, 16]` with
//! `y = activation(conv(x) + bias + residual)`; the residual has `y`'s layout and may be `y`'s memory.
//! Borders are handled in place: rows outside the image are skipped, columns outside read as zero.
//!
//! Invariant: lanes never mix, so pad lanes reach nothing. A unit is one output row of one channel block.

use super::geometry::ConvShape;
use crate::simd::{F32x16, LANES, Simd};
use crate::{Activation, Fault, Isa, PartOut, activation, kernel, simd_fn};

kernel! {
    /// Depthwise convolution. Units `part_begin..part_end` of [`depthwise_units`].
    pub struct Depthwise {
        operands { read x: T, read weights: T, opt bias: T, write_parts y: T, opt_alias residual: T }
        nums { n, c, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, part_begin, part_end }
        params { activation: Activation }
    }
    entries { depthwise_f32 { T = f32 } }
    body = depthwise;
}

impl Depthwise {
    /// The extents.
    pub const fn shape(&self) -> ConvShape {
        let &Self { n, c, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, .. } = self;
        ConvShape { n, ic: c, oc: c, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups: c }
    }
}

/// Units of work of a [`Depthwise`]: batch · channel blocks · output rows.
pub const fn depthwise_units(n: usize, c: usize, oh: usize) -> usize {
    n * c.div_ceil(16) * oh
}

fn depthwise(
    isa: Isa,
    d: &Depthwise,
    x: &[f32],
    weights: &[f32],
    bias: Option<&[f32]>,
    mut y: PartOut<'_, f32>,
    residual: Option<Option<&[f32]>>,
) -> Result<(), Fault> {
    let s = d.shape();
    if !s.is_bounded() || d.part_begin > d.part_end || d.part_end > depthwise_units(s.n, s.ic, s.oh) {
        return Err(Fault::Descriptor);
    }
    let channels = s.ic.next_multiple_of(16);
    let out = s.n * channels * s.oh * s.ow;
    let enough = x.len() >= s.n * channels * s.h * s.w
        && weights.len() >= channels * s.kh * s.kw
        && bias.is_none_or(|b| b.len() >= channels)
        && y.len() >= out
        && residual.flatten().is_none_or(|r| r.len() >= out);
    if !enough {
        return Err(Fault::Descriptor);
    }
    let clamp = d.activation.as_clamp();
    let call = Call {
        s,
        x: x.as_ptr(),
        weights: weights.as_ptr(),
        bias: bias.map(<[f32]>::as_ptr),
        y: y.as_mut_ptr(),
        residual: residual.map(|r| r.map(<[f32]>::as_ptr)),
        clamp: clamp.unwrap_or((f32::NEG_INFINITY, f32::INFINITY)),
        activation: clamp.is_none().then_some(d.activation),
    };
    let same = |k, stride| [s.kh, s.kw, s.sx, s.dx] == [k, k, stride, 1];
    macro_rules! rows {
        ($k:literal, $stride:literal) => {
            // SAFETY: every operand is as long as the extents say, and the units lie in them.
            unsafe { rows::<$k, $stride>(isa, &call, d.part_begin, d.part_end) }
        };
    }
    match () {
        () if same(3, 1) => rows!(3, 1),
        () if same(3, 2) => rows!(3, 2),
        () if same(5, 1) => rows!(5, 1),
        () if same(5, 2) => rows!(5, 2),
        () if same(7, 1) => rows!(7, 1),
        () => rows!(0, 0),
    }
    Ok(())
}

/// What all rows of a call share.
struct Call {
    s: ConvShape,
    x: *const f32,
    weights: *const f32,
    bias: Option<*const f32>,
    y: *mut f32,
    /// The inner `None` is `y`.
    residual: Option<Option<*const f32>>,
    clamp: (f32, f32),
    /// Applied after the row is stored.
    activation: Option<Activation>,
}

/// Stands for an absent bias.
static ZERO: [f32; LANES] = [0.0; LANES];

/// One tile's place.
#[derive(Clone, Copy)]
struct At {
    /// First input row that a valid tap reads, at column 0.
    x: *const f32,
    /// Weights of the first valid tap row.
    w: *const f32,
    /// Valid tap rows.
    taps_y: usize,
    /// Input column of the first pixel's first tap (two's complement).
    col: usize,
    bias: *const f32,
    y: *mut f32,
    /// Or null.
    residual: *const f32,
}

simd_fn! {
    /// Output rows `begin..end`, counted over images and blocks. `K` is the kernel's height and width and `STRIDE` the
    /// horizontal stride where both are compiled in (without dilation), else 0. A tile's pixels fit the set's registers.
    ///
    /// # Safety
    /// The operands are as long as the extents say, and the rows lie in them.
    unsafe fn rows<S>[const K: usize, const STRIDE: usize][K, STRIDE](s, call: &Call, begin: usize, end: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if const { matches!(S::ISA, Isa::Avx512) } {
                rows_by::<S, K, STRIDE, 7>(s, call, begin, end)
            } else if const { matches!(S::ISA, Isa::Scalar) } {
                // The same sums, in code of any extents: scalar code has no registers to fill.
                rows_by::<S, 0, 0, 4>(s, call, begin, end)
            } else {
                rows_by::<S, K, STRIDE, 4>(s, call, begin, end)
            }
        }
    }
}

/// As `rows`, by tiles of `Q` pixels.
///
/// # Safety
/// As for `rows`.
#[inline(always)]
unsafe fn rows_by<S: Simd, const K: usize, const STRIDE: usize, const Q: usize>(
    s: S,
    call: &Call,
    begin: usize,
    end: usize,
) {
    let g = &call.s;
    let stride = if STRIDE > 0 { STRIDE } else { g.sx };
    let blocks = g.ic.div_ceil(16);
    let span = (g.kw - 1) * g.dx;
    // Pixels whose every column lies in the image.
    let inner_begin = g.pl.div_ceil(stride).min(g.ow);
    let inner_end = ((g.w + g.pl).saturating_sub(span)).div_ceil(stride).clamp(inner_begin, g.ow);
    for unit in begin..end {
        let (plane, row) = (unit / g.oh, unit % g.oh);
        let block = plane % blocks;
        // Valid tap rows.
        let top = row * g.sy;
        let first = g.pt.saturating_sub(top).div_ceil(g.dy).min(g.kh);
        let last = (g.h + g.pt).saturating_sub(top).div_ceil(g.dy).clamp(first, g.kh);
        let y = call.y.wrapping_add(unit * g.ow * 16);
        let residual = call.residual.map(|r| r.unwrap_or(call.y).wrapping_add(unit * g.ow * 16));
        let at = At {
            x: call.x.wrapping_add(((plane * g.h + top + first * g.dy).wrapping_sub(g.pt)).wrapping_mul(g.w * 16)),
            w: call.weights.wrapping_add((block * g.kh + first) * g.kw * 16),
            taps_y: last - first,
            col: 0,
            bias: call.bias.map_or(ZERO.as_ptr(), |b| b.wrapping_add(block * 16)),
            y,
            residual: core::ptr::null(),
        };
        let mut done = 0;
        while done < g.ow {
            // The last tile of a row computes some pixels again rather than some beside the row.
            let q = done.min(g.ow.saturating_sub(Q));
            let stored = (done - q, Q.min(g.ow - q));
            let at = At {
                col: (q * stride).wrapping_sub(g.pl),
                y: y.wrapping_add(q * 16),
                residual: residual.map_or(core::ptr::null(), |r| r.wrapping_add(q * 16)),
                ..at
            };
            // SAFETY: the caller's promise; the pixels lie in the row, and where `BORDER` is false, so do all taps.
            unsafe {
                if q >= inner_begin && q + Q <= inner_end {
                    tile::<S, K, STRIDE, Q, false>(s, call, at, stored);
                } else {
                    tile::<S, K, STRIDE, Q, true>(s, call, at, stored);
                }
            }
            done = q + Q;
        }
        if let Some(f) = call.activation {
            // SAFETY: the row just written.
            unsafe { activation::apply_rows(S::ISA, f, y, 1, g.ow * 16, 0) };
        }
    }
}

/// `Q` pixels of a row, of which those in `from..to` are stored. With `BORDER`, columns outside the image add nothing.
///
/// # Safety
/// As for `rows`; without `BORDER`, every tap of every pixel lies in the image.
#[inline(always)]
unsafe fn tile<S: Simd, const K: usize, const STRIDE: usize, const Q: usize, const BORDER: bool>(
    s: S,
    call: &Call,
    at: At,
    (from, to): (usize, usize),
) {
    let g = &call.s;
    // Columns `skip..skip + width`, counted from the first pixel's first tap, lie in the image (`skip` in two's complement).
    let (skip, width) = (at.col.wrapping_neg(), g.w);
    let outside = |i: usize| BORDER && i.wrapping_sub(skip) >= width;
    // SAFETY: the caller vouches for bias, weights and rows; a column outside the image is not read.
    unsafe {
        let mut acc = [s.load(at.bias); Q];
        for ky in 0..at.taps_y {
            let row = at.x.wrapping_add((ky * g.dy * g.w).wrapping_add(at.col).wrapping_mul(16));
            let w = at.w.wrapping_add(ky * g.kw * 16);
            if K > 0 {
                let mut weights = [s.zero(); K];
                for kx in 0..K {
                    weights[kx] = s.load(w.add(kx * 16));
                }
                if STRIDE == 1 {
                    // Each column is loaded once, for all taps that meet it.
                    for i in 0..Q + K - 1 {
                        if outside(i) {
                            continue;
                        }
                        let v = s.load(row.wrapping_add(i * 16));
                        for kx in 0..K {
                            if i >= kx && i - kx < Q {
                                acc[i - kx] = v.fma(weights[kx], acc[i - kx]);
                            }
                        }
                    }
                } else {
                    for kx in 0..K {
                        for q in 0..Q {
                            if outside(q * STRIDE + kx) {
                                continue;
                            }
                            acc[q] = s.load(row.wrapping_add((q * STRIDE + kx) * 16)).fma(weights[kx], acc[q]);
                        }
                    }
                }
            } else {
                for kx in 0..g.kw {
                    let weight = s.load(w.add(kx * 16));
                    for q in 0..Q {
                        let i = q * g.sx + kx * g.dx;
                        if outside(i) {
                            continue;
                        }
                        acc[q] = s.load(row.wrapping_add(i * 16)).fma(weight, acc[q]);
                    }
                }
            }
        }
        let (low, high) = (s.splat(call.clamp.0), s.splat(call.clamp.1));
        for q in 0..Q {
            if q < from || q >= to {
                continue;
            }
            let mut v = acc[q];
            if !at.residual.is_null() {
                v = v + s.load(at.residual.add(q * 16));
            }
            high.min(low.max(v)).store(at.y.add(q * 16));
        }
    }
}
