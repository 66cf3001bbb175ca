//! Plans the bodies of control flow: each like a program of its own, whose inputs are the buffers around it, with its proof.

use crate::error::{CompileError, CompileErrors, Stage};
use crate::lower::Lowered;
use crate::lower::control::BodyPlan;
use crate::{memory, program, verify};

/// Plans a body's memory and verifies the plan.
pub fn plan(lowered: &Lowered) -> Result<BodyPlan, CompileError> {
    let first = |mut e: CompileErrors| match e.0.is_empty() {
        true => CompileError::new(Stage::Plan, "failed"),
        false => e.0.remove(0),
    };
    let expected = verify::expectation(lowered);
    let arena = memory::plan(lowered)?;
    let plan = BodyPlan { offsets: arena.offsets.clone(), bytes: arena.bytes };
    let proof = program::assemble_body(lowered, arena).map_err(first)?;
    verify::verify(&proof, &expected)?;
    Ok(plan)
}
