//! Dropout: passes its operand on at inference, drops elements in training mode.
//!
//! The mask, where it is wanted, is all true at inference. Random numbers come from the node's seed (0 without one), so
//! that a module gives the same results run after run.
//! <https://onnx.ai/onnx/operators/onnx__Dropout.html>

use super::cast::convert_plain;
use super::strided::fill;
use super::unary::FLOATS;
use super::variadic::scalar;
use super::view::{NodeView, Result, wrong};
use super::{InferCx, LayoutRule, OpDef, flops_per_element, tensor};
use crate::ir::{Dim, Layout};
use crate::lower::LowerCx;
use kiln_kernels::{Dropout, Dtype};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "Dropout", &[1, 6, 7, 10, 12, 13, 22], infer, lower)
    .with_flops(flops_per_element)
    .with_layout(LayoutRule::Elementwise)];

/// Whether the node can ever drop an element.
fn trains(cx: &NodeView<'_>) -> bool {
    // Training mode is an operand since opset 12. Before, nets for inference leave elements alone.
    if cx.version() < 12 || !cx.has(2) {
        return false;
    }
    let off = cx.const_ints(2).is_some_and(|v| v == [0]);
    let never = cx.constant(1).and_then(|t| t.scalar_f64()) == Some(0.0);
    !off && !never
}

/// The mask's element type: the data's before opset 10.
fn mask_type(cx: &NodeView<'_>) -> Result<Dtype> {
    if cx.version() < 10 { cx.dtype(0) } else { Ok(Dtype::Bool) }
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    if !x.dtype.is_float() {
        return Err(wrong(format!("expected floats, found {x}")).at_input(0));
    }
    if cx.version() >= 12 {
        for i in [1, 2] {
            if let Some(ty) = cx.opt_ty(i)? {
                let fits = if i == 1 { ty.dtype.is_float() } else { ty.dtype == Dtype::Bool };
                if !fits || ty.numel().as_const().is_some_and(|n| n != 1) {
                    return Err(wrong(format!("expected one element, found {ty}")).at_input(i));
                }
            }
        }
        if trains(cx) && !FLOATS.contains(&x.dtype) {
            return Err(wrong(format!("training mode on {} is not supported", x.dtype)));
        }
    }
    let mask = tensor(mask_type(cx)?, x.shape.clone());
    cx.same_as_input()?;
    cx.set(1, mask);
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    if trains(cx) {
        return lower_training(cx);
    }
    cx.view_of(0, 0)?;
    if cx.wants(1) {
        let dtype = mask_type(cx)?;
        let one = scalar(dtype, 1.0).unwrap_or_else(|| vec![1]);
        let (one, mask) = (cx.weights(one), cx.y(1)?);
        let n = mask.bytes.floor_div(&Dim::from(dtype.size_bytes()));
        fill(cx, dtype, one, mask, n)?;
    }
    Ok(())
}

fn lower_training(cx: &mut LowerCx<'_>) -> Result<()> {
    let x_ty = cx.ty(0)?;
    if cx.layout(0)? != Layout::Plain {
        return Err(wrong("training mode in the blocked layout"));
    }
    let mut ratio = cx.opt(1)?;
    if let Some(given) = ratio.take() {
        let dtype = cx.dtype(1)?;
        let wide = if dtype == Dtype::F64 {
            given
        } else {
            let wide = cx.scratch(Dim::Const(8));
            convert_plain(cx, (dtype, given), (Dtype::F64, wide.clone()), &Dim::Const(1))?;
            wide
        };
        ratio = Some(wide);
    }
    let (x, training) = (cx.x(0)?, cx.x(2)?);
    let y = cx.y_or(0, x_ty)?;
    let mask = if cx.wants(1) { Some(cx.y(1)?) } else { None };
    let seed = cx.int("seed", 0)? as u32;
    cx.call(&[x_ty.dtype, Dtype::F64, Dtype::U8], Dropout { x, ratio, training, y, mask, n: x_ty.numel(), seed })
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;
    use kiln_kernels::Dtype;

    #[test]
    fn modes() {
        let x = Tensor::from_f32s(&[4], &[1., 2., 3., 4.]);
        let truth = |t: bool| Tensor::new(Dtype::Bool, vec![], vec![u8::from(t)].into()).unwrap();
        let ratio = Tensor::from_f32s(&[], &[0.5]);
        let y = case("", "Dropout", 7).input(x.clone()).attr("ratio", Attr::Float(0.9)).outputs(2).run().unwrap();
        assert_eq!((&y[0], &y[1]), (&x, &Tensor::from_f32s(&[4], &[1.; 4])));
        let y = case("", "Dropout", 13).input(x.clone()).input(ratio.clone()).outputs(2).run().unwrap();
        assert_eq!((&y[0], &y[1].data()[..]), (&x, &[1u8; 4][..]));
        let y = case("", "Dropout", 13).input(x.clone()).input(ratio.clone()).input(truth(false)).run().unwrap();
        assert_eq!(y[0], x);
        // NumPy's RandomState(0).uniform: 0.5488 0.7152 0.6028 0.5449.
        let ratio = Tensor::from_f32s(&[], &[0.6]);
        let y = case("", "Dropout", 13).input(x).input(ratio).input(truth(true)).attr("seed", Attr::Int(0)).outputs(2);
        let y = y.run().unwrap();
        assert_eq!(y[1].data()[..], [0, 1, 1, 0]);
        let y = y[0].to_f32s().unwrap();
        assert!(y[0] == 0.0 && (y[1] - 5.0).abs() < 1e-5 && (y[2] - 7.5).abs() < 1e-5);
    }
}
