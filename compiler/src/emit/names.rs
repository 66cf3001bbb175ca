//! Rust names for ONNX names: legal, unique, stable.

use std::collections::HashSet;

const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn", "else",
    "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod",
    "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static", "struct", "super", "trait", "true",
    "try", "type", "typeof", "union", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// One snake-case identifier for an ONNX name.
pub fn ident(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars().take(80) {
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if !out.ends_with('_') {
            out.push('_');
        }
    }
    let out = out.trim_matches('_').to_owned();
    match out.chars().next() {
        None => "x".to_owned(),
        Some(c) if c.is_ascii_digit() => format!("x_{out}"),
        _ if KEYWORDS.contains(&out.as_str()) => format!("{out}_"),
        _ => out,
    }
}

/// Identifiers for a list of names, each once: later ones that collide get `_2`, `_3` and so on.
pub fn unique_idents<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut used = HashSet::new();
    names
        .into_iter()
        .map(|name| {
            let base = ident(name);
            let mut candidate = base.clone();
            let mut n = 1usize;
            while !used.insert(candidate.clone()) {
                n += 1;
                candidate = format!("{}_{n}", base.trim_end_matches('_'));
            }
            candidate
        })
        .collect()
}

/// The module name for a model file's stem.
pub fn module_name(stem: &str) -> String {
    ident(stem)
}

/// Text from a model for a one-line comment or doc: printable ASCII, everything else escaped.
pub fn printable(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(400) {
        if c == ' ' || c.is_ascii_graphic() {
            out.push(c);
        } else {
            out.extend(c.escape_unicode());
        }
    }
    out
}

/// Text from a model for rustdoc: in backquotes, nothing in it is markup.
pub fn doc_code(text: &str) -> String {
    format!("`{}`", printable(text).replace('`', "'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_legal_and_unique() {
        for (names, want) in [
            (vec!["a.b", "a_b", "a/b", "a:b", "a b"], vec!["a_b", "a_b_2", "a_b_3", "a_b_4", "a_b_5"]),
            (vec!["type", "Type", "self", "1", "", ":0"], vec!["type_", "type_2", "self_", "x_1", "x", "x_0"]),
            (vec!["x", "x_2", "x"], vec!["x", "x_2", "x_3"]),
        ] {
            assert_eq!(unique_idents(names), want);
        }
    }

    #[test]
    fn text_cannot_leave_its_line() {
        assert_eq!(printable("a\nb\u{202e}*/"), "a\\u{a}b\\u{202e}*/");
    }
}
