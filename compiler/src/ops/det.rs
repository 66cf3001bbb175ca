//! Det.
//!
//! <https://onnx.ai/onnx/operators/onnx__Det.html>

use super::view::{Result, wrong};
use super::{InferCx, OpDef, half, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Det, Dtype};

pub(super) static OPS: &[OpDef] =
    &[OpDef::new("", "Det", &[11, 22], infer, lower).with_flops(|cx| Ok(cx.ty(0)?.numel()))];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    let x = cx.ty(0)?;
    let [batch @ .., rows, columns] = &x.shape[..] else {
        return Err(wrong(format!("expected matrices, found {x}")).at_input(0));
    };
    if rows != columns && rows.as_const().is_some() && columns.as_const().is_some() {
        return Err(wrong(format!("expected square matrices, found {x}")).at_input(0));
    }
    let ty = tensor(x.dtype, batch.to_vec());
    cx.set(0, ty);
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let shape = cx.shape(0)?;
    let n = shape[shape.len() - 1].clone();
    let y = half::y(cx, 0)?;
    let d = Det {
        x: half::x(cx, 0)?,
        y: y.at.clone(),
        scratch: cx.scratch(n.clone() * n.clone() * Dim::Const(8)),
        batch: shape[..shape.len() - 2].iter().cloned().product(),
        n,
    };
    let dtype = half::compute_dtype(cx.dtype(0)?);
    cx.call(&[dtype, Dtype::F64], d)?;
    y.finish(cx)
}

#[cfg(test)]
mod tests {
    use crate::ir::Tensor;
    use crate::ops::testing::case;

    #[test]
    fn pivots_and_batches() {
        let x = Tensor::from_f32s(&[3, 2, 2], &[0., 1., 1., 0., 1., 2., 3., 4., 2., 4., 1., 2.]);
        assert_eq!(case("", "Det", 11).input(x).run_f32(), [-1., -2., 0.]);
    }
}
