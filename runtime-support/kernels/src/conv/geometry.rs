//! How a direct convolution is cut: bands of output pixels, groups of output-channel blocks, and the band's scratch copy.
//!
//! In: a convolution's extents. Out: a [`Plan`] that the kernel, the unit count and the scratch size all derive from, so
//! they agree. It depends on extents only, never on the instruction set: a compiler splits units offline.
//!
//! A *band* is a rectangle of output pixels. Where the input needs padding or the stride is not 1, the band's input is
//! first copied to scratch, with zeros around it and columns sorted by phase (column modulo stride): then output pixel
//! `q` reads column `q + constant` of one phase at every tap, and one kernel without borders or strides serves all cases.
//! A *unit* is one band × one output-channel block; units write disjoint bytes. A call takes the units of a band together,
//! so they are as small as an even split over streams needs, not as a tile needs.

/// Input bytes of a band: enough to use a cached weight often, and room for the weights beside it in L2.
const BAND_BYTES: usize = 256 << 10;
/// Units of a convolution, at least, where its extents allow: a split in two is even to an eighth.
const MIN_UNITS: usize = 16;
/// A band cut within a row has a multiple of this many pixels: whole tiles with AVX-512.
const COLUMN_STEP: usize = 28;

/// Extents of a 2-D convolution (1-D: height 1). Right and bottom padding follow from the output's extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Batch.
    pub n: usize,
    /// Input channels.
    pub ic: usize,
    /// Output channels.
    pub oc: usize,
    /// Input height.
    pub h: usize,
    /// Input width.
    pub w: usize,
    /// Output height.
    pub oh: usize,
    /// Output width.
    pub ow: usize,
    /// Kernel height.
    pub kh: usize,
    /// Kernel width.
    pub kw: usize,
    /// Vertical stride.
    pub sy: usize,
    /// Horizontal stride.
    pub sx: usize,
    /// Vertical dilation.
    pub dy: usize,
    /// Horizontal dilation.
    pub dx: usize,
    /// Padding above.
    pub pt: usize,
    /// Padding on the left.
    pub pl: usize,
    /// Channel groups.
    pub groups: usize,
}

/// The cut of one convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The extents the loops run over: those given, or with rows joined to one where the kernel is a single tap.
    pub(crate) shape: ConvShape,
    /// Input channels stored side by side: 16 (blocked) or 1 (plain).
    pub(crate) lane: usize,
    /// Input blocks of a group.
    pub(crate) ic_blocks: usize,
    /// Output blocks of a group.
    pub(crate) oc_blocks: usize,
    /// Output rows of a band.
    pub(crate) band_rows: usize,
    /// Output columns of a band.
    pub(crate) band_cols: usize,
    /// Bands below each other.
    pub(crate) bands_y: usize,
    /// Bands beside each other.
    pub(crate) bands_x: usize,
    /// Whether a band's input is copied to scratch.
    pub(crate) copied: bool,
    /// Input rows from one output row to the next, in what the tile reads.
    pub(crate) row_step: usize,
    /// Input rows of a full band in scratch.
    pub(crate) in_rows: usize,
    /// Phases in scratch.
    pub(crate) phases: usize,
    /// Columns of a phase in scratch, for a full band.
    pub(crate) pitch: usize,
}

pub(super) const fn at_least_1(x: usize) -> usize {
    if x == 0 { 1 } else { x }
}

const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

const fn min(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

impl Plan {
    /// The cut for these extents. Zero extents give a plan without units.
    pub(crate) const fn new(given: ConvShape, lane: usize) -> Self {
        let mut s = given;
        // A single column is a row: the same memory, and rows are what tiles cover.
        if s.w == 1 && s.ow == 1 && s.kw == 1 && s.pl == 0 {
            s = turned(s);
        }
        Self::cut(s, lane, true)
    }

    /// As [`Plan::new`], for extents as they are; `join` allows rows of single taps to become one.
    pub(crate) const fn cut(mut s: ConvShape, lane: usize, join: bool) -> Self {
        let single_tap = s.kh == 1 && s.kw == 1;
        let unit_stride = s.sy == 1 && s.sx == 1;
        // Right and bottom padding show in the output's extents.
        let padded = s.pt > 0 || s.pl > 0 || reach(s.oh, s.sy, s.kh, s.dy) > s.h || reach(s.ow, s.sx, s.kw, s.dx) > s.w;
        let copied = padded || s.sx != 1;
        if join && single_tap && unit_stride && !padded && s.oh == s.h && s.ow == s.w {
            s.w *= s.h;
            s.ow = s.w;
            s.h = 1;
            s.oh = 1;
        }
        let groups = at_least_1(s.groups);
        let ic_blocks = (s.ic / groups).div_ceil(lane);
        let oc_blocks = (s.oc / groups).div_ceil(16);
        let min_bands = MIN_UNITS.div_ceil(at_least_1(s.n * groups * oc_blocks));

        let phases = min(s.sx, (s.kw.saturating_sub(1)) * s.dx + 1);
        let apron = s.kw.saturating_sub(1) * s.dx / at_least_1(s.sx);
        // One input row per output row and tap row, or (a kernel of one row) one per output row.
        let row_step = if copied && s.kh == 1 { 1 } else { s.sy };
        let row_bytes = at_least_1(ic_blocks * lane * 4 * phases * (s.ow + apron));
        let (mut bands_y, mut bands_x) = (1, 1);
        if s.oh > 1 {
            let all = reach(s.oh, row_step, s.kh, s.dy) * row_bytes;
            bands_y = at_least_1(min(max(all.div_ceil(BAND_BYTES), min_bands), s.oh.div_ceil(2 * s.kh)));
        }
        let band_rows = at_least_1(s.oh.div_ceil(bands_y));
        let band_bytes = reach(band_rows, row_step, s.kh, s.dy) * row_bytes;
        if s.oh == 1 || band_bytes > 2 * BAND_BYTES {
            bands_x = max(band_bytes.div_ceil(BAND_BYTES), min_bands.div_ceil(bands_y));
        }
        let mut band_cols = at_least_1(s.ow);
        if bands_x > 1 {
            band_cols = at_least_1(min(s.ow, s.ow.div_ceil(bands_x).div_ceil(COLUMN_STEP) * COLUMN_STEP));
        }
        let bands_y = s.oh.div_ceil(band_rows);
        let bands_x = s.ow.div_ceil(band_cols);
        let (in_rows, phases, pitch) =
            if copied { (reach(band_rows, row_step, s.kh, s.dy), phases, band_cols + apron) } else { (s.h, 1, s.w) };
        Self {
            shape: s,
            lane,
            ic_blocks,
            oc_blocks,
            band_rows,
            band_cols,
            bands_y,
            bands_x,
            copied,
            row_step,
            in_rows,
            phases,
            pitch,
        }
    }

    /// Units of the whole convolution; unit number: ((batch · groups + group) · bands + band) · oc_blocks + block.
    pub(crate) const fn units(&self) -> usize {
        let s = &self.shape;
        s.n * at_least_1(s.groups) * self.bands_y * self.bands_x * self.oc_blocks
    }

    /// Elements of scratch that a call needs.
    pub(crate) const fn scratch_len(&self) -> usize {
        if self.copied { self.ic_blocks * self.block_len() } else { 0 }
    }

    /// Bytes of scratch that are enough at every batch, height and width up to those of `most`.
    ///
    /// Rows of a band are either cut by size, and then it has at most (2 + dy) · `BAND_BYTES`, or it has at most 2 · kh
    /// output rows; then columns are cut by size, in whole steps.
    pub(crate) const fn scratch_bound(most: ConvShape, lane: usize) -> usize {
        let across = Self::bound_across(&most, lane);
        // A single column is a row, see `new`.
        if most.kw == 1 && most.pl == 0 { max(across, Self::bound_across(&turned(most), lane)) } else { across }
    }

    const fn bound_across(s: &ConvShape, lane: usize) -> usize {
        let ic_blocks = (s.ic / at_least_1(s.groups)).div_ceil(lane);
        let phases = min(s.sx, s.kw.saturating_sub(1) * s.dx + 1);
        let apron = s.kw.saturating_sub(1) * s.dx / at_least_1(s.sx);
        let row_step = if s.kh == 1 { 1 } else { s.sy };
        let column_bytes = ic_blocks * lane * 4 * phases;
        let all = reach(s.oh, row_step, s.kh, s.dy).saturating_mul(column_bytes).saturating_mul(s.ow + apron);
        let tall = (2 + s.dy) * BAND_BYTES;
        let narrow = BAND_BYTES + column_bytes * reach(2 * s.kh, row_step, s.kh, s.dy) * (COLUMN_STEP + apron);
        min(all, max(tall, narrow))
    }

    /// Elements from one input block to the next in what the tile reads.
    pub(crate) const fn block_len(&self) -> usize {
        self.in_rows * self.phases * self.pitch * self.lane
    }

    /// Whether the extents fit together and none overflows: to be asked before [`Plan::new`].
    pub(crate) fn is_valid(s: &ConvShape, lane: usize) -> bool {
        let channels = s.groups >= 1 && s.ic.is_multiple_of(s.groups) && s.oc.is_multiple_of(s.groups);
        // A group that starts within a block cannot be addressed.
        let whole_blocks = |c: usize| (c / s.groups).is_multiple_of(16);
        let blocks = s.groups == 1 || (lane == 16 && whole_blocks(s.ic) && whole_blocks(s.oc));
        channels && s.is_bounded() && blocks && s.ic > 0
    }
}

impl ConvShape {
    /// Whether kernel, strides and dilations are at least 1 and no address computed from the extents overflows.
    pub(crate) fn is_bounded(&self) -> bool {
        let s = self;
        let bounded = |xs: &[usize]| xs.iter().try_fold(1usize, |a, &x| a.checked_mul(x)).is_some_and(|p| p < 1 << 48);
        [s.kh, s.kw, s.sy, s.sx, s.dy, s.dx].iter().all(|&v| v >= 1)
            && [s.n, s.ic, s.oc, s.h, s.w, s.oh, s.ow, s.pt, s.pl].iter().all(|&v| v < 1 << 40)
            && bounded(&[s.n + 1, s.ic + 16, s.h + 1, s.w + 1])
            && bounded(&[s.n + 1, s.oc + 16, s.oh + 1, s.ow + 1])
            && bounded(&[s.ic + 16, s.oh + 1, s.sy, s.ow + 1, s.sx])
            && bounded(&[s.ic + 16, s.kh, s.dy, s.kw, s.dx])
            && bounded(&[s.oc + 16, s.ic + 16, s.kh, s.kw])
    }
}

/// A single column as a row.
const fn turned(s: ConvShape) -> ConvShape {
    ConvShape { w: s.h, ow: s.oh, kw: s.kh, sx: s.sy, dx: s.dy, pl: s.pt, h: 1, oh: 1, kh: 1, sy: 1, dy: 1, pt: 0, ..s }
}

/// Input extent that `n` output positions of a kernel of `k` taps reach over.
pub(crate) const fn reach(n: usize, stride: usize, k: usize, dilation: usize) -> usize {
    if n == 0 || k == 0 { 0 } else { (n - 1) * stride + (k - 1) * dilation + 1 }
}

/// Units of work of a [`ConvBlocked`](super::ConvBlocked) with these extents: what `part_begin..part_end` selects from.
pub const fn conv_blocked_units(shape: ConvShape) -> usize {
    Plan::new(shape, 16).units()
}

/// Bytes of scratch that a [`ConvBlocked`](super::ConvBlocked) with these extents needs; 0 where it reads the input in
/// place. Never more than for the whole padded input: ⌈C/16⌉·64·(H+pads)·(W+pads rounded up to the stride).
pub const fn conv_blocked_scratch_bytes(shape: ConvShape) -> usize {
    Plan::new(shape, 16).scratch_len() * 4
}

/// Bytes of scratch that are enough for a [`ConvBlocked`](super::ConvBlocked) at every batch, height and width up to those
/// of `most`.
pub const fn conv_blocked_scratch_bound(most: ConvShape) -> usize {
    Plan::scratch_bound(most, 16)
}

/// The same for a [`ConvFirst`](super::ConvFirst).
pub const fn conv_first_scratch_bound(most: ConvShape) -> usize {
    Plan::scratch_bound(most, 1)
}

/// Units of work of a [`ConvFirst`](super::ConvFirst).
pub const fn conv_first_units(shape: ConvShape) -> usize {
    Plan::new(shape, 1).units()
}

/// Bytes of scratch that a [`ConvFirst`](super::ConvFirst) needs; 0 where it reads the input in place.
pub const fn conv_first_scratch_bytes(shape: ConvShape) -> usize {
    Plan::new(shape, 1).scratch_len() * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where extents are found at run time, an image may be too small for the kernel.
    #[test]
    fn no_output_is_no_units() {
        for (oh, ow) in [(0, 0), (0, 1), (0, 9), (1, 0), (9, 0)] {
            for (k, lane) in [(1, 16), (3, 16), (5, 1)] {
                let (h, w) = (oh + k - 1, ow + k - 1);
                let (n, ic, oc, groups, pt, pl) = (1, lane, 16, 1, 0, 0);
                let (sy, sx, dy, dx) = (1, 1, 1, 1);
                let s = ConvShape { n, ic, oc, h, w, oh, ow, kh: k, kw: k, sy, sx, dy, dx, pt, pl, groups };
                assert_eq!(Plan::new(s, lane).units(), 0, "{s:?}");
            }
        }
    }

    /// Every size up to the greatest one finds room.
    #[test]
    fn scratch_bounds_hold_at_every_size() {
        for (k, stride, dilation, pad) in [
            (1, 1, 1, 0),
            (1, 2, 1, 0),
            (3, 1, 1, 1),
            (3, 2, 1, 1),
            (3, 1, 3, 3),
            (5, 3, 2, 0),
            (7, 2, 1, 3),
            (1, 1, 1, 1),
        ] {
            for (ic, oc, lane) in [(1, 32, 1), (3, 16, 1), (16, 16, 16), (96, 24, 16), (1280, 320, 16)] {
                for flat in [false, true] {
                    let at = |n: usize, h: usize, w: usize| {
                        let out = |x: usize| (x + 2 * pad).checked_sub((k - 1) * dilation + 1).map(|r| r / stride + 1);
                        let (kw, sx, dx, pl) = if flat { (1, 1, 1, 0) } else { (k, stride, dilation, pad) };
                        let ow = if flat { w } else { out(w)? };
                        let (oh, sy, dy, pt) = (out(h)?, stride, dilation, pad);
                        Some(ConvShape { n, ic, oc, h, w, oh, ow, kh: k, kw, sy, sx, dy, dx, pt, pl, groups: 1 })
                    };
                    for (most_h, most_w) in [(700, 700), (40, 3000), (3000, 40), (9, 9)] {
                        let most = at(2, most_h, most_w).unwrap();
                        let bound = Plan::scratch_bound(most, lane) / 4;
                        let winograd = [2, 4].map(|tile| super::super::conv_winograd_scratch_bound(most, tile));
                        for (h, w) in
                            (1..=most_h).step_by(7).flat_map(|h| (1..=most_w).step_by(13).map(move |w| (h, w)))
                        {
                            for (h, w) in [(h, w), (h, most_w), (most_h, w), (h, 1), (1, w)] {
                                let Some(s) = at(1, h, w) else { continue };
                                assert!(Plan::new(s, lane).scratch_len() <= bound, "{s:?} of {most:?}");
                                for (tile, bound) in [2, 4].into_iter().zip(winograd) {
                                    let bytes = super::super::conv_winograd_scratch_bytes(s, tile);
                                    assert!(bytes <= bound, "{tile} {s:?} of {most:?}");
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
