//! Kernels that move elements without computing on them, keyed by element width.

mod copy_nd;
mod gather;
mod index;
mod store_ints;

pub use copy_nd::*;
pub use gather::*;
pub use index::*;
pub use store_ints::*;
