//! `kilnc run`: compiles, builds, runs once, prints the outputs and writes them as .npy.

use super::args::RunArgs;
use super::build::{Task, run_all};
use super::term::{self, Progress};
use super::{Failure, Outcome, data, model, npy, placement};
use crate::artifact::Cache;
use crate::cases::values;
use crate::emit::unique_idents;
use crate::facts::PortFact;
use crate::ir::{Datum, Tensor};
use kiln_kernels::Object;
use std::path::Path;
use std::time::Duration;

/// The command.
pub(super) fn command(args: &RunArgs) -> Outcome {
    let (file, mut options) = model::read(&args.model, &args.compile)?;
    let given = model::given_inputs(&args.input, &file.decoded.model, &mut options.import)?;
    let unwritable = |path: &Path, e| Failure::Misuse(format!("cannot write {}: {e}", path.display()));
    // Before any work is done that would be lost.
    if let Some(folder) = &args.output_dir {
        std::fs::create_dir_all(folder).map_err(|e| unwritable(folder, e))?;
    }
    let progress = Progress::new(args.compile.quiet);
    let cache = Cache::new(super::cache_folder()?);
    progress.say("compiling");
    let artifact = cache.module_of(&file, &options)?;
    placement::report_module(&file.decoded, &artifact.facts, &options, &args.compile)?;
    let inputs = model::inputs(&artifact.facts.inputs, &given, args.seed)?;
    progress.say("building");
    let (module, _) = model::build(&artifact, &options, &cache, &progress)?;
    progress.say("running");
    let scratch = data::Scratch::new().map_err(Failure::Short)?;
    let (in_file, out_file) = (scratch.file("in"), scratch.file("out"));
    data::write_data(&in_file, &inputs).map_err(Failure::Short)?;
    let task = Task { module, what: "run", inputs: in_file, last: out_file.display().to_string() };
    let outcomes = run_all(&[task], 1, Duration::from_secs(args.timeout), &|_| {});
    cache.prune();
    progress.done();
    for outcome in outcomes {
        outcome.said.map_err(Failure::Short)?;
    }
    let outputs = data::read_data(&out_file).map_err(Failure::Short)?;
    show(&artifact.facts.outputs, &outputs, args.json);
    if let Some(folder) = &args.output_dir {
        let names = unique_idents(artifact.facts.outputs.iter().map(|p| p.name.as_str()));
        let files = names.iter().zip(&outputs).flat_map(|(name, output)| files(name, output));
        // NumPy's format has no strings of this kind.
        for (name, output) in files.filter(|(_, t)| t.dtype() != kiln_kernels::Dtype::Str) {
            let path = folder.join(format!("{name}.npy"));
            std::fs::write(&path, npy::write(&output)).map_err(|e| unwritable(&path, e))?;
        }
    }
    Ok(())
}

/// How many elements are shown of each output.
const SHOWN: usize = 8;

/// The tensors of an output, each with a name for its file: elements of a sequence have their number behind the name.
fn files(name: &str, output: &Datum) -> Vec<(String, Tensor)> {
    fn of_object(name: String, o: &Object, out: &mut Vec<(String, Tensor)>) {
        match o.as_sequence() {
            Some(all) => all.iter().enumerate().for_each(|(i, o)| of_object(format!("{name}.{i}"), o, out)),
            None => out.extend(Tensor::from_object(o).map(|t| (name, t))),
        }
    }
    let mut out = Vec::new();
    match output {
        Datum::Tensor(t) => out.push((name.to_owned(), t.clone())),
        Datum::Object(_, o) => of_object(name.to_owned(), o, &mut out),
    }
    out
}

fn show(ports: &[PortFact], outputs: &[Datum], json: bool) {
    let mut list = Vec::new();
    for (port, output) in ports.iter().zip(outputs) {
        match output {
            Datum::Tensor(t) if json => list.push(tensor_json(&port.name, t)),
            Datum::Tensor(t) => term::result(&tensor_line(&port.name, t)),
            Datum::Object(ty, o) => {
                let elements = files(&port.name, output);
                if json {
                    let elements: Vec<_> = elements.iter().map(|(name, t)| tensor_json(name, t)).collect();
                    list.push(serde_json::json!({
                        "name": port.name, "type": ty.to_string(), "none": o.is_none(), "elements": elements,
                    }));
                } else {
                    let none = if o.is_none() { " none" } else { "" };
                    term::result(&format!("{} {ty}{none}", port.name));
                    elements.iter().for_each(|(name, t)| term::result(&tensor_line(name, t)));
                }
            }
        }
    }
    if json {
        term::result(&format!("{:#}", serde_json::json!({ "outputs": list })));
    }
}

/// The least, the greatest and the mean.
fn figures(values: &[f64]) -> (f64, f64, f64) {
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (min, max, values.iter().sum::<f64>() / values.len() as f64)
}

fn tensor_json(name: &str, t: &Tensor) -> serde_json::Value {
    if let Some(texts) = t.to_strings() {
        let first = &texts[..texts.len().min(SHOWN)];
        return serde_json::json!({ "name": name, "dtype": "str", "dims": t.dims(), "first": first });
    }
    let values = values(t).unwrap_or_default();
    let (min, max, mean) = figures(&values);
    serde_json::json!({
        "name": name, "dtype": t.dtype().name(), "dims": t.dims(),
        "min": min, "max": max, "mean": mean, "first": values[..values.len().min(SHOWN)],
    })
}

fn tensor_line(name: &str, t: &Tensor) -> String {
    let dims = t.dims();
    let more = |n: usize| if n > SHOWN { ", …" } else { "" };
    if let Some(texts) = t.to_strings() {
        let first: Vec<_> = texts.iter().take(SHOWN).map(|s| format!("{s:?}")).collect();
        return format!("{name} str{dims:?} [{}{}]", first.join(", "), more(texts.len()));
    }
    let values = values(t).unwrap_or_default();
    let (min, max, mean) = figures(&values);
    let short = |v: &f64| format!("{v:.6}").trim_end_matches('0').trim_end_matches('.').to_owned();
    let first: Vec<_> = values.iter().take(SHOWN).map(short).collect();
    let figures = if values.is_empty() { String::new() } else { format!(" min {min:.6} max {max:.6} mean {mean:.6}") };
    format!("{name} {}{dims:?}{figures} [{}{}]", t.dtype(), first.join(", "), more(values.len()))
}
