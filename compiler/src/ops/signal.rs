//! DFT, STFT, HannWindow, HammingWindow, BlackmanWindow, MelWeightMatrix.
//!
//! <https://onnx.ai/onnx/operators/onnx__DFT.html> and neighbours

use super::view::{NodeView, Result, resolve_axis, wrong};
use super::{InferCx, OpDef, half, tensor};
use crate::ir::{Dim, TensorType};
use crate::lower::LowerCx;
use kiln_kernels::{Dft, Dtype, MelWeights, Operand, Stft, Taper, TaperWindow, fft_scratch_len};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "DFT", &[17, 20], infer_dft, lower_dft).with_flops(flops_dft),
    OpDef::new("", "STFT", &[17], infer_stft, lower_stft).with_flops(flops_dft),
    OpDef::new("", "HannWindow", &[17], infer_window, |cx| lower_window(cx, Taper::Hann)),
    OpDef::new("", "HammingWindow", &[17], infer_window, |cx| lower_window(cx, Taper::Hamming)),
    OpDef::new("", "BlackmanWindow", &[17], infer_window, |cx| lower_window(cx, Taper::Blackman)),
    OpDef::new("", "MelWeightMatrix", &[17], infer_mel, lower_mel),
];

/// The single integer of an operand that is known at compile time.
fn scalar(cx: &NodeView<'_>, i: usize) -> Result<Dim> {
    match &cx.need_dims(i)?[..] {
        [d] => Ok(d.clone()),
        dims => Err(wrong(format!("expected a scalar, found {} elements", dims.len())).at_input(i)),
    }
}

fn as_len(d: &Dim, what: &str) -> Result<Dim> {
    if d.as_const().is_some_and(|c| c < 0) { Err(wrong(format!("{what} of {d}"))) } else { Ok(d.clone()) }
}

/// 1 for real, 2 for complex signals: the last extent.
fn parts(ty: &TensorType, i: usize) -> Result<i64> {
    match ty.shape.last().and_then(Dim::as_const) {
        Some(p @ 1..=2) => Ok(p),
        _ => Err(wrong(format!("the last extent of {ty} is neither 1 (real) nor 2 (complex)")).at_input(i)),
    }
}

/// What a DFT does.
struct Transform {
    axis: usize,
    n: Dim,
    n_out: Dim,
    x_parts: i64,
    y_parts: i64,
    inverse: bool,
    onesided: bool,
}

fn transform(cx: &NodeView<'_>) -> Result<Transform> {
    let ty = cx.ty(0)?;
    half::expect_float(cx, 0)?;
    if ty.rank() < 2 {
        return Err(wrong(format!("expected a signal axis and parts, found {ty}")).at_input(0));
    }
    let axis = if cx.version() < 20 {
        cx.int("axis", 1)?
    } else if cx.has(2) {
        scalar(cx, 2)?.as_const().ok_or_else(|| wrong("must be constant").at_input(2))?
    } else {
        -2
    };
    let axis = resolve_axis(axis, ty.rank())?;
    if axis + 1 == ty.rank() {
        return Err(wrong("the axis of the parts cannot be transformed"));
    }
    let (inverse, onesided) = (cx.int("inverse", 0)? != 0, cx.int("onesided", 0)? != 0);
    let x_parts = parts(ty, 0)?;
    let n = if cx.has(1) {
        as_len(&scalar(cx, 1)?, "a transform length")?
    } else if inverse && onesided {
        (ty.shape[axis].clone() - Dim::Const(1)) * Dim::Const(2)
    } else {
        ty.shape[axis].clone()
    };
    let half_out = n.floor_div(&Dim::Const(2)) + Dim::Const(1);
    let n_out = if onesided && !inverse { half_out } else { n.clone() };
    let y_parts = if onesided && inverse { 1 } else { 2 };
    Ok(Transform { axis, n, n_out, x_parts, y_parts, inverse, onesided })
}

fn infer_dft(cx: &mut InferCx<'_>) -> Result<()> {
    let t = transform(cx)?;
    let ty = cx.ty(0)?;
    let mut shape = ty.shape.clone();
    shape[t.axis] = t.n_out;
    shape[ty.rank() - 1] = Dim::Const(t.y_parts);
    let dtype = ty.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

/// Ten operations per element and halving, about.
fn flops_dft(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.out_ty(0)?.numel() * Dim::Const(50))
}

/// Room for transforms of length `n`.
fn fft_scratch(cx: &mut LowerCx<'_>, n: &Dim) -> Result<Operand<Dim>> {
    let most = n.upper().and_then(|n| usize::try_from(n).ok());
    let most = most.ok_or_else(|| wrong("the transform's length must be bounded"))?;
    // A longer power of two may be needed for a shorter length: twice the next one is enough for all.
    let most = if n.as_const().is_some() { most } else { most.saturating_mul(2).next_power_of_two() };
    let len = fft_scratch_len(most).ok_or_else(|| wrong(format!("a transform of length {most}")))?;
    Ok(cx.scratch(Dim::from(len) * Dim::Const(8)))
}

fn lower_dft(cx: &mut LowerCx<'_>) -> Result<()> {
    let t = transform(cx)?;
    let shape = cx.shape(0)?;
    let y = half::y(cx, 0)?;
    let d = Dft {
        x: half::x(cx, 0)?,
        y: y.at.clone(),
        scratch: fft_scratch(cx, &t.n)?,
        outer: shape[..t.axis].iter().cloned().product(),
        n_in: shape[t.axis].clone(),
        inner: shape[t.axis + 1..shape.len() - 1].iter().cloned().product(),
        n: t.n,
        n_out: t.n_out,
        x_parts: Dim::Const(t.x_parts),
        y_parts: Dim::Const(t.y_parts),
        inverse: t.inverse,
        half_in: t.inverse && t.onesided,
    };
    let dtype = half::compute_dtype(cx.dtype(0)?);
    cx.call(&[dtype, Dtype::F64], d)?;
    y.finish(cx)
}

/// The extents of an STFT.
struct Frames {
    parts: i64,
    len: Dim,
    step: Dim,
    n: Dim,
    frames: Dim,
    n_out: Dim,
}

fn frames(cx: &NodeView<'_>) -> Result<Frames> {
    let ty = cx.ty(0)?;
    half::expect_float(cx, 0)?;
    let (parts, len) = match &ty.shape[..] {
        // Real signals may come without the axis of their single part.
        [_, len] => (1, len.clone()),
        [_, len, _] => (parts(ty, 0)?, len.clone()),
        _ => return Err(wrong(format!("expected [batch, length, parts], found {ty}")).at_input(0)),
    };
    let step = scalar(cx, 1)?;
    if step.lower() < 1 {
        return Err(wrong(format!("a step of {step}")).at_input(1));
    }
    let window = cx.opt_ty(2)?;
    if let Some(w) = window {
        cx.expect_rank(2, 1)?;
        half::expect_one_kernel(cx, &[2])?;
        half::expect_float(cx, 2)?;
        let _ = w;
    }
    let n = match (cx.has(3), window) {
        (true, _) => as_len(&scalar(cx, 3)?, "a frame length").map_err(|e| e.at_input(3))?,
        (false, Some(w)) => w.shape[0].clone(),
        (false, None) => len.clone(),
    };
    if let (Some(w), Some(n)) = (window.and_then(|w| w.shape[0].as_const()), n.as_const())
        && w > n
    {
        return Err(wrong(format!("a window of {w} for frames of {n}")).at_input(2));
    }
    if let (Some(len), Some(n)) = (len.as_const(), n.as_const())
        && n > len
    {
        return Err(wrong(format!("frames of {n} in a signal of {len}")));
    }
    let frames = (len.clone() - n.clone()).floor_div(&step) + Dim::Const(1);
    let onesided = cx.int("onesided", 1)? != 0;
    let n_out = if onesided { n.floor_div(&Dim::Const(2)) + Dim::Const(1) } else { n.clone() };
    Ok(Frames { parts, len, step, n, frames, n_out })
}

fn infer_stft(cx: &mut InferCx<'_>) -> Result<()> {
    let f = frames(cx)?;
    let ty = cx.ty(0)?;
    let shape = vec![ty.shape[0].clone(), f.frames, f.n_out, Dim::Const(2)];
    let dtype = ty.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_stft(cx: &mut LowerCx<'_>) -> Result<()> {
    let f = frames(cx)?;
    let y = half::y(cx, 0)?;
    let d = Stft {
        x: half::x(cx, 0)?,
        window: half::opt(cx, 2)?,
        y: y.at.clone(),
        scratch: fft_scratch(cx, &f.n)?,
        batch: cx.shape(0)?[0].clone(),
        len: f.len,
        parts: Dim::Const(f.parts),
        frames: f.frames,
        step: f.step,
        n: f.n,
        n_out: f.n_out,
    };
    let dtype = half::compute_dtype(cx.dtype(0)?);
    cx.call(&[dtype, Dtype::F64], d)?;
    y.finish(cx)
}

/// The type an attribute names by its number.
fn output_dtype(cx: &NodeView<'_>) -> Result<Dtype> {
    let number = cx.int("output_datatype", 1)?;
    let dtype = i32::try_from(number).ok().and_then(Dtype::from_onnx);
    let numeric =
        |d: &Dtype| half::is_half(*d) || matches!(d, Dtype::F32 | Dtype::F64) || (d.is_int() && !d.is_sub_byte());
    dtype.filter(numeric).ok_or_else(|| wrong(format!("{number} is no numeric type")).at_attribute("output_datatype"))
}

fn infer_window(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::I32, Dtype::I64])?;
    let size = as_len(&scalar(cx, 0)?, "a window").map_err(|e| e.at_input(0))?;
    let dtype = output_dtype(cx)?;
    cx.set(0, tensor(dtype, vec![size]));
    Ok(())
}

fn lower_window(cx: &mut LowerCx<'_>, shape: Taper) -> Result<()> {
    let y = half::y(cx, 0)?;
    let periodic = cx.int("periodic", 1)? != 0;
    let dtype = half::compute_dtype(cx.out_ty(0)?.dtype);
    cx.call(&[dtype], TaperWindow { y: y.at.clone(), shape, periodic })?;
    y.finish(cx)
}

fn infer_mel(cx: &mut InferCx<'_>) -> Result<()> {
    for i in 0..3 {
        cx.expect_dtype(i, &[Dtype::I32, Dtype::I64])?;
    }
    for i in 3..5 {
        half::expect_float(cx, i)?;
    }
    cx.expect_same_dtype(4, 3)?;
    for i in 2..5 {
        if cx.ty(i)?.numel().as_const().is_some_and(|n| n != 1) {
            return Err(wrong(format!("expected a scalar, found {}", cx.ty(i)?)).at_input(i));
        }
    }
    let bins = as_len(&scalar(cx, 0)?, "a number of bins").map_err(|e| e.at_input(0))?;
    let length = as_len(&scalar(cx, 1)?, "a transform length").map_err(|e| e.at_input(1))?;
    let dtype = output_dtype(cx)?;
    if dtype.is_int() {
        return Err(wrong(format!("weights as {dtype} are not supported")).at_attribute("output_datatype"));
    }
    cx.set(0, tensor(dtype, vec![length.floor_div(&Dim::Const(2)) + Dim::Const(1), bins]));
    Ok(())
}

fn lower_mel(cx: &mut LowerCx<'_>) -> Result<()> {
    let y = half::y(cx, 0)?;
    let d = MelWeights {
        rate: cx.x(2)?,
        low: half::x(cx, 3)?,
        high: half::x(cx, 4)?,
        y: y.at.clone(),
        bins: scalar(cx, 0)?,
        dft_length: scalar(cx, 1)?,
    };
    let key = [cx.dtype(2)?, half::compute_dtype(cx.dtype(3)?), half::compute_dtype(cx.out_ty(0)?.dtype)];
    cx.call(&key, d)?;
    y.finish(cx)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn dft_and_back() {
        for n in [8usize, 10] {
            let values: Vec<f32> = (0..2 * n).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
            let x = Tensor::from_f32s(&[2, n, 1], &values);
            let y = case("", "DFT", 17).input(x.clone()).run().unwrap().remove(0);
            assert_eq!(y.dims(), [2, n, 2]);
            let back = case("", "DFT", 17).input(y).attr("inverse", Attr::Int(1)).run_f32();
            assert!(back.chunks(2).zip(&values).all(|(b, v)| (b[0] - v).abs() < 1e-4 && b[1].abs() < 1e-4));
            let half = case("", "DFT", 20).input(x).attr("onesided", Attr::Int(1)).run().unwrap().remove(0);
            assert_eq!(half.dims(), [2, n / 2 + 1, 2]);
            let node = case("", "DFT", 20).input(half).attr("onesided", Attr::Int(1)).attr("inverse", Attr::Int(1));
            assert!(node.run_f32().iter().zip(&values).all(|(b, v)| (b - v).abs() < 1e-4));
        }
    }

    #[test]
    fn windows() {
        let node = |op: &str, periodic| {
            case("", op, 17).constant(Tensor::from_i64s(&[], &[4])).attr("periodic", Attr::Int(periodic)).run_f32()
        };
        let near = |a: Vec<f32>, b: [f32; 4]| assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?}");
        near(node("HannWindow", 1), [0.0, 0.5, 1.0, 0.5]);
        near(node("HannWindow", 0), [0.0, 0.75, 0.75, 0.0]);
        near(node("BlackmanWindow", 1), [0.0, 0.34, 1.0, 0.34]);
        near(node("HammingWindow", 1), [4.0 / 46.0, 25.0 / 46.0, 1.0, 25.0 / 46.0]);
    }

    #[test]
    fn stft_frames() {
        let x = Tensor::from_f32s(&[1, 6, 1], &[1., 2., 3., 4., 5., 6.]);
        let y = case("", "STFT", 17)
            .input(x)
            .constant(Tensor::from_i64s(&[], &[2]))
            .constant(Tensor::from_f32s(&[2], &[1., 0.5]))
            .run()
            .unwrap();
        assert_eq!(y[0].dims(), [1, 3, 2, 2]);
        assert_eq!(y[0].to_f32s().unwrap(), [2., 0., 0., 0., 5., 0., 1., 0., 8., 0., 2., 0.]);
    }
}
