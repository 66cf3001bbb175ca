//! TopK: the greatest or smallest elements along an axis, in order.
//!
//! <https://onnx.ai/onnx/operators/onnx__TopK.html>

use super::arg::ORDERED;
use super::found::slot;
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::{Dim, TensorType};
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, ReadExtent, TopK};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "TopK", &[1, 10, 11, 24], infer, lower)];

fn axis(cx: &NodeView<'_>) -> Result<usize> {
    cx.axis("axis", -1, cx.rank(0)?)
}

/// How many, if that is known: an attribute before opset 10.
fn count(cx: &NodeView<'_>) -> Result<Option<Dim>> {
    let k = if cx.version() < 10 {
        Dim::Const(cx.opt_int("k")?.ok_or_else(|| wrong("attribute k is missing"))?)
    } else {
        match cx.dims(1).as_deref() {
            None => {
                cx.expect_dtype(1, &[Dtype::I64])?;
                return Ok(None);
            }
            Some([k]) => k.clone(),
            Some(other) => return Err(wrong(format!("expected one element, found {}", other.len())).at_input(1)),
        }
    };
    let n = &cx.shape(0)?[axis(cx)?];
    if k.lower() > n.upper().unwrap_or(i64::MAX) || k.upper().is_some_and(|k| k < 0) {
        return Err(wrong(format!("{k} elements of an axis of {n}")));
    }
    Ok(Some(k))
}

fn result(cx: &NodeView<'_>, k: Dim) -> Result<TensorType> {
    let mut shape = cx.shape(0)?.to_vec();
    shape[axis(cx)?] = k;
    Ok(tensor(cx.dtype(0)?, shape))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &ORDERED)?;
    let k = match count(cx)? {
        Some(k) => k,
        // Known only at run time: a symbol, read there.
        None => {
            let most = cx.shape(0)?[axis(cx)?].upper();
            cx.data_dim("k", 0, most)
        }
    };
    let values = result(cx, k)?;
    let indices = tensor(Dtype::I64, values.shape.clone());
    cx.set(0, values);
    cx.set(1, indices);
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let axis = axis(cx)?;
    let x = cx.ty(0)?;
    let n = x.shape[axis].clone();
    let k = match count(cx)? {
        Some(k) => k,
        None => {
            let k = cx.out_shape(usize::from(!cx.wants(0)))?[axis].clone();
            let d =
                ReadExtent { x: cx.x(1)?, at: Dim::Const(0), least: Dim::Const(0), most: n.clone(), value: slot(&k)? };
            cx.call(&[Dtype::I64], d)?;
            k
        }
    };
    let values = result(cx, k)?;
    let indices = tensor(Dtype::I64, values.shape.clone());
    let d = TopK {
        x: cx.x(0)?,
        values: cx.y_or(0, &values)?,
        indices: cx.y_or(1, &indices)?,
        order: cx.scratch(n.clone() * Dim::Const(4)),
        outer: x.shape[..axis].iter().cloned().product(),
        inner: x.shape[axis + 1..].iter().cloned().product(),
        k: values.shape[axis].clone(),
        n,
        largest: cx.int("largest", 1)? != 0,
    };
    cx.call(&[x.dtype, Dtype::I64, Dtype::U32], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn sorts() {
        let x = Tensor::from_f32s(&[2, 4], &[1., 3., 3., 2., 0., -0., f32::NAN, 5.]);
        for (largest, k, values, indices) in [
            (1, 2, vec![3., 3., f32::NAN, 5.], vec![1, 2, 2, 3]),
            (0, 3, vec![1., 2., 3., 0., -0., 5.], vec![0, 3, 1, 0, 1, 3]),
            (1, 0, vec![], vec![]),
        ] {
            let c = case("", "TopK", 11).input(x.clone()).constant(Tensor::from_i64s(&[1], &[k])).outputs(2);
            let y = c.attr("largest", Attr::Int(largest)).run().unwrap();
            let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
            assert!(y[0].to_f32s().unwrap().iter().zip(&values).all(same));
            assert_eq!(y[1], Tensor::from_i64s(&[2, k as usize], &indices));
        }
        let c = case("", "TopK", 1).input(x.clone()).attr("k", Attr::Int(1)).attr("axis", Attr::Int(0)).outputs(2);
        assert_eq!(c.run().unwrap()[1], Tensor::from_i64s(&[1, 4], &[0, 0, 1, 1]));
        for k in [5, -1] {
            let c = case("", "TopK", 11).input(x.clone()).constant(Tensor::from_i64s(&[1], &[k])).outputs(2);
            assert!(c.infer().is_err());
        }
    }
}
