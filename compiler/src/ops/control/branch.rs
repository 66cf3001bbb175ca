//! If: one of two bodies, by a condition.
//!
//! Results whose extents differ between the branches have extents found at run time, between those of the branches.
//! <https://onnx.ai/onnx/operators/onnx__If.html>

use super::extents::Settings;
use super::{body, result_tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use crate::lower::control::Flow;
use crate::ops::view::{Result, wrong};
use crate::ops::{InferCx, OpDef, tensor};
use kiln_kernels::{Dtype, IfHead, Operand, Role};

pub(in crate::ops) static OPS: &[OpDef] =
    &[OpDef::new("", "If", &[1, 11, 13, 16, 19, 21, 23, 24, 25], infer, lower).impure()];

/// The attribute names, in the order in which the step takes the bodies.
const BRANCHES: [&str; 2] = ["then_branch", "else_branch"];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::Bool])?;
    let [then, other] = [body(cx, BRANCHES[0])?, body(cx, BRANCHES[1])?];
    for i in 0..cx.n_outputs() {
        let (a, b) = (result_tensor(then, i)?, result_tensor(other, i)?);
        if a.dtype != b.dtype || a.rank() != b.rank() {
            return Err(wrong(format!("the branches give {a} and {b}")).at_output(i));
        }
        let mut shape = Vec::with_capacity(a.rank());
        for (x, y) in a.shape.iter().zip(&b.shape) {
            shape.push(if x == y {
                x.clone()
            } else {
                let most = x.upper().zip(y.upper()).map(|(x, y)| x.max(y));
                cx.data_dim("branch", x.lower().min(y.lower()), most)
            });
        }
        let dtype = a.dtype;
        cx.set(i, tensor(dtype, shape));
    }
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let cond = cx.x(0)?;
    let cond = Operand { bytes: Dim::Const(1), ..cond };
    let wanted: Vec<usize> = (0..cx.n_outputs()).filter(|&i| cx.wants(i)).collect();
    let mut results = Vec::new();
    for &i in &wanted {
        results.push(cx.y(i)?);
    }
    let view = cx.view();
    let mut bodies = Vec::new();
    for name in BRANCHES {
        let graph = body(&view, name)?;
        let mut inner = cx.body(graph)?;
        inner.nodes().map_err(|e| e.at_attribute(name))?;
        let mut pairs = Vec::new();
        for (&i, y) in wanted.iter().zip(&results) {
            let x = inner.operand(graph.outputs[i].1)?;
            let y = inner.outside(cx, &Operand { bytes: x.bytes.clone(), ..y.clone() });
            inner.copy(x, y)?;
            pairs.extend(view.out_shape(i)?.iter().zip(&result_tensor(graph, i)?.shape));
        }
        Settings::between(pairs.into_iter())?.inside(&mut inner)?;
        bodies.push(cx.finish_body(inner)?);
    }
    let holds = cx.slot();
    let writes = results.into_iter().map(|y| (y, Role::Write)).collect();
    cx.control(Flow::If { holds }, &[Dtype::U8], IfHead { cond, holds }, bodies, writes)
}
