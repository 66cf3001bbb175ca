//! ConvTranspose.
//!
//! Operands: X `[N, C, spatial…]`, W `[C, M/group, kernel…]`, B `[M]`.
//! <https://onnx.ai/onnx/operators/onnx__ConvTranspose.html>

use super::conv::window_shape;
use super::view::{NodeView, Result, wrong};
use super::window::{AutoPad, Window, auto_pad, per_axis};
use super::{InferCx, OpDef, half, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{ConvTranspose, Dtype};

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
    let kernel: Vec<i64> = match cx.opt_ints("kernel_shape")? {
        Some(k) if k.len() == n => k.to_vec(),
        Some(k) => return Err(wrong(format!("{} values for {x}", k.len())).at_attribute("kernel_shape")),
        None => w.shape[2..].iter().map(|d| d.as_const().unwrap_or(0)).collect(),
    };
    for (k, d) in kernel.iter().zip(&w.shape[2..]) {
        if *k < 1 || d.as_const().is_none_or(|d| d != *k) {
            return Err(wrong(format!("kernel extents {kernel:?} against weights {w}")).at_attribute("kernel_shape"));
        }
    }
    let groups = cx.int("group", 1)?;
    if !(1..=1 << 31).contains(&groups) {
        return Err(wrong(format!("{groups} groups")).at_attribute("group"));
    }
    if x.shape[1] != w.shape[0] {
        return Err(wrong(format!("{} channels, the weights {w} take {}", x.shape[1], w.shape[0])).at_input(0));
    }
    if x.shape[1].as_const().is_none_or(|c| c % groups != 0) {
        return Err(wrong(format!("{} channels do not divide into {groups} groups", x.shape[1])).at_input(0));
    }
    let strides = per_axis(cx, "strides", n, 1, 1)?;
    let dilations = per_axis(cx, "dilations", n, 1, 1)?;
    let extra = per_axis(cx, "output_padding", n, 0, 0)?;
    let auto = auto_pad(cx)?;
    let (mut pads_begin, mut pads_end) = (vec![0; n], vec![0; n]);
    if auto == AutoPad::NotSet {
        let pads = per_axis(cx, "pads", 2 * n, 0, 0)?;
        pads_begin.copy_from_slice(&pads[..n]);
        pads_end.copy_from_slice(&pads[n..]);
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
            + Dim::Const((kernel[i] - 1).saturating_mul(dilations[i]).saturating_add(1));
        let target = match (&wanted, auto) {
            (Some(w), _) => Some(Dim::Const(w[i])),
            (None, AutoPad::SameUpper | AutoPad::SameLower) => Some(x.shape[2 + i].clone() * Dim::Const(strides[i])),
            _ => None,
        };
        let Some(target) = target else {
            out.push(full - Dim::Const(pads_begin[i]) - Dim::Const(pads_end[i]));
            continue;
        };
        let total = (full - target.clone()).as_const();
        let total = total.ok_or_else(|| wrong("the padding does not follow from free extents"))?.max(0);
        // The odd one goes after for SAME_UPPER, before otherwise.
        let small = total / 2;
        pads_begin[i] = if auto == AutoPad::SameUpper { small } else { total - small };
        pads_end[i] = total - pads_begin[i];
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
        if b.rank() != 1 || b.shape[0] != channels {
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

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let (x_ty, y_ty) = (view.ty(0)?, view.out_ty(0)?);
    if x_ty.rank() > 5 {
        return Err(CompileError::new(Stage::Lower, format!("no kernel for {} spatial axes", x_ty.rank() - 2)));
    }
    let g = geometry(&view)?;
    let shape = window_shape(&x_ty.shape, &y_ty.shape, &g.window)?;
    let fixed = |d: &Dim| d.as_const().and_then(|c| usize::try_from(c).ok());
    let dynamic = || CompileError::new(Stage::Lower, "extents must be fixed here");
    let (n, ic) = fixed(&x_ty.shape[0]).zip(fixed(&x_ty.shape[1])).ok_or_else(dynamic)?;
    let groups = usize::try_from(g.groups).map_err(|_| dynamic())?;
    let (x, weights, bias) = (half::x(cx, 0)?, half::x(cx, 1)?, half::opt(cx, 2)?);
    let y = half::y(cx, 0)?;
    let dtype = half::compute_dtype(x_ty.dtype);
    let scratch = if dtype == Dtype::F32 { kiln_kernels::conv_transpose_scratch_bytes(ic, groups, &shape) } else { 0 };
    let scratch = (scratch > 0).then(|| cx.scratch(Dim::from(scratch)));
    let call = ConvTranspose {
        x,
        weights,
        bias,
        y: y.at.clone(),
        residual: None,
        scratch,
        n: Dim::from(n),
        ic: Dim::from(ic),
        oc: y_ty.shape[1].clone(),
        groups: Dim::from(groups),
        part_begin: Dim::Const(0),
        part_end: Dim::from(kiln_kernels::conv_transpose_units(n, ic, groups, &shape)),
        x_dims: shape.x.map(Dim::from),
        y_dims: shape.y.map(Dim::from),
        kernel: shape.kernel.map(Dim::from),
        strides: shape.strides.map(Dim::from),
        dilations: shape.dilations.map(Dim::from),
        pads: shape.pads.map(Dim::from),
        activation: view.activation(),
    };
    cx.call(&[dtype], call)?;
    y.finish(cx)
}
