//! What a convolution's or pool's epilogue needs of activations.

use crate::{Activation, Isa};

/// The limits, where the function is nothing but a clamp: those are applied in registers.
pub(crate) fn as_clamp(f: Activation) -> Option<(f32, f32)> {
    match f {
        Activation::None => Some((f32::NEG_INFINITY, f32::INFINITY)),
        Activation::Relu => Some((0.0, f32::INFINITY)),
        Activation::Clip { lo, hi } => Some((lo, hi)),
        _ => None,
    }
}
