kiln::include_model!("models/net.onnx", target = "moon");

fn main() {}
