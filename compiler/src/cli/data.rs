//! The files that a running module's inputs and outputs go through (format: `build/runner.rs`).

use crate::artifact::unique;
use crate::facts::dtype_named;
use crate::ir::{Datum, Elements, SequenceType, Tensor, Type, narrow};
use kiln_kernels::{Dtype, Object};
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

/// What stands in the file for a value: its extents and bytes. An object has no extents.
fn raw(value: &Datum) -> Result<(Vec<usize>, bytes::Bytes), String> {
    match value.tensor().filter(|t| t.dtype() != Dtype::Str) {
        Some(t) => Ok((t.dims().to_vec(), t.data().clone())),
        None => {
            let bytes = value.object().and_then(|o| o.encoded()).ok_or("an input is too large")?;
            Ok((Vec::new(), bytes.into()))
        }
    }
}

/// Writes the inputs of a run, of any kind.
pub(super) fn write_data(path: &Path, inputs: &[Datum]) -> Result<(), String> {
    let inputs = inputs.iter().map(raw).collect::<Result<Vec<_>, _>>()?;
    let mut head = vec![inputs.len() as u64];
    for (dims, data) in &inputs {
        head.push(data.len() as u64);
        head.push(dims.len() as u64);
        head.extend(dims.iter().map(|&d| d as u64));
    }
    let write = || -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        for word in &head {
            file.write_all(&word.to_le_bytes())?;
        }
        let mut at = 8 * head.len();
        for (_, data) in &inputs {
            file.write_all(&[0; 64][..at.next_multiple_of(64) - at])?;
            file.write_all(data)?;
            at = at.next_multiple_of(64) + data.len();
        }
        file.flush()
    };
    write().map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Reads the outputs of a run.
pub(super) fn read_data(path: &Path) -> Result<Vec<Datum>, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    parse_outputs(&bytes).ok_or_else(|| "the outputs are not readable".to_owned())
}

fn parse_outputs(mut rest: &[u8]) -> Option<Vec<Datum>> {
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
        let dtype = dtype_named(std::str::from_utf8(take(name_len)?).ok()?).filter(|d| *d != Dtype::Str);
        let rank = number(take(8)?)?;
        let mut dims = Vec::new();
        for _ in 0..rank {
            dims.push(number(take(8)?)?);
        }
        let len = number(take(8)?)?;
        let bytes = take(len)?;
        out.push(match dtype {
            Some(dtype) => Tensor::new(dtype, dims, bytes.to_vec().into())?.into(),
            None => object(Object::decode(bytes)?),
        });
    }
    Some(out)
}

/// An object of a run, with the type that its value shows.
fn object(object: Object) -> Datum {
    if let Some(t) = Tensor::from_object(&object) {
        return t.into();
    }
    let first = object.as_sequence().and_then(|s| s.first()).and_then(Tensor::from_object);
    let dtype = first.map_or(Dtype::F32, |t| t.dtype());
    let ty = Type::Sequence(SequenceType { dtype, elements: Elements::Nothing, most: None });
    let ty = if object.is_none() { Type::Optional(Box::new(ty)) } else { narrow(&ty, &object) };
    Datum::Object(ty, object)
}
