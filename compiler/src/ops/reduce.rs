//! ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceL1, ReduceL2, ReduceLogSum, ReduceLogSumExp,
//! ReduceSumSquare.
//!
//! <https://onnx.ai/onnx/operators/onnx__ReduceSum.html> and its neighbours.

use super::strided::row_major;
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, axes, half, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, MAX_RANK, ReduceColumns, ReduceNd, ReduceOp, ReduceRows};

macro_rules! row {
    ($name:literal, $since:expr, $op:ident) => {
        OpDef::new("", $name, $since, infer, |cx| lower(cx, ReduceOp::$op))
            .with_dims(|cx| dims(cx, ReduceOp::$op))
            .with_flops(flops)
    };
}

pub(super) static OPS: &[OpDef] = &[
    row!("ReduceSum", &[1, 11, 13], Sum),
    row!("ReduceMean", &[1, 11, 13, 18], Mean),
    row!("ReduceMax", &[1, 11, 12, 13, 18, 20], Max),
    row!("ReduceMin", &[1, 11, 12, 13, 18, 20], Min),
    row!("ReduceProd", &[1, 11, 13, 18], Prod),
    row!("ReduceL1", &[1, 11, 13, 18], L1),
    row!("ReduceL2", &[1, 11, 13, 18], L2),
    row!("ReduceLogSum", &[1, 11, 13, 18, 28], LogSum),
    row!("ReduceLogSumExp", &[1, 11, 13, 18, 28], LogSumExp),
    row!("ReduceSumSquare", &[1, 11, 13, 18], SumSquare),
];

/// The opset version since which the axes are an operand.
fn axes_operand_since(cx: &NodeView<'_>) -> i64 {
    if cx.node.op == "ReduceSum" { 13 } else { 18 }
}

/// The axes as given, if any are.
fn given_axes(cx: &NodeView<'_>) -> Result<Option<Vec<Dim>>> {
    let axes = if cx.version() < axes_operand_since(cx) {
        cx.opt_ints("axes")?.map(|v| v.iter().map(|&a| Dim::Const(a)).collect())
    } else if cx.has(1) {
        Some(cx.need_dims(1)?)
    } else {
        None
    };
    // Before opset 18 (ReduceSum: 13) an empty list is no different from none.
    Ok(axes.filter(|axes: &Vec<Dim>| !axes.is_empty()))
}

/// For every axis 1 if it is reduced, else 0.
fn reduced(cx: &NodeView<'_>) -> Result<Vec<Dim>> {
    let rank = cx.rank(0)?;
    match given_axes(cx)? {
        Some(given) => axes::flags(&given, rank),
        None => Ok(vec![Dim::Const(i64::from(cx.int("noop_with_empty_axes", 0)? == 0)); rank]),
    }
}

/// The operand whose values are axes, if there is one, with the least and the greatest that they can be.
pub(super) fn axes_operand(cx: &NodeView<'_>) -> Option<(usize, i64, i64)> {
    let rank = i64::try_from(cx.rank(0).ok()?).ok()?;
    (cx.has(1) && cx.version() >= axes_operand_since(cx)).then_some((1, -rank, rank - 1))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let of_bits = x.dtype == Dtype::Bool && matches!(cx.node.op.as_str(), "ReduceMax" | "ReduceMin");
    let number = half::is_half(x.dtype)
        || matches!(x.dtype, Dtype::F32 | Dtype::F64)
        || (x.dtype.is_int() && !x.dtype.is_sub_byte());
    if !number && !of_bits {
        return Err(wrong(format!("{x} cannot be reduced")).at_input(0));
    }
    let keep = cx.int("keepdims", 1)? != 0;
    let reduced = reduced(cx)?;
    let shape = if keep {
        x.shape.iter().zip(&reduced).map(|(d, r)| axes::one_if(r, d)).collect()
    } else {
        let n = given_axes(cx)?.map_or(0, |given| given.len());
        axes::rest(&reduced, &x.shape, x.rank().saturating_sub(n))
    };
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

/// Exporters multiply a shape's elements, or take their extremes.
fn dims(cx: &NodeView<'_>, op: ReduceOp) -> Option<Vec<Dim>> {
    let x = cx.dims(0)?;
    if !matches!(cx.dtype(0).ok()?, Dtype::I64 | Dtype::I32)
        || !reduced(cx).ok()?.iter().all(|r| r.is(1))
        || x.is_empty()
    {
        return None;
    }
    let first = x.first().cloned()?;
    let rest = x[1..].iter();
    Some(vec![match op {
        ReduceOp::Prod => x.iter().cloned().product(),
        ReduceOp::Sum => rest.fold(first, |a, b| a + b.clone()),
        ReduceOp::Max => rest.fold(first, |a, b| Dim::max(&a, b)),
        ReduceOp::Min => rest.fold(first, |a, b| Dim::min(&a, b)),
        _ => return None,
    }])
}

fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.ty(0)?.numel())
}

/// Neighbouring axes of one kind as one: (reduced, extent, stride). Axes of extent 1 are left out.
fn groups(shape: &[Dim], reduced: &[bool]) -> Vec<(bool, Dim, Dim)> {
    let strides = row_major(shape);
    let mut out: Vec<(bool, Dim, Dim)> = Vec::new();
    for ((d, s), &r) in shape.iter().zip(strides).zip(reduced) {
        if d.is(1) {
            continue;
        }
        match out.last_mut() {
            Some(last) if last.0 == r => {
                last.1 = last.1.clone() * d.clone();
                last.2 = s;
            }
            _ => out.push((r, d.clone(), s)),
        }
    }
    out
}

/// The type that the kernel computes in.
fn compute_dtype(dtype: Dtype) -> Dtype {
    match half::compute_dtype(dtype) {
        // 0 and 1 are ordered as integers; an empty set is made of bits, too.
        Dtype::Bool => Dtype::U8,
        dtype => dtype,
    }
}

/// Of axes known only at run time every axis is both kept and reduced, with an extent of 1 on one side.
fn lower_at_run_time(cx: &mut LowerCx<'_>, op: ReduceOp, flags: &[Dim]) -> Result<()> {
    let ty = cx.ty(0)?;
    if ty.rank() > MAX_RANK {
        return Err(wrong(format!("a reduction over axes known only at run time of more than {MAX_RANK} axes")));
    }
    axes::expect_distinct(cx, flags, given_axes(cx)?.map_or(0, |given| given.len()))?;
    let (x, y) = (half::x(cx, 0)?, half::y(cx, 0)?);
    let missing = MAX_RANK - ty.rank();
    let list = |f: &dyn Fn(usize) -> Dim, pad: i64| -> [Dim; MAX_RANK] {
        std::array::from_fn(|i| i.checked_sub(missing).map_or(Dim::Const(pad), f))
    };
    let strides = row_major(&ty.shape);
    let left = |i: usize| Dim::Const(1) - flags[i].clone();
    let d = ReduceNd {
        x,
        y: y.at.clone(),
        kept: list(&|i| axes::one_if(&flags[i], &ty.shape[i]), 1),
        kept_strides: list(&|i| strides[i].clone(), 0),
        dims: list(&|i| axes::one_if(&left(i), &ty.shape[i]), 1),
        strides: list(&|i| strides[i].clone(), 0),
        // The least of bits, of none as well.
        op: if ty.dtype == Dtype::Bool && op == ReduceOp::Min { ReduceOp::Prod } else { op },
    };
    cx.call(&[compute_dtype(ty.dtype)], d)?;
    y.finish(cx)
}

fn lower(cx: &mut LowerCx<'_>, op: ReduceOp) -> Result<()> {
    let ty = cx.ty(0)?;
    let flags = reduced(cx)?;
    let Some(known) = axes::known(&flags) else { return lower_at_run_time(cx, op, &flags) };
    let groups = groups(&ty.shape, &known);
    let n_reduced = groups.iter().filter(|g| g.0).count();
    let unchanged = matches!(op, ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Max | ReduceOp::Min | ReduceOp::Prod);
    if n_reduced == 0 && unchanged {
        return cx.view_of(0, 0);
    }
    let x = half::x(cx, 0)?;
    let y = half::y(cx, 0)?;
    let dtype = compute_dtype(ty.dtype);
    if dtype == Dtype::F32 && n_reduced <= 1 {
        let at = groups.iter().position(|g| g.0);
        let (outer, n, inner) = match at {
            None => (Dim::Const(1), Dim::Const(1), ty.numel()),
            Some(at) => {
                let extent = |g: &[(bool, Dim, Dim)]| g.iter().map(|g| g.1.clone()).product::<Dim>();
                (extent(&groups[..at]), groups[at].1.clone(), extent(&groups[at + 1..]))
            }
        };
        if inner.is(1) {
            cx.call(&[dtype], ReduceRows { x, y: y.at.clone(), rows: outer, n, op })?;
        } else {
            cx.call(&[dtype], ReduceColumns { x, y: y.at.clone(), outer, n, inner, op })?;
        }
        return y.finish(cx);
    }
    let lists = |r: bool| {
        let these: Vec<_> = groups.iter().filter(|g| g.0 == r).collect();
        let missing = MAX_RANK
            .checked_sub(these.len())
            .ok_or_else(|| wrong(format!("a reduction over more than {MAX_RANK} separate axes")))?;
        let get = |f: &dyn Fn(&(bool, Dim, Dim)) -> Dim, pad: i64| -> [Dim; MAX_RANK] {
            std::array::from_fn(|i| i.checked_sub(missing).map_or(Dim::Const(pad), |i| f(these[i])))
        };
        Ok::<_, crate::error::CompileError>((get(&|g| g.1.clone(), 1), get(&|g| g.2.clone(), 0)))
    };
    let (kept, kept_strides) = lists(false)?;
    let (dims, strides) = lists(true)?;
    let empty_bits = ty.dtype == Dtype::Bool && dims.iter().any(|d| d.is(0)) && op == ReduceOp::Min;
    let d = ReduceNd { x, y: y.at.clone(), kept, kept_strides, dims, strides, op };
    if empty_bits {
        // The neutral value of u8 is 255: a true is 1.
        return cx.call(&[dtype], ReduceNd { op: ReduceOp::Prod, ..d });
    }
    cx.call(&[dtype], d)?;
    y.finish(cx)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;
    use kiln_kernels::Dtype;

    fn ramp(dims: &[usize]) -> Tensor {
        let n: usize = dims.iter().product();
        Tensor::from_f32s(dims, &(0..n).map(|i| ((i * 7) % 11) as f32 - 3.0).collect::<Vec<_>>())
    }

    fn reference(op: &str, x: &[f32]) -> f32 {
        let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        let sum: f64 = x.iter().sum();
        let squares: f64 = x.iter().map(|v| v * v).sum();
        (match op {
            "ReduceSum" => sum,
            "ReduceMean" => sum / x.len() as f64,
            "ReduceMax" => x.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            "ReduceMin" => x.iter().copied().fold(f64::INFINITY, f64::min),
            "ReduceProd" => x.iter().product(),
            "ReduceL1" => x.iter().map(|v| v.abs()).sum(),
            "ReduceL2" => squares.sqrt(),
            "ReduceLogSum" => sum.ln(),
            "ReduceLogSumExp" => x.iter().map(|v| v.exp()).sum::<f64>().ln(),
            _ => squares,
        }) as f32
    }

    const OPS: [&str; 10] = [
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceSumSquare",
    ];

    #[test]
    fn every_operator_over_every_set_of_axes() {
        for dims in [[2usize, 3, 5], [3, 70, 1], [1, 2, 150]] {
            let x = ramp(&dims);
            let values = x.to_f32s().unwrap();
            for op in OPS {
                for set in 0..8usize {
                    let axes: Vec<i64> = (0..3).filter(|a| set >> a & 1 == 1).map(|a| a as i64 - 3).collect();
                    let keep = |a: usize| set >> a & 1 == 0;
                    let got = case("", op, 18)
                        .input(x.clone())
                        .constant(Tensor::from_i64s(&[axes.len()], &axes))
                        .attr("noop_with_empty_axes", Attr::Int(1))
                        .run_f32();
                    let mut sets: std::collections::BTreeMap<Vec<usize>, Vec<f32>> = Default::default();
                    for (i, &v) in values.iter().enumerate() {
                        let at = [i / (dims[1] * dims[2]), i / dims[2] % dims[1], i % dims[2]];
                        sets.entry((0..3).filter(|&a| keep(a)).map(|a| at[a]).collect()).or_default().push(v);
                    }
                    let want: Vec<f32> = sets.values().map(|v| reference(op, v)).collect();
                    assert_eq!(got.len(), want.len());
                    for (g, w) in got.iter().zip(want) {
                        let near = g == &w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= 2e-5 * w.abs().max(1.0);
                        assert!(near, "{op} {dims:?} over {axes:?}: {g}, expected {w}");
                    }
                }
            }
        }
    }

    /// The same over axes that are an operand of the run.
    #[test]
    fn axes_at_run_time() {
        let x = ramp(&[2, 3, 5]);
        for op in OPS {
            for axes in [&[1][..], &[-1], &[0], &[2, 0], &[-3, -2], &[0, 1, 2]] {
                for keep in [0, 1] {
                    let given = Tensor::from_i64s(&[axes.len()], axes);
                    let node = || case("", op, 18).input(x.clone()).attr("keepdims", Attr::Int(keep));
                    let (got, want) =
                        (node().input(given.clone()).run().unwrap(), node().constant(given).run().unwrap());
                    assert_eq!(got[0].dims(), want[0].dims(), "{op} {axes:?} {keep}");
                    let (got, want) = (got[0].to_f32s().unwrap(), want[0].to_f32s().unwrap());
                    let near = |(g, w): (&f32, &f32)| {
                        g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= 2e-5 * w.abs().max(1.0)
                    };
                    assert!(got.iter().zip(&want).all(near), "{op} {axes:?}: {got:?} {want:?}");
                }
            }
        }
        let node =
            |axes: &[i64]| case("", "ReduceSum", 13).input(ramp(&[2, 3])).input(Tensor::from_i64s(&[axes.len()], axes));
        // An axis that is not there, and one given twice.
        assert!(node(&[2]).run().is_err() && node(&[-3]).run().is_err() && node(&[1, -1]).run().is_err());
        // No axes at all are all of them, or none.
        assert_eq!(node(&[]).run().unwrap()[0].dims(), [1, 1]);
        assert_eq!(node(&[]).attr("noop_with_empty_axes", Attr::Int(1)).run().unwrap()[0], ramp(&[2, 3]));
    }

    #[test]
    fn empty_sets_give_neutral_values() {
        let inf = f32::INFINITY;
        for (op, want) in [
            ("ReduceSum", 0.0),
            ("ReduceMax", -inf),
            ("ReduceMin", inf),
            ("ReduceProd", 1.0),
            ("ReduceL1", 0.0),
            ("ReduceL2", 0.0),
            ("ReduceLogSum", -inf),
            ("ReduceLogSumExp", -inf),
            ("ReduceSumSquare", 0.0),
        ] {
            for (dims, axis) in [([2, 0, 1], 1), ([2, 1, 0], 2), ([0, 2, 1], 0)] {
                let axes = Tensor::from_i64s(&[1], &[axis]);
                let y = case("", op, 18).input(Tensor::from_f32s(&dims, &[])).constant(axes).run_f32();
                assert_eq!(y, vec![want; 2], "{op}");
            }
        }
        let bits = Tensor::new(Dtype::Bool, vec![2, 0], Vec::new().into()).unwrap();
        for (op, want) in [("ReduceMax", 0), ("ReduceMin", 1)] {
            let axes = Tensor::from_i64s(&[1], &[1]);
            let y = case("", op, 20).input(bits.clone()).constant(axes).run().unwrap();
            assert_eq!(&y[0].data()[..], [want, want]);
        }
    }

    #[test]
    fn integers_wrap_and_divide_toward_zero() {
        let x = Tensor::from_i32s(&[2], &[i32::MAX, 1]);
        assert_eq!(case("", "ReduceSum", 11).input(x).run().unwrap()[0].to_i32s().unwrap(), [i32::MIN]);
        let x = Tensor::from_i64s(&[2], &[-3, -4]);
        let keep = case("", "ReduceMean", 13).input(x).attr("keepdims", Attr::Int(0)).run().unwrap();
        assert_eq!((keep[0].dims(), keep[0].to_i64s().unwrap()), (&[][..], vec![-3]));
    }

    #[test]
    fn nan_is_the_maximum() {
        for n in [3, 40, 100] {
            let mut v = vec![1.0; n];
            v[n / 2] = f32::NAN;
            for op in ["ReduceMax", "ReduceMin", "ReduceSum"] {
                assert!(case("", op, 13).input(Tensor::from_f32s(&[n], &v)).run_f32()[0].is_nan(), "{op} {n}");
                let columns = Tensor::from_f32s(&[n, 1, 2], &v.iter().flat_map(|&x| [x, 1.0]).collect::<Vec<_>>());
                let y = case("", op, 11).input(columns).attr("axes", Attr::Ints(vec![0])).run_f32();
                assert!(y[0].is_nan() && !y[1].is_nan(), "{op} {n}");
            }
        }
    }

    #[test]
    fn halves_round_once() {
        let x = Tensor::new(Dtype::Bf16, vec![2], vec![0x80, 0x3f, 0x80, 0x3b].into()).unwrap();
        let y = case("", "ReduceSum", 13).input(x).run().unwrap();
        assert_eq!(&y[0].data()[..], [0x80, 0x3f]);
    }

    #[test]
    fn refuses() {
        let x = ramp(&[2, 3]);
        assert!(case("", "ReduceSum", 11).input(x.clone()).attr("axes", Attr::Ints(vec![2])).infer().is_err());
        assert!(case("", "ReduceSum", 11).input(x).attr("axes", Attr::Ints(vec![0, -2])).infer().is_err());
    }
}
