//! Runtime support for models that Kiln compiled ahead of time.
//!
//! Users write [`include_model!`] or [`include_compiled!`] and get a module with `Model`, `Inputs` and `Outputs`. What such a
//! module needs beside its own code is here: memory ([`rt::Instance`]), the kernels ([`kernels`]), the weights in the
//! binary ([`embed_weights!`]).
//!
//! Features: `std` and `macros` (default), `alloc`, `image` (models with the operator ImageDecoder), `regex` (RegexFullMatch),
//! `ndarray` (its views in and out), `profile` (`Model::profile`). Without `alloc` a model runs in memory that the caller gives
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
/// A value that is no tensor of numbers: strings, a sequence, an optional value. Inputs and outputs of such types are
/// references to it; feature `alloc`.
#[cfg(feature = "alloc")]
pub use kiln_kernels::Object as Value;
#[cfg(feature = "alloc")]
pub use kiln_kernels::{Dtype, Element, Strings, TensorObject};
#[cfg(feature = "macros")]
pub use kiln_macros::include_model;
#[cfg(feature = "ndarray")]
pub use ndarray;
#[cfg(feature = "ndarray")]
pub use rt::fixed;
pub use rt::{Error, PortInfo, Profile, ReservedView, TensorView, WeightsFault, WeightsPlace};

/// Refuses, at compile time, a module with strings, sequences or optional values while the feature `alloc` is off.
#[cfg(feature = "alloc")]
#[doc(hidden)]
#[macro_export]
macro_rules! require_objects {
    () => {};
}

/// Refuses, at compile time, a module with strings, sequences or optional values while the feature `alloc` is off.
#[cfg(not(feature = "alloc"))]
#[doc(hidden)]
#[macro_export]
macro_rules! require_objects {
    () => {
        compile_error!(
            "this model has strings, sequences or optional values: enable the feature `alloc` of the crate kiln"
        );
    };
}
