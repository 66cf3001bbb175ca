//! Whole networks with free extents: each is compiled once and runs at three sizes and at the size of its stored data.
//!
//! The judge is tract at each size; where it cannot load a network, the network compiled for exactly that size (which
//! `networks.rs` compares with stored outputs). Inputs are the stored ones, cut or repeated to the size. Networks are looked
//! for as in `networks.rs` (`KILN_MODELS`, `KILN_SHARED`, `KILN_ONLY`); what is absent is skipped.

mod peer;

use kiln_compiler::cases::{self, Case, Tolerance};
use kiln_compiler::import::{DimBound, ImportOptions, extent_name};
use kiln_compiler::ir::Tensor;
use kiln_compiler::onnx::model::{Model, Type};
use kiln_compiler::{Options, compile, exec};
use kiln_kernels::isa::Isa;
use kiln_tests::{models, stages};
use peer::Peer;
use std::collections::BTreeMap;
use std::time::Instant;

/// A free extent: its name, its bound from above, and the sizes it takes in the three runs.
type Free = (&'static str, i64, [usize; 3]);

const BATCH: Free = ("batch", 3, [1, 3, 2]);

/// Networks and their free extents; names end with what the folders' names end with.
const NETWORKS: &[(&str, &[Free])] = &[
    ("mobilenet_v2.dyn", &[BATCH]),
    ("mobilenet_v2.dyn.dynamo", &[BATCH]),
    ("distilbert.dyn", &[BATCH, ("sequence", 128, [5, 16, 33])]),
    ("distilbert.dyn.dynamo", &[BATCH, ("sequence", 128, [6, 1, 40])]),
    ("clip_text.dyn", &[BATCH, ("sequence", 77, [7, 12, 50])]),
    ("swinv2_tiny.dyn", &[BATCH]),
    ("yolov8n.dyn", &[BATCH, ("height", 640, [64, 96, 160]), ("width", 640, [96, 64, 128])]),
    ("whisper_tiny.encoder.dyn", &[BATCH]),
    (
        "whisper_tiny.decoder_with_past.dyn",
        &[
            BATCH,
            ("decoder_sequence", 2, [1, 1, 1]),
            ("past_decoder_sequence", 64, [1, 7, 40]),
            ("encoder_sequence", 1500, [8, 20, 750]),
        ],
    ),
    ("minilm_int8", &[BATCH, ("sequence", 64, [3, 17, 64])]),
    (
        "rapidocr_det",
        &[
            ("p2o.DynamicDimension.0", 2, [1, 2, 1]),
            ("p2o.DynamicDimension.1", 320, [96, 64, 320]),
            ("p2o.DynamicDimension.2", 320, [64, 160, 224]),
        ],
    ),
    ("magika", &[("unk__214", 4, [1, 4, 2])]),
];

/// A tensor of other extents: along each axis cut, or repeated from its beginning.
fn resized(t: &Tensor, dims: &[usize]) -> Tensor {
    let size = t.dtype().size_bytes();
    let n: usize = dims.iter().product();
    let mut data = Vec::with_capacity(n * size);
    for i in 0..n {
        let (mut rest, mut at, mut stride) = (i, 0, 1);
        for (&new, &old) in dims.iter().zip(t.dims()).rev() {
            at += (rest % new) % old * stride;
            (rest, stride) = (rest / new, stride * old);
        }
        data.extend_from_slice(&t.data()[at * size..(at + 1) * size]);
    }
    Tensor::new(t.dtype(), dims.to_vec(), data.into()).expect("as many elements as the extents say")
}

/// The stored inputs at the sizes of a run.
fn inputs_at(model: &Model, stored: &[Tensor], sizes: &BTreeMap<&str, usize>) -> Vec<Tensor> {
    let at = |(info, t): (&kiln_compiler::onnx::model::ValueInfo, &Tensor)| {
        let Some(Type::Tensor(_, Some(declared))) = &info.ty else { return t.clone() };
        let extents = declared.iter().zip(t.dims()).enumerate().map(|(axis, (d, &n))| {
            let name = extent_name(&info.name, axis, d);
            name.and_then(|name| sizes.get(name.as_str()).copied()).unwrap_or(n)
        });
        resized(t, &extents.collect::<Vec<_>>())
    };
    model.graph.inputs.iter().zip(stored).map(at).collect()
}

/// Differences are measured against the largest element, as deep networks blow up their smallest.
fn agree(got: &[Tensor], want: &[Tensor], (rtol, atol): (f64, f64)) -> Result<(), String> {
    let largest = want.iter().filter_map(|t| t.to_f32s()).flatten().fold(1f32, |a, v| a.max(v.abs()));
    cases::compare(got, want, Tolerance { rtol, atol: atol * f64::from(largest) })
}

/// Compiles once, runs at every size: what judged each.
fn check(case: &Case, free: &[Free]) -> Result<Vec<String>, String> {
    let decoded = case.decode().map_err(|e| e.to_string())?;
    let set = case.data_sets(&decoded.model).map_err(|e| e.to_string())?.remove(0);
    let bound = |(name, most, _): &Free| ((*name).to_owned(), DimBound::Range(1, *most));
    let import = ImportOptions { dims: free.iter().map(bound).collect(), ..ImportOptions::default() };
    let program = compile(&decoded, &Options { import, ..Options::default() }).map_err(|e| e.to_string())?;
    let run = |inputs: &[Tensor]| exec::run_program_on(&program, inputs, Isa::detect()).map_err(|e| e.to_string());
    let mut judges = Vec::new();
    for k in 0..3 {
        let sizes: BTreeMap<&str, usize> = free.iter().map(|(name, _, sizes)| (*name, sizes[k])).collect();
        let inputs = inputs_at(&decoded.model, &set.inputs, &sizes);
        let got = run(&inputs).map_err(|e| format!("{sizes:?}: {e}"))?;
        let peer = Peer::load(&case.folder.join("model.onnx"), &inputs).and_then(|p| p.run(&inputs));
        let judged = match peer {
            Ok(want) => agree(&got, &want, (1e-2, 1e-4)).map(|()| "tract".to_owned()),
            Err(_) => {
                let input_dims = inputs.iter().enumerate().map(|(i, t)| (i, t.dims().to_vec())).collect();
                let import = ImportOptions { input_dims, ..ImportOptions::default() };
                let fixed = compile(&decoded, &Options { import, ..Options::default() }).map_err(|e| e.to_string())?;
                let want = exec::run_program(&fixed, &stages::bytes(&inputs), Isa::detect());
                agree(&got, &want.map_err(|e| e.to_string())?, (1e-3, 1e-5)).map(|()| "fixed".to_owned())
            }
        };
        judges.push(judged.map_err(|e| format!("{sizes:?}: {e}"))?);
    }
    // The sizes of the stored data lie within the bounds, or the data is left out.
    let fits = |(name, most, _): &Free| {
        let extents = decoded.model.graph.inputs.iter().zip(&set.inputs).flat_map(|(info, t)| {
            let Some(Type::Tensor(_, Some(declared))) = &info.ty else { return Vec::new() };
            let named = declared.iter().zip(t.dims()).enumerate();
            named
                .filter(|(axis, (d, _))| extent_name(&info.name, *axis, d).as_deref() == Some(name))
                .map(|(_, (_, n))| *n)
                .collect()
        });
        extents.into_iter().all(|n| n as i64 <= *most)
    };
    if free.iter().all(fits) {
        cases::compare(&run(&set.inputs)?, &set.outputs, case.tolerance.unwrap_or_default())
            .map_err(|e| format!("stored data: {e}"))?;
        judges.push("stored".to_owned());
    }
    Ok(judges)
}

#[test]
fn one_program_runs_at_every_size() {
    let cases = models::networks();
    let (mut wrong, mut any) = (Vec::new(), false);
    for (name, free) in NETWORKS {
        let Some(case) = cases.iter().find(|c| c.name == *name) else { continue };
        any = true;
        let start = Instant::now();
        let result = check(case, free);
        let text = result.as_ref().map_or_else(|e| format!("WRONG: {e}"), |judges| judges.join(", "));
        println!("{name:<36} {:>6.1} s  {text}", start.elapsed().as_secs_f64());
        wrong.extend(result.err().map(|e| format!("{name}: {e}")));
    }
    if !any {
        println!("skipped: no networks here (KILN_MODELS, KILN_SHARED)");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
