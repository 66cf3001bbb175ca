//! Resize: interpolation along axes, one axis a pass, from tables of source positions and weights.
//!
//! A table is made offline where sizes are constant, else by a kernel of its own. Source of all definitions:
//! <https://onnx.ai/onnx/operators/onnx__Resize.html> and its reference implementation.

mod interpolate;
mod nearest;
pub(crate) mod sample;
mod table;

pub use interpolate::*;
pub use nearest::*;
pub use table::*;
