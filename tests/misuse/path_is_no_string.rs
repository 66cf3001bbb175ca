kiln::include_model!(models / net);

fn main() {}
