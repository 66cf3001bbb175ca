//! Compiles a model the second way, in a build script, and lists what emission may name in `kiln-kernels` as imports.

#[path = "src/exports.rs"]
mod exports;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    kiln_compiler::Config::new().target("host").streams(1).compile("../fixtures/models/affine/model.onnx")?;
    let mut names = BTreeSet::new();
    let kernels = Path::new("../runtime-support/kernels/src");
    println!("cargo:rerun-if-changed={}", kernels.display());
    exports::collect(kernels, &mut names);
    let imports: String = names.iter().map(|name| format!("pub use kiln_kernels::{name};\n")).collect();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    Ok(std::fs::write(out.join("exports.rs"), imports)?)
}
