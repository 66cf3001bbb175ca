//! Writing ONNX files: fixtures and test data are made from the same messages that are read.
//!
//! In: a message of [`super::proto`]. Out: its bytes, the same for the same message.

use std::io;
use std::path::Path;

use prost::Message;

/// The bytes of any message.
pub fn encode(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

/// Writes a message to a file.
pub fn write(path: impl AsRef<Path>, message: &impl Message) -> io::Result<()> {
    std::fs::write(path, encode(message))
}
