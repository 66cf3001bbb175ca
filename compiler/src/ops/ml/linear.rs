//! LinearRegressor, LinearClassifier, SVMRegressor, SVMClassifier.

use super::super::view::{NodeView, Result, wrong};
use super::super::{InferCx, tensor};
use super::{
    FEATURES, f64_weights, give_scores, i32_weights, labels, matrix, numbers, post_transform, set_classes, x64,
};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{
    Dtype, LinearScores, Operand, PostTransform, ScoreLabels, SecondScore, SvmKernel, SvmKernels, SvmVotes,
};

/// `n` linear functions of the features.
fn scores(
    cx: &mut LowerCx<'_>,
    (x, rows, features): (Operand<Dim>, Dim, Dim),
    n: usize,
    coefficients: &[f64],
    intercepts: Option<&[f64]>,
) -> Result<Operand<Dim>> {
    let y = cx.scratch(rows.clone() * Dim::from(n) * Dim::Const(8));
    let d = LinearScores {
        x,
        coefficients: f64_weights(cx, coefficients),
        intercepts: intercepts.map(|i| f64_weights(cx, i)),
        y: y.clone(),
        rows,
        features,
        targets: Dim::from(n),
    };
    cx.call(&[Dtype::F64], d)?;
    Ok(y)
}

/// Coefficients of `n` functions (of as many as there are, for `None`) of the features, and their intercepts.
fn coefficients(cx: &NodeView<'_>, n: Option<usize>) -> Result<(Vec<f64>, Option<Vec<f64>>, usize)> {
    cx.expect_dtype(0, &FEATURES)?;
    let c = numbers(cx, "coefficients")?.unwrap_or_default();
    let (_, features) = matrix(cx.ty(0)?)?;
    let features = features.as_const().and_then(|f| usize::try_from(f).ok()).filter(|&f| f > 0);
    let features = features.ok_or_else(|| wrong("the number of features must be constant").at_input(0))?;
    let n = n.unwrap_or(c.len() / features);
    if n.checked_mul(features) != Some(c.len()) || n == 0 {
        return Err(wrong(format!("{} coefficients for {features} features", c.len())).at_attribute("coefficients"));
    }
    let intercepts = numbers(cx, "intercepts")?.filter(|i| !i.is_empty());
    if intercepts.as_ref().is_some_and(|i| i.len() != n) {
        return Err(wrong(format!("not one for each of {n} functions")).at_attribute("intercepts"));
    }
    Ok((c, intercepts, n))
}

fn targets(cx: &NodeView<'_>) -> Result<usize> {
    usize::try_from(cx.int("targets", 1)?).map_err(|_| wrong("is negative").at_attribute("targets"))
}

fn features(cx: &mut LowerCx<'_>) -> Result<(Operand<Dim>, Dim, Dim)> {
    let (rows, n) = matrix(cx.ty(0)?)?;
    Ok((x64(cx, 0)?, rows, n))
}

pub(super) fn infer_regressor(cx: &mut InferCx<'_>) -> Result<()> {
    let n = targets(cx)?;
    coefficients(cx, Some(n))?;
    post_transform(cx)?;
    let (rows, _) = matrix(cx.ty(0)?)?;
    cx.set(0, tensor(Dtype::F32, vec![rows, Dim::from(n)]));
    Ok(())
}

pub(super) fn lower_regressor(cx: &mut LowerCx<'_>) -> Result<()> {
    let n = targets(cx)?;
    let (c, intercepts, _) = coefficients(cx, Some(n))?;
    let x = features(cx)?;
    let rows = x.1.clone();
    let y = scores(cx, x, n, &c, intercepts.as_deref())?;
    let post = post_transform(cx)?;
    give_scores(cx, 0, y, (rows, n), post, SecondScore::None)
}

pub(super) fn infer_classifier(cx: &mut InferCx<'_>) -> Result<()> {
    let labels = labels(cx, "classlabels_ints", "classlabels_strings")?;
    let (_, _, n) = coefficients(cx, None)?;
    post_transform(cx)?;
    let binary = n == 1 && labels.len() == 2;
    if !binary && n != labels.len() {
        return Err(wrong(format!("{n} functions for {} classes", labels.len())));
    }
    set_classes(cx, labels.len())
}

pub(super) fn lower_classifier(cx: &mut LowerCx<'_>) -> Result<()> {
    let mut labels = labels(cx, "classlabels_ints", "classlabels_strings")?.to_vec();
    let (c, intercepts, n) = coefficients(cx, None)?;
    let binary = n == 1 && labels.len() == 2;
    let x = features(cx)?;
    let rows = x.1.clone();
    let y = scores(cx, x, n, &c, intercepts.as_deref())?;
    let post = post_transform(cx)?;
    if let [only] = labels[..] {
        labels = vec![0, only];
    }
    give_labels(cx, y.clone(), (rows.clone(), n), &labels, 0.0)?;
    let second = match (binary, post) {
        (false, _) => SecondScore::None,
        _ => SecondScore::Negative,
    };
    give_scores(cx, 1, y, (rows, n), post, second)
}

fn give_labels(
    cx: &mut LowerCx<'_>,
    x: Operand<Dim>,
    (rows, n): (Dim, usize),
    labels: &[i64],
    threshold: f32,
) -> Result<()> {
    if !cx.wants(0) {
        return Ok(());
    }
    let (labels, y) = (cx.i64_weights(labels), cx.y(0)?);
    cx.call(&[Dtype::F64, Dtype::I64], ScoreLabels { x, labels, y, rows, n: Dim::from(n), threshold })
}

// Support vector machines

/// The support vectors, and what is computed with them.
struct Machine {
    vectors: Vec<f64>,
    n_vectors: usize,
    kernel: SvmKernel,
    params: [f32; 3],
}

fn machine(cx: &NodeView<'_>, n_vectors: usize) -> Result<Machine> {
    cx.expect_dtype(0, &FEATURES)?;
    let kernel = match cx.text("kernel_type", "LINEAR")? {
        "LINEAR" => SvmKernel::Linear,
        "POLY" => SvmKernel::Poly,
        "RBF" => SvmKernel::Rbf,
        "SIGMOID" => SvmKernel::Sigmoid,
        other => return Err(wrong(format!("unknown kernel \"{other}\"")).at_attribute("kernel_type")),
    };
    let params = match cx.opt_floats("kernel_params")?.unwrap_or_default() {
        [] => [0.0; 3],
        [gamma, coef0, degree] => [*gamma, *coef0, *degree],
        _ => return Err(wrong("expected gamma, coef0, degree").at_attribute("kernel_params")),
    };
    let vectors = numbers(cx, "support_vectors")?.unwrap_or_default();
    let (_, features) = matrix(cx.ty(0)?)?;
    let n = features.as_const().and_then(|f| usize::try_from(f).ok()).and_then(|f| f.checked_mul(n_vectors));
    if n != Some(vectors.len()) {
        let found = vectors.len();
        return Err(
            wrong(format!("{found} numbers for {n_vectors} vectors of {features}")).at_attribute("support_vectors")
        );
    }
    Ok(Machine { vectors, n_vectors, kernel, params })
}

impl Machine {
    /// Kernel functions of every row with every vector.
    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<(Operand<Dim>, Dim)> {
        let (x, rows, features) = features(cx)?;
        let y = cx.scratch(rows.clone() * Dim::from(self.n_vectors) * Dim::Const(8));
        let [gamma, coef0, degree] = self.params;
        let d = SvmKernels {
            x,
            vectors: f64_weights(cx, &self.vectors),
            y: y.clone(),
            rows: rows.clone(),
            features,
            n_vectors: Dim::from(self.n_vectors),
            kernel: self.kernel,
            gamma,
            coef0,
            degree,
        };
        cx.call(&[Dtype::F64], d)?;
        Ok((y, rows))
    }
}

fn n_supports(cx: &NodeView<'_>) -> Result<usize> {
    usize::try_from(cx.int("n_supports", 0)?).map_err(|_| wrong("is negative").at_attribute("n_supports"))
}

fn rho(cx: &NodeView<'_>) -> Result<Vec<f64>> {
    numbers(cx, "rho")?.filter(|r| !r.is_empty()).ok_or_else(|| wrong("is missing").at_attribute("rho"))
}

pub(super) fn infer_svm_regressor(cx: &mut InferCx<'_>) -> Result<()> {
    if cx.int("one_class", 0)? != 0 {
        return Err(wrong("is not supported").at_attribute("one_class"));
    }
    rho(cx)?;
    let n = n_supports(cx)?;
    if n > 0 {
        machine(cx, n)?;
        let c = numbers(cx, "coefficients")?.unwrap_or_default();
        if c.len() != n {
            return Err(wrong(format!("{} for {n} vectors", c.len())).at_attribute("coefficients"));
        }
    } else {
        coefficients(cx, Some(1))?;
    }
    let (rows, _) = matrix(cx.ty(0)?)?;
    cx.set(0, tensor(Dtype::F32, vec![rows, Dim::Const(1)]));
    Ok(())
}

pub(super) fn lower_svm_regressor(cx: &mut LowerCx<'_>) -> Result<()> {
    let n = n_supports(cx)?;
    let rho = rho(cx)?;
    let c = numbers(cx, "coefficients")?.unwrap_or_default();
    let x = if n > 0 {
        let (kernels, rows) = machine(cx, n)?.lower(cx)?;
        (kernels, rows, Dim::from(n))
    } else {
        features(cx)?
    };
    let rows = x.1.clone();
    let y = scores(cx, x, 1, &c, Some(&rho[..1]))?;
    let post = post_transform(cx)?;
    give_scores(cx, 0, y, (rows, 1), post, SecondScore::None)
}

/// Vectors of each class; none for a linear machine.
fn counts(cx: &NodeView<'_>) -> Result<Vec<i32>> {
    let counts = cx.opt_ints("vectors_per_class")?.unwrap_or_default();
    counts
        .iter()
        .map(|&c| i32::try_from(c).ok().filter(|&c| c >= 0))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| wrong("a count out of range").at_attribute("vectors_per_class"))
}

pub(super) fn infer_svm_classifier(cx: &mut InferCx<'_>) -> Result<()> {
    let labels = labels(cx, "classlabels_ints", "classlabels_strings")?;
    if cx.opt_floats("prob_a")?.is_some_and(|p| !p.is_empty()) {
        return Err(wrong("probabilities of support vector machines are not supported").at_attribute("prob_a"));
    }
    let (counts, rho) = (counts(cx)?, rho(cx)?);
    let n = labels.len();
    if counts.is_empty() {
        coefficients(cx, Some(n))?;
        return set_classes(cx, n);
    }
    let n_vectors: usize = counts.iter().map(|&c| c as usize).sum();
    machine(cx, n_vectors)?;
    let pairs = n * (n - 1) / 2;
    let c = numbers(cx, "coefficients")?.unwrap_or_default();
    if counts.len() != n || n < 2 || rho.len() < pairs || Some(c.len()) != (n - 1).checked_mul(n_vectors) {
        return Err(wrong(format!("lists that do not fit {n} classes of {n_vectors} vectors")));
    }
    set_classes(cx, if n == 2 { 2 } else { pairs })
}

pub(super) fn lower_svm_classifier(cx: &mut LowerCx<'_>) -> Result<()> {
    let labels = labels(cx, "classlabels_ints", "classlabels_strings")?.to_vec();
    let (counts, rho) = (counts(cx)?, rho(cx)?);
    let post = post_transform(cx)?;
    let n = labels.len();
    let c = numbers(cx, "coefficients")?.unwrap_or_default();
    if counts.is_empty() {
        let x = features(cx)?;
        let rows = x.1.clone();
        let y = scores(cx, x, n, &c, Some(&vec![rho[0]; n]))?;
        let two = if n == 1 { vec![0, labels[0]] } else { labels };
        give_labels(cx, y.clone(), (rows.clone(), n), &two, 0.0)?;
        return give_scores(cx, 1, y, (rows, n), post, SecondScore::None);
    }
    let n_vectors: usize = counts.iter().map(|&c| c as usize).sum();
    let (kernels, rows) = machine(cx, n_vectors)?.lower(cx)?;
    let pairs = n * (n - 1) / 2;
    let room = |cx: &mut LowerCx<'_>, n: usize| cx.scratch(rows.clone() * Dim::from(n) * Dim::Const(8));
    let (raw, votes) = (room(cx, pairs), room(cx, n));
    let d = SvmVotes {
        kernels,
        coefficients: f64_weights(cx, &c),
        rho: f64_weights(cx, &rho),
        counts: i32_weights(cx, &counts),
        scores: raw.clone(),
        votes: votes.clone(),
        rows: rows.clone(),
        n_vectors: Dim::from(n_vectors),
        classes: Dim::from(n),
    };
    cx.call(&[Dtype::F64, Dtype::I32], d)?;
    give_labels(cx, votes, (rows.clone(), n), &labels, 0.0)?;
    let second = if pairs == 1 && post != PostTransform::Probit { SecondScore::Negative } else { SecondScore::None };
    give_scores(cx, 1, raw, (rows, pairs), post, second)
}
