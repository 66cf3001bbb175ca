//! `kilnc verify`: random inputs through the built module and through tract; the results must agree.
//!
//! Both sides round, so an element may differ by the relative tolerance times its own size or, where sums have cancelled, times the root
//! mean square of its row (the last axis): what remains of a sum is known no better than its terms. Where that is not enough, tract
//! runs again on inputs whose last bits are changed: what moves its own result by more than the difference has no better value.
//! Integers must be equal.
//!
//! With `--per-node` every value of the graph becomes an output on both sides, so the first node that differs shows.

use super::args::VerifyArgs;
use super::build::{Task, run_all};
use super::term::{self, Progress};
use super::{Failure, Outcome, data, model, placement};
use crate::artifact::{Cache, ModelFile};
use crate::cases::{self, Tolerance, values};
use crate::facts::PortFact;
use crate::ir::{Datum, Tensor};
use crate::onnx::model::ValueInfo;
use kiln_kernels::Dtype;
use std::collections::HashSet;
use std::time::Duration;
use tract_onnx::prelude as tract;
use tract_onnx::prelude::{Framework, InferenceModelExt, IntoRunnable};

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
    placement::report_module(&file.decoded, facts, &options, &args.compile)?;
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
    for case in 0..args.cases {
        let inputs = model::inputs(&facts.inputs, &[], args.seed.wrapping_add(case as u64))?;
        let (in_file, out_file) = (scratch.file(&format!("{case}.in")), scratch.file(&format!("{case}.out")));
        data::write_data(&in_file, &inputs).map_err(Failure::Short)?;
        let last = out_file.display().to_string();
        tasks.push(Task { module: module.clone(), what: "run", inputs: in_file, last });
        files.push(out_file);
        sets.push(tensors(inputs));
    }
    progress.say("running");
    let outcomes = run_all(&tasks, 1, Duration::from_secs(args.timeout), &|_| {});
    let given = Tolerance { rtol: args.rtol, atol: args.atol };
    let tolerance = args.model.parent().and_then(cases::tolerance_of).unwrap_or(given);
    let mut wrong = Vec::new();
    for (case, (outcome, inputs)) in outcomes.iter().zip(&sets).enumerate() {
        outcome.said.as_ref().map_err(|why| Failure::short(format!("case {case}: {why}")))?;
        let got = tensors(data::read_data(&files[case]).map_err(Failure::Short)?);
        let want = peer.run(inputs, &facts.outputs).map_err(|e| Failure::short(format!("tract: {e:#}")))?;
        progress.done();
        let verdicts: Vec<_> = got.iter().zip(&want).map(|(g, w)| agree(g, w, None, tolerance)).collect();
        // Only where needed: it costs another run of the peer.
        let moved = match verdicts.iter().all(Result::is_ok) {
            true => None,
            false => {
                let nudged: Vec<Tensor> = inputs.iter().map(nudge).collect();
                peer.run(&nudged, &facts.outputs).ok()
            }
        };
        for (i, ((port, g), w)) in facts.outputs.iter().zip(&got).zip(&want).enumerate() {
            let moved = moved.as_ref().and_then(|m| m.get(i));
            let verdict = verdicts[i].clone().or_else(|_| agree(g, w, moved, tolerance));
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

/// The tensor with the last three bits of each f32's significand flipped at random: about what rounding in some sixty layers does.
fn nudge(t: &Tensor) -> Tensor {
    if t.dtype() != Dtype::F32 {
        return t.clone();
    }
    let mut random = model::Random(1);
    let floats = t.data().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let bytes: Vec<u8> = floats.flat_map(|v| (v ^ (random.next() & 7) as u32).to_le_bytes()).collect();
    Tensor::new(Dtype::F32, t.dims().to_vec(), bytes.into()).unwrap_or_else(|| t.clone())
}

/// Whether two results of rounding arithmetic agree; where they do not, why. `moved` is what `want` becomes for inputs next to
/// the given ones.
fn agree(got: &Tensor, want: &Tensor, moved: Option<&Tensor>, tolerance: Tolerance) -> Result<(), String> {
    let strict = cases::compare(std::slice::from_ref(got), std::slice::from_ref(want), tolerance);
    if strict.is_ok() || !matches!(got.dtype(), Dtype::F32 | Dtype::F64 | Dtype::F16 | Dtype::Bf16) {
        return strict;
    }
    let (Some(g), Some(w), true) = (values(got), values(want), got.dims() == want.dims()) else { return strict };
    let moved = moved.filter(|m| m.dims() == want.dims()).and_then(values).unwrap_or_else(|| w.clone());
    let row = want.dims().last().copied().unwrap_or(1).max(1);
    let within = |((g, w), m): ((&[f64], &[f64]), &[f64])| {
        let scale = (w.iter().map(|w| w * w).sum::<f64>() / row as f64).sqrt();
        let motion = w.iter().zip(m).map(|(w, m)| (w - m).abs()).fold(0.0, f64::max);
        let allowed = |w: f64| tolerance.atol + tolerance.rtol * w.abs().max(scale) + motion;
        g.iter().zip(w).all(|(&g, &w)| g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= allowed(w))
    };
    if g.chunks(row).zip(w.chunks(row)).zip(moved.chunks(row)).all(within) { Ok(()) } else { strict }
}

fn largest_error(got: &Tensor, want: &Tensor) -> f64 {
    let (Some(g), Some(w)) = (values(got), values(want)) else { return f64::NAN };
    g.iter().zip(&w).map(|(g, w)| if g == w { 0.0 } else { (g - w).abs() }).fold(0.0, f64::max)
}

/// tract's reader. Extents that a file states for values and outputs are left out: where an input's free extent gets a number,
/// tract takes the name that they still have for another one.
fn reader() -> tract_onnx::Onnx {
    tract_onnx::onnx().with_ignore_output_shapes(true).with_ignore_value_info(true)
}

/// The model in tract.
struct Peer(std::sync::Arc<tract::TypedRunnableModel>);

impl Peer {
    fn load(path: &std::path::Path, inputs: &[PortFact], outputs: Option<&[String]>) -> tract::TractResult<Self> {
        let mut model = reader().model_for_path(path)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[f32]) -> Tensor {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor::new(Dtype::F32, vec![values.len() / 4, 4], bytes.into()).expect("a tensor")
    }

    #[test]
    fn the_rows_size_bounds_an_error_where_a_sum_cancelled() {
        let tolerance = Tolerance { rtol: 1e-3, atol: 1e-7 };
        let want = rows(&[100.0, -80.0, 0.01, 90.0, 1e-3, 2e-3, 1e-3, 3e-3]);
        let agrees = |at: usize, by: f32| {
            let mut got: Vec<f32> = values(&want).expect("floats").iter().map(|&v| v as f32).collect();
            got[at] += by;
            agree(&rows(&got), &want, None, tolerance).is_ok()
        };
        assert!(agrees(2, 0.05));
        assert!(!agrees(2, 0.2));
        assert!(!agrees(6, 0.05), "the other row is small");
        assert!(!agrees(0, f32::NAN));
        // A result that the inputs' last bits move as far is no better known.
        let moved = rows(&[100.0, -80.0, 0.01, 90.0, 1e-3, 0.1, 1e-3, 3e-3]);
        let got = rows(&[100.0, -80.0, 0.01, 90.0, 1e-3, 2e-3, 0.05, 3e-3]);
        assert!(agree(&got, &want, None, tolerance).is_err());
        assert!(agree(&got, &want, Some(&moved), tolerance).is_ok());
        assert!(
            agree(&rows(&[100.5, -80.0, 0.01, 90.0, 1e-3, 2e-3, 1e-3, 3e-3]), &want, Some(&moved), tolerance).is_err()
        );
    }

    #[test]
    fn a_nudge_changes_last_bits_only() {
        let t = rows(&[1.0, -2.0, 0.0, 3.5]);
        let nudged = values(&nudge(&t)).expect("floats");
        let near =
            values(&t).expect("floats").iter().zip(&nudged).all(|(a, b)| (a - b).abs() <= a.abs() * 1e-6 + 1e-40);
        assert!(near && nudge(&t).data() != t.data());
    }
}
