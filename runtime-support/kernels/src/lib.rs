//! The kernels behind modules that Kiln generates: plain functions over slices, without std and without allocation.
//!
//! In: slices and plain-data parameters whose bounds each kernel checks at entry, and an [`isa::Isa`] made once when a
//! model starts. Out: the slices written. Nothing here allocates, locks or prints (packing offline: feature `alloc`).
#![no_std]

#[cfg(feature = "alloc")]
extern crate alloc;

pub mod activation;
pub mod gemm;
pub mod isa;
pub mod simd;
