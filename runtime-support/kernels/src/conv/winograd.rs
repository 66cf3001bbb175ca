//! 3×3 convolution with stride 1 over the blocked layout, by Winograd's F(2×2, 3×3): 16 multiplications where the direct
//! form takes 36.
//!
//! In: `x` as `[N, C/16, H, W, 16]` (pad lanes hold anything), weights from
//! [`pack_winograd_weights`](super::pack_winograd_weights), bias padded to blocks. Out: `y` as `[N, OC/16, OH, OW, 16]`
//! with `y = activation(conv(x) + bias + residual)`; the residual may be `y`'s memory. The result differs from the direct
//! form's by rounding: its error is about twice as large.
//!
//! A band of tiles (2×2 output pixels each) is transformed to scratch, `V = Bᵀ·d·B`; then for every four output blocks 16 products
//! `M[k] = U[k]·V[k]` follow, and `y = Aᵀ·M·A`.
//! Source: A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural Networks, arXiv 1509.09308.
//!
//! Invariant: units write disjoint elements of `y`; lanes mix only in the products, which read real channels only.

use super::blocked::Operands;
use super::geometry::{ConvShape, at_least_1};
use super::tile::TileArgs;
use crate::descriptor::part_end;
use crate::simd::{F32x16, LANES, Simd};
use crate::{Activation, Fault, Isa, PartOut, activation, kernel, simd_fn};

kernel! {
    /// 3×3 convolution by Winograd's transform. Units `part_begin..part_end` of [`conv_winograd_units`].
    pub struct ConvWinograd {
        operands { read x: T, read weights: T, opt bias: T, write_parts y: T, opt_alias residual: T, write scratch: T }
        nums { n, ic, oc, h, w, oh, ow, pt, pl, part_begin, part_end }
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

/// Positions of a transformed tile.
const POSITIONS: usize = 16;
/// Output blocks that are multiplied before their transform.
const CHUNK: usize = 4;
/// Floats of transformed input in a band.
const BAND_FLOATS: usize = 112 << 10;
/// Units at least, where the extents allow.
const MIN_UNITS: usize = 16;

/// How a call is cut: bands of rows of tiles.
struct Plan {
    ic_blocks: usize,
    oc_blocks: usize,
    /// Tiles of a row, rows of tiles in the image and in a band.
    cols: usize,
    rows: usize,
    band_rows: usize,
}

impl Plan {
    const fn new(s: &ConvShape) -> Self {
        let (ic_blocks, oc_blocks) = (s.ic.div_ceil(16), s.oc.div_ceil(16));
        let (rows, cols) = (s.oh.div_ceil(2), s.ow.div_ceil(2));
        let row_floats = at_least_1(POSITIONS * ic_blocks * cols * 16);
        let (by_size, by_units) =
            (rows.div_ceil(at_least_1(BAND_FLOATS / row_floats)), MIN_UNITS.div_ceil(at_least_1(s.n * oc_blocks)));
        let bands = if by_size > by_units { by_size } else { by_units };
        Self { ic_blocks, oc_blocks, cols, rows, band_rows: at_least_1(rows.div_ceil(bands)) }
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
        [POSITIONS * self.position(self.ic_blocks), POSITIONS * self.position(CHUNK)]
    }
}

/// Whether a convolution can take this form, and is faster by it, measured: enough channels to pay for the transforms, and enough
/// pixels to pay for reading weights that are 16/9 as large.
pub const fn conv_winograd_pays(s: ConvShape) -> bool {
    let fits = s.kh == 3 && s.kw == 3 && s.sy == 1 && s.sx == 1 && s.dy == 1 && s.dx == 1 && s.groups == 1;
    fits && s.ic >= 32 && s.oc >= 32 && s.n * s.oh * s.ow >= 128 && s.oh >= 4 && s.ow >= 4
}

/// Units of work of a [`ConvWinograd`]: batch · bands · output blocks. Only its channels, output's extents and batch count.
pub const fn conv_winograd_units(shape: ConvShape) -> usize {
    let plan = Plan::new(&shape);
    shape.n * plan.bands() * plan.oc_blocks
}

/// Bytes of scratch that a [`ConvWinograd`] needs.
pub const fn conv_winograd_scratch_bytes(shape: ConvShape) -> usize {
    let [v, m] = Plan::new(&shape).scratch();
    (v + m) * 4
}

/// Bytes of scratch that are enough at every height, width and batch up to those of `most`.
pub const fn conv_winograd_scratch_bound(most: ConvShape) -> usize {
    let ic_blocks = at_least_1(most.ic.div_ceil(16));
    let (rows, cols) = (at_least_1(most.oh.div_ceil(2)), at_least_1(most.ow.div_ceil(2)));
    // A band is one row of tiles, or as many tiles as fit `BAND_FLOATS`.
    let fit = BAND_FLOATS / (POSITIONS * ic_blocks * 16);
    let band = if fit > cols { fit } else { cols };
    let tiles = if band < rows * cols { band } else { rows * cols };
    let plan = Plan { ic_blocks, oc_blocks: 1, cols: tiles, rows: 1, band_rows: 1 };
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
    if !s.is_bounded() || s.ic == 0 {
        return Err(Fault::Descriptor);
    }
    let plan = Plan::new(&s);
    let (input, output) = (s.n * plan.ic_blocks * s.h * s.w * 16, s.n * plan.oc_blocks * s.oh * s.ow * 16);
    let [v_len, m_len] = plan.scratch();
    let enough = x.len() >= input
        && weights.len() >= POSITIONS * plan.oc_blocks * plan.ic_blocks * 256
        && bias.is_none_or(|b| b.len() >= plan.oc_blocks * 16)
        && y.len() >= output
        && residual.flatten().is_none_or(|r| r.len() >= output)
        && scratch.len() >= v_len + m_len;
    let part_end = part_end(d.part_end, conv_winograd_units(s));
    if !enough || d.part_begin > part_end || part_end > conv_winograd_units(s) {
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
        for k in 0..POSITIONS {
            let w_block = plan.ic_blocks * 256;
            let args = TileArgs {
                x: v.as_ptr().wrapping_add(k * plan.position(plan.ic_blocks)),
                w: weights.as_ptr().wrapping_add((k * plan.oc_blocks + first) * w_block),
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
                    let y = y.as_mut_ptr().add((plane * s.oh + row * 2) * s.ow * 16);
                    activation::apply_rows(isa, d.activation, y, 1, (rows * 2).min(s.oh - row * 2) * s.ow * 16, 0);
                }
            }
        }
    }
    Ok(())
}

/// Pixels outside the image, and an absent bias.
static ZERO: [f32; LANES] = [0.0; LANES];

simd_fn! {
    /// `V[k][block][tile] = (Bᵀ·d·B)[k]` for rows `row..row + rows` of tiles.
    ///
    /// # Safety
    /// `x` is valid for one image, `v` for a band.
    unsafe fn transform_input<S>(s, g: &ConvShape, plan: &Plan, row: usize, rows: usize, x: *const f32, v: *mut f32) {
        let position = plan.position(plan.ic_blocks);
        for block in 0..plan.ic_blocks {
            for r in 0..rows {
                let x = x.wrapping_add(block * g.h * g.w * 16);
                let out = v.wrapping_add((block * plan.tiles() + r * plan.cols) * 16);
                // Rows outside the image, in two's complement.
                let top = ((row + r) * 2).wrapping_sub(g.pt);
                // SAFETY: the caller's promise; what lies outside the image reads `ZERO`.
                unsafe {
                    // The two columns that the next tile shares, transformed downwards.
                    let mut left = [column(s, g, x, top, 0usize.wrapping_sub(g.pl)), column(s, g, x, top, 1usize.wrapping_sub(g.pl))];
                    for t in 0..plan.cols {
                        let at = (2 * t).wrapping_sub(g.pl);
                        let right = [column(s, g, x, top, at.wrapping_add(2)), column(s, g, x, top, at.wrapping_add(3))];
                        let out = out.add(t * 16);
                        for i in 0..4 {
                            let k = i * 4;
                            (left[0][i] - right[0][i]).store(out.add(k * position));
                            (left[1][i] + right[0][i]).store(out.add((k + 1) * position));
                            (right[0][i] - left[1][i]).store(out.add((k + 2) * position));
                            (left[1][i] - right[1][i]).store(out.add((k + 3) * position));
                        }
                        left = right;
                    }
                }
            }
        }
    }
}

/// `Bᵀ` times four pixels below each other, from row `top` of column `col`; outside the image they are zero.
///
/// # Safety
/// `x` is valid for a plane of the image.
#[inline(always)]
unsafe fn column<S: Simd>(s: S, g: &ConvShape, x: *const f32, top: usize, col: usize) -> [S::F32; 4] {
    let mut d = [s.zero(); 4];
    for i in 0..4 {
        let row = top.wrapping_add(i);
        if row < g.h && col < g.w {
            // SAFETY: the pixel lies in the image.
            d[i] = unsafe { s.load(x.add((row * g.w + col) * 16)) };
        }
    }
    [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
}

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

simd_fn! {
    /// `y = Aᵀ·M·A + bias + residual`, clamped, for rows `row..row + rows` of tiles of one output block.
    ///
    /// # Safety
    /// `out` is valid for a band of products and the whole output.
    unsafe fn transform_output<S>(
        s, g: &ConvShape, plan: &Plan, row: usize, rows: usize, out: &Output, block: usize, channel: usize, plane: usize,
    ) {
        let (low, high) = (s.splat(out.low), s.splat(out.high));
        let position = plan.position(CHUNK);
        let bias = out.bias.map_or(ZERO.as_ptr(), |b| b.wrapping_add(channel * 16));
        // SAFETY: the caller's promise.
        let bias = unsafe { s.load(bias) };
        for r in 0..rows {
            for t in 0..plan.cols {
                let m = out.m.wrapping_add((block * plan.tiles() + r * plan.cols + t) * 16);
                let (mut upper, mut lower) = ([s.zero(); 4], [s.zero(); 4]);
                for j in 0..4 {
                    // SAFETY: the caller's promise.
                    let [a, b, c, d] = unsafe {
                        [
                            s.load(m.add(j * position)),
                            s.load(m.add((4 + j) * position)),
                            s.load(m.add((8 + j) * position)),
                            s.load(m.add((12 + j) * position)),
                        ]
                    };
                    upper[j] = a + b + c;
                    lower[j] = b - c - d;
                }
                for (i, v) in [upper, lower].into_iter().enumerate() {
                    let y_row = (row + r) * 2 + i;
                    if y_row >= g.oh {
                        continue;
                    }
                    let pixels = [v[0] + v[1] + v[2], v[1] - v[2] - v[3]];
                    for (j, v) in pixels.into_iter().enumerate() {
                        let col = t * 2 + j;
                        if col >= g.ow {
                            continue;
                        }
                        let at = ((plane * g.oh + y_row) * g.ow + col) * 16;
                        let mut v = v + bias;
                        // SAFETY: the pixel lies in the output.
                        unsafe {
                            if let Some(residual) = out.residual {
                                v = v + s.load(residual.unwrap_or(out.y).add(at));
                            }
                            high.min(low.max(v)).store(out.y.add(at));
                        }
                    }
                }
            }
        }
    }
}
