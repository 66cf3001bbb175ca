//! DynamicQuantizeLinear.
//!
//! <https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html>

use super::view::{NodeView, Result};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, DynamicQuantize};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "DynamicQuantizeLinear", &[11], infer, lower).with_flops(flops)];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::F32])?;
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(Dtype::U8, shape));
    cx.set(1, tensor(Dtype::F32, Vec::new()));
    cx.set(2, tensor(Dtype::U8, Vec::new()));
    Ok(())
}

/// Two comparisons and a division per element.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.ty(0)?.numel() * Dim::Const(3))
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let x = cx.x(0)?;
    let y = cx.y_or(0, &tensor(Dtype::U8, cx.shape(0)?.to_vec()))?;
    let scale = cx.y_or(1, &tensor(Dtype::F32, Vec::new()))?;
    let zero = cx.y_or(2, &tensor(Dtype::U8, Vec::new()))?;
    cx.call(&[Dtype::F32, Dtype::U8], DynamicQuantize { x, y, scale, zero })
}

#[cfg(test)]
mod tests {
    use crate::ir::Tensor;
    use crate::ops::testing::case;

    #[test]
    fn values() {
        for (x, y, scale, zero) in [
            (vec![0.0f32, 2.0, -3.0, -2.5, 1.34, 0.5], vec![153u8, 255, 0, 26, 221, 179], 0.019_607_844, 153),
            (vec![-1.0, -2.1, -1.3, -2.5, -3.34, -4.0], vec![191, 121, 172, 96, 42, 0], 0.015_686_275, 255),
            (vec![0.0; 20], vec![0; 20], 1.0, 0),
            (vec![1.0; 33], vec![255; 33], 0.003_921_569, 0),
        ] {
            let t = Tensor::from_f32s(&[x.len()], &x);
            let got = case("", "DynamicQuantizeLinear", 11).input(t).outputs(3).run().unwrap();
            assert_eq!(got[0].to_u8s().unwrap(), y);
            assert_eq!(got[1].to_f32s().unwrap(), [scale]);
            assert_eq!(got[2].to_u8s().unwrap(), [zero]);
        }
    }
}
