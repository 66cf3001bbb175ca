//! From raw scores to the ones given out, and to labels.
//!
//! Source: <https://github.com/onnx/onnx/blob/main/docs/Operators-ml.md>, and ONNX Runtime's treatment of two classes.

use crate::real::Real;
use crate::{Fault, Isa, kernel, param_enum};
use core::f64::consts::PI;

param_enum! {
    /// What is done to a row of scores.
    pub enum PostTransform {
        /// Nothing.
        None,
        /// Softmax.
        Softmax,
        /// The logistic function.
        Logistic,
        /// Softmax over the scores that are not zero.
        SoftmaxZero,
        /// The quantile of the normal distribution.
        Probit,
    }
}

param_enum! {
    /// What is put before a single score to make two of it.
    pub enum SecondScore {
        /// Nothing: scores stay as many as they are.
        None,
        /// One less the score.
        Complement,
        /// The negative score.
        Negative,
    }
}

kernel! {
    /// `y = post(x)` row by row; a second score is made before the transform.
    pub struct PostScores {
        operands { read x: X, write y: T }
        nums { rows, n }
        params { post: PostTransform, second: SecondScore }
    }
    entries { post_scores_f32 { X = f64, T = f32 } post_scores_f64 { X = f64, T = f64 } }
    body = post_scores;
}

fn post_scores<T: Real>(_: Isa, d: &PostScores, x: &[f64], y: &mut [T]) -> Result<(), Fault> {
    let n_out = if d.second == SecondScore::None { d.n } else { 2 };
    let ok = d.rows.checked_mul(d.n) == Some(x.len())
        && d.rows.checked_mul(n_out) == Some(y.len())
        && (d.second == SecondScore::None || d.n == 1);
    if !ok {
        return Err(Fault::Descriptor);
    }
    if y.is_empty() {
        return Ok(());
    }
    for (x, y) in x.chunks_exact(d.n).zip(y.chunks_exact_mut(n_out)) {
        let score = |i: usize| match (d.second, i) {
            (SecondScore::Complement, 0) => 1.0 - x[0],
            (SecondScore::Negative, 0) => -x[0],
            (SecondScore::None, i) => x[i],
            _ => x[0],
        };
        let max = (0..n_out).map(score).fold(f64::NEG_INFINITY, f64::max);
        let exponential = |s: f64| {
            // In the variant, scores of zero keep their share of the unshifted scale.
            if d.post == PostTransform::SoftmaxZero && s.abs() <= 1e-7 {
                s * libm::exp(-max)
            } else {
                libm::exp(s - max)
            }
        };
        let sum = match d.post {
            PostTransform::Softmax | PostTransform::SoftmaxZero => (0..n_out).map(|i| exponential(score(i))).sum(),
            _ => 1.0,
        };
        for (i, y) in y.iter_mut().enumerate() {
            let s = score(i);
            *y = T::put(match d.post {
                PostTransform::None => s,
                PostTransform::Logistic => logistic(s),
                PostTransform::Probit => probit(s),
                _ if sum == 0.0 => 0.5,
                _ => exponential(s) / sum,
            });
        }
    }
    Ok(())
}

fn logistic(x: f64) -> f64 {
    let v = 1.0 / (1.0 + libm::exp(-x.abs()));
    if x < 0.0 { 1.0 - v } else { v }
}

/// By the approximation of the inverse error function that ONNX Runtime uses.
fn probit(x: f64) -> f64 {
    let x = 2.0 * x - 1.0;
    let sign = if x < 0.0 { -1.0 } else { 1.0 };
    let x = (1.0 - x) * (1.0 + x);
    if x == 0.0 {
        return 0.0;
    }
    let log = libm::log(x);
    let v = 2.0 / (PI * 0.147) + 0.5 * log;
    let v2 = log / 0.147;
    core::f64::consts::SQRT_2 * sign * libm::sqrt(-v + libm::sqrt(v * v - v2))
}

kernel! {
    /// The label of the greatest score of each row; with one score per row, the first of two labels up to the threshold and
    /// the second above it.
    pub struct ScoreLabels {
        operands { read x: X, read labels: I, write y: I }
        nums { rows, n }
        params { threshold: f32 }
    }
    entries { score_labels_i64 { X = f64, I = i64 } }
    body = score_labels;
}

fn score_labels(_: Isa, d: &ScoreLabels, x: &[f64], labels: &[i64], y: &mut [i64]) -> Result<(), Fault> {
    let n_labels = if d.n == 1 { 2 } else { d.n };
    if d.rows.checked_mul(d.n) != Some(x.len()) || y.len() != d.rows || labels.len() != n_labels || d.n == 0 {
        return Err(Fault::Descriptor);
    }
    for (x, y) in x.chunks_exact(d.n).zip(y) {
        let best = match x {
            [one] => usize::from(*one > f64::from(d.threshold)),
            _ => (1..x.len()).fold(0, |best, i| if x[i] > x[best] { i } else { best }),
        };
        *y = labels[best];
    }
    Ok(())
}

kernel! {
    /// Support vector machines' decisions between every two classes, and the votes for each class.
    /// `kernels` is `[rows, vectors]`; `counts` the vectors of each class; coefficients `[classes - 1, vectors]`.
    pub struct SvmVotes {
        operands { read kernels: X, read coefficients: X, read rho: X, read counts: I, write scores: X, write votes: X }
        nums { rows, n_vectors, classes }
    }
    entries { svm_votes_f64 { X = f64, I = i32 } }
    body = svm_votes;
}

fn svm_votes(
    _: Isa,
    d: &SvmVotes,
    kernels: &[f64],
    coefficients: &[f64],
    rho: &[f64],
    counts: &[i32],
    scores: &mut [f64],
    votes: &mut [f64],
) -> Result<(), Fault> {
    let pairs = d.classes.checked_mul(d.classes.saturating_sub(1)).ok_or(Fault::Descriptor)? / 2;
    let total = counts.iter().try_fold(0usize, |n, &c| n.checked_add(usize::try_from(c).ok()?));
    let ok = d.rows.checked_mul(d.n_vectors) == Some(kernels.len())
        && d.classes.saturating_sub(1).checked_mul(d.n_vectors) == Some(coefficients.len())
        && rho.len() >= pairs
        && counts.len() == d.classes
        && total == Some(d.n_vectors)
        && d.rows.checked_mul(pairs) == Some(scores.len())
        && d.rows.checked_mul(d.classes) == Some(votes.len());
    if !ok {
        return Err(Fault::Descriptor);
    }
    votes.fill(0.0);
    for row in 0..d.rows {
        let kernels = &kernels[row * d.n_vectors..][..d.n_vectors];
        let part = |class: usize, from: usize, n: usize| {
            let c = &coefficients[class * d.n_vectors + from..][..n];
            c.iter().zip(&kernels[from..]).map(|(c, k)| c * k).sum::<f64>()
        };
        let (mut pair, mut start_i) = (0, 0);
        for i in 0..d.classes {
            let n_i = counts[i] as usize;
            let mut start_j = start_i + n_i;
            for j in i + 1..d.classes {
                let n_j = counts[j] as usize;
                let s = part(j - 1, start_i, n_i) + part(i, start_j, n_j) + rho[pair];
                scores[row * pairs + pair] = s;
                votes[row * d.classes + if s > 0.0 { i } else { j }] += 1.0;
                pair += 1;
                start_j += n_j;
            }
            start_i += n_i;
        }
    }
    Ok(())
}
