//! `kilnc verify`: random inputs through the built module and through tract; the results must agree.
//!
//! With `--per-node` every value of the graph becomes an output on both sides, so the first node that differs shows.

use super::args::VerifyArgs;
use super::build::{Task, run_all};
use super::term::{self, Progress};
use super::{Failure, Outcome, data, model};
use crate::artifact::{Cache, ModelFile};
use crate::cases::{self, Tolerance, values};
use crate::facts::PortFact;
use crate::ir::{Datum, Tensor};
use crate::onnx::model::ValueInfo;
use kiln_kernels::Dtype;
use std::collections::HashSet;
use std::time::Duration;
use tract_onnx::prelude as tract;
use tract_onnx::prelude::{Framework, IntoRunnable};

/// The command.
pub(super) fn command(args: &VerifyArgs) -> Outcome {
    let (mut file, options) = model::read(&args.model, &args.compile)?;
    if args.per_node {
        reveal_all(&mut file);
    }
    let progress = Progress::new(args.compile.quiet);
    let cache = Cache::new(super::cache_folder()?);
    progress.say("compiling");
    // A model with other outputs is another model: it must not be found under the file's name.
    let artifact = match args.per_node {
        true => cache.module_of(&file.changed("per-node"), &options)?,
        false => cache.module_of(&file, &options)?,
    };
    let facts = &artifact.facts;
    let strange = facts.inputs.iter().chain(&facts.outputs).find(|p| p.object.is_some() || p.dtype == Dtype::Str);
    if let Some(port) = strange {
        let what = port.object.as_deref().unwrap_or("strings");
        return Err(Failure::short(format!(
            "\"{}\" is {what}: only tensors of numbers are compared with tract",
            port.name
        )));
    }
    progress.say("loading the model into tract");
    let names: Vec<String> = facts.outputs.iter().map(|p| p.name.clone()).collect();
    let peer = Peer::load(&args.model, &facts.inputs, args.per_node.then_some(&names[..]));
    let peer = peer.map_err(|e| Failure::short(format!("tract cannot load the model: {e:#}")))?;
    progress.say("building");
    let (module, _) = model::build(&artifact, &options, &cache, &progress)?;
    let scratch = data::Scratch::new().map_err(Failure::Short)?;
    let (mut tasks, mut files, mut sets) = (Vec::new(), Vec::new(), Vec::new());
    for case in 0..args.cases.max(1) {
        let inputs = model::inputs(&facts.inputs, &[], args.seed.wrapping_add(case as u64))?;
        let (in_file, out_file) = (scratch.file(&format!("{case}.in")), scratch.file(&format!("{case}.out")));
        data::write_data(&in_file, &inputs).map_err(Failure::Short)?;
        let last = out_file.display().to_string();
        tasks.push(Task { module: module.clone(), what: "run", inputs: in_file, last });
        files.push(out_file);
        sets.push(tensors(inputs));
    }
    progress.say("running");
    let outcomes = run_all(&tasks, 1, Duration::from_secs(args.timeout.max(1)), &|_| {});
    let tolerance = Tolerance { rtol: args.rtol, atol: args.atol };
    let mut wrong = Vec::new();
    for (case, (outcome, inputs)) in outcomes.iter().zip(&sets).enumerate() {
        outcome.said.as_ref().map_err(|why| Failure::short(format!("case {case}: {why}")))?;
        let got = tensors(data::read_data(&files[case]).map_err(Failure::Short)?);
        let want = peer.run(inputs, &facts.outputs).map_err(|e| Failure::short(format!("tract: {e:#}")))?;
        progress.done();
        for ((port, g), w) in facts.outputs.iter().zip(&got).zip(&want) {
            let verdict = cases::compare(std::slice::from_ref(g), std::slice::from_ref(w), tolerance);
            let line = format!("case {case} {:?}: largest error {:.3e}", port.name, largest_error(g, w));
            match verdict {
                Ok(()) => term::result(&format!("{line}, equal within tolerance")),
                Err(why) => {
                    term::result(&format!("{line}, DIFFERS: {why}"));
                    wrong.push(port.name.clone());
                }
            }
        }
    }
    match wrong.first() {
        None => Ok(()),
        Some(first) => Err(Failure::short(format!("{} values differ, the first is {first:?}", wrong.len()))),
    }
}

/// The tensors; there is nothing else here.
fn tensors(data: Vec<Datum>) -> Vec<Tensor> {
    data.iter().filter_map(Datum::tensor).cloned().collect()
}

/// Makes every value of the main graph an output.
fn reveal_all(file: &mut ModelFile) {
    let graph = &mut file.decoded.model.graph;
    let known: HashSet<String> = graph.outputs.iter().map(|o| o.name.clone()).collect();
    let names = graph.nodes.iter().flat_map(|n| n.outputs.iter().cloned());
    let all: Vec<_> = names.filter(|n| !n.is_empty() && !known.contains(n)).collect();
    graph.outputs.extend(all.into_iter().map(|name| ValueInfo { name, ty: None, doc: String::new() }));
}

fn largest_error(got: &Tensor, want: &Tensor) -> f64 {
    let (Some(g), Some(w)) = (values(got), values(want)) else { return f64::NAN };
    g.iter().zip(&w).map(|(g, w)| if g == w { 0.0 } else { (g - w).abs() }).fold(0.0, f64::max)
}

/// The model in tract.
struct Peer(std::sync::Arc<tract::TypedRunnableModel>);

impl Peer {
    fn load(path: &std::path::Path, inputs: &[PortFact], outputs: Option<&[String]>) -> tract::TractResult<Self> {
        let mut model = tract_onnx::onnx().model_for_path(path)?;
        for (i, port) in inputs.iter().enumerate() {
            let shape: tract::TVec<usize> = port.dims.iter().copied().collect();
            model.set_input_fact(i, tract::InferenceFact::dt_shape(datum_type(port.dtype)?, shape))?;
        }
        if let Some(names) = outputs {
            model.select_outputs_by_name(names)?;
        }
        Ok(Self(model.into_optimized()?.into_runnable()?))
    }

    fn run(&self, inputs: &[Tensor], outputs: &[PortFact]) -> tract::TractResult<Vec<Tensor>> {
        let mut given = tract::TVec::new();
        for t in inputs {
            given.push(tract::IntoTValue::into_tvalue(to_tract(t)?));
        }
        let results = self.0.run(given)?;
        let mut out = Vec::new();
        for (result, port) in results.iter().zip(outputs) {
            let result = result.cast_to_dt(datum_type(port.dtype)?)?;
            let tensor = Tensor::new(port.dtype, result.shape().to_vec(), result.as_bytes().to_vec().into());
            out.push(tensor.ok_or_else(|| tract::TractError::msg("an output has an unexpected size"))?);
        }
        Ok(out)
    }
}

fn datum_type(dtype: Dtype) -> tract::TractResult<tract::DatumType> {
    use tract::DatumType as T;
    Ok(match dtype {
        Dtype::F32 => T::F32,
        Dtype::F64 => T::F64,
        Dtype::F16 => T::F16,
        Dtype::I8 => T::I8,
        Dtype::I16 => T::I16,
        Dtype::I32 => T::I32,
        Dtype::I64 => T::I64,
        Dtype::U8 => T::U8,
        Dtype::U16 => T::U16,
        Dtype::U32 => T::U32,
        Dtype::U64 => T::U64,
        Dtype::Bool => T::Bool,
        other => return Err(tract::TractError::msg(format!("no type for {other}"))),
    })
}

fn to_tract(t: &Tensor) -> tract::TractResult<tract::Tensor> {
    let mut out = tract::Tensor::zero_dt(datum_type(t.dtype())?, t.dims())?;
    out.as_bytes_mut().copy_from_slice(t.data());
    Ok(out)
}
