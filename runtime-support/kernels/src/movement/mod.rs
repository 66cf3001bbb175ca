//! Data movement: copies between strided views, fills.
mod copy_nd;

pub use copy_nd::*;
