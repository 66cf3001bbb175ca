//! Activations: the element-wise functions that fused kernels apply in their epilogue.

use crate::Literal;
use core::fmt;

/// An activation with its parameters. Definitions: the ONNX operator pages of the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// `x`
    #[default]
    None,
    /// `max(x, 0)`
    Relu,
    /// `min(max(x, lo), hi)`
    Clip {
        /// Lower bound.
        lo: f32,
        /// Upper bound.
        hi: f32,
    },
    /// `x < 0 ? alpha·x : x`
    LeakyRelu {
        /// Slope below zero.
        alpha: f32,
    },
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `x · sigmoid(x)`
    Silu,
    /// `tanh(x)`
    Tanh,
    /// `x/2 · (1 + erf(x/√2))`
    Gelu,
    /// `x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`
    GeluTanh,
    /// `x · clip(x/6 + 1/2, 0, 1)`
    HardSwish,
    /// `clip(alpha·x + beta, 0, 1)`
    HardSigmoid {
        /// Slope.
        alpha: f32,
        /// Offset.
        beta: f32,
    },
}

impl Literal for Activation {
    fn literal(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str("k::Activation::")?;
        let mut fields = |name: &str, fields: &[(&str, f32)]| {
            out.write_str(name)?;
            for (i, (field, value)) in fields.iter().enumerate() {
                write!(out, "{}{field}: ", if i == 0 { " { " } else { ", " })?;
                value.literal(out)?;
            }
            out.write_str(if fields.is_empty() { "" } else { " }" })
        };
        match *self {
            Self::None => fields("None", &[]),
            Self::Relu => fields("Relu", &[]),
            Self::Clip { lo, hi } => fields("Clip", &[("lo", lo), ("hi", hi)]),
            Self::LeakyRelu { alpha } => fields("LeakyRelu", &[("alpha", alpha)]),
            Self::Sigmoid => fields("Sigmoid", &[]),
            Self::Silu => fields("Silu", &[]),
            Self::Tanh => fields("Tanh", &[]),
            Self::Gelu => fields("Gelu", &[]),
            Self::GeluTanh => fields("GeluTanh", &[]),
            Self::HardSwish => fields("HardSwish", &[]),
            Self::HardSigmoid { alpha, beta } => fields("HardSigmoid", &[("alpha", alpha), ("beta", beta)]),
        }
    }
}
