kiln::include_model!("models/net.onnx", streams = 2, streams = 3);

fn main() {}
