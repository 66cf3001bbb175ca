//! LpNormalization, MeanVarianceNormalization, LRN.
//!
//! <https://onnx.ai/onnx/operators/onnx__LpNormalization.html>,
//! <https://onnx.ai/onnx/operators/onnx__MeanVarianceNormalization.html>, <https://onnx.ai/onnx/operators/onnx__LRN.html>

use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, resolve_axes, wrong};
use super::{InferCx, OpDef, half};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{LpNorm, Lrn, MeanVarianceNorm};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "LpNormalization", &[1, 22], infer_lp, lower_lp).with_flops(flops),
    OpDef::new("", "MeanVarianceNormalization", &[9, 13], infer_mean_variance, lower_mean_variance).with_flops(flops),
    OpDef::new("", "LRN", &[1, 13], infer_lrn, lower_lrn).with_flops(flops),
];

fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.ty(0)?.numel() * Dim::Const(8))
}

fn product(dims: &[Dim]) -> Dim {
    dims.iter().cloned().product()
}

fn norm_order(cx: &NodeView<'_>) -> Result<u8> {
    match cx.int("p", 2)? {
        1 => Ok(1),
        2 => Ok(2),
        p => Err(wrong(format!("a norm of order {p}")).at_attribute("p")),
    }
}

fn infer_lp(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    cx.axis("axis", -1, cx.rank(0)?)?;
    norm_order(cx)?;
    cx.same_as_input()
}

fn lower_lp(cx: &mut LowerCx<'_>) -> Result<()> {
    let shape = cx.shape(0)?;
    let axis = cx.axis("axis", -1, shape.len())?;
    let y = half::y(cx, 0)?;
    let d = LpNorm {
        x: half::x(cx, 0)?,
        y: y.at.clone(),
        outer: product(&shape[..axis]),
        n: shape[axis].clone(),
        inner: product(&shape[axis + 1..]),
        p: norm_order(cx)?,
    };
    let dtype = half::compute_dtype(cx.dtype(0)?);
    cx.call(&[dtype], d)?;
    y.finish(cx)
}

fn mean_axes(cx: &NodeView<'_>) -> Result<Vec<usize>> {
    resolve_axes(cx.opt_ints("axes")?.unwrap_or(&[0, 2, 3]), cx.rank(0)?).map_err(|e| e.at_attribute("axes"))
}

fn infer_mean_variance(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    mean_axes(cx)?;
    cx.same_as_input()
}

/// The axes of the mean are moved innermost, normalised row by row, and moved back.
fn lower_mean_variance(cx: &mut LowerCx<'_>) -> Result<()> {
    let axes = mean_axes(cx)?;
    let shape = cx.shape(0)?;
    let dtype = half::compute_dtype(cx.dtype(0)?);
    let (x, y) = (half::x(cx, 0)?, half::y(cx, 0)?);
    let kept = (0..shape.len()).filter(|a| !axes.contains(a));
    let order: Vec<usize> = kept.clone().chain((0..shape.len()).filter(|a| axes.contains(a))).collect();
    let rows: Dim = kept.map(|a| shape[a].clone()).product();
    let n: Dim = axes.iter().map(|&a| shape[a].clone()).product();
    if order.is_sorted() {
        cx.call(&[dtype], MeanVarianceNorm { x, y: y.at.clone(), rows, n })?;
        return y.finish(cx);
    }
    let strides = row_major(shape);
    let dims: Vec<Dim> = order.iter().map(|&a| shape[a].clone()).collect();
    let outer: Vec<Dim> = order.iter().map(|&a| strides[a].clone()).collect();
    let inner = row_major(&dims);
    let bytes = cx.ty(0)?.numel() * Dim::from(dtype.size_bytes());
    let (moved, normal) = (cx.scratch(bytes.clone()), cx.scratch(bytes));
    let copy = |x_strides: Vec<Dim>, y_strides: Vec<Dim>| StridedCopy {
        dims: dims.clone(),
        x_start: Dim::Const(0),
        x_strides,
        y_start: Dim::Const(0),
        y_strides,
    };
    copy(outer.clone(), inner.clone()).lower(cx, dtype, x, moved.clone())?;
    cx.call(&[dtype], MeanVarianceNorm { x: moved, y: normal.clone(), rows, n })?;
    copy(inner, outer).lower(cx, dtype, normal, y.at.clone())?;
    y.finish(cx)
}

fn lrn_size(cx: &NodeView<'_>) -> Result<u32> {
    let size = cx.opt_int("size")?.ok_or_else(|| wrong("is missing").at_attribute("size"))?;
    u32::try_from(size).ok().filter(|&s| s > 0).ok_or_else(|| wrong(format!("{size} channels")).at_attribute("size"))
}

fn infer_lrn(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    if cx.rank(0)? < 2 {
        return Err(wrong(format!("{} has no channels", cx.ty(0)?)).at_input(0));
    }
    lrn_size(cx)?;
    cx.same_as_input()
}

fn lower_lrn(cx: &mut LowerCx<'_>) -> Result<()> {
    let shape = cx.shape(0)?;
    let y = half::y(cx, 0)?;
    let d = Lrn {
        x: half::x(cx, 0)?,
        y: y.at.clone(),
        batch: shape[0].clone(),
        channels: shape[1].clone(),
        inner: product(&shape[2..]),
        size: lrn_size(cx)?,
        alpha: cx.float("alpha", 1e-4)?,
        beta: cx.float("beta", 0.75)?,
        bias: cx.float("bias", 1.0)?,
    };
    let dtype = half::compute_dtype(cx.dtype(0)?);
    cx.call(&[dtype], d)?;
    y.finish(cx)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn lp_along_axes() {
        let x = Tensor::from_f32s(&[2, 2], &[3., -4., 0., 0.]);
        for (axis, p, want) in
            [(-1, 2, [0.6, -0.8, 0., 0.]), (-1, 1, [3. / 7., -4. / 7., 0., 0.]), (0, 2, [1., -1., 0., 0.])]
        {
            let node = case("", "LpNormalization", 22).input(x.clone()).attr("axis", Attr::Int(axis));
            assert_eq!(node.attr("p", Attr::Int(p)).run_f32(), want);
        }
    }

    #[test]
    fn mean_variance_over_separate_axes() {
        let values: Vec<f32> = (0..24).map(|i| ((i * 5) % 17) as f32).collect();
        let y = case("", "MeanVarianceNormalization", 13).input(Tensor::from_f32s(&[2, 3, 2, 2], &values)).run_f32();
        for c in 0..3 {
            let at: Vec<usize> = (0..8).map(|i| i / 4 * 12 + c * 4 + i % 4).collect();
            let mean = at.iter().map(|&i| values[i]).sum::<f32>() / 8.0;
            let deviation = (at.iter().map(|&i| (values[i] - mean).powi(2)).sum::<f32>() / 8.0).sqrt();
            for i in at {
                assert!((y[i] - (values[i] - mean) / deviation).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn lrn_even_and_odd_sizes() {
        let (c, inner) = (5usize, 21);
        let values: Vec<f32> = (0..2 * c * inner).map(|i| ((i * 13) % 37) as f32 * 0.5 - 9.0).collect();
        for (size, beta) in [(3usize, 0.75f32), (4, 0.5), (1, 0.75)] {
            let node = case("", "LRN", 13)
                .input(Tensor::from_f32s(&[2, c, inner], &values))
                .attr("size", Attr::Int(size as i64));
            let y = node.attr("alpha", Attr::Float(0.3)).attr("beta", Attr::Float(beta)).run_f32();
            for (i, y) in y.iter().enumerate() {
                let (n, ch, p) = (i / (c * inner), i / inner % c, i % inner);
                let (low, high) = (ch.saturating_sub((size - 1) / 2), (ch + size / 2).min(c - 1));
                let sum: f32 = (low..=high).map(|k| values[(n * c + k) * inner + p].powi(2)).sum();
                let want = values[i] / (1.0 + 0.3 / size as f32 * sum).powf(beta);
                assert!((y - want).abs() < 1e-5 * want.abs().max(1.0), "{y} {want}");
            }
        }
    }
}
