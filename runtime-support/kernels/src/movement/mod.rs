//! Kernels that move elements without computing on them, keyed by element width.

mod copy_nd;
mod gather;
mod gather_nd;
mod index;
mod store_ints;

pub use copy_nd::*;
pub use gather::*;
pub use gather_nd::*;
pub use index::IndexElem;
pub(crate) use index::holds;
pub use store_ints::*;
