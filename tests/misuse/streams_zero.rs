kiln::include_model!("models/net.onnx", streams = 0);

fn main() {}
