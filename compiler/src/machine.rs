//! What a compile is for: a shipped target by name or a target file, checked against the providers at hand.
//!
//! In: `host`, `host+gpu`, `soc-npu` or a path. Out: a [`Machine`], or a [`TargetError`].

use crate::ep::Providers;
use crate::plan::target::{SHIPPED, Target};
use crate::sha256;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Why there is no machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetError {
    /// No such target, or a file that is none: the problem in words.
    Wrong(String),
    /// A good target with a device that this version has no provider for: it can be shown, not compiled for.
    Unsupported(String),
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(what) => f.write_str(what),
            Self::Unsupported(what) => write!(f, "{what}: this version cannot compile for it"),
        }
    }
}

impl std::error::Error for TargetError {}

/// A target, and what to call it in a module's documentation.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The machine.
    pub target: Arc<Target>,
    /// Its name; of a file the digest as well, so that equal texts mean equal targets.
    pub text: String,
}

impl Default for Machine {
    /// The shipped target `host`.
    fn default() -> Self {
        Self::named("host").expect("invariant: the shipped target is good, which a test checks")
    }
}

impl Machine {
    /// A shipped target by its name, or a file's. Devices need a provider that this build has.
    pub fn named(spec: &str) -> Result<Self, TargetError> {
        let wrong = |e: crate::plan::target::TargetError| TargetError::Wrong(e.to_string());
        let (target, text) = match Target::shipped(spec) {
            Some(target) => (target.map_err(wrong)?, spec.to_owned()),
            None => {
                let text = read(spec).map_err(TargetError::Wrong)?;
                let target = Target::parse(&text, spec).map_err(wrong)?;
                let digest = sha256(text.as_bytes());
                let name = format!("{} ({})", target.name, &digest[..12]);
                (target, name)
            }
        };
        for device in target.device_ids() {
            Providers::default().of(&target, device).map_err(TargetError::Unsupported)?;
        }
        Ok(Self { target: Arc::new(target), text })
    }
}

/// Text of a target: of a shipped one, or a file's.
pub fn text_of(spec: &str) -> Result<String, String> {
    match SHIPPED.iter().find(|(name, _)| *name == spec) {
        Some((_, text)) => Ok((*text).to_owned()),
        None => read(spec),
    }
}

/// Larger files are no target files.
const MAX_FILE_BYTES: u64 = 1 << 20;

fn read(path: &str) -> Result<String, String> {
    // Only what can be compiled for is offered.
    let names: Vec<_> = SHIPPED.iter().map(|(name, _)| *name).filter(|name| Machine::named(name).is_ok()).collect();
    let none = || format!("there is no target \"{path}\": expected {}, or a target file", names.join(", "));
    let size = std::fs::metadata(Path::new(path)).ok().filter(|m| m.is_file()).map(|m| m.len()).ok_or_else(none)?;
    if size > MAX_FILE_BYTES {
        return Err(format!("{path}: {size} bytes are too many for a target file"));
    }
    std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_names_files_and_what_is_neither() {
        assert_eq!(Machine::default().text, "host");
        assert_eq!(Machine::named("soc-npu").unwrap().target.n_devices(), 2);
        // No provider serves a GPU yet.
        let e = Machine::named("host+gpu").unwrap_err();
        assert!(matches!(&e, TargetError::Unsupported(what) if what.contains("no execution provider \"gpu\"")), "{e}");
        assert!(e.to_string().ends_with("this version cannot compile for it"), "{e}");
        let e = Machine::named("toaster").unwrap_err().to_string();
        assert!(e.contains("there is no target \"toaster\": expected host, soc-npu, or a target file"), "{e}");
        let file = std::env::temp_dir().join(format!("kiln-machine-{}.toml", std::process::id()));
        std::fs::write(&file, SHIPPED[0].1.replace("name = \"host\"", "name = \"mine\"")).unwrap();
        let mine = Machine::named(file.to_str().unwrap()).unwrap();
        std::fs::write(&file, "name = 3").unwrap();
        let bad = Machine::named(file.to_str().unwrap()).unwrap_err();
        let _ = std::fs::remove_file(&file);
        assert!(mine.text.starts_with("mine ("), "{}", mine.text);
        assert!(bad.to_string().contains(":1: field \"name\""), "{bad}");
    }
}
