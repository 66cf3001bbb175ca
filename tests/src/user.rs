//! A user's crate: models included both ways, without `unsafe` and without a warning.
#![forbid(unsafe_code)]
#![deny(warnings, missing_docs, clippy::all)]

kiln::include_model!(pub mod affine = "../fixtures/models/affine/model.onnx");
kiln::include_model!(pub mod names = "../fixtures/models/tiny_names/model.onnx", target = "host", streams = 1);
kiln::include_model!(
    pub mod rows = "../fixtures/models/rows/model.onnx",
    dims(rows = 2),
    weights = embed,
);
// Free extents: one module for every size in range.
kiln::include_model!(
    pub mod encoder = "../fixtures/models/encoder_dynamic/model.onnx",
    dims(batch = 1..=2, sequence = 1..=16),
);
kiln::include_model!(
    pub mod running = "../fixtures/models/running/model.onnx",
    dims(seen = 0..=40),
    state(present = past, h_next = h),
);
kiln::include_model!(
    pub mod cache = "../fixtures/models/cache/model.onnx",
    dims(batch = 1..=2, seen = 0..=24),
    state(present.* = past.*),
);
kiln::include_model!(pub mod affine_from_file = "../fixtures/models/affine/model.onnx", weights = file);
kiln::include_model!(
    pub mod affine_measured = "../fixtures/models/affine/model.onnx",
    arenas = branch,
    profile = "src/affine_times.json",
);
kiln::include_model!(
    pub mod half = "../fixtures/models/half/model.onnx",
    streams = 2,
    budget = 1_000_000_000,
);
kiln::include_model!(
    pub mod half_from_file = "../fixtures/models/half/model.onnx",
    streams = 2,
    budget = 1_000_000_000,
    weights = file,
);
kiln::include_compiled!("model");
kiln::include_compiled!(pub mod affine_built = "model");

/// The module that the build script wrote.
pub const BUILT_SOURCE: &str = include_str!(concat!(env!("OUT_DIR"), "/model.rs"));
/// Its weights.
pub const BUILT_WEIGHTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/model.weights"));

/// The size of the arena of the module with the file's name.
pub const ARENA_BYTES: usize = model::Model::ARENA_BYTES;
