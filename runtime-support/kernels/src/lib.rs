//! Part of Kiln.
#![no_std]

pub mod dtype;

pub use dtype::Dtype;
