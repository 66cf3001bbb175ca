kiln::include_model!("models/none.onnx");

fn main() {}
