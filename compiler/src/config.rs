//! Compiling from a build script.
//!
//! In: `Config` and the model's path. Out: `$OUT_DIR/STEM.rs`, `STEM.weights`, `STEM.weights.rs` (how they come into the binary),
//! `STEM.mod.rs` (the module around them, for `kiln::include_compiled!("STEM")`) and the lines that tell cargo what to watch
//! and, where weights become an object of their own, to link.

use crate::archive::{self, Format};
use crate::artifact::write_whole;
use crate::emit::{self, WeightsFrom, module_name};
use crate::ep::pin::Pin;
use crate::error::CompileErrors;
use crate::import::DimBound;
use crate::memory::Arenas;
use crate::profile::Profile;
use crate::{Options, compile, onnx};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A size, or the sizes that may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DimRange(pub DimBound);

impl From<usize> for DimRange {
    fn from(n: usize) -> Self {
        Self(DimBound::Fixed(i64::try_from(n).unwrap_or(i64::MAX)))
    }
}

impl From<RangeInclusive<usize>> for DimRange {
    fn from(range: RangeInclusive<usize>) -> Self {
        let bound = |n: &usize| i64::try_from(*n).unwrap_or(i64::MAX);
        Self(DimBound::Range(bound(range.start()), bound(range.end())))
    }
}

/// Compiles models in a build script.
///
/// ```no_run
/// // build.rs
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     kiln_compiler::Config::new().target("host").streams(2).compile("models/net.onnx")?;
///     Ok(())
/// }
/// ```
/// and in the crate: `kiln::include_compiled!("net");`.
#[derive(Clone, Debug)]
pub struct Config {
    options: Options,
    target: String,
    pins: Vec<String>,
    profile: Option<PathBuf>,
    out_dir: Option<PathBuf>,
    name: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

impl Config {
    /// Target `host`, one stream, weights in the binary.
    pub fn new() -> Self {
        Self {
            options: Options::default(),
            target: "host".into(),
            pins: Vec::new(),
            profile: None,
            out_dir: None,
            name: None,
        }
    }

    /// What to compile for: a built-in target's name or a target file.
    #[must_use]
    pub fn target(mut self, target: impl Into<String>) -> Self {
        self.target = target.into();
        self
    }

    /// Streams of the CPU.
    #[must_use]
    pub fn streams(mut self, streams: usize) -> Self {
        self.options.streams = streams;
        self
    }

    /// Fixes a free dimension (`7`) or bounds it (`1..=128`).
    #[must_use]
    pub fn dim(mut self, name: impl Into<String>, size: impl Into<DimRange>) -> Self {
        self.options.import.dims.insert(name.into(), size.into().0);
        self
    }

    /// Makes an output an input of the next run: names, or patterns with one `*` each (`"present.*"`, `"past.*"`).
    #[must_use]
    pub fn state(mut self, output: impl Into<String>, input: impl Into<String>) -> Self {
        self.options.states.push((output.into(), input.into()));
        self
    }

    /// Puts the nodes whose names match on a device: `REGEX=DEVICE`, as `kilnc --pin` does.
    #[must_use]
    pub fn pin(mut self, pin: impl Into<String>) -> Self {
        self.pins.push(pin.into());
        self
    }

    /// Where the weights come from when the program runs. With [`WeightsFrom::File`] `Model::new()` reads `$OUT_DIR/STEM.weights`
    /// (`Model::WEIGHTS_PATH`), or where that is gone the file of this name beside the program; `Model::with_weights` takes a path.
    #[must_use]
    pub fn weights(mut self, from: WeightsFrom) -> Self {
        self.options.weights = from;
        self
    }

    /// Bytes that the model may take beside its weights. The module then also holds schedules on fewer streams, where they
    /// need less: `Model::with_budget` chooses.
    #[must_use]
    pub fn budget(mut self, bytes: u64) -> Self {
        self.options.budget_bytes = Some(bytes);
        self
    }

    /// How the arena is laid out.
    #[must_use]
    pub fn arenas(mut self, arenas: Arenas) -> Self {
        self.options.arenas = arenas;
        self
    }

    /// Measured times of nodes, in the place of predicted ones: a file of what `kilnc bench --per-op --json` printed, relative
    /// to the package's folder.
    #[must_use]
    pub fn profile(mut self, file: impl Into<PathBuf>) -> Self {
        self.profile = Some(file.into());
        self
    }

    /// Names the module and its files instead of the model's file name: `name("digits")` is for `include_compiled!("digits")`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Writes to this folder instead of `$OUT_DIR`.
    #[must_use]
    pub fn out_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.out_dir = Some(folder.into());
        self
    }

    /// Compiles the model (a path relative to the package's folder) into `$OUT_DIR`.
    pub fn compile(&self, model: impl AsRef<Path>) -> Result<(), ConfigError> {
        let model = model.as_ref();
        let fail = |what: String| ConfigError { model: model.to_owned(), what };
        if crate::plan::target::Target::shipped(&self.target).is_none() {
            println!("cargo:rerun-if-changed={}", self.target);
        }
        let machine = crate::machine::Machine::named(&self.target).map_err(|e| fail(e.to_string()))?;
        crate::check_options(&self.options).map_err(&fail)?;
        let out = self.out_dir.clone().or_else(|| std::env::var_os("OUT_DIR").map(PathBuf::from));
        let out =
            out.ok_or_else(|| fail("OUT_DIR is not set: call this from a build script, or give out_dir".into()))?;
        let in_package = |file: &Path| match std::env::var_os("CARGO_MANIFEST_DIR") {
            Some(root) => Path::new(&root).join(file),
            None => file.to_owned(),
        };
        let path = in_package(model);
        // Before anything can fail: an edit that mends the model must run the build script again.
        println!("cargo:rerun-if-changed={}", path.display());
        let stem = model.file_stem().map(|s| s.to_string_lossy().into_owned());
        let stem = self.name.clone().or(stem).ok_or_else(|| fail("the path names no file".into()))?;
        if stem.is_empty() || stem.contains(['/', '\\']) || stem.starts_with('.') {
            return Err(fail(format!("{stem:?} is no name for a file")));
        }
        if let Some(other) = written_before(out.join(&stem), &path) {
            let what = format!("{} was compiled as {stem:?} before: give one of them a name(…)", other.display());
            return Err(fail(what));
        }
        let pins = self.pins.iter().map(|p| Pin::parse(p)).collect::<Result<_, _>>().map_err(&fail)?;
        let profile = self.profile.as_deref().map(in_package);
        if let Some(file) = &profile {
            println!("cargo:rerun-if-changed={}", file.display());
        }
        let read = |file: &PathBuf| Profile::read(file).map_err(|e| fail(format!("profile {}: {e}", file.display())));
        let profile = profile.as_ref().map(read).transpose()?;
        let options = Options { name: module_name(&stem), machine, pins, profile, ..self.options.clone() };
        let decoded = onnx::read(&path).map_err(|e| fail(e.to_string()))?;
        for file in &decoded.external_files {
            println!("cargo:rerun-if-changed={}", file.display());
        }
        crate::import::check_dims(&decoded.model, &options.import).map_err(|e| fail(e.to_string()))?;
        let emitted = compile(&decoded, &options)
            .and_then(|program| {
                let nodes = program.steps.iter().map(|s| s.node.as_str());
                if let Some(warning) = options.profile.as_ref().and_then(|profile| profile.warning(nodes)) {
                    println!("cargo:warning={}: {warning}", model.display());
                }
                Ok(emit::emit(&program, options.weights, false)?)
            })
            .map_err(|e: CompileErrors| fail(e.to_string()))?;
        let write = |suffix: &str, bytes: &[u8]| {
            let file = out.join(format!("{stem}{suffix}"));
            write_whole(&file, bytes).map_err(|e| fail(format!("cannot write {}: {e}", file.display())))
        };
        write(".rs", emitted.source.as_bytes())?;
        write(".weights", &emitted.weights)?;
        // A folder of the caller's own choice may be used by anything, not only by the crate that cargo builds now.
        let object = match self.out_dir.is_none() && options.weights == WeightsFrom::Embed {
            true => Format::of_build_script(),
            false => None,
        };
        if let Some(format) = object {
            let symbol = emit::weights_symbol(&emitted.weights);
            let file = out.join(format!("lib{symbol}.a"));
            archive::write(&file, format, &symbol, &emitted.weights)
                .map_err(|e| fail(format!("cannot write {}: {e}", file.display())))?;
            println!("cargo:rustc-link-search=native={}", out.display());
            println!("cargo:rustc-link-lib=static:-bundle={symbol}");
        }
        write(".weights.rs", weights_macro(&stem, object.is_some()).as_bytes())?;
        write(".mod.rs", wrapper(&stem).as_bytes())
    }
}

/// The other model that this process compiled to the same files, if there is one. The same model again replaces them.
fn written_before(files: PathBuf, model: &Path) -> Option<PathBuf> {
    static WRITTEN: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    written.insert(files, model.to_owned()).filter(|before| before != model)
}

/// The module around `STEM.rs`: `include_compiled!` cannot make a name out of a string.
fn wrapper(stem: &str) -> String {
    let name = module_name(stem);
    let (source, weights) = (in_out_dir(stem, ".rs"), in_out_dir(stem, ".weights.rs"));
    format!(
        "/// The model {stem:?}, compiled by the build script.\n\
         #[allow(dead_code, reason = \"a model's user need not use all of it\")]\n\
         mod {name} {{\n    include!({weights});\n    include!({source});\n}}\n"
    )
}

/// What tells the module where its weights are: `()` gives their path, a symbol and a length put them into the binary.
fn weights_macro(stem: &str, linked: bool) -> String {
    let path = in_out_dir(stem, ".weights");
    let embed = match linked {
        true => "::kiln::link_weights!($symbol, $bytes);".to_owned(),
        false => format!("::kiln::embed_weights!({path}, $symbol, $bytes);"),
    };
    format!(
        "macro_rules! __kiln_weights {{\n    () => {{\n        {path}\n    }};\n    \
         ($symbol:literal, $bytes:expr) => {{\n        {embed}\n    }};\n}}\n"
    )
}

/// The path of a file of ours, as an expression.
fn in_out_dir(stem: &str, suffix: &str) -> String {
    format!("concat!(env!(\"OUT_DIR\"), {:?})", format!("/{stem}{suffix}"))
}

/// Why a build script could not compile a model.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    model: PathBuf,
    what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot compile {}:", self.model.display())?;
        if self.what.contains('\n') {
            self.what.lines().try_for_each(|line| write!(f, "\n  {line}"))
        } else {
            write!(f, " {}", self.what)
        }
    }
}

/// As Display: this is what cargo shows of a build script that returns the error from `main`.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_times_and_branch_arenas_shape_the_module() {
        let root = env!("CARGO_MANIFEST_DIR");
        let out = std::env::temp_dir().join(format!("kiln-config-profile-{}", std::process::id()));
        std::fs::create_dir_all(&out).expect("made");
        let times = out.join("times.json");
        std::fs::write(&times, "{\"ops\": [{\"node\": \"y\", \"median_ns\": 7000}]}").expect("written");
        let config = Config::new().out_dir(&out);
        let source = |config: &Config| {
            config.compile(format!("{root}/../fixtures/models/affine/model.onnx")).map_err(|e| e.to_string())?;
            Ok::<_, String>(std::fs::read_to_string(out.join("model.rs")).expect("written"))
        };
        let plain = source(&config);
        let both = source(&config.clone().profile(&times).arenas(Arenas::Branch));
        let wrong = source(&config.clone().profile(out.join("none.json")));
        std::fs::write(&times, "[]").expect("written");
        let no_times = source(&config.profile(&times));
        std::fs::remove_dir_all(&out).expect("removed");
        let both = both.expect("compiles");
        assert!(both.contains("arenas = branch, times from a file (") && plain.is_ok_and(|p| p != both), "{both}");
        assert!(wrong.expect_err("no file").contains("none.json"));
        assert!(no_times.expect_err("no times").contains("kilnc bench MODEL --per-op --json"));
    }

    #[test]
    fn two_models_of_one_name_are_told_apart() {
        let fixture = |name: &str| format!("{}/../fixtures/models/{name}/model.onnx", env!("CARGO_MANIFEST_DIR"));
        let out = std::env::temp_dir().join(format!("kiln-config-{}", std::process::id()));
        let config = Config::new().out_dir(&out);
        config.compile(fixture("affine")).expect("compiles");
        config.compile(fixture("affine")).expect("the same model may come again");
        let refused = config.compile(fixture("digits")).expect_err("the same files");
        config.clone().name("digits").compile(fixture("digits")).expect("has a name of its own");
        let written = out.join("digits.rs").is_file() && out.join("digits.weights.rs").is_file();
        let bad = config.name("../digits").compile(fixture("digits")).expect_err("no name for a file");
        std::fs::remove_dir_all(&out).expect("removed");
        assert!(written);
        assert!(refused.to_string().contains("give one of them a name"), "{refused}");
        assert!(bad.to_string().contains("no name for a file"), "{bad}");
    }
}
