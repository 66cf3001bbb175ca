//! `kiln.Expect`: a graph input that must have the value that the module was compiled for.
//!
//! The import makes it where a value at hand stands in for an operand that inference needs. The run fails on another one.

use super::view::Result;
use super::{InferCx, OpDef};
use crate::lower::LowerCx;
use kiln_kernels::{CheckEqual, Dtype};

pub(super) static OPS: &[OpDef] = &[OpDef::new("kiln", "Expect", &[1], infer, lower)];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_same_dtype(1, 0)
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let (x, want) = (cx.x(0)?, cx.x(1)?);
    cx.call(&[Dtype::U8], CheckEqual { x, want })
}
