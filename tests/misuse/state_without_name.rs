kiln::include_model!("models/net.onnx", state(= "in"));

fn main() {}
