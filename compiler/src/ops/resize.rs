//! Resize and Upsample: interpolation along axes, one pass an axis; nearest in one pass for two neighbouring axes.
//!
//! <https://onnx.ai/onnx/operators/onnx__Resize.html>, <https://onnx.ai/onnx/operators/onnx__Upsample.html>

use super::number::number_bytes;
use super::run_time::check_ints;
use super::view::{NodeView, Result, resolve_axes, wrong};
use super::{InferCx, LayoutRule, OpDef, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Layout};
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{
    Coordinates, Dtype, Interpolate, NearestRounding, Operand, ResizeMode, ResizeNearest, ResizeRule, ResizeTable,
    resize_table, resize_taps, scaled_size,
};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "Resize", &[10, 11, 13, 18, 19], infer, lower)
        .with_layout(LayoutRule::Channelwise)
        .with_flops(flops),
    OpDef::new("", "Upsample", &[1, 7, 9, 10], infer, lower).with_layout(LayoutRule::Channelwise).with_flops(flops),
];

/// Whether an operand is given and has elements: exporters leave out `roi` and `scales` by empty tensors.
fn given(cx: &NodeView<'_>, i: usize) -> Result<bool> {
    Ok(cx.has(i) && !cx.ty(i)?.numel().is(0))
}

/// Where the operands stand: (roi, scales, sizes).
fn positions(cx: &NodeView<'_>) -> (Option<usize>, Option<usize>, Option<usize>) {
    match (cx.node.op.as_str(), cx.version()) {
        ("Upsample", ..9) => (None, None, None),
        ("Upsample", _) | (_, ..11) => (None, Some(1), None),
        _ => (Some(1), Some(2), Some(3)),
    }
}

/// How one axis is resized.
#[derive(Clone)]
struct Axis {
    /// Output extent.
    n_out: Dim,
    /// Output size per input size, where it is not that of the extents: 0 takes theirs.
    scale: f64,
    /// Which element of the scales and of the regions is this axis's.
    at: usize,
    /// Whether the scale is read at run time.
    run_time_scale: bool,
}

/// The constant scales of the axes.
fn const_scales(cx: &NodeView<'_>) -> Result<Option<Vec<f32>>> {
    if cx.node.op == "Upsample" && cx.version() < 9 {
        if let Some(s) = cx.opt_floats("scales")? {
            return Ok(Some(s.to_vec()));
        }
        // Opset 1: height and width.
        let (Some(h), Some(w)) = (cx.opt_float("height_scale")?, cx.opt_float("width_scale")?) else {
            return Err(wrong("attribute scales is missing"));
        };
        return Ok(Some(vec![1.0, 1.0, h, w]));
    }
    let (_, Some(i), _) = positions(cx) else { return Ok(None) };
    if !given(cx, i)? {
        return Ok(None);
    }
    cx.expect_dtype(i, &[Dtype::F32])?;
    Ok(cx.constant(i).and_then(|t| t.to_f32s()))
}

/// The axes that scales, sizes and regions speak of.
fn axes(cx: &NodeView<'_>) -> Result<Vec<usize>> {
    let rank = cx.rank(0)?;
    match cx.opt_ints("axes")? {
        Some(a) => resolve_axes(a, rank).map_err(|e| e.at_attribute("axes")),
        None => Ok((0..rank).collect()),
    }
}

/// An extent times a scale, rounded down.
fn scaled(n: &Dim, scale: f32) -> Result<Dim> {
    if let Some(c) = n.as_const().and_then(|c| usize::try_from(c).ok()) {
        let n = scaled_size(c, scale).ok_or_else(|| wrong(format!("an extent of {c} scaled by {scale}")))?;
        return Ok(Dim::from(n));
    }
    let fraction = (1..=64i64).map(|q| (scale * q as f32, q)).find(|(p, _)| p.fract() == 0.0 && *p < 1e6);
    let (p, q) = fraction.ok_or_else(|| wrong(format!("a run-time extent {n} scaled by {scale}")))?;
    Ok((n.clone() * Dim::Const(p as i64)).floor_div(&Dim::Const(q)))
}

/// How every axis is resized; `None` for one that is not.
fn plan(cx: &NodeView<'_>) -> Result<Vec<Option<Axis>>> {
    let x = cx.ty(0)?;
    let axes = axes(cx)?;
    let n = axes.len();
    let counted = |found: usize| {
        if found == n { Ok(()) } else { Err(wrong(format!("{found} scales or sizes for {n} axes of {x}"))) }
    };
    let mut plan = vec![None; x.rank()];
    let (_, scales_at, sizes_at) = positions(cx);
    if let Some(scales) = const_scales(cx)? {
        counted(scales.len())?;
        for (at, (&a, &scale)) in axes.iter().zip(&scales).enumerate() {
            if !(scale > 0.0 && scale.is_finite()) {
                return Err(wrong(format!("a scale of {scale}")));
            }
            let n_out = scaled(&x.shape[a], scale)?;
            plan[a] = Some(Axis { n_out, scale: f64::from(scale), at, run_time_scale: false });
        }
    } else if let Some(i) = scales_at.filter(|&i| given(cx, i).unwrap_or(false)) {
        // Scales known only at run time: the declared shape of the result, checked then.
        let shape = cx.declared(0, x.rank()).ok_or_else(|| cx.unknown(i))?;
        counted(usize::try_from(cx.ty(i)?.numel().as_const().unwrap_or(0)).unwrap_or(0))?;
        for (at, &a) in axes.iter().enumerate() {
            plan[a] = Some(Axis { n_out: shape[a].clone(), scale: 0.0, at, run_time_scale: true });
        }
        return Ok(plan);
    } else {
        let i = sizes_at.filter(|&i| cx.has(i)).ok_or_else(|| wrong("neither scales nor sizes are given"))?;
        let sizes = match cx.dims(i) {
            Some(d) => d,
            // Known only at run time: the declared extents, checked then.
            None if cx.text("keep_aspect_ratio_policy", "stretch")? == "stretch" => {
                let shape = cx.declared(0, x.rank()).ok_or_else(|| cx.unknown(i))?;
                axes.iter().map(|&a| shape[a].clone()).collect()
            }
            None => return Err(cx.unknown(i)),
        };
        counted(sizes.len())?;
        if sizes.iter().any(|d| d.as_const().is_some_and(|d| d < 0)) {
            return Err(wrong("a negative size").at_input(i));
        }
        let kept = kept_ratio(cx, &axes, &sizes)?;
        for (at, (&a, size)) in axes.iter().zip(sizes).enumerate() {
            let (n_out, scale) = match kept {
                None => (size, 0.0),
                Some(scale) => {
                    let n = x.shape[a].as_const().unwrap_or(0) as f64;
                    (Dim::Const((scale * n + 0.5) as i64), scale)
                }
            };
            plan[a] = Some(Axis { n_out, scale, at, run_time_scale: false });
        }
    }
    let crops = coordinates(cx)? == Coordinates::TfCropAndResize;
    for (axis, d) in plan.iter_mut().zip(&x.shape) {
        if !crops && axis.as_ref().is_some_and(|a| a.n_out == *d && (a.scale == 0.0 || a.scale == 1.0)) {
            *axis = None;
        }
        if axis.as_ref().is_some_and(|a| d.is(0) && !a.n_out.is(0)) {
            return Err(wrong(format!("an empty axis of {x} has nothing to interpolate")));
        }
    }
    Ok(plan)
}

/// The one scale of all axes where the aspect ratio is kept.
fn kept_ratio(cx: &NodeView<'_>, axes: &[usize], sizes: &[Dim]) -> Result<Option<f64>> {
    let policy = cx.text("keep_aspect_ratio_policy", "stretch")?;
    let larger = match policy {
        "stretch" => return Ok(None),
        "not_larger" => false,
        "not_smaller" => true,
        other => return Err(wrong(format!("{other:?} is not supported")).at_attribute("keep_aspect_ratio_policy")),
    };
    let mut scale: Option<f64> = None;
    for (&a, size) in axes.iter().zip(sizes) {
        let d = &cx.shape(0)?[a];
        let (Some(size), Some(d)) = (size.as_const(), d.as_const().filter(|d| *d > 0)) else {
            return Err(wrong(format!("an axis of {d} resized to {size} by its aspect ratio")));
        };
        let s = size as f64 / d as f64;
        scale = Some(scale.map_or(s, |o| if larger { o.max(s) } else { o.min(s) }));
    }
    Ok(scale)
}

fn coordinates(cx: &NodeView<'_>) -> Result<Coordinates> {
    let default = if cx.node.op == "Upsample" || cx.version() < 11 { "asymmetric" } else { "half_pixel" };
    Ok(match cx.text("coordinate_transformation_mode", default)? {
        "half_pixel" => Coordinates::HalfPixel,
        "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
        "align_corners" if cx.version() < 19 => Coordinates::AlignCornersWhole,
        "align_corners" => Coordinates::AlignCorners,
        "asymmetric" => Coordinates::Asymmetric,
        "tf_crop_and_resize" => Coordinates::TfCropAndResize,
        // Opset 11 only: half pixels, always rounded down.
        "tf_half_pixel_for_nn" => Coordinates::HalfPixel,
        other => {
            return Err(wrong(format!("{other:?} is not supported")).at_attribute("coordinate_transformation_mode"));
        }
    })
}

/// All of an axis's rule but the scale.
fn rule(cx: &NodeView<'_>) -> Result<ResizeRule> {
    let mode = match cx.text("mode", "nearest")? {
        "nearest" => ResizeMode::Nearest,
        "linear" | "bilinear" => ResizeMode::Linear,
        "cubic" => ResizeMode::Cubic,
        other => return Err(wrong(format!("{other:?} is not supported")).at_attribute("mode")),
    };
    let old = cx.node.op == "Upsample" || cx.version() < 11;
    let for_nn = cx.opt_text("coordinate_transformation_mode")? == Some("tf_half_pixel_for_nn");
    let rounding = match cx.text("nearest_mode", if old { "floor" } else { "round_prefer_floor" })? {
        _ if for_nn => NearestRounding::PreferCeil,
        "round_prefer_floor" => NearestRounding::PreferFloor,
        "round_prefer_ceil" => NearestRounding::PreferCeil,
        "floor" => NearestRounding::Floor,
        "ceil" => NearestRounding::Ceil,
        other => return Err(wrong(format!("{other:?} is not supported")).at_attribute("nearest_mode")),
    };
    let antialias = cx.int("antialias", 0)? != 0;
    if antialias && mode == ResizeMode::Nearest {
        return Err(wrong("does not go with mode nearest").at_attribute("antialias"));
    }
    Ok(ResizeRule {
        mode,
        coordinates: coordinates(cx)?,
        rounding,
        cubic_a: f64::from(cx.float("cubic_coeff_a", -0.75)?),
        exclude_outside: cx.int("exclude_outside", 0)? != 0,
        antialias,
        scale: 0.0,
    })
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    rule(cx)?;
    let plan = plan(cx)?;
    let x = cx.ty(0)?;
    if x.dtype.is_complex() || x.dtype == Dtype::Str {
        return Err(wrong(format!("{x} cannot be interpolated")).at_input(0));
    }
    let shape = x.shape.iter().zip(plan).map(|(d, axis)| axis.map_or(d.clone(), |a| a.n_out)).collect();
    cx.set(0, tensor(x.dtype, shape));
    Ok(())
}

/// Two operations per tap and result of each pass, at the result's size.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let rule = rule(cx)?;
    if rule.mode == ResizeMode::Nearest {
        return Ok(Dim::Const(0));
    }
    let passes = plan(cx)?.iter().flatten().count();
    let taps = resize_taps(rule.mode, false, 1.0).unwrap_or(1);
    Ok(cx.out_ty(0)?.numel() * Dim::from(2 * taps * passes))
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let plan = plan(cx)?;
    if let (_, Some(scales), Some(sizes)) = positions(cx)
        && !given(cx, scales)?
        && cx.dims(sizes).is_none()
    {
        let planned: Vec<Dim> =
            axes(cx)?.into_iter().map(|a| cx.out_shape(0).map(|s| s[a].clone())).collect::<Result<_>>()?;
        check_ints(cx, sizes, 0, &planned)?;
    }
    let mut resized: Vec<(usize, Axis)> =
        plan.into_iter().enumerate().filter_map(|(a, axis)| Some((a, axis?))).collect();
    if resized.is_empty() {
        return cx.view_of(0, 0);
    }
    if cx.out_ty(0)?.numel().is(0) {
        cx.y(0)?;
        return Ok(());
    }
    let shape = cx.physical(0)?;
    if cx.layout(0)? == Layout::Blocked16 && resized.iter().any(|(a, _)| *a == 1) {
        return Err(CompileError::new(Stage::Lower, "channels are resized in the blocked layout"));
    }
    let rule = rule(cx)?;
    if rule.mode == ResizeMode::Nearest {
        return lower_nearest(cx, &rule, shape, &resized);
    }
    // What shrinks goes first: later passes then have less to do.
    let growth = |(a, axis): &(usize, Axis)| match (axis.n_out.as_const(), shape[*a].as_const()) {
        (Some(n), Some(d)) => n as f64 / d.max(1) as f64,
        _ => 1.0,
    };
    resized.sort_by(|a, b| growth(a).total_cmp(&growth(b)));
    lower_interpolated(cx, &rule, shape, &resized)
}

/// Positions and weights of one axis, made here if all is constant.
fn table(cx: &mut LowerCx<'_>, rule: &ResizeRule, n_in: &Dim, axis: &Axis, wide: bool) -> Result<Table> {
    let crops = rule.coordinates == Coordinates::TfCropAndResize;
    let (roi_at, scales_at, _) = positions(&cx.view());
    let roi_at = if crops {
        let i = roi_at.filter(|&i| given(&cx.view(), i).unwrap_or(false));
        Some(i.ok_or_else(|| wrong("the region is missing").at_input(1))?)
    } else {
        None
    };
    let n_axes = axes(cx)?.len();
    let roi = roi_at
        .and_then(|i| cx.constant(i))
        .map(|t| t.to_f64s().or_else(|| Some(t.to_f32s()?.into_iter().map(f64::from).collect::<Vec<_>>())));
    let region = match roi {
        Some(Some(v)) if v.len() == 2 * n_axes => Some([v[axis.at], v[axis.at + n_axes]]),
        Some(_) => return Err(wrong(format!("expected f32 or f64 [{}]", 2 * n_axes)).at_input(1)),
        None => (!crops).then_some([0.0, 1.0]),
    };
    let rule = ResizeRule { scale: axis.scale, ..*rule };
    let scale = match (rule.scale, axis.n_out.as_const(), n_in.as_const()) {
        (0.0, Some(o), Some(i)) => o as f64 / i.max(1) as f64,
        (s, ..) => s,
    };
    if scale == 0.0 && rule.antialias {
        return Err(CompileError::new(Stage::Lower, "antialias needs constant sizes"));
    }
    // A scale read at run time may be a little less than the sizes' quotient, in f32.
    let least = if axis.run_time_scale { scale * (1.0 - 1e-6) } else { scale };
    let taps = resize_taps(rule.mode, rule.antialias, least).ok_or_else(|| wrong(format!("a scale of {scale}")))?;
    let constants = (n_in.as_const(), axis.n_out.as_const(), region);
    if let (Some(i), Some(o), Some(region)) = constants
        && !axis.run_time_scale
    {
        let (Ok(i), Ok(o)) = (usize::try_from(i), usize::try_from(o)) else { return Err(wrong("an extent")) };
        let len = o.checked_mul(taps).filter(|&n| n <= MAX_TABLE).ok_or_else(|| wrong("an axis of that length"))?;
        let mut index = vec![0; len];
        let (mut narrow, mut wide_weights) = (Vec::new(), Vec::new());
        let done = if wide {
            wide_weights = vec![0f64; len];
            resize_table(&rule, i, o, taps, region, &mut index, &mut wide_weights)
        } else {
            narrow = vec![0f32; len];
            resize_table(&rule, i, o, taps, region, &mut index, &mut narrow)
        };
        done.map_err(|f| CompileError::new(Stage::Lower, f.message()))?;
        let index_bytes: Vec<u8> = index.iter().flat_map(|v: &i32| v.to_le_bytes()).collect();
        let weight_bytes: Vec<u8> = if wide {
            wide_weights.iter().flat_map(|v| v.to_le_bytes()).collect()
        } else {
            narrow.iter().flat_map(|v| v.to_le_bytes()).collect()
        };
        let index = cx.weights(index_bytes);
        // Nearest weighs nothing.
        let weight = if rule.mode == ResizeMode::Nearest { index.clone() } else { cx.weights(weight_bytes) };
        return Ok(Table { index, weight, taps });
    }
    let len = axis.n_out.clone() * Dim::from(taps);
    let (weight_dtype, size) = if wide { (Dtype::F64, 8) } else { (Dtype::F32, 4) };
    let index = cx.scratch(len.clone() * Dim::Const(4));
    let weight = cx.scratch(len * Dim::Const(size));
    let scales = match scales_at {
        Some(i) if axis.run_time_scale => Some(cx.x(i)?),
        _ => None,
    };
    let roi = match roi_at {
        Some(i) => {
            cx.expect_dtype(i, &[Dtype::F32])?;
            Some(cx.x(i)?)
        }
        None => None,
    };
    let d = ResizeTable {
        scales,
        roi,
        index: index.clone(),
        weight: weight.clone(),
        n_in: n_in.clone(),
        n_out: axis.n_out.clone(),
        taps: Dim::from(taps),
        at: Dim::from(axis.at),
        n_roi: Dim::from(n_axes),
        mode: rule.mode,
        coordinates: rule.coordinates,
        rounding: rule.rounding,
        cubic_a: rule.cubic_a,
        exclude_outside: rule.exclude_outside,
        antialias: rule.antialias,
        scale: rule.scale,
    };
    cx.call(&[weight_dtype, Dtype::F32, Dtype::I32], d)?;
    Ok(Table { index, weight, taps })
}

/// Entries of a table made offline.
const MAX_TABLE: usize = 1 << 28;

/// One axis's table in memory.
struct Table {
    index: Operand<Dim>,
    weight: Operand<Dim>,
    taps: usize,
}

fn extrapolation(cx: &NodeView<'_>) -> Result<f32> {
    cx.float("extrapolation_value", 0.0)
}

/// Passes over pairs of neighbouring axes, or over one.
fn lower_nearest(
    cx: &mut LowerCx<'_>,
    rule: &ResizeRule,
    mut shape: Vec<Dim>,
    resized: &[(usize, Axis)],
) -> Result<()> {
    let dtype = cx.dtype(0)?;
    let fill = if rule.coordinates == Coordinates::TfCropAndResize {
        let t = number_bytes(f64::from(extrapolation(cx)?), dtype)
            .ok_or_else(|| CompileError::new(Stage::Lower, format!("an extrapolation value for {dtype}")))?;
        Some(cx.weights(t))
    } else {
        None
    };
    let mut x = cx.x(0)?;
    let mut rest = resized;
    while let Some(((a, first), after)) = rest.split_first() {
        let second = after.first().filter(|(b, _)| *b == a + 1);
        rest = if second.is_some() { &after[1..] } else { after };
        // A single axis is the columns of one row.
        let whole = Axis { n_out: Dim::Const(1), scale: 1.0, at: 0, run_time_scale: false };
        let not_cropped = ResizeRule { coordinates: Coordinates::Asymmetric, ..*rule };
        let (col_axis, rows, cols, h, oh) = match second {
            Some((b, axis)) => {
                let rows = table(cx, rule, &shape[*a], first, false)?;
                let cols = table(cx, rule, &shape[*b], axis, false)?;
                (*b, rows, cols, shape[*a].clone(), first.n_out.clone())
            }
            None => {
                let rows = table(cx, &not_cropped, &Dim::Const(1), &whole, false)?;
                (*a, rows, table(cx, rule, &shape[*a], first, false)?, Dim::Const(1), Dim::Const(1))
            }
        };
        let w = shape[col_axis].clone();
        let ow = second.map_or(&first.n_out, |(_, axis)| &axis.n_out).clone();
        let outer: Dim = shape[..*a].iter().cloned().product();
        let inner: Dim = shape[col_axis + 1..].iter().cloned().product();
        shape[*a] = first.n_out.clone();
        shape[col_axis] = ow.clone();
        let y = if rest.is_empty() {
            cx.y(0)?
        } else {
            cx.scratch(shape.iter().cloned().product::<Dim>() * Dim::from(dtype.size_bytes()))
        };
        let d = ResizeNearest {
            x: std::mem::replace(&mut x, y.clone()),
            rows: rows.index,
            cols: cols.index,
            fill: fill.clone(),
            y,
            outer,
            h,
            w,
            oh,
            ow,
            inner,
        };
        cx.call(&[width_of(dtype)?, Dtype::I32], d)?;
    }
    Ok(())
}

/// One pass an axis; between passes elements are `f32` or, for types that it does not hold, `f64`.
fn lower_interpolated(
    cx: &mut LowerCx<'_>,
    rule: &ResizeRule,
    mut shape: Vec<Dim>,
    resized: &[(usize, Axis)],
) -> Result<()> {
    let dtype = cx.dtype(0)?;
    let sum = match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::U8 | Dtype::I8 | Dtype::U16 | Dtype::I16 => Dtype::F32,
        Dtype::F64 | Dtype::U32 | Dtype::I32 | Dtype::U64 | Dtype::I64 => Dtype::F64,
        other => return Err(CompileError::new(Stage::Lower, format!("no interpolation of {other}"))),
    };
    let fill = f64::from(extrapolation(cx)?);
    let mut x = cx.x(0)?;
    let mut from = dtype;
    for (i, (a, axis)) in resized.iter().enumerate() {
        let table = table(cx, rule, &shape[*a], axis, sum == Dtype::F64)?;
        let n_in = shape[*a].clone();
        shape[*a] = axis.n_out.clone();
        let last = i + 1 == resized.len() && (from == sum || dtype == sum);
        let to = if last { dtype } else { sum };
        let y = if last {
            cx.y(0)?
        } else {
            cx.scratch(shape.iter().cloned().product::<Dim>() * Dim::from(to.size_bytes()))
        };
        let d = Interpolate {
            x: std::mem::replace(&mut x, y.clone()),
            index: table.index,
            weight: table.weight,
            y,
            outer: shape[..*a].iter().cloned().product(),
            n_in,
            n_out: axis.n_out.clone(),
            inner: shape[a + 1..].iter().cloned().product(),
            taps: Dim::from(table.taps),
            fill,
        };
        cx.call(&[from, to, sum, Dtype::I32], d)?;
        from = to;
    }
    if from == dtype {
        return Ok(());
    }
    // A single pass gave sums: rounded by a pass that changes nothing.
    let one = if sum == Dtype::F64 { 1f64.to_le_bytes().to_vec() } else { 1f32.to_le_bytes().to_vec() };
    let d = Interpolate {
        x,
        index: cx.weights(vec![0; 4]),
        weight: cx.weights(one),
        y: cx.y(0)?,
        outer: Dim::Const(1),
        n_in: Dim::Const(1),
        n_out: Dim::Const(1),
        inner: shape.into_iter().product(),
        taps: Dim::Const(1),
        fill,
    };
    cx.call(&[from, dtype, sum, Dtype::I32], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::{Case, case};

    fn text(s: &str) -> Attr {
        Attr::Str(s.into())
    }

    fn square() -> Tensor {
        Tensor::from_f32s(&[1, 1, 2, 2], &[1., 2., 3., 4.])
    }

    fn resize(x: Tensor, scales: &[f32]) -> Case {
        let c = case("", "Resize", 13).input(x).absent();
        c.constant(Tensor::from_f32s(&[scales.len()], scales))
    }

    #[test]
    fn nearest() {
        let y = resize(square(), &[1., 1., 2., 3.]).run_f32();
        let (a, b) = ([1., 1., 1., 2., 2., 2.], [3., 3., 3., 4., 4., 4.]);
        assert_eq!(y, [a, a, b, b].concat());
        let y = resize(square(), &[1., 1., 1., 2.]).run_f32();
        assert_eq!(y, [1., 1., 2., 2., 3., 3., 4., 4.]);
        let line = Tensor::from_u8s(&[1, 1, 1, 4], &[1, 2, 3, 4]);
        // Positions 0.17, 1.5, 2.83.
        for (mode, want) in [("floor", [1, 2, 3]), ("ceil", [2, 3, 4]), ("round_prefer_ceil", [1, 3, 4])] {
            let c = case("", "Resize", 13).input(line.clone()).absent().absent();
            let c = c.constant(Tensor::from_i64s(&[4], &[1, 1, 1, 3])).attr("nearest_mode", text(mode));
            assert_eq!(c.run().unwrap()[0].to_u8s().unwrap(), want);
        }
        let up = case("", "Upsample", 9).input(square()).constant(Tensor::from_f32s(&[4], &[1., 1., 2., 2.]));
        assert_eq!(up.run_f32().len(), 16);
    }

    #[test]
    fn linear_and_cubic() {
        let y = resize(square(), &[1., 1., 2., 2.]).attr("mode", text("linear")).run_f32();
        let want = [1., 1.25, 1.75, 2., 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3., 3.25, 3.75, 4.];
        assert_eq!(y, want);
        let c = resize(square(), &[1., 1., 2., 2.]).attr("mode", text("linear"));
        let y = c.attr("coordinate_transformation_mode", text("align_corners")).run_f32();
        assert!((y[1] - 4. / 3.).abs() < 1e-6 && y[15] == 4.);
        let row = Tensor::from_f32s(&[1, 1, 1, 4], &[1., 2., 3., 4.]);
        let y = resize(row, &[1., 1., 1., 0.5]).attr("mode", text("cubic")).run_f32();
        // Keys' weights at one half: -0.09375, 0.59375, 0.59375, -0.09375; the end repeats.
        assert_eq!(y, [1.40625, 3.59375]);
        for dtype_case in [Tensor::from_u8s(&[1, 1, 1, 2], &[1, 2]), Tensor::from_i64s(&[1, 1, 1, 2], &[1, 2])] {
            let y = resize(dtype_case, &[1., 1., 1., 2.]).attr("mode", text("linear")).run().unwrap();
            // 1.25 and 1.75, rounded.
            assert_eq!(y[0].to_ints().unwrap(), [1, 1, 2, 2]);
        }
    }
}
