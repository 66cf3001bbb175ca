//! A compile that keeps every stage, for tests that compare them.

use kiln_compiler::error::{CompileError, CompileErrors};
use kiln_compiler::ir::{Graph, Tensor};
use kiln_compiler::lower::{self, Lowered};
use kiln_compiler::onnx::Decoded;
use kiln_compiler::onnx::proto::TensorProto;
use kiln_compiler::program::{self, Meta, Program};
use kiln_compiler::verify::{self, Expectation};
use kiln_compiler::{Options, bodies, exec, graph, memory, passes, streams};
use kiln_fixtures::array::Array;
use kiln_kernels::Dtype;
use kiln_kernels::isa::Isa;

/// Everything that a compile made on its way.
pub struct Stages {
    /// After all passes.
    pub graph: Graph,
    /// Calls over buffers.
    pub lowered: Lowered,
    /// What the verifier goes by.
    pub expectation: Expectation,
    /// The result, verified.
    pub program: Program,
}

/// Compiles and keeps the stages.
pub fn stages(decoded: &Decoded, options: &Options) -> Result<Stages, CompileErrors> {
    let mut graph = graph(decoded, options)?;
    let mut states = lower::state::pairs(&graph, &options.states)?;
    passes::keep_in_place(&mut graph, &mut states)?;
    let lowered = lower::lower_whole(&graph, &states, bodies::plan)?;
    let (lowered, schedule) = streams::plan(&graph, lowered, options.streams)?;
    let expectation = verify::expectation(&lowered);
    let arena = memory::plan_on_streams(&lowered, &schedule)?;
    let meta = Meta { name: options.name.clone(), sha256: String::new(), options: options.text() };
    let program = program::assemble(&graph, lowered, schedule, arena, &states, meta)?;
    verify::verify(&program, &expectation)?;
    // Assembling takes the calls: lower once more to keep them.
    let lowered = streams::plan(&graph, lower::lower_whole(&graph, &states, bodies::plan)?, options.streams)?.0;
    Ok(Stages { graph, lowered, expectation, program })
}

impl Stages {
    /// Runs with every buffer in memory of its own.
    pub fn run_unplanned(&self, inputs: &[Tensor], isa: Isa) -> Result<Vec<Tensor>, CompileError> {
        exec::run_unplanned(&self.graph, &self.lowered, &bytes(inputs), isa)
    }

    /// Runs in the planned arena.
    pub fn run_planned(&self, inputs: &[Tensor], isa: Isa) -> Result<Vec<Tensor>, CompileError> {
        exec::run_program(&self.program, &bytes(inputs), isa)
    }

    /// The buffer of every operand of every step.
    pub fn buffers(&self) -> Vec<Vec<u32>> {
        let buffers = |s: &lower::Step| s.call.operands().iter().map(|o| o.operand.mem).collect();
        self.lowered.steps.iter().map(buffers).collect()
    }
}

/// The bytes of tensors.
pub fn bytes(tensors: &[Tensor]) -> Vec<&[u8]> {
    tensors.iter().map(|t| &t.data()[..]).collect()
}

/// A tensor as the reference holds it; `None` for a type that it does not know.
pub fn to_array(t: &Tensor) -> Option<Array> {
    let proto = TensorProto {
        dims: t.dims().iter().map(|&d| d as i64).collect(),
        data_type: t.dtype().to_onnx(),
        raw_data: Some(t.data().clone()),
        ..TensorProto::default()
    };
    Array::of_proto(&proto)
}

/// The other way.
pub fn to_tensor(a: &Array) -> Option<Tensor> {
    Tensor::new(Dtype::from_onnx(a.dtype as i32)?, a.dims.clone(), a.to_bytes().into())
}
