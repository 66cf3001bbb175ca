//! Split: a tensor cut along an axis. Parts that are contiguous are views.
//!
//! <https://onnx.ai/onnx/operators/onnx__Split.html>

use super::run_time::check_ints;
use super::strided::Window;
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::{Dim, Layout};
use crate::lower::LowerCx;

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "Split", &[1, 2, 11, 13, 18], infer, lower)
    .with_dims(dims)
    .with_layout(super::LayoutRule::ChannelConcat)];

/// The extents of the parts: an attribute before opset 13 (in opset 1 also an operand), an operand since; else equal
/// ones, of which the last may be smaller where the number of parts is an attribute (opset 18).
fn parts(cx: &NodeView<'_>, extent: &Dim) -> Result<Vec<Dim>> {
    let n = cx.n_outputs();
    let given = if cx.has(1) {
        match cx.dims(1) {
            Some(d) => Some(d),
            // Known only at run time: the declared extents, checked then.
            None => {
                let at = axis(cx)?;
                let rank = cx.rank(0)?;
                let part = |i| cx.declared(i, rank).map(|shape| shape[at].clone());
                Some((0..n).map(part).collect::<Option<Vec<_>>>().ok_or_else(|| cx.unknown(1))?)
            }
        }
    } else {
        cx.opt_ints("split")?.map(|v| v.iter().map(|&d| Dim::Const(d)).collect())
    };
    if let Some(parts) = given {
        if parts.len() != n {
            return Err(wrong(format!("{} parts for {n} results", parts.len())));
        }
        if parts.iter().any(|d| d.as_const().is_some_and(|d| d < 0)) {
            return Err(wrong("a part of negative size"));
        }
        let sum: Dim = parts.iter().cloned().sum();
        if sum.as_const().is_some() && extent.as_const().is_some() && sum != *extent {
            return Err(wrong(format!("parts of {sum} together for an axis of {extent}")));
        }
        return Ok(parts);
    }
    let count = Dim::from(n);
    match cx.opt_int("num_outputs")? {
        Some(k) if Dim::Const(k) != count => {
            return Err(wrong(format!("{k} for {n} results")).at_attribute("num_outputs"));
        }
        None if extent.as_const().is_some_and(|d| d.checked_rem(n as i64) != Some(0)) => {
            return Err(wrong(format!("an axis of {extent} does not divide into {n}")));
        }
        _ => {}
    }
    let size = extent.ceil_div(&count);
    let zero = Dim::Const(0);
    // Every part starts at a multiple of the size and ends there or with the axis.
    Ok((0..n).map(|i| (extent.clone() - size.clone() * Dim::from(i)).at_least(&zero).at_most(&size)).collect())
}

/// Parts known only at run time: none is larger than the axis. Where their extents are declared, those are planned for instead.
pub(super) fn bounded_operand(cx: &NodeView<'_>) -> Option<(usize, i64, i64)> {
    let (at, rank) = (axis(cx).ok()?, cx.rank(0).ok()?);
    let declared = (0..cx.n_outputs()).all(|i| cx.declared(i, rank).is_some());
    let most = cx.shape(0).ok()?.get(at)?.upper()?;
    (cx.has(1) && !declared).then_some((1, 0, most))
}

fn axis(cx: &NodeView<'_>) -> Result<usize> {
    cx.axis("axis", 0, cx.rank(0)?)
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let axis = axis(cx)?;
    for (i, part) in parts(cx, &x.shape[axis])?.into_iter().enumerate() {
        let mut shape = x.shape.clone();
        shape[axis] = part;
        cx.set(i, tensor(x.dtype, shape));
    }
    Ok(())
}

fn dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    let n = parts(cx, cx.shape(0).ok()?.first()?).ok()?.first()?.as_const()?;
    let all = cx.dims(0)?;
    all.get(..usize::try_from(n).ok()?).map(<[Dim]>::to_vec)
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let axis = axis(cx)?;
    let shape = cx.physical(0)?;
    let parts = parts(cx, &cx.shape(0)?[axis])?;
    let block = if axis == 1 && cx.layout(0)? == Layout::Blocked16 { Dim::Const(16) } else { Dim::Const(1) };
    if cx.has(1) && cx.dims(1).is_none() {
        check_ints(cx, 1, 0, &parts)?;
    }
    let sum: Dim = parts.iter().cloned().sum();
    if sum.as_const().is_none() && cx.has(1) {
        cx.expect_equal([(&sum, &cx.shape(0)?[axis].clone())])?;
    }
    let mut at = Dim::Const(0);
    for (i, part) in parts.into_iter().enumerate() {
        let mut window = Window::whole(&shape);
        window.starts[axis] = at.floor_div(&block);
        window.dims[axis] = part.ceil_div(&block);
        if cx.wants(i) {
            window.lower(cx, 0, i)?;
        }
        at = at + part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn run(version: i64, n: usize, axis: i64, sizes: Option<&[i64]>, num: bool) -> Option<Vec<Vec<i32>>> {
        let x = Tensor::from_i32s(&[2, 5], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let mut c = case("", "Split", version).input(x).outputs(n).attr("axis", Attr::Int(axis));
        if let Some(s) = sizes {
            c = if version < 13 {
                c.attr("split", Attr::Ints(s.to_vec()))
            } else {
                c.constant(Tensor::from_i64s(&[s.len()], s))
            };
        }
        if num {
            c = c.attr("num_outputs", Attr::Int(n as i64));
        }
        c.run().ok().map(|y| y.iter().map(|t| t.to_i32s().unwrap()).collect())
    }

    #[test]
    fn splits() {
        let rows = Some(vec![vec![0, 1, 2, 3, 4], vec![5, 6, 7, 8, 9]]);
        assert_eq!(run(13, 2, 0, None, false), rows);
        assert_eq!(run(2, 2, -2, Some(&[1, 1]), false), rows);
        let uneven = Some(vec![vec![0, 1, 5, 6], vec![2, 3, 7, 8], vec![4, 9]]);
        assert_eq!(run(18, 3, 1, None, true), uneven);
        assert_eq!(run(18, 3, 1, Some(&[2, 2, 1]), false), uneven);
        assert_eq!(run(11, 3, 1, Some(&[0, 5, 0]), false).unwrap()[1].len(), 10);
        assert_eq!(run(13, 2, 1, None, false), None);
        assert_eq!(run(13, 2, 1, Some(&[3, 3]), false), None);
        assert_eq!(run(13, 2, 1, Some(&[6, -1]), false), None);
    }
}
