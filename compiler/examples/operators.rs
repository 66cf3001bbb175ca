//! Writes OPERATORS.md from the operator table: `cargo run -p kiln-compiler --example operators > OPERATORS.md`.

use kiln_compiler::ops::{self, LayoutRule};
use kiln_compiler::passes::EXPANDED;

fn main() {
    println!(
        "# Operators\n\nGenerated from the operator table (`cargo run -p kiln-compiler --example operators > OPERATORS.md`)."
    );
    println!(
        "Every operator runs on `cpu`. \"Opset\" lists the versions in which ONNX changed it; all are read. \"Blocked\" says that"
    );
    println!(
        "it also works on channels in blocks of 16. Element types are those that the operator page allows, as far as kernels exist;"
    );
    println!("`kilnc check` says for a model what is missing.");
    let mut domain = None;
    for op in ops::all() {
        if domain != Some(op.domain) {
            domain = Some(op.domain);
            let title = match op.domain {
                "" => "ai.onnx",
                "kiln" => "kiln (introduced by passes, not read from files)",
                other => other,
            };
            println!(
                "\n## {title}\n\n| operator | opset | blocked | arithmetic on shapes |\n| --- | --- | --- | --- |"
            );
        }
        let since: Vec<String> = op.since.iter().map(ToString::to_string).collect();
        let blocked = if op.layout == LayoutRule::Plain { "" } else { "yes" };
        let dims = if op.dims.is_some() { "yes" } else { "" };
        println!("| {} | {} | {blocked} | {dims} |", op.name, since.join(", "));
    }
    println!("\n## Read as the operators they are defined by\n");
    println!("Of `com.microsoft`: {}. Of `ai.onnx.preview`: FlexAttention.", EXPANDED.join(", "));
}
