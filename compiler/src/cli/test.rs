//! `kilnc test`: compiles every case, builds all modules in few crates, runs them, compares.
//!
//! In: folders of cases. Out: a line for each case, a last line with the counts, JSON if asked for. A case passes when all
//! its data sets do. Data sets of different sizes get a module each.

use super::args::TestArgs;
use super::build::{self, Builder, Kiln, Source, Task, run_all};
use super::term::{self, Progress};
use super::{Failure, Outcome, data, guarded, placement};
use crate::Options;
use crate::artifact::{Artifact, Cache, ModelFile};
use crate::cases::{self, Case, DataSet, Tolerance};
use crate::error::{CompileErrors, Stage};
use crate::import::{DimBound, ImportOptions, check_dims};
use crate::ir::{Tensor, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What is said of a case whose modules take values of small inputs up to those at hand.
const BOUNDED: &str = "(sizes bounded by the inputs at hand)";
/// What is said of a case whose modules take only the values of small inputs at hand.
const FIXED: &str = "(sizes or axes taken from the inputs at hand)";

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Pass,
    Fail,
    Unsupported,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Unsupported => "UNSUPPORTED",
        }
    }
}

struct Verdict {
    status: Status,
    reason: String,
    seconds: f64,
}

/// A case's data and its modules.
struct Prepared {
    sets: Vec<DataSet>,
    /// For each data set its module.
    modules: Vec<usize>,
    artifacts: Vec<Artifact>,
    /// What is to be said of the values that a module takes.
    said: Option<&'static str>,
    seconds: f64,
}

/// The command.
pub(super) fn command(args: &TestArgs) -> Outcome {
    if args.compile.save_placement.is_some() {
        return Err(Failure::misuse(
            "--save-placement: cases have a placement each; kilnc plan saves that of one model",
        ));
    }
    let options = args.compile.options("model")?;
    let jobs = super::jobs(args.jobs)?;
    if ![args.rtol, args.atol].iter().all(|t| t.is_finite() && *t >= 0.0) {
        return Err(Failure::misuse("--rtol and --atol must be finite numbers of at least 0"));
    }
    let mut all = Vec::new();
    for folder in &args.folders {
        if folder.is_file() {
            let what = "is a file: give the folder it lies in, with test_data_set_0 beside the model";
            return Err(Failure::Misuse(format!("{} {what}", folder.display())));
        }
        let found = cases::find(folder).map_err(|e| Failure::Misuse(format!("{}: {e}", folder.display())))?;
        if found.is_empty() {
            return Err(Failure::Misuse(format!("{}: no model.onnx in it or below", folder.display())));
        }
        all.extend(found);
    }
    let cache = Cache::new(super::cache_folder()?);
    let progress = Progress::new(args.compile.quiet);
    let scratch = data::Scratch::new().map_err(Failure::Short)?;
    let known = Known::default();
    let prepared = prepare(&all, &options, &known, &cache, jobs, &progress);
    if let Some(what) = known.unknown(&options) {
        progress.done();
        return Err(Failure::Misuse(what));
    }
    let nodes = prepared.iter().flatten().flat_map(|p| &p.artifacts).flat_map(|a| &a.facts.steps);
    placement::warn_of_times(&options, nodes.map(|s| s.node.as_str()), &args.compile);
    let verdicts = run(args, &all, prepared, &cache, jobs, &progress, &scratch)?;
    cache.prune();
    progress.done();
    report(args, &all, &verdicts)
}

/// Which of the options some model of the run has a use for: a name that only some have is no mistake, one that none has is.
#[derive(Default)]
struct Known {
    models: AtomicUsize,
    dims: Mutex<BTreeSet<String>>,
    pins: Mutex<BTreeSet<String>>,
}

impl Known {
    /// The options that this model has a use for; without the pins that match none of its nodes.
    fn fitting(&self, model: &ModelFile, options: &Options) -> Options {
        self.models.fetch_add(1, Ordering::Relaxed);
        let mut own = options.clone();
        own.pins.retain(|p| p.matches_any(&model.decoded));
        let has = |name: &&String| {
            let dims = options.import.dims.get_key_value(*name).map(|(n, b)| (n.clone(), *b)).into_iter().collect();
            check_dims(&model.decoded.model, &ImportOptions { dims, ..ImportOptions::default() }).is_ok()
        };
        if let (Ok(mut dims), Ok(mut pins)) = (self.dims.lock(), self.pins.lock()) {
            dims.extend(options.import.dims.keys().filter(has).cloned());
            pins.extend(own.pins.iter().map(|p| p.text().to_owned()));
        }
        own
    }

    /// What is wrong with the options, if no model has a use for one of them.
    fn unknown(&self, options: &Options) -> Option<String> {
        let (dims, pins) = (self.dims.lock().ok()?, self.pins.lock().ok()?);
        let dim = options.import.dims.keys().find(|name| !dims.contains(*name));
        let dim = dim.map(|name| format!("--dim {name}: no model of this run has a free dimension of this name"));
        let pin = options.pins.iter().find(|p| !pins.contains(p.text()));
        let pin = pin.map(|p| format!("--pin {}: no node of this run's models has such a name", p.text()));
        // What cannot be read at all is reported case by case.
        dim.or(pin).filter(|_| self.models.load(Ordering::Relaxed) > 0)
    }
}

/// Calls `f` for every index, on several threads; the results in order.
fn in_parallel<T: Send>(n: usize, jobs: usize, f: &(dyn Fn(usize) -> T + Sync)) -> Vec<Option<T>> {
    let next = AtomicUsize::new(0);
    let out: Mutex<Vec<Option<T>>> = Mutex::new((0..n).map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(n) {
            let work = || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= n {
                        break;
                    }
                    let result = f(i);
                    if let Ok(mut out) = out.lock() {
                        out[i] = Some(result);
                    }
                }
            };
            // A thread that cannot be started leaves its work to the others.
            let _ = std::thread::Builder::new().stack_size(super::STACK_BYTES).spawn_scoped(scope, work);
        }
    });
    out.into_inner().unwrap_or_default()
}

fn prepare(
    all: &[Case],
    options: &Options,
    known: &Known,
    cache: &Cache,
    jobs: usize,
    progress: &Progress,
) -> Vec<Result<Prepared, Verdict>> {
    let done = AtomicUsize::new(0);
    let one = |i: usize| {
        let start = Instant::now();
        let result = guarded(|| prepare_one(&all[i], options, known, cache));
        progress.say(&format!("compiling: {} of {} cases", done.fetch_add(1, Ordering::Relaxed) + 1, all.len()));
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(Ok(prepared)) => Ok(Prepared { seconds, ..prepared }),
            Ok(Err(e)) => Err(refusal(&e, seconds)),
            Err(panic) => Err(Verdict { status: Status::Fail, reason: panic, seconds }),
        }
    };
    let lost = || Err(Verdict { status: Status::Fail, reason: "was not compiled".into(), seconds: 0.0 });
    in_parallel(all.len(), jobs, &one).into_iter().map(|r| r.unwrap_or_else(lost)).collect()
}

/// A file that cannot be read and a bug of the compiler are failures.
fn is_fault(e: &crate::error::CompileError) -> bool {
    matches!(e.stage, Stage::Read | Stage::Verify) || e.message.contains("a bug in the compiler")
}

/// Whether the model is merely not supported.
fn is_refusal(errors: &CompileErrors) -> bool {
    !errors.iter().any(is_fault)
}

fn refusal(errors: &CompileErrors, seconds: f64) -> Verdict {
    let status = if is_refusal(errors) { Status::Unsupported } else { Status::Fail };
    let first = errors.iter().find(|e| is_fault(e)).or_else(|| errors.iter().next()).map(ToString::to_string);
    let mut reason = first.unwrap_or_default().replace('\n', " ");
    if errors.len() > 1 {
        reason.push_str(&format!(" (and {} more)", errors.len() - 1));
    }
    Verdict { status, reason, seconds }
}

fn prepare_one(case: &Case, options: &Options, known: &Known, cache: &Cache) -> Result<Prepared, CompileErrors> {
    let model = ModelFile::read(&case.folder.join("model.onnx"))?;
    let options = &known.fitting(&model, options);
    let sets = case.data_sets(&model.decoded.model)?;
    let mut out = Prepared { sets: Vec::new(), modules: Vec::new(), artifacts: Vec::new(), said: None, seconds: 0.0 };
    let mut made_for: Vec<MadeFor> = Vec::new();
    for set in sets {
        let module = match made_for.iter().position(|m| m.serves(&set, &model.decoded.model, options)) {
            Some(known) => known,
            None => {
                let (artifact, made) = module_for(&set, &model, options, &case.name, cache)?;
                out.artifacts.push(artifact);
                out.said = out.said.or(made.basis.said());
                made_for.push(made);
                made_for.len() - 1
            }
        };
        out.modules.push(module);
        out.sets.push(set);
    }
    Ok(out)
}

/// What a module was compiled for.
struct MadeFor {
    sizes: BTreeMap<usize, Vec<usize>>,
    types: BTreeMap<usize, Type>,
    basis: Basis,
}

/// Which values of small inputs a module takes.
enum Basis {
    /// Any.
    Any,
    /// Those within bounds.
    Bounded(BTreeMap<String, DimBound>),
    /// Only these.
    Fixed(BTreeMap<usize, Tensor>),
}

impl Basis {
    fn said(&self) -> Option<&'static str> {
        match self {
            Self::Any => None,
            Self::Bounded(_) => Some(BOUNDED),
            Self::Fixed(_) => Some(FIXED),
        }
    }
}

impl MadeFor {
    fn serves(&self, set: &DataSet, model: &crate::onnx::Model, options: &Options) -> bool {
        let within = |bound: &DimBound, here: Option<&DimBound>| match (bound, here) {
            (DimBound::Range(a, b), Some(DimBound::Range(_, v) | DimBound::Fixed(v))) => (a..=b).contains(&v),
            (bound, here) => Some(bound) == here,
        };
        let values = match &self.basis {
            Basis::Any => true,
            Basis::Bounded(bounds) => {
                let here = set.value_bounds(model);
                bounds.iter().all(|(name, bound)| within(bound, here.get(name)))
            }
            Basis::Fixed(values) => {
                values.iter().all(|(i, t)| set.inputs.get(*i).is_some_and(|h| h.data() == t.data()))
            }
        };
        let import = set.import_options_with(model, &options.import.dims);
        values && self.sizes == import.input_dims && self.types == import.input_types
    }
}

/// A module for a data set: for all values of its inputs, else for those up to the ones at hand, else for these alone.
fn module_for(
    set: &DataSet,
    model: &ModelFile,
    options: &Options,
    name: &str,
    cache: &Cache,
) -> Result<(Artifact, MadeFor), CompileErrors> {
    let import = set.import_options_with(&model.decoded.model, &options.import.dims);
    let (sizes, types) = (import.input_dims.clone(), import.input_types.clone());
    let mut own = Options { import, name: name.to_owned(), ..options.clone() };
    let made = |basis| MadeFor { sizes, types, basis };
    // The first refusal is the one to report.
    let first = match cache.module_of(model, &own) {
        Err(e) if is_refusal(&e) => e,
        other => return Ok((other?, made(Basis::Any))),
    };
    let later = |e: CompileErrors, first| if is_refusal(&e) { first } else { e };
    let bounds = set.value_bounds(&model.decoded.model);
    let given = bounds.keys().any(|name| options.import.dims.contains_key(name));
    if !bounds.is_empty() && !given {
        own.import.dims.extend(bounds.clone());
        match cache.module_of(model, &own) {
            Err(e) if is_refusal(&e) => own.import.dims = options.import.dims.clone(),
            other => return Ok((other?, made(Basis::Bounded(bounds)))),
        }
    }
    let values = set.small_values();
    if values.is_empty() {
        return Err(first);
    }
    own.import.input_values = values.clone();
    let artifact = cache.module_of(model, &own).map_err(|e| later(e, first))?;
    Ok((artifact, made(Basis::Fixed(values))))
}

/// Builds and runs what was compiled.
fn run(
    args: &TestArgs,
    all: &[Case],
    prepared: Vec<Result<Prepared, Verdict>>,
    cache: &Cache,
    jobs: usize,
    progress: &Progress,
    scratch: &data::Scratch,
) -> Result<Vec<Verdict>, Failure> {
    let kiln = Kiln::find().map_err(Failure::Misuse)?;
    let builder = Builder { cache: cache.folder(), kiln: &kiln, jobs, opt_level: 0, progress };
    let artifacts = || prepared.iter().flatten().flat_map(|p| &p.artifacts);
    let sources: Vec<_> = artifacts().map(|artifact| Source { artifact, per_step: false }).collect();
    let built = build::build(&sources, &builder).map_err(Failure::Short)?;
    let mut built = built.into_iter();
    let built: Vec<Vec<_>> = prepared
        .iter()
        .map(|p| p.as_ref().map_or_else(|_| Vec::new(), |p| built.by_ref().take(p.artifacts.len()).collect()))
        .collect();
    let mut tasks = Vec::new();
    // For each task its case and data set.
    let mut places = Vec::new();
    let mut files: Vec<PathBuf> = Vec::new();
    for (case_idx, case) in prepared.iter().enumerate() {
        let Ok(case) = case else { continue };
        for (set_idx, (set, &module)) in case.sets.iter().zip(&case.modules).enumerate() {
            let Some(Ok(module)) = built[case_idx].get(module) else { continue };
            let inputs = scratch.file(&format!("{case_idx}-{set_idx}.in"));
            data::write_data(&inputs, &set.input_data()).map_err(Failure::Short)?;
            let outputs = scratch.file(&format!("{case_idx}-{set_idx}.out"));
            let last = outputs.display().to_string();
            tasks.push(Task { module: module.clone(), what: "run", inputs, last });
            files.push(outputs);
            places.push((case_idx, set_idx));
        }
    }
    let done = AtomicUsize::new(0);
    let count = |n: usize| {
        progress.say(&format!("running: {} of {} data sets", done.fetch_add(n, Ordering::Relaxed) + n, tasks.len()));
    };
    let outcomes = run_all(&tasks, jobs, Duration::from_secs(args.timeout), &count);
    let mut verdicts = Vec::new();
    for (case_idx, case) in prepared.into_iter().enumerate() {
        let case = match case {
            Ok(case) => case,
            Err(verdict) => {
                verdicts.push(verdict);
                continue;
            }
        };
        let mut notes = case.sets.first().map(DataSet::note).unwrap_or_default();
        if let Some(said) = case.said {
            notes = format!("{said} {notes}").trim_end().to_owned();
        }
        let mut verdict = Verdict { status: Status::Pass, reason: notes, seconds: case.seconds };
        if let Some(Err(why)) = built[case_idx].iter().find(|b| b.is_err()) {
            verdict = Verdict { status: Status::Fail, reason: why.clone(), ..verdict };
        }
        let tolerance = all[case_idx].tolerance.unwrap_or(Tolerance { rtol: args.rtol, atol: args.atol });
        for (t, &(_, set_idx)) in places.iter().enumerate().filter(|(_, place)| place.0 == case_idx) {
            verdict.seconds += outcomes[t].spent.as_secs_f64();
            let result = match &outcomes[t].said {
                Ok(_) => check(&files[t], &case.sets[set_idx], tolerance),
                Err(why) => Err(why.clone()),
            };
            if let Err(why) = result
                && verdict.status == Status::Pass
            {
                let reason = if case.sets.len() > 1 { format!("data set {set_idx}: {why}") } else { why };
                // A kernel that met a format it does not know says so.
                let unknown = why_unsupported(&outcomes[t].said);
                let status = if unknown { Status::Unsupported } else { Status::Fail };
                verdict = Verdict { status, reason, ..verdict };
            }
        }
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

/// Whether a run ended because a kernel does not support its input.
fn why_unsupported<T>(said: &Result<T, String>) -> bool {
    said.as_ref().err().is_some_and(|why| why.contains(kiln_kernels::Fault::Unsupported.message()))
}

fn check(outputs: &std::path::Path, set: &DataSet, tolerance: Tolerance) -> Result<(), String> {
    let got = data::read_data(outputs)?;
    let _ = std::fs::remove_file(outputs);
    set.compare_data(&got, tolerance)
}

fn report(args: &TestArgs, all: &[Case], verdicts: &[Verdict]) -> Outcome {
    for (case, v) in all.iter().zip(verdicts) {
        let line = format!("{} {} {}", v.status.word(), case.name, v.reason);
        term::result(line.trim_end());
    }
    let count = |status| verdicts.iter().filter(|v| v.status == status).count();
    let (passed, failed, unsupported) = (count(Status::Pass), count(Status::Fail), count(Status::Unsupported));
    if let Some(path) = &args.json {
        let cases: Vec<_> = all
            .iter()
            .zip(verdicts)
            .map(|(case, v)| {
                serde_json::json!({
                    "name": case.name, "status": v.status.word(), "reason": v.reason, "seconds": v.seconds,
                })
            })
            .collect();
        let json = serde_json::json!({
            "passed": passed, "failed": failed, "unsupported": unsupported, "cases": cases,
        });
        let text = format!("{json:#}\n");
        std::fs::write(path, text).map_err(|e| Failure::Misuse(format!("cannot write {}: {e}", path.display())))?;
    }
    term::result(&format!("{passed} passed, {failed} failed, {unsupported} unsupported"));
    if failed + unsupported == 0 { Ok(()) } else { Err(Failure::short("")) }
}
