//! What emission may name in `kiln-kernels`, read from that crate's own source: entries, descriptors, parameter types.
//!
//! In: the text of every kernel file. Out: names, sorted. Shared by the build script, which makes `use` declarations of
//! them (a name that the crate's root lacks does not compile), and by the test that counts them.

use std::collections::BTreeSet;
use std::path::Path;

/// The names that a file declares.
pub fn names(text: &str, out: &mut BTreeSet<String>) {
    // What follows `before`, up to the end of the identifier.
    let after = |text: &str, before: &str| -> Option<String> {
        let rest = text.split_once(before)?.1.trim_start();
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        (end > 0).then(|| rest[..end].to_owned())
    };
    let code: String = text.lines().map(|l| format!("{}\n", l.split("//").next().unwrap_or_default())).collect();
    for call in code.split("\nkernel! {\n").skip(1) {
        let call = call.split("\n}\n").next().unwrap_or_default();
        out.extend(after(call, "pub struct"));
        let entries = call.split_once("entries {").map_or("", |(_, rest)| rest);
        // `name { T = f32 } name { … }`, then the block's own closing brace.
        let mut rest = entries;
        while let Some((name, after)) = rest.split_once('{') {
            let name = name.trim();
            if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || c == '_') {
                break;
            }
            out.insert(name.to_owned());
            rest = after.split_once('}').map_or("", |(_, rest)| rest);
        }
    }
    for call in code.split("param_enum! {").skip(1) {
        out.extend(after(call, "pub enum"));
    }
    for line in code.lines().filter(|l| l.starts_with("impl") && l.contains("Literal for ") && !l.starts_with("impl<"))
    {
        out.extend(after(line, "Literal for "));
    }
}

/// The names of all files at or below a folder.
pub fn collect(folder: &Path, out: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            names(&std::fs::read_to_string(&path).unwrap_or_default(), out);
        }
    }
}
