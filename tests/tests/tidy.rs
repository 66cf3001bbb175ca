//! The repository's own rules: file heads, file sizes, the order of the compiler's modules, no unfinished code, no path of
//! somebody's machine, `unsafe` only where it belongs.

use kiln_tests::models::workspace;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const MAX_LINES: usize = 800;

/// Longer ones, with the reason.
const LONG: &[(&str, &str)] = &[];

/// What a compiler must refuse, word for word: no heads.
const MISUSE: &str = "tests/misuse/";

/// Code without std outside the runtime: it brings the functions that a bare binary needs.
const BARE: &str = "tests/bare/";

/// Modules of the compiler that may import each other: an operator's row lowers itself, and lowering walks the rows.
const TOGETHER: &[(&str, &str)] = &[("lower", "ops")];

/// Imports that would break a promise: the verifier shares nothing with the planners, emission reads the program only,
/// decoding knows nothing of the graph.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("verify", &["memory", "plan", "passes", "ops", "emit", "import"]),
    ("emit", &["ops", "passes", "memory", "import", "onnx", "verify"]),
    ("onnx", &["ir", "import", "ops", "passes", "lower"]),
    ("ir", &["onnx", "ops", "passes", "lower", "import"]),
];

fn collect(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            if name != "target" && (!name.starts_with('.') || name == ".ci") {
                collect(&path, out);
            }
        } else {
            out.push(path);
        }
    }
}

/// The text files of the workspace by relative path, with `/` between the parts.
fn files(extensions: &[&str]) -> BTreeMap<String, String> {
    let (root, mut paths) = (workspace(), Vec::new());
    collect(&root, &mut paths);
    let wanted = |p: &PathBuf| p.extension().is_some_and(|e| extensions.iter().any(|x| e == *x));
    let relative = |p: &PathBuf| {
        let parts = p.strip_prefix(&root).unwrap_or(p).components();
        parts.map(|c| c.as_os_str().to_string_lossy().into_owned()).collect::<Vec<_>>().join("/")
    };
    let read = |p: PathBuf| std::fs::read_to_string(&p).ok().map(|text| (relative(&p), text));
    paths.into_iter().filter(wanted).filter_map(read).collect()
}

fn rust_files() -> BTreeMap<String, String> {
    let all = files(&["rs"]);
    assert!(all.len() > 100, "only {} files found", all.len());
    all
}

fn assert_none(problems: Vec<String>) {
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The code of a file without its unit tests and comments.
fn code(text: &str) -> String {
    let body = match text.find("#[cfg(test)]\nmod tests {") {
        Some(at) => &text[..at],
        None => text,
    };
    body.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.ends_with("/testing.rs")
        || path.starts_with("tests/")
}

#[test]
fn every_file_says_what_it_is() {
    let bare = rust_files().into_iter().filter(|(path, text)| !path.starts_with(MISUSE) && !text.starts_with("//!"));
    assert_none(bare.map(|(path, _)| format!("{path}: does not start with //!")).collect());
}

#[test]
fn files_are_short() {
    let long = |path: &str| LONG.iter().any(|(p, _)| *p == path);
    let lines = |text: &str| match text.find("#[cfg(test)]\nmod tests {") {
        Some(at) => text[..at].lines().count(),
        None => text.lines().count(),
    };
    let mut problems = Vec::new();
    for (path, text) in rust_files().iter().filter(|(path, _)| !is_test(path)) {
        let n = lines(text);
        if n > MAX_LINES && !long(path) {
            problems.push(format!("{path}: {n} lines, split it by {MAX_LINES}"));
        }
        if n <= MAX_LINES && long(path) {
            problems.push(format!("{path}: is short now, take it off the list"));
        }
    }
    assert_none(problems);
}

/// Which modules of the compiler each imports.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let files = rust_files();
    let module = |path: &str| -> Option<String> {
        let rest = path.strip_prefix("compiler/src/")?;
        Some(rest.split('/').next()?.trim_end_matches(".rs").to_owned())
    };
    let modules: BTreeSet<String> =
        files.keys().filter_map(|p| module(p)).filter(|m| m != "lib" && m != "main").collect();
    let mut out: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in &files {
        let Some(from) = module(path).filter(|m| modules.contains(m) && !is_test(path)) else { continue };
        let code = code(text);
        let edges = out.entry(from.clone()).or_default();
        for rest in code.split("crate::").skip(1) {
            let names = match rest.strip_prefix('{') {
                Some(list) => list.split('}').next().unwrap_or("").split(',').map(str::trim).collect(),
                None => vec![rest],
            };
            let head = |n: &str| n.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("").to_owned();
            edges.extend(names.into_iter().map(head).filter(|n| modules.contains(n) && *n != from));
        }
    }
    out
}

#[test]
fn the_compilers_modules_have_an_order() {
    let mut imports = imports();
    let mut problems = Vec::new();
    for (from, not) in FORBIDDEN {
        for to in imports.get(*from).into_iter().flatten().filter(|to| not.contains(&to.as_str())) {
            problems.push(format!("{from} imports {to}"));
        }
    }
    // A pair that belongs together counts as one module.
    let merged = |m: &str| TOGETHER.iter().find(|(_, b)| *b == m).map_or(m, |(a, _)| a).to_owned();
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in std::mem::take(&mut imports) {
        let from = merged(&from);
        graph.entry(from.clone()).or_default().extend(to.iter().map(|t| merged(t)).filter(|t| *t != from));
    }
    // Take modules away that import nothing which is left; what remains is a cycle.
    while let Some(free) =
        graph.iter().find(|(_, to)| to.iter().all(|t| !graph.contains_key(t))).map(|(m, _)| m.clone())
    {
        graph.remove(&free);
    }
    for (from, to) in &graph {
        let inside: Vec<&String> = to.iter().filter(|t| graph.contains_key(*t)).collect();
        problems.push(format!("in or behind a cycle: {from} imports {inside:?}"));
    }
    assert_none(problems);
}

#[test]
fn nothing_is_left_unfinished() {
    let words = ["todo", "unimplemented"].map(|w| format!("{w}!("));
    let mut problems = Vec::new();
    for (path, text) in rust_files() {
        problems.extend(words.iter().filter(|w| text.contains(w.as_str())).map(|w| format!("{path}: {w}…)")));
    }
    assert_none(problems);
}

#[test]
fn no_file_names_somebodys_machine() {
    let paths = ["work", "root", "home", "Users"].map(|w| format!("/{w}/"));
    let mut problems = Vec::new();
    for (path, text) in files(&["rs", "toml", "md", "yml", "yaml", "txt", "json", "sh"]) {
        for (i, line) in text.lines().enumerate() {
            // Web addresses may have such parts.
            let hit = paths.iter().any(|p| line.find(p.as_str()).is_some_and(|at| !line[..at].contains("://")));
            if hit {
                problems.push(format!("{path}:{}: {}", i + 1, line.trim()));
            }
        }
    }
    assert_none(problems);
}

#[test]
fn unsafe_code_lives_in_the_runtime_only() {
    let keyword = "unsafe";
    let mut problems = Vec::new();
    let allowed = |p: &str| p.starts_with("runtime-support/") || p.starts_with(BARE);
    for (path, text) in rust_files().iter().filter(|(p, _)| !allowed(p)) {
        let uses = |l: &str| ["{", "fn", "impl"].iter().any(|what| l.contains(&format!("{keyword} {what}")));
        if code(text).lines().any(uses) {
            problems.push(format!("{path}: {keyword} code"));
        }
    }
    let attribute = format!("#![forbid({keyword}_code)]");
    for path in ["compiler/src/lib.rs", "fixtures/src/lib.rs", "tests/src/lib.rs", "macros/src/lib.rs"] {
        let text = rust_files().remove(path).unwrap_or_default();
        if !text.contains(&attribute) {
            problems.push(format!("{path}: lacks {attribute}"));
        }
    }
    assert_none(problems);
}
