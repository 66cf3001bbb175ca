//! Part of Kiln.
#![forbid(unsafe_code)]

pub mod error;
pub mod onnx;

pub use error::{CompileError, CompileErrors, Stage};
