//! Pad and CenterCropPad: a tensor with borders, each a strided copy of its own; negative widths cut.
//!
//! <https://onnx.ai/onnx/operators/onnx__Pad.html>

use super::index::{as_i64, last8};
use super::number::number_bytes;
use super::run_time::check_ints;
use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, resolve_axes, wrong};
use super::{InferCx, OpDef, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Dtype, Operand, PadAt, PadMode};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "Pad", &[1, 2, 11, 13, 18, 19, 21, 23, 24, 25], infer, lower),
    OpDef::new("", "CenterCropPad", &[18], infer_center, lower_center),
];

fn mode(cx: &NodeView<'_>) -> Result<PadMode> {
    Ok(match cx.text("mode", "constant")? {
        "constant" => PadMode::Constant,
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        other => return Err(wrong(format!("{other:?} is not supported")).at_attribute("mode")),
    })
}

/// Border widths of every axis, before and after; negative ones cut.
fn pads(cx: &NodeView<'_>) -> Result<Vec<[Dim; 2]>> {
    let rank = cx.rank(0)?;
    let (given, axes) = if cx.version() < 11 {
        let name = if cx.version() < 2 { "paddings" } else { "pads" };
        let given = cx.opt_ints(name)?.ok_or_else(|| wrong(format!("attribute {name} is missing")))?;
        (given.iter().map(|&d| Dim::Const(d)).collect(), None)
    } else {
        (cx.need_dims(1)?, if cx.has(3) { Some(cx.need_ints(3)?) } else { None })
    };
    let axes = match axes {
        Some(a) => resolve_axes(&a, rank).map_err(|e| e.at_input(3))?,
        None => (0..rank).collect(),
    };
    if given.len() != 2 * axes.len() {
        return Err(wrong(format!("{} widths for {} axes", given.len(), axes.len())));
    }
    let mut pads = vec![[Dim::Const(0), Dim::Const(0)]; rank];
    for (i, &a) in axes.iter().enumerate() {
        pads[a] = [given[i].clone(), given[axes.len() + i].clone()];
    }
    Ok(pads)
}

/// One axis: what is kept of it, and the borders.
struct Axis {
    /// First position kept.
    first: Dim,
    /// Positions kept.
    kept: Dim,
    /// Border widths.
    border: [Dim; 2],
}

impl Axis {
    fn new(extent: &Dim, pads: &[Dim; 2]) -> Self {
        let zero = Dim::Const(0);
        let cut = pads.each_ref().map(|p| (zero.clone() - p.clone()).at_least(&zero));
        let kept = (extent.clone() - cut[0].clone() - cut[1].clone()).at_least(&zero);
        let [first, _] = cut;
        Self { first, kept, border: pads.each_ref().map(|p| p.at_least(&zero)) }
    }

    fn extent(&self) -> Dim {
        self.border[0].clone() + self.kept.clone() + self.border[1].clone()
    }
}

fn axes(cx: &NodeView<'_>, pads: &[[Dim; 2]]) -> Result<Vec<Axis>> {
    Ok(cx.shape(0)?.iter().zip(pads).map(|(d, p)| Axis::new(d, p)).collect())
}

/// Whether the widths are known only at run time.
fn at_run_time(cx: &NodeView<'_>) -> bool {
    cx.version() >= 11 && [1, 3].iter().any(|&i| cx.has(i) && cx.dims(i).is_none())
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    if at_run_time(cx) {
        // The declared extents, checked then.
        let x = cx.ty(0)?;
        cx.expect_dtype(1, &[Dtype::I64])?;
        mode(cx)?;
        let shape = cx.declared(0, x.rank()).ok_or_else(|| cx.unknown(1))?;
        cx.set(0, tensor(x.dtype, shape));
        return Ok(());
    }
    let axes = axes(cx, &pads(cx)?)?;
    let mode = mode(cx)?;
    let x = cx.ty(0)?;
    for (a, axis) in axes.iter().enumerate() {
        let bordered = axis.border.iter().any(|b| !b.is(0));
        if mode != PadMode::Constant && bordered && axis.kept.is(0) {
            return Err(wrong(format!("axis {a} of {x} is empty, it has nothing to fill borders with")));
        }
    }
    if cx.version() >= 11 && cx.has(2) {
        cx.expect_same_dtype(2, 0)?;
        if cx.ty(2)?.numel().as_const().is_some_and(|n| n != 1) {
            return Err(wrong(format!("expected one element, found {}", cx.ty(2)?)).at_input(2));
        }
    }
    cx.set(0, tensor(x.dtype, axes.iter().map(Axis::extent).collect()));
    Ok(())
}

/// Positions of one axis of the result that step evenly through the operand.
#[derive(Clone)]
struct Run {
    y: Dim,
    x: Dim,
    step: i64,
    n: Dim,
}

/// Calls that one Pad may become.
const MAX_RUNS: usize = 4096;

/// The runs that make up an axis, for the modes that repeat elements.
fn runs(axis: &Axis, mode: PadMode) -> Result<Vec<Run>> {
    let [before, after] = &axis.border;
    let one = Dim::Const(1);
    let end = axis.first.clone() + axis.kept.clone();
    let last = end.clone() - one.clone();
    let inner = Run { y: before.clone(), x: axis.first.clone(), step: 1, n: axis.kept.clone() };
    let constants = (axis.kept.as_const(), before.as_const(), after.as_const());
    if let (Some(kept), Some(b), Some(e)) = constants
        && mode != PadMode::Edge
    {
        return constant_runs(axis, mode, kept, b, e);
    }
    // With sizes known only at run time: one run a border, which holds for borders smaller than the axis.
    let (left, right) = match mode {
        PadMode::Edge => (
            Run { y: Dim::Const(0), x: axis.first.clone(), step: 0, n: before.clone() },
            Run { y: before.clone() + axis.kept.clone(), x: last, step: 0, n: after.clone() },
        ),
        PadMode::Wrap => (
            Run { y: Dim::Const(0), x: end - before.clone(), step: 1, n: before.clone() },
            Run { y: before.clone() + axis.kept.clone(), x: axis.first.clone(), step: 1, n: after.clone() },
        ),
        _ => (
            Run { y: Dim::Const(0), x: axis.first.clone() + before.clone(), step: -1, n: before.clone() },
            Run { y: before.clone() + axis.kept.clone(), x: last - one, step: -1, n: after.clone() },
        ),
    };
    Ok([left, inner, right].into_iter().filter(|r| !r.n.is(0)).collect())
}

/// The runs of an axis of constant size: borders of any width.
fn constant_runs(axis: &Axis, mode: PadMode, kept: i64, before: i64, after: i64) -> Result<Vec<Run>> {
    let too_many = || wrong("borders of more than a few thousand pieces");
    if kept == 0 {
        return Ok(Vec::new());
    }
    let period = if mode == PadMode::Wrap { kept } else { (2 * (kept - 1)).max(1) };
    let at = |i: i64| {
        let r = (i - before).rem_euclid(period);
        if r < kept { r } else { period - r }
    };
    let total = before.checked_add(kept).and_then(|n| n.checked_add(after)).ok_or_else(too_many)?;
    let mut runs = Vec::new();
    let mut i = 0;
    while i < total {
        // To the next turn of direction, or of the repetition.
        let r = (i - before).rem_euclid(period);
        let (step, n) = match mode {
            PadMode::Wrap => (1, kept - r),
            _ if kept == 1 => (0, total - i),
            _ if r < kept - 1 => (1, kept - 1 - r),
            _ => (-1, period - r),
        };
        let n = n.min(total - i);
        let x = axis.first.clone() + Dim::Const(at(i));
        runs.push(Run { y: Dim::Const(i), x, step, n: Dim::Const(n) });
        if runs.len() > MAX_RUNS {
            return Err(too_many());
        }
        i += n;
    }
    Ok(join(runs))
}

/// Joins runs that go on where the one before ended.
fn join(runs: Vec<Run>) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::new();
    for r in runs {
        if let Some(p) = out.last_mut() {
            let goes_on = p.x.clone() + Dim::Const(p.step) * p.n.clone() == r.x;
            if goes_on && (p.step == r.step || r.n.is(1)) {
                p.n = p.n.clone() + r.n;
                continue;
            }
        }
        out.push(r);
    }
    out
}

/// The value of constant borders.
fn value(cx: &mut LowerCx<'_>) -> Result<Operand<Dim>> {
    let dtype = cx.dtype(0)?;
    if cx.node.op != "Pad" {
        return Ok(cx.weights(vec![0; dtype.size_bytes()]));
    }
    if cx.version() >= 11 {
        return match cx.opt(2)? {
            Some(v) => Ok(v),
            None => Ok(cx.weights(vec![0; dtype.size_bytes()])),
        };
    }
    let v = cx.float("value", 0.0)?;
    let bytes = number_bytes(f64::from(v), dtype)
        .ok_or_else(|| CompileError::new(Stage::Lower, format!("a border value for {dtype}")))?;
    Ok(cx.weights(bytes))
}

/// Widths read at run time.
fn lower_at(cx: &mut LowerCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let too_many = || CompileError::new(Stage::Lower, format!("rank {}, the kernel takes 8", x.rank()));
    let n_axes = match cx.opt_ty(3)? {
        Some(t) => t.numel(),
        None => Dim::from(x.rank()),
    };
    let d = PadAt {
        x: cx.x(0)?,
        pads: cx.x(1)?,
        value: cx.opt(2)?,
        axes: if cx.has(3) { Some(as_i64(cx, 3)?) } else { None },
        y: cx.y(0)?,
        rank: Dim::from(x.rank()),
        n_axes,
        dims: last8(&x.shape, 1).ok_or_else(too_many)?,
        out: last8(cx.out_shape(0)?, 1).ok_or_else(too_many)?,
        mode: mode(cx)?,
    };
    cx.call(&[width_of(x.dtype)?, Dtype::I64], d)
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    if at_run_time(cx) {
        return lower_at(cx);
    }
    let (pads, mode) = (pads(cx)?, mode(cx)?);
    lower_pads(cx, &pads, mode)
}

fn lower_pads(cx: &mut LowerCx<'_>, pads: &[[Dim; 2]], mode: PadMode) -> Result<()> {
    if pads.iter().flatten().all(|p| p.is(0)) {
        return cx.view_of(0, 0);
    }
    let axes = axes(cx, pads)?;
    let dtype = cx.dtype(0)?;
    let (x_strides, y_strides) = (row_major(cx.shape(0)?), row_major(cx.out_shape(0)?));
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    let mut pieces: Vec<Vec<Run>> = vec![Vec::new()];
    if mode == PadMode::Constant {
        let value = value(cx)?;
        fill_borders(cx, &axes, &y_strides, dtype, &value, &y)?;
        pieces[0] = axes
            .iter()
            .map(|a| Run { y: a.border[0].clone(), x: a.first.clone(), step: 1, n: a.kept.clone() })
            .collect();
    } else {
        for axis in &axes {
            let runs = runs(axis, mode)?;
            pieces = pieces
                .iter()
                .flat_map(|p| {
                    runs.iter().map(move |r| {
                        let mut p = p.clone();
                        p.push(r.clone());
                        p
                    })
                })
                .collect();
            if pieces.len() > MAX_RUNS {
                return Err(wrong("borders of more than a few thousand pieces"));
            }
        }
    }
    for piece in pieces {
        let start = |at: fn(&Run) -> &Dim, strides: &[Dim]| -> Dim {
            piece.iter().zip(strides).map(|(r, s)| at(r).clone() * s.clone()).sum()
        };
        let copy = StridedCopy {
            x_start: start(|r| &r.x, &x_strides),
            y_start: start(|r| &r.y, &y_strides),
            x_strides: piece.iter().zip(&x_strides).map(|(r, s)| Dim::Const(r.step) * s.clone()).collect(),
            y_strides: y_strides.clone(),
            dims: piece.into_iter().map(|r| r.n).collect(),
        };
        copy.lower(cx, dtype, x.clone(), y.clone())?;
    }
    Ok(())
}

/// The axes that CenterCropPad's shape speaks of.
fn center_axes(cx: &NodeView<'_>) -> Result<Vec<usize>> {
    let rank = cx.rank(0)?;
    match cx.opt_ints("axes")? {
        Some(a) => resolve_axes(a, rank).map_err(|e| e.at_attribute("axes")),
        None => Ok((0..rank).collect()),
    }
}

fn infer_center(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    cx.expect_dtype(1, &[Dtype::I32, Dtype::I64])?;
    let axes = center_axes(cx)?;
    let wanted = match cx.dims(1) {
        Some(d) => d,
        // Known only at run time: the declared extents, checked then.
        None => {
            let declared = cx.declared(0, x.rank()).ok_or_else(|| cx.unknown(1))?;
            axes.iter().map(|&a| declared[a].clone()).collect()
        }
    };
    if wanted.len() != axes.len() {
        return Err(wrong(format!("{} extents for {} axes", wanted.len(), axes.len())).at_input(1));
    }
    let mut shape = x.shape.clone();
    for (a, d) in axes.into_iter().zip(wanted) {
        if d.as_const().is_some_and(|d| d < 0) {
            return Err(wrong(format!("an extent of {d}")).at_input(1));
        }
        shape[a] = d;
    }
    cx.set(0, tensor(x.dtype, shape));
    Ok(())
}

/// Half of what is missing before, or half of the surplus cut; the rest after.
fn lower_center(cx: &mut LowerCx<'_>) -> Result<()> {
    let (x, y) = (cx.shape(0)?, cx.out_shape(0)?);
    if cx.dims(1).is_none() {
        let planned: Vec<Dim> = center_axes(cx)?.into_iter().map(|a| y[a].clone()).collect();
        check_ints(cx, 1, 0, &planned)?;
    }
    let (zero, two) = (Dim::Const(0), Dim::Const(2));
    let pads: Vec<[Dim; 2]> = x
        .iter()
        .zip(y)
        .map(|(d, wanted)| {
            let more = (wanted.clone() - d.clone()).at_least(&zero);
            let less = (d.clone() - wanted.clone()).at_least(&zero);
            let before = more.floor_div(&two) - less.floor_div(&two);
            [before.clone(), more - less - before]
        })
        .collect();
    lower_pads(cx, &pads, PadMode::Constant)
}

/// Fills the borders of each axis, within the kept part of the axes before it and over all of those after it.
fn fill_borders(
    cx: &mut LowerCx<'_>,
    axes: &[Axis],
    y_strides: &[Dim],
    dtype: Dtype,
    value: &Operand<Dim>,
    y: &Operand<Dim>,
) -> Result<()> {
    for (a, axis) in axes.iter().enumerate() {
        let starts = [Dim::Const(0), axis.border[0].clone() + axis.kept.clone()];
        for (from, n) in starts.into_iter().zip(&axis.border) {
            if n.is(0) {
                continue;
            }
            let extent = |(b, axis): (usize, &Axis)| match b.cmp(&a) {
                std::cmp::Ordering::Less => axis.kept.clone(),
                std::cmp::Ordering::Equal => n.clone(),
                std::cmp::Ordering::Greater => axis.extent(),
            };
            let outer: Dim = axes[..a].iter().zip(y_strides).map(|(x, s)| x.border[0].clone() * s.clone()).sum();
            let copy = StridedCopy {
                dims: axes.iter().enumerate().map(extent).collect(),
                x_start: Dim::Const(0),
                x_strides: vec![Dim::Const(0); axes.len()],
                y_start: outer + from * y_strides[a].clone(),
                y_strides: y_strides.to_vec(),
            };
            copy.lower(cx, dtype, value.clone(), y.clone())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn row(mode: &str, pads: [i64; 2]) -> Vec<i32> {
        let x = Tensor::from_i32s(&[4], &[1, 2, 3, 4]);
        let c = case("", "Pad", 19).input(x).constant(Tensor::from_i64s(&[2], &pads));
        c.attr("mode", Attr::Str(mode.into())).run().unwrap()[0].to_i32s().unwrap()
    }

    #[test]
    fn modes() {
        for (mode, pads, want) in [
            ("constant", [1, 2], vec![0, 1, 2, 3, 4, 0, 0]),
            ("constant", [-1, 1], vec![2, 3, 4, 0]),
            ("constant", [-3, -1], vec![]),
            ("edge", [2, 1], vec![1, 1, 1, 2, 3, 4, 4]),
            ("edge", [-2, 1], vec![3, 4, 4]),
            ("reflect", [2, 3], vec![3, 2, 1, 2, 3, 4, 3, 2, 1]),
            ("reflect", [7, 0], vec![2, 1, 2, 3, 4, 3, 2, 1, 2, 3, 4]),
            ("reflect", [-2, 1], vec![3, 4, 3]),
            ("wrap", [1, 6], vec![4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2]),
        ] {
            assert_eq!(row(mode, pads), want, "{mode} {pads:?}");
        }
    }

    #[test]
    fn values_axes_and_old_forms() {
        let x = Tensor::from_f32s(&[1, 2], &[1., 2.]);
        let want = Tensor::from_f32s(&[3, 3], &[9., 9., 9., 1., 2., 9., 9., 9., 9.]);
        let old = case("", "Pad", 2).input(x.clone()).attr("pads", Attr::Ints(vec![1, 0, 1, 1]));
        assert_eq!(old.attr("value", Attr::Float(9.)).run().unwrap()[0], want);
        let nine = Tensor::from_f32s(&[], &[9.]);
        let c = case("", "Pad", 18).input(x.clone()).constant(Tensor::from_i64s(&[4], &[0, 1, 1, 1])).input(nine);
        assert_eq!(c.constant(Tensor::from_i32s(&[2], &[-1, 0])).run().unwrap()[0], want);
        let both = case("", "Pad", 13).input(Tensor::from_u8s(&[2, 2], &[1, 2, 3, 4]));
        let both = both.constant(Tensor::from_i64s(&[4], &[1, 1, 0, 1])).attr("mode", Attr::Str(b"reflect".to_vec()));
        assert_eq!(both.run().unwrap()[0], Tensor::from_u8s(&[3, 4], &[4, 3, 4, 3, 2, 1, 2, 1, 4, 3, 4, 3]));
        for bad in [&[0, 0][..], &[i64::MAX, 0, 0, 0]] {
            let c = case("", "Pad", 13).input(x.clone()).constant(Tensor::from_i64s(&[bad.len()], bad));
            assert!(c.infer().is_err());
        }
    }
}
