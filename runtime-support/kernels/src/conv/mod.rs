//! Convolutions: direct ones over channels in blocks of 16, depthwise ones, and generic ones over plain layouts.
mod band;
mod blocked;
mod causal;
mod depthwise;

mod geometry;
mod layout;
#[cfg(feature = "alloc")]
mod pack;
mod plain;
mod reference;
mod rows;
mod sweep;
#[cfg(target_arch = "x86_64")]
mod tall;
#[cfg(all(test, feature = "alloc"))]
pub(crate) mod tests;
mod tile;
mod transpose;
mod winograd;

pub use blocked::*;
pub use causal::*;
pub use depthwise::*;
pub use geometry::{
    ConvShape, conv_blocked_scratch_bound, conv_blocked_scratch_bytes, conv_blocked_units, conv_first_scratch_bound,
    conv_first_scratch_bytes, conv_first_units,
};
pub use layout::*;
#[cfg(feature = "alloc")]
pub use pack::*;
pub use plain::*;
pub use reference::*;
pub use transpose::*;
pub use winograd::*;
