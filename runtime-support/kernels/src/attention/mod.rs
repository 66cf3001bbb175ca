//! Scaled dot-product attention, rotary position embedding, masks.

mod cache;
mod core;
mod definition;
mod embed;
mod f32;
mod linear;
mod mask;
mod rotary;

pub use self::core::*;
pub use cache::*;
pub use embed::*;
pub use linear::*;
pub use mask::*;
pub use rotary::*;
