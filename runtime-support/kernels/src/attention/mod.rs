//! Scaled dot-product attention, rotary position embedding, masks.

mod core;
mod f32;
mod f64;
mod mask;
mod rotary;

pub use self::core::*;
pub use mask::*;
pub use rotary::*;
