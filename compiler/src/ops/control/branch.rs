//! If: one of two bodies, by a condition.
//!
//! Results whose extents differ between the branches have extents found at run time, between those of the branches.
//! <https://onnx.ai/onnx/operators/onnx__If.html>

use super::extents::Settings;
use super::{body, result_tensor, result_type};
use crate::ir::{Dim, Graph, Type};
use crate::lower::control::Flow;
use crate::lower::{LowerCx, Slot};
use crate::ops::view::{NodeView, Result, wrong};
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
        let (a, b) = (result_type(then, i)?, result_type(other, i)?);
        if !matches!((a, b), (Type::Tensor(_), Type::Tensor(_))) {
            let ty = a.join(b).ok_or_else(|| wrong(format!("the branches give {a} and {b}")).at_output(i))?;
            cx.set(i, ty);
            continue;
        }
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
    let is_object = |cx: &LowerCx<'_>, i: usize| {
        cx.node.output(i).is_some_and(|v| cx.graph.value(v).ty.as_ref().is_some_and(Type::is_object))
    };
    let (objects, wanted): (Vec<usize>, Vec<usize>) = wanted.into_iter().partition(|&i| is_object(cx, i));
    let objects: Vec<(usize, Slot)> = objects.into_iter().map(|i| (i, cx.object_y(i))).collect();
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
        for (i, y) in &objects {
            let x = inner.object(graph.outputs[*i].1)?;
            inner.copy_object(x, *y)?;
            pairs.extend(object_pairs(&view, graph, *i));
        }
        Settings::between(pairs.into_iter())?.inside(&mut inner)?;
        bodies.push(cx.finish_body(inner)?);
    }
    let holds = cx.slot();
    let writes = results.into_iter().map(|y| (y, Role::Write)).collect();
    cx.control(Flow::If { holds }, &[Dtype::U8], IfHead { cond, holds }, bodies, writes)
}

/// The extents of strings that the branches give, as the result names them and as the branch does.
fn object_pairs<'a>(view: &NodeView<'a>, graph: &'a Graph, i: usize) -> Vec<(&'a Dim, &'a Dim)> {
    match (view.out_ty(i), result_tensor(graph, i)) {
        (Ok(y), Ok(x)) => y.shape.iter().zip(&x.shape).collect(),
        _ => Vec::new(),
    }
}
