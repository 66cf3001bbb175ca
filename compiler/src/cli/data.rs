//! The files that a running module's inputs and outputs go through (format: `build/runner.rs`).

use crate::artifact::unique;
use crate::facts::dtype_named;
use crate::ir::Tensor;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A folder for files that nobody needs afterwards.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("kilnc-{}", unique()));
        std::fs::create_dir_all(&folder).map_err(|e| format!("cannot write {}: {e}", folder.display()))?;
        Ok(Self(folder))
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes the inputs of a run.
pub(super) fn write_inputs(path: &Path, inputs: &[Tensor]) -> Result<(), String> {
    let mut head = vec![inputs.len() as u64];
    for t in inputs {
        head.push(t.data().len() as u64);
        head.push(t.dims().len() as u64);
        head.extend(t.dims().iter().map(|&d| d as u64));
    }
    let write = || -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        for word in &head {
            file.write_all(&word.to_le_bytes())?;
        }
        let mut at = 8 * head.len();
        for t in inputs {
            file.write_all(&[0; 64][..at.next_multiple_of(64) - at])?;
            file.write_all(t.data())?;
            at = at.next_multiple_of(64) + t.data().len();
        }
        file.flush()
    };
    write().map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Reads the outputs of a run.
pub(super) fn read_outputs(path: &Path) -> Result<Vec<Tensor>, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    parse_outputs(&bytes).ok_or_else(|| "the outputs are not readable".to_owned())
}

fn parse_outputs(mut rest: &[u8]) -> Option<Vec<Tensor>> {
    let mut take = |n: usize| -> Option<&[u8]> {
        let (head, tail) = rest.split_at_checked(n)?;
        rest = tail;
        Some(head)
    };
    let number = |bytes: &[u8]| usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok();
    let n = number(take(8)?)?;
    let mut out = Vec::new();
    for _ in 0..n {
        let name_len = number(take(8)?)?;
        let dtype = dtype_named(std::str::from_utf8(take(name_len)?).ok()?)?;
        let rank = number(take(8)?)?;
        let mut dims = Vec::new();
        for _ in 0..rank {
            dims.push(number(take(8)?)?);
        }
        let len = number(take(8)?)?;
        out.push(Tensor::new(dtype, dims, take(len)?.to_vec().into())?);
    }
    Some(out)
}
