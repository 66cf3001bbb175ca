//! Structure-aware fuzzing: seeds of our own making, mutations of decoded ONNX messages, and what must hold of any of them.
#![forbid(unsafe_code)]

pub mod check;
pub mod mutate;
pub mod seeds;
