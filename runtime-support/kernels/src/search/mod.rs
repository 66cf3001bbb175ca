//! Kernels that look for elements by their order: ArgMax, ArgMin, TopK.

mod arg;
mod order;
mod range;
mod top_k;

pub use arg::*;
pub use order::*;
pub use range::*;
pub use top_k::*;
