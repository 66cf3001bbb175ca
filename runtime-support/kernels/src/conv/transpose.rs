//! Transposed convolution over the blocked layout.
//!
//! In: `x` as `[N, C/16, H, W, 16]` (pad lanes hold anything), weights from
//! [`pack_conv_transpose_weights`](super::pack_conv_transpose_weights), bias padded to blocks. Out: `y` as
//! `[N, OC/16, OH, OW, 16]` with `y = activation(conv_transpose(x) + bias + residual)`; the residual may be `y`'s memory.
//!
//! Output pixels of one *phase* (row and column modulo the stride) are a direct convolution without stride, by the taps that
//! reach them; the phases share a band of input. "Dense" extents count the pixels of one phase.

use super::blocked::{Band, Call, Operands};
use super::geometry::{ConvShape, Plan};
use super::plain::{Taps, div_floor};
use super::tile::TileArgs;
use crate::{Activation, Fault, Isa, PartOut, kernel};

kernel! {
    /// Transposed convolution of blocked input; right and bottom padding and output padding show in `oh` and `ow`. Padding
    /// before the first tap is at most that of a full overlap (`pt < (kh − 1)·dy + sy`). Units `part_begin..part_end` of
    /// [`conv_transpose_blocked_units`].
    pub struct ConvTransposeBlocked {
        operands { read x: T, read weights: T, opt bias: T, write_parts y: T, opt_alias residual: T, opt_write scratch: T }
        nums { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups, part_begin, part_end }
        params { activation: Activation }
    }
    entries { conv_transpose_blocked_f32 { T = f32 } }
    body = conv_transpose_blocked;
}

impl ConvTransposeBlocked {
    /// The extents.
    pub const fn shape(&self) -> ConvShape {
        let &Self { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups, .. } = self;
        ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups }
    }
}

/// Units of work of a [`ConvTransposeBlocked`] with these extents.
pub const fn conv_transpose_blocked_units(shape: ConvShape) -> usize {
    Transposed::new(shape).plan().units()
}

/// Bytes of scratch that a [`ConvTransposeBlocked`] with these extents needs; 0 where it reads the input in place.
pub const fn conv_transpose_blocked_scratch_bytes(shape: ConvShape) -> usize {
    Transposed::new(shape).plan().scratch_len() * 4
}

fn conv_transpose_blocked(
    isa: Isa,
    d: &ConvTransposeBlocked,
    x: &[f32],
    weights: &[f32],
    bias: Option<&[f32]>,
    y: PartOut<'_, f32>,
    residual: Option<Option<&[f32]>>,
    scratch: Option<&mut [f32]>,
) -> Result<(), Fault> {
    let shape = d.shape();
    if !Plan::is_valid(&shape, 16) {
        return Err(Fault::Descriptor);
    }
    let transposed = Transposed::new(shape);
    if transposed.base[0] > 0 || transposed.base[1] > 0 {
        return Err(Fault::Descriptor);
    }
    let call = Call { x, weights, bias, y, residual, scratch, activation: d.activation };
    call.run_plan::<16>(isa, &shape, &transposed.plan(), Some(&transposed), d.part_begin, d.part_end)
}

/// A transposed convolution and its dense form.
pub(super) struct Transposed {
    given: ConvShape,
    /// Input row and column of the first tap of dense pixel 0, over all phases: not above 0.
    base: [isize; 2],
    dense: ConvShape,
}

impl Transposed {
    const fn new(given: ConvShape) -> Self {
        let s = &given;
        let base = [
            div_floor(s.pt as isize - ((s.kh - 1) * s.dy) as isize, s.sy as isize),
            div_floor(s.pl as isize - ((s.kw - 1) * s.dx) as isize, s.sx as isize),
        ];
        let top = [s.pt.div_ceil(s.sy), s.pl.div_ceil(s.sx)];
        let dense = ConvShape {
            oh: s.oh.div_ceil(s.sy),
            ow: s.ow.div_ceil(s.sx),
            kh: (top[0] as isize - base[0]) as usize + 1,
            kw: (top[1] as isize - base[1]) as usize + 1,
            sy: 1,
            sx: 1,
            dy: 1,
            dx: 1,
            pt: base[0].unsigned_abs(),
            pl: base[1].unsigned_abs(),
            ..given
        };
        Self { given, base, dense }
    }

    const fn plan(&self) -> Plan {
        Plan::cut(self.dense, 16, false)
    }

    /// The output pixels of a band of dense ones.
    pub(super) fn outputs(&self, band: &Band) -> Band {
        let s = &self.given;
        let (row, col) = (band.row * s.sy, band.col * s.sx);
        Band { row, rows: (band.rows * s.sy).min(s.oh - row), col, cols: (band.cols * s.sx).min(s.ow - col) }
    }

    /// Computes `blocks` output blocks from block `first` of a band, for every phase.
    ///
    /// # Safety
    /// The operands are as long as the extents say, and the unit lies in them; `scratch` holds the band's input if the
    /// plan copies it.
    pub(super) unsafe fn unit(
        &self,
        isa: Isa,
        operands: &Operands<'_>,
        plan: &Plan,
        band: &Band,
        image_group: usize,
        first: usize,
        blocks: usize,
        scratch: *const f32,
    ) {
        let s = &self.given;
        let out = self.outputs(band);
        let row_len = plan.pitch * 16;
        let x = if plan.copied {
            scratch
        } else {
            let image = image_group * plan.ic_blocks * plan.block_len();
            operands.x.as_ptr().wrapping_add(image + band.row * row_len + band.col * 16)
        };
        let channels = s.groups * plan.oc_blocks * plan.ic_blocks * 256;
        let block = image_group % s.groups * plan.oc_blocks + first;
        let y_block = s.oh * s.ow * 16;
        let mut weights = operands.weights.as_ptr();
        for (py, px) in (0..s.sy).flat_map(|py| (0..s.sx).map(move |px| (py, px))) {
            let ys = Taps::of_phase(py, s.pt, s.kh, s.sy, s.dy);
            let xs = Taps::of_phase(px, s.pl, s.kw, s.sx, s.dx);
            let taps = ys.count * xs.count;
            let w_block = plan.ic_blocks * taps * 256;
            let at = (image_group * plan.oc_blocks + first) * y_block;
            let at = at + ((out.row + py) * s.ow + out.col + px) * 16;
            let (row, col) = ((ys.at - self.base[0]) as usize, (xs.at - self.base[1]) as usize);
            let args = TileArgs {
                x: if taps > 0 { x.wrapping_add(row * row_len + col * 16) } else { x },
                w: weights.wrapping_add(block * w_block),
                kh: if taps > 0 { ys.count } else { 0 },
                kw: xs.count,
                x_row: (ys.advance as usize).wrapping_mul(row_len),
                x_tap: (xs.advance as usize).wrapping_mul(16),
                w_block,
                y_block,
                y_step: s.sx * 16,
                ..operands.args::<16>(plan, block, at)
            };
            let rows = out.rows.saturating_sub(py).div_ceil(s.sy);
            let cols = out.cols.saturating_sub(px).div_ceil(s.sx);
            // SAFETY: the caller's promise; the phase's pixels lie in the band, their taps in its input.
            unsafe { Operands::tiles::<16>(isa, args, blocks, [rows, cols], row_len, s.sy * s.ow * 16) };
            weights = weights.wrapping_add(channels * taps);
        }
    }
}
