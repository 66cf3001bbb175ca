//! Matrix products: C = activation(A·B + bias + residual), for f32 over packed or plain B, one or many at once,
//! and for 8-bit integers.
//!
//! - [`params`]: the problem as plain data, its checks, its work units;
//! - [`pack`]: B in panels of 16 columns, offline or into scratch;
//! - [`tile`]: the microkernels, one per tile size and instruction set; `tall`: AVX-512's largest ones;
//! - [`mod@f32`]: the loops around them;
//! - [`int8`]: 8-bit integers, exact;
//! - [`generic`]: any numeric type, plain loops;
//! - [`kernel`]: the descriptors of both.
//!
//! Invariant: an element of C is `bias + residual`, then the products in order of k, each added by `F32x16::fma`. Neither
//! tile, blocking nor split over streams changes that order, so they do not change a bit of the result.

pub mod f32;
pub mod generic;
pub mod int8;
pub mod kernel;
pub mod pack;
pub mod params;
pub mod scale_add;
#[cfg(target_arch = "x86_64")]
mod tall;
pub mod tile;

pub use f32::{Residual, product_f32, product_f32_units};
pub use generic::matmul_generic;
pub use kernel::*;
#[cfg(feature = "alloc")]
pub use pack::pack_b;
pub use pack::{pack_b_into, packed_len};
pub use params::{BLayout, GemmParams};
pub use scale_add::*;
