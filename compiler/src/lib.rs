//! Kiln's compiler.
#![forbid(unsafe_code)]

pub mod emit;
pub mod error;
pub mod exec;
pub mod import;
pub mod ir;
pub mod lower;
pub mod memory;
pub mod onnx;
pub mod ops;
pub mod passes;
pub mod program;
pub mod verify;
