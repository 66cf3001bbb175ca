kiln::include_model!("models/net.onnx", weights = disk);

fn main() {}
