kiln::include_model!("models/net.onnx", state("out" = "in"));

fn main() {}
