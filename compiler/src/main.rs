//! The kilnc command.
#![forbid(unsafe_code)]
fn main() {}
