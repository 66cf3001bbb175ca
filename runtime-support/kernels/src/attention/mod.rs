//! Scaled dot-product attention, rotary position embedding, masks.

mod cache;
mod core;
mod definition;
mod embed;
mod f32;
mod linear;
mod mask;
mod rotary;

/// As a scale: 1 / √head size, whatever that is in the run.
pub const DEFAULT_SCALE: f32 = f32::NAN;

/// A scale, or the default for heads of `size` elements.
fn scale_or_default(scale: f32, size: usize) -> f32 {
    if scale.is_nan() { (1.0 / libm::sqrt(size.max(1) as f64)) as f32 } else { scale }
}

pub use self::core::*;
pub use cache::*;
pub use embed::*;
pub use linear::*;
pub use mask::*;
pub use rotary::*;
