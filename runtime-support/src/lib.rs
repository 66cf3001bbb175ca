//! Runtime support for models that Kiln compiled ahead of time.
//!
//! Users write [`include_model!`] or [`include_compiled!`] and get a module with `Model`, `Inputs` and `Outputs`. What such a
//! module needs beside its own code is here: memory ([`rt::Instance`]), the kernels ([`kernels`]), the weights in the
//! binary ([`embed_weights!`]).
//!
//! Features: `std` and `macros` (default), `alloc`, `image` (models with the operator ImageDecoder). Without `alloc` a model runs in memory that the caller gives
//! ([`StaticArena`]).
#![no_std]
#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod arena;
mod embed;
#[cfg(feature = "std")]
pub mod npu;
pub mod rt;

pub use arena::StaticArena;
#[doc(hidden)]
pub use core::arch::global_asm as __global_asm;
#[doc(hidden)]
pub use kiln_kernels as kernels;
#[cfg(feature = "macros")]
pub use kiln_macros::include_model;
pub use rt::{Error, PortInfo, TensorView};
