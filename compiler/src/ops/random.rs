//! Random operators: RandomUniform, RandomNormal, their Like forms, Bernoulli, Multinomial.
//!
//! The generator is stated in `kiln_kernels::random`. A node without a seed gets one from its name, so that a module gives
//! the same numbers run after run.
//!
//! <https://onnx.ai/onnx/operators/onnx__RandomUniform.html>

use super::number::number_bytes;
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Bernoulli, Dtype, Multinomial, RandomFill};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "RandomUniform", &[1, 22], infer_shape, lower_uniform).impure(),
    OpDef::new("", "RandomNormal", &[1, 22], infer_shape, lower_normal).impure(),
    OpDef::new("", "RandomUniformLike", &[1, 22], infer_like, lower_uniform).impure(),
    OpDef::new("", "RandomNormalLike", &[1, 22], infer_like, lower_normal).impure(),
    OpDef::new("", "Bernoulli", &[15, 22], infer_bernoulli, lower_bernoulli).impure(),
    OpDef::new("", "Multinomial", &[7, 22], infer_multinomial, lower_multinomial).impure(),
];

const FLOATS: [Dtype; 4] = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16];

/// The attribute's bits, or FNV-1a of the node's name.
fn seed(cx: &NodeView<'_>) -> Result<u64> {
    Ok(match cx.opt_float("seed")? {
        Some(s) => u64::from(s.to_bits()),
        None => {
            cx.node.name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
        }
    })
}

/// The attribute `dtype`.
fn dtype(cx: &NodeView<'_>, default: Dtype) -> Result<Dtype> {
    match cx.opt_int("dtype")? {
        None => Ok(default),
        Some(n) => i32::try_from(n)
            .ok()
            .and_then(Dtype::from_onnx)
            .ok_or_else(|| wrong(format!("no element type {n}")).at_attribute("dtype")),
    }
}

fn float_dtype(cx: &NodeView<'_>, default: Dtype) -> Result<Dtype> {
    let dtype = dtype(cx, default)?;
    if FLOATS.contains(&dtype) { Ok(dtype) } else { Err(wrong(format!("no random numbers of {dtype}"))) }
}

fn infer_shape(cx: &mut InferCx<'_>) -> Result<()> {
    let shape = cx.opt_ints("shape")?.ok_or_else(|| wrong("attribute shape is missing"))?;
    let dtype = float_dtype(cx, Dtype::F32)?;
    cx.set(0, tensor(dtype, shape.iter().map(|&d| Dim::Const(d)).collect()));
    Ok(())
}

fn infer_like(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let default = if FLOATS.contains(&x.dtype) { x.dtype } else { Dtype::F32 };
    let dtype = float_dtype(cx, default)?;
    let shape = x.shape.clone();
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_fill(cx: &mut LowerCx<'_>, normal: bool, a: f32, b: f32) -> Result<()> {
    let ty = cx.out_ty(0)?;
    let (n, dtype) = (ty.numel(), ty.dtype);
    let d = RandomFill { y: cx.y(0)?, n, normal, a: a.into(), b: b.into(), seed: seed(cx)? };
    cx.call(&[dtype], d)
}

fn lower_uniform(cx: &mut LowerCx<'_>) -> Result<()> {
    let (low, high) = (cx.float("low", 0.0)?, cx.float("high", 1.0)?);
    lower_fill(cx, false, low, high)
}

fn lower_normal(cx: &mut LowerCx<'_>) -> Result<()> {
    let (mean, scale) = (cx.float("mean", 0.0)?, cx.float("scale", 1.0)?);
    lower_fill(cx, true, mean, scale)
}

fn infer_bernoulli(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &FLOATS)?;
    let x = cx.ty(0)?;
    let dtype = dtype(cx, x.dtype)?;
    if number_bytes(1.0, dtype).is_none() {
        return Err(wrong(format!("no one in {dtype}")));
    }
    let shape = x.shape.clone();
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_bernoulli(cx: &mut LowerCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let dtype = cx.out_ty(0)?.dtype;
    let one = number_bytes(1.0, dtype).ok_or_else(|| CompileError::new(Stage::Lower, format!("no one in {dtype}")))?;
    let d = Bernoulli { x: cx.x(0)?, one: cx.weights(one), y: cx.y(0)?, n: x.numel(), seed: seed(cx)? };
    cx.call(&[x.dtype, width_of(dtype)?], d)
}

fn infer_multinomial(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &FLOATS)?;
    cx.expect_rank(0, 2)?;
    let dtype = dtype(cx, Dtype::I32)?;
    if !matches!(dtype, Dtype::I32 | Dtype::I64) {
        return Err(wrong(format!("classes as {dtype}")).at_attribute("dtype"));
    }
    let samples = Dim::Const(cx.int("sample_size", 1)?);
    let batch = cx.shape(0)?[0].clone();
    cx.set(0, tensor(dtype, vec![batch, samples]));
    Ok(())
}

fn lower_multinomial(cx: &mut LowerCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let y = cx.out_ty(0)?;
    let d = Multinomial {
        x: cx.x(0)?,
        y: cx.y(0)?,
        batch: x.shape[0].clone(),
        classes: x.shape[1].clone(),
        samples: y.shape[1].clone(),
        seed: seed(cx)?,
    };
    cx.call(&[x.dtype, y.dtype], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn draws() {
        let c = case("", "RandomUniform", 1).attr("shape", Attr::Ints(vec![1000])).attr("low", Attr::Float(2.));
        let y = c.attr("high", Attr::Float(4.)).run_f32();
        let mean = y.iter().sum::<f32>() / 1000.;
        assert!(y.iter().all(|v| (2. ..4.).contains(v)) && (mean - 3.).abs() < 0.1);
        let x = Tensor::from_f32s(&[4000], &[0.; 4000]);
        let y = case("", "RandomNormalLike", 1).input(x).attr("seed", Attr::Float(3.)).run_f32();
        let variance = y.iter().map(|v| v * v).sum::<f32>() / 4000.;
        assert!((variance - 1.).abs() < 0.1);
        let p = Tensor::from_f32s(&[3], &[0., 1., 1.]);
        let y = case("", "Bernoulli", 15).input(p).attr("dtype", Attr::Int(7)).run().unwrap();
        assert_eq!(y[0].to_i64s().unwrap(), [0, 1, 1]);
        let x = Tensor::from_f32s(&[1, 3], &[f32::NEG_INFINITY, 0., f32::NEG_INFINITY]);
        let y = case("", "Multinomial", 7).input(x).attr("sample_size", Attr::Int(3)).run().unwrap();
        assert_eq!(y[0].to_i32s().unwrap(), [1, 1, 1]);
    }
}
