//! Keeps a cache folder from growing without end: what was not used for longest goes first.
//!
//! In: folders whose entries can be made again. Out: entries removed until the rest fits. Nothing younger than an hour goes,
//! so no build loses what it has just found. Time of use is the entry's own time stamp, renewed by [`touch`].

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Bytes that a cache may keep, unless `KILN_CACHE_BYTES` says otherwise.
const DEFAULT_BYTES: u64 = 8 << 30;
const SAFE: Duration = Duration::from_secs(3600);

/// Marks a file as used now.
pub(crate) fn touch(file: &Path) {
    // A cache that cannot be written to still works; only what goes first is then a guess.
    let _ = std::fs::File::open(file).and_then(|f| f.set_modified(SystemTime::now()));
}

/// Removes entries (files, or folders as a whole) of these folders until all fit.
pub(crate) fn prune(folders: &[PathBuf]) {
    let limit = std::env::var("KILN_CACHE_BYTES").ok().and_then(|n| n.parse().ok()).unwrap_or(DEFAULT_BYTES);
    let mut entries: Vec<(SystemTime, u64, PathBuf)> = folders
        .iter()
        .filter_map(|f| std::fs::read_dir(f).ok())
        .flatten()
        .flatten()
        .filter_map(|e| used(&e.path()))
        .collect();
    let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
    entries.sort();
    for (time, bytes, path) in entries {
        if total <= limit || SystemTime::now().duration_since(time).is_ok_and(|age| age < SAFE) {
            return;
        }
        let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        if removed.is_ok() {
            total -= bytes;
        }
    }
}

/// When an entry was last used, and its size.
fn used(path: &Path) -> Option<(SystemTime, u64, PathBuf)> {
    let meta = std::fs::metadata(path).ok()?;
    if meta.is_file() {
        return Some((meta.modified().ok()?, meta.len(), path.to_owned()));
    }
    let files = std::fs::read_dir(path).ok()?.flatten().filter_map(|e| e.metadata().ok());
    let mut out = (meta.modified().ok()?, 0, path.to_owned());
    for file in files {
        out.0 = out.0.max(file.modified().ok()?);
        out.1 += file.len();
    }
    Some(out)
}
