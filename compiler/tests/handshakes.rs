//! Naive delegation against ours on a target where handshakes are dear (Parallax's key finding): delegating all that an
//! accelerator can do is slower than the CPU alone, and our placement never is. On the fixtures, and on `swinv2_tiny` where
//! `KILN_MODELS` names a folder that has it. `kilnc plan` shows the same table.
#![cfg(feature = "cli")]

use kiln_compiler::cases::{self, Case};
use kiln_compiler::import::ImportOptions;
use kiln_compiler::machine::Machine;
use kiln_compiler::{Options, compile};
use std::path::{Path, PathBuf};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn dear_handshakes() -> Machine {
    let file = here().join("tests/targets/dear-handshakes.toml");
    Machine::named(file.to_str().expect("a path that is text")).expect("a target")
}

/// Checks the order of the predicted times of a case, all from one table; whether delegation is slower than the CPU alone.
fn naive_is_slower(case: &Case) -> bool {
    let name = &case.name;
    let decoded = case.decode().expect("a model");
    let import = match case.data_sets(&decoded.model).expect("data").first() {
        Some(set) => set.import_options(),
        None => ImportOptions::default(),
    };
    let options = Options { import, machine: dear_handshakes(), ..Options::default() };
    let program = compile(&decoded, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
    let summary = program.placement.expect("a target of two devices");
    println!("{name}: {:?}, this plan {} ns", summary.candidates, summary.predicted_ns);
    let of = |what: &str| {
        summary.candidates.iter().find(|(n, _)| n == what).unwrap_or_else(|| panic!("{name}: no line \"{what}\"")).1
    };
    let alone = of("all on cpu");
    assert!(of("optimal, makespan") <= alone, "{name}: slower than the CPU alone");
    assert!(of("optimal, makespan") <= of("optimal, sum"), "{name}: a longer time than that of the least sum");
    assert_eq!(summary.predicted_ns, of("optimal, makespan"), "{name}: another plan was taken");
    of("priority") > alone
}

#[test]
fn naive_delegation_is_slower_than_the_cpu_alone_and_ours_is_not() {
    for name in ["digits", "mobile", "unet"] {
        let folder = here().join("../fixtures/models").join(name);
        let case = cases::find(&folder).expect("a fixture").remove(0);
        assert!(naive_is_slower(&case), "{name}: naive delegation pays here");
    }
}

#[test]
fn the_same_on_swinv2_tiny() {
    let folder = std::env::var_os("KILN_MODELS").map(|f| PathBuf::from(f).join("swinv2_tiny.fixed"));
    let Some(mut found) = folder.and_then(|f| cases::find(&f).ok()).filter(|found| !found.is_empty()) else {
        println!("skipped: KILN_MODELS names no folder with swinv2_tiny.fixed");
        return;
    };
    assert!(naive_is_slower(&found.remove(0)), "naive delegation pays here");
}
