//! Bernoulli and Multinomial: draws by given probabilities.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__Bernoulli.html>, <https://onnx.ai/onnx/operators/onnx__Multinomial.html>

use super::uniform;
use crate::movement::holds;
use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y[i] = one[0]` with probability `x[i]`, else 0.
    pub struct Bernoulli {
        operands { read x: T, read one: U, write y: U }
        nums { n }
        params { seed: u64 }
    }
    entries {
        bernoulli_f32_b8 { T = f32, U = u8 } bernoulli_f32_b16 { T = f32, U = u16 }
        bernoulli_f32_b32 { T = f32, U = u32 } bernoulli_f32_b64 { T = f32, U = u64 }
        bernoulli_f64_b8 { T = f64, U = u8 } bernoulli_f64_b16 { T = f64, U = u16 }
        bernoulli_f64_b32 { T = f64, U = u32 } bernoulli_f64_b64 { T = f64, U = u64 }
        bernoulli_f16_b8 { T = f16, U = u8 } bernoulli_f16_b16 { T = f16, U = u16 }
        bernoulli_f16_b32 { T = f16, U = u32 } bernoulli_f16_b64 { T = f16, U = u64 }
        bernoulli_bf16_b8 { T = bf16, U = u8 } bernoulli_bf16_b16 { T = bf16, U = u16 }
        bernoulli_bf16_b32 { T = bf16, U = u32 } bernoulli_bf16_b64 { T = bf16, U = u64 }
    }
    body = bernoulli;
}

kernel! {
    /// `y[b, s]` = a class of batch `b`, drawn by probabilities whose logarithms are `x[b, :]` up to a constant.
    pub struct Multinomial {
        operands { read x: T, write y: I }
        nums { batch, classes, samples }
        params { seed: u64 }
    }
    entries {
        multinomial_f32_i32 { T = f32, I = i32 } multinomial_f32_i64 { T = f32, I = i64 }
        multinomial_f64_i32 { T = f64, I = i32 } multinomial_f64_i64 { T = f64, I = i64 }
        multinomial_f16_i32 { T = f16, I = i32 } multinomial_f16_i64 { T = f16, I = i64 }
        multinomial_bf16_i32 { T = bf16, I = i32 } multinomial_bf16_i64 { T = bf16, I = i64 }
    }
    body = multinomial;
}

/// Floats as f64.
trait ToF64: Copy {
    fn to_f64(self) -> f64;
}

impl ToF64 for f32 {
    fn to_f64(self) -> f64 {
        self.into()
    }
}

impl ToF64 for f64 {
    fn to_f64(self) -> f64 {
        self
    }
}

impl ToF64 for f16 {
    fn to_f64(self) -> f64 {
        self.to_f32().into()
    }
}

impl ToF64 for bf16 {
    fn to_f64(self) -> f64 {
        self.to_f32().into()
    }
}

fn bernoulli<T: ToF64, U: Copy + Default>(_: Isa, d: &Bernoulli, x: &[T], one: &[U], y: &mut [U]) -> Result<(), Fault> {
    let (Some(x), Some(&one), Some(y)) = (x.get(..d.n), one.first(), y.get_mut(..d.n)) else {
        return Err(Fault::Descriptor);
    };
    for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
        *y = if uniform(d.seed, i) < x.to_f64() { one } else { U::default() };
    }
    Ok(())
}

fn multinomial<T: ToF64, I: TryFrom<usize>>(_: Isa, d: &Multinomial, x: &[T], y: &mut [I]) -> Result<(), Fault> {
    let Multinomial { batch, classes, samples, seed, .. } = *d;
    if !holds(x.len(), &[batch, classes]) || !holds(y.len(), &[batch, samples]) {
        return Err(Fault::Descriptor);
    }
    if classes == 0 && batch * samples > 0 {
        return Err(Fault::ShapeMismatch);
    }
    for b in 0..batch {
        let x = &x[b * classes..(b + 1) * classes];
        let most = x.iter().map(|v| v.to_f64()).fold(f64::NEG_INFINITY, |a, v| if v > a { v } else { a });
        let weight = |v: &T| libm::exp(v.to_f64() - most);
        let total: f64 = x.iter().map(weight).sum();
        for s in 0..samples {
            let mut left = uniform(seed, b * samples + s) * total;
            let chosen = x.iter().position(|v| {
                left -= weight(v);
                left < 0.0
            });
            let class = I::try_from(chosen.unwrap_or(classes - 1)).map_err(|_| Fault::BoundExceeded)?;
            y[b * samples + s] = class;
        }
    }
    Ok(())
}
