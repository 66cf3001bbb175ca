//! What fits a budget, arenas with a region for each branch, measured times: the programs that come of them, run in the
//! compiler, give the bits of the plain one.
#![cfg(feature = "cli")]

use kiln_compiler::cases::{self, DataSet};
use kiln_compiler::emit::{self, WeightsFrom};
use kiln_compiler::ir::Tensor;
use kiln_compiler::memory::Arenas;
use kiln_compiler::onnx::Decoded;
use kiln_compiler::profile::Profile;
use kiln_compiler::program::Program;
use kiln_compiler::{Options, compile, exec};
use kiln_kernels::isa::Isa;
use std::path::Path;

fn fixture(name: &str) -> (Decoded, DataSet) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models").join(name);
    let case = cases::find(&folder).expect("a fixture").remove(0);
    let decoded = case.decode().expect("a model");
    let set = case.data_sets(&decoded.model).expect("data").remove(0);
    (decoded, set)
}

fn options(set: &DataSet, streams: usize) -> Options {
    Options { import: set.import_options(), streams, ..Options::default() }
}

fn run(program: &Program, set: &DataSet) -> Vec<Vec<u8>> {
    let outputs = exec::run_program_on(program, &set.inputs, Isa::detect()).expect("runs");
    outputs.iter().map(|t: &Tensor| t.data().to_vec()).collect()
}

/// A model whose plan on two streams needs more memory than on one.
#[test]
fn a_budget_holds_the_widest_schedule_and_narrower_ones() {
    let (decoded, set) = fixture("half");
    let of = |streams, budget_bytes| compile(&decoded, &Options { budget_bytes, ..options(&set, streams) });
    let (one, two) = (of(1, None).expect("compiles"), of(2, None).expect("compiles"));
    assert!(two.schedule.streams.len() == 2 && two.memory_bytes() > one.memory_bytes(), "another fixture is needed");
    assert!(two.narrow.is_empty());
    let expected = run(&one, &set);

    let both = of(2, Some(two.memory_bytes())).expect("two streams fit");
    let narrow = both.narrow.first().expect("one stream needs less");
    assert_eq!((both.memory_bytes(), narrow.memory_bytes()), (two.memory_bytes(), one.memory_bytes()));
    assert_eq!((both.schedule.streams.len(), narrow.schedule.streams.len()), (2, 1));
    assert_eq!(both.weights_blob(), narrow.weights_blob(), "they share their weights");
    assert_eq!((run(&both, &set), run(narrow, &set)), (expected.clone(), expected.clone()));

    let least = of(2, Some(two.memory_bytes() - 1)).expect("one stream fits");
    assert_eq!((least.schedule.streams.len(), least.memory_bytes()), (1, one.memory_bytes()));
    assert_eq!(run(&least, &set), expected);
    let error = of(2, Some(one.memory_bytes() - 1)).expect_err("nothing fits").to_string();
    assert!(error.contains(&format!("{} are needed", one.memory_bytes())), "{error}");
    assert!(error.contains(&format!("\"{}\"", one.arena.peak[0].name)), "{error}");
}

/// A short list: each schedule in less memory than the one before it, the bits the same, the first that fits taken.
#[test]
fn several_widths_make_a_short_list() {
    for (name, streams) in [("half", 4), ("half", 8), ("unet", 8), ("encoder", 8), ("mobile", 8)] {
        let (decoded, set) = fixture(name);
        let of = |budget| compile(&decoded, &Options { budget_bytes: Some(budget), ..options(&set, streams) });
        let all = of(u64::MAX).expect("compiles");
        let expected = run(&compile(&decoded, &options(&set, 1)).expect("compiles"), &set);
        let list: Vec<&Program> = std::iter::once(&all).chain(&all.narrow).collect();
        assert!(list.len() <= 4, "{name}: {} schedules", list.len());
        for (i, p) in list.iter().enumerate() {
            assert_eq!(run(p, &set), expected, "{name}, schedule {i}");
            assert_eq!(p.weights_blob(), all.weights_blob(), "they share their weights");
            let next = of(p.memory_bytes()).expect("fits");
            assert_eq!((next.memory_bytes(), next.narrow.len()), (p.memory_bytes(), list.len() - 1 - i), "{name}");
        }
        for pair in list.windows(2) {
            assert!(pair[0].memory_bytes() > pair[1].memory_bytes(), "{name}");
            assert!(pair[0].schedule.streams.len() >= pair[1].schedule.streams.len(), "{name}");
        }
        let least = list.last().map_or(0, |p| p.memory_bytes());
        assert!(of(least - 1).expect_err("nothing fits").to_string().contains(&format!("{least} are needed")));
        let source = emit::emit(&all, WeightsFrom::Embed, false).expect("a module").source;
        for i in 1..list.len() {
            assert!(source.contains(&format!("mod schedule_{i} {{")), "{name}, schedule {i}");
        }
    }
}

/// Two streams would save a tenth of the time and take half as much memory again.
#[test]
fn no_streams_where_they_add_more_memory_than_they_save_time() {
    let (decoded, set) = fixture("lstm");
    let [one, two] = [1, 2].map(|streams| compile(&decoded, &options(&set, streams)).expect("compiles"));
    assert_eq!((two.schedule.streams.len(), two.memory_bytes()), (1, one.memory_bytes()));
}

#[test]
fn the_module_holds_both_only_where_they_differ() {
    let (decoded, set) = fixture("half");
    let source = |streams, budget_bytes| {
        let program = compile(&decoded, &Options { budget_bytes, ..options(&set, streams) }).expect("compiles");
        emit::emit(&program, WeightsFrom::Embed, false).expect("a module").source
    };
    let (both, one) = (source(2, Some(1 << 30)), source(1, Some(1 << 30)));
    assert!(both.contains("mod schedule_1 {") && both.contains("schedule: 1"));
    assert!(!one.contains("schedule_1") && one.contains("pub fn with_budget(bytes: usize)"));
    assert!(!source(2, None).contains("schedule_1"));
}

#[test]
fn a_region_for_each_branch_gives_the_same_bits() {
    for name in ["unet", "encoder", "digits", "lstm", "mobile"] {
        let (decoded, set) = fixture(name);
        for streams in [1, 2, 4] {
            let shared = compile(&decoded, &options(&set, streams)).expect("compiles");
            let branch = Options { arenas: Arenas::Branch, ..options(&set, streams) };
            let branch = compile(&decoded, &branch).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(branch.arena.bytes >= shared.arena.lower_bound_bytes, "{name} on {streams} streams");
            assert!(branch.arena.bytes <= shared.arena.naive_bytes, "{name} on {streams} streams");
            assert_eq!(run(&branch, &set), run(&shared, &set), "{name} on {streams} streams");
        }
    }
}

#[test]
fn measured_times_go_before_predicted_ones() {
    let (decoded, set) = fixture("unet");
    let plain = compile(&decoded, &options(&set, 2)).expect("compiles");
    let node = plain.steps.iter().map(|s| s.node.clone()).find(|n| !n.is_empty()).expect("a node");
    let profile = Profile { node_ns: [(node, 1_000_000_000)].into() };
    let measured = compile(&decoded, &Options { profile: Some(profile), ..options(&set, 2) }).expect("compiles");
    assert!(measured.schedule.sequential_ns >= 1_000_000_000);
    assert!(plain.schedule.sequential_ns < 100_000_000);
    assert_eq!(run(&measured, &set), run(&plain, &set));
}
