//! ArgMax and ArgMin.
//!
//! <https://onnx.ai/onnx/operators/onnx__ArgMax.html>

use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Arg, Dtype};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "ArgMax", &[1, 11, 12, 13], infer, |cx| lower(cx, true)),
    OpDef::new("", "ArgMin", &[1, 11, 12, 13], infer, |cx| lower(cx, false)),
];

/// What the kernel compares.
pub(super) const ORDERED: [Dtype; 12] = [
    Dtype::F32,
    Dtype::F64,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::I8,
    Dtype::I16,
    Dtype::I32,
    Dtype::I64,
    Dtype::U8,
    Dtype::U16,
    Dtype::U32,
    Dtype::U64,
];

fn axis(cx: &NodeView<'_>) -> Result<usize> {
    cx.axis("axis", 0, cx.rank(0)?)
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &ORDERED)?;
    let axis = axis(cx)?;
    let mut shape = cx.shape(0)?.to_vec();
    if shape[axis].is(0) {
        return Err(wrong(format!("axis {axis} of {} is empty", cx.ty(0)?)));
    }
    if cx.int("keepdims", 1)? != 0 {
        shape[axis] = Dim::Const(1);
    } else {
        shape.remove(axis);
    }
    cx.set(0, tensor(Dtype::I64, shape));
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>, max: bool) -> Result<()> {
    let axis = axis(cx)?;
    let x = cx.ty(0)?;
    let d = Arg {
        x: cx.x(0)?,
        y: cx.y(0)?,
        outer: x.shape[..axis].iter().cloned().product(),
        n: x.shape[axis].clone(),
        inner: x.shape[axis + 1..].iter().cloned().product(),
        max,
        last: cx.int("select_last_index", 0)? != 0,
    };
    cx.call(&[x.dtype, Dtype::I64], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn positions() {
        let nan = f32::NAN;
        for (op, values, last, want) in [
            ("ArgMax", vec![1., 3., 3., 2.], 0, 1),
            ("ArgMax", vec![1., 3., 3., 2.], 1, 2),
            ("ArgMin", vec![1., 3., 1., 2.], 1, 2),
            ("ArgMin", vec![-0., 0., 1., 2.], 0, 0),
            ("ArgMax", vec![1., nan, 3., nan], 0, 1),
            ("ArgMin", vec![1., nan, -3., nan], 0, 1),
            ("ArgMax", vec![f32::NEG_INFINITY; 4], 0, 0),
        ] {
            for shape in [[1, 4, 1], [1, 1, 4]] {
                let axis = if shape[1] == 4 { 1 } else { -1 };
                let c = case("", op, 13).input(Tensor::from_f32s(&shape, &values)).attr("axis", Attr::Int(axis));
                let y = c.attr("select_last_index", Attr::Int(last)).run().unwrap();
                assert_eq!(y[0].to_i64s().unwrap(), [want], "{op} {values:?}");
            }
        }
    }

    #[test]
    fn axes_and_long_rows() {
        let x = Tensor::from_i32s(&[2, 3], &[1, 5, 2, 4, 3, 9]);
        let y = case("", "ArgMax", 1).input(x.clone()).run().unwrap();
        assert_eq!(y[0], Tensor::from_i64s(&[1, 3], &[1, 0, 1]));
        let c = case("", "ArgMax", 13).input(x).attr("axis", Attr::Int(-1)).attr("keepdims", Attr::Int(0));
        assert_eq!(c.run().unwrap()[0], Tensor::from_i64s(&[2], &[1, 2]));
        let long: Vec<f32> = (0..1001).map(|i| ((i * 37) % 1001) as f32).collect();
        let at = long.iter().position(|&v| v == 1000.).unwrap();
        let c = case("", "ArgMax", 13).input(Tensor::from_f32s(&[1001], &long));
        assert_eq!(c.run().unwrap()[0].to_i64s().unwrap(), [at as i64]);
        assert!(case("", "ArgMax", 13).input(Tensor::from_f32s(&[0], &[])).infer().is_err());
    }
}
