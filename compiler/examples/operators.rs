//! Writes OPERATORS.md from the operator table: `cargo run -p kiln-compiler --example operators > OPERATORS.md`.
//! The test `operators` compares.

use kiln_compiler::ops::{self, LayoutRule};
use kiln_compiler::passes::EXPANDED;
use std::fmt::Write;

fn main() {
    print!("{}", text());
}

/// The whole file: what can be read from a model. Operators that only passes introduce (domain `kiln`) are not listed.
pub fn text() -> String {
    let mut out = String::from(
        "# Operators\n\n\
         Generated from the operator table (`cargo run -p kiln-compiler --example operators > OPERATORS.md`).\n\
         Every operator runs on `cpu`. \"Opset\" lists the versions in which ONNX changed it; all are read. \"Blocked\" says that\n\
         it also works on channels in blocks of 16. Element types are those that the operator page allows, as far as kernels exist;\n\
         `kilnc check` says for a model what is missing.\n",
    );
    out.push_str(include_str!("sizes.md"));
    let mut domain = None;
    for op in ops::all().into_iter().filter(|op| op.domain != "kiln") {
        if domain != Some(op.domain) {
            domain = Some(op.domain);
            let title = if op.domain.is_empty() { "ai.onnx" } else { op.domain };
            let head = "| operator | opset | blocked | arithmetic on shapes |\n| --- | --- | --- | --- |";
            let _ = writeln!(out, "\n## {title}\n\n{head}");
        }
        let since: Vec<String> = op.since.iter().map(ToString::to_string).collect();
        let blocked = if op.layout == LayoutRule::Plain { "" } else { "yes" };
        let dims = if op.dims.is_some() { "yes" } else { "" };
        let _ = writeln!(out, "| {} | {} | {blocked} | {dims} |", op.name, since.join(", "));
    }
    let _ = writeln!(out, "\n## Read as the operators they are defined by\n");
    let _ = writeln!(out, "Of `com.microsoft`: {}. Of `ai.onnx.preview`: FlexAttention.", EXPANDED.join(", "));
    out
}
