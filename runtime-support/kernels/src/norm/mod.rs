//! Softmax and the normalisations.

mod batch_norm;
mod group_norm;
mod hardmax;
mod layer_norm;
mod softmax;
mod stats;

pub use batch_norm::*;
pub use group_norm::*;
pub use hardmax::*;
pub use layer_norm::*;
pub use softmax::*;
