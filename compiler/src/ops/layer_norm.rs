//! LayerNormalization, RMSNormalization, and the `com.microsoft` forms with the addition before them.
//!
//! <https://onnx.ai/onnx/operators/onnx__LayerNormalization.html>,
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.SkipLayerNormalization>

use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, resolve_axis, wrong};
use super::{InferCx, OpDef, half, tensor};
use crate::ir::{Dim, ShapeText};
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, LayerNorm, Operand};

const MS: &str = "com.microsoft";

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "LayerNormalization", &[17], infer_layer, lower_layer).with_flops(flops),
    // Older exporters put it into ONNX's own domain, where ONNX Runtime knows it as an experiment.
    OpDef::new("", "SimplifiedLayerNormalization", &[1], infer_layer, lower_layer).with_flops(flops),
    OpDef::new("", "RMSNormalization", &[23], infer_layer, lower_layer).with_flops(flops),
    OpDef::new(MS, "SimplifiedLayerNormalization", &[1], infer_layer, lower_layer).with_flops(flops),
    OpDef::new(MS, "SkipLayerNormalization", &[1], infer_skip, lower_skip).with_flops(flops),
    OpDef::new(MS, "SkipSimplifiedLayerNormalization", &[1], infer_skip, lower_skip).with_flops(flops),
];

/// Mean, variance, normalisation, scale, shift.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.ty(0)?.numel() * Dim::Const(8))
}

/// Whether the mean is left alone.
fn is_rms(cx: &NodeView<'_>) -> bool {
    matches!(
        cx.node.op.as_str(),
        "RMSNormalization" | "SimplifiedLayerNormalization" | "SkipSimplifiedLayerNormalization"
    )
}

fn layer_axis(cx: &NodeView<'_>) -> Result<usize> {
    let rank = cx.rank(0)?;
    resolve_axis(cx.int("axis", -1)?, rank).map_err(|e| e.at_attribute("axis"))
}

/// Refuses a scale or bias that does not broadcast to `x`.
fn expect_broadcast(cx: &NodeView<'_>, i: usize) -> Result<()> {
    let (Some(ty), shape) = (cx.opt_ty(i)?, cx.shape(0)?) else { return Ok(()) };
    half::expect_float(cx, i)?;
    let fits = ty.rank() <= shape.len()
        && ty
            .shape
            .iter()
            .rev()
            .zip(shape.iter().rev())
            .all(|(a, b)| a == b || a.is(1) || a.as_const().is_none() || b.as_const().is_none());
    if fits { Ok(()) } else { Err(wrong(format!("{ty} does not broadcast to {}", ShapeText(shape))).at_input(i)) }
}

fn infer_layer(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    let axis = layer_axis(cx)?;
    cx.id(1)?;
    expect_broadcast(cx, 1)?;
    expect_broadcast(cx, 2)?;
    half::expect_one_kernel(cx, &[1, 2])?;
    // The result has the scale's type (RMSNormalization names it apart; elsewhere they agree).
    let shape = cx.shape(0)?.to_vec();
    let dtype = if is_rms(cx) { cx.dtype(1)? } else { cx.dtype(0)? };
    cx.set(0, tensor(dtype, shape.clone()));
    let stats = match cx.int("stash_type", 1)? {
        16 => Dtype::Bf16,
        _ => Dtype::F32,
    };
    let kept =
        shape.iter().enumerate().map(|(i, d)| if i < axis { d.clone() } else { Dim::Const(1) }).collect::<Vec<_>>();
    let first_stat = tensor(stats, kept);
    for i in 1..cx.n_outputs() {
        cx.set(i, first_stat.clone());
    }
    Ok(())
}

/// A scale or bias as the kernel takes it: `n` elements, or as many as `x` has (and then the step from row to row is `n`).
fn rows_of(cx: &mut LowerCx<'_>, i: usize, axis: usize, dtype: Dtype) -> Result<(Option<Operand<Dim>>, Dim)> {
    let (Some(ty), Some(at)) = (cx.opt_ty(i)?, half::opt(cx, i)?) else { return Ok((None, Dim::Const(0))) };
    let shape = cx.shape(0)?;
    let n: Dim = shape[axis..].iter().cloned().product();
    // Leading extents of 1 do not matter.
    let skip = ty.shape.iter().take_while(|d| d.is(1)).count();
    let own = &ty.shape[skip..];
    if own == &shape[shape.len() - own.len()..] && own.iter().cloned().product::<Dim>() == n {
        return Ok((Some(at), Dim::Const(0)));
    }
    let per_row = own.len() > shape.len() - axis;
    let dims = if per_row { shape.to_vec() } else { shape[axis..].to_vec() };
    let mut x_strides = vec![Dim::Const(0); dims.len() - own.len()];
    let strides = row_major(own);
    x_strides.extend(own.iter().zip(strides).map(|(d, s)| if d.is(1) { Dim::Const(0) } else { s }));
    let y = cx.scratch(dims.iter().cloned().product::<Dim>() * Dim::from(dtype.size_bytes()));
    let copy =
        StridedCopy { y_strides: row_major(&dims), dims, x_start: Dim::Const(0), x_strides, y_start: Dim::Const(0) };
    copy.lower(cx, dtype, at, y.clone())?;
    Ok((Some(y), if per_row { n } else { Dim::Const(0) }))
}

fn lower_layer(cx: &mut LowerCx<'_>) -> Result<()> {
    let axis = layer_axis(cx)?;
    let shape = cx.shape(0)?;
    let dtype = half::compute_dtype(cx.dtype(0)?);
    let x = half::x(cx, 0)?;
    let (scale, scale_step) = rows_of(cx, 1, axis, dtype)?;
    let (bias, bias_step) = rows_of(cx, 2, axis, dtype)?;
    let y = half::y(cx, 0)?;
    // SimplifiedLayerNormalization has no mean: its second result is the inverse standard deviation.
    let rms = is_rms(cx);
    let (mean, inv) = if rms { (None, half::opt_y(cx, 1)?) } else { (half::opt_y(cx, 1)?, half::opt_y(cx, 2)?) };
    let d = LayerNorm {
        x,
        skip: None,
        skip_bias: None,
        scale,
        bias,
        y: y.at.clone(),
        sum: None,
        mean: mean.as_ref().map(|o| o.at.clone()),
        inv_std_dev: inv.as_ref().map(|o| o.at.clone()),
        rows: shape[..axis].iter().cloned().product(),
        n: shape[axis..].iter().cloned().product(),
        skip_rows: Dim::Const(1),
        scale_step,
        bias_step,
        eps: cx.float("epsilon", 1e-5)?,
        rms,
    };
    cx.call(&[dtype, Dtype::F32], d)?;
    y.finish(cx)?;
    for output in [mean, inv].into_iter().flatten() {
        output.finish(cx)?;
    }
    Ok(())
}

// com.microsoft: input, skip, gamma, (beta,) bias → output, mean, inv_std_var, input_skip_bias_sum

fn infer_skip(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    let x = cx.ty(0)?;
    let n = x.shape.last().ok_or_else(|| wrong("a scalar has no rows").at_input(0))?.clone();
    expect_broadcast(cx, 1)?;
    let beta = if is_rms(cx) { 3 } else { 4 };
    half::expect_vector(cx, 2, &n)?;
    for i in 3..=beta {
        if cx.has(i) {
            half::expect_vector(cx, i, &n)?;
        }
    }
    half::expect_one_kernel(cx, &[1, 2, 3, 4])?;
    let (x, rank) = (x.clone(), x.rank());
    let kept = x.shape.iter().enumerate().map(|(i, d)| if i + 1 < rank { d.clone() } else { Dim::Const(1) }).collect();
    let stats = tensor(Dtype::F32, kept);
    cx.set(0, x.clone());
    cx.set(1, stats.clone());
    cx.set(2, stats);
    cx.set(3, x);
    Ok(())
}

fn lower_skip(cx: &mut LowerCx<'_>) -> Result<()> {
    let rms = is_rms(cx);
    let shape = cx.shape(0)?;
    let dtype = half::compute_dtype(cx.dtype(0)?);
    let n = shape.last().cloned().ok_or_else(|| wrong("a scalar has no rows"))?;
    let y = half::y(cx, 0)?;
    let sum = half::opt_y(cx, 3)?;
    let skip_ty = cx.ty(1)?;
    // A skip whose rows repeat must be one block of them; extents of 1 in between are copied out.
    let own = &skip_ty.shape[skip_ty.shape.iter().take_while(|d| d.is(1)).count()..];
    let repeats = own == &shape[shape.len() - own.len()..] && !own.is_empty();
    let skip = half::x(cx, 1)?;
    let (skip, skip_rows) = if repeats {
        (skip, own[..own.len() - 1].iter().cloned().product())
    } else {
        let (at, _) = rows_of(cx, 1, 0, dtype)?;
        (at.unwrap_or(skip), shape[..shape.len() - 1].iter().cloned().product())
    };
    let d = LayerNorm {
        x: half::x(cx, 0)?,
        skip: Some(skip),
        skip_bias: half::opt(cx, if rms { 3 } else { 4 })?,
        scale: half::opt(cx, 2)?,
        bias: if rms { None } else { half::opt(cx, 3)? },
        y: y.at.clone(),
        sum: sum.as_ref().map(|o| o.at.clone()),
        mean: if cx.wants(1) { Some(cx.y(1)?) } else { None },
        inv_std_dev: if cx.wants(2) { Some(cx.y(2)?) } else { None },
        rows: shape[..shape.len() - 1].iter().cloned().product(),
        n,
        skip_rows,
        scale_step: Dim::Const(0),
        bias_step: Dim::Const(0),
        eps: cx.float("epsilon", 1e-12)?,
        rms,
    };
    cx.call(&[dtype, Dtype::F32], d)?;
    y.finish(cx)?;
    match sum {
        Some(sum) => sum.finish(cx),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn ramp(dims: &[usize], step: usize) -> (Tensor, Vec<f32>) {
        let v: Vec<f32> = (0..dims.iter().product()).map(|i| ((i * step) % 47) as f32 * 0.25 - 3.0).collect();
        (Tensor::from_f32s(dims, &v), v)
    }

    fn reference(
        x: &[f32],
        n: usize,
        scale: &dyn Fn(usize) -> f32,
        bias: &dyn Fn(usize) -> f32,
        rms: bool,
    ) -> Vec<f32> {
        let rows = x.chunks(n).enumerate();
        rows.flat_map(|(r, x)| {
            let mean = if rms { 0.0 } else { x.iter().sum::<f32>() / n as f32 };
            let var = x.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / n as f32;
            let inv = 1.0 / (var + 1e-5).sqrt();
            x.iter()
                .enumerate()
                .map(move |(i, v)| (v - mean) * inv * scale(r * n + i) + bias(r * n + i))
                .collect::<Vec<_>>()
        })
        .collect()
    }

    fn assert_near(got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len());
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 2e-5 * w.abs().max(1.0)), "{got:?} {want:?}");
    }

    #[test]
    fn every_axis_and_broadcast_scale() {
        let dims = [2, 3, 83];
        let (x, v) = ramp(&dims, 29);
        for (axis, scale_dims) in [
            (-1i64, vec![83]),
            (2, vec![83]),
            (1, vec![3, 83]),
            (0, vec![2, 3, 83]),
            (-1, vec![1]),
            (-1, vec![3, 1]),
            (-1, vec![2, 3, 83]),
            (1, vec![83]),
            (2, vec![1, 1, 83]),
        ] {
            let (scale, s) = ramp(&scale_dims, 13);
            let (bias, b) = ramp(&scale_dims, 11);
            let at = |i: usize| {
                let idx = [i / (3 * 83), i / 83 % 3, i % 83];
                scale_dims
                    .iter()
                    .zip(&idx[3 - scale_dims.len()..])
                    .fold(0, |at, (&d, &i)| at * d + if d == 1 { 0 } else { i })
            };
            let n: usize = dims[axis.rem_euclid(3) as usize..].iter().product();
            for (op, version, rms) in [("LayerNormalization", 17, false), ("RMSNormalization", 23, true)] {
                let mut node =
                    case("", op, version).input(x.clone()).input(scale.clone()).attr("axis", Attr::Int(axis));
                if !rms {
                    node = node.input(bias.clone()).outputs(3);
                }
                let y = node.run().unwrap();
                let want = reference(&v, n, &|i| s[at(i)], &|i| if rms { 0.0 } else { b[at(i)] }, rms);
                assert_near(&y[0].to_f32s().unwrap(), &want);
                if !rms {
                    let means: Vec<f32> = v.chunks(n).map(|x| x.iter().sum::<f32>() / n as f32).collect();
                    assert_near(&y[1].to_f32s().unwrap(), &means);
                    assert_eq!(y[2].dims()[..axis.rem_euclid(3) as usize], dims[..axis.rem_euclid(3) as usize]);
                }
            }
        }
    }

    #[test]
    fn f64_and_skip() {
        let (x, v) = ramp(&[2, 4, 21], 29);
        let wide = Tensor::from_f64s(&[2, 4, 21], &v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
        let y =
            case("", "LayerNormalization", 17).input(wide).input(Tensor::from_f64s(&[21], &[2.0; 21])).run().unwrap();
        let y: Vec<f32> = y[0].to_f64s().unwrap().iter().map(|&v| v as f32).collect();
        assert_near(&y, &reference(&v, 21, &|_| 2.0, &|_| 0.0, false));
        let (gamma, g) = ramp(&[21], 5);
        let (beta, b) = ramp(&[21], 3);
        for skip_dims in [vec![2, 4, 21], vec![1, 4, 21], vec![4, 21]] {
            let (skip, k) = ramp(&skip_dims, 17);
            let sum: Vec<f32> = v.iter().enumerate().map(|(i, v)| v + k[i % k.len()] + b[i % 21]).collect();
            let node = case("com.microsoft", "SkipLayerNormalization", 1).input(x.clone()).input(skip.clone());
            let node = node.input(gamma.clone()).input(beta.clone()).input(beta.clone());
            let y = node.attr("epsilon", Attr::Float(1e-5)).outputs(4).run().unwrap();
            assert_near(&y[0].to_f32s().unwrap(), &reference(&sum, 21, &|i| g[i % 21], &|i| b[i % 21], false));
            assert_near(&y[3].to_f32s().unwrap(), &sum);
            let node = case("com.microsoft", "SkipSimplifiedLayerNormalization", 1).input(x.clone()).input(skip);
            let y = node.input(gamma.clone()).input(beta.clone()).attr("epsilon", Attr::Float(1e-5)).run_f32();
            assert_near(&y, &reference(&sum, 21, &|i| g[i % 21], &|_| 0.0, true));
        }
    }
}
