//! IsInf and IsNaN.
//!
//! <https://onnx.ai/onnx/operators/onnx__IsInf.html>, <https://onnx.ai/onnx/operators/onnx__IsNaN.html>

use super::broadcast::result_extents;
use super::view::Result;
use super::{InferCx, LayoutRule, OpDef, flops_per_element, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Classify, Decode, Dtype, SmallFloat};

const fn op(name: &'static str, since: &'static [i64]) -> OpDef {
    OpDef::new("", name, since, infer, lower).with_flops(flops_per_element).with_layout(LayoutRule::Elementwise)
}

pub(super) static OPS: &[OpDef] = &[op("IsInf", &[10, 20]), op("IsNaN", &[9, 13, 20])];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(
        0,
        &[
            Dtype::F32,
            Dtype::F64,
            Dtype::F16,
            Dtype::Bf16,
            Dtype::F8E4M3FN,
            Dtype::F8E4M3FNUZ,
            Dtype::F8E5M2,
            Dtype::F8E5M2FNUZ,
        ],
    )?;
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(Dtype::Bool, shape));
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let n: Dim = result_extents(cx)?.into_iter().product();
    let mut dtype = cx.dtype(0)?;
    let (mut x, y) = (cx.x(0)?, cx.y(0)?);
    if let Some(format) = SmallFloat::of(dtype) {
        let wide = cx.scratch(n.clone() * Dim::Const(4));
        cx.call(&[Dtype::U8, Dtype::F32], Decode { x, y: wide.clone(), n: n.clone(), format })?;
        (x, dtype) = (wide, Dtype::F32);
    }
    let nan = cx.node.op == "IsNaN";
    let positive_infinity = !nan && cx.int("detect_positive", 1)? != 0;
    let negative_infinity = !nan && cx.int("detect_negative", 1)? != 0;
    cx.call(&[dtype, Dtype::U8], Classify { x, y, n, nan, positive_infinity, negative_infinity })
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;
    use kiln_kernels::Dtype;

    #[test]
    fn kinds() {
        let x = Tensor::from_f32s(&[4], &[1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        let y = case("", "IsNaN", 13).input(x.clone()).run().unwrap();
        assert_eq!(y[0].data()[..], [0, 1, 0, 0]);
        let y = case("", "IsInf", 10).input(x).attr("detect_negative", Attr::Int(0)).run().unwrap();
        assert_eq!(y[0].data()[..], [0, 0, 1, 0]);
        let codes = Tensor::new(Dtype::F8E5M2, vec![3], vec![0x7cu8, 0x7e, 0x3c].into()).unwrap();
        assert_eq!(case("", "IsInf", 20).input(codes.clone()).run().unwrap()[0].data()[..], [1, 0, 0]);
        assert_eq!(case("", "IsNaN", 20).input(codes).run().unwrap()[0].data()[..], [0, 1, 0]);
    }
}
