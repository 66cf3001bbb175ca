//! Compiles a model the second way: in a build script.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    kiln_compiler::Config::new().target("host").streams(1).compile("../fixtures/models/affine/model.onnx")?;
    Ok(())
}
