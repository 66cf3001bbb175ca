//! Reductions in `f32` over one block of neighbouring axes, vectorised: the innermost ones (rows), or ones further out
//! (columns).
//!
//! In: `x` as `[rows, n]` or `[outer, n, inner]`. Out: `y` as `[rows]` or `[outer, inner]`.
//! A row is summed in 64 partial sums and one fixed order, so results do not depend on how the rows are split.

use super::ReduceOp;
use crate::simd::{F32x16, LANES, Simd, math, scalar};
use crate::{Fault, Isa, kernel, simd_fn};

kernel! {
    /// `y[i] = op over x[i, ..n]`.
    pub struct ReduceRows {
        operands { read x: T, write y: T }
        nums { rows, n }
        params { op: ReduceOp }
    }
    entries { reduce_rows_f32 { T = f32 } }
    body = reduce_rows;
}

kernel! {
    /// `y[o, i] = op over x[o, ..n, i]`.
    pub struct ReduceColumns {
        operands { read x: T, write y: T }
        nums { outer, n, inner }
        params { op: ReduceOp }
    }
    entries { reduce_columns_f32 { T = f32 } }
    body = reduce_columns;
}

const SUM: u8 = 0;
const ABS: u8 = 1;
const SQUARE: u8 = 2;
const MAX: u8 = 3;
const MIN: u8 = 4;
const PROD: u8 = 5;

/// What no elements give.
const fn neutral(fold: u8) -> f32 {
    match fold {
        MAX => f32::NEG_INFINITY,
        MIN => f32::INFINITY,
        PROD => 1.0,
        _ => 0.0,
    }
}

/// The accumulation behind an operator, and what is done to its result.
fn parts(op: ReduceOp, n: usize) -> (u8, Finish) {
    match op {
        ReduceOp::Sum => (SUM, Finish::None),
        ReduceOp::Mean => (SUM, Finish::Divide(n as f32)),
        ReduceOp::Max => (MAX, Finish::None),
        ReduceOp::Min => (MIN, Finish::None),
        ReduceOp::Prod => (PROD, Finish::None),
        ReduceOp::L1 => (ABS, Finish::None),
        ReduceOp::L2 => (SQUARE, Finish::Sqrt),
        ReduceOp::LogSum => (SUM, Finish::Log),
        ReduceOp::SumSquare => (SQUARE, Finish::None),
        // The sum is of exponentials: its own loops.
        ReduceOp::LogSumExp => (SUM, Finish::Log),
    }
}

#[derive(Clone, Copy)]
enum Finish {
    None,
    Divide(f32),
    Sqrt,
    Log,
}

impl Finish {
    fn scalar(self, x: f32) -> f32 {
        match self {
            Self::None => x,
            Self::Divide(n) => x / n,
            Self::Sqrt => scalar::sqrt(x),
            Self::Log => math::scalar::log(x),
        }
    }

    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        match self {
            Self::None => x,
            Self::Divide(n) => x / s.splat(n),
            Self::Sqrt => x.sqrt(),
            Self::Log => math::log(x),
        }
    }
}

/// Takes a vector in.
#[inline(always)]
fn step<S: Simd, const FOLD: u8>(acc: S::F32, x: S::F32) -> S::F32 {
    match FOLD {
        ABS => acc + x.abs(),
        SQUARE => x.fma(x, acc),
        MAX => S::F32::select(acc.is_nan(), acc, acc.max(x)),
        MIN => S::F32::select(acc.is_nan(), acc, acc.min(x)),
        PROD => acc * x,
        _ => acc + x,
    }
}

/// Joins two accumulators.
#[inline(always)]
fn join<S: Simd, const FOLD: u8>(a: S::F32, b: S::F32) -> S::F32 {
    match FOLD {
        ABS | SQUARE => a + b,
        _ => step::<S, FOLD>(a, b),
    }
}

/// Joins the lanes.
#[inline(always)]
fn lanes<S: Simd, const FOLD: u8>(a: S::F32) -> f32 {
    match FOLD {
        MAX => a.to_array().into_iter().fold(f32::NEG_INFINITY, |a, x| if a > x || a.is_nan() { a } else { x }),
        MIN => a.to_array().into_iter().fold(f32::INFINITY, |a, x| if a < x || a.is_nan() { a } else { x }),
        PROD => a.to_array().into_iter().product(),
        _ => a.sum(),
    }
}

/// The first `n` lanes of `x`, `other` in the rest.
#[inline(always)]
fn keep<S: Simd>(s: S, x: S::F32, n: usize, other: f32) -> S::F32 {
    let idx = s.array([0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.]);
    S::F32::select(idx.lt(s.splat(n as f32)), x, s.splat(other))
}

#[inline(always)]
fn row<S: Simd, const FOLD: u8>(s: S, x: &[f32]) -> f32 {
    let start = s.splat(neutral(FOLD));
    let mut acc = [start; 4];
    let (mut at, n) = (0, x.len());
    // SAFETY: every load of 16 lanes ends at or before `n`.
    unsafe {
        while at + 4 * LANES <= n {
            for (i, acc) in acc.iter_mut().enumerate() {
                *acc = step::<S, FOLD>(*acc, s.load(x.as_ptr().add(at + i * LANES)));
            }
            at += 4 * LANES;
        }
        while at + LANES <= n {
            acc[0] = step::<S, FOLD>(acc[0], s.load(x.as_ptr().add(at)));
            at += LANES;
        }
    }
    if at < n {
        acc[1] = step::<S, FOLD>(acc[1], keep(s, s.load_slice(x, at), n - at, neutral(FOLD)));
    }
    lanes::<S, FOLD>(join::<S, FOLD>(join::<S, FOLD>(acc[0], acc[1]), join::<S, FOLD>(acc[2], acc[3])))
}

simd_fn! {
    fn fold_rows<S>[const FOLD: u8][FOLD](s, x: &[f32], y: &mut [f32], n: usize, finish: Finish) {
        for (x, y) in x.chunks_exact(n).zip(y) {
            *y = finish.scalar(row::<S, FOLD>(s, x));
        }
    }
}

/// What exponents are shifted by: the greatest element, unless infinite.
fn shift(max: f32) -> f32 {
    if max.is_infinite() { 0.0 } else { max }
}

simd_fn! {
    fn log_sum_exp_rows<S>(s, x: &[f32], y: &mut [f32], n: usize) {
        for (x, y) in x.chunks_exact(n).zip(y) {
            let m = shift(row::<S, MAX>(s, x));
            let mut sum = s.zero();
            for at in (0..n).step_by(LANES) {
                let e = math::exp_flushed(s.load_slice(x, at) - s.splat(m));
                sum = sum + if n - at < LANES { keep(s, e, n - at, 0.0) } else { e };
            }
            *y = math::scalar::log(sum.sum()) + m;
        }
    }
}

macro_rules! by_fold {
    ($fold:expr, $f:ident($($arg:expr),*)) => {
        match $fold {
            ABS => $f::<ABS>($($arg),*),
            SQUARE => $f::<SQUARE>($($arg),*),
            MAX => $f::<MAX>($($arg),*),
            MIN => $f::<MIN>($($arg),*),
            PROD => $f::<PROD>($($arg),*),
            _ => $f::<SUM>($($arg),*),
        }
    };
}

fn reduce_rows(isa: Isa, d: &ReduceRows, x: &[f32], y: &mut [f32]) -> Result<(), Fault> {
    if d.rows.checked_mul(d.n) != Some(x.len()) || y.len() != d.rows {
        return Err(Fault::Descriptor);
    }
    let (fold, finish) = parts(d.op, d.n);
    if d.n == 0 {
        y.fill(finish.scalar(neutral(fold)));
    } else if d.op == ReduceOp::LogSumExp {
        log_sum_exp_rows(isa, x, y, d.n);
    } else {
        by_fold!(fold, fold_rows(isa, x, y, d.n, finish));
    }
    Ok(())
}

/// One strip of `V` vectors of a column block: `x` begins at the strip, rows are `inner` apart.
///
/// # Safety
/// `x` is valid for reads of `w` f32 at each of `n` rows, `y` for writes of `w`; `w` is `16 · V`, or less with `V` = 1.
#[inline(always)]
unsafe fn strip<S: Simd, const FOLD: u8, const V: usize>(
    s: S,
    x: *const f32,
    y: *mut f32,
    (n, inner, w): (usize, usize, usize),
    finish: Finish,
) {
    let mut acc = [s.splat(neutral(FOLD)); V];
    // SAFETY: the caller vouches for `w` elements of every row.
    unsafe {
        for i in 0..n {
            for (v, acc) in acc.iter_mut().enumerate() {
                let p = x.add(i * inner + v * LANES);
                let x = if w < LANES { s.load_n(p, w) } else { s.load(p) };
                *acc = step::<S, FOLD>(*acc, x);
            }
        }
        for (v, acc) in acc.into_iter().enumerate() {
            finish.vector(s, acc).store_n(y.add(v * LANES), w.min(LANES));
        }
    }
}

simd_fn! {
    fn fold_columns<S>[const FOLD: u8][FOLD](s, x: &[f32], y: &mut [f32], n: usize, inner: usize, finish: Finish) {
        for (x, y) in x.chunks_exact(n * inner).zip(y.chunks_exact_mut(inner)) {
            let (x, y) = (x.as_ptr(), y.as_mut_ptr());
            let mut at = 0;
            // SAFETY: the strips lie inside `inner`, and `x` has `n · inner` elements.
            unsafe {
                while at + 4 * LANES <= inner {
                    strip::<S, FOLD, 4>(s, x.add(at), y.add(at), (n, inner, 4 * LANES), finish);
                    at += 4 * LANES;
                }
                while at < inner {
                    let w = LANES.min(inner - at);
                    strip::<S, FOLD, 1>(s, x.add(at), y.add(at), (n, inner, w), finish);
                    at += w;
                }
            }
        }
    }
}

simd_fn! {
    fn log_sum_exp_columns<S>(s, x: &[f32], y: &mut [f32], n: usize, inner: usize) {
        for (x, y) in x.chunks_exact(n * inner).zip(y.chunks_exact_mut(inner)) {
            for at in (0..inner).step_by(LANES) {
                let mut m = s.splat(f32::NEG_INFINITY);
                for i in 0..n {
                    m = step::<S, MAX>(m, s.load_slice(x, i * inner + at));
                }
                m = S::F32::select(m.abs().eq(s.splat(f32::INFINITY)), s.zero(), m);
                let mut sum = s.zero();
                for i in 0..n {
                    sum = sum + math::exp_flushed(s.load_slice(x, i * inner + at) - m);
                }
                (math::log(sum) + m).store_slice(y, at);
            }
        }
    }
}

fn reduce_columns(isa: Isa, d: &ReduceColumns, x: &[f32], y: &mut [f32]) -> Result<(), Fault> {
    let columns = d.outer.checked_mul(d.inner).ok_or(Fault::Descriptor)?;
    if columns.checked_mul(d.n) != Some(x.len()) || y.len() != columns {
        return Err(Fault::Descriptor);
    }
    let (fold, finish) = parts(d.op, d.n);
    if d.n == 0 {
        y.fill(finish.scalar(neutral(fold)));
    } else if columns == 0 {
    } else if d.op == ReduceOp::LogSumExp {
        log_sum_exp_columns(isa, x, y, d.n, d.inner);
    } else {
        by_fold!(fold, fold_columns(isa, x, y, d.n, d.inner, finish));
    }
    Ok(())
}
