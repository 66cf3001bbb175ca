//! Snapshots of the stages of a few whole models: the graph after all passes, the planned program, the emitted source.
//!
//! `BLESS=1 cargo test -p kiln-compiler --test snapshots` rewrites them; read the difference before committing it.

use kiln_compiler::emit::{self, WeightsFrom, program_text};
use kiln_compiler::import::ImportOptions;
use kiln_compiler::ir::text::graph_text;
use kiln_compiler::{Options, compile, graph, onnx};
use std::path::{Path, PathBuf};

/// Models, and sizes of their inputs where the file leaves them free.
const MODELS: &[(&str, &[(usize, &[usize])])] = &[
    ("digits", &[]),
    ("encoder_dynamic", &[(0, &[1, 7]), (1, &[1, 7])]),
    ("gru", &[]),
    ("int8_qdq", &[]),
    ("names", &[]),
];

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots")
}

/// The first line that differs.
fn difference(kept: &str, now: &str) -> String {
    let at = kept.lines().zip(now.lines()).take_while(|(a, b)| a == b).count();
    let line = |text: &str| text.lines().nth(at).unwrap_or("(no more lines)").to_owned();
    format!("line {}:\n  kept: {}\n  now:  {}", at + 1, line(kept), line(now))
}

fn check(name: &str, stage: &str, now: &str, problems: &mut Vec<String>) {
    let path = here().join(format!("{name}.{stage}.txt"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(here()).and_then(|()| std::fs::write(&path, now)).expect("the snapshot can be written");
        return;
    }
    match std::fs::read_to_string(&path) {
        Ok(kept) if kept == now => {}
        Ok(kept) => problems.push(format!("{name}.{stage}.txt, {}", difference(&kept, now))),
        Err(e) => problems.push(format!("{name}.{stage}.txt: {e}")),
    }
}

#[test]
fn stages_are_as_kept() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models");
    let mut problems = Vec::new();
    for (name, dims) in MODELS {
        let decoded = onnx::read(fixtures.join(name).join("model.onnx")).expect("a fixture decodes");
        let input_dims = dims.iter().map(|(i, d)| (*i, d.to_vec())).collect();
        let import = ImportOptions { input_dims, ..ImportOptions::default() };
        let options = Options { name: (*name).to_owned(), import, ..Options::default() };
        let after = graph(&decoded, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        check(name, "graph", &graph_text(&after), &mut problems);
        let program = compile(&decoded, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        check(name, "program", &program_text(&program), &mut problems);
        let emitted = emit::emit(&program, WeightsFrom::Embed, false).unwrap_or_else(|e| panic!("{name}: {e}"));
        check(name, "rs", &emitted.source, &mut problems);
    }
    let hint = "BLESS=1 rewrites the snapshots";
    assert!(problems.is_empty(), "{}\n{hint}", problems.join("\n"));
}
