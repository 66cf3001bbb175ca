//! What generated modules call: memory of a model, its border, its errors.
//!
//! Generated code is the only user; the names are stable within one [`ABI`].

#[cfg(feature = "ndarray")]
mod arrays;
mod border;
mod budget;
mod error;
#[cfg(feature = "std")]
mod events;
mod extents;
mod instance;
#[cfg(feature = "alloc")]
mod objects;
#[cfg(feature = "std")]
mod pages;
mod profile;
mod weights;
#[cfg(feature = "std")]
mod workers;

#[cfg(feature = "ndarray")]
pub use arrays::fixed;
pub use border::{
    Element, RawInput, Region, ReservedView, TensorView, bytes_of, gathered, raw_input, raw_shape, raw_state_shape,
    raw_view, reserved, state_bytes, view, within,
};
pub use budget::{free_budget_bytes, widest_within};
pub use error::{Error, WeightsFault, WeightsPlace};
pub use extents::{bind, broadcast, expect_extent, expect_rank, extent, extents, floor_div, modulo};
pub use instance::{Instance, StateInfo};
#[cfg(feature = "alloc")]
pub use objects::{raw_object, strings};
pub use profile::Profile;
#[cfg(feature = "std")]
pub use std::path::Path;
pub use weights::Weights;
#[cfg(feature = "std")]
pub use weights::WeightsFile;

/// One stream of a generated module. `None`: it ended early, because the run has failed.
pub type Stream = fn(&kiln_kernels::Cx<'_>) -> Option<()>;

/// Version of the interface between generated modules and this crate.
pub const ABI: u32 = 4;

/// Refuses, at compile time, a module made for another version of this crate.
pub const fn require_abi(abi: u32) {
    assert!(abi == ABI, "this module was generated for another version of kiln: compile the model again");
}

/// Refuses, at compile time, a module that decodes images while the feature `image` is off.
#[allow(clippy::assertions_on_constants, reason = "only a module that decodes images calls it")]
pub const fn require_image() {
    assert!(cfg!(feature = "image"), "this model decodes images: enable the feature `image` of the crate kiln");
}

/// Refuses, at compile time, a module that matches patterns while the feature `regex` is off.
#[allow(clippy::assertions_on_constants, reason = "only a module that matches patterns calls it")]
pub const fn require_regex() {
    assert!(cfg!(feature = "regex"), "this model matches patterns: enable the feature `regex` of the crate kiln");
}

/// A graph input or output: name, element type, extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The ONNX name.
    pub name: &'static str,
    /// Element type, as in `f32`, `i64`, `bool`; the whole type of a value that is no tensor of numbers.
    pub dtype: &'static str,
    /// Extents, outermost first; the greatest possible ones where they are known only at run time.
    pub dims: &'static [usize],
}

/// A value on a 64-byte boundary.
#[repr(C, align(64))]
pub struct Aligned<T>(pub T);
