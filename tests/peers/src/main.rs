//! Times tract on a case in ONNX's layout: `kiln-peers FOLDER ITERATIONS` prints nanoseconds, one run a line.
//!
//! One thread, as tract runs. Inputs are the case's first data set; the first runs warm up and are not printed.

use std::error::Error;
use std::path::Path;
use std::time::Instant;
use tract_onnx::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, folder, iterations] = args.as_slice() else { return Err("usage: kiln-peers FOLDER ITERATIONS".into()) };
    let folder = Path::new(folder);
    let iterations: usize = iterations.parse()?;
    let onnx = tract_onnx::onnx();
    let mut model = onnx.model_for_path(folder.join("model.onnx"))?;
    let mut inputs = TVec::new();
    for i in 0..model.inputs.len() {
        let bytes = std::fs::read(folder.join(format!("test_data_set_0/input_{i}.pb")))?;
        let proto = <tract_onnx::pb::TensorProto as tract_onnx::prost::Message>::decode(&*bytes)?;
        let tensor = tract_onnx::tensor::load_tensor(&*onnx.provider, &proto, None)?;
        model.set_input_fact(i, InferenceFact::dt_shape(tensor.datum_type(), tensor.shape()))?;
        inputs.push(tensor.into_tvalue());
    }
    let plan = model.into_optimized()?.into_runnable()?;
    for _ in 0..2 {
        plan.run(inputs.clone())?;
    }
    for _ in 0..iterations {
        let start = Instant::now();
        plan.run(inputs.clone())?;
        println!("{}", start.elapsed().as_nanos());
    }
    Ok(())
}
