//! The `kilnc` command: arguments in, results on stdout, messages on stderr, an exit code out.
//!
//! Exit codes: 0 done, 1 a result that falls short (a failed case, a model that is not supported), 2 wrong use or
//! unreadable input. Nothing panics: whatever does, in the compiler, is reported as a bug of ours.

mod args;
mod bench;
mod build;
mod check;
mod compile;
mod data;
mod measure;
mod model;
mod npy;
mod pack;
mod placement;
mod plan;
mod roofline;
mod run;
mod target;
mod term;
mod test;
#[cfg(feature = "verify")]
mod verify;

use crate::error::{CompileErrors, Stage};
use crate::machine::TargetError;
use args::{Cli, Command};
use clap::Parser;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

/// Why a command did not end well.
#[derive(Debug)]
enum Failure {
    /// The result falls short (exit code 1). What there is to say has been printed when the text is empty.
    Short(String),
    /// Wrong use or unreadable input (exit code 2).
    Misuse(String),
}

impl Failure {
    fn misuse(what: impl Into<String>) -> Self {
        Self::Misuse(what.into())
    }

    fn short(what: impl Into<String>) -> Self {
        Self::Short(what.into())
    }
}

impl From<CompileErrors> for Failure {
    fn from(errors: CompileErrors) -> Self {
        let misuse = errors.iter().any(|e| matches!(e.stage, Stage::Options | Stage::Read | Stage::Decode));
        if misuse { Self::Misuse(errors.to_string()) } else { Self::Short(errors.to_string()) }
    }
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Wrong(_) => Self::Misuse(error.to_string()),
            TargetError::Unsupported(_) => Self::Short(error.to_string()),
        }
    }
}

type Outcome = Result<(), Failure>;

/// Large models nest deeply; only what is touched of a stack is memory.
const STACK_BYTES: usize = 512 << 20;

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let run = move || guarded(|| command(cli.command));
    let outcome = match std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run) {
        Ok(thread) => thread.join().unwrap_or_else(|_| Ok(Err(Failure::short("internal error")))),
        Err(e) => Ok(Err(Failure::short(format!("cannot start a thread: {e}")))),
    };
    let (code, text) = match outcome {
        Ok(Ok(())) => (0, String::new()),
        Ok(Err(Failure::Short(text))) => (1, text),
        Ok(Err(Failure::Misuse(text))) => (2, text),
        Err(panic) => (1, format!("{panic} (this is a bug in kilnc)")),
    };
    if !text.is_empty() {
        term::message(&format!("error: {text}"));
    }
    ExitCode::from(code)
}

/// Catches a panic, silently, and gives its message.
fn guarded<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    static QUIET: std::sync::Once = std::sync::Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        format!("internal error: {}", text.unwrap_or_else(|| "panicked".into()))
    })
}

/// Where compiled modules, generated crates and binaries are kept: `KILN_CACHE_DIR`, or the user's cache folder. It is
/// made here, and an error says so where nothing can be written there.
fn cache_folder() -> Result<PathBuf, Failure> {
    let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let folder = from("KILN_CACHE_DIR")
        .or_else(|| from("XDG_CACHE_HOME").map(|p| p.join("kiln")))
        .or_else(|| from("LOCALAPPDATA").map(|p| p.join("kiln")))
        .or_else(|| from("HOME").map(|p| p.join(".cache/kiln")))
        .unwrap_or_else(|| std::env::temp_dir().join("kiln"));
    let probe = folder.join(format!(".{}", crate::artifact::unique()));
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&probe, []));
    let _ = std::fs::remove_file(&probe);
    written.map_err(|e| {
        Failure::misuse(format!(
            "cannot write in the cache folder {} (KILN_CACHE_DIR names another): {e}",
            folder.display()
        ))
    })?;
    Ok(folder)
}

/// The number of jobs asked for, or one for each core.
fn jobs(asked: Option<usize>) -> Result<usize, Failure> {
    match asked {
        Some(n @ 1..=1024) => Ok(n),
        Some(n) => Err(Failure::Misuse(format!("--jobs {n}: expected 1 to 1024"))),
        None => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
    }
}

fn command(command: Command) -> Outcome {
    match command {
        Command::Test(args) => test::command(&args),
        Command::Check(args) => check::command(&args),
        Command::Compile(args) => compile::command(&args),
        Command::Plan(args) => plan::command(&args),
        Command::Run(args) => run::command(&args),
        Command::Bench(args) => bench::command(&args),
        #[cfg(feature = "verify")]
        Command::Verify(args) => verify::command(&args),
        #[cfg(not(feature = "verify"))]
        Command::Verify(_) => Err(Failure::misuse(
            "this kilnc was built without feature verify: in a clone, cargo install --path compiler --features verify",
        )),
        Command::Target(target) => target::command(&target),
        Command::Pack(args) => pack::command(&args),
    }
}
