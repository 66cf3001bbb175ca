//! Convolution of 8-bit integers: ConvInteger and QLinearConv.
//!
//! <https://onnx.ai/onnx/operators/onnx__ConvInteger.html>, <https://onnx.ai/onnx/operators/onnx__QLinearConv.html>

use super::conv::{BlockedForm, ConvExtents, PlainWindow, WHOLE_PART, check_weights, conv_extents, geometry};
use super::quant::{as_f32, const_f32s, const_scale, const_zero, limits, precision};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Layout};
use crate::lower::LowerCx;
use kiln_kernels::{ConvShape, Dtype, IntConv, Operand, QConvBlocked, QConvFirst, QDepthwise, Requantize};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "ConvInteger", &[10], infer_integer, lower_integer).with_flops(|cx| flops(cx, 1)),
    OpDef::new("", "QLinearConv", &[10], infer_qlinear, lower_qlinear).with_flops(|cx| flops(cx, 3)),
    // With the codes' limits as attributes.
    OpDef::new("kiln", "QLinearConv", &[1], infer_qlinear, lower_qlinear).with_flops(|cx| flops(cx, 3)),
];

const BYTES: &[Dtype] = &[Dtype::U8, Dtype::I8];

/// `2·N·(C/groups)·out·kernel·M`
fn flops(cx: &NodeView<'_>, w: usize) -> Result<Dim> {
    let per_output: Dim = cx.shape(w)?[1..].iter().cloned().product();
    Ok(Dim::Const(2) * per_output * cx.out_ty(0)?.numel())
}

/// The result's shape.
fn shape(cx: &NodeView<'_>, w: usize) -> Result<Vec<Dim>> {
    let g = geometry(cx, 0, w)?;
    let mut shape = vec![cx.shape(0)?[0].clone(), cx.shape(w)?[0].clone()];
    shape.extend(g.out);
    Ok(shape)
}

/// One element, or (`channels`) one for each output channel.
fn check_count(cx: &NodeView<'_>, i: usize, channels: Option<&Dim>) -> Result<()> {
    let Some(ty) = cx.opt_ty(i)? else { return Ok(()) };
    let n = ty.numel();
    let each =
        channels.is_some_and(|c| ty.rank() == 1 && (&n == c || n.as_const().is_none() || c.as_const().is_none()));
    if n.is(1) || each {
        return Ok(());
    }
    let or = channels.map_or(String::new(), |c| format!(" or one for each of {c} channels"));
    Err(wrong(format!("expected one element{or}, found {ty}")).at_input(i))
}

/// Checks types and counts of zero points; `x` is operand 0.
fn check_zeros(cx: &NodeView<'_>, x_zero: usize, w: usize, w_zero: usize) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    cx.expect_dtype(w, BYTES)?;
    for (zero, of) in [(x_zero, 0), (w_zero, w)] {
        if cx.has(zero) {
            cx.expect_same_dtype(zero, of)?;
        }
    }
    check_count(cx, x_zero, None)?;
    check_count(cx, w_zero, cx.shape(w)?.first())
}

fn infer_integer(cx: &mut InferCx<'_>) -> Result<()> {
    check_zeros(cx, 2, 1, 3)?;
    let shape = shape(cx, 1)?;
    cx.set(0, tensor(Dtype::I32, shape));
    Ok(())
}

fn lower_integer(cx: &mut LowerCx<'_>) -> Result<()> {
    let y = cx.y(0)?;
    sums(cx, Places { x_zero: 2, w: 1, w_zero: 3, bias: usize::MAX }, y)
}

/// Positions of the operands.
struct Places {
    x_zero: usize,
    w: usize,
    w_zero: usize,
    bias: usize,
}

/// The call that writes the convolution's sums.
fn sums(cx: &mut LowerCx<'_>, at: Places, y: Operand<Dim>) -> Result<()> {
    let view = cx.view();
    let (x, w, y_ty) = (view.ty(0)?, view.ty(at.w)?, view.out_ty(0)?);
    if x.rank() > 5 {
        return Err(CompileError::new(Stage::Lower, format!("no kernel for {} spatial axes", x.rank() - 2)));
    }
    let g = geometry(&view, 0, at.w)?;
    let window = PlainWindow::new(&x.shape, &y_ty.shape, &g.window);
    check_weights(cx, &x.shape[1], &(w.shape[1].clone() * Dim::Const(g.groups)), w)?;
    let each = cx.opt_ty(at.w_zero)?.is_some_and(|z| !z.numel().is(1));
    let d = IntConv {
        x: cx.x(0)?,
        weights: cx.x(at.w)?,
        x_zero: cx.opt(at.x_zero)?,
        w_zero: cx.opt(at.w_zero)?,
        bias: cx.opt(at.bias)?,
        y,
        n: x.shape[0].clone(),
        ic: x.shape[1].clone(),
        oc: w.shape[0].clone(),
        groups: Dim::Const(g.groups),
        w_zero_channel: Dim::Const(each.into()),
        x_dims: window.x,
        y_dims: window.y,
        kernel: window.kernel,
        strides: window.strides,
        dilations: window.dilations,
        pads: window.pads,
    };
    cx.call(&[x.dtype, w.dtype, Dtype::I32], d)
}

fn infer_qlinear(cx: &mut InferCx<'_>) -> Result<()> {
    check_zeros(cx, 2, 3, 5)?;
    let channels = cx.shape(3)?.first().cloned();
    for (scale, channels) in [(1, None), (4, channels.as_ref()), (6, None)] {
        cx.expect_dtype(scale, &[Dtype::F32, Dtype::F16, Dtype::Bf16])?;
        check_count(cx, scale, channels)?;
    }
    let dtype = match cx.opt_ty(7)? {
        None => cx.dtype(0)?,
        Some(zero) => {
            cx.expect_dtype(7, BYTES)?;
            check_count(cx, 7, None)?;
            zero.dtype
        }
    };
    if let (Some(b), Some(c)) = (cx.opt_ty(8)?, &channels) {
        cx.expect_dtype(8, &[Dtype::I32])?;
        if b.rank() != 1 || &b.shape[0] != c {
            return Err(wrong(format!("expected {c} values, found {b}")).at_input(8));
        }
    }
    let shape = shape(cx, 3)?;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

/// The least and greatest code of the result: the type's, or those of a clamp that a pass folded in.
fn code_limits(cx: &NodeView<'_>, dtype: Dtype) -> Result<(i32, i32)> {
    let (lo, hi) = limits(dtype).ok_or_else(|| wrong(format!("cannot quantise to {dtype}")))?;
    if cx.node.domain != "kiln" {
        return Ok((lo, hi));
    }
    let bound = |name: &str, default: i32| -> Result<i32> {
        let v = cx.int(name, i64::from(default))?;
        Ok(i32::try_from(v).unwrap_or(default).clamp(lo, hi))
    };
    Ok((bound("least", lo)?, bound("greatest", hi)?))
}

/// Weights less their zero points, where these still fit 8 signed bits.
fn centred(cx: &NodeView<'_>) -> Option<Vec<i8>> {
    let w = cx.constant(3)?;
    let codes = w.to_ints()?;
    let zeros = if cx.has(5) { cx.constant(5)?.to_ints()? } else { vec![0] };
    let per_channel = codes.len().checked_div(*w.dims().first()?)?;
    let zero = |channel: usize| if zeros.len() == 1 { zeros.first() } else { zeros.get(channel) };
    codes.iter().enumerate().map(|(i, &c)| i8::try_from(c - zero(i / per_channel)?).ok()).collect()
}

/// The blocked form of a QLinearConv, if it has one: everything but X constant, one or two spatial axes,
/// weights that fit 8 signed bits without their zero points.
pub(crate) fn blocked_form(cx: &NodeView<'_>) -> Option<BlockedForm> {
    if cx.node.op != "QLinearConv" || !matches!(cx.node.domain.as_str(), "" | "kiln") {
        return None;
    }
    let constant = (1..9).all(|i| !cx.has(i) || cx.constant(i).is_some());
    let f32s = [1, 4, 6].iter().all(|&i| cx.dtype(i).is_ok_and(|t| t == Dtype::F32));
    let (x, w) = (cx.shape(0).ok()?, cx.ty(3).ok()?.const_dims()?);
    if !constant || !f32s || !matches!(x.len(), 3 | 4) || x.iter().any(|d| d.is(0)) || w.contains(&0) {
        return None;
    }
    centred(cx)?;
    let channels = usize::try_from(x[1].as_const()?).ok()?;
    let groups = channels / w[1];
    if groups == channels && w[0] == channels && groups > 1 {
        return Some(BlockedForm::Depthwise);
    }
    if groups == 1 && channels <= 4 {
        return Some(BlockedForm::First);
    }
    let whole = groups == 1 || (w[1] % 16 == 0 && w[0] / groups % 16 == 0);
    whole.then_some(BlockedForm::Direct)
}

/// What the blocked kernels take besides X.
struct Blocked {
    form: BlockedForm,
    extents: ConvExtents,
    /// The greatest extents.
    most: ConvShape,
    weights: Operand<Dim>,
    bias: Operand<Dim>,
    factor: Operand<Dim>,
    x_zero: u8,
    x_flip: u8,
    y_zero: i32,
    y_low: u8,
    y_high: u8,
    y_flip: u8,
}

/// Packs weights, bias and factors; codes become unsigned.
fn blocked(cx: &mut LowerCx<'_>) -> Result<Blocked> {
    let view = cx.view();
    let missing = || CompileError::new(Stage::Lower, "no blocked kernel for this convolution");
    let form = blocked_form(&view).ok_or_else(missing)?;
    let w = centred(&view).ok_or_else(missing)?;
    let extents = conv_extents(&view, 0, 3)?;
    let shape = extents.most()?;
    let (icg, taps) = (shape.ic / shape.groups, shape.kh * shape.kw);
    let packed = match form {
        BlockedForm::Depthwise => kiln_kernels::pack_qdepthwise_weights(&w, shape.oc, shape.kh, shape.kw),
        BlockedForm::First => kiln_kernels::pack_qconv_weights(&w, shape.oc, icg, taps, 1, 4),
        BlockedForm::Direct => kiln_kernels::pack_qconv_weights(&w, shape.oc, icg, taps, shape.groups, 16),
    };
    let packed = packed.ok_or_else(missing)?;
    let shift = |dtype: Dtype| if dtype.is_signed() { (128, 0x80) } else { (0, 0) };
    let ((x_shift, x_flip), y_dtype) = (shift(view.dtype(0)?), view.out_ty(0)?.dtype);
    let (y_shift, y_flip) = shift(y_dtype);
    let x_zero = const_zero(&view, 2)? + x_shift;
    let (low, high) = code_limits(&view, y_dtype)?;
    let (x_scale, y_scale) = (const_scale(&view, 1)?, const_scale(&view, 6)?);
    let w_scales = view.constant(4).and_then(|t| const_f32s(t)).ok_or_else(missing)?;
    let biases = match view.constant(8) {
        Some(b) => b.to_i32s().ok_or_else(missing)?,
        None => vec![0; shape.oc],
    };
    let per_channel = icg * taps;
    let (mut bias, mut factor) = (Vec::new(), Vec::new());
    for (c, w) in w.chunks_exact(per_channel).enumerate() {
        let sum = w.iter().fold(0i32, |s, &v| s.wrapping_add(v.into()));
        bias.push(biases[c].wrapping_sub(x_zero.wrapping_mul(sum)));
        factor.push(x_scale * w_scales[if w_scales.len() == 1 { 0 } else { c }] / y_scale);
    }
    bias.resize(shape.oc.next_multiple_of(16), 0);
    factor.resize(shape.oc.next_multiple_of(16), 0.0);
    let byte = |v: i32| u8::try_from(v).unwrap_or(0);
    Ok(Blocked {
        form,
        extents,
        most: shape,
        weights: cx.weights(packed.into_iter().map(|v| v as u8).collect::<Vec<_>>()),
        bias: cx.weights(bias.into_iter().flat_map(i32::to_le_bytes).collect::<Vec<_>>()),
        factor: cx.f32_weights(&factor),
        x_zero: byte(x_zero),
        x_flip,
        y_zero: const_zero(&view, 7)? + y_shift,
        y_low: byte(low + y_shift),
        y_high: byte(high + y_shift),
        y_flip,
    })
}

fn lower_blocked(cx: &mut LowerCx<'_>) -> Result<()> {
    let b = blocked(cx)?;
    let (s, fixed) = (b.most, b.extents.is_fixed());
    let flip = b.x_flip != 0;
    let (scratch_bytes, units) = match b.form {
        BlockedForm::Direct if fixed => {
            (kiln_kernels::qconv_scratch_bytes(s, flip), kiln_kernels::qconv_units(s, flip))
        }
        BlockedForm::First if fixed => (kiln_kernels::qconv_first_scratch_bytes(s), kiln_kernels::qconv_first_units(s)),
        BlockedForm::Depthwise if fixed => {
            (kiln_kernels::qdepthwise_scratch_bytes(s), kiln_kernels::qdepthwise_units(s))
        }
        BlockedForm::Direct => (kiln_kernels::qconv_scratch_bound(s), 0),
        BlockedForm::First => (kiln_kernels::qconv_first_scratch_bound(s), 0),
        BlockedForm::Depthwise => (kiln_kernels::qdepthwise_scratch_bound(s), 0),
    };
    let scratch = (scratch_bytes > 0).then(|| cx.scratch(Dim::from(scratch_bytes)));
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    let Blocked { weights, bias, factor, x_zero, x_flip, y_zero, y_low, y_high, y_flip, .. } = b;
    let ConvExtents { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups } = b.extents;
    let (part_begin, part_end) = (Dim::Const(0), if fixed { Dim::from(units) } else { WHOLE_PART });
    let key = &[Dtype::U8, Dtype::I8, Dtype::I32, Dtype::F32];
    #[rustfmt::skip]
    let done = match (b.form, scratch) {
        (BlockedForm::Direct, scratch) => cx.call(key, QConvBlocked {
            x, weights, bias, factor, scratch, y, n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups,
            part_begin, part_end, x_zero, x_flip, y_zero, y_low, y_high, y_flip,
        }),
        (BlockedForm::First, scratch) => cx.call(key, QConvFirst {
            x, weights, bias, factor, scratch, y, n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl,
            part_begin, part_end, x_zero, x_flip, y_zero, y_low, y_high, y_flip,
        }),
        (BlockedForm::Depthwise, Some(scratch)) => cx.call(key, QDepthwise {
            x, weights, bias, factor, scratch, y, n, c: ic, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl,
            part_begin, part_end, x_zero, x_flip, y_zero, y_low, y_high, y_flip,
        }),
        (BlockedForm::Depthwise, None) => Err(CompileError::new(Stage::Lower, "no scratch for an empty band")),
    };
    done
}

fn lower_qlinear(cx: &mut LowerCx<'_>) -> Result<()> {
    let out = cx.node.output(0).ok_or_else(|| wrong("the result is not wanted"))?;
    if cx.graph.value(out).layout == Layout::Blocked16 {
        return lower_blocked(cx);
    }
    let y_ty = cx.out_ty(0)?;
    let x = cx.scratch(y_ty.numel() * Dim::Const(4));
    sums(cx, Places { x_zero: 2, w: 3, w_zero: 5, bias: 8 }, x.clone())?;
    let (lo, hi) = code_limits(&cx.view(), y_ty.dtype)?;
    let each = !cx.ty(4)?.numel().is(1);
    let none = || [Dim::Const(0), Dim::Const(0), Dim::Const(0)];
    let d = Requantize {
        x,
        a_scale: as_f32(cx, 1)?,
        b_scale: as_f32(cx, 4)?,
        y_scale: as_f32(cx, 6)?,
        y_zero: cx.opt(7)?,
        y: cx.y(0)?,
        dims: [y_ty.shape[0].clone(), y_ty.shape[1].clone(), y_ty.shape[2..].iter().cloned().product()],
        a_strides: none(),
        b_strides: [Dim::Const(0), Dim::Const(each.into()), Dim::Const(0)],
        y_strides: none(),
        lo,
        hi,
        precision: precision(cx.dtype(1)?),
    };
    cx.call(&[Dtype::I32, Dtype::F32, y_ty.dtype], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;
    use kiln_kernels::Dtype;

    fn bytes(dtype: Dtype, dims: &[usize], values: &[i64]) -> Tensor {
        Tensor::new(dtype, dims.to_vec(), values.iter().map(|&v| v as u8).collect::<Vec<_>>().into()).unwrap()
    }

    /// The definition, one spatial axis at a time: `[n, c, h, w]`.
    fn reference(x: &[i64], xd: [usize; 4], w: &[i64], wd: [usize; 4], groups: usize, zx: i64, zw: &[i64]) -> Vec<i64> {
        let [n, c, h, ww] = xd;
        let [oc, icg, kh, kw] = wd;
        // Stride (2, 1), padding 1 above and to the right, dilation (1, 2).
        let (oh, ow) = ((h + 1 - kh) / 2 + 1, ww + 1 - (kw - 1) * 2);
        let mut out = Vec::new();
        for (b, o) in (0..n).flat_map(|b| (0..oc).map(move |o| (b, o))) {
            for (i, j) in (0..oh).flat_map(|i| (0..ow).map(move |j| (i, j))) {
                let mut sum = 0;
                for (g, y, z) in (0..icg).flat_map(|g| (0..kh).flat_map(move |y| (0..kw).map(move |z| (g, y, z)))) {
                    let (r, q) = ((i * 2 + y) as i64 - 1, j + z * 2);
                    if r < 0 || r >= h as i64 || q >= ww {
                        continue;
                    }
                    let channel = o / (oc / groups) * icg + g;
                    let value = x[((b * c + channel) * h + r as usize) * ww + q] - zx;
                    sum += value * (w[((o * icg + g) * kh + y) * kw + z] - zw[o % zw.len()]);
                }
                out.push(sum);
            }
        }
        out
    }

    #[test]
    fn groups_strides_pads_and_zero_points() {
        for (tx, tw) in [(Dtype::U8, Dtype::I8), (Dtype::U8, Dtype::U8), (Dtype::I8, Dtype::I8), (Dtype::I8, Dtype::U8)]
        {
            for groups in [1usize, 2, 4] {
                let (xd, wd) = ([2usize, 4, 5, 6], [8usize, 4 / groups, 3, 2]);
                let low = |t: Dtype| if t == Dtype::I8 { -128 } else { 0 };
                let ramp = |n: usize, step: usize, t: Dtype| -> Vec<i64> {
                    (0..n).map(|i| (i * step % 256) as i64 + low(t)).collect()
                };
                let (x, w) = (ramp(xd.iter().product(), 37, tx), ramp(wd.iter().product(), 101, tw));
                for zw in [vec![low(tw) + 127], (0..8).map(|i| low(tw) + 125 + i).collect()] {
                    let zx = low(tx) + 100;
                    let want = reference(&x, xd, &w, wd, groups, zx, &zw);
                    let zeros = bytes(tw, if zw.len() == 1 { &[] } else { &[8] }, &zw);
                    let y = case("", "ConvInteger", 10)
                        .input(bytes(tx, &xd, &x))
                        .constant(bytes(tw, &wd, &w))
                        .constant(bytes(tx, &[], &[zx]))
                        .constant(zeros.clone())
                        .attr("group", Attr::Int(groups as i64))
                        .attr("strides", Attr::Ints(vec![2, 1]))
                        .attr("pads", Attr::Ints(vec![1, 0, 0, 1]))
                        .attr("dilations", Attr::Ints(vec![1, 2]))
                        .run()
                        .unwrap();
                    assert_eq!(y[0].to_ints().unwrap(), want);
                    let scale = |v: &[f32]| Tensor::from_f32s(if v.len() == 1 { &[] } else { &[8] }, v);
                    let w_scale: Vec<f32> = (0..8).map(|i| 0.01 + 0.002 * i as f32).collect();
                    let bias: Vec<i32> = (0..8).map(|i| i * 1000 - 3000).collect();
                    let y = case("", "QLinearConv", 10)
                        .input(bytes(tx, &xd, &x))
                        .constant(scale(&[0.02]))
                        .constant(bytes(tx, &[], &[zx]))
                        .constant(bytes(tw, &wd, &w))
                        .constant(scale(&w_scale))
                        .constant(zeros)
                        .constant(scale(&[0.9]))
                        .constant(bytes(Dtype::U8, &[], &[7]))
                        .constant(Tensor::from_i32s(&[8], &bias))
                        .attr("group", Attr::Int(groups as i64))
                        .attr("strides", Attr::Ints(vec![2, 1]))
                        .attr("pads", Attr::Ints(vec![1, 0, 0, 1]))
                        .attr("dilations", Attr::Ints(vec![1, 2]))
                        .run()
                        .unwrap();
                    let pixels = want.len() / 16;
                    let want: Vec<i64> = want
                        .iter()
                        .enumerate()
                        .map(|(at, &v)| {
                            let c = at / pixels % 8;
                            let factor = 0.02f32 * w_scale[c] / 0.9;
                            let q = ((v + i64::from(bias[c])) as f32 * factor).round_ties_even() as i64 + 7;
                            q.clamp(0, 255)
                        })
                        .collect();
                    assert_eq!(y[0].to_ints().unwrap(), want);
                }
            }
        }
    }

    #[test]
    fn one_and_three_axes() {
        let y = case("", "ConvInteger", 10)
            .input(bytes(Dtype::U8, &[1, 1, 4], &[1, 2, 3, 4]))
            .constant(bytes(Dtype::U8, &[1, 1, 2], &[1, 1]))
            .attr("auto_pad", Attr::Str(b"SAME_UPPER".to_vec()))
            .run()
            .unwrap();
        assert_eq!(y[0].to_i32s().unwrap(), [3, 5, 7, 4]);
        let y = case("", "ConvInteger", 10)
            .input(bytes(Dtype::U8, &[1, 1, 2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8]))
            .constant(bytes(Dtype::I8, &[1, 1, 2, 2, 2], &[1, -1, 1, -1, 1, -1, 1, -1]))
            .run()
            .unwrap();
        assert_eq!((y[0].dims(), y[0].to_i32s().unwrap()), (&[1, 1, 1, 1, 1][..], vec![-4]));
    }

    #[test]
    fn refuses() {
        let x = || bytes(Dtype::U8, &[1, 1, 4], &[0; 4]);
        let w = || bytes(Dtype::I8, &[2, 1, 2], &[0; 4]);
        let c = case("", "ConvInteger", 10).input(x()).constant(w());
        assert!(c.constant(bytes(Dtype::U8, &[2], &[0; 2])).infer().is_err());
        let c = case("", "ConvInteger", 10).input(x()).constant(w()).absent();
        assert!(c.constant(bytes(Dtype::I8, &[3], &[0; 3])).infer().is_err());
        let c = case("", "ConvInteger", 10).input(x()).constant(w()).absent();
        assert!(c.constant(bytes(Dtype::U8, &[], &[0])).infer().is_err());
    }
}
