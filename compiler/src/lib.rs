//! Part of Kiln.
#![forbid(unsafe_code)]
