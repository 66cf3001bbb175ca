//! Linear models, and support vectors' kernel functions.

use crate::{Fault, Isa, kernel, param_enum};

kernel! {
    /// `y[row, target] = Σ x · coefficients[target] + intercepts[target]`.
    pub struct LinearScores {
        operands { read x: X, read coefficients: X, opt intercepts: X, write y: X }
        nums { rows, features, targets }
    }
    entries { linear_scores_f64 { X = f64 } }
    body = linear_scores;
}

fn linear_scores(
    _: Isa,
    d: &LinearScores,
    x: &[f64],
    coefficients: &[f64],
    intercepts: Option<&[f64]>,
    y: &mut [f64],
) -> Result<(), Fault> {
    let ok = d.rows.checked_mul(d.features) == Some(x.len())
        && d.targets.checked_mul(d.features) == Some(coefficients.len())
        && d.rows.checked_mul(d.targets) == Some(y.len())
        && intercepts.is_none_or(|i| i.len() == d.targets);
    if !ok {
        return Err(Fault::Descriptor);
    }
    for (i, y) in y.iter_mut().enumerate() {
        let (row, target) = (i / d.targets, i % d.targets);
        let x = &x[row * d.features..][..d.features];
        let c = &coefficients[target * d.features..][..d.features];
        *y = x.iter().zip(c).map(|(x, c)| x * c).sum::<f64>() + intercepts.map_or(0.0, |i| i[target]);
    }
    Ok(())
}

param_enum! {
    /// A kernel function of two vectors.
    pub enum SvmKernel {
        /// `a·b`
        Linear,
        /// `(gamma·a·b + coef0)^degree`
        Poly,
        /// `exp(-gamma·|a - b|²)`
        Rbf,
        /// `tanh(gamma·a·b + coef0)`
        Sigmoid,
    }
}

kernel! {
    /// `y[row, i] = kernel(x[row], vectors[i])`.
    pub struct SvmKernels {
        operands { read x: X, read vectors: X, write y: X }
        nums { rows, features, n_vectors }
        params { kernel: SvmKernel, gamma: f32, coef0: f32, degree: f32 }
    }
    entries { svm_kernels_f64 { X = f64 } }
    body = svm_kernels;
}

fn svm_kernels(_: Isa, d: &SvmKernels, x: &[f64], vectors: &[f64], y: &mut [f64]) -> Result<(), Fault> {
    let ok = d.rows.checked_mul(d.features) == Some(x.len())
        && d.n_vectors.checked_mul(d.features) == Some(vectors.len())
        && d.rows.checked_mul(d.n_vectors) == Some(y.len());
    if !ok {
        return Err(Fault::Descriptor);
    }
    let (gamma, coef0) = (f64::from(d.gamma), f64::from(d.coef0));
    for (i, y) in y.iter_mut().enumerate() {
        let (row, vector) = (i / d.n_vectors, i % d.n_vectors);
        let pairs = || x[row * d.features..][..d.features].iter().zip(&vectors[vector * d.features..][..d.features]);
        let dot = || pairs().map(|(a, b)| a * b).sum::<f64>();
        *y = match d.kernel {
            SvmKernel::Linear => dot(),
            SvmKernel::Poly => libm::pow(gamma * dot() + coef0, f64::from(d.degree)),
            SvmKernel::Rbf => libm::exp(-gamma * pairs().map(|(a, b)| (a - b) * (a - b)).sum::<f64>()),
            SvmKernel::Sigmoid => libm::tanh(gamma * dot() + coef0),
        };
    }
    Ok(())
}
