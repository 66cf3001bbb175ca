//! The loops around the f32 microkernels: units to products, blocks of k and of rows, groups of panels, tiles of rows.
//!
//! In: parameters and slices, checked at entry. Out: the units of C. Order: blocks of k, then blocks of rows whose part of A
//! stays in L2, then groups of panels, then tiles of rows, so a group of B passes all rows of a block while it is near.

use super::pack::{PANEL, pack_panel, pack_panel_transposed};
use super::params::{BLayout, GemmParams, Split};
use super::tile::{Table, Tile, TileFn};
use crate::activation::{Activation, apply_rows};
use crate::isa::Isa;
use core::ops::Range;
use core::ptr;

/// What is added to a product before the activation.
#[derive(Clone, Copy, Debug, Default)]
pub enum Residual<'a> {
    /// Nothing.
    #[default]
    None,
    /// Another buffer.
    Of(&'a [f32]),
    /// What C holds: C is updated in place.
    Output,
}

/// All units of a product. Returns whether parameters and lengths were consistent; if not, nothing is touched.
#[must_use]
pub fn product_f32(
    isa: Isa,
    p: &GemmParams,
    a: &[f32],
    b: &[f32],
    bias: Option<&[f32]>,
    residual: Residual,
    c: &mut [f32],
    scratch: &mut [f32],
) -> bool {
    // SAFETY: the slice is exclusively borrowed.
    unsafe { product_f32_units(isa, p, 0..p.units(), a, b, bias, residual, c, scratch) }
}

/// The given units of a product ([`GemmParams::units`]), as one of several streams runs it.
///
/// Returns whether parameters and lengths were consistent; if not, nothing is touched.
///
/// # Safety
/// `c` is valid for reads and writes, and while this runs nobody else accesses the elements of the given units, nor writes
/// `a`, `b`, `bias` or the residual.
#[must_use]
pub unsafe fn product_f32_units(
    isa: Isa,
    p: &GemmParams,
    units: Range<usize>,
    a: &[f32],
    b: &[f32],
    bias: Option<&[f32]>,
    residual: Residual,
    c: *mut [f32],
    scratch: &mut [f32],
) -> bool {
    let Some(needed) = p.lengths() else {
        return false;
    };
    let residual_fits = match residual {
        Residual::Of(r) => r.len() >= needed.residual,
        _ => true,
    };
    let fits = a.len() >= needed.a
        && b.len() >= needed.b
        && c.len() >= needed.c
        && bias.is_none_or(|bias| bias.len() >= needed.bias)
        && scratch.len() >= needed.scratch
        && units.end <= p.units()
        && residual_fits;
    if !fits {
        return false;
    }
    let c = c.cast::<f32>();
    let per_product = p.units_per_product();
    let mut unit = units.start;
    while unit < units.end {
        let (index, first) = (unit / per_product, unit % per_product);
        let last = per_product.min(first + (units.end - unit));
        unit += last - first;
        let at = |stride: [usize; 2]| index / p.batch[1] * stride[0] + index % p.batch[1] * stride[1];
        let (rows, panels) = match p.split() {
            Split::Columns => (0..p.m, first..last),
            Split::Rows => (first..last, 0..p.n_panels()),
        };
        let c_at = at(p.c_batch);
        let (residual, ld_residual) = match residual {
            Residual::None => (ptr::null(), 0),
            // SAFETY: `needed` has the last product's end.
            Residual::Of(r) => (unsafe { r.as_ptr().add(at(p.residual_batch)) }, p.ld_residual),
            // SAFETY: as above.
            Residual::Output => (unsafe { c.add(c_at) }.cast_const(), p.ldc),
        };
        // SAFETY: the lengths above hold for every product, row and panel; exclusive access is the caller's promise.
        unsafe {
            Product {
                isa,
                p,
                a: a.as_ptr().add(at(p.a_batch)),
                b: &b[at(p.b_batch)..],
                bias: bias.map_or(ptr::null(), <[f32]>::as_ptr),
                residual,
                ld_residual,
                c: c.add(c_at),
            }
            .run(rows, panels, scratch)
        }
    }
    true
}

/// Sizes of the loops for one product on one instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Blocking {
    /// Panels of a group.
    panels: usize,
    /// Most rows of a tile.
    rows: usize,
    /// Steps of k of a block.
    k: usize,
    /// Rows of a block.
    block_rows: usize,
}

impl Blocking {
    /// Chosen by measurement on a core with 48 KB L1 and 1 MB L2; other sizes cost speed, never correctness.
    fn choose(isa: Isa, p: &GemmParams, rows: usize, panels: usize) -> Self {
        let (n_panels, mr) = match isa {
            Isa::Avx512 => match rows {
                1 => (4, 1),
                // Rows of A that are a multiple of 4 KB apart fall into one set of L1: few rows, more columns.
                _ if rows <= 6 || p.lda.is_multiple_of(1024) => (4, 6),
                15..=18 => (3, 9),
                _ => (2, 14),
            },
            Isa::Avx2 | Isa::Neon => match rows {
                1 => (4, 1),
                2 => (2, 3),
                // Twelve of AVX2's sixteen registers would be sums, four a line of B, and none left to broadcast A in.
                3 if isa != Isa::Avx2 => (2, 3),
                _ => (1, 6),
            },
            Isa::Scalar => (2, 1),
        };
        const K_BLOCK: usize = 1024;
        // Elements of A that stay in L2 beside a group of B; AVX2 alone is found on cores with 512 KB.
        let a_block = if isa == Isa::Avx2 { 64 } else { 128 } * 1024;
        let k = if rows <= 2 * mr { p.k } else { p.k.div_ceil(p.k.div_ceil(K_BLOCK).max(1)) }.max(1);
        let block_rows = if p.b_layout == BLayout::Transposed { rows } else { (a_block / k).max(4 * mr) };
        Self { panels: n_panels.min(panels.max(1)), rows: mr, k, block_rows }
    }
}

/// One product of the batch.
struct Product<'a> {
    isa: Isa,
    p: &'a GemmParams,
    a: *const f32,
    b: &'a [f32],
    bias: *const f32,
    residual: *const f32,
    ld_residual: usize,
    c: *mut f32,
}

/// A group of panels of B at a block of k.
#[derive(Clone, Copy)]
struct Group {
    /// First column of C.
    column: usize,
    /// Columns of the last panel.
    n_last: usize,
    b: *const f32,
    b_step: usize,
    b_panel: usize,
    kernels: &'static [TileFn],
    /// The group after this, if there is one to prefetch.
    next: *const f32,
}

impl Product<'_> {
    /// # Safety
    /// All operands have the lengths of the parameters, and C's rows and panels given are exclusively the caller's.
    unsafe fn run(&self, rows: Range<usize>, panels: Range<usize>, scratch: &mut [f32]) {
        let p = self.p;
        let table = Table::of(self.isa);
        let blocking = Blocking::choose(self.isa, p, rows.len(), panels.len());
        // Plain rows of B may end within the last panel: that one is read from a packed copy.
        let ragged = p.b_layout == BLayout::Rows && !p.n.is_multiple_of(PANEL) && panels.end == p.n_panels();
        let whole_panels = panels.end - usize::from(ragged);
        if ragged && p.k > 0 {
            let column = whole_panels * PANEL;
            pack_panel(&mut scratch[..PANEL * p.k], &self.b[column..], p.n - column, p.ldb);
        }
        let mut k = 0;
        loop {
            let k_end = p.k.min(k + blocking.k);
            for block in blocks(rows.clone(), blocking.block_rows) {
                let mut panel = panels.start;
                while panel < panels.end {
                    let end = if panel < whole_panels { whole_panels } else { panels.end };
                    let (width, kernels) = widest(table, blocking.panels.min(end - panel));
                    let column = panel * PANEL;
                    let n_last = (p.n - column).min(width * PANEL) - (width - 1) * PANEL;
                    let mut group =
                        Group { column, n_last, b: ptr::null(), b_step: PANEL, b_panel: 0, kernels, next: ptr::null() };
                    if p.k > 0 {
                        match p.b_layout {
                            BLayout::Packed => {
                                group.b = self.b[panel * p.panel_len() + k * PANEL..].as_ptr();
                                group.b_panel = p.panel_len();
                                if panel + width < panels.end {
                                    group.next = self.b[(panel + width) * p.panel_len() + k * PANEL..].as_ptr();
                                }
                            }
                            BLayout::Rows if panel >= whole_panels => group.b = scratch[k * PANEL..].as_ptr(),
                            BLayout::Rows => {
                                group.b = self.b[k * p.ldb + column..].as_ptr();
                                group.b_step = p.ldb;
                                group.b_panel = PANEL;
                            }
                            BLayout::Transposed => {
                                let len = PANEL * (k_end - k);
                                for (j, out) in scratch.chunks_exact_mut(len).take(width).enumerate() {
                                    let from = column + j * PANEL;
                                    let columns = PANEL.min(p.n - from);
                                    pack_panel_transposed(
                                        self.isa,
                                        out,
                                        &self.b[from * p.ldb + k..],
                                        k_end - k,
                                        columns,
                                        p.ldb,
                                    );
                                }
                                group.b = scratch.as_ptr();
                                group.b_panel = len;
                            }
                        }
                    }
                    // SAFETY: the group lies in B (or the scratch); rows and columns are the caller's.
                    unsafe { self.group(&group, block.clone(), width, blocking.rows, k..k_end) };
                    panel += width;
                }
            }
            k = k_end;
            if k == p.k {
                break;
            }
        }
    }

    /// All rows of a block over one group of panels.
    ///
    /// # Safety
    /// As for `run`, for these rows, this group and this run of k.
    unsafe fn group(&self, g: &Group, rows: Range<usize>, width: usize, most_rows: usize, k: Range<usize>) {
        let p = self.p;
        let (first, last) = (k.start == 0, k.end == p.k);
        let clamp = p.activation.as_clamp();
        let columns = (width - 1) * PANEL + g.n_last;
        let n_tiles = rows.len().div_ceil(most_rows.min(g.kernels.len()));
        // Each tile asks for its share of the next group: `width / n_tiles` lines with every step of k.
        let prefetch_step = if g.next.is_null() || n_tiles < 2 { 0 } else { PANEL * width / n_tiles };
        for (i, tile_rows) in even_tiles(rows, n_tiles).enumerate() {
            let (row, n_rows) = (tile_rows.start, tile_rows.len());
            // SAFETY: row and column lie in C; A, bias and residual have the parameters' lengths.
            unsafe {
                let c = self.c.add(row * p.ldc + g.column);
                let (bias, residual, ld_residual) = if !first {
                    (ptr::null(), c.cast_const(), p.ldc)
                } else {
                    let at = |from: *const f32, at: usize| {
                        if from.is_null() { from } else { from.add(at) }
                    };
                    (at(self.bias, g.column), at(self.residual, row * self.ld_residual + g.column), self.ld_residual)
                };
                let tile = Tile {
                    k: k.len(),
                    a: if k.is_empty() { self.a } else { self.a.add(row * p.lda + k.start) },
                    lda: p.lda,
                    b: g.b,
                    b_step: g.b_step,
                    b_panel: g.b_panel,
                    c,
                    ldc: p.ldc,
                    n_last: g.n_last,
                    bias,
                    residual,
                    ld_residual,
                    clamp: clamp.filter(|_| last && p.activation != Activation::None),
                    prefetch: if prefetch_step == 0 { g.b } else { g.next.wrapping_add(i * prefetch_step * k.len()) },
                    prefetch_step,
                };
                g.kernels[n_rows - 1](&tile);
                if last && clamp.is_none() {
                    apply_rows(self.isa, p.activation, c, n_rows, columns, p.ldc);
                }
            }
        }
    }
}

/// The widest kernels of at most `panels` panels.
fn widest(table: &Table, panels: usize) -> (usize, &'static [TileFn]) {
    let fitting = table.widths.iter().take_while(|w| w.0 <= panels);
    // Every table starts with one panel.
    fitting.last().copied().unwrap_or(table.widths[0])
}

/// Blocks of at most `size` rows.
fn blocks(rows: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let n = rows.len().div_ceil(size).max(1);
    even_tiles(rows, n)
}

/// `n` runs whose lengths differ by at most one; only for a range with at least `n` elements (or `n` of 1).
fn even_tiles(rows: Range<usize>, n: usize) -> impl Iterator<Item = Range<usize>> {
    let (short, n_long) = (rows.len() / n, rows.len() % n);
    let start = move |i: usize| rows.start + i * short + i.min(n_long);
    (0..n).map(move |i| start(i)..start(i + 1))
}

#[cfg(test)]
mod tests;
