//! Golden outputs: every fixture against tract, with the stored inputs and with random ones.
//!
//! The test prints a table with the reason where tract cannot load or run a model. A model on the list below is known to
//! be beyond tract; any other that it cannot load fails the test, so that the comparison does not vanish unseen.

mod peer;

use kiln_compiler::cases::{self, Case, Tolerance};
use kiln_compiler::ir::Tensor;
use kiln_compiler::{Options, compile, exec};
use kiln_kernels::isa::Isa;
use kiln_tests::{models, stages};
use peer::Peer;

/// Not supported by kiln yet.
const UNSUPPORTED: &[&str] = &[];

/// What tract 0.23 does not load or run, and why.
const BEYOND_TRACT: &[(&str, &str)] =
    &[("names", "model-local functions"), ("control_flow", "a Loop with a state and stacked results")];

/// tract's own approximations and another order of sums: not as tight as against the reference.
const TOLERANCE: Tolerance = Tolerance { rtol: 1e-3, atol: 1e-4 };

enum Outcome {
    Equal(usize),
    Beyond(String),
    Differs(String),
}

fn compare(case: &Case) -> Result<Outcome, String> {
    let decoded = case.decode().map_err(|e| e.to_string())?;
    let tolerance = case.tolerance.unwrap_or_default();
    let tolerance = Tolerance { rtol: TOLERANCE.rtol.max(tolerance.rtol), atol: TOLERANCE.atol.max(tolerance.atol) };
    let mut n_runs = 0;
    for set in case.data_sets(&decoded.model).map_err(|e| e.to_string())? {
        let options = Options { import: set.import_options(), ..Options::default() };
        let program = compile(&decoded, &options).map_err(|e| e.to_string())?;
        let peer = match Peer::load(&case.folder.join("model.onnx"), &set.inputs) {
            Ok(peer) => peer,
            Err(e) => return Ok(Outcome::Beyond(e)),
        };
        let mut trials: Vec<Vec<Tensor>> = vec![set.inputs.clone()];
        trials.extend((10..13).map(|seed| models::random_like(&set, seed)));
        for inputs in &trials {
            let want = match peer.run(inputs) {
                Ok(want) => want,
                Err(e) => return Ok(Outcome::Beyond(e)),
            };
            let got = exec::run_program(&program, &stages::bytes(inputs), Isa::detect()).map_err(|e| e.to_string())?;
            if let Err(e) = cases::compare(&got, &want, tolerance) {
                return Ok(Outcome::Differs(e));
            }
            n_runs += 1;
        }
    }
    Ok(Outcome::Equal(n_runs))
}

#[test]
fn fixtures_agree_with_tract() {
    let mut problems = Vec::new();
    println!("{:<18} kiln and tract", "fixture");
    for case in models::fixtures().iter().filter(|c| !UNSUPPORTED.contains(&c.name.as_str())) {
        let known = BEYOND_TRACT.iter().find(|(name, _)| *name == case.name);
        let text = match compare(case) {
            Ok(Outcome::Equal(n)) => {
                if known.is_some() {
                    problems.push(format!("{}: tract runs it: take it off the list", case.name));
                }
                format!("equal in {n} runs")
            }
            Ok(Outcome::Beyond(reason)) => {
                if known.is_none() {
                    problems.push(format!("{}: beyond tract: {reason}", case.name));
                }
                format!("beyond tract: {reason}")
            }
            Ok(Outcome::Differs(e)) | Err(e) => {
                problems.push(format!("{}: {e}", case.name));
                format!("DIFFER: {e}")
            }
        };
        println!("{:<18} {text}", case.name);
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
