//! ConvTranspose.
//!
//! Operands: X `[N, C, spatial…]`, W `[C, M/group, kernel…]`, B `[M]`.
//! <https://onnx.ai/onnx/operators/onnx__ConvTranspose.html>

use super::conv::{PlainWindow, blocked_bias, check_weights, kernel_of, plain_work};
use super::view::{NodeView, Result, wrong};
use super::window::{AutoPad, Window, auto_pad, per_axis, span};
use super::{InferCx, OpDef, half, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Layout};
use crate::lower::LowerCx;
use kiln_kernels::{ConvShape, ConvTranspose, ConvTransposeBlocked, Dtype};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "ConvTranspose", &[1, 11, 22], infer, lower).with_flops(flops),
    OpDef::new("kiln", "ConvTranspose", &[1], infer, lower).with_flops(flops),
];

struct Geometry {
    window: Window,
    groups: i64,
    out: Vec<Dim>,
}

fn geometry(cx: &NodeView<'_>) -> Result<Geometry> {
    let (x, w) = (cx.ty(0)?, cx.ty(1)?);
    if x.rank() < 3 {
        return Err(wrong(format!("expected rank 3 or more, found {x}")).at_input(0));
    }
    cx.expect_rank(1, x.rank())?;
    let n = x.rank() - 2;
    let kernel = kernel_of(cx, x.rank(), w)?;
    let groups = cx.int("group", 1)?;
    if !(1..=1 << 31).contains(&groups) {
        return Err(wrong(format!("{groups} groups")).at_attribute("group"));
    }
    let known = |a: &Dim, b: &Dim| a.as_const().is_some() && b.as_const().is_some();
    if x.shape[1] != w.shape[0] && known(&x.shape[1], &w.shape[0]) {
        return Err(wrong(format!("{} channels, the weights {w} take {}", x.shape[1], w.shape[0])).at_input(0));
    }
    if x.shape[1].as_const().is_some_and(|c| c % groups != 0) {
        return Err(wrong(format!("{} channels do not divide into {groups} groups", x.shape[1])).at_input(0));
    }
    let strides = per_axis(cx, "strides", n, 1, 1)?;
    let dilations = per_axis(cx, "dilations", n, 1, 1)?;
    let extra = per_axis(cx, "output_padding", n, 0, 0)?;
    let auto = auto_pad(cx)?;
    let mut pads_begin = vec![Dim::Const(0); n];
    let mut pads_end = pads_begin.clone();
    if auto == AutoPad::NotSet {
        let pads = per_axis(cx, "pads", 2 * n, 0, 0)?;
        for i in 0..n {
            pads_begin[i] = Dim::Const(pads[i]);
            pads_end[i] = Dim::Const(pads[n + i]);
        }
    }
    let wanted = match cx.opt_ints("output_shape")? {
        Some(s) if s.len() == n => Some(s.to_vec()),
        // Some exporters give batch and channels as well.
        Some(s) if s.len() == n + 2 => Some(s[2..].to_vec()),
        Some(s) => return Err(wrong(format!("{} values for {x}", s.len())).at_attribute("output_shape")),
        None => None,
    };
    let mut out = Vec::with_capacity(n);
    for i in 0..n {
        // Extent without any padding.
        let full = (x.shape[2 + i].clone() - Dim::Const(1)) * Dim::Const(strides[i])
            + Dim::Const(extra[i])
            + span(&kernel[i], dilations[i]);
        let target = match (&wanted, auto) {
            (Some(w), _) => Some(Dim::Const(w[i])),
            (None, AutoPad::SameUpper | AutoPad::SameLower) => Some(x.shape[2 + i].clone() * Dim::Const(strides[i])),
            _ => None,
        };
        let Some(target) = target else {
            out.push(full - pads_begin[i].clone() - pads_end[i].clone());
            continue;
        };
        let total = (full - target.clone()).at_least(&Dim::Const(0));
        // The odd one goes after for SAME_UPPER, before otherwise.
        let small = total.floor_div(&Dim::Const(2));
        pads_begin[i] = if auto == AutoPad::SameUpper { small } else { total.clone() - small };
        pads_end[i] = total - pads_begin[i].clone();
        out.push(target);
    }
    if let Some(d) = out.iter().find(|d| d.as_const().is_some_and(|c| c < 0)) {
        return Err(wrong(format!("the padding leaves an extent of {d}")));
    }
    Ok(Geometry { window: Window { kernel, strides, dilations, pads_begin, pads_end }, groups, out })
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16])?;
    cx.expect_same_dtype(1, 0)?;
    let g = geometry(cx)?;
    let (x, w) = (cx.ty(0)?, cx.ty(1)?);
    let channels = w.shape[1].clone() * Dim::Const(g.groups);
    if let Some(b) = cx.opt_ty(2)? {
        cx.expect_same_dtype(2, 0)?;
        if b.rank() != 1 || (b.shape[0] != channels && b.shape[0].as_const().is_some() && channels.as_const().is_some())
        {
            return Err(wrong(format!("expected {channels} values, found {b}")).at_input(2));
        }
    }
    let mut shape = vec![x.shape[0].clone(), channels];
    shape.extend(g.out);
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let per_input: Dim = cx.shape(1)?[1..].iter().cloned().product();
    Ok(Dim::Const(2) * per_input * cx.ty(0)?.numel())
}

/// The extents of a transposed convolution that has a kernel over the blocked layout: f32, constant weights, one or two spatial axes,
/// fixed sizes, and enough output channels to fill its vectors.
pub(crate) fn blocked_shape(cx: &NodeView<'_>) -> Option<ConvShape> {
    let (x, w, y) = (cx.ty(0).ok()?, cx.ty(1).ok()?.const_dims()?, cx.out_ty(0).ok()?);
    let fixed = cx.constant(1).is_some() && (!cx.has(2) || cx.constant(2).is_some());
    if x.dtype != Dtype::F32 || !fixed || !matches!(x.rank(), 3 | 4) {
        return None;
    }
    let g = geometry(cx).ok()?;
    let (x, y) = (x.const_dims()?, y.const_dims()?);
    // Rows come first; one axis is a row.
    let two = |of: &[usize], one: usize| if of.len() == 1 { [one, of[0]] } else { [of[0], of[1]] };
    let dims = |of: &[Dim]| of.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect::<Option<Vec<_>>>();
    let ints = |of: &[i64]| of.iter().map(|&v| usize::try_from(v).ok()).collect::<Option<Vec<_>>>();
    let [kh, kw] = two(&dims(&g.window.kernel)?, 1);
    let [sy, sx] = two(&ints(&g.window.strides)?, 1);
    let [dy, dx] = two(&ints(&g.window.dilations)?, 1);
    let [pt, pl] = two(&dims(&g.window.pads_begin)?, 0);
    let ([h, width], [oh, ow]) = (two(&x[2..], 1), two(&y[2..], 1));
    let (ic, oc, groups) = (x[1], y[1], usize::try_from(g.groups).ok()?);
    let whole = groups == 1 || ((ic / groups).is_multiple_of(16) && (oc / groups).is_multiple_of(16));
    if x.iter().chain(&y).chain(&w).any(|&n| n == 0) {
        return None;
    }
    let inside = pt < (kh - 1) * dy + sy && pl < (kw - 1) * dx + sx;
    (whole && inside && ic >= 16 && oc > 8).then_some(ConvShape {
        n: x[0],
        ic,
        oc,
        h,
        w: width,
        oh,
        ow,
        kh,
        kw,
        sy,
        sx,
        dy,
        dx,
        pt,
        pl,
        groups,
    })
}

fn lower_blocked(cx: &mut LowerCx<'_>) -> Result<()> {
    let missing = || CompileError::new(Stage::Lower, "no blocked kernel for this transposed convolution");
    let view = cx.view();
    let shape = blocked_shape(&view).ok_or_else(missing)?;
    let weights = cx.need_constant(1)?.to_f32s().unwrap_or_default();
    let packed = kiln_kernels::pack_conv_transpose_weights(&weights, &shape);
    let packed = packed.ok_or_else(|| CompileError::new(Stage::Lower, "weights do not fit the extents").at_input(1))?;
    let weights = cx.f32_weights(&packed);
    let bias = blocked_bias(cx)?;
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    let scratch_bytes = kiln_kernels::conv_transpose_blocked_scratch_bytes(shape);
    let scratch = (scratch_bytes > 0).then(|| cx.scratch(Dim::from(scratch_bytes)));
    let part_end = Dim::from(kiln_kernels::conv_transpose_blocked_units(shape));
    let ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups } = shape;
    let call = ConvTransposeBlocked {
        x,
        weights,
        bias,
        y,
        residual: None,
        scratch,
        n: n.into(),
        ic: ic.into(),
        oc: oc.into(),
        h: h.into(),
        w: w.into(),
        oh: oh.into(),
        ow: ow.into(),
        kh: kh.into(),
        kw: kw.into(),
        sy: sy.into(),
        sx: sx.into(),
        dy: dy.into(),
        dx: dx.into(),
        pt: pt.into(),
        pl: pl.into(),
        groups: groups.into(),
        part_begin: Dim::Const(0),
        part_end,
        activation: view.activation(),
    };
    cx.call(&[Dtype::F32], call)
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let out = cx.node.output(0).ok_or_else(|| wrong("the result is not wanted"))?;
    if cx.graph.value(out).layout == Layout::Blocked16 {
        return lower_blocked(cx);
    }
    lower_plain(cx)
}

fn lower_plain(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let (x_ty, y_ty) = (view.ty(0)?, view.out_ty(0)?);
    if x_ty.rank() > 5 {
        return Err(CompileError::new(Stage::Lower, format!("no kernel for {} spatial axes", x_ty.rank() - 2)));
    }
    let g = geometry(&view)?;
    let window = PlainWindow::new(&x_ty.shape, &y_ty.shape, &g.window);
    let (n, ic) = (&x_ty.shape[0], &x_ty.shape[1]);
    let w_ty = view.ty(1)?;
    check_weights(cx, ic, &w_ty.shape[0], w_ty)?;
    let (scratch, part_end) = plain_work(true, n, ic, g.groups, &window)?;
    let (x, weights, bias) = (half::x(cx, 0)?, half::x(cx, 1)?, half::opt(cx, 2)?);
    let y = half::y(cx, 0)?;
    let dtype = half::compute_dtype(x_ty.dtype);
    let scratch = (dtype == Dtype::F32 && scratch > 0).then(|| cx.scratch(Dim::from(scratch)));
    let call = ConvTranspose {
        x,
        weights,
        bias,
        y: y.at.clone(),
        residual: None,
        scratch,
        n: n.clone(),
        ic: ic.clone(),
        oc: y_ty.shape[1].clone(),
        groups: Dim::Const(g.groups),
        part_begin: Dim::Const(0),
        part_end,
        x_dims: window.x,
        y_dims: window.y,
        kernel: window.kernel,
        strides: window.strides,
        dilations: window.dilations,
        pads: window.pads,
        activation: view.activation(),
    };
    cx.call(&[dtype], call)?;
    y.finish(cx)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::{Case, case};

    /// Sixteenths that repeat late.
    fn numbers(dims: &[usize], seed: usize) -> Tensor {
        let n: usize = dims.iter().product();
        let values: Vec<f32> = (0..n).map(|i| ((i * 37 + seed * 11) % 61) as f32 / 16.0 - 1.9).collect();
        Tensor::from_f32s(dims, &values)
    }

    /// Constant weights take the blocked kernel, those of an input the plain one.
    #[test]
    fn blocked_equals_plain() {
        for (x, w, groups, strides, dilations, pads, extra) in [
            ([2, 16, 5, 7], [16, 16, 2, 2], 1, [2, 2], [1, 1], [0, 0, 0, 0], [0, 0]),
            ([1, 24, 6, 5], [24, 40, 3, 3], 1, [2, 2], [1, 1], [1, 1, 1, 1], [1, 1]),
            ([1, 17, 7, 6], [17, 19, 3, 2], 1, [1, 2], [2, 1], [2, 0, 1, 1], [0, 1]),
            ([1, 64, 4, 9], [64, 16, 4, 4], 2, [2, 2], [1, 1], [1, 1, 1, 1], [0, 0]),
            ([1, 32, 4, 4], [32, 9, 2, 2], 1, [4, 3], [1, 1], [0, 0, 0, 0], [0, 0]),
        ] {
            let with = |weights: fn(Case, Tensor) -> Case| {
                let of = |c: Case| weights(c.input(numbers(&x, 1)), numbers(&w, 2));
                let ints = |v: &[i64]| Attr::Ints(v.to_vec());
                of(case("", "ConvTranspose", 11))
                    .constant(numbers(&[w[1] * groups], 3))
                    .attr("group", Attr::Int(groups as i64))
                    .attr("strides", ints(&strides))
                    .attr("dilations", ints(&dilations))
                    .attr("pads", ints(&pads))
                    .attr("output_padding", ints(&extra))
                    .run_f32()
            };
            let (blocked, plain) = (with(Case::constant), with(Case::input));
            assert_eq!(blocked.len(), plain.len());
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3 * b.abs() + 1e-3;
            assert!(blocked.iter().zip(&plain).all(near), "{x:?} {w:?}");
        }
    }
}
