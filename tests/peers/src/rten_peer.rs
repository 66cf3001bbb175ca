//! rten: integers are 32 bits wide there.

use crate::{Result, tract_peer};
use rten::{Model, RunOptions, ThreadPool, Value, ValueOrView};
use rten_tensor::Tensor;
use std::path::Path;
use std::sync::Arc;
use tract_onnx::prelude as tract;

fn value(t: &tract::Tensor) -> Result<Value> {
    if t.datum_type() == tract::DatumType::F32 {
        let data = t.to_plain_array_view::<f32>()?.iter().copied().collect::<Vec<_>>();
        return Ok(Tensor::from_data(t.shape(), data).into());
    }
    let ints = t.cast_to::<i32>()?;
    let data = ints.to_plain_array_view::<i32>()?.iter().copied().collect::<Vec<_>>();
    Ok(Tensor::from_data(t.shape(), data).into())
}

pub(crate) fn run(folder: &Path, threads: usize) -> Result<()> {
    let model = Model::load_file(folder.join("model.onnx"))?;
    let ids = model.input_ids().to_vec();
    let read = tract_peer::inputs(&tract_onnx::onnx(), folder, ids.len())?;
    let values = read.iter().map(value).collect::<Result<Vec<Value>>>()?;
    let pool = Arc::new(ThreadPool::with_num_threads(threads));
    crate::serve(|| {
        let inputs = ids.iter().zip(&values).map(|(id, v)| (*id, ValueOrView::from(v))).collect();
        let mut options = RunOptions::default();
        options.thread_pool = Some(pool.clone());
        model.run(inputs, model.output_ids(), Some(options))?;
        Ok(())
    })
}
