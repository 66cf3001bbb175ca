//! Whole networks with recurrent state or a cache: many steps with outputs bound to inputs, each compared with the same
//! network stepped by hand, its outputs fed back as inputs.
//!
//! Networks are looked for as in `networks.rs` (`KILN_MODELS`, `KILN_SHARED`, `KILN_ONLY`); what is absent is skipped.

use kiln_compiler::cases::{self, Case, DataSet, Tolerance};
use kiln_compiler::import::{DimBound, ImportOptions};
use kiln_compiler::ir::Tensor;
use kiln_compiler::onnx::Decoded;
use kiln_compiler::program::Program;
use kiln_compiler::{Options, compile, exec};
use kiln_kernels::Dtype;
use kiln_kernels::isa::Isa;
use kiln_tests::models;
use kiln_tests::session::Session;

/// The same kernels on the same numbers.
const SAME: Tolerance = Tolerance { rtol: 1e-5, atol: 1e-6 };

fn compiled(decoded: &Decoded, import: &ImportOptions, states: &[(&str, &str)]) -> Program {
    let states = states.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    compile(decoded, &Options { import: import.clone(), states, ..Options::default() }).unwrap()
}

/// The network of this name, if it is here.
fn network(name: &str) -> Option<Case> {
    let found = models::networks().into_iter().find(|c| c.name == name);
    if found.is_none() {
        println!("skipped: {name} is not here (KILN_MODELS, KILN_SHARED)");
    }
    found
}

/// Runs `n_steps` with the states and by hand. `input` makes the inputs of a step that are no states, in order.
fn check(
    case: &Case,
    import: impl Fn(&DataSet) -> ImportOptions,
    pattern: (&str, &str),
    n_steps: usize,
    input: impl Fn(usize, &[Tensor]) -> Vec<Tensor>,
) {
    let decoded = case.decode().unwrap();
    let set = case.data_sets(&decoded.model).unwrap().remove(0);
    let import = import(&set);
    let stored = set.inputs;
    let (bound, by_hand) = (compiled(&decoded, &import, &[pattern]), compiled(&decoded, &import, &[]));
    let states = bound.states.clone();
    assert!(!states.is_empty());
    let is_state = |i: usize| states.iter().any(|s| s.input_idx == i);
    let names: Vec<String> = bound.inputs.iter().map(|p| p.name.clone()).collect();
    let others: Vec<Tensor> = (0..stored.len()).filter(|i| !is_state(*i)).map(|i| stored[i].clone()).collect();
    let mut session = Session::new(bound).unwrap();
    let mut feeds = stored.clone();
    for s in &states {
        session.set(&names[s.input_idx], &feeds[s.input_idx]).unwrap();
    }
    for step in 0..n_steps {
        let given = input(step, &others);
        let mut rest = given.iter();
        for (i, feed) in feeds.iter_mut().enumerate().filter(|(i, _)| !is_state(*i)) {
            *feed = rest.next().unwrap_or_else(|| panic!("input {i}")).clone();
        }
        let want = exec::run_program_on(&by_hand, &feeds, Isa::detect()).unwrap();
        let got = session.run(&given).unwrap();
        cases::compare(&got, &want, SAME).unwrap_or_else(|e| panic!("{}, step {step}: {e}", case.name));
        for s in &states {
            feeds[s.input_idx] = want[s.output_idx].clone();
        }
    }
    println!("{}: {n_steps} steps, {} states", case.name, states.len());
}

#[test]
fn a_cache_grows_over_thirty_two_steps() {
    let Some(case) = network("whisper_tiny.decoder_with_past.dyn") else { return };
    let bounds =
        [("batch", 1, 1), ("decoder_sequence", 1, 1), ("past_decoder_sequence", 1, 64), ("encoder_sequence", 1, 1500)];
    let dims = bounds.map(|(name, a, b)| (name.to_owned(), DimBound::Range(a, b))).into();
    let import = ImportOptions { dims, ..ImportOptions::default() };
    check(
        &case,
        |_| import.clone(),
        ("present.*", "past_key_values.*"),
        32,
        |step, others| {
            let ids: Vec<u8> =
                (0..others[0].numel()).flat_map(|i| ((step * 1009 + i * 31) as i64 % 50_000).to_le_bytes()).collect();
            let ids = Tensor::new(Dtype::I64, others[0].dims().to_vec(), ids.into()).unwrap();
            [&[ids], &others[1..]].concat()
        },
    );
}

#[test]
fn recurrent_state_over_a_stream_of_chunks() {
    for name in ["silero_vad", "silero_vad_16k_op15"] {
        let Some(case) = network(name) else { continue };
        // The sampling rate chooses a branch; the others do not take chunks of this size, so it has to be known.
        let import = |set: &DataSet| ImportOptions { input_values: set.small_values(), ..set.import_options() };
        check(&case, import, ("stateN", "state"), 64, |step, others| {
            // Sound that comes and goes: tones of changing pitch under a slow envelope.
            let wave = |i: usize| {
                let t = (step * others[0].numel() + i) as f32 / 16_000.0;
                (t * 900.0 * (1.0 + t)).sin() * (t * 5.0).sin().max(0.0) * 0.5
            };
            let chunk: Vec<f32> = (0..others[0].numel()).map(wave).collect();
            [&[Tensor::from_f32s(others[0].dims(), &chunk)], &others[1..]].concat()
        });
    }
}
