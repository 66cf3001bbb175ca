kiln::include_model!("models/net.onnx", dims(seq = 8..=1));

fn main() {}
