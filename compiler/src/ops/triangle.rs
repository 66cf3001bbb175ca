//! Trilu and EyeLike: triangles and diagonals of matrices.
//!
//! <https://onnx.ai/onnx/operators/onnx__Trilu.html>, <https://onnx.ai/onnx/operators/onnx__EyeLike.html>

use super::number::number_bytes;
use super::strided::{StridedCopy, fill};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Dtype, Trilu};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "Trilu", &[14], infer_trilu, lower_trilu),
    OpDef::new("", "EyeLike", &[9, 22], infer_eye, lower_eye),
];

fn infer_trilu(cx: &mut InferCx<'_>) -> Result<()> {
    if cx.rank(0)? < 2 {
        return Err(wrong(format!("expected matrices, found {}", cx.ty(0)?)).at_input(0));
    }
    if cx.has(1) {
        cx.expect_dtype(1, &[Dtype::I64])?;
        if cx.ty(1)?.numel().as_const().is_some_and(|n| n != 1) {
            return Err(wrong(format!("expected one element, found {}", cx.ty(1)?)).at_input(1));
        }
    }
    cx.same_as_input()
}

fn lower_trilu(cx: &mut LowerCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let [outer @ .., h, w] = &x.shape[..] else { return Err(wrong("expected matrices")) };
    let d = Trilu {
        x: cx.x(0)?,
        k: cx.opt(1)?,
        y: cx.y(0)?,
        outer: outer.iter().cloned().product(),
        h: h.clone(),
        w: w.clone(),
        upper: cx.int("upper", 1)? != 0,
    };
    cx.call(&[width_of(x.dtype)?, Dtype::I64], d)
}

fn eye_dtype(cx: &NodeView<'_>) -> Result<Dtype> {
    match cx.opt_int("dtype")? {
        None => cx.dtype(0),
        Some(n) => i32::try_from(n)
            .ok()
            .and_then(Dtype::from_onnx)
            .ok_or_else(|| wrong(format!("no element type {n}")).at_attribute("dtype")),
    }
}

fn infer_eye(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_rank(0, 2)?;
    let dtype = eye_dtype(cx)?;
    if number_bytes(1.0, dtype).is_none() {
        return Err(wrong(format!("no one in {dtype}")));
    }
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_eye(cx: &mut LowerCx<'_>) -> Result<()> {
    let dtype = eye_dtype(cx)?;
    let [h, w] = cx.out_shape(0)? else { return Err(wrong("expected rank 2")) };
    let k = cx.int("k", 0)?;
    let one = number_bytes(1.0, dtype).ok_or_else(|| CompileError::new(Stage::Lower, format!("no one in {dtype}")))?;
    let y = cx.y(0)?;
    let zero = cx.weights(vec![0; dtype.size_bytes()]);
    fill(cx, dtype, zero, y.clone(), h.clone() * w.clone())?;
    // From row -k or column k on, as far as both reach.
    let (row, col) = (Dim::Const(k.saturating_neg().max(0)), Dim::Const(k.max(0)));
    let n = (h.clone() - row.clone()).at_most(&(w.clone() - col.clone())).at_least(&Dim::Const(0));
    if n.is(0) {
        return Ok(());
    }
    let diagonal = StridedCopy {
        dims: vec![n],
        x_start: Dim::Const(0),
        x_strides: vec![Dim::Const(0)],
        y_start: row * w.clone() + col,
        y_strides: vec![w.clone() + Dim::Const(1)],
    };
    let one = cx.weights(one);
    diagonal.lower(cx, dtype, one, y)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn triangles() {
        let x = Tensor::from_i64s(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        for (upper, k, want) in [
            (1, 0, [1, 2, 3, 0, 5, 6]),
            (0, 0, [1, 0, 0, 4, 5, 0]),
            (1, 1, [0, 2, 3, 0, 0, 6]),
            (0, -1, [0, 0, 0, 4, 0, 0]),
            (1, i64::MAX, [0; 6]),
            (1, i64::MIN, [1, 2, 3, 4, 5, 6]),
            (0, i64::MAX, [1, 2, 3, 4, 5, 6]),
        ] {
            let c = case("", "Trilu", 14).input(x.clone()).input(Tensor::from_i64s(&[], &[k]));
            let y = c.attr("upper", Attr::Int(upper)).run().unwrap();
            assert_eq!(y[0].to_i64s().unwrap(), want, "{upper} {k}");
        }
    }

    #[test]
    fn eyes() {
        let x = Tensor::from_i32s(&[2, 3], &[7; 6]);
        for (k, want) in [
            (0, [1, 0, 0, 0, 1, 0]),
            (1, [0, 1, 0, 0, 0, 1]),
            (-1, [0, 0, 0, 1, 0, 0]),
            (9, [0; 6]),
            (i64::MIN, [0; 6]),
        ] {
            let y = case("", "EyeLike", 9).input(x.clone()).attr("k", Attr::Int(k)).run().unwrap();
            assert_eq!(y[0].to_i32s().unwrap(), want, "{k}");
        }
        let y = case("", "EyeLike", 9).input(x).attr("dtype", Attr::Int(1)).run_f32();
        assert_eq!(y, [1., 0., 0., 0., 1., 0.]);
    }
}
