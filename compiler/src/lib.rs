//! Part of Kiln.
#![forbid(unsafe_code)]

pub mod memory;
