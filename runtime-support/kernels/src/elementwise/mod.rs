//! Element-wise kernels: unary functions, arithmetic with broadcasting, comparison, selection, clipping, conversion.
//!
//! In: operands as slices with extents and element strides (0 broadcasts); results are contiguous. Each may lie in the
//! memory of an operand that has its size (`alias`). Two forms: f32 arithmetic goes through whole vectors; other types
//! and rarer operations go through blocks of up to [`BLOCK`] elements in registers and L1, widened to the type they
//! compute in, with one small function per operation (`blocks.rs`).
mod binary;
mod binary_lanes;
mod blocks;
mod cast;
mod classify;
mod clip;
mod compare;
mod dropout;
mod scalar_math;
mod select;
mod unary;
mod unary_int;
mod unary_lanes;
pub(crate) mod walk;

pub use walk::BROADCAST_RANK;

pub use binary::*;
pub use blocks::BLOCK;
pub use cast::*;
pub use classify::*;
pub use clip::*;
pub use compare::*;
pub use dropout::*;
pub use select::*;
pub use unary::*;
pub use unary_int::*;
