//! Kernels that move elements without computing on them, keyed by element width.

mod append;
mod compress;
mod copy_nd;
mod gather;
mod gather_nd;
mod index;
mod pad_at;
mod run_time_ints;
mod slice_at;
mod store_ints;
mod transfer;

pub use append::*;
pub use compress::*;
pub use copy_nd::*;
pub use gather::*;
pub(crate) use gather_nd::tuple_position;
pub use gather_nd::*;
pub use index::IndexElem;
pub(crate) use index::{holds, product};
pub use pad_at::*;
pub use run_time_ints::*;
pub use slice_at::*;
pub use store_ints::*;
pub use transfer::*;
