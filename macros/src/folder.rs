//! Where the macro keeps compiled modules: a macro has no OUT_DIR.

use std::path::{Path, PathBuf};

/// The cache folder; the order is documented at the macro.
pub(crate) fn cache() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(folder) = set("KILN_CACHE_DIR") {
        return folder;
    }
    let target = set("CARGO_TARGET_DIR").filter(|p| p.is_absolute()).or_else(rustc_target).or_else(nearest_target);
    target.unwrap_or_else(std::env::temp_dir).join("kiln")
}

/// The target folder from rustc's own arguments.
fn rustc_target() -> Option<PathBuf> {
    let mut args = std::env::args_os();
    let out_dir = loop {
        let arg = args.next()?;
        if arg == "--out-dir" {
            break PathBuf::from(args.next()?);
        }
        if let Some(path) = arg.to_str().and_then(|a| a.strip_prefix("--out-dir=")) {
            break path.into();
        }
    };
    let out_dir = std::path::absolute(out_dir).ok()?;
    out_dir.ancestors().find(|p| is_target(p)).map(Path::to_owned)
}

fn nearest_target() -> Option<PathBuf> {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    root.ancestors().map(|p| p.join("target")).find(|p| is_target(p))
}

/// Cargo marks its target folders.
fn is_target(folder: &Path) -> bool {
    folder.join("CACHEDIR.TAG").is_file()
}
