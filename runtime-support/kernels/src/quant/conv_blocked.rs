//! 8-bit convolution into the blocked layout, requantised: `y = clamp(round((Σ x·w + bias) · factor) + zero)`.
//!
//! In: `x` as `[N, C/16, H, W, 16]` bytes (pad lanes hold anything), or plain `[N, C, H, W]` with at most four channels
//! ([`QConvFirst`]); weights from [`pack_qconv_weights`](super::pack_qconv_weights), whose zero point is 0; bias and factor
//! of each channel, padded to blocks. The bias has `−x_zero·Σw` in it; padding holds `x_zero`. Out: `[N, OC/16, OH, OW, 16]`.
//!
//! Invariant: units write disjoint elements of `y`, and each call writes its scratch before it reads it.

use super::conv_tile::{ConvTile, Emission, MAX_BLOCKS, Tiling};
use crate::conv::ConvShape;
use crate::descriptor::part_end;
use crate::gemm::int8::dot::Kernels;
use crate::{Fault, Isa, PartOut, kernel};

kernel! {
    /// Convolution of blocked input. Units `part_begin..part_end` of [`qconv_units`]. Codes are bytes: signed ones are
    /// made unsigned by flipping the highest bit, of `x` where `x_flip` is 0x80, of `y` where `y_flip` is; the zero
    /// points and limits here count after that.
    pub struct QConvBlocked {
        operands { read x: B, read weights: W, read bias: I, read factor: F, opt_write scratch: B, write_parts y: B }
        nums { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups, part_begin, part_end }
        params { x_zero: u8, x_flip: u8, y_zero: i32, y_low: u8, y_high: u8, y_flip: u8 }
    }
    entries { qconv_blocked_b8 { B = u8, W = i8, I = i32, F = f32 } }
    body = qconv_blocked;
}

kernel! {
    /// As [`QConvBlocked`], from plain input of at most four channels. Units of [`qconv_first_units`].
    pub struct QConvFirst {
        operands { read x: B, read weights: W, read bias: I, read factor: F, opt_write scratch: B, write_parts y: B }
        nums { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, part_begin, part_end }
        params { x_zero: u8, x_flip: u8, y_zero: i32, y_low: u8, y_high: u8, y_flip: u8 }
    }
    entries { qconv_first_b8 { B = u8, W = i8, I = i32, F = f32 } }
    body = qconv_first;
}

/// Units of work of a [`QConvBlocked`].
pub const fn qconv_units(shape: ConvShape, x_flip: bool) -> usize {
    Plan::new(shape, 16, x_flip).units()
}

/// Bytes of scratch of a [`QConvBlocked`]; 0 where it reads the input in place.
pub const fn qconv_scratch_bytes(shape: ConvShape, x_flip: bool) -> usize {
    Plan::new(shape, 16, x_flip).scratch_bytes()
}

/// Units of work of a [`QConvFirst`].
pub const fn qconv_first_units(shape: ConvShape) -> usize {
    Plan::new(shape, 4, true).units()
}

/// Bytes of scratch of a [`QConvFirst`].
pub const fn qconv_first_scratch_bytes(shape: ConvShape) -> usize {
    Plan::new(shape, 4, true).scratch_bytes()
}

/// Bytes of scratch that are enough for a [`QConvBlocked`] at every batch, height and width up to those of `most`.
pub const fn qconv_scratch_bound(most: ConvShape) -> usize {
    Plan::scratch_bound(most, 16)
}

/// The same for a [`QConvFirst`].
pub const fn qconv_first_scratch_bound(most: ConvShape) -> usize {
    Plan::scratch_bound(most, 4)
}

/// Input bytes of a band: room for weights beside it in L2.
const BAND_BYTES: usize = 192 << 10;
/// A band cut within a row has a multiple of this many pixels.
const COLUMN_STEP: usize = 24;

/// How a convolution is cut: bands of output pixels × groups of output blocks.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// The extents, with rows joined where the kernel is a single tap read in place.
    s: ConvShape,
    lane: usize,
    ic_blocks: usize,
    oc_blocks: usize,
    unit_blocks: usize,
    band_units: usize,
    band_rows: usize,
    band_cols: usize,
    bands_y: usize,
    bands_x: usize,
    copied: bool,
    /// Rows and columns of one block of what the tiles read.
    in_rows: usize,
    pitch: usize,
}

const fn least(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

pub(super) const fn most(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

pub(super) const fn reach(n: usize, stride: usize, k: usize, dilation: usize) -> usize {
    if n == 0 || k == 0 { 0 } else { (n - 1) * stride + (k - 1) * dilation + 1 }
}

impl Plan {
    /// The cut for extents that are valid. `converted` says that the input cannot be read in place.
    const fn new(given: ConvShape, lane: usize, converted: bool) -> Self {
        let mut s = given;
        let padded = s.pt > 0 || s.pl > 0 || reach(s.oh, s.sy, s.kh, s.dy) > s.h || reach(s.ow, s.sx, s.kw, s.dx) > s.w;
        let copied = padded || converted;
        let dense = s.kh == 1 && s.kw == 1 && s.sy == 1 && s.sx == 1;
        if dense && !copied && s.oh == s.h && s.ow == s.w {
            (s.w, s.ow) = (s.w * s.h, s.w * s.h);
            (s.h, s.oh) = (1, 1);
        }
        let groups = most(s.groups, 1);
        let ic_blocks = (s.ic / groups).div_ceil(lane);
        let oc_blocks = (s.oc / groups).div_ceil(16);
        let unit_blocks = most(1, least(oc_blocks, MAX_BLOCKS));
        let row_bytes = most(1, ic_blocks * lane * reach(s.ow, s.sx, s.kw, s.dx));
        let halo = reach(1, 1, s.kh, s.dy);
        let rows = most(1, (BAND_BYTES / row_bytes + s.sy).saturating_sub(halo) / most(1, s.sy));
        let bands_y = most(1, s.oh.div_ceil(rows));
        let band_rows = most(1, s.oh.div_ceil(bands_y));
        let mut band_cols = most(1, s.ow);
        if s.oh == 1 && row_bytes > BAND_BYTES {
            let bands = row_bytes.div_ceil(BAND_BYTES);
            band_cols = least(band_cols, s.ow.div_ceil(bands).div_ceil(COLUMN_STEP) * COLUMN_STEP);
        }
        let (in_rows, pitch) =
            if copied { (reach(band_rows, s.sy, s.kh, s.dy), reach(band_cols, s.sx, s.kw, s.dx)) } else { (s.h, s.w) };
        Self {
            s,
            lane,
            ic_blocks,
            oc_blocks,
            unit_blocks,
            band_units: oc_blocks.div_ceil(unit_blocks),
            band_rows,
            band_cols,
            bands_y: s.oh.div_ceil(band_rows),
            bands_x: s.ow.div_ceil(band_cols),
            copied,
            in_rows,
            pitch,
        }
    }

    const fn units(&self) -> usize {
        self.s.n * most(self.s.groups, 1) * self.bands_y * self.bands_x * self.band_units
    }

    const fn block_bytes(&self) -> usize {
        self.in_rows * self.pitch * self.lane
    }

    /// Bands are cut to `BAND_BYTES` of input, and have at least one output row.
    const fn scratch_bound(s: ConvShape, lane: usize) -> usize {
        let ic_blocks = (s.ic / most(s.groups, 1)).div_ceil(lane);
        let row_bytes = most(1, ic_blocks * lane * reach(s.ow, s.sx, s.kw, s.dx));
        let all = reach(s.oh, s.sy, s.kh, s.dy).saturating_mul(row_bytes);
        least(all, most(BAND_BYTES, row_bytes * reach(1, 1, s.kh, s.dy)))
    }

    const fn scratch_bytes(&self) -> usize {
        if self.copied { self.ic_blocks * self.block_bytes() } else { 0 }
    }
}

impl QConvBlocked {
    /// The extents.
    pub const fn shape(&self) -> ConvShape {
        let &Self { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups, .. } = self;
        ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups }
    }
}

impl QConvFirst {
    /// The extents.
    pub const fn shape(&self) -> ConvShape {
        let &Self { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, .. } = self;
        ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups: 1 }
    }
}

macro_rules! bodies {
    ($($name:ident $desc:ident $lane:literal)*) => {$(
        fn $name(
            isa: Isa,
            d: &$desc,
            x: &[u8],
            weights: &[i8],
            bias: &[i32],
            factor: &[f32],
            scratch: Option<&mut [u8]>,
            y: PartOut<'_, u8>,
        ) -> Result<(), Fault> {
            let emission = Emission {
                zero: d.y_zero,
                low: d.y_low,
                high: d.y_high,
                flip: d.y_flip,
                small: factor.iter().all(|f| f.abs() <= 0.25),
            };
            let call = Call {
                x,
                weights,
                bias,
                factor,
                scratch: scratch.unwrap_or_default(),
                y,
                emission,
                x_zero: d.x_zero,
                x_flip: d.x_flip,
            };
            call.run::<$lane>(isa, &d.shape(), d.part_begin, d.part_end)
        }
    )*};
}
bodies!(qconv_blocked QConvBlocked 16 qconv_first QConvFirst 4);

struct Call<'a> {
    x: &'a [u8],
    weights: &'a [i8],
    bias: &'a [i32],
    factor: &'a [f32],
    scratch: &'a mut [u8],
    y: PartOut<'a, u8>,
    emission: Emission,
    x_zero: u8,
    x_flip: u8,
}

/// A rectangle of output pixels.
struct Band {
    row: usize,
    rows: usize,
    col: usize,
    cols: usize,
}

impl Call<'_> {
    fn run<const LANE: usize>(mut self, isa: Isa, shape: &ConvShape, begin: usize, end: usize) -> Result<(), Fault> {
        let s = shape;
        let whole = |c: usize| (c / s.groups).is_multiple_of(16);
        let channels = s.groups >= 1 && s.ic.is_multiple_of(s.groups) && s.oc.is_multiple_of(s.groups) && s.ic > 0;
        let grouped = channels && (s.groups == 1 || (LANE == 16 && whole(s.ic) && whole(s.oc)));
        if !grouped || !s.is_bounded() || (LANE == 4 && s.ic > 4) {
            return Err(Fault::Descriptor);
        }
        let plan = Plan::new(*s, LANE, LANE == 4 || self.x_flip != 0);
        let end = part_end(end, plan.units());
        if begin > end || end > plan.units() {
            return Err(Fault::Descriptor);
        }
        let blocked = |c: usize, lane: usize| s.groups * (c / s.groups).div_ceil(lane) * lane;
        let (ic, oc) = (if LANE == 4 { s.ic } else { blocked(s.ic, 16) }, blocked(s.oc, 16));
        let enough = self.x.len() >= s.n * ic * s.h * s.w
            && self.weights.len() >= oc * plan.ic_blocks * LANE * s.kh * s.kw
            && self.bias.len() >= oc
            && self.factor.len() >= oc
            && self.y.len() >= s.n * oc * s.oh * s.ow
            && self.scratch.len() >= plan.scratch_bytes();
        if !enough {
            return Err(Fault::Descriptor);
        }
        let kernels = Kernels::of(isa);
        let s = &plan.s;
        let bands = plan.bands_y * plan.bands_x;
        let mut copied = usize::MAX;
        for unit in begin..end {
            let (image_band, part) = (unit / plan.band_units, unit % plan.band_units);
            let (image_group, at) = (image_band / bands, image_band % bands);
            let (row, col) = (at / plan.bands_x * plan.band_rows, at % plan.bands_x * plan.band_cols);
            let band = Band { row, rows: plan.band_rows.min(s.oh - row), col, cols: plan.band_cols.min(s.ow - col) };
            if plan.copied && copied != image_band {
                let place = Padding { zero: self.x_zero, flip: self.x_flip };
                if LANE == 4 {
                    let from = &self.x[image_group * s.ic * s.h * s.w..][..s.ic * s.h * s.w];
                    place.interleave(&plan, &band, from, self.scratch);
                } else {
                    let len = plan.ic_blocks * s.h * s.w * LANE;
                    place.copy(&plan, &band, &self.x[image_group * len..][..len], self.scratch);
                }
                copied = image_band;
            }
            let x = if plan.copied {
                self.scratch.as_ptr()
            } else {
                let image = image_group * plan.ic_blocks * plan.block_bytes();
                self.x[image..].as_ptr().wrapping_add((band.row * s.sy * plan.pitch + band.col * s.sx) * LANE)
            };
            let first = part * plan.unit_blocks;
            let last = plan.oc_blocks.min(first + plan.unit_blocks);
            let group = image_group % s.groups;
            let block_weights = plan.ic_blocks * LANE * s.kh * s.kw * 16;
            let y_block = s.oh * s.ow * 16;
            let side_by_side = s.dx == 1;
            let mut block = first;
            while block < last {
                let tiling = Tiling::choose(kernels, band.cols, last - block);
                let channel = group * plan.oc_blocks + block;
                let out = (image_group * plan.oc_blocks + block) * y_block + (band.row * s.ow + band.col) * 16;
                let mut t = ConvTile {
                    x,
                    x_pixel: s.sx * LANE,
                    blocks: plan.ic_blocks,
                    x_block: plan.block_bytes(),
                    rows: s.kh,
                    x_row: s.dy * plan.pitch * LANE,
                    runs: if side_by_side { 1 } else { s.kw },
                    x_run: s.dx * LANE,
                    steps: if side_by_side { s.kw * LANE / 4 } else { LANE / 4 },
                    w: self.weights[channel * block_weights..].as_ptr(),
                    w_block: block_weights,
                    bias: self.bias[channel * 16..].as_ptr(),
                    factor: self.factor[channel * 16..].as_ptr(),
                    y: self.y.as_mut_ptr().wrapping_add(out),
                    y_block,
                    out_blocks: tiling.blocks(),
                    n_tiles: 0,
                    emission: self.emission,
                };
                for _ in 0..band.rows {
                    // SAFETY: the operands are as long as the plan's extents say (checked above); the band and the
                    // blocks lie in them, and so does every tap: in the scratch's padding, or, without a copy, in
                    // the image. The set runs here.
                    unsafe { tiling.run(&t, band.cols) };
                    t.x = t.x.wrapping_add(s.sy * plan.pitch * LANE);
                    t.y = t.y.wrapping_add(s.ow * 16);
                }
                block += tiling.blocks();
            }
        }
        Ok(())
    }
}

/// What a band's copy has where the image ends, and how its bytes are changed.
struct Padding {
    zero: u8,
    flip: u8,
}

impl Padding {
    /// Columns of the scratch row that lie in the image: from, to, and the first one's column in the image.
    fn inside(&self, plan: &Plan, band: &Band) -> (usize, usize, usize) {
        let s = &plan.s;
        let first = band.col * s.sx;
        let from = s.pl.saturating_sub(first).min(plan.pitch);
        let to = (s.w + s.pl).saturating_sub(first).clamp(from, plan.pitch);
        (from, to, (first + from).saturating_sub(s.pl))
    }

    /// Scratch rows of a band, each with the image's row if it lies in the image.
    fn rows<'p>(&self, plan: &'p Plan, band: &'p Band) -> impl Iterator<Item = (usize, Option<usize>)> + 'p {
        let s = &plan.s;
        let rows = reach(band.rows, s.sy, s.kh, s.dy);
        (0..rows).map(move |r| (r, (band.row * s.sy + r).checked_sub(s.pt).filter(|&y| y < s.h)))
    }

    /// Blocked input, block by block.
    fn copy(&self, plan: &Plan, band: &Band, x: &[u8], scratch: &mut [u8]) {
        const LANE: usize = 16;
        let s = &plan.s;
        let (from, to, col) = self.inside(plan, band);
        for block in 0..plan.ic_blocks {
            let x = &x[block * s.h * s.w * LANE..][..s.h * s.w * LANE];
            let out = &mut scratch[block * plan.block_bytes()..][..plan.block_bytes()];
            for (row, y) in self.rows(plan, band) {
                let out = &mut out[row * plan.pitch * LANE..][..plan.pitch * LANE];
                let Some(y) = y else {
                    out.fill(self.zero);
                    continue;
                };
                out[..from * LANE].fill(self.zero);
                out[to * LANE..].fill(self.zero);
                if from == to {
                    continue;
                }
                let x = &x[(y * s.w + col) * LANE..][..(to - from) * LANE];
                let out = &mut out[from * LANE..to * LANE];
                if self.flip == 0 {
                    out.copy_from_slice(x);
                } else {
                    for (o, x) in out.iter_mut().zip(x) {
                        *o = x ^ self.flip;
                    }
                }
            }
        }
    }

    /// Plain input of at most four channels, side by side at each pixel.
    fn interleave(&self, plan: &Plan, band: &Band, x: &[u8], scratch: &mut [u8]) {
        let s = &plan.s;
        let (from, to, col) = self.inside(plan, band);
        let plane = s.h * s.w;
        for (row, y) in self.rows(plan, band) {
            let (out, _) = scratch[row * plan.pitch * 4..][..plan.pitch * 4].as_chunks_mut::<4>();
            let Some(y) = y else {
                out.fill([self.zero; 4]);
                continue;
            };
            out[..from].fill([self.zero; 4]);
            out[to..].fill([self.zero; 4]);
            if from == to {
                continue;
            }
            let channel = |c: usize| &x[c.min(s.ic - 1) * plane + y * s.w + col..][..to - from];
            let (a, b, c, d) = (channel(0), channel(1), channel(2), channel(3));
            let out = &mut out[from..to][..a.len()];
            // Lengths that are seen to be equal, so that this is vectorised.
            let (b, c, d, flip) = (&b[..a.len()], &c[..a.len()], &d[..a.len()], self.flip);
            for i in 0..a.len() {
                out[i] = [a[i] ^ flip, b[i] ^ flip, c[i] ^ flip, d[i] ^ flip];
            }
        }
    }
}
