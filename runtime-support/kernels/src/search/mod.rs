//! Kernels that look for elements by their value: ArgMax, ArgMin, TopK, NonZero, Unique, NonMaxSuppression,
//! TfIdfVectorizer; Range.

mod arg;
mod n_grams;
mod nms;
mod nonzero;
mod order;
mod range;
mod top_k;
mod unique;

pub use arg::*;
pub use n_grams::*;
pub use nms::*;
pub use nonzero::*;
pub use order::*;
pub use range::*;
pub use top_k::*;
pub use unique::*;
