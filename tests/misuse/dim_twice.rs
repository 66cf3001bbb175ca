kiln::include_model!("models/net.onnx", dims(seq = 1, seq = 2));

fn main() {}
