//! Conv, and its fused form with residual and activation.
//!
//! Operands: X `[N, C, spatial…]`, W `[M, C/group, kernel…]`, B `[M]`, and in the fused forms Z, added before the
//! activation. <https://onnx.ai/onnx/operators/onnx__Conv.html>,
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md> (FusedConv)

use super::view::{NodeView, Result, wrong};
use super::window::{Window, three_dims};
use super::{InferCx, OpDef, half, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Layout, TensorType};
use crate::lower::LowerCx;
use kiln_kernels::{
    Activation, ConvBlocked, ConvFirst, ConvPlain, ConvShape, ConvWinograd, Depthwise, Dtype, Operand, WindowShape,
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
    let kernel = kernel_of(cx, x.rank(), w)?;
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

/// The kernel's extents: the attribute's, which the weights' must equal, or the weights'.
pub(crate) fn kernel_of(cx: &NodeView<'_>, rank: usize, w: &TensorType) -> Result<Vec<Dim>> {
    let kernel: Vec<Dim> = match cx.opt_ints("kernel_shape")? {
        Some(k) if k.len() == rank - 2 => k.iter().map(|&k| Dim::Const(k)).collect(),
        Some(k) => return Err(wrong(format!("{} values for rank {rank}", k.len())).at_attribute("kernel_shape")),
        None => w.shape[2..].to_vec(),
    };
    for (k, d) in kernel.iter().zip(&w.shape[2..]) {
        let fits = |k: i64| k >= 1 && d.as_const().is_none_or(|d| d == k);
        if k.as_const().is_some_and(|k| !fits(k)) {
            let kernel = crate::ir::ShapeText(&kernel);
            return Err(wrong(format!("kernel extents {kernel} against weights {w}")).at_attribute("kernel_shape"));
        }
    }
    Ok(kernel)
}

/// Has it checked at run time that the weights' extents are what the other operands say.
pub(crate) fn check_weights(cx: &mut LowerCx<'_>, channels: &Dim, w_channels: &Dim, w: &TensorType) -> Result<()> {
    let kernel = kernel_of(&cx.view(), w.rank(), w)?;
    cx.expect_equal(kernel.iter().zip(&w.shape[2..]).chain([(channels, w_channels)]))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16])?;
    cx.expect_same_dtype(1, 0)?;
    let g = geometry(cx, 0, 1)?;
    let (x, w) = (cx.ty(0)?, cx.ty(1)?);
    if let Some(b) = cx.opt_ty(2)? {
        cx.expect_same_dtype(2, 0)?;
        if b.rank() != 1 || differ(&b.shape[0], &w.shape[0]) {
            return Err(wrong(format!("expected {} values, found {b}", w.shape[0])).at_input(2));
        }
    }
    let mut shape = vec![x.shape[0].clone(), w.shape[0].clone()];
    shape.extend(g.out);
    if let Some(z) = cx.opt_ty(3)?
        && (z.rank() != shape.len() || z.shape.iter().zip(&shape).any(|(a, b)| differ(a, b)))
    {
        return Err(wrong(format!("expected the result's shape, found {z}")).at_input(3));
    }
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

/// Whether extents differ for certain.
fn differ(a: &Dim, b: &Dim) -> bool {
    a != b && a.as_const().is_some() && b.as_const().is_some()
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

/// The blocked form of a convolution node, if it has one: f32, constant weights, one or two spatial axes. Batch and
/// spatial extents may be free.
pub(crate) fn blocked_form(cx: &NodeView<'_>) -> Option<BlockedForm> {
    let (x, w) = (cx.ty(0).ok()?, cx.ty(1).ok()?);
    let fixed = cx.constant(1).is_some() && (!cx.has(2) || cx.constant(2).is_some());
    if x.dtype != Dtype::F32 || !fixed || !matches!(x.rank(), 3 | 4) {
        return None;
    }
    let (channels, w) = (usize::try_from(x.shape[1].as_const()?).ok()?, w.const_dims()?);
    if x.shape.iter().any(|d| d.is(0)) || w.contains(&0) {
        return None;
    }
    let groups = channels / w[1];
    if groups == channels && w[0] == channels && groups > 1 {
        return Some(BlockedForm::Depthwise);
    }
    if groups == 1 && suits_plain(cx, &w) {
        return None;
    }
    if groups == 1 && channels < 16 {
        return Some(BlockedForm::First);
    }
    let whole = groups == 1 || (channels / groups % 16 == 0 && w[0] / groups % 16 == 0);
    whole.then_some(BlockedForm::Direct)
}

/// Whether a convolution has so few output channels that vectors of pixels are faster than vectors of channels, most lanes of which
/// would be empty (measured: twice as fast with 8 channels, four times with one).
fn suits_plain(cx: &NodeView<'_>, w: &[usize]) -> bool {
    let whole = |name: &str| cx.opt_ints(name).is_ok_and(|s| s.is_none_or(|s| s.iter().all(|&s| s == 1)));
    let wide = cx.out_ty(0).is_ok_and(|y| y.shape.last().and_then(Dim::as_const).is_some_and(|w| w >= 32));
    w[0] <= 8 && w[2..].iter().product::<usize>() >= 4 && whole("strides") && wide
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let out_id = cx.node.output(0).ok_or_else(|| wrong("the result is not wanted"))?;
    if cx.graph.value(out_id).layout == Layout::Blocked16 {
        return lower_blocked(cx);
    }
    lower_plain(cx)
}

/// The constant bias of a convolution or its transpose, padded to blocks.
pub(super) fn blocked_bias(cx: &mut LowerCx<'_>) -> Result<Option<Operand<Dim>>> {
    if !cx.has(2) {
        return Ok(None);
    }
    let bias = cx.need_constant(2)?.to_f32s().unwrap_or_default();
    Ok(Some(cx.f32_weights(&kiln_kernels::pack_bias(&bias))))
}

fn lower_blocked(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let form =
        blocked_form(&view).ok_or_else(|| CompileError::new(Stage::Lower, "no blocked kernel for this convolution"))?;
    let extents = conv_extents(&view, 0, 1)?;
    let shape = extents.most()?;
    let weights = cx.need_constant(1)?.to_f32s().unwrap_or_default();
    let (taps, icg) = (shape.kh * shape.kw, shape.ic / shape.groups);
    let winograd = if form == BlockedForm::Direct { kiln_kernels::conv_winograd_tile(shape) } else { None };
    let packed = match (form, winograd) {
        (BlockedForm::Direct, Some(tile)) => kiln_kernels::pack_winograd_weights(&weights, shape.oc, icg, tile),
        (BlockedForm::Direct, None) => kiln_kernels::pack_conv_weights(&weights, shape.oc, icg, taps, shape.groups),
        (BlockedForm::Depthwise, _) => kiln_kernels::pack_depthwise_weights(&weights, shape.oc, taps),
        (BlockedForm::First, _) => kiln_kernels::pack_conv_first_weights(&weights, shape.oc, shape.ic, taps),
    };
    let packed = packed.ok_or_else(|| CompileError::new(Stage::Lower, "weights do not fit the extents").at_input(1))?;
    let weights = cx.f32_weights(&packed);
    let bias = blocked_bias(cx)?;
    let activation = activation(&view)?;
    let (x, residual) = (cx.x(0)?, cx.opt(3)?);
    let y = cx.y(0)?;
    let fixed = extents.is_fixed();
    let scratch_bytes = match (form, winograd) {
        (BlockedForm::Direct, Some(tile)) if fixed => kiln_kernels::conv_winograd_scratch_bytes(shape, tile),
        (BlockedForm::Direct, Some(tile)) => kiln_kernels::conv_winograd_scratch_bound(shape, tile),
        (BlockedForm::Direct, None) if fixed => kiln_kernels::conv_blocked_scratch_bytes(shape),
        (BlockedForm::Direct, None) => kiln_kernels::conv_blocked_scratch_bound(shape),
        (BlockedForm::First, _) if fixed => kiln_kernels::conv_first_scratch_bytes(shape),
        (BlockedForm::First, _) => kiln_kernels::conv_first_scratch_bound(shape),
        (BlockedForm::Depthwise, _) => 0,
    };
    let units = match (form, winograd) {
        (BlockedForm::Depthwise, _) => extents.n.clone() * extents.ic.ceil_div(&Dim::Const(16)) * extents.oh.clone(),
        _ if !fixed => WHOLE_PART,
        (BlockedForm::Direct, Some(tile)) => Dim::from(kiln_kernels::conv_winograd_units(shape, tile)),
        (BlockedForm::Direct, None) => Dim::from(kiln_kernels::conv_blocked_units(shape)),
        (BlockedForm::First, _) => Dim::from(kiln_kernels::conv_first_units(shape)),
    };
    let scratch = (scratch_bytes > 0).then(|| cx.scratch(Dim::from(scratch_bytes)));
    let ConvExtents { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups } = extents;
    let (part_begin, part_end) = (Dim::Const(0), units);
    let f32s = &[Dtype::F32];
    if let Some(tile) = winograd {
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
            tile: Dim::from(tile),
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
                groups,
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

/// As `part_end`: all units, whatever the extents of the run ([`kiln_kernels::WHOLE`]).
pub(crate) const WHOLE_PART: Dim = Dim::Const(-1);

/// A convolution's extents as the blocked kernels take them; one spatial axis becomes a row.
pub(crate) struct ConvExtents {
    pub n: Dim,
    pub ic: Dim,
    pub oc: Dim,
    pub h: Dim,
    pub w: Dim,
    pub oh: Dim,
    pub ow: Dim,
    pub kh: Dim,
    pub kw: Dim,
    pub sy: Dim,
    pub sx: Dim,
    pub dy: Dim,
    pub dx: Dim,
    pub pt: Dim,
    pub pl: Dim,
    pub groups: Dim,
}

impl ConvExtents {
    fn all(&self) -> [&Dim; 16] {
        let Self { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups } = self;
        [n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups]
    }

    /// Whether all are constant.
    pub(crate) fn is_fixed(&self) -> bool {
        self.all().iter().all(|d| d.as_const().is_some())
    }

    /// The greatest ones.
    pub(crate) fn most(&self) -> Result<ConvShape> {
        let mut most = [0; 16];
        for (m, d) in most.iter_mut().zip(self.all()) {
            *m = greatest(d)?;
        }
        let [n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups] = most;
        Ok(ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups })
    }
}

/// The greatest value of an extent.
fn greatest(d: &Dim) -> Result<usize> {
    let most = d.upper().and_then(|c| usize::try_from(c).ok());
    most.ok_or_else(|| CompileError::new(Stage::Lower, format!("the extent {d} has no bound")))
}

/// The extents of a convolution; `x_idx` and `w_idx` are the positions of data and weights.
pub(crate) fn conv_extents(cx: &NodeView<'_>, x_idx: usize, w_idx: usize) -> Result<ConvExtents> {
    let g = geometry(cx, x_idx, w_idx)?;
    let (x, w, y) = (cx.shape(x_idx)?, cx.shape(w_idx)?, cx.out_shape(0)?);
    let two = |[_, a, b]: [Dim; 3]| [a, b];
    let ([h, ww], [oh, ow]) = (two(three_dims(&x[2..])), two(three_dims(&y[2..])));
    let steps = |v: &[i64]| two(Window::three(v, 1));
    let ([kh, kw], [pt, pl]) = (two(g.window.kernel3()), two(g.window.pads_begin3()));
    let ([sy, sx], [dy, dx]) = (steps(&g.window.strides), steps(&g.window.dilations));
    let (n, ic, oc, groups) = (x[0].clone(), x[1].clone(), w[0].clone(), Dim::Const(g.groups));
    Ok(ConvExtents { n, ic, oc, h, w: ww, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups })
}

/// The extents of a window as the plain kernels take them.
pub(crate) struct PlainWindow {
    pub x: [Dim; 3],
    pub y: [Dim; 3],
    pub kernel: [Dim; 3],
    pub strides: [Dim; 3],
    pub dilations: [Dim; 3],
    pub pads: [Dim; 3],
}

impl PlainWindow {
    /// A window between these shapes.
    pub(crate) fn new(x: &[Dim], y: &[Dim], window: &Window) -> Self {
        Self {
            x: three_dims(&x[2..]),
            y: three_dims(&y[2..]),
            kernel: window.kernel3(),
            strides: Window::three(&window.strides, 1),
            dilations: Window::three(&window.dilations, 1),
            pads: window.pads_begin3(),
        }
    }

    fn all(&self) -> [&[Dim; 3]; 6] {
        [&self.x, &self.y, &self.kernel, &self.strides, &self.dilations, &self.pads]
    }

    /// Whether all are constant.
    pub(crate) fn is_fixed(&self) -> bool {
        self.all().iter().all(|d| d.iter().all(|d| d.as_const().is_some()))
    }

    /// The greatest ones.
    pub(crate) fn most(&self) -> Result<WindowShape> {
        let mut most = [[0; 3]; 6];
        for (m, dims) in most.iter_mut().zip(self.all()) {
            for (m, d) in m.iter_mut().zip(dims) {
                *m = greatest(d)?;
            }
        }
        let [x, y, kernel, strides, dilations, pads] = most;
        Ok(WindowShape { x, y, kernel, strides, dilations, pads })
    }
}

/// Scratch and units of a plain convolution or its transpose.
pub(crate) fn plain_work(
    transposed: bool,
    n: &Dim,
    ic: &Dim,
    groups: i64,
    window: &PlainWindow,
) -> Result<(usize, Dim)> {
    let most = window.most()?;
    let (n_most, ic_most, groups) = (greatest(n)?, greatest(ic)?, usize::try_from(groups).unwrap_or(1));
    let fixed = window.is_fixed() && n.as_const().is_some() && ic.as_const().is_some();
    if !fixed {
        let bound = match transposed {
            true => kiln_kernels::conv_transpose_scratch_bound(ic_most, groups, &most),
            false => kiln_kernels::conv_plain_scratch_bound(ic_most, groups, &most),
        };
        return Ok((bound, WHOLE_PART));
    }
    Ok(match transposed {
        true => (
            kiln_kernels::conv_transpose_scratch_bytes(ic_most, groups, &most),
            Dim::from(kiln_kernels::conv_transpose_units(n_most, ic_most, groups, &most)),
        ),
        false => (
            kiln_kernels::conv_plain_scratch_bytes(ic_most, groups, &most),
            Dim::from(kiln_kernels::conv_plain_units(n_most, ic_most, groups, &most)),
        ),
    })
}

fn lower_plain(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let (x_ty, w_ty, y_ty) = (view.ty(0)?, view.ty(1)?, view.out_ty(0)?);
    if x_ty.rank() > 5 {
        return Err(CompileError::new(Stage::Lower, format!("no kernel for {} spatial axes", x_ty.rank() - 2)));
    }
    let g = geometry(&view, 0, 1)?;
    let window = PlainWindow::new(&x_ty.shape, &y_ty.shape, &g.window);
    let (n, ic) = (&x_ty.shape[0], &x_ty.shape[1]);
    check_weights(cx, ic, &(w_ty.shape[1].clone() * Dim::Const(g.groups)), w_ty)?;
    let (scratch, part_end) = plain_work(false, n, ic, g.groups, &window)?;
    let (x, weights, bias) = (half::x(cx, 0)?, half::x(cx, 1)?, half::opt(cx, 2)?);
    let residual = half::opt(cx, 3)?;
    let y = half::y(cx, 0)?;
    let dtype = half::compute_dtype(x_ty.dtype);
    let scratch = (dtype == Dtype::F32 && scratch > 0).then(|| cx.scratch(Dim::from(scratch)));
    let activation = activation(&view)?;
    let call = ConvPlain {
        x,
        weights,
        bias,
        y: y.at.clone(),
        residual,
        scratch,
        n: n.clone(),
        ic: ic.clone(),
        oc: w_ty.shape[0].clone(),
        groups: Dim::Const(g.groups),
        part_begin: Dim::Const(0),
        part_end,
        x_dims: window.x,
        y_dims: window.y,
        kernel: window.kernel,
        strides: window.strides,
        dilations: window.dilations,
        pads: window.pads,
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
