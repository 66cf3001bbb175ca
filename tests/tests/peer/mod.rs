//! tract as a second opinion: loads an ONNX model for the sizes at hand and runs it.

use kiln_compiler::ir::Tensor;
use kiln_kernels::Dtype;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tract_onnx::prelude::*;

/// The types that both sides have.
const TYPES: [(Dtype, DatumType); 10] = [
    (Dtype::F32, DatumType::F32),
    (Dtype::F64, DatumType::F64),
    (Dtype::F16, DatumType::F16),
    (Dtype::I64, DatumType::I64),
    (Dtype::I32, DatumType::I32),
    (Dtype::I16, DatumType::I16),
    (Dtype::I8, DatumType::I8),
    (Dtype::U8, DatumType::U8),
    (Dtype::U16, DatumType::U16),
    (Dtype::Bool, DatumType::Bool),
];

fn to_tract(t: &Tensor) -> Option<tract_onnx::prelude::Tensor> {
    let (_, ty) = TYPES.into_iter().find(|(ours, _)| *ours == t.dtype())?;
    let mut out = tract_onnx::prelude::Tensor::zero_dt(ty, t.dims()).ok()?;
    out.as_bytes_mut().copy_from_slice(t.data());
    Some(out)
}

fn of_tract(t: &tract_onnx::prelude::Tensor) -> Option<Tensor> {
    // A shape that tract computed is of its own integer type.
    let t = if t.datum_type() == DatumType::TDim { t.cast_to_dt(DatumType::I64).ok()?.into_owned() } else { t.clone() };
    let (dtype, _) = TYPES.into_iter().find(|(_, theirs)| *theirs == t.datum_type())?;
    Tensor::new(dtype, t.shape().to_vec(), t.as_bytes().to_vec().into())
}

fn load(path: &Path, inputs: &[Tensor]) -> TractResult<std::sync::Arc<TypedRunnableModel>> {
    let mut model = reader().model_for_path(path)?;
    for (i, t) in inputs.iter().enumerate() {
        let ty = TYPES.into_iter().find(|(ours, _)| *ours == t.dtype()).map_or(DatumType::F32, |(_, ty)| ty);
        model.set_input_fact(i, InferenceFact::dt_shape(ty, t.dims()))?;
    }
    model.into_optimized()?.into_runnable()
}

/// tract's reader. Extents that a file states for values and outputs are left out: where an input's free extent gets a number,
/// tract takes the name that they still have for another one.
fn reader() -> tract_onnx::Onnx {
    tract_onnx::onnx().with_ignore_output_shapes(true).with_ignore_value_info(true)
}

/// A failure in one line.
fn line(error: impl std::fmt::Debug) -> String {
    let text = format!("{error:?}");
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(110).collect()
}

/// A model that tract has loaded.
pub struct Peer(std::sync::Arc<TypedRunnableModel>);

impl Peer {
    /// Loads a model for inputs of these sizes; the reason where tract cannot.
    pub fn load(path: &Path, inputs: &[Tensor]) -> Result<Self, String> {
        let loaded = catch_unwind(AssertUnwindSafe(|| load(path, inputs)));
        loaded.map_err(|_| "tract panics while loading".to_owned())?.map(Peer).map_err(line)
    }

    /// Runs it.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let given: Option<Vec<_>> = inputs.iter().map(to_tract).collect();
        let given = given.ok_or("tract has no such input type")?.into_iter().map(|t| t.into_tvalue()).collect();
        let ran = catch_unwind(AssertUnwindSafe(|| self.0.run(given)));
        let out = ran.map_err(|_| "tract panics while running".to_owned())?.map_err(line)?;
        let out: Option<Vec<Tensor>> = out.iter().map(|v| of_tract(v)).collect();
        out.ok_or_else(|| "tract gives an output of its own type".to_owned())
    }
}
