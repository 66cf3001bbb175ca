//! RandomUniform and RandomNormal.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__RandomNormal.html>

use super::uniform;
use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y[i]` evenly in `a .. b`, or, if `normal`, with mean `a` and deviation `b` (Box and Muller's transform).
    pub struct RandomFill {
        operands { write y: T }
        nums { n }
        params { normal: bool, a: f64, b: f64, seed: u64 }
    }
    entries {
        random_fill_f32 { T = f32 } random_fill_f64 { T = f64 } random_fill_f16 { T = f16 } random_fill_bf16 { T = bf16 }
    }
    body = random_fill;
}

/// Floats that f64 rounds to.
trait FromF64 {
    fn from_f64(v: f64) -> Self;
}

impl FromF64 for f32 {
    fn from_f64(v: f64) -> Self {
        v as f32
    }
}

impl FromF64 for f64 {
    fn from_f64(v: f64) -> Self {
        v
    }
}

impl FromF64 for f16 {
    fn from_f64(v: f64) -> Self {
        f16::from_f64(v)
    }
}

impl FromF64 for bf16 {
    fn from_f64(v: f64) -> Self {
        bf16::from_f64(v)
    }
}

fn random_fill<T: FromF64>(_: Isa, d: &RandomFill, y: &mut [T]) -> Result<(), Fault> {
    let RandomFill { normal, a, b, seed, .. } = *d;
    for (i, y) in y.get_mut(..d.n).ok_or(Fault::Descriptor)?.iter_mut().enumerate() {
        *y = T::from_f64(if normal {
            // 1 - u is not zero, so its logarithm is finite.
            let radius = libm::sqrt(-2.0 * libm::log(1.0 - uniform(seed, 2 * i)));
            a + b * radius * libm::cos(core::f64::consts::TAU * uniform(seed, 2 * i + 1))
        } else {
            a + (b - a) * uniform(seed, i)
        });
    }
    Ok(())
}
