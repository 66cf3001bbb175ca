//! Operators that change the shape and leave the elements: Reshape, Flatten, Squeeze, Unsqueeze. All are views.
//!
//! <https://onnx.ai/onnx/operators/onnx__Reshape.html>

use super::view::{NodeView, Result, resolve_axes, resolve_axis, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "Reshape", &[1, 5, 13, 14, 19, 21, 23, 24, 25], infer_reshape, lower_reshape).with_dims(dims),
    OpDef::new("", "Flatten", &[1, 9, 11, 13, 21, 23, 24, 25], infer_flatten, lower).with_dims(dims),
    OpDef::new("", "Squeeze", &[1, 11, 13, 21, 23, 24, 25], infer_squeeze, lower).with_dims(dims),
    OpDef::new("", "Unsqueeze", &[1, 11, 13, 21, 23, 24, 25], infer_unsqueeze, lower).with_dims(dims),
];

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    cx.view_of(0, 0)
}

/// A view; that the elements are as many as before is checked, as far as it is not known.
fn lower_reshape(cx: &mut LowerCx<'_>) -> Result<()> {
    let (x, shape) = (cx.ty(0)?.numel(), cx.out_shape(0)?.to_vec());
    for (i, asked) in wanted(cx)?.iter().enumerate() {
        let free = asked.as_const().is_none();
        if asked.is(-1) || (free && *asked != shape[i]) {
            // Reckoned from the other extents: nothing may remain.
            let others: Dim = shape.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, d)| d.clone()).product();
            cx.expect_equal([(&x.rem(&others), &Dim::Const(0))])?;
        }
        if free {
            cx.expect_equal([(asked, &shape[i])])?;
        }
    }
    cx.expect_equal([(&shape.into_iter().product(), &x)])?;
    cx.view_of(0, 0)
}

/// The shape that is asked for: an attribute before opset 5, an operand since.
fn wanted(cx: &NodeView<'_>) -> Result<Vec<Dim>> {
    if cx.version() >= 5 || cx.has(1) {
        return cx.need_dims(1);
    }
    let shape = cx.opt_ints("shape")?.ok_or_else(|| wrong("attribute shape is missing"))?;
    Ok(shape.iter().map(|&d| Dim::Const(d)).collect())
}

fn dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    cx.dims(0)
}

fn infer_reshape(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let wanted = wanted(cx)?;
    let allow_zero = cx.int("allowzero", 0)? != 0;
    let mut shape = Vec::with_capacity(wanted.len());
    let mut unknown = None;
    for (i, d) in wanted.into_iter().enumerate() {
        shape.push(match d {
            Dim::Const(0) if !allow_zero => x
                .shape
                .get(i)
                .cloned()
                .ok_or_else(|| wrong(format!("0 at {i} copies no dimension of {x}")).at_input(1))?,
            Dim::Const(-1) => {
                if unknown.replace(i).is_some() {
                    return Err(wrong("more than one -1 in the shape").at_input(1));
                }
                Dim::Const(1)
            }
            Dim::Const(d) if d < 0 => return Err(wrong(format!("extent {d} in the shape")).at_input(1)),
            d => d,
        });
    }
    // Of a shape known only at run time an extent is reckoned from the others and checked, so that the elements are as
    // many as the operand's.
    let open = |d: &Dim| d.as_const().is_none() && !x.shape.contains(d);
    let fits = || shape.iter().cloned().product::<Dim>() == x.numel();
    let empty = shape.iter().any(|d| d.is(0));
    let unknown = unknown.or_else(|| if empty || fits() { None } else { shape.iter().rposition(open) });
    let known: Dim = shape.iter().enumerate().filter(|(i, _)| Some(*i) != unknown).map(|(_, d)| d.clone()).product();
    if let Some(i) = unknown {
        shape[i] = match (x.numel().as_const(), known.as_const()) {
            (Some(n), Some(k)) if k > 0 && n % k == 0 => Dim::Const(n / k),
            (Some(_), Some(_)) => return Err(wrong(format!("{x} does not fit {}", crate::ir::ShapeText(&shape)))),
            _ => x.numel().quotient(&known),
        };
    } else if let (Some(n), Some(k)) = (x.numel().as_const(), known.as_const())
        && n != k
    {
        return Err(wrong(format!("{x} has {n} elements, the shape {} has {k}", crate::ir::ShapeText(&shape))));
    }
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn infer_flatten(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let axis = cx.int("axis", 1)?;
    let rank = x.rank();
    let axis = if usize::try_from(axis).is_ok_and(|a| a == rank) { rank } else { resolve_axis(axis, rank)? };
    let (outer, inner) = x.shape.split_at(axis);
    let shape = vec![outer.iter().cloned().product(), inner.iter().cloned().product()];
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

/// The axes of Squeeze and Unsqueeze: an attribute before opset 13, an operand since.
fn axes(cx: &NodeView<'_>) -> Result<Option<Vec<i64>>> {
    if cx.version() < 13 {
        return Ok(cx.opt_ints("axes")?.map(<[i64]>::to_vec));
    }
    if cx.has(1) { cx.need_ints(1).map(Some) } else { Ok(None) }
}

fn infer_squeeze(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let drop = match axes(cx)? {
        Some(a) => resolve_axes(&a, x.rank())?,
        None => (0..x.rank()).filter(|&i| x.shape[i].is(1)).collect(),
    };
    if let Some(a) = drop.iter().find(|&&a| x.shape[a].as_const().is_some_and(|d| d != 1)) {
        return Err(wrong(format!("axis {a} of {x} is not 1")));
    }
    let shape = x.shape.iter().enumerate().filter(|(i, _)| !drop.contains(i)).map(|(_, d)| d.clone()).collect();
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn infer_unsqueeze(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let axes = axes(cx)?.ok_or_else(|| wrong("axes are missing"))?;
    let rank = x.rank() + axes.len();
    let new = resolve_axes(&axes, rank)?;
    let mut old = x.shape.iter().cloned();
    let shape =
        (0..rank).map(|i| if new.contains(&i) { Dim::Const(1) } else { old.next().unwrap_or(Dim::Const(1)) }).collect();
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}
