//! Products of 8-bit integers, exact in i32: C = A·B with zero points, as i32, scaled to f32, or requantised to 8 bits.
//!
//! A is u8 or i8 and read in place, B is u8 or i8 and packed ([`pack`]). Inside, A counts as u8 and B as i8: the shift of
//! 128 that makes them so is added to A's zero points here, to B's by whoever packs B ([`pack::packed_zero`]). Σ(a−za)(b−zb) = Σab − za·(Σb − k·zb) − zb·Σa, wrapping in i32
//! (exact while |result| < 2³¹: any k up to 33,000).
//! - [`dot`]: the microkernels over `vpdpbusd` and in portable code; `wide`: those of AVX2 without it;
//! - [`epilogue`]: zero points, scales, rounding, saturation.
//!
//! Sources: ONNX MatMulInteger, QLinearMatMul, DynamicQuantizeLinear; Intel SDM, VPDPBUSD (no saturation between sums).

pub mod dot;
pub mod epilogue;
pub mod pack;
#[cfg(target_arch = "x86_64")]
pub(crate) mod wide;

use crate::isa::Isa;
use core::ops::Range;
use dot::{DotTile, Kernels};
use epilogue::{Epilogue, finish};
pub use epilogue::{Quantized, Scaling};
pub use pack::{pack_int8_into, packed_int8_len};

use super::pack::PANEL;

/// `C[M,N]` from `A[M,K]` and packed `B[K,N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int8Params {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// From row to row of A; at least `k`.
    pub lda: usize,
    /// From row to row of C; at least `n`.
    pub ldc: usize,
    /// A is i8, not u8.
    pub a_signed: bool,
}

/// The operands besides C.
#[derive(Clone, Copy, Debug)]
pub struct Int8Operands<'a> {
    /// M rows of K bytes.
    pub a: &'a [u8],
    /// As [`pack_int8_into`] writes it.
    pub b: &'a [i8],
    /// Sums of B's columns, from [`pack_int8_into`].
    pub b_sums: &'a [i32],
    /// Zero points of A's type: none, one, or one for each row.
    pub a_zero: &'a [u8],
    /// Zero points of the packed B: none, one, or one for each column.
    pub b_zero: &'a [i8],
    /// Added to the sums, for each column; or empty.
    pub bias: &'a [i32],
}

impl Int8Params {
    /// Dense operands.
    pub const fn dense(m: usize, n: usize, k: usize, a_signed: bool) -> Self {
        Self { m, n, k, lda: k, ldc: n, a_signed }
    }

    /// Units of work: panels of 16 columns.
    pub const fn units(&self) -> usize {
        if self.m == 0 { 0 } else { self.n.div_ceil(PANEL) }
    }

    /// The share of stream `i` of `n`: contiguous, sizes differ by at most one.
    pub const fn share(&self, i: usize, n: usize) -> Range<usize> {
        let units = self.units() as u128;
        let (i, n) = (i as u128, n as u128);
        (units * i / n) as usize..(units * (i + 1) / n) as usize
    }

    fn fits(&self, o: &Int8Operands, c_len: usize) -> bool {
        let matrix = |rows: usize, columns: usize, stride: usize| {
            if rows == 0 || columns == 0 {
                return Some(0);
            }
            (rows - 1).checked_mul(stride)?.checked_add(columns)
        };
        let one_or = |len: usize, all: usize| len <= 1 || len == all;
        let panels = self.n.div_ceil(PANEL).saturating_mul(PANEL);
        matrix(self.m, self.k, self.lda).is_some_and(|len| len <= o.a.len())
            && matrix(self.m, self.n, self.ldc).is_some_and(|len| len <= c_len)
            && (self.ldc >= self.n || self.m <= 1)
            && o.b.len() >= packed_int8_len(self.k, self.n)
            && o.b_sums.len() >= panels
            && one_or(o.a_zero.len(), self.m)
            && one_or(o.b_zero.len(), self.n)
            && (o.bias.is_empty() || o.bias.len() >= self.n)
    }
}

/// Most rows and panels of any tile.
const MAX_ROWS: usize = 14;
const MAX_PANELS: usize = 4;

/// All units. Returns whether parameters and lengths were consistent; if not, nothing is touched.
#[must_use]
pub fn product_int8<C: Quantized>(isa: Isa, p: &Int8Params, o: &Int8Operands, scaling: &Scaling, c: &mut [C]) -> bool {
    // SAFETY: the slice is exclusively borrowed.
    unsafe { product_int8_units(isa, p, 0..p.units(), o, scaling, c) }
}

/// The given units, as one of several streams runs it.
///
/// Returns whether parameters and lengths were consistent; if not, nothing is touched.
///
/// # Safety
/// `c` is valid for writes, and while this runs nobody else accesses the columns of the given units, nor writes an operand.
#[must_use]
pub unsafe fn product_int8_units<C: Quantized>(
    isa: Isa,
    p: &Int8Params,
    units: Range<usize>,
    o: &Int8Operands,
    scaling: &Scaling,
    c: *mut [C],
) -> bool {
    if !p.fits(o, c.len()) || !scaling.fits(p.n) || units.end > p.units() {
        return false;
    }
    // SAFETY: lengths are checked; exclusive access is the caller's promise.
    unsafe { run(isa, Kernels::of(isa), p, units, o, scaling, c.cast::<C>()) };
    true
}

/// # Safety
/// As for `product_int8_units`, with the lengths checked, and the kernels run on this processor.
unsafe fn run<C: Quantized>(
    isa: Isa,
    kernels: Kernels,
    p: &Int8Params,
    units: Range<usize>,
    o: &Int8Operands,
    scaling: &Scaling,
    c: *mut C,
) {
    let table = kernels.table();
    let k4 = p.k.div_ceil(4);
    let epilogue = Epilogue::new(p, o, scaling);
    /// Bytes of A that stay in L2 beside a group of B.
    const A_BLOCK: usize = 512 * 1024;
    let block_rows = (A_BLOCK / p.k.max(1)).max(64);
    let mut sums = [[0i32; MAX_PANELS * PANEL]; MAX_ROWS];
    for block in (0..p.m).step_by(block_rows) {
        let block_end = p.m.min(block + block_rows);
        let mut panel = units.start;
        while panel < units.end {
            let (width, tiles) = table.widest(units.end - panel, p.m);
            let columns = panel * PANEL..p.n.min((panel + width) * PANEL);
            let n_tiles = (block_end - block).div_ceil(tiles.len());
            let (short, n_long) = ((block_end - block) / n_tiles, (block_end - block) % n_tiles);
            let mut row = block;
            for i in 0..n_tiles {
                let rows = short + usize::from(i < n_long);
                let tile = DotTile {
                    k: p.k,
                    a: o.a[row * p.lda.min(o.a.len())..].as_ptr(),
                    lda: p.lda,
                    flip: if p.a_signed { 0x8080_8080 } else { 0 },
                    b: o.b[panel * PANEL * 4 * k4..].as_ptr(),
                    b_panel: PANEL * 4 * k4,
                    sums: sums.as_flattened_mut().as_mut_ptr(),
                };
                // SAFETY: rows of A and panels of B are inside the checked lengths; `sums` holds the largest tile; C's
                // columns are the caller's.
                unsafe {
                    tiles[rows - 1](&tile);
                    let c = c.add(row * p.ldc + columns.start);
                    let sums = &sums.as_flattened()[..rows * width * PANEL];
                    finish(isa, &epilogue, sums, row, columns.clone(), c, p.ldc);
                }
                row += rows;
            }
            panel += width;
        }
    }
}

#[cfg(test)]
mod tests;
