//! Softmax and the normalisations.

mod batch_norm;
mod group_norm;
mod hardmax;
mod layer_norm;
mod lp;
mod lrn;
mod softmax;
pub(crate) mod stats;

pub use batch_norm::*;
pub use group_norm::*;
pub use hardmax::*;
pub use layer_norm::*;
pub use lp::*;
pub use lrn::*;
pub use softmax::*;
