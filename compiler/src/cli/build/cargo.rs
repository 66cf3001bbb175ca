//! Builds generated crates with cargo: one workspace, one target folder, so that `kiln` is built once.
//!
//! In: the crates' texts. Out: for each its binary in the cache's `bin` folder, or what rustc said.
//! A lock keeps other processes out while one builds; what a build leaves behind is removed.

use super::Builder;
use super::krate::{self, Text};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An error of rustc.
#[derive(Clone, Debug)]
pub(super) struct RustcError {
    pub(super) message: String,
    /// The files it points into.
    pub(super) files: Vec<String>,
}

/// Why a crate was not built.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusal {
    pub(super) errors: Vec<RustcError>,
    /// The end of what cargo said.
    pub(super) output: String,
}

/// Builds the crates; the outcome of each by its name.
pub(super) fn build(texts: &[&Text], builder: &Builder<'_>) -> Result<BTreeMap<String, Result<(), Refusal>>, String> {
    let folder = builder.cache.join("build");
    let bin = builder.cache.join("bin");
    let fault = |what: &str, e: std::io::Error| format!("cannot {what} in {}: {e}", folder.display());
    fs::create_dir_all(&folder).and_then(|()| fs::create_dir_all(&bin)).map_err(|e| fault("write", e))?;
    let lock = fs::File::create(folder.join("lock")).map_err(|e| fault("write", e))?;
    builder.progress.say("waiting for another build");
    lock.lock().map_err(|e| fault("lock", e))?;
    let workspace = folder.join("workspace");
    let _ = fs::remove_dir_all(&workspace);
    let members: Vec<_> = texts.iter().map(|t| t.name.as_str()).collect();
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(&workspace)?;
        fs::write(workspace.join("Cargo.toml"), krate::workspace(builder, &members))?;
        if let Some(lock_file) = builder.kiln.lock_file() {
            fs::copy(lock_file, workspace.join("Cargo.lock"))?;
        }
        texts.iter().try_for_each(|t| t.write(&workspace.join(&t.name)))
    };
    write().map_err(|e| fault("write", e))?;
    let target = folder.join("target");
    if !target.exists() {
        builder.progress.announce("building the crate kiln, which every module links with: once, it may take minutes");
    }
    // Everything a generated crate needs is at hand when kiln is; only a release may have to be fetched.
    let mut run = cargo(&workspace, &target, texts, builder, builder.kiln.lock_file().is_some())?;
    if !run.began && run.errors.is_empty() && builder.kiln.lock_file().is_some() {
        run = cargo(&workspace, &target, texts, builder, false)?;
    }
    if run.executables.is_empty() && run.errors.is_empty() && !run.began {
        return Err(format!("cargo built nothing, and says: {:?}", run.output));
    }
    if let Some((name, message)) = &run.dependency_error {
        return Err(format!("crate {name}, which generated code needs, does not build: {message}"));
    }
    let mut outcomes = BTreeMap::new();
    for text in texts {
        let outcome = match run.executables.get(&text.name) {
            Some(executable) => {
                let kept = bin.join(&text.name);
                let _ = fs::remove_file(&kept);
                fs::rename(executable, &kept)
                    .or_else(|_| fs::copy(executable, &kept).map(|_| ()))
                    .map_err(|e| Refusal { output: format!("cannot keep the binary: {e}"), ..Refusal::default() })
            }
            None => {
                Err(Refusal { errors: run.errors.remove(&text.name).unwrap_or_default(), output: run.output.clone() })
            }
        };
        outcomes.insert(text.name.clone(), outcome);
    }
    sweep(&target.join("release"), &members);
    let _ = fs::remove_dir_all(&workspace);
    builder.progress.done();
    Ok(outcomes)
}

#[derive(Default)]
struct Run {
    executables: BTreeMap<String, PathBuf>,
    errors: BTreeMap<String, Vec<RustcError>>,
    output: String,
    /// Whether cargo got as far as compiling something.
    began: bool,
    /// A crate that is not a generated one, and what is wrong with it.
    dependency_error: Option<(String, String)>,
}

fn cargo(
    workspace: &Path,
    target: &Path,
    texts: &[&Text],
    builder: &Builder<'_>,
    offline: bool,
) -> Result<Run, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&program);
    command.arg("build").args(["--release", "--workspace", "--keep-going", "--quiet"]);
    command.args(["--message-format", "json", "--jobs", &builder.jobs.to_string()]);
    if offline {
        command.arg("--offline");
    }
    command.arg("--target-dir").arg(target).current_dir(workspace);
    // A cargo that started this process must not shape the build.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let inherited =
            text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_CFG_") || text.starts_with("CARGO_BIN_");
        if inherited
            || ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR", "CARGO_BUILD_TARGET", "CARGO_MANIFEST_DIR"]
                .contains(&&*text)
        {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let absent = |e| {
        format!("cannot run cargo, which builds what was generated ({}; CARGO names another): {e}", program.display())
    };
    let mut child = command.spawn().map_err(absent)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let said = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.map(|mut s| s.read_to_string(&mut text));
        text
    });
    let mut run = Run::default();
    let names: BTreeSet<&str> = texts.iter().map(|t| t.name.as_str()).collect();
    for line in stdout.into_iter().flat_map(|s| BufReader::new(s).lines()).map_while(Result::ok) {
        take_message(&line, &names, &mut run);
        builder.progress.say(&format!("building: {} of {} crates", run.executables.len(), texts.len()));
    }
    let _ = child.wait();
    let said = said.join().unwrap_or_default();
    let start = said.len().saturating_sub(2000);
    run.output = said[said.ceil_char_boundary(start)..].trim().replace('\n', " | ");
    Ok(run)
}

/// One line of cargo's report.
fn take_message(line: &str, names: &BTreeSet<&str>, run: &mut Run) {
    let Ok(json) = serde_json::from_str::<serde_json::Value>(line) else { return };
    run.began |= json["reason"].as_str() == Some("compiler-artifact");
    let Some(name) = json["target"]["name"].as_str() else { return };
    let is_error = json["message"]["level"].as_str() == Some("error");
    if !names.contains(name) {
        if is_error && run.dependency_error.is_none() {
            let text = json["message"]["message"].as_str().unwrap_or_default();
            run.dependency_error = Some((name.to_owned(), text.to_owned()));
        }
        return;
    }
    if let Some(executable) = json["executable"].as_str() {
        run.executables.insert(name.to_owned(), executable.into());
    }
    let message = &json["message"];
    if is_error {
        let text = message["message"].as_str().unwrap_or_default();
        let mut files = BTreeSet::new();
        span_files(message, &mut files);
        let error = RustcError { message: text.replace('\n', " "), files: files.into_iter().collect() };
        run.errors.entry(name.to_owned()).or_default().push(error);
    }
}

/// The files of all spans, also of macro expansions and of notes.
fn span_files(json: &serde_json::Value, files: &mut BTreeSet<String>) {
    match json {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(file) if key == "file_name" => {
                        files.insert(file.to_owned());
                    }
                    _ => span_files(value, files),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| span_files(item, files)),
        _ => {}
    }
}

/// Removes what cargo keeps of generated crates: it will never be asked for again.
fn sweep(release: &Path, names: &[&str]) {
    for folder in ["", "deps", ".fingerprint", "build", "incremental"] {
        for entry in fs::read_dir(release.join(folder)).into_iter().flatten().flatten() {
            let file = entry.file_name();
            let file = file.to_string_lossy();
            if names.iter().any(|n| file.starts_with(n)) {
                let path = entry.path();
                let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            }
        }
    }
}
