kiln::include_model!(pub "models/net.onnx");

fn main() {}
