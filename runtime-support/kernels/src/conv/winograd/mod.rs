//! 3×3 convolution with stride 1 over the blocked layout, by Winograd's F(2×2, 3×3) or F(4×4, 3×3): 16 multiplications where
//! the direct form takes 36, or 36 where it takes 144.
//!
//! In: `x` as `[N, C/16, H, W, 16]` (pad lanes hold anything), weights from
//! [`pack_winograd_weights`](super::pack_winograd_weights), bias padded to blocks. Out: `y` as `[N, OC/16, OH, OW, 16]`
//! with `y = activation(conv(x) + bias + residual)`; the residual may be `y`'s memory. The result differs from the direct
//! form's by rounding: its error is up to about twice as large, measured against the greatest element of the tile. An element that is not
//! finite, or far greater than those around it, so reaches all pixels of its tile (up to two beyond the 3×3 window), as in other
//! runtimes' Winograd forms.
//!
//! A band of tiles (2×2 or 4×4 output pixels each) is transformed to scratch, `V = Bᵀ·d·B`; then for every few output blocks a product
//! `M[k] = U[k]·V[k]` follows for each of the 16 or 36 positions, and `y = Aᵀ·M·A`.
//! Source: A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural Networks, arXiv 1509.09308.
//!
//! Invariant: units write disjoint elements of `y`; lanes mix only in the products, which read real channels only.

mod four;
mod two;

#[cfg(feature = "alloc")]
pub(super) use four::{FAR, NEAR};

use super::blocked::Operands;
use super::geometry::{ConvShape, at_least_1};
use super::tile::{Ahead, TileArgs};
use crate::descriptor::part_end;
use crate::simd::{F32x16, LANES, Simd};
use crate::{Activation, Fault, Isa, PartOut, activation, kernel};

kernel! {
    /// 3×3 convolution by Winograd's transform. `tile` output pixels a side of a tile: 2 or 4.
    /// Units `part_begin..part_end` of [`conv_winograd_units`].
    pub struct ConvWinograd {
        operands { read x: T, read weights: T, opt bias: T, write_parts y: T, opt_alias residual: T, write scratch: T }
        nums { n, ic, oc, h, w, oh, ow, pt, pl, tile, part_begin, part_end }
        params { activation: Activation }
    }
    entries { conv_winograd_f32 { T = f32 } }
    body = conv_winograd;
}

impl ConvWinograd {
    /// The extents.
    pub const fn shape(&self) -> ConvShape {
        let &Self { n, ic, oc, h, w, oh, ow, pt, pl, .. } = self;
        ConvShape { n, ic, oc, h, w, oh, ow, kh: 3, kw: 3, sy: 1, sx: 1, dy: 1, dx: 1, pt, pl, groups: 1 }
    }
}

/// Output blocks that are multiplied before their transform.
const CHUNK: usize = 4;
/// Floats of transformed input in a band, and of products.
const BAND_FLOATS: usize = 160 << 10;
/// Units at least, where the extents allow.
const MIN_UNITS: usize = 16;

/// How a call is cut: bands of rows of tiles.
struct Plan {
    /// Output pixels of a tile, each way.
    tile: usize,
    ic_blocks: usize,
    oc_blocks: usize,
    /// Tiles of a row, rows of tiles in the image and in a band.
    cols: usize,
    rows: usize,
    band_rows: usize,
}

/// Positions of a transformed tile.
const fn positions(tile: usize) -> usize {
    (tile + 2) * (tile + 2)
}

impl Plan {
    const fn new(s: &ConvShape, tile: usize) -> Self {
        let (ic_blocks, oc_blocks) = (s.ic.div_ceil(16), s.oc.div_ceil(16));
        let (rows, cols) = (s.oh.div_ceil(tile), s.ow.div_ceil(tile));
        let row_floats = at_least_1(positions(tile) * ic_blocks * cols * 16);
        let (by_size, by_units) =
            (rows.div_ceil(at_least_1(BAND_FLOATS / row_floats)), MIN_UNITS.div_ceil(at_least_1(s.n * oc_blocks)));
        let bands = if by_size > by_units { by_size } else { by_units };
        let band_rows = at_least_1(rows.div_ceil(bands));
        Self { tile, ic_blocks, oc_blocks, cols, rows, band_rows }
    }

    const fn bands(&self) -> usize {
        self.rows.div_ceil(self.band_rows)
    }

    /// Tiles of a full band.
    const fn tiles(&self) -> usize {
        self.band_rows * self.cols
    }

    /// Floats from one position to the next with this many blocks each: an odd number of cache lines, so that the positions
    /// of a tile do not meet in the same sets of a cache.
    const fn position(&self, blocks: usize) -> usize {
        ((blocks * self.tiles()) | 1) * 16
    }

    /// Floats of transformed input and of products.
    const fn scratch(&self) -> [usize; 2] {
        let positions = positions(self.tile);
        [positions * self.position(self.ic_blocks), positions * self.position(CHUNK)]
    }
}

/// Output pixels a side of a tile by which a convolution is fastest in this form, or `None` where the direct form is faster or the only
/// one, as measured: enough channels to pay for the transforms, and enough pixels to pay for reading weights that are 16/9 or 4
/// times as large.
pub const fn conv_winograd_tile(s: ConvShape) -> Option<usize> {
    let fits = s.kh == 3 && s.kw == 3 && s.sy == 1 && s.sx == 1 && s.dy == 1 && s.dx == 1 && s.groups == 1;
    if !fits || s.ic < 16 || s.oc < 16 || s.n * s.oh * s.ow < 36 || s.oh < 4 || s.ow < 4 {
        return None;
    }
    if cost(&s, 4) <= cost(&s, 2) { Some(4) } else { Some(2) }
}

/// Products of a pair of channels, and the reading of its weights in products: 20 a float (10 operations a byte), unless all weights
/// are few enough to stay in a cache.
const fn cost(s: &ConvShape, tile: usize) -> usize {
    let tiles = s.n * s.oh.div_ceil(tile) * s.ow.div_ceil(tile);
    let reading = if s.ic * s.oc <= 64 * 64 { 0 } else { 20 };
    positions(tile) * (tiles + reading)
}

/// Units of work of a [`ConvWinograd`]: batch · bands · output blocks. Only its channels, output's extents, batch and tile count.
pub const fn conv_winograd_units(shape: ConvShape, tile: usize) -> usize {
    let plan = Plan::new(&shape, at_least_1(tile));
    shape.n * plan.bands() * plan.oc_blocks
}

/// Bytes of scratch that a [`ConvWinograd`] needs.
pub const fn conv_winograd_scratch_bytes(shape: ConvShape, tile: usize) -> usize {
    let [v, m] = Plan::new(&shape, at_least_1(tile)).scratch();
    (v + m) * 4
}

/// Bytes of scratch that are enough at every height, width and batch up to those of `most`.
pub const fn conv_winograd_scratch_bound(most: ConvShape, tile: usize) -> usize {
    let (tile, ic_blocks) = (at_least_1(tile), at_least_1(most.ic.div_ceil(16)));
    let (rows, cols) = (at_least_1(most.oh.div_ceil(tile)), at_least_1(most.ow.div_ceil(tile)));
    // A band is one row of tiles, or as many tiles as fit `BAND_FLOATS`.
    let fit = BAND_FLOATS / (positions(tile) * ic_blocks * 16);
    let band = if fit > cols { fit } else { cols };
    let tiles = if band < rows * cols { band } else { rows * cols };
    let plan = Plan { tile, ic_blocks, oc_blocks: 1, cols: tiles, rows: 1, band_rows: 1 };
    let [v, m] = plan.scratch();
    (v + m) * 4
}

fn conv_winograd(
    isa: Isa,
    d: &ConvWinograd,
    x: &[f32],
    weights: &[f32],
    bias: Option<&[f32]>,
    mut y: PartOut<'_, f32>,
    residual: Option<Option<&[f32]>>,
    scratch: &mut [f32],
) -> Result<(), Fault> {
    let s = d.shape();
    if !s.is_bounded() || s.ic == 0 || !matches!(d.tile, 2 | 4) {
        return Err(Fault::Descriptor);
    }
    let (plan, positions) = (Plan::new(&s, d.tile), positions(d.tile));
    type Input = unsafe fn(Isa, &ConvShape, &Plan, usize, usize, *const f32, *mut f32);
    type Outputs = unsafe fn(Isa, &ConvShape, &Plan, usize, usize, &Output, usize, usize, usize);
    let (transform_input, transform_output): (Input, Outputs) = match d.tile {
        2 => (two::transform_input, two::transform_output),
        _ => (four::transform_input, four::transform_output),
    };
    let (input, output) = (s.n * plan.ic_blocks * s.h * s.w * 16, s.n * plan.oc_blocks * s.oh * s.ow * 16);
    let [v_len, m_len] = plan.scratch();
    let enough = x.len() >= input
        && weights.len() >= positions * plan.oc_blocks * plan.ic_blocks * 256
        && bias.is_none_or(|b| b.len() >= plan.oc_blocks * 16)
        && y.len() >= output
        && residual.flatten().is_none_or(|r| r.len() >= output)
        && scratch.len() >= v_len + m_len;
    let part_end = part_end(d.part_end, conv_winograd_units(s, d.tile));
    if !enough || d.part_begin > part_end || part_end > conv_winograd_units(s, d.tile) {
        return Err(Fault::Descriptor);
    }
    let clamp = d.activation.as_clamp();
    let (low, high) = clamp.unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
    let (v, m) = scratch.split_at_mut(v_len);
    let mut transformed = usize::MAX;
    let mut unit = d.part_begin;
    while unit < part_end {
        let (image_band, first) = (unit / plan.oc_blocks, unit % plan.oc_blocks);
        let blocks = (plan.oc_blocks - first).min(part_end - unit).min(CHUNK);
        unit += blocks;
        let (image, band) = (image_band / plan.bands(), image_band % plan.bands());
        let row = band * plan.band_rows;
        let rows = plan.band_rows.min(plan.rows - row);
        if transformed != image_band {
            let image = &x[image * plan.ic_blocks * s.h * s.w * 16..][..plan.ic_blocks * s.h * s.w * 16];
            // SAFETY: the image and `v` are as long as the plan's extents say.
            unsafe { transform_input(isa, &s, &plan, row, rows, image.as_ptr(), v.as_mut_ptr()) };
            transformed = image_band;
        }
        let tiles = rows * plan.cols;
        let w_block = plan.ic_blocks * 256;
        let products = |k: usize, first: usize| weights.as_ptr().wrapping_add((k * plan.oc_blocks + first) * w_block);
        for k in 0..positions {
            let args = TileArgs {
                x: v.as_ptr().wrapping_add(k * plan.position(plan.ic_blocks)),
                w: products(k, first),
                bias: ZERO.as_ptr(),
                residual: core::ptr::null(),
                y: m.as_mut_ptr().wrapping_add(k * plan.position(CHUNK)),
                y_step: 16,
                n_tiles: 0,
                ic_blocks: plan.ic_blocks,
                ic_last: s.ic - (plan.ic_blocks - 1) * 16,
                kh: 1,
                kw: 1,
                x_block: plan.tiles() * 16,
                x_row: 0,
                x_tap: 0,
                phase_step: 0,
                phases: 1,
                x_wrap: 0,
                w_block,
                ahead: Ahead::new(
                    if k + 1 < positions { products(k + 1, first) } else { products(0, first + blocks) },
                    blocks * w_block,
                ),
                bias_block: 0,
                y_block: plan.tiles() * 16,
                low: f32::NEG_INFINITY,
                high: f32::INFINITY,
            };
            // SAFETY: tiles, blocks and channels lie in `v`, the weights and `m` by the plan's extents.
            unsafe { Operands::tiles::<16>(isa, args, blocks, [1, tiles], 0, 0) };
        }
        let out = Output {
            m: m.as_ptr(),
            bias: bias.map(<[f32]>::as_ptr),
            y: y.as_mut_ptr(),
            residual: residual.map(|r| r.map(<[f32]>::as_ptr)),
            low,
            high,
        };
        for block in 0..blocks {
            let plane = image * plan.oc_blocks + first + block;
            // SAFETY: products and output are as long as the plan's extents say; the rows lie in the band.
            unsafe {
                transform_output(isa, &s, &plan, row, rows, &out, block, first + block, plane);
                if clamp.is_none() {
                    let (from, pixels) = (row * d.tile, (rows * d.tile).min(s.oh - row * d.tile) * s.ow);
                    let y = y.as_mut_ptr().add((plane * s.oh + from) * s.ow * 16);
                    activation::apply_rows(isa, d.activation, y, 1, pixels * 16, 0);
                }
            }
        }
    }
    Ok(())
}

/// Pixels outside the image, and an absent bias.
static ZERO: [f32; LANES] = [0.0; LANES];

/// Where products come from and outputs go.
struct Output {
    m: *const f32,
    bias: Option<*const f32>,
    y: *mut f32,
    /// The inner `None` is `y`.
    residual: Option<Option<*const f32>>,
    low: f32,
    high: f32,
}

/// What is added to a block's pixels, and their limits.
struct Finish<S: Simd> {
    bias: S::F32,
    low: S::F32,
    high: S::F32,
}

impl Output {
    /// What finishes output block `channel`.
    ///
    /// # Safety
    /// The bias, where there is one, is valid for the block.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, s: S, channel: usize) -> Finish<S> {
        let bias = self.bias.map_or(ZERO.as_ptr(), |b| b.wrapping_add(channel * 16));
        // SAFETY: the caller's promise.
        Finish { bias: unsafe { s.load(bias) }, low: s.splat(self.low), high: s.splat(self.high) }
    }

    /// Writes 16 channels of the pixel at `at`: bias and residual added, clamped.
    ///
    /// # Safety
    /// `at` is a pixel of the output, of the part's own units.
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, s: S, finish: &Finish<S>, at: usize, v: S::F32) {
        let mut v = v + finish.bias;
        // SAFETY: the caller's promise; the residual is as long as the output.
        unsafe {
            if let Some(residual) = self.residual {
                v = v + s.load(residual.unwrap_or(self.y).add(at));
            }
            finish.high.min(finish.low.max(v)).store(self.y.add(at));
        }
    }
}
