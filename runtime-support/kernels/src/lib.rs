//! Part of Kiln.
#![no_std]
