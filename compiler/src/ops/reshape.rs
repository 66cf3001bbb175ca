//! Operators that change the shape and leave the elements: Reshape, Flatten, Squeeze, Unsqueeze. All are views.
//!
//! <https://onnx.ai/onnx/operators/onnx__Reshape.html>

use super::view::{NodeView, Result, resolve_axes, resolve_axis, wrong};
use super::{InferCx, OpDef, axes, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "Reshape", &[1, 5, 13, 14, 19, 21, 23, 24, 25], infer_reshape, lower_reshape).with_dims(dims),
    OpDef::new("", "Flatten", &[1, 9, 11, 13, 21, 23, 24, 25], infer_flatten, lower).with_dims(dims),
    OpDef::new("", "Squeeze", &[1, 11, 13, 21, 23, 24, 25], infer_squeeze, lower_squeeze).with_dims(dims),
    OpDef::new("", "Unsqueeze", &[1, 11, 13, 21, 23, 24, 25], infer_unsqueeze, lower).with_dims(dims),
];

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    cx.view_of(0, 0)
}

/// A view; that the elements are as many as before is checked, as far as it is not known.
fn lower_reshape(cx: &mut LowerCx<'_>) -> Result<()> {
    let (x, shape) = (cx.ty(0)?.numel(), cx.out_shape(0)?.to_vec());
    if let Some(found) = found(cx)? {
        cx.expect_equal(found.checks.iter().map(|(a, b)| (a, b)))?;
        return cx.view_of(0, 0);
    }
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

/// A shape of which it is known only in the run which extents are given, copied or reckoned.
struct Found {
    shape: Vec<Dim>,
    /// Pairs that must be equal.
    checks: Vec<(Dim, Dim)>,
}

/// The shape, if some of its extents may be 0 or -1 as well. The last one is reckoned from the others, so that the elements are
/// as many as the operand's.
fn found(cx: &NodeView<'_>) -> Result<Option<Found>> {
    let (x, wanted) = (cx.ty(0)?, wanted(cx)?);
    if !wanted.iter().any(|d| d.as_const().is_none() && d.lower() < 1) {
        return Ok(None);
    }
    let copies = cx.int("allowzero", 0)? == 0;
    let (n, zero, one) = (x.numel(), Dim::Const(0), Dim::Const(1));
    let reckoned = |d: &Dim| Dim::min(&Dim::max(&(zero.clone() - d.clone()), &zero), &one);
    let given = |(i, d): (usize, &Dim)| {
        let copied = x.shape.get(i).filter(|_| copies).map_or(Dim::Const(0), |own| axes::is(d, 0) * own.clone());
        Dim::max(d, &Dim::Const(0)) + copied
    };
    let given: Vec<Dim> = wanted.iter().enumerate().map(given).collect();
    let reckoned: Vec<Dim> = wanted.iter().map(reckoned).collect();
    let known: Dim = given.iter().zip(&reckoned).map(|(g, r)| g.clone() + r.clone()).product();
    let rest = n.floor_div(&known);
    let each = |(g, r): (&Dim, &Dim)| (g.clone() + r.clone() * rest.clone()).at_most(&n);
    let last = wanted.len() - 1;
    let mut shape: Vec<Dim> = given[..last].iter().zip(&reckoned).map(each).collect();
    let others: Dim = shape.iter().cloned().product();
    shape.push(n.quotient(&others));
    let asked = given[last].clone() + reckoned[last].clone() * shape[last].clone();
    let checks = vec![
        (Dim::max(&reckoned.into_iter().sum(), &one), one.clone()),
        (Dim::min(&others, &one), one),
        (n.rem(&others), zero),
        (asked, shape[last].clone()),
    ];
    Ok(Some(Found { shape, checks }))
}

fn infer_reshape(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    if let Some(found) = found(cx)? {
        let dtype = x.dtype;
        cx.set(0, tensor(dtype, found.shape));
        return Ok(());
    }
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
fn given_axes(cx: &NodeView<'_>) -> Result<Option<Vec<Dim>>> {
    if cx.version() < 13 {
        return Ok(cx.opt_ints("axes")?.map(|v| v.iter().map(|&a| Dim::Const(a)).collect()));
    }
    if cx.has(1) { cx.need_dims(1).map(Some) } else { Ok(None) }
}

/// The operand whose values are axes or extents, with the least and the greatest that they can be.
pub(super) fn bounded_operand(cx: &NodeView<'_>) -> Option<(usize, i64, i64)> {
    let rank = i64::try_from(cx.rank(0).ok()?).ok()?;
    match cx.node.op.as_str() {
        "Squeeze" if cx.version() >= 13 => Some((1, -rank, rank - 1)),
        // No extent is larger than all elements together, if there are any.
        "Reshape" if cx.version() >= 5 => {
            let all = cx.ty(0).ok()?.numel();
            Some((1, -1, all.upper().filter(|_| all.lower() >= 1)?))
        }
        _ => None,
    }
}

/// Which axes Squeeze drops.
fn dropped(cx: &NodeView<'_>) -> Result<Vec<Dim>> {
    let x = cx.ty(0)?;
    match given_axes(cx)? {
        Some(given) => axes::flags(&given, x.rank()),
        None => Ok(x.shape.iter().map(|d| Dim::Const(i64::from(d.is(1)))).collect()),
    }
}

fn infer_squeeze(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let drop = dropped(cx)?;
    let is_wrong = |a: &usize| drop[*a].is(1) && x.shape[*a].as_const().is_some_and(|d| d != 1);
    if let Some(a) = (0..x.rank()).find(is_wrong) {
        return Err(wrong(format!("axis {a} of {x} is not 1")));
    }
    let n = given_axes(cx)?.map_or(0, |given| given.len());
    let mut shape = axes::rest(&drop, &x.shape, x.rank().saturating_sub(n));
    if axes::known(&drop).is_none() {
        shape = axes::of_all(shape, &x.numel())?;
    }
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_squeeze(cx: &mut LowerCx<'_>) -> Result<()> {
    let drop = dropped(cx)?;
    if let (None, Some(given)) = (axes::known(&drop), given_axes(cx)?) {
        axes::expect_distinct(cx, &drop, given.len())?;
        let shape = cx.shape(0)?.to_vec();
        for (flag, d) in drop.iter().zip(&shape).filter(|(_, d)| !d.is(1)) {
            cx.expect_equal([(&(flag.clone() * (d.clone() - Dim::Const(1))), &Dim::Const(0))])?;
        }
    }
    cx.view_of(0, 0)
}

fn infer_unsqueeze(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let given = given_axes(cx)?.ok_or_else(|| wrong("axes are missing"))?;
    let constant = |d: &Dim| d.as_const().ok_or_else(|| wrong("its values must be constant here").at_input(1));
    let given = given.iter().map(constant).collect::<Result<Vec<_>>>()?;
    let rank = x.rank() + given.len();
    let new = resolve_axes(&given, rank)?;
    let mut old = x.shape.iter().cloned();
    let shape =
        (0..rank).map(|i| if new.contains(&i) { Dim::Const(1) } else { old.next().unwrap_or(Dim::Const(1)) }).collect();
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::{Case, case};

    fn ints(v: &[i64]) -> Tensor {
        Tensor::from_i64s(&[v.len()], v)
    }

    fn ramp(dims: &[usize]) -> Tensor {
        Tensor::from_f32s(dims, &(0..dims.iter().product::<usize>()).map(|i| i as f32).collect::<Vec<_>>())
    }

    /// The result's extents with operand 1 at run time and constant, which must agree.
    fn dims(node: &dyn Fn() -> Case, operand: &[i64]) -> Option<Vec<usize>> {
        let got = node().input(ints(operand)).run().ok()?;
        assert_eq!(got, node().constant(ints(operand)).run().unwrap(), "{operand:?}");
        Some(got[0].dims().to_vec())
    }

    #[test]
    fn axes_at_run_time() {
        let squeeze = || case("", "Squeeze", 13).input(ramp(&[1, 3, 1, 2]));
        for (axes, want) in
            [(&[0][..], [3, 1, 2].to_vec()), (&[-2], vec![1, 3, 2]), (&[2, 0], vec![3, 2]), (&[], vec![1, 3, 1, 2])]
        {
            assert_eq!(dims(&squeeze, axes), Some(want), "{axes:?}");
        }
        // No axis of 1, and one named twice.
        assert_eq!((dims(&squeeze, &[1]), dims(&squeeze, &[0, -4])), (None, None));
    }

    #[test]
    fn shapes_at_run_time() {
        let reshape = || case("", "Reshape", 14).input(ramp(&[2, 3, 4]));
        for (shape, want) in [
            (&[24][..], [24].to_vec()),
            (&[4, 6], vec![4, 6]),
            (&[1, 8, 3], vec![1, 8, 3]),
            (&[2, 2, 3, 2], vec![2, 2, 3, 2]),
            (&[-1], vec![24]),
            (&[0, -1], vec![2, 12]),
            (&[-1, 6], vec![4, 6]),
            (&[4, 0, -1], vec![4, 3, 2]),
            (&[0, 0, 0], vec![2, 3, 4]),
        ] {
            assert_eq!(dims(&reshape, shape), Some(want), "{shape:?}");
        }
        for shape in [&[5, 5][..], &[4, 5], &[25], &[-1, -1], &[5, -1], &[0, 12, 0, 1], &[-2, 12], &[0, 0, 0, 0]] {
            assert!(reshape().input(ints(shape)).run().is_err(), "{shape:?}");
        }
        // Zeros are extents of their own.
        let whole = || reshape().attr("allowzero", Attr::Int(1));
        assert_eq!(dims(&whole, &[3, -1]), Some(vec![3, 8]));
        assert!(whole().input(ints(&[0, 24])).run().is_err());
        let empty = || case("", "Reshape", 14).input(ramp(&[0, 3])).attr("allowzero", Attr::Int(1));
        assert_eq!(empty().constant(ints(&[5, 0])).run().unwrap()[0].dims(), [5, 0]);
    }
}
