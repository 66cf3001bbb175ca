//! LpNormalization and MeanVarianceNormalization.
//!
//! In: `x` as `[outer, n, inner]` or rows. Out: `y`, each line divided by its norm, or centred and divided by its deviation.

use crate::real::Real;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y = x / (Σ |x|^p)^(1/p)` along axis `n` for p of 1 or 2; zeros where the norm is zero.
    pub struct LpNorm {
        operands { read x: T, write y: T }
        nums { outer, n, inner }
        params { p: u8 }
    }
    entries { lp_norm_f32 { T = f32 } lp_norm_f64 { T = f64 } }
    body = lp_norm;
}

fn lp_norm<T: Real>(_: Isa, d: &LpNorm, x: &[T], y: &mut [T]) -> Result<(), Fault> {
    let block = d.n.checked_mul(d.inner).ok_or(Fault::Descriptor)?;
    if d.outer.checked_mul(block) != Some(x.len()) || x.len() != y.len() || !matches!(d.p, 1 | 2) {
        return Err(Fault::Descriptor);
    }
    if x.is_empty() {
        return Ok(());
    }
    for (x, y) in x.chunks_exact(block).zip(y.chunks_exact_mut(block)) {
        for i in 0..d.inner {
            let line = || (i..block).step_by(d.inner);
            let norm = match d.p {
                1 => line().map(|at| x[at].get().abs()).sum::<f64>(),
                _ => libm::sqrt(line().map(|at| x[at].get() * x[at].get()).sum::<f64>()),
            };
            line().for_each(|at| y[at] = T::put(if norm == 0.0 { 0.0 } else { x[at].get() / norm }));
        }
    }
    Ok(())
}

kernel! {
    /// `y = (x - mean) / (deviation + 1e-9)` for every row of `n`.
    pub struct MeanVarianceNorm {
        operands { read x: T, write y: T }
        nums { rows, n }
    }
    entries { mean_variance_norm_f32 { T = f32 } mean_variance_norm_f64 { T = f64 } }
    body = mean_variance_norm;
}

fn mean_variance_norm<T: Real>(_: Isa, d: &MeanVarianceNorm, x: &[T], y: &mut [T]) -> Result<(), Fault> {
    if d.rows.checked_mul(d.n) != Some(x.len()) || x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    if x.is_empty() {
        return Ok(());
    }
    let n = d.n as f64;
    for (x, y) in x.chunks_exact(d.n).zip(y.chunks_exact_mut(d.n)) {
        let mean = x.iter().map(|x| x.get()).sum::<f64>() / n;
        let variance = x.iter().map(|x| (x.get() - mean) * (x.get() - mean)).sum::<f64>() / n;
        let deviation = libm::sqrt(variance) + 1e-9;
        x.iter().zip(y).for_each(|(x, y)| *y = T::put((x.get() - mean) / deviation));
    }
    Ok(())
}
