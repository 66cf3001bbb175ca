kiln::include_model!("models/net.onnx", profile = "models/times.json");

fn main() {}
