//! What the three cells share: element types, the product of a state with R, which time step a batch entry is at, checks.

use super::function::{CellActivation, apply_f32, apply_f64};
use crate::gemm::{BLayout, GemmParams, Residual, packed_len, product_f32};
use crate::{Elem, Fault, Isa};
use core::ops::{Add, Mul, Sub};

/// Element types of cells.
pub(super) trait CellElem: Elem + Add<Output = Self> + Mul<Output = Self> + Sub<Output = Self> {
    const ONE: Self;

    /// `f(clip(x))` in place.
    fn apply(isa: Isa, f: CellActivation, clip: f32, x: &mut [Self]);

    /// `c[m, n] = a[m, k] · bᵀ`, rows of `a` `lda` apart, `b` as [`matrix_len`] says; false where a length is wrong.
    fn product(
        isa: Isa,
        layout: BLayout,
        shape: [usize; 3],
        a: &[Self],
        lda: usize,
        b: &[Self],
        c: &mut [Self],
        scratch: &mut [Self],
    ) -> bool;
}

impl CellElem for f32 {
    const ONE: Self = 1.0;

    fn apply(isa: Isa, f: CellActivation, clip: f32, x: &mut [Self]) {
        apply_f32(isa, f, clip, x);
    }

    fn product(
        isa: Isa,
        layout: BLayout,
        [m, n, k]: [usize; 3],
        a: &[Self],
        lda: usize,
        b: &[Self],
        c: &mut [Self],
        scratch: &mut [Self],
    ) -> bool {
        let p = GemmParams { lda, ldb: k, b_layout: layout, ..GemmParams::packed(m, n, k) };
        product_f32(isa, &p, a, b, None, Residual::None, c, scratch)
    }
}

impl CellElem for f64 {
    const ONE: Self = 1.0;

    fn apply(isa: Isa, f: CellActivation, clip: f32, x: &mut [Self]) {
        apply_f64(isa, f, clip, x);
    }

    fn product(
        _: Isa,
        _: BLayout,
        [m, n, k]: [usize; 3],
        a: &[Self],
        lda: usize,
        b: &[Self],
        c: &mut [Self],
        _: &mut [Self],
    ) -> bool {
        let enough = m == 0 || (m - 1).checked_mul(lda).and_then(|l| l.checked_add(k)).is_some_and(|l| l <= a.len());
        if !enough || n.checked_mul(k) != Some(b.len()) || m.checked_mul(n).is_none_or(|l| l > c.len()) {
            return false;
        }
        for i in 0..m {
            for j in 0..n {
                c[i * n + j] = (0..k).map(|l| a[i * lda + l] * b[j * k + l]).sum();
            }
        }
        true
    }
}

/// Elements of an `n`×`k` matrix in this layout: packed for `f32`, rows of `k` otherwise.
pub(super) fn matrix_len(layout: BLayout, n: usize, k: usize) -> usize {
    match layout {
        BLayout::Packed => packed_len(k, n),
        _ => n.saturating_mul(k),
    }
}

/// Elements of scratch that [`CellElem::product`] needs for `n`×`k`.
fn product_scratch(layout: BLayout, n: usize, k: usize) -> usize {
    GemmParams { b_layout: layout, ..GemmParams::packed(1, n, k) }.scratch_len()
}

/// The extents of a direction's call.
#[derive(Clone, Copy)]
pub(super) struct Extents {
    pub steps: usize,
    pub batch: usize,
    pub hidden: usize,
    pub gates: usize,
    pub gate_step: usize,
    pub gate_batch: usize,
    pub y_start: usize,
    pub y_step: usize,
    pub y_batch: usize,
    pub h_start: usize,
    pub h_batch: usize,
    pub reverse: bool,
    pub layout: BLayout,
}

/// The lengths of the slices that [`Extents::check`] looks at.
pub(super) struct Lengths<'a> {
    pub gates: usize,
    pub r: usize,
    pub bias: Option<usize>,
    pub lens: Option<&'a [i32]>,
    pub y: usize,
    /// Initial and last states, cell states among them.
    pub states: [Option<usize>; 4],
    pub scratch: usize,
}

impl Extents {
    /// Whether every slice is as long as the extents say. Of the scratch, `rows` elements per batch entry are the cell's own.
    pub fn check(&self, l: &Lengths<'_>, rows: usize) -> Result<(), Fault> {
        let width = self.gates.checked_mul(self.hidden).ok_or(Fault::Descriptor)?;
        let reach = |start: usize, terms: [(usize, usize); 2], last: usize| {
            if terms.iter().any(|t| t.0 == 0) {
                return Some(0);
            }
            let far =
                terms.iter().try_fold(start, |sum, &(n, stride)| sum.checked_add((n - 1).checked_mul(stride)?))?;
            far.checked_add(last)
        };
        let within = |need: Option<usize>, have: usize| need.is_some_and(|n| n <= have);
        let gates = reach(0, [(self.steps, self.gate_step), (self.batch, self.gate_batch)], width);
        let y = reach(self.y_start, [(self.steps, self.y_step), (self.batch, self.y_batch)], self.hidden);
        let h = reach(self.h_start, [(self.batch, self.h_batch), (1, 0)], self.hidden);
        let r_len = match self.layout {
            // Gate by gate for GRU: two panels' worth of padding.
            BLayout::Packed => None,
            _ => width.checked_mul(self.hidden),
        };
        let scratch = self.batch.checked_mul(rows).and_then(|n| n.checked_add(self.product_scratch()));
        let ok = within(gates, l.gates)
            && within(y, l.y)
            && l.states.iter().flatten().all(|&s| within(h, s))
            && r_len.is_none_or(|n| n == l.r)
            && l.bias.is_none_or(|b| width.checked_mul(2) == Some(b))
            && l.lens.is_none_or(|l| l.len() == self.batch)
            && within(scratch, l.scratch);
        if ok { Ok(()) } else { Err(Fault::Descriptor) }
    }

    /// Elements of scratch for the products.
    pub fn product_scratch(&self) -> usize {
        product_scratch(self.layout, self.gates.saturating_mul(self.hidden), self.hidden)
    }

    /// How many steps a batch entry has; a length outside the tensor is a fault.
    pub fn len_of(&self, lens: Option<&[i32]>, b: usize) -> Result<usize, Fault> {
        let Some(lens) = lens else { return Ok(self.steps) };
        usize::try_from(lens[b]).ok().filter(|&l| l <= self.steps).ok_or(Fault::IndexOutOfRange)
    }

    /// The time that a batch entry of `len` steps is at in step `i`.
    pub fn time(&self, i: usize, len: usize) -> usize {
        if self.reverse { len - 1 - i } else { i }
    }

    /// Where the gates of a time and batch entry begin.
    pub fn gate_at(&self, t: usize, b: usize) -> usize {
        t * self.gate_step + b * self.gate_batch
    }

    /// Where the row of Y of a time and batch entry begins.
    pub fn y_at(&self, t: usize, b: usize) -> usize {
        self.y_start + t * self.y_step + b * self.y_batch
    }

    /// Where the state of a batch entry begins.
    pub fn h_at(&self, b: usize) -> usize {
        self.h_start + b * self.h_batch
    }

    /// Sets this direction's states to the initial ones, or zero; and the rows of Y past the batch entries' lengths to zero.
    pub fn begin<T: Elem>(
        &self,
        lens: Option<&[i32]>,
        y: &mut [T],
        states: [Option<(&mut [T], Option<&[T]>)>; 2],
    ) -> Result<(), Fault> {
        for b in 0..self.batch {
            for t in self.len_of(lens, b)?..self.steps {
                y[self.y_at(t, b)..][..self.hidden].fill(T::default());
            }
        }
        for (state, initial) in states.into_iter().flatten() {
            for b in 0..self.batch {
                let row = &mut state[self.h_at(b)..][..self.hidden];
                match initial {
                    Some(initial) => row.copy_from_slice(&initial[self.h_at(b)..][..self.hidden]),
                    None => row.fill(T::default()),
                }
            }
        }
        Ok(())
    }
}

/// `to = product + gates + both biases`, for one row of gates.
pub(super) fn add_gates<T: CellElem>(to: &mut [T], gates: &[T], bias: Option<&[T]>, from: usize) {
    for (to, &g) in to.iter_mut().zip(gates) {
        *to = *to + g;
    }
    if let Some(bias) = bias {
        let (w, r) = bias.split_at(bias.len() / 2);
        for ((to, &w), &r) in to.iter_mut().zip(&w[from..]).zip(&r[from..]) {
            *to = *to + w + r;
        }
    }
}
