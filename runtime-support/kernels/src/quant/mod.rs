//! Quantised arithmetic: conversion between floats and integers with scales, products of 8-bit integers.
//!
//! `real = (quantised − zero) · scale`. Products are summed exactly in `i32` (wrapping, as ONNX's integer operators do) on
//! every instruction set; rounding is to nearest, ties to even, then saturation.

mod conv;
mod dequantize;
mod dynamic;
mod matmul;
mod quantize;
mod requantize;
mod scales;

pub use conv::*;
pub use dequantize::*;
pub use dynamic::*;
pub use matmul::*;
pub use quantize::*;
pub use requantize::*;
pub use scales::Precision;
