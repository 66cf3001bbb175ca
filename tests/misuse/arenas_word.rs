kiln::include_model!("models/net.onnx", arenas = both);

fn main() {}
