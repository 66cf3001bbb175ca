//! Every fixture against its stored outputs and, with random inputs, against the naive reference, on every instruction
//! set of this machine.

use kiln_compiler::cases::{self, Case, Tolerance};
use kiln_compiler::ir::Tensor;
use kiln_compiler::onnx::proto::ModelProto;
use kiln_compiler::{Options, compile, exec};
use kiln_fixtures::array::Array;
use kiln_fixtures::reference;
use kiln_kernels::isa::Isa;
use kiln_tests::{models, stages};
use prost::Message;

/// Fixtures that are not supported yet. One that passes all the same fails the test: take it off the list.
const UNSUPPORTED: &[&str] = &[];

/// Random inputs would meet rounding boundaries, or the weights are not in the model file.
const NOT_RANDOM: &[&str] = &["int8_qdq", "external"];

/// Runs all data sets; with random inputs too.
fn check(case: &Case) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let decoded = case.decode().map_err(|e| text(&e))?;
    let sets = case.data_sets(&decoded.model).map_err(|e| text(&e))?;
    let tolerance = case.tolerance.unwrap_or_default();
    for (i, set) in sets.iter().enumerate() {
        let options = Options { import: set.import_options(), ..Options::default() };
        let program = compile(&decoded, &options).map_err(|e| text(&e))?;
        let mut trials = vec![(format!("data set {i}"), set.inputs.clone(), set.outputs.clone(), tolerance)];
        if !NOT_RANDOM.contains(&case.name.as_str()) {
            for seed in 0..3 {
                let inputs = models::random_like(set, seed);
                let outputs = expected(case, &inputs)?;
                let scale = outputs.iter().filter_map(Tensor::to_f32s).flatten().fold(0f32, |a, v| a.max(v.abs()));
                let tolerance = Tolerance { atol: tolerance.atol.max(1e-5 * f64::from(scale)), ..tolerance };
                trials.push((format!("data set {i}, seed {seed}"), inputs, outputs, tolerance));
            }
        }
        for (what, inputs, outputs, tolerance) in &trials {
            for isa in Isa::supported() {
                let got = exec::run_program(&program, &stages::bytes(inputs), isa).map_err(|e| text(&e))?;
                cases::compare(&got, outputs, *tolerance).map_err(|e| format!("{what}, {}: {e}", isa.name()))?;
            }
        }
    }
    Ok(())
}

/// What the reference says.
fn expected(case: &Case, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let bytes = std::fs::read(case.folder.join("model.onnx")).map_err(|e| e.to_string())?;
    let model = ModelProto::decode(&bytes[..]).map_err(|e| e.to_string())?;
    let inputs: Option<Vec<Array>> = inputs.iter().map(stages::to_array).collect();
    let outputs = reference::run(&model, &inputs.ok_or("an input's type is unknown to the reference")?);
    outputs.iter().map(|a| stages::to_tensor(a).ok_or_else(|| "an output's type".to_owned())).collect()
}

#[test]
fn fixtures_give_their_stored_outputs() {
    let mut problems = Vec::new();
    for case in models::fixtures() {
        let unsupported = UNSUPPORTED.contains(&case.name.as_str());
        match check(&case) {
            Ok(()) if unsupported => problems.push(format!("{} passes: take it off the list", case.name)),
            Ok(()) => println!("{}: equal", case.name),
            Err(e) if unsupported => println!("{}: unsupported, as listed: {e}", case.name),
            Err(e) => problems.push(format!("{}: {e}", case.name)),
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn the_classifier_names_the_digits() {
    let case = models::fixtures().into_iter().find(|c| c.name == "digits").expect("the digits fixture");
    let decoded = case.decode().expect("the digits decode");
    let program = compile(&decoded, &Options::default()).expect("the digits compile");
    for (digit, set) in case.data_sets(&decoded.model).expect("data sets").iter().enumerate() {
        let out = exec::run_program(&program, &stages::bytes(&set.inputs), Isa::detect()).expect("the digits run");
        let p = out[0].to_f32s().expect("probabilities");
        assert!(p[digit] > 0.5, "digit {digit}: {p:?}");
    }
}
