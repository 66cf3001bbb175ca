//! Compiled modules on disk, found again by content: what the macro and `kilnc` share.
//!
//! In: a model file, options, a cache folder. Out: `model.rs` and `NAME.weights` in that folder (programs that read their
//! weights from a file look for one of this name).
//! A stamp remembers length and time of every file that a compile read: while they stand, nothing is read at all.
//! When they differ, the content's hash decides. A module's folder is named by the hash of compiler, options and files,
//! and appears whole or not at all, so any number of processes may share a cache.
//! Invariant: a stamp is written only when its files are older than a second, so that an edit always shows.

use crate::emit::{self, Emitted};
use crate::error::{CompileError, CompileErrors, Stage};
use crate::facts::Facts;
use crate::import;
use crate::onnx::{self, Decoded};
use crate::prune;
use crate::{Options, compile, sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Names this compiler: its version and a hash of its source.
pub const COMPILER: &str = concat!(env!("CARGO_PKG_VERSION"), " ", env!("KILN_SOURCE_HASH"));

/// A compiled module on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Hash of everything that went into it.
    pub key: String,
    /// The module's source.
    pub source: PathBuf,
    /// Its weights.
    pub weights: PathBuf,
    /// Its figures.
    pub facts: Facts,
    /// The files it was made from: the model first, then its external data.
    pub tracked: Vec<PathBuf>,
}

/// A model that has been read.
#[derive(Clone, Debug)]
pub struct ModelFile {
    path: PathBuf,
    started: SystemTime,
    /// The model.
    pub decoded: Decoded,
}

impl ModelFile {
    /// Reads the file and its external data.
    pub fn read(path: &Path) -> Result<Self, CompileErrors> {
        let path = std::path::absolute(path).map_err(|e| unreadable(path, &e))?;
        let started = SystemTime::now();
        let decoded = onnx::read(&path)?;
        Ok(Self { path, started, decoded })
    }

    /// The same model under a name of its own, with no file to compare with: for one that was changed after it was read.
    #[must_use]
    pub fn changed(&self, what: &str) -> Self {
        let mut source = self.decoded.source.to_vec();
        source.extend_from_slice(what.as_bytes());
        let decoded = Decoded { source: source.into(), ..self.decoded.clone() };
        Self { path: PathBuf::from(format!("{}#{what}", self.path.display())), started: self.started, decoded }
    }
}

/// A folder of compiled modules.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache in this folder; it is made when it is first needed.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The model's module: from the cache, or compiled now. A size for a dimension that the model does not have is an error.
    pub fn module(&self, model: &Path, options: &Options) -> Result<Artifact, CompileErrors> {
        let model = std::path::absolute(model).map_err(|e| unreadable(model, &e))?;
        match self.by_stamp(&self.stamp(&model, options), options) {
            Some(found) => Ok(found),
            None => {
                let file = ModelFile::read(&model)?;
                import::check_dims(&file.decoded.model, &options.import)?;
                let made = self.module_of(&file, options);
                self.prune();
                made
            }
        }
    }

    /// The same for a model that has been read already.
    pub fn module_of(&self, model: &ModelFile, options: &Options) -> Result<Artifact, CompileErrors> {
        let stamp = self.stamp(&model.path, options);
        if let Some(found) = self.by_stamp(&stamp, options) {
            return Ok(found);
        }
        let decoded = &model.decoded;
        let mut tracked = vec![model.path.clone()];
        tracked.extend(decoded.external_files.iter().cloned());
        let times = stamp_lines(&tracked, model.started);
        let mut content = format!("{}{}\n", recipe(options), sha256(&decoded.source));
        for file in &decoded.external_files {
            let bytes = std::fs::read(file).map_err(|e| unreadable(file, &e))?;
            let _ = writeln!(content, "{} {}", file.file_name().unwrap_or_default().display(), sha256(&bytes));
        }
        let key = sha256(content.as_bytes())[..32].to_owned();
        let artifact = match self.open(&key, options, tracked.clone()) {
            Some(found) => found,
            None => {
                let program = compile(decoded, options)?;
                let emitted = emit::emit(&program, options.weights, options.per_step)?;
                self.store(&key, options, &emitted, &Facts::of(&program))?;
                self.open(&key, options, tracked).ok_or_else(|| written(&self.folder, "it is gone again"))?
            }
        };
        if let Some(times) = times {
            // The stamp only saves time: without it the next compile reads the files again.
            let _ = write_whole(&stamp, format!("{key}\n{times}").as_bytes());
        }
        Ok(artifact)
    }

    fn stamp(&self, model: &Path, options: &Options) -> PathBuf {
        let name = sha256(format!("{}{}", recipe(options), model.display()).as_bytes());
        self.folder.join("stamps").join(&name[..32])
    }

    fn by_stamp(&self, stamp: &Path, options: &Options) -> Option<Artifact> {
        let text = std::fs::read_to_string(stamp).ok()?;
        let (key, files) = text.split_once('\n')?;
        let mut tracked = Vec::new();
        for line in files.lines() {
            let path = PathBuf::from(line.splitn(3, ' ').nth(2)?);
            if stamp_line(&path)?.0 != line {
                return None;
            }
            tracked.push(path);
        }
        self.open(key, options, tracked)
    }

    fn open(&self, key: &str, options: &Options, tracked: Vec<PathBuf>) -> Option<Artifact> {
        let folder = self.folder.join("modules").join(key);
        let facts = Facts::parse(&std::fs::read_to_string(folder.join("model.facts")).ok()?)?;
        let (source, weights) = (folder.join("model.rs"), folder.join(weights_name(options)));
        let whole = source.is_file() && weights.is_file();
        prune::touch(&folder.join("model.facts"));
        whole.then(|| Artifact { key: key.to_owned(), source, weights, facts, tracked })
    }

    fn store(&self, key: &str, options: &Options, emitted: &Emitted, facts: &Facts) -> Result<(), CompileErrors> {
        let modules = self.folder.join("modules");
        let partial = modules.join(format!(".{key}.{}", unique()));
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(&partial)?;
            std::fs::write(partial.join("model.rs"), &emitted.source)?;
            std::fs::write(partial.join(weights_name(options)), &emitted.weights)?;
            std::fs::write(partial.join("model.facts"), facts.text())
        };
        if let Err(e) = write() {
            let _ = std::fs::remove_dir_all(&partial);
            return Err(written(&partial, &e.to_string()));
        }
        let whole = modules.join(key);
        if whole.exists() && self.open(key, options, Vec::new()).is_none() {
            // Somebody has removed files of it.
            let _ = std::fs::remove_dir_all(&whole);
        }
        // When another process was first, its folder holds the same bytes.
        if std::fs::rename(&partial, &whole).is_err() {
            let _ = std::fs::remove_dir_all(&partial);
        }
        Ok(())
    }

    /// Removes what was not used for longest, until the cache is no larger than 8 GiB (or `KILN_CACHE_BYTES`).
    pub fn prune(&self) {
        prune::prune(&[self.folder.join("modules"), self.folder.join("bin")]);
    }
}

/// The name of a module's weights file: the model's, so that those of several models can lie in one folder.
fn weights_name(options: &Options) -> String {
    format!("{}.weights", emit::module_name(&options.name))
}

/// What a module depends on beside files.
fn recipe(options: &Options) -> String {
    let mut text = format!("{COMPILER}\n{}\n{}\n{}\n", options.name, options.text(), options.per_step);
    for (i, t) in options.import.input_constants.iter().chain(&options.import.input_values) {
        let _ = writeln!(text, "input {i} = {} {:?} {}", t.dtype(), t.dims(), sha256(t.data()));
    }
    text
}

fn unreadable(path: &Path, e: &std::io::Error) -> CompileErrors {
    CompileError::new(Stage::Read, format!("cannot read {}: {e}", path.display())).into()
}

fn written(path: &Path, why: &str) -> CompileErrors {
    CompileError::new(Stage::Emit, format!("cannot write {}: {why}", path.display())).into()
}

/// A name that no other process or thread uses.
pub(crate) fn unique() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static N: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), N.fetch_add(1, Ordering::Relaxed))
}

/// Writes a file that others may be reading: it changes in one step.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let partial = folder.join(format!(".{}", unique()));
    std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(&partial);
    })
}

/// `LENGTH TIME PATH`, and the time.
fn stamp_line(path: &Path) -> Option<(String, SystemTime)> {
    let meta = std::fs::metadata(path).ok()?;
    let modified = meta.modified().ok()?;
    let nanos = modified.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_nanos();
    let text = path.to_str().filter(|t| !t.contains('\n'))?;
    Some((format!("{} {nanos} {text}", meta.len()), modified))
}

/// The stamp's lines; `None` while a file is so young that it may have changed since it was read, or may yet change
/// within the same tick of its time stamp.
fn stamp_lines(paths: &[PathBuf], started: SystemTime) -> Option<String> {
    let mut text = String::new();
    for path in paths {
        let (line, modified) = stamp_line(path)?;
        if started.duration_since(modified).ok()? < Duration::from_secs(1) {
            return None;
        }
        text.push_str(&line);
        text.push('\n');
    }
    Some(text)
}
