//! Direct convolution into the blocked layout: from blocked input ([`ConvBlocked`]) or, for few channels, plain input
//! ([`ConvFirst`]).
//!
//! In: `x` as `[N, C/16, H, W, 16]` (pad lanes hold anything) or `[N, C, H, W]`; weights from
//! [`pack_conv_weights`](super::pack_conv_weights) or [`pack_conv_first_weights`](super::pack_conv_first_weights); bias
//! padded to blocks. Out: `y` as `[N, OC/16, OH, OW, 16]` with `y = activation(conv(x) + bias + residual)`; its pad lanes
//! are computed as if their weights, bias and residual were channels.
//! The residual has `y`'s layout and may be `y`'s memory.
//!
//! Invariant: units write disjoint elements of `y`, and each call writes its scratch before it reads it.

use super::band;
use super::geometry::{ConvShape, Plan};
use super::tile::{Ahead, TileArgs, Tiling};
use super::transpose::Transposed;
use crate::descriptor::part_end;
use crate::{Activation, Fault, Isa, PartOut, activation, kernel};

kernel! {
    /// Convolution of blocked input. Units `part_begin..part_end` of [`conv_blocked_units`](super::conv_blocked_units).
    pub struct ConvBlocked {
        operands { read x: T, read weights: T, opt bias: T, write_parts y: T, opt_alias residual: T, opt_write scratch: T }
        nums { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups, part_begin, part_end }
        params { activation: Activation }
    }
    entries { conv_blocked_f32 { T = f32 } }
    body = conv_blocked;
}

kernel! {
    /// Convolution of plain input with few channels. Units `part_begin..part_end` of
    /// [`conv_first_units`](super::conv_first_units).
    pub struct ConvFirst {
        operands { read x: T, read weights: T, opt bias: T, write_parts y: T, opt_alias residual: T, opt_write scratch: T }
        nums { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, part_begin, part_end }
        params { activation: Activation }
    }
    entries { conv_first_f32 { T = f32 } }
    body = conv_first;
}

impl ConvBlocked {
    /// The extents.
    pub const fn shape(&self) -> ConvShape {
        let &Self { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups, .. } = self;
        ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups }
    }
}

impl ConvFirst {
    /// The extents.
    pub const fn shape(&self) -> ConvShape {
        let &Self { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, .. } = self;
        ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups: 1 }
    }
}

fn conv_blocked(
    isa: Isa,
    d: &ConvBlocked,
    x: &[f32],
    weights: &[f32],
    bias: Option<&[f32]>,
    y: PartOut<'_, f32>,
    residual: Option<Option<&[f32]>>,
    scratch: Option<&mut [f32]>,
) -> Result<(), Fault> {
    let call = Call { x, weights, bias, y, residual, scratch, activation: d.activation };
    call.run::<16>(isa, &d.shape(), d.part_begin, d.part_end)
}

fn conv_first(
    isa: Isa,
    d: &ConvFirst,
    x: &[f32],
    weights: &[f32],
    bias: Option<&[f32]>,
    y: PartOut<'_, f32>,
    residual: Option<Option<&[f32]>>,
    scratch: Option<&mut [f32]>,
) -> Result<(), Fault> {
    let call = Call { x, weights, bias, y, residual, scratch, activation: d.activation };
    call.run::<1>(isa, &d.shape(), d.part_begin, d.part_end)
}

/// The operands of one call.
pub(super) struct Call<'a> {
    pub(super) x: &'a [f32],
    pub(super) weights: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) y: PartOut<'a, f32>,
    pub(super) residual: Option<Option<&'a [f32]>>,
    pub(super) scratch: Option<&'a mut [f32]>,
    pub(super) activation: Activation,
}

/// Stands for an absent bias.
static NO_BIAS: [f32; 16] = [0.0; 16];

impl Call<'_> {
    fn run<const LANE: usize>(self, isa: Isa, shape: &ConvShape, begin: usize, end: usize) -> Result<(), Fault> {
        if !Plan::is_valid(shape, LANE) {
            return Err(Fault::Descriptor);
        }
        self.run_plan::<LANE>(isa, shape, &Plan::new(*shape, LANE), None, begin, end)
    }

    /// Runs a plan over valid extents; with `transposed`, the plan is that of its dense form.
    pub(super) fn run_plan<const LANE: usize>(
        mut self,
        isa: Isa,
        shape: &ConvShape,
        plan: &Plan,
        transposed: Option<&Transposed>,
        begin: usize,
        end: usize,
    ) -> Result<(), Fault> {
        let end = part_end(end, plan.units());
        if begin > end || end > plan.units() {
            return Err(Fault::Descriptor);
        }
        if begin == end {
            return Ok(());
        }
        self.check(shape, plan)?;
        let scratch: &mut [f32] = self.scratch.unwrap_or_default();
        let bands = plan.bands_y * plan.bands_x;
        let clamp = self.activation.as_clamp();
        let operands = Operands {
            x: self.x,
            weights: self.weights,
            bias: self.bias,
            y: self.y.as_mut_ptr(),
            residual: self.residual.map(|r| r.map(<[f32]>::as_ptr)),
            clamp: clamp.unwrap_or((f32::NEG_INFINITY, f32::INFINITY)),
        };
        let mut copied = usize::MAX;
        let mut unit = begin;
        while unit < end {
            // All units of one band that belong to the part.
            let (image_band, first) = (unit / plan.oc_blocks, unit % plan.oc_blocks);
            let blocks = (plan.oc_blocks - first).min(end - unit);
            unit += blocks;
            let (image_group, at) = (image_band / bands, image_band % bands);
            let band = Band::new(plan, at / plan.bands_x, at % plan.bands_x);
            if plan.copied && copied != image_band {
                let input = image_group * plan.ic_blocks * shape.h * shape.w * LANE;
                band::copy_band::<LANE>(isa, plan, &band, &self.x[input..], scratch);
                copied = image_band;
            }
            let scratch = scratch.as_ptr();
            // SAFETY: `check` found every operand as long as the plan's extents say; unit, band and blocks lie in them.
            unsafe {
                let (extents, out) = match transposed {
                    None => {
                        operands.unit::<LANE>(isa, plan, &band, image_group, first, blocks, scratch);
                        ([plan.shape.oh, plan.shape.ow], band)
                    }
                    Some(t) => {
                        t.unit(isa, &operands, plan, &band, image_group, first, blocks, scratch);
                        ([shape.oh, shape.ow], t.outputs(&band))
                    }
                };
                if clamp.is_none() {
                    let block = image_group * plan.oc_blocks + first;
                    operands.activate(isa, extents, &out, [block, blocks], self.activation);
                }
            }
        }
        Ok(())
    }

    /// Whether every operand is as long as the extents say.
    fn check(&self, s: &ConvShape, plan: &Plan) -> Result<(), Fault> {
        let blocks = |c: usize, lane: usize| s.groups * (c / s.groups).div_ceil(lane) * lane;
        let lane = plan.lane;
        let out = s.n * blocks(s.oc, 16) * s.oh * s.ow;
        let enough = self.x.len() >= s.n * blocks(s.ic, lane) * s.h * s.w
            && self.weights.len() >= blocks(s.oc, 16) * plan.ic_blocks * lane * s.kh * s.kw
            && self.bias.is_none_or(|b| b.len() >= blocks(s.oc, 16))
            && self.y.len() >= out
            && self.residual.flatten().is_none_or(|r| r.len() >= out)
            && self.scratch.as_ref().map_or(0, |s| s.len()) >= plan.scratch_len();
        if enough { Ok(()) } else { Err(Fault::Descriptor) }
    }
}

/// A rectangle of output pixels.
pub(crate) struct Band {
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) col: usize,
    pub(crate) cols: usize,
}

impl Band {
    fn new(plan: &Plan, at_y: usize, at_x: usize) -> Self {
        let (row, col) = (at_y * plan.band_rows, at_x * plan.band_cols);
        Self { row, rows: plan.band_rows.min(plan.shape.oh - row), col, cols: plan.band_cols.min(plan.shape.ow - col) }
    }
}

/// What all units of a call share.
pub(super) struct Operands<'a> {
    pub(super) x: &'a [f32],
    pub(super) weights: &'a [f32],
    bias: Option<&'a [f32]>,
    y: *mut f32,
    /// The inner `None` is `y`.
    residual: Option<Option<*const f32>>,
    clamp: (f32, f32),
}

impl Operands<'_> {
    /// Computes `blocks` output blocks from block `first` of a band.
    ///
    /// # Safety
    /// The operands are as long as the plan's extents say, and the unit lies in them; `scratch` holds the band's input
    /// if the plan copies it.
    unsafe fn unit<const LANE: usize>(
        &self,
        isa: Isa,
        plan: &Plan,
        band: &Band,
        image_group: usize,
        first: usize,
        blocks: usize,
        scratch: *const f32,
    ) {
        let s = &plan.shape;
        let row_len = plan.phases * plan.pitch * LANE;
        let (x, row_step) = if plan.copied {
            (scratch, plan.row_step)
        } else {
            let image = image_group * plan.ic_blocks * plan.block_len();
            let origin = image + (band.row * s.sy * plan.pitch + band.col) * LANE;
            (self.x.as_ptr().wrapping_add(origin), plan.row_step)
        };
        // Rows of single taps that follow each other without a gap are one row.
        let joined =
            s.kh == 1 && s.kw == 1 && row_step == 1 && plan.pitch == s.ow && band.cols == s.ow && plan.phases == 1;
        let (rows, cols) = if joined { (1, band.rows * band.cols) } else { (band.rows, band.cols) };
        let taps = plan.ic_blocks * LANE * s.kh * s.kw * 16;
        let block = image_group % s.groups * plan.oc_blocks + first;
        let y_block = s.oh * s.ow * 16;
        let out = (image_group * plan.oc_blocks + first) * y_block + (band.row * s.ow + band.col) * 16;
        let args = TileArgs {
            x,
            w: self.weights.as_ptr().wrapping_add(block * taps),
            kh: s.kh,
            kw: s.kw,
            x_row: s.dy * row_len,
            x_tap: (s.dx % s.sx * plan.pitch + s.dx / s.sx) * LANE,
            phase_step: s.dx % s.sx,
            phases: s.sx,
            x_wrap: LANE.wrapping_sub(s.sx * plan.pitch * LANE),
            w_block: taps,
            y_block,
            ..self.args::<LANE>(plan, block, out)
        };
        // SAFETY: the caller's promise; rows and columns lie in the band.
        unsafe { Self::tiles::<LANE>(isa, args, blocks, [rows, cols], row_step * row_len, s.ow * 16) };
    }

    /// The arguments that every kind of unit shares; the others are those of a kernel without taps.
    pub(super) fn args<const LANE: usize>(&self, plan: &Plan, block: usize, out: usize) -> TileArgs {
        let s = &plan.shape;
        TileArgs {
            x: core::ptr::null(),
            w: core::ptr::null(),
            bias: self.bias.map_or(NO_BIAS.as_ptr(), |b| b.as_ptr().wrapping_add(block * 16)),
            residual: match self.residual {
                None => core::ptr::null(),
                Some(r) => r.unwrap_or(self.y).wrapping_add(out),
            },
            y: self.y.wrapping_add(out),
            y_step: 16,
            n_tiles: 0,
            ic_blocks: plan.ic_blocks,
            ic_last: s.ic / s.groups - (plan.ic_blocks - 1) * LANE,
            kh: 0,
            kw: 0,
            x_block: plan.block_len(),
            x_row: 0,
            x_tap: 0,
            phase_step: 0,
            phases: 1,
            x_wrap: 0,
            w_block: 0,
            ahead: Ahead::NOTHING,
            bias_block: if self.bias.is_some() { 16 } else { 0 },
            y_block: 0,
            low: self.clamp.0,
            high: self.clamp.1,
        }
    }

    /// Covers rows × columns of pixels × blocks by tiles; `x_advance` and `y_advance` lead from row to row, and the arguments'
    /// `ahead` is what follows the last of the blocks.
    ///
    /// # Safety
    /// As for a tile, over all of them.
    pub(super) unsafe fn tiles<const LANE: usize>(
        isa: Isa,
        args: TileArgs,
        blocks: usize,
        [rows, cols]: [usize; 2],
        x_advance: usize,
        y_advance: usize,
    ) {
        let (mut done, mut tiling) = (0, Tiling::choose::<LANE>(isa, cols, blocks));
        let channels = args.ic_blocks * args.kh * args.kw * LANE;
        while done < blocks {
            if blocks - done < tiling.blocks() {
                tiling = Tiling::choose::<LANE>(isa, cols, blocks - done);
            }
            let step = |p: *const f32, n: usize| if p.is_null() { p } else { p.wrapping_add(n) };
            let mut args = TileArgs {
                w: args.w.wrapping_add(done * args.w_block),
                bias: args.bias.wrapping_add(done * args.bias_block),
                y: args.y.wrapping_add(done * args.y_block),
                residual: step(args.residual, done * args.y_block),
                ahead: match done + tiling.blocks() {
                    next if next < blocks => {
                        let len = tiling.blocks().min(blocks - next) * args.w_block;
                        Ahead::new(args.w.wrapping_add(next * args.w_block), len)
                    }
                    _ => args.ahead.limited(tiling.blocks() * args.w_block),
                }
                .shared_by(rows * tiling.count(cols), channels),
                ..args
            };
            for _ in 0..rows {
                // SAFETY: the caller's promise.
                args.ahead = unsafe { tiling.run::<LANE>(&args, cols) };
                args.x = args.x.wrapping_add(x_advance);
                args.y = args.y.wrapping_add(y_advance);
                args.residual = step(args.residual, y_advance);
            }
            done += tiling.blocks();
        }
    }

    /// Applies an activation to a rectangle of `blocks` output blocks from `block` on, of images of `oh` × `ow` pixels.
    ///
    /// # Safety
    /// The rectangle and the blocks lie in the output.
    unsafe fn activate(
        &self,
        isa: Isa,
        [oh, ow]: [usize; 2],
        band: &Band,
        [block, blocks]: [usize; 2],
        activation: Activation,
    ) {
        for block in block..block + blocks {
            let out = (block * oh * ow + band.row * ow + band.col) * 16;
            // SAFETY: the caller's promise.
            unsafe { activation::apply_rows(isa, activation, self.y.add(out), band.rows, band.cols * 16, ow * 16) };
        }
    }
}
