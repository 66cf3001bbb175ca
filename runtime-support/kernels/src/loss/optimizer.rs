//! One step of Adagrad, Adam and Momentum for one tensor.
//!
//! In: learning rate, step count, the tensor, its gradient, its accumulated states. Out: the next tensor and states.
//! Source: <https://onnx.ai/onnx/operators/index.html>, domain ai.onnx.preview.training.

use crate::real::Real;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `h' = h + g²; x' = x - rate/(1 + t·decay) · g / (√h' + epsilon)` with `g` regularised by `norm·x`.
    pub struct Adagrad {
        operands { read rate: R, read t: I, read x: T, read g: T, read h: T, write x_new: T, write h_new: T }
        params { norm: f32, epsilon: f32, decay: f32 }
    }
    entries {
        adagrad_f32 { R = f32, I = i64, T = f32 } adagrad_f64 { R = f64, I = i64, T = f64 }
        adagrad_f32_f64 { R = f32, I = i64, T = f64 } adagrad_f64_f32 { R = f64, I = i64, T = f32 }
    }
    body = adagrad;
}

kernel! {
    /// Adam with bias correction from step 1 on, and shrinking of the result by `norm_post`.
    pub struct Adam {
        operands {
            read rate: R, read t: I, read x: T, read g: T, read v: T, read h: T,
            write x_new: T, write v_new: T, write h_new: T,
        }
        params { norm: f32, norm_post: f32, alpha: f32, beta: f32, epsilon: f32 }
    }
    entries {
        adam_f32 { R = f32, I = i64, T = f32 } adam_f64 { R = f64, I = i64, T = f64 }
        adam_f32_f64 { R = f32, I = i64, T = f64 } adam_f64_f32 { R = f64, I = i64, T = f32 }
    }
    body = adam;
}

kernel! {
    /// `v' = alpha·v + beta·g` (beta 1 at step 0); `x' = x - rate·v'`, with `nesterov` `x - rate·(g + alpha·v')`.
    pub struct Momentum {
        operands { read rate: R, read t: I, read x: T, read g: T, read v: T, write x_new: T, write v_new: T }
        params { norm: f32, alpha: f32, beta: f32, nesterov: bool }
    }
    entries {
        momentum_f32 { R = f32, I = i64, T = f32 } momentum_f64 { R = f64, I = i64, T = f64 }
        momentum_f32_f64 { R = f32, I = i64, T = f64 } momentum_f64_f32 { R = f64, I = i64, T = f32 }
    }
    body = momentum;
}

/// The scalars, if they are scalars and all tensors are of one length.
fn scalars<R: Real>(rate: &[R], t: &[i64], lens: &[usize]) -> Result<(f64, i64), Fault> {
    match (rate, t) {
        ([rate], [t]) if lens.windows(2).all(|w| w[0] == w[1]) => Ok((rate.get(), *t)),
        _ => Err(Fault::Descriptor),
    }
}

fn adagrad<R: Real, T: Real>(
    _: Isa,
    d: &Adagrad,
    rate: &[R],
    t: &[i64],
    x: &[T],
    g: &[T],
    h: &[T],
    x_new: &mut [T],
    h_new: &mut [T],
) -> Result<(), Fault> {
    let (rate, t) = scalars(rate, t, &[x.len(), g.len(), h.len(), x_new.len(), h_new.len()])?;
    let rate = rate / (1.0 + t as f64 * f64::from(d.decay));
    for i in 0..x.len() {
        let g = f64::from(d.norm) * x[i].get() + g[i].get();
        let h = h[i].get() + g * g;
        x_new[i] = T::put(x[i].get() - rate * g / (libm::sqrt(h) + f64::from(d.epsilon)));
        h_new[i] = T::put(h);
    }
    Ok(())
}

fn adam<R: Real, T: Real>(
    _: Isa,
    d: &Adam,
    rate: &[R],
    t: &[i64],
    x: &[T],
    g: &[T],
    v: &[T],
    h: &[T],
    x_new: &mut [T],
    v_new: &mut [T],
    h_new: &mut [T],
) -> Result<(), Fault> {
    let (rate, t) = scalars(rate, t, &[x.len(), g.len(), v.len(), h.len(), x_new.len(), v_new.len(), h_new.len()])?;
    let (alpha, beta) = (f64::from(d.alpha), f64::from(d.beta));
    let rate = if t > 0 {
        rate * libm::sqrt(1.0 - libm::pow(beta, t as f64)) / (1.0 - libm::pow(alpha, t as f64))
    } else {
        rate
    };
    for i in 0..x.len() {
        let g = f64::from(d.norm) * x[i].get() + g[i].get();
        let v = alpha * v[i].get() + (1.0 - alpha) * g;
        let h = beta * h[i].get() + (1.0 - beta) * g * g;
        let x = x[i].get() - rate * v / (libm::sqrt(h) + f64::from(d.epsilon));
        x_new[i] = T::put((1.0 - f64::from(d.norm_post)) * x);
        v_new[i] = T::put(v);
        h_new[i] = T::put(h);
    }
    Ok(())
}

fn momentum<R: Real, T: Real>(
    _: Isa,
    d: &Momentum,
    rate: &[R],
    t: &[i64],
    x: &[T],
    g: &[T],
    v: &[T],
    x_new: &mut [T],
    v_new: &mut [T],
) -> Result<(), Fault> {
    let (rate, t) = scalars(rate, t, &[x.len(), g.len(), v.len(), x_new.len(), v_new.len()])?;
    let alpha = f64::from(d.alpha);
    let beta = if t > 0 { f64::from(d.beta) } else { 1.0 };
    for i in 0..x.len() {
        let g = f64::from(d.norm) * x[i].get() + g[i].get();
        let v = alpha * v[i].get() + beta * g;
        let step = if d.nesterov { g + alpha * v } else { v };
        x_new[i] = T::put(x[i].get() - rate * step);
        v_new[i] = T::put(v);
    }
    Ok(())
}
