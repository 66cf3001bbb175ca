//! Negative log-likelihood of given classes.
//!
//! In: log-probabilities `[batch, classes, inner]`, a class per batch entry and inner position, weights per class.
//! Out: a loss per position, their sum, or their weighted mean. A class outside the classes is a fault unless ignored.

use crate::real::Real;
use crate::{Elem, Fault, Isa, kernel, param_enum};

param_enum! {
    /// What is made of the positions' losses.
    pub enum LossReduction {
        /// One for each position.
        None,
        /// Their sum.
        Sum,
        /// Their sum over the sum of their weights.
        Mean,
    }
}

kernel! {
    /// `loss = -weight[target] · x[target]`.
    pub struct NllLoss {
        operands { read x: T, read target: I, opt weight: T, write y: T }
        nums { batch, classes, inner }
        params { ignore: Option<i64>, reduction: LossReduction }
    }
    entries {
        nll_loss_f32 { T = f32, I = i64 } nll_loss_f32_i32 { T = f32, I = i32 }
        nll_loss_f64 { T = f64, I = i64 } nll_loss_f64_i32 { T = f64, I = i32 }
    }
    body = nll_loss;
}

fn nll_loss<T: Real, I: Elem + Into<i64>>(
    _: Isa,
    d: &NllLoss,
    x: &[T],
    target: &[I],
    weight: Option<&[T]>,
    y: &mut [T],
) -> Result<(), Fault> {
    let positions = d.batch.checked_mul(d.inner).ok_or(Fault::Descriptor)?;
    let n_results = if d.reduction == LossReduction::None { positions } else { 1 };
    if positions.checked_mul(d.classes) != Some(x.len())
        || target.len() != positions
        || y.len() != n_results
        || weight.is_some_and(|w| w.len() != d.classes)
    {
        return Err(Fault::Descriptor);
    }
    let (mut sum, mut weights) = (0.0, 0.0);
    for (at, &class) in target.iter().enumerate() {
        let class: i64 = class.into();
        let loss = if d.ignore == Some(class) {
            0.0
        } else {
            let class = usize::try_from(class).ok().filter(|&c| c < d.classes).ok_or(Fault::IndexOutOfRange)?;
            let w = weight.map_or(1.0, |w| w[class].get());
            weights += w;
            -w * x[(at / d.inner * d.classes + class) * d.inner + at % d.inner].get()
        };
        sum += loss;
        if d.reduction == LossReduction::None {
            y[at] = T::put(loss);
        }
    }
    match d.reduction {
        LossReduction::None => {}
        LossReduction::Sum => y[0] = T::put(sum),
        LossReduction::Mean => y[0] = T::put(sum / weights),
    }
    Ok(())
}
