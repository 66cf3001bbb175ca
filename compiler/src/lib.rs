//! Part of Kiln.
#![forbid(unsafe_code)]

pub mod error;

pub use error::{CompileError, CompileErrors, Stage};
