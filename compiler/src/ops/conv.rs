//! Conv, and its fused form with residual and activation.
//!
//! Operands: X `[N, C, spatial…]`, W `[M, C/group, kernel…]`, B `[M]`, and in the fused forms Z, added before the
//! activation. <https://onnx.ai/onnx/operators/onnx__Conv.html>,
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md> (FusedConv)

use super::view::{NodeView, Result, wrong};
use super::window::{Window, three_dims};
use super::{InferCx, OpDef, half, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Layout};
use crate::lower::LowerCx;
use kiln_kernels::{
    Activation, ConvBlocked, ConvFirst, ConvPlain, ConvShape, ConvWinograd, Depthwise, Dtype, WindowShape,
};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "Conv", &[1, 11, 22], infer, lower).with_flops(flops),
    OpDef::new("kiln", "Conv", &[1], infer, lower).with_flops(flops),
    OpDef::new("com.microsoft", "FusedConv", &[1], infer, lower).with_flops(flops),
];

/// A convolution's attributes and extents.
pub(crate) struct ConvGeometry {
    /// The window.
    pub window: Window,
    /// Channel groups.
    pub groups: i64,
    /// Output spatial extents.
    pub out: Vec<Dim>,
}

/// Reads and checks a Conv-like node: `x` and `w` are the positions of data and weights.
pub(crate) fn geometry(cx: &NodeView<'_>, x_idx: usize, w_idx: usize) -> Result<ConvGeometry> {
    let (x, w) = (cx.ty(x_idx)?, cx.ty(w_idx)?);
    if x.rank() < 3 {
        return Err(wrong(format!("expected rank 3 or more, found {x}")).at_input(x_idx));
    }
    cx.expect_rank(w_idx, x.rank())?;
    let kernel = match cx.opt_ints("kernel_shape")? {
        Some(k) if k.len() == x.rank() - 2 => k.to_vec(),
        Some(k) => return Err(wrong(format!("{} values for {x}", k.len())).at_attribute("kernel_shape")),
        None => w.shape[2..]
            .iter()
            .map(|d| d.as_const().ok_or_else(|| wrong("the kernel's extents must be constant").at_input(w_idx)))
            .collect::<Result<_>>()?,
    };
    for (k, d) in kernel.iter().zip(&w.shape[2..]) {
        if *k < 1 || d.as_const().is_some_and(|d| d != *k) {
            return Err(wrong(format!("kernel extents {kernel:?} against weights {w}")).at_attribute("kernel_shape"));
        }
    }
    let groups = cx.int("group", 1)?;
    if !(1..=1 << 31).contains(&groups) {
        return Err(wrong(format!("{groups} groups")).at_attribute("group"));
    }
    let expected = w.shape[1].clone() * Dim::Const(groups);
    if x.shape[1] != expected && x.shape[1].as_const().is_some() && expected.as_const().is_some() {
        return Err(wrong(format!("{} channels, the weights {w} with {groups} groups take {expected}", x.shape[1]))
            .at_input(x_idx));
    }
    if w.shape[0].as_const().is_some_and(|m| m % groups != 0) {
        return Err(wrong(format!("{} output channels do not divide into {groups} groups", w.shape[0])).at_input(w_idx));
    }
    let window = Window::of(cx, &x.shape[2..], kernel)?;
    let out = window.output(&x.shape[2..], false)?;
    Ok(ConvGeometry { window, groups, out })
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16])?;
    cx.expect_same_dtype(1, 0)?;
    let g = geometry(cx, 0, 1)?;
    let (x, w) = (cx.ty(0)?, cx.ty(1)?);
    if let Some(b) = cx.opt_ty(2)? {
        cx.expect_same_dtype(2, 0)?;
        if b.rank() != 1 || b.shape[0] != w.shape[0] {
            return Err(wrong(format!("expected {} values, found {b}", w.shape[0])).at_input(2));
        }
    }
    let mut shape = vec![x.shape[0].clone(), w.shape[0].clone()];
    shape.extend(g.out);
    if let Some(z) = cx.opt_ty(3)?
        && z.shape != shape
    {
        return Err(wrong(format!("expected the result's shape, found {z}")).at_input(3));
    }
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

/// `2·N·(C/groups)·out·kernel·M`
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let per_output: Dim = cx.shape(1)?[1..].iter().cloned().product();
    Ok(Dim::Const(2) * per_output * cx.out_ty(0)?.numel())
}

/// The activation: fused by a pass, or FusedConv's attribute.
fn activation(cx: &NodeView<'_>) -> Result<Activation> {
    if cx.node.domain != "com.microsoft" {
        return Ok(cx.activation());
    }
    let params = cx.opt_floats("activation_params")?.unwrap_or_default();
    let param = |i: usize, default: f32| params.get(i).copied().unwrap_or(default);
    Ok(match cx.text("activation", "")? {
        "" => Activation::None,
        "Relu" => Activation::Relu,
        "Tanh" => Activation::Tanh,
        "Sigmoid" => Activation::Sigmoid,
        "LeakyRelu" => Activation::LeakyRelu { alpha: param(0, 0.01) },
        "Clip" => Activation::Clip { lo: param(0, f32::MIN), hi: param(1, f32::MAX) },
        "HardSigmoid" => Activation::HardSigmoid { alpha: param(0, 0.2), beta: param(1, 0.5) },
        other => return Err(wrong(format!("unknown activation \"{other}\"")).at_attribute("activation")),
    })
}

/// Which kernel family a convolution can use over the blocked layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockedForm {
    /// Blocked in, blocked out.
    Direct,
    /// One kernel per channel, blocked in and out.
    Depthwise,
    /// Plain in with few channels, blocked out.
    First,
}

/// The blocked form of a convolution node, if it has one: f32, constant weights, one or two spatial axes, fixed extents.
pub(crate) fn blocked_form(cx: &NodeView<'_>) -> Option<BlockedForm> {
    let (x, w) = (cx.ty(0).ok()?, cx.ty(1).ok()?);
    let fixed = x.const_dims().is_some() && cx.constant(1).is_some() && (!cx.has(2) || cx.constant(2).is_some());
    if x.dtype != Dtype::F32 || !fixed || !matches!(x.rank(), 3 | 4) {
        return None;
    }
    let (x, w) = (x.const_dims()?, w.const_dims()?);
    if x.contains(&0) || w.contains(&0) {
        return None;
    }
    let groups = x[1] / w[1];
    if groups == x[1] && w[0] == x[1] && groups > 1 {
        return Some(BlockedForm::Depthwise);
    }
    if groups == 1 && x[1] < 16 {
        return Some(BlockedForm::First);
    }
    let whole = groups == 1 || (x[1] / groups % 16 == 0 && w[0] / groups % 16 == 0);
    whole.then_some(BlockedForm::Direct)
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let out_id = cx.node.output(0).ok_or_else(|| wrong("the result is not wanted"))?;
    if cx.graph.value(out_id).layout == Layout::Blocked16 {
        return lower_blocked(cx);
    }
    lower_plain(cx)
}

fn lower_blocked(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let form =
        blocked_form(&view).ok_or_else(|| CompileError::new(Stage::Lower, "no blocked kernel for this convolution"))?;
    let shape = conv_shape(&view)?;
    let weights = cx.need_constant(1)?.to_f32s().unwrap_or_default();
    let (taps, icg) = (shape.kh * shape.kw, shape.ic / shape.groups);
    let packed = match form {
        BlockedForm::Direct => kiln_kernels::pack_conv_weights(&weights, shape.oc, icg, taps, shape.groups),
        BlockedForm::Depthwise => kiln_kernels::pack_depthwise_weights(&weights, shape.oc, taps),
        BlockedForm::First => kiln_kernels::pack_conv_first_weights(&weights, shape.oc, shape.ic, taps),
    };
    let winograd = form == BlockedForm::Direct && kiln_kernels::conv_winograd_pays(shape);
    let packed = if winograd { kiln_kernels::pack_winograd_weights(&weights, shape.oc, icg) } else { packed };
    let packed = packed.ok_or_else(|| CompileError::new(Stage::Lower, "weights do not fit the extents").at_input(1))?;
    let weights = cx.f32_weights(&packed);
    let bias = match cx.has(2) {
        true => {
            let bias = cx.need_constant(2)?.to_f32s().unwrap_or_default();
            Some(cx.f32_weights(&kiln_kernels::pack_bias(&bias)))
        }
        false => None,
    };
    let activation = activation(&view)?;
    let (x, residual) = (cx.x(0)?, cx.opt(3)?);
    let y = cx.y(0)?;
    let scratch_bytes = match form {
        BlockedForm::Direct if winograd => kiln_kernels::conv_winograd_scratch_bytes(shape),
        BlockedForm::Direct => kiln_kernels::conv_blocked_scratch_bytes(shape),
        BlockedForm::First => kiln_kernels::conv_first_scratch_bytes(shape),
        BlockedForm::Depthwise => 0,
    };
    let units = match form {
        BlockedForm::Direct if winograd => kiln_kernels::conv_winograd_units(shape),
        BlockedForm::Direct => kiln_kernels::conv_blocked_units(shape),
        BlockedForm::First => kiln_kernels::conv_first_units(shape),
        BlockedForm::Depthwise => kiln_kernels::depthwise_units(shape.n, shape.ic, shape.oh),
    };
    let scratch = (scratch_bytes > 0).then(|| cx.scratch(Dim::from(scratch_bytes)));
    let d = Dim::from;
    let ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups } = shape;
    let (n, ic, oc, h, w) = (d(n), d(ic), d(oc), d(h), d(w));
    let (oh, ow, kh, kw) = (d(oh), d(ow), d(kh), d(kw));
    let (sy, sx, dy, dx, pt, pl) = (d(sy), d(sx), d(dy), d(dx), d(pt), d(pl));
    let (part_begin, part_end) = (Dim::Const(0), d(units));
    let f32s = &[Dtype::F32];
    if winograd {
        let scratch = scratch.ok_or_else(|| CompileError::new(Stage::Lower, "Winograd without scratch"))?;
        let call = ConvWinograd {
            x,
            weights,
            bias,
            y,
            residual,
            scratch,
            n,
            ic,
            oc,
            h,
            w,
            oh,
            ow,
            pt,
            pl,
            part_begin,
            part_end,
            activation,
        };
        return cx.call(f32s, call);
    }
    match form {
        BlockedForm::Direct => cx.call(
            f32s,
            ConvBlocked {
                x,
                weights,
                bias,
                y,
                residual,
                scratch,
                n,
                ic,
                oc,
                h,
                w,
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
                groups: d(groups),
                part_begin,
                part_end,
                activation,
            },
        ),
        BlockedForm::First => cx.call(
            f32s,
            ConvFirst {
                x,
                weights,
                bias,
                y,
                residual,
                scratch,
                n,
                ic,
                oc,
                h,
                w,
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
                part_begin,
                part_end,
                activation,
            },
        ),
        BlockedForm::Depthwise => cx.call(
            f32s,
            Depthwise {
                x,
                weights,
                bias,
                y,
                residual,
                n,
                c: ic,
                h,
                w,
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
                part_begin,
                part_end,
                activation,
            },
        ),
    }
}

fn conv_shape(cx: &NodeView<'_>) -> Result<ConvShape> {
    conv_shape_of(cx, 0, 1)
}

/// The extents as the blocked kernels take them; one spatial axis becomes a row.
pub(crate) fn conv_shape_of(cx: &NodeView<'_>, x_idx: usize, w_idx: usize) -> Result<ConvShape> {
    let dynamic = || CompileError::new(Stage::Lower, "extents must be fixed here");
    let g = geometry(cx, x_idx, w_idx)?;
    let x = cx.ty(x_idx)?.const_dims().ok_or_else(dynamic)?;
    let w = cx.ty(w_idx)?.const_dims().ok_or_else(dynamic)?;
    let y = cx.out_ty(0)?.const_dims().ok_or_else(dynamic)?;
    let two = |v: &[i64], fill: i64| -> [usize; 2] {
        let at = |i: usize| (i + v.len()).checked_sub(2).and_then(|j| v.get(j)).copied().unwrap_or(fill);
        [at(0) as usize, at(1) as usize]
    };
    let extent = |dims: &[usize]| if dims.len() == 3 { [1, dims[2]] } else { [dims[2], dims[3]] };
    let ([h, ww], [oh, ow]) = (extent(&x), extent(&y));
    let [kh, kw] = two(&g.window.kernel, 1);
    let [sy, sx] = two(&g.window.strides, 1);
    let [dy, dx] = two(&g.window.dilations, 1);
    let [pt, pl] = two(&g.window.pads_begin, 0);
    let groups = usize::try_from(g.groups).map_err(|_| dynamic())?;
    Ok(ConvShape { n: x[0], ic: x[1], oc: w[0], h, w: ww, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups })
}

/// The extents as the plain kernels take them, and the ends of their units.
pub(crate) fn window_shape(x: &[Dim], y: &[Dim], window: &Window) -> Result<WindowShape> {
    let fixed = |dims: [Dim; 3]| -> Result<[usize; 3]> {
        let mut out = [0; 3];
        for (o, d) in out.iter_mut().zip(&dims) {
            let c = d.as_const().and_then(|c| usize::try_from(c).ok());
            *o = c.ok_or_else(|| CompileError::new(Stage::Lower, format!("the extent {d} must be fixed here")))?;
        }
        Ok(out)
    };
    Ok(WindowShape {
        x: fixed(three_dims(&x[2..]))?,
        y: fixed(three_dims(&y[2..]))?,
        kernel: fixed(Window::three(&window.kernel, 1))?,
        strides: fixed(Window::three(&window.strides, 1))?,
        dilations: fixed(Window::three(&window.dilations, 1))?,
        pads: fixed(Window::three(&window.pads_begin, 0))?,
    })
}

fn lower_plain(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let (x_ty, w_ty, y_ty) = (view.ty(0)?, view.ty(1)?, view.out_ty(0)?);
    if x_ty.rank() > 5 {
        return Err(CompileError::new(Stage::Lower, format!("no kernel for {} spatial axes", x_ty.rank() - 2)));
    }
    let g = geometry(&view, 0, 1)?;
    let shape = window_shape(&x_ty.shape, &y_ty.shape, &g.window)?;
    let fixed = |d: &Dim| {
        let extent = d.as_const().and_then(|c| usize::try_from(c).ok());
        extent.ok_or_else(|| CompileError::new(Stage::Lower, format!("the extent {d} must be fixed here")))
    };
    let (n, ic, groups) = (fixed(&x_ty.shape[0])?, fixed(&x_ty.shape[1])?, usize::try_from(g.groups).unwrap_or(1));
    let (x, weights, bias) = (half::x(cx, 0)?, half::x(cx, 1)?, half::opt(cx, 2)?);
    let residual = half::opt(cx, 3)?;
    let y = half::y(cx, 0)?;
    let dtype = half::compute_dtype(x_ty.dtype);
    let scratch = if dtype == Dtype::F32 { kiln_kernels::conv_plain_scratch_bytes(ic, groups, &shape) } else { 0 };
    let scratch = (scratch > 0).then(|| cx.scratch(Dim::from(scratch)));
    let activation = activation(&view)?;
    let call = ConvPlain {
        x,
        weights,
        bias,
        y: y.at.clone(),
        residual,
        scratch,
        n: Dim::from(n),
        ic: Dim::from(ic),
        oc: w_ty.shape[0].clone(),
        groups: Dim::from(groups),
        part_begin: Dim::Const(0),
        part_end: Dim::from(kiln_kernels::conv_plain_units(n, ic, groups, &shape)),
        x_dims: shape.x.map(Dim::from),
        y_dims: shape.y.map(Dim::from),
        kernel: shape.kernel.map(Dim::from),
        strides: shape.strides.map(Dim::from),
        dilations: shape.dilations.map(Dim::from),
        pads: shape.pads.map(Dim::from),
        activation,
    };
    cx.call(&[dtype], call)?;
    y.finish(cx)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn bad_extents_are_refused() {
        let x = Tensor::from_f32s(&[1, 2, 4, 4], &[0.0; 32]);
        let w = |dims: &[usize]| Tensor::from_f32s(dims, &vec![0.0; dims.iter().product()]);
        for (w, attr, value) in [
            (w(&[3, 2, 3, 3]), "strides", vec![0, 1]),
            (w(&[3, 2, 3, 3]), "dilations", vec![1, -1]),
            (w(&[3, 2, 3, 3]), "pads", vec![0, 0, 0]),
            (w(&[3, 2, 3, 3]), "kernel_shape", vec![2, 3]),
            (w(&[3, 2, 5, 5]), "strides", vec![1, 1]),
            (w(&[3, 3, 3, 3]), "strides", vec![1, 1]),
        ] {
            assert!(case("", "Conv", 11).input(x.clone()).constant(w).attr(attr, Attr::Ints(value)).infer().is_err());
        }
        let group =
            |g| case("", "Conv", 11).input(x.clone()).constant(w(&[3, 2, 3, 3])).attr("group", Attr::Int(g)).infer();
        assert!(group(0).is_err() && group(-1).is_err() && group(2).is_err() && group(1).is_ok());
    }
}
