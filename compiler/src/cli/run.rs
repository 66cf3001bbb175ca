//! `kilnc run`: compiles, builds, runs once, prints the outputs and writes them as .npy.

use super::args::RunArgs;
use super::build::{Task, run_all};
use super::term::{self, Progress};
use super::{Failure, Outcome, data, model, npy};
use crate::artifact::Cache;
use crate::cases::values;
use crate::emit::unique_idents;
use crate::facts::PortFact;
use crate::ir::Tensor;
use std::time::Duration;

/// The command.
pub(super) fn command(args: &RunArgs) -> Outcome {
    let given = args.input.iter().map(|text| model::given_input(text)).collect::<Result<Vec<_>, _>>()?;
    let (file, mut options) = model::read(&args.model, &args.compile)?;
    model::fix_extents(&mut options.import, &file.decoded.model, &given)?;
    let progress = Progress::new(args.compile.quiet);
    let cache = Cache::new(super::cache_folder()?);
    progress.say("compiling");
    let artifact = cache.module_of(&file, &options)?;
    let inputs = model::inputs(&artifact.facts.inputs, &given, args.seed)?;
    progress.say("building");
    let (module, _) = model::build(&artifact, &options, &cache, &progress)?;
    progress.say("running");
    let scratch = data::Scratch::new().map_err(Failure::Short)?;
    let (in_file, out_file) = (scratch.file("in"), scratch.file("out"));
    data::write_inputs(&in_file, &inputs).map_err(Failure::Short)?;
    let task = Task { module, what: "run", inputs: in_file, last: out_file.display().to_string() };
    let outcomes = run_all(&[task], 1, Duration::from_secs(args.timeout.max(1)), &|_| {});
    cache.prune();
    progress.done();
    for outcome in outcomes {
        outcome.said.map_err(Failure::Short)?;
    }
    let outputs = data::read_outputs(&out_file).map_err(Failure::Short)?;
    show(&artifact.facts.outputs, &outputs, args.json);
    if let Some(folder) = &args.output_dir {
        let names = unique_idents(artifact.facts.outputs.iter().map(|p| p.name.as_str()));
        // NumPy's format has no strings of this kind.
        for (name, output) in names.iter().zip(&outputs).filter(|(_, t)| t.dtype() != kiln_kernels::Dtype::Str) {
            let path = folder.join(format!("{name}.npy"));
            let write = || std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, npy::write(output)));
            write().map_err(|e| Failure::Misuse(format!("cannot write {}: {e}", path.display())))?;
        }
    }
    Ok(())
}

/// How many elements are shown of each output.
const SHOWN: usize = 8;

fn show(ports: &[PortFact], outputs: &[Tensor], json: bool) {
    let mut list = Vec::new();
    for (port, t) in ports.iter().zip(outputs) {
        if let Some(texts) = t.to_strings() {
            let first = &texts[..texts.len().min(SHOWN)];
            let more = if texts.len() > SHOWN { ", …" } else { "" };
            if json {
                list.push(serde_json::json!({
                    "name": port.name, "dtype": "str", "dims": t.dims(), "first": first,
                }));
            } else {
                let first: Vec<_> = first.iter().map(|s| format!("{s:?}")).collect();
                term::result(&format!("{} str{:?} [{}{more}]", port.name, t.dims(), first.join(", ")));
            }
            continue;
        }
        let values = values(t).unwrap_or_default();
        let first = &values[..values.len().min(SHOWN)];
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        if json {
            list.push(serde_json::json!({
                "name": port.name, "dtype": t.dtype().name(), "dims": t.dims(),
                "min": min, "max": max, "mean": mean, "first": first,
            }));
            continue;
        }
        let first: Vec<_> =
            first.iter().map(|v| format!("{v:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()).collect();
        let more = if values.len() > SHOWN { ", …" } else { "" };
        let figures =
            if values.is_empty() { String::new() } else { format!(" min {min:.6} max {max:.6} mean {mean:.6}") };
        term::result(&format!("{} {}{:?}{figures} [{}{more}]", port.name, t.dtype(), t.dims(), first.join(", ")));
    }
    if json {
        term::result(&format!("{:#}", serde_json::json!({ "outputs": list })));
    }
}
