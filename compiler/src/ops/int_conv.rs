//! Convolution of 8-bit integers: ConvInteger and QLinearConv.
//!
//! <https://onnx.ai/onnx/operators/onnx__ConvInteger.html>, <https://onnx.ai/onnx/operators/onnx__QLinearConv.html>

use super::conv::{geometry, window_shape};
use super::quant::{as_f32, limits, precision};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, IntConv, Operand, Requantize};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "ConvInteger", &[10], infer_integer, lower_integer).with_flops(|cx| flops(cx, 1)),
    OpDef::new("", "QLinearConv", &[10], infer_qlinear, lower_qlinear).with_flops(|cx| flops(cx, 3)),
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
    let shape = window_shape(&x.shape, &y_ty.shape, &g.window)?;
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
        x_dims: shape.x.map(Dim::from),
        y_dims: shape.y.map(Dim::from),
        kernel: shape.kernel.map(Dim::from),
        strides: shape.strides.map(Dim::from),
        dilations: shape.dilations.map(Dim::from),
        pads: shape.pads.map(Dim::from),
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

fn lower_qlinear(cx: &mut LowerCx<'_>) -> Result<()> {
    let y_ty = cx.out_ty(0)?;
    let x = cx.scratch(y_ty.numel() * Dim::Const(4));
    sums(cx, Places { x_zero: 2, w: 3, w_zero: 5, bias: 8 }, x.clone())?;
    let (lo, hi) = limits(y_ty.dtype).ok_or_else(|| wrong(format!("cannot quantise to {}", y_ty.dtype)))?;
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
