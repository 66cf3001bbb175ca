//! Gives the compiler an identity: a hash of its own source and of the kernels' (which pack and fold), so that nothing
//! made by another version is ever taken from a cache. No path and no time stamp goes into it.

use std::path::{Path, PathBuf};

fn main() {
    let mut files = Vec::new();
    for folder in ["src", "../runtime-support/kernels/src"] {
        if Path::new(folder).is_dir() {
            println!("cargo:rerun-if-changed={folder}");
            collect(Path::new(folder), &mut files);
        }
    }
    files.sort();
    let mut hash = Fnv::default();
    for file in files {
        hash.update(file.to_string_lossy().replace('\\', "/").as_bytes());
        hash.update(&std::fs::read(&file).unwrap_or_default());
    }
    println!("cargo:rustc-env=KILN_SOURCE_HASH={:032x}", hash.0);
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

/// FNV-1a of 128 bits.
struct Fnv(u128);

impl Default for Fnv {
    fn default() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv {
    fn update(&mut self, bytes: &[u8]) {
        for &b in bytes.iter().chain(&(bytes.len() as u64).to_le_bytes()) {
            self.0 = (self.0 ^ u128::from(b)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}
