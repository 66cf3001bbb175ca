//! Where generated crates find the crate `kiln`.
//!
//! `KILN_CRATE` names its folder; else the folder beside this compiler's own source, as in the repository; else the
//! release of the same version.

use crate::sha256;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The crate that generated modules are linked with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Kiln {
    /// Source in a folder.
    Folder {
        /// The folder.
        path: PathBuf,
        /// Changes when the source does.
        stamp: String,
    },
    /// A release.
    Release,
}

impl Kiln {
    /// Looks for it.
    pub(in crate::cli) fn find() -> Result<Self, String> {
        if let Some(path) = std::env::var_os("KILN_CRATE") {
            let path = PathBuf::from(path);
            if !path.join("Cargo.toml").is_file() {
                return Err(format!("KILN_CRATE is {}, which holds no Cargo.toml", path.display()));
            }
            return Ok(Self::folder(std::path::absolute(&path).unwrap_or(path)));
        }
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(|root| root.join("runtime-support"));
        Ok(match beside.filter(|path| path.join("Cargo.toml").is_file()) {
            Some(path) => Self::folder(path),
            None => Self::Release,
        })
    }

    fn folder(path: PathBuf) -> Self {
        let mut files = Vec::new();
        collect(&path, &mut files);
        files.sort();
        let mut text = String::new();
        for (file, len, modified) in &files {
            let _ = writeln!(text, "{} {len} {modified}", file.display());
        }
        Self::Folder { path, stamp: sha256(text.as_bytes()) }
    }

    /// The line in `[dependencies]`, with the features that the modules need beside `std`.
    pub(super) fn dependency(&self, features: &[&str]) -> String {
        let features = [&["std"], features].concat();
        let features = format!("default-features = false, features = {features:?}");
        match self {
            Self::Folder { path, .. } => format!("kiln = {{ path = {:?}, {features} }}", path.display().to_string()),
            Self::Release => format!("kiln = {{ version = \"={}\", {features} }}", env!("CARGO_PKG_VERSION")),
        }
    }

    /// What a binary depends on.
    pub(super) fn stamp(&self) -> &str {
        match self {
            Self::Folder { stamp, .. } => stamp,
            Self::Release => env!("CARGO_PKG_VERSION"),
        }
    }

    /// The lock file of the workspace the folder is in: the versions that are known to work, and are at hand.
    pub(super) fn lock_file(&self) -> Option<PathBuf> {
        let Self::Folder { path, .. } = self else { return None };
        path.ancestors().take(3).map(|a| a.join("Cargo.lock")).find(|p| p.is_file())
    }
}

fn collect(folder: &Path, files: &mut Vec<(PathBuf, u64, u128)>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() && entry.file_name() != "target" {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "toml") {
            let modified = meta.modified().ok().and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok());
            files.push((path, meta.len(), modified.map_or(0, |t| t.as_nanos())));
        }
    }
}
