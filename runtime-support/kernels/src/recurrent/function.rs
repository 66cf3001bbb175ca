//! The activation functions of recurrent cells.
//!
//! In: a row of a gate. Out: the function of it, in place, after clipping to ±clip where that is finite.
//! Source: the table of <https://onnx.ai/onnx/operators/onnx__LSTM.html>.

use crate::simd::{F32x16, LANES, Simd, math};
use crate::{Isa, Literal, param_enum, simd_fn};
use core::fmt;

param_enum! {
    /// Which function.
    pub enum CellFunction {
        /// `max(x, 0)`
        Relu,
        /// `tanh(x)`
        Tanh,
        /// `1 / (1 + exp(-x))`
        Sigmoid,
        /// `alpha·x + beta`
        Affine,
        /// `x < 0 ? alpha·x : x`
        LeakyRelu,
        /// `x >= alpha ? x : 0`
        ThresholdedRelu,
        /// `alpha·tanh(beta·x)`
        ScaledTanh,
        /// `clip(alpha·x + beta, 0, 1)`
        HardSigmoid,
        /// `x < 0 ? alpha·(exp(x) - 1) : x`
        Elu,
        /// `x / (1 + |x|)`
        Softsign,
        /// `ln(1 + exp(x))`
        Softplus,
    }
}

/// A function with its parameters; those it does not use do not matter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellActivation {
    /// Which function.
    pub function: CellFunction,
    /// Its first parameter.
    pub alpha: f32,
    /// Its second parameter.
    pub beta: f32,
}

impl Literal for CellActivation {
    fn literal(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str("k::CellActivation { function: ")?;
        self.function.literal(out)?;
        out.write_str(", alpha: ")?;
        self.alpha.literal(out)?;
        out.write_str(", beta: ")?;
        self.beta.literal(out)?;
        out.write_str(" }")
    }
}

macro_rules! by_function {
    ($f:expr, $go:ident: $($name:ident)*) => {
        // A literal function lets the compiler drop the other arms.
        match $f { $(CellFunction::$name => $go!(CellFunction::$name)),* }
    };
}

simd_fn! {
    /// Applies the function in place, to `x` clipped to ±`clip`.
    pub(super) fn apply_f32<S>(s, f: CellActivation, clip: f32, x: &mut [f32]) {
        macro_rules! go {
            ($function:expr) => {
                for at in (0..x.len()).step_by(LANES) {
                    let v = s.load_slice(x, at);
                    let v = if clip < f32::INFINITY { s.splat(-clip).max(s.splat(clip).min(v)) } else { v };
                    vector(s, CellActivation { function: $function, ..f }, v).store_slice(x, at);
                }
            };
        }
        by_function!(f.function, go: Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign Softplus)
    }
}

#[inline(always)]
fn vector<S: Simd>(s: S, f: CellActivation, x: S::F32) -> S::F32 {
    let (a, b, zero, one) = (s.splat(f.alpha), s.splat(f.beta), s.zero(), s.splat(1.0));
    match f.function {
        CellFunction::Relu => zero.max(x),
        CellFunction::Tanh => math::tanh(x),
        CellFunction::Sigmoid => math::sigmoid(x),
        CellFunction::Affine => x.fma(a, b),
        CellFunction::LeakyRelu => S::F32::select(x.lt(zero), a * x, x),
        CellFunction::ThresholdedRelu => S::F32::select(x.lt(a), zero, x),
        CellFunction::ScaledTanh => a * math::tanh(b * x),
        CellFunction::HardSigmoid => one.min(zero.max(x.fma(a, b))),
        CellFunction::Elu => S::F32::select(x.lt(zero), a * (math::exp_from(x) - one), x),
        CellFunction::Softsign => x / (one + x.abs()),
        // max(x, 0) + ln(1 + e^-|x|) does not overflow.
        CellFunction::Softplus => zero.max(x) + math::log(one + math::exp_flushed(-x.abs())),
    }
}

/// As [`apply_f32`].
pub(super) fn apply_f64(_: Isa, f: CellActivation, clip: f32, x: &mut [f64]) {
    let (a, b, clip) = (f64::from(f.alpha), f64::from(f.beta), f64::from(clip));
    for v in x {
        let x = v.max(-clip).min(clip);
        *v = match f.function {
            CellFunction::Relu => x.max(0.0),
            CellFunction::Tanh => libm::tanh(x),
            CellFunction::Sigmoid => 1.0 / (1.0 + libm::exp(-x)),
            CellFunction::Affine => a * x + b,
            CellFunction::LeakyRelu => {
                if x < 0.0 {
                    a * x
                } else {
                    x
                }
            }
            CellFunction::ThresholdedRelu => {
                if x < a {
                    0.0
                } else {
                    x
                }
            }
            CellFunction::ScaledTanh => a * libm::tanh(b * x),
            CellFunction::HardSigmoid => (a * x + b).clamp(0.0, 1.0),
            CellFunction::Elu => {
                if x < 0.0 {
                    a * (libm::exp(x) - 1.0)
                } else {
                    x
                }
            }
            CellFunction::Softsign => x / (1.0 + x.abs()),
            CellFunction::Softplus => x.max(0.0) + libm::log1p(libm::exp(-x.abs())),
        };
    }
}
