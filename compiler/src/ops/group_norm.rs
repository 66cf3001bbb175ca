//! InstanceNormalization and GroupNormalization.
//!
//! <https://onnx.ai/onnx/operators/onnx__GroupNormalization.html>,
//! <https://onnx.ai/onnx/operators/onnx__InstanceNormalization.html>

use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, half};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::GroupNorm;

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "InstanceNormalization", &[1, 6, 22], infer_instance, lower_instance).with_flops(flops),
    OpDef::new("", "GroupNormalization", &[18, 21], infer_group, lower_group).with_flops(flops),
];

/// Mean, variance, normalisation, scale, shift.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.ty(0)?.numel() * Dim::Const(8))
}

fn infer_instance(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    let x = cx.ty(0)?;
    let channels = x.shape.get(1).ok_or_else(|| wrong(format!("{x} has no channels")).at_input(0))?;
    half::expect_vector(cx, 1, channels)?;
    half::expect_vector(cx, 2, channels)?;
    half::expect_one_kernel(cx, &[1, 2])?;
    cx.same_as_input()
}

fn lower_instance(cx: &mut LowerCx<'_>) -> Result<()> {
    let groups = cx.shape(0)?[1].clone();
    lower_groups(cx, groups, true)
}

fn infer_group(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    let x = cx.ty(0)?;
    let channels = x.shape.get(1).ok_or_else(|| wrong(format!("{x} has no channels")).at_input(0))?.clone();
    let groups = cx.opt_int("num_groups")?.ok_or_else(|| wrong("is missing").at_attribute("num_groups"))?;
    if groups < 1 || channels.as_const().is_some_and(|c| c % groups != 0) {
        return Err(wrong(format!("{channels} channels in {groups} groups")).at_attribute("num_groups"));
    }
    let n_scales = if cx.version() < 21 { Dim::Const(groups) } else { channels };
    half::expect_vector(cx, 1, &n_scales)?;
    half::expect_vector(cx, 2, &n_scales)?;
    half::expect_one_kernel(cx, &[1, 2])?;
    cx.same_as_input()
}

fn lower_group(cx: &mut LowerCx<'_>) -> Result<()> {
    let groups = Dim::Const(cx.int("num_groups", 1)?);
    let per_group = cx.version() < 21;
    lower_groups(cx, groups, per_group)
}

fn lower_groups(cx: &mut LowerCx<'_>, groups: Dim, per_group: bool) -> Result<()> {
    let shape = cx.shape(0)?;
    let y = half::y(cx, 0)?;
    let d = GroupNorm {
        x: half::x(cx, 0)?,
        scale: half::x(cx, 1)?,
        bias: half::x(cx, 2)?,
        y: y.at.clone(),
        batch: shape[0].clone(),
        channels: shape[1].floor_div(&groups),
        groups,
        inner: shape[2..].iter().cloned().product(),
        eps: cx.float("epsilon", 1e-5)?,
        per_group,
    };
    let dtype = half::compute_dtype(cx.dtype(0)?);
    cx.call(&[dtype], d)?;
    y.finish(cx)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn vector(n: usize, f: impl Fn(usize) -> f32) -> Tensor {
        Tensor::from_f32s(&[n], &(0..n).map(f).collect::<Vec<_>>())
    }

    #[test]
    fn groups_and_instances() {
        let (c, inner) = (4, 37);
        let values: Vec<f32> = (0..2 * c * inner).map(|i| ((i * 31) % 53) as f32 * 0.1).collect();
        let x = Tensor::from_f32s(&[2, c, inner], &values);
        for (op, version, groups) in
            [("InstanceNormalization", 6, 4), ("GroupNormalization", 18, 2), ("GroupNormalization", 21, 2)]
        {
            let n_scales = if version == 18 { groups } else { c };
            let scale = |i: usize| 1.0 + i as f32;
            let node = case("", op, version)
                .input(x.clone())
                .input(vector(n_scales, scale))
                .input(vector(n_scales, |i| i as f32));
            let node = if groups == c { node } else { node.attr("num_groups", Attr::Int(2)) };
            let y = node.run_f32();
            let size = c / groups * inner;
            for (g, (x, y)) in values.chunks(size).zip(y.chunks(size)).enumerate() {
                let mean = x.iter().sum::<f32>() / size as f32;
                let var = x.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / size as f32;
                for (i, (x, y)) in x.iter().zip(y).enumerate() {
                    let at = if version == 18 { g % groups } else { g % groups * (c / groups) + i / inner };
                    let want = (x - mean) / (var + 1e-5).sqrt() * scale(at) + at as f32;
                    assert!((y - want).abs() < 1e-4, "{op}-{version}: {y} {want}");
                }
            }
        }
    }
}
