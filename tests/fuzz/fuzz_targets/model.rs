//! libFuzzer's target: ONNX models, mutated as messages, through the whole compile. `KILN_FUZZ_SEEDS=FOLDER` writes the
//! seeds there first.
#![no_main]

use kiln_fuzz::{check, mutate, seeds};
use libfuzzer_sys::{fuzz_crossover, fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(
    // Seeds are written before libFuzzer reads its corpus.
    init: seeds::write().expect("the folder for seeds"),
    |data: &[u8]| check::compile(data)
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    // One in sixteen is mutated as bytes: what reads the messages is fuzzed as well.
    if seed % 16 == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    match mutate::mutate(&data[..size], u64::from(seed)) {
        Some(new) if new.len() <= max_size => {
            data[..new.len()].copy_from_slice(&new);
            new.len()
        }
        _ => fuzzer_mutate(data, size, max_size),
    }
});

fuzz_crossover!(|a: &[u8], b: &[u8], out: &mut [u8], seed: u32| {
    let new = mutate::cross(a, b, u64::from(seed)).filter(|new| new.len() <= out.len());
    let new = new.unwrap_or_else(|| a[..a.len().min(out.len())].to_vec());
    out[..new.len()].copy_from_slice(&new);
    new.len()
});
