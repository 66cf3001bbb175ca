//! Tensor data outside the model file: path rules, range checks, and reading only what is asked.
//!
//! In: the `external_data` entries of a tensor. Out: its bytes. A location is relative to the
//! model's folder and stays inside it: no absolute path, no `..` (with either separator), no
//! symbolic link that leads out; it names a regular file. Offset and length are decimal, and lie
//! within the file. Equal ranges are read once and shared; what is read of one file in total is
//! bounded by its length. No file stays open: some exporters write one for each tensor.
//! Source: `onnx.proto`, `TensorProto.external_data`; docs/ExternalData.md of onnx.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::proto::StringStringEntryProto;
use crate::error::{CompileError, Quoted, Stage};

/// The files that a model's external data lies in.
pub(super) struct ExternalFiles {
    /// The model's folder, as given and with links resolved; `None` for a model from memory.
    folder: Option<(PathBuf, std::io::Result<PathBuf>)>,
    /// Location, as the model writes it → the file's path with links resolved.
    locations: BTreeMap<String, PathBuf>,
    /// By path with links resolved.
    files: HashMap<PathBuf, ExternalFile>,
}

struct ExternalFile {
    len_bytes: u64,
    read_bytes: u64,
    /// By (offset, length).
    ranges: HashMap<(u64, usize), Bytes>,
}

/// Distinct ranges of a file may overlap, but not without end.
const MAX_READS_OF_A_BYTE: u64 = 4;
const READS_ALWAYS_ALLOWED_BYTES: u64 = 64 << 20;

impl ExternalFiles {
    /// External data relative to `folder`; without one, external data is an error.
    pub(super) fn new(folder: Option<&Path>) -> Self {
        let folder = folder.map(|folder| {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            (folder.to_owned(), folder.canonicalize())
        });
        ExternalFiles { folder, locations: BTreeMap::new(), files: HashMap::new() }
    }

    /// The files used, each the model's folder and the location in it; in order of location.
    pub(super) fn into_paths(self) -> Vec<PathBuf> {
        let folder = self.folder.map(|(folder, _)| folder).unwrap_or_default();
        self.locations.into_keys().map(|location| folder.join(location)).collect()
    }

    /// Reads a tensor of `wanted_bytes` from where `entries` say.
    pub(super) fn read(
        &mut self,
        entries: &[StringStringEntryProto],
        wanted_bytes: usize,
    ) -> Result<Bytes, CompileError> {
        let range = Range::parse(entries)?;
        if let Some(length) = range.length.filter(|length| *length != wanted_bytes as u64) {
            return Err(error(format!("external data: length is {length}, the tensor has {wanted_bytes} bytes")));
        }
        let (path, file) = self.find(range.location)?;
        let fits = range.offset.checked_add(wanted_bytes as u64).is_some_and(|end| end <= file.len_bytes);
        if !fits {
            return Err(error(format!(
                "external data: {wanted_bytes} bytes at offset {} are not all in {}, which has {}",
                range.offset,
                Quoted(range.location),
                file.len_bytes
            )));
        }
        file.read(path, range.offset, wanted_bytes)
            .map_err(|message| error(format!("external data: {}: {message}", Quoted(range.location))))
    }

    /// The file at `location`, checked once.
    fn find(&mut self, location: &str) -> Result<(&Path, &mut ExternalFile), CompileError> {
        if !self.locations.contains_key(location) {
            let (path, len_bytes) = self.check(location)?;
            let file = ExternalFile { len_bytes, read_bytes: 0, ranges: HashMap::new() };
            self.files.entry(path.clone()).or_insert(file);
            self.locations.insert(location.to_owned(), path);
        }
        let path = &self.locations[location];
        Ok((path, self.files.get_mut(path).expect("invariant: every location's file is known")))
    }

    /// The path with links resolved, and the length, of a location that keeps the rules.
    fn check(&self, location: &str) -> Result<(PathBuf, u64), CompileError> {
        let fault = |why: String| error(format!("external data: location {} {why}", Quoted(location)));
        check_location(location).map_err(|why| fault(why.to_owned()))?;
        let Some((folder, real_folder)) = &self.folder else {
            return Err(fault("needs the model's folder, and this model was given as bytes alone".to_owned()));
        };
        let real_folder =
            real_folder.as_ref().map_err(|io| fault(format!("cannot be read: the model's folder: {io}")))?;
        let unreadable = |io: std::io::Error| fault(format!("cannot be read: {io}"));
        let real = folder.join(location).canonicalize().map_err(unreadable)?;
        if !real.starts_with(real_folder) {
            return Err(fault("leads out of the model's folder".to_owned()));
        }
        // Looked at before it is opened: opening a pipe would wait for its writer.
        let metadata = real.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(fault("is not a regular file".to_owned()));
        }
        Ok((real, metadata.len()))
    }
}

impl ExternalFile {
    fn read(&mut self, path: &Path, offset: u64, len_bytes: usize) -> Result<Bytes, String> {
        if let Some(bytes) = self.ranges.get(&(offset, len_bytes)) {
            return Ok(bytes.clone());
        }
        self.read_bytes = self.read_bytes.saturating_add(len_bytes as u64);
        let allowed = self.len_bytes.saturating_mul(MAX_READS_OF_A_BYTE).saturating_add(READS_ALWAYS_ALLOWED_BYTES);
        if self.read_bytes > allowed {
            return Err("the tensors in it overlap too much".to_owned());
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len_bytes).map_err(|_| format!("no memory for {len_bytes} bytes"))?;
        let mut file = File::open(path).map_err(|io| io.to_string())?;
        file.seek(SeekFrom::Start(offset)).map_err(|io| io.to_string())?;
        file.take(len_bytes as u64).read_to_end(&mut bytes).map_err(|io| io.to_string())?;
        if bytes.len() != len_bytes {
            return Err("became shorter while it was read".to_owned());
        }
        let bytes = Bytes::from(bytes);
        self.ranges.insert((offset, len_bytes), bytes.clone());
        Ok(bytes)
    }
}

/// What `external_data` says.
struct Range<'a> {
    location: &'a str,
    offset: u64,
    length: Option<u64>,
}

impl<'a> Range<'a> {
    fn parse(entries: &'a [StringStringEntryProto]) -> Result<Self, CompileError> {
        let location = find(entries, "location")?.unwrap_or_default();
        if location.is_empty() {
            return Err(error("external data: has no location"));
        }
        let offset = find(entries, "offset")?.map(|text| decimal("offset", text)).transpose()?;
        let length = find(entries, "length")?.map(|text| decimal("length", text)).transpose()?;
        Ok(Range { location, offset: offset.unwrap_or(0), length })
    }
}

/// The value of `key`; given twice is an error.
fn find<'a>(entries: &'a [StringStringEntryProto], key: &str) -> Result<Option<&'a str>, CompileError> {
    let mut values = entries.iter().filter(|entry| entry.key == key).map(|entry| entry.value.as_str());
    let value = values.next();
    if values.next().is_some() {
        return Err(error(format!("external data: {key} is given twice")));
    }
    Ok(value)
}

fn decimal(key: &str, text: &str) -> Result<u64, CompileError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| error(format!("external data: {key} {} is not a number of bytes", Quoted(text))))
}

/// The rules that a location breaks by its text alone.
fn check_location(location: &str) -> Result<(), &'static str> {
    let is_separator = |c: char| c == '/' || c == '\\';
    let has_drive = location.as_bytes().get(1) == Some(&b':') && location.as_bytes()[0].is_ascii_alphabetic();
    if location.starts_with(is_separator) || Path::new(location).is_absolute() || has_drive {
        return Err("is an absolute path");
    }
    if location.split(is_separator).any(|component| component == "..") {
        return Err("leaves the model's folder with \"..\"");
    }
    if location.contains('\0') {
        return Err("is not a path");
    }
    Ok(())
}

fn error(message: impl Into<String>) -> CompileError {
    CompileError::new(Stage::Read, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations() {
        for (location, keeps_the_rules) in [
            ("weights.bin", true),
            ("sub/weights.bin", true),
            ("./weights..bin", true),
            ("..hidden", true),
            ("a/b:c", true),
            ("../weights.bin", false),
            ("sub/../../weights.bin", false),
            ("sub/..", false),
            ("..", false),
            ("..\\weights.bin", false),
            ("sub\\..\\..\\weights.bin", false),
            ("/etc/passwd", false),
            ("\\\\server\\share", false),
            ("C:\\weights.bin", false),
            ("c:weights.bin", false),
            ("a\0b", false),
        ] {
            assert_eq!(check_location(location).is_ok(), keeps_the_rules, "{location:?}");
        }
    }

    #[test]
    fn numbers() {
        for (text, number) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("+1", None),
            ("-1", None),
            (" 1", None),
            ("0x10", None),
        ] {
            assert_eq!(decimal("offset", text).ok(), number, "{text:?}");
        }
    }
}
