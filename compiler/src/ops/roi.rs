//! RoiAlign and MaxRoiPool: regions of an image pooled to one size.
//!
//! <https://onnx.ai/onnx/operators/onnx__RoiAlign.html>, <https://onnx.ai/onnx/operators/onnx__MaxRoiPool.html>

use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, MaxRoiPool, RoiAlign};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "RoiAlign", &[10, 16, 22], infer_align, lower_align),
    OpDef::new("", "MaxRoiPool", &[1, 22], infer_pool, lower_pool),
];

const FLOATS: [Dtype; 4] = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16];

/// An attribute that counts something.
fn count(cx: &NodeView<'_>, name: &str, default: i64, least: i64) -> Result<Dim> {
    let n = cx.int(name, default)?;
    if (least..=1 << 20).contains(&n) { Ok(Dim::Const(n)) } else { Err(wrong(format!("{n}")).at_attribute(name)) }
}

/// Checks the operands: an image, and regions of `width` numbers.
fn check(cx: &NodeView<'_>, width: i64) -> Result<()> {
    cx.expect_dtype(0, &FLOATS)?;
    cx.expect_rank(0, 4)?;
    cx.expect_same_dtype(1, 0)?;
    cx.expect_rank(1, 2)?;
    if cx.shape(1)?[1].as_const().is_some_and(|n| n != width) {
        return Err(wrong(format!("expected [regions,{width}], found {}", cx.ty(1)?)).at_input(1));
    }
    Ok(())
}

fn maximum(cx: &NodeView<'_>) -> Result<bool> {
    match cx.text("mode", "avg")? {
        "avg" => Ok(false),
        "max" => Ok(true),
        other => Err(wrong(format!("{other:?} is not supported")).at_attribute("mode")),
    }
}

fn half_pixel(cx: &NodeView<'_>) -> Result<bool> {
    let default = if cx.version() < 16 { "output_half_pixel" } else { "half_pixel" };
    match cx.text("coordinate_transformation_mode", default)? {
        "half_pixel" => Ok(true),
        "output_half_pixel" => Ok(false),
        other => Err(wrong(format!("{other:?} is not supported")).at_attribute("coordinate_transformation_mode")),
    }
}

fn infer_align(cx: &mut InferCx<'_>) -> Result<()> {
    check(cx, 4)?;
    cx.expect_dtype(2, &[Dtype::I64])?;
    cx.expect_rank(2, 1)?;
    maximum(cx)?;
    half_pixel(cx)?;
    count(cx, "sampling_ratio", 0, 0)?;
    let (oh, ow) = (count(cx, "output_height", 1, 1)?, count(cx, "output_width", 1, 1)?);
    let (n, b) = (cx.shape(1)?[0].clone(), &cx.shape(2)?[0]);
    if n.as_const().is_some() && b.as_const().is_some() && n != *b {
        return Err(wrong(format!("{b} batch indices for {n} regions")).at_input(2));
    }
    let (dtype, channels) = (cx.dtype(0)?, cx.shape(0)?[1].clone());
    cx.set(0, tensor(dtype, vec![n, channels, oh, ow]));
    Ok(())
}

fn lower_align(cx: &mut LowerCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let d = RoiAlign {
        x: cx.x(0)?,
        regions: cx.x(1)?,
        batch_indices: cx.x(2)?,
        y: cx.y(0)?,
        batch: x.shape[0].clone(),
        channels: x.shape[1].clone(),
        h: x.shape[2].clone(),
        w: x.shape[3].clone(),
        n_regions: cx.shape(1)?[0].clone(),
        oh: count(cx, "output_height", 1, 1)?,
        ow: count(cx, "output_width", 1, 1)?,
        sampling: count(cx, "sampling_ratio", 0, 0)?,
        scale: cx.float("spatial_scale", 1.0)?,
        half_pixel: half_pixel(cx)?,
        max: maximum(cx)?,
    };
    cx.call(&[x.dtype, Dtype::I64], d)
}

fn pooled(cx: &NodeView<'_>) -> Result<[Dim; 2]> {
    match cx.opt_ints("pooled_shape")? {
        Some(&[h @ 1..=0x10_0000, w @ 1..=0x10_0000]) => Ok([Dim::Const(h), Dim::Const(w)]),
        _ => Err(wrong("expected two positive extents").at_attribute("pooled_shape")),
    }
}

fn infer_pool(cx: &mut InferCx<'_>) -> Result<()> {
    check(cx, 5)?;
    let [oh, ow] = pooled(cx)?;
    let (dtype, n, channels) = (cx.dtype(0)?, cx.shape(1)?[0].clone(), cx.shape(0)?[1].clone());
    cx.set(0, tensor(dtype, vec![n, channels, oh, ow]));
    Ok(())
}

fn lower_pool(cx: &mut LowerCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let [oh, ow] = pooled(cx)?;
    let d = MaxRoiPool {
        x: cx.x(0)?,
        regions: cx.x(1)?,
        y: cx.y(0)?,
        batch: x.shape[0].clone(),
        channels: x.shape[1].clone(),
        h: x.shape[2].clone(),
        w: x.shape[3].clone(),
        n_regions: cx.shape(1)?[0].clone(),
        oh,
        ow,
        scale: cx.float("spatial_scale", 1.0)?,
    };
    cx.call(&[x.dtype, if x.dtype == Dtype::F64 { Dtype::F64 } else { Dtype::F32 }], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn regions() {
        let x = Tensor::from_f32s(&[1, 1, 2, 4], &[1., 2., 3., 4., 5., 6., 7., 8.]);
        let c = case("", "RoiAlign", 16).input(x.clone()).input(Tensor::from_f32s(&[1, 4], &[0., 0., 4., 2.]));
        let c = c.input(Tensor::from_i64s(&[1], &[0])).attr("output_width", Attr::Int(2));
        // One sample between each two by two pixels.
        let c = c.attr("sampling_ratio", Attr::Int(1));
        assert_eq!(c.run_f32(), [3.5, 5.5]);
        let pool = case("", "MaxRoiPool", 1).input(x.clone()).input(Tensor::from_f32s(&[1, 5], &[0., 0., 0., 3., 1.]));
        assert_eq!(pool.attr("pooled_shape", Attr::Ints(vec![1, 2])).run_f32(), [6., 8.]);
        let bad = case("", "MaxRoiPool", 1).input(x).input(Tensor::from_f32s(&[1, 5], &[1., 0., 0., 3., 1.]));
        assert!(bad.attr("pooled_shape", Attr::Ints(vec![1, 2])).run().is_err());
    }
}
