kiln::include_model!("models/net.onnx", streams = "two");

fn main() {}
