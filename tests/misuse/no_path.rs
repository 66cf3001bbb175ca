kiln::include_model!();

fn main() {}
