//! tract: optimised for the inputs' shapes.

use crate::Result;
use std::path::Path;
use tract_onnx::prelude::*;

/// The case's inputs, in the model's order.
pub(crate) fn inputs(onnx: &tract_onnx::Onnx, folder: &Path, n: usize) -> Result<Vec<Tensor>> {
    let read = |i: usize| {
        let bytes = std::fs::read(folder.join(format!("test_data_set_0/input_{i}.pb")))?;
        let proto = <tract_onnx::pb::TensorProto as prost::Message>::decode(&*bytes)?;
        Ok(tract_onnx::tensor::load_tensor(&*onnx.provider, &proto, None)?)
    };
    (0..n).map(read).collect()
}

pub(crate) fn run(folder: &Path) -> Result<()> {
    let onnx = tract_onnx::onnx();
    let mut model = onnx.model_for_path(folder.join("model.onnx"))?;
    let mut values = TVec::new();
    for (i, tensor) in inputs(&onnx, folder, model.inputs.len())?.into_iter().enumerate() {
        model.set_input_fact(i, InferenceFact::dt_shape(tensor.datum_type(), tensor.shape()))?;
        values.push(tensor.into_tvalue());
    }
    let plan = model.into_optimized()?.into_runnable()?;
    crate::serve(|| {
        plan.run(values.clone())?;
        Ok(())
    })
}
