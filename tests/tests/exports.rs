//! A generated module names kernels, descriptors and parameter types as `k::NAME`, so `kiln-kernels` exports each at its
//! root. The build script reads the names from that crate's source and imports them here: one that is missing, or that two
//! modules export, does not compile.

use kiln_tests::exports;
use kiln_tests::models::workspace;
use std::collections::BTreeSet;

/// Every name that emission may write.
#[allow(unused_imports, reason = "importing them is the test")]
mod exported {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

#[test]
fn all_that_emission_names_is_imported_above() {
    let mut names = BTreeSet::new();
    exports::collect(&workspace().join("runtime-support/kernels/src"), &mut names);
    let imported = include_str!(concat!(env!("OUT_DIR"), "/exports.rs"));
    let imported: BTreeSet<String> = imported
        .lines()
        .filter_map(|l| Some(l.strip_prefix("pub use kiln_kernels::")?.trim_end_matches(';').to_owned()))
        .collect();
    assert_eq!(imported, names, "the build script has not run since the kernels changed");
}

#[test]
fn the_names_are_found_in_the_source() {
    let text = "\nkernel! {\n    pub struct Twice {\n        operands { read x: T, write y: T }\n    }\n    entries {\n        \
                twice_f32 { T = f32 } // widest first\n        twice_i8 { T = i8 }\n    }\n    body = twice;\n}\n\
                param_enum! {\n    /// A way.\n    pub enum Way { A }\n}\nimpl Literal for Other {\n";
    let mut names = BTreeSet::new();
    exports::names(text, &mut names);
    assert_eq!(
        names.iter().map(String::as_str).collect::<Vec<_>>(),
        ["Other", "Twice", "Way", "twice_f32", "twice_i8"]
    );
}

#[test]
fn every_declaration_is_found() {
    let (mut names, mut n_declared) = (BTreeSet::new(), 0);
    let mut folders = vec![workspace().join("runtime-support/kernels/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let code =
                || text.lines().map(str::trim_start).filter(|l| !l.starts_with("//") && !l.starts_with("macro_rules"));
            n_declared += code().filter(|l| l.starts_with("kernel! {") || l.starts_with("param_enum! {")).count();
            exports::names(&text, &mut names);
        }
    }
    let n_types = names.iter().filter(|n| n.starts_with(|c: char| c.is_ascii_uppercase())).count();
    assert!(n_declared > 100, "only {n_declared} declarations");
    // Two types write their own literal.
    assert!(n_types >= n_declared, "{n_declared} declarations, but {n_types} types found");
}
