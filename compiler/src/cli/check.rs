//! `kilnc check`: is the model compilable, and if not, why: all problems at once.

use super::args::CheckArgs;
use super::{Failure, Outcome, model, placement, term};
use crate::compile;
use crate::error::{CompileErrors, Stage};
use crate::import::{ImportOptions, free_dims};

/// The command.
pub(super) fn command(args: &CheckArgs) -> Outcome {
    let (model, options) = model::read(&args.model, &args.compile)?;
    let problems = match compile(&model.decoded, &options) {
        Ok(program) => {
            placement::warn_of_times(&options, program.steps.iter().map(|s| s.node.as_str()), &args.compile);
            placement::save(&program, &args.compile)?;
            if !args.json {
                let n = model.decoded.model.graph.nodes.len();
                term::result(&format!("supported: {n} nodes, {} kernel calls", program.steps.len()));
            }
            CompileErrors::default()
        }
        // Options that do not fit the model are no problem of the model.
        Err(errors) if errors.iter().any(|e| e.stage == Stage::Options) => return Err(errors.into()),
        Err(errors) => errors,
    };
    if args.json {
        let list = problems.iter().map(|e| {
            let message = match &e.operand {
                Some(place) => format!("{place}: {}", e.message),
                None => e.message.clone(),
            };
            serde_json::json!({ "node": e.node, "op": e.op, "message": message })
        });
        let list: Vec<_> = list.collect();
        let json = serde_json::json!({ "supported": problems.is_empty(), "problems": list });
        term::result(&format!("{json:#}"));
    } else {
        problems.iter().for_each(|e| term::result(&e.to_string()));
    }
    let count = match problems.len() {
        0 => return Ok(()),
        1 => "1 problem".to_owned(),
        n => format!("{n} problems"),
    };
    let sizes = missing_sizes(&model.decoded.model, &options.import);
    Err(Failure::Short(format!("{count}: this model cannot be compiled{sizes}")))
}

/// The options that give every free extent a bound, on a line of their own; nothing where all have one.
fn missing_sizes(model: &crate::onnx::Model, import: &ImportOptions) -> String {
    let free = free_dims(model);
    let options = free.iter().filter(|name| !import.dims.contains_key(*name)).map(|name| {
        let plain = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-'));
        let mark = if plain { "" } else { "'" };
        format!(" --dim {mark}{name}=1..N{mark}")
    });
    let options: String = options.collect();
    if options.is_empty() {
        options
    } else {
        format!("\nfor its free sizes give{options}, each N the largest that may come")
    }
}
