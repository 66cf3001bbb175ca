//! Kernels that look for elements by their value: ArgMax, ArgMin, TopK, NonZero, Unique, NonMaxSuppression; Range.

mod arg;
mod nms;
mod nonzero;
mod order;
mod range;
mod top_k;
mod unique;

pub use arg::*;
pub use nms::*;
pub use nonzero::*;
pub use order::*;
pub use range::*;
pub use top_k::*;
pub use unique::*;
