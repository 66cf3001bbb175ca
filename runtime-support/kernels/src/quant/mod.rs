//! Quantised arithmetic: conversion between floats and integers with scales, products of 8-bit integers.
//!
//! `real = (quantised − zero) · scale`. Products are summed exactly in `i32` (wrapping, as ONNX's integer operators do) on
//! every instruction set; rounding is to nearest, ties to even, then saturation.

mod average;
mod binary;
mod conv;
mod conv_blocked;
mod conv_tile;
#[cfg(target_arch = "x86_64")]
mod conv_wide;
mod depthwise;
#[cfg(target_arch = "x86_64")]
mod depthwise_wide;
mod dequantize;
mod dynamic;
mod layout;
mod matmul;
#[cfg(feature = "alloc")]
mod pack;
mod pool;
mod quantize;
mod requantize;
mod scales;
mod table;
#[cfg(all(test, feature = "alloc"))]
mod tests_conv;

pub use average::*;
pub use binary::*;
pub use conv::*;
pub use conv_blocked::*;
pub use depthwise::*;
pub use dequantize::*;
pub use dynamic::*;
pub use layout::*;
pub use matmul::*;
#[cfg(feature = "alloc")]
pub use pack::*;
pub use pool::*;
pub use quantize::*;
pub use requantize::*;
pub use scales::Precision;
pub use table::*;
