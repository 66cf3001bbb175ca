//! A matrix product as plain data: extents, strides, layout of B, and what they imply (operand lengths, scratch, units).
//!
//! In: the numbers. Out: checked lengths. Invariant: arithmetic on extents never wraps; a problem whose extents do not fit
//! in `usize` has no lengths ([`GemmParams::lengths`] is `None`) and no kernel runs it.

use super::pack::PANEL;
use crate::activation::Activation;
use core::ops::Range;

crate::param_enum! {
    /// How B lies in memory.
    pub enum BLayout {
        /// Panels of 16 columns, as [`super::pack_b_into`] writes them; `ldb` is not used.
        Packed,
        /// K rows of N columns, `ldb` apart.
        Rows,
        /// N rows of K columns, `ldb` apart: the product is A·Bᵀ.
        Transposed,
    }
}

/// `C[M,N] = activation(A[M,K]·B[K,N] + bias[N] + residual[M,N])`, over two levels of batch.
///
/// Strides are in elements. A stride of 0 in a batch level shares the operand over it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GemmParams {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// From row to row of A; at least `k`.
    pub lda: usize,
    /// From row to row of B where it is not packed.
    pub ldb: usize,
    /// From row to row of C; at least `n`.
    pub ldc: usize,
    /// From row to row of the residual; 0 adds one row to all. Not used where C is its own residual.
    pub ld_residual: usize,
    /// Rows of a panel of packed B, where they are more than `k`: the product is that of some of them.
    pub panel_rows: usize,
    /// How B lies in memory.
    pub b_layout: BLayout,
    /// The products of the two outer levels: `[batch, heads]`, or `[1, 1]`.
    pub batch: [usize; 2],
    /// From product to product of A, for the two levels.
    pub a_batch: [usize; 2],
    /// The same for B.
    pub b_batch: [usize; 2],
    /// The same for C.
    pub c_batch: [usize; 2],
    /// The same for the residual.
    pub residual_batch: [usize; 2],
    /// Applied last.
    pub activation: Activation,
}

/// How many elements each operand must have at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmLengths {
    /// Of A.
    pub a: usize,
    /// Of B.
    pub b: usize,
    /// Of C.
    pub c: usize,
    /// Of the residual, if there is one of its own.
    pub residual: usize,
    /// Of the bias, if there is one.
    pub bias: usize,
    /// Of the scratch, for each stream its own.
    pub scratch: usize,
}

/// What is divided among streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// A unit is a panel of 16 columns.
    Columns,
    /// A unit is a row.
    Rows,
}

impl GemmParams {
    /// One product of dense row-major matrices with packed B and no activation.
    pub const fn packed(m: usize, n: usize, k: usize) -> Self {
        Self {
            m,
            n,
            k,
            lda: k,
            ldb: 0,
            ldc: n,
            ld_residual: n,
            panel_rows: 0,
            b_layout: BLayout::Packed,
            batch: [1, 1],
            a_batch: [0, 0],
            b_batch: [0, 0],
            c_batch: [0, 0],
            residual_batch: [0, 0],
            activation: Activation::None,
        }
    }

    /// Panels of 16 columns of one product.
    pub const fn n_panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// From panel to panel of packed B, in elements.
    pub(super) const fn panel_len(&self) -> usize {
        PANEL.saturating_mul(if self.panel_rows > self.k { self.panel_rows } else { self.k })
    }

    /// Along what one product is divided: columns, since then no two streams read the same part of B, unless C is so narrow
    /// that the shares would be uneven.
    pub const fn split(&self) -> Split {
        if self.n_panels() >= 8 || self.n_panels() >= self.m { Split::Columns } else { Split::Rows }
    }

    /// Units in one product.
    pub const fn units_per_product(&self) -> usize {
        match self.split() {
            Split::Columns => self.n_panels(),
            Split::Rows => self.m,
        }
    }

    /// Units of work in all products: a stream's share is any range of them. Zero where nothing is to be done.
    pub const fn units(&self) -> usize {
        if self.m == 0 || self.n == 0 {
            return 0;
        }
        self.units_per_product().saturating_mul(self.batch[0]).saturating_mul(self.batch[1])
    }

    /// Elements of scratch that each stream needs.
    pub const fn scratch_len(&self) -> usize {
        let widest_group = super::tile::MAX_PANELS;
        let panels = if self.n_panels() < widest_group { self.n_panels() } else { widest_group };
        match self.b_layout {
            BLayout::Packed => 0,
            BLayout::Rows if self.n.is_multiple_of(PANEL) => 0,
            BLayout::Rows => PANEL.saturating_mul(self.k),
            BLayout::Transposed => (PANEL * panels).saturating_mul(self.k),
        }
    }

    /// The least length of every operand, or nothing where an extent does not fit in `usize` or rows of C overlap.
    pub fn lengths(&self) -> Option<GemmLengths> {
        let none = self.units() == 0;
        let rows = |rows: usize, columns: usize, stride: usize, batch: [usize; 2]| {
            if none || rows == 0 || columns == 0 {
                return Some(0);
            }
            let outer = (self.batch[0] - 1).checked_mul(batch[0])?;
            let inner = (self.batch[1] - 1).checked_mul(batch[1])?;
            (rows - 1).checked_mul(stride)?.checked_add(columns)?.checked_add(outer)?.checked_add(inner)
        };
        if self.ldc < self.n && self.m > 1 {
            return None;
        }
        self.n.checked_add(PANEL)?;
        self.units_per_product().checked_mul(self.batch[0])?.checked_mul(self.batch[1])?;
        let b = match self.b_layout {
            BLayout::Packed => {
                self.n_panels().checked_mul(self.panel_len()).filter(|&len| len != usize::MAX)?;
                rows(self.n_panels(), PANEL * self.k, self.panel_len(), self.b_batch)?
            }
            BLayout::Rows => rows(self.k, self.n, self.ldb, self.b_batch)?,
            BLayout::Transposed => rows(self.n, self.k, self.ldb, self.b_batch)?,
        };
        let scratch = self.scratch_len();
        (scratch != usize::MAX).then_some(GemmLengths {
            a: rows(self.m, self.k, self.lda, self.a_batch)?,
            b,
            c: rows(self.m, self.n, self.ldc, self.c_batch)?,
            residual: rows(self.m, self.n, self.ld_residual, self.residual_batch)?,
            bias: self.n,
            scratch,
        })
    }

    /// The share of stream `i` of `n`: contiguous, sizes differ by at most one.
    pub const fn share(&self, i: usize, n: usize) -> Range<usize> {
        let units = self.units() as u128;
        let (i, n) = (i as u128, n as u128);
        (units * i / n) as usize..(units * (i + 1) / n) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_units_once() {
        for (m, n, batch) in [(128, 768, [1, 1]), (100, 20, [1, 1]), (5, 3, [2, 12]), (0, 8, [1, 1]), (1, 1000, [1, 1])]
        {
            let p = GemmParams { batch, ..GemmParams::packed(m, n, 64) };
            for streams in 1..5 {
                let mut next = 0;
                for i in 0..streams {
                    let share = p.share(i, streams);
                    assert_eq!(share.start, next);
                    next = share.end;
                }
                assert_eq!(next, p.units());
            }
        }
    }

    #[test]
    fn lengths_refuse_what_wraps() {
        assert_eq!(GemmParams::packed(usize::MAX, 16, 2).lengths(), None);
        assert_eq!(GemmParams::packed(2, usize::MAX, 2).lengths(), None);
        assert_eq!(GemmParams::packed(1, 32, usize::MAX / 2).lengths(), None);
        assert_eq!(GemmParams { ldc: 3, ..GemmParams::packed(2, 4, 2) }.lengths(), None);
        let p = GemmParams { batch: [usize::MAX, 2], ..GemmParams::packed(2, 4, 2) };
        assert_eq!(p.lengths(), None);
    }

    #[test]
    fn lengths_of_a_strided_batch() {
        let p = GemmParams {
            lda: 10,
            ldb: 20,
            ldc: 30,
            ld_residual: 0,
            b_layout: BLayout::Rows,
            batch: [2, 3],
            a_batch: [1000, 100],
            b_batch: [0, 200],
            c_batch: [900, 300],
            ..GemmParams::packed(4, 17, 5)
        };
        let want = GemmLengths {
            a: 3 * 10 + 5 + 1200,
            b: 4 * 20 + 17 + 400,
            c: 3 * 30 + 17 + 1500,
            residual: 17,
            bias: 17,
            scratch: 80,
        };
        assert_eq!(p.lengths(), Some(want));
    }
}
