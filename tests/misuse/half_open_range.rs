kiln::include_model!("models/net.onnx", dims(seq = 1..128));

fn main() {}
