//! Random graphs: every compile is verified, the planned arena gives the same bits as separate memory for every buffer,
//! and both what the naive reference says.

use kiln_compiler::cases::{self, Tolerance};
use kiln_compiler::ir::Tensor;
use kiln_compiler::onnx::{decode, encode};
use kiln_compiler::{Options, emit};
use kiln_fixtures::reference;
use kiln_kernels::isa::Isa;
use kiln_tests::graphs::random_graph;
use kiln_tests::stages::{stages, to_array, to_tensor};

const N_GRAPHS: u64 = 400;

fn check(seed: u64) -> Result<(), String> {
    let random = random_graph(seed, 2 + (seed as usize * 7) % 30);
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let decoded = decode(encode(&random.model), None).map_err(|e| text(&e))?;
    let stages = stages(&decoded, &Options::default()).map_err(|e| text(&e))?;
    let inputs: Option<Vec<Tensor>> = random.inputs.iter().map(to_tensor).collect();
    let inputs = inputs.ok_or("an input's type")?;
    let isas: Vec<Isa> = Isa::supported().collect();
    let isa = isas[seed as usize % isas.len()];
    let planned = stages.run_planned(&inputs, isa).map_err(|e| text(&e))?;
    let unplanned = stages.run_unplanned(&inputs, isa).map_err(|e| text(&e))?;
    for (i, (a, b)) in planned.iter().zip(&unplanned).enumerate() {
        if a.data() != b.data() {
            return Err(format!("output {i} differs between the arena and separate memory ({})", isa.name()));
        }
    }
    let again = stages.run_planned(&inputs, isa).map_err(|e| text(&e))?;
    if again.iter().zip(&planned).any(|(a, b)| a.data() != b.data()) {
        return Err("a second run gives other bits".to_owned());
    }
    let arrays: Vec<_> = inputs.iter().filter_map(to_array).collect();
    let want: Option<Vec<Tensor>> = reference::run(&random.model, &arrays).iter().map(to_tensor).collect();
    let want = want.ok_or("an output's type")?;
    let largest = want.iter().filter_map(Tensor::to_f32s).flatten().fold(1f32, |a, v| a.max(v.abs()));
    let tolerance = Tolerance { rtol: 1e-3, atol: 2e-5 * f64::from(largest) };
    cases::compare(&planned, &want, tolerance).map_err(|e| format!("against the reference ({}): {e}", isa.name()))?;
    let source = |s| emit::emit(s, emit::WeightsFrom::Embed, false).map_err(|e| e.to_string());
    let once = source(&stages.program)?;
    if seed % 16 == 0 {
        let twice = source(&kiln_tests::stages::stages(&decoded, &Options::default()).map_err(|e| text(&e))?.program)?;
        if once != twice {
            return Err("two compiles emit different bytes".to_owned());
        }
    }
    Ok(())
}

#[test]
fn random_graphs_compile_and_run_the_same_planned_and_unplanned() {
    let problems: Vec<String> =
        (0..N_GRAPHS).filter_map(|seed| check(seed).err().map(|e| format!("seed {seed}: {e}"))).collect();
    assert!(problems.is_empty(), "{} of {N_GRAPHS}:\n{}", problems.len(), problems.join("\n"));
}
