//! Concat: tensors joined along an axis, by one strided copy each.
//!
//! <https://onnx.ai/onnx/operators/onnx__Concat.html>

use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, LayoutRule, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;

pub(super) static OPS: &[OpDef] =
    &[OpDef::new("", "Concat", &[1, 4, 11, 13], infer, lower).with_dims(dims).with_layout(LayoutRule::ChannelConcat)];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let first = cx.ty(0)?;
    // Opset 1 had a default; since 4 the attribute must be there, which the default does not harm.
    let axis = cx.axis("axis", 1, first.rank())?;
    let mut shape = first.shape.clone();
    for i in 1..cx.n_inputs() {
        let x = cx.ty(i)?;
        cx.expect_same_dtype(i, 0)?;
        cx.expect_rank(i, shape.len())?;
        for (a, (d, e)) in shape.iter_mut().zip(&x.shape).enumerate() {
            if a == axis {
                *d = d.clone() + e.clone();
            } else if d.as_const().is_none() && e.as_const().is_some() {
                *d = e.clone();
            } else if e.as_const().is_some() && d != e {
                return Err(wrong(format!("{x} differs from {first} in axis {a}")).at_input(i));
            }
        }
    }
    cx.set(0, tensor(first.dtype, shape));
    Ok(())
}

fn dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    if cx.rank(0).ok()? != 1 {
        return None;
    }
    let mut out = Vec::new();
    for i in 0..cx.n_inputs() {
        out.extend(cx.dims(i)?);
    }
    Some(out)
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    if cx.n_inputs() == 1 {
        return cx.view_of(0, 0);
    }
    let axis = cx.axis("axis", 1, cx.rank(0)?)?;
    let shape = cx.out_shape(0)?;
    for i in 0..cx.n_inputs() {
        let part = cx.shape(i)?;
        cx.expect_equal((0..shape.len()).filter(|&a| a != axis).map(|a| (&part[a], &shape[a])))?;
    }
    let dtype = cx.dtype(0)?;
    let y_strides = row_major(&cx.out_physical(0)?);
    let y = cx.y(0)?;
    let mut at = Dim::Const(0);
    for i in 0..cx.n_inputs() {
        let dims = cx.physical(i)?;
        let step = dims[axis].clone();
        let copy = StridedCopy {
            x_start: Dim::Const(0),
            x_strides: row_major(&dims),
            y_start: at.clone() * y_strides[axis].clone(),
            y_strides: y_strides.clone(),
            dims,
        };
        let x = cx.x(i)?;
        copy.lower(cx, dtype, x, y.clone())?;
        at = at + step;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn joins() {
        let a = Tensor::from_f32s(&[2, 1], &[1., 2.]);
        let b = Tensor::from_f32s(&[2, 2], &[3., 4., 5., 6.]);
        let empty = Tensor::from_f32s(&[2, 0], &[]);
        for axis in [1, -1] {
            let c = case("", "Concat", 13).input(a.clone()).input(empty.clone()).input(b.clone());
            let y = c.attr("axis", Attr::Int(axis)).run().unwrap();
            assert_eq!(y[0], Tensor::from_f32s(&[2, 3], &[1., 3., 4., 2., 5., 6.]));
        }
        let y = case("", "Concat", 4).input(a.clone()).input(a.clone()).attr("axis", Attr::Int(0)).run().unwrap();
        assert_eq!(y[0], Tensor::from_f32s(&[4, 1], &[1., 2., 1., 2.]));
        assert!(case("", "Concat", 13).input(a.clone()).input(b).attr("axis", Attr::Int(0)).infer().is_err());
        assert!(case("", "Concat", 13).input(a).attr("axis", Attr::Int(2)).infer().is_err());
    }
}
