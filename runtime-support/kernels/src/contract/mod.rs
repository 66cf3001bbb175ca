//! Contractions of two tensors by strides, and determinants.

mod det;
mod nd;

pub use det::*;
pub use nd::*;
