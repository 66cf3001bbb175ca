//! Losses, and the steps of optimisers.

mod nll;
mod optimizer;

pub use nll::*;
pub use optimizer::*;
