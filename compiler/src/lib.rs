//! Kiln's compiler.
#![forbid(unsafe_code)]

pub mod error;
pub mod exec;
pub mod ir;
pub mod lower;
pub mod ops;
pub mod passes;
