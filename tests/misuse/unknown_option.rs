kiln::include_model!("models/net.onnx", stream = 2);

fn main() {}
