//! NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss.
//!
//! <https://onnx.ai/onnx/operators/onnx__NegativeLogLikelihoodLoss.html>,
//! <https://onnx.ai/onnx/operators/onnx__SoftmaxCrossEntropyLoss.html>

use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, half, tensor};
use crate::ir::{Dim, ShapeText};
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, LossReduction, NllLoss, Operand, Softmax};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "NegativeLogLikelihoodLoss", &[12, 13, 22], infer, lower_nll).with_flops(flops),
    OpDef::new("", "SoftmaxCrossEntropyLoss", &[12, 13], infer, lower_cross_entropy).with_flops(flops),
];

fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.ty(0)?.numel() * Dim::Const(5))
}

fn reduction(cx: &NodeView<'_>) -> Result<LossReduction> {
    Ok(match cx.text("reduction", "mean")? {
        "none" => LossReduction::None,
        "sum" => LossReduction::Sum,
        "mean" => LossReduction::Mean,
        other => return Err(wrong(format!("unknown reduction \"{other}\"")).at_attribute("reduction")),
    })
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    cx.expect_dtype(1, &[Dtype::I32, Dtype::I64])?;
    let x = cx.ty(0)?;
    if x.rank() < 2 {
        return Err(wrong(format!("{x} has no classes")).at_input(0));
    }
    let mut positions = x.shape.clone();
    let classes = positions.remove(1);
    let target = cx.shape(1)?;
    let fits = target.len() == positions.len()
        && target.iter().zip(&positions).all(|(a, b)| a == b || a.as_const().is_none() || b.as_const().is_none());
    if !fits {
        return Err(wrong(format!("expected {}, found {}", ShapeText(&positions), cx.ty(1)?)).at_input(1));
    }
    if cx.has(2) {
        half::expect_vector(cx, 2, &classes)?;
        half::expect_one_kernel(cx, &[2])?;
    }
    let shape = if reduction(cx)? == LossReduction::None { positions } else { Vec::new() };
    let x = x.clone();
    cx.set(0, tensor(x.dtype, shape));
    if cx.node.op == "SoftmaxCrossEntropyLoss" {
        cx.set(1, x);
    }
    Ok(())
}

/// `[batch, classes, inner]`
fn extents(cx: &NodeView<'_>) -> Result<[Dim; 3]> {
    let shape = cx.shape(0)?;
    Ok([shape[0].clone(), shape[1].clone(), shape[2..].iter().cloned().product()])
}

fn lower_nll(cx: &mut LowerCx<'_>) -> Result<()> {
    let x = half::x(cx, 0)?;
    lower_loss(cx, x)
}

fn lower_loss(cx: &mut LowerCx<'_>, x: Operand<Dim>) -> Result<()> {
    let [batch, classes, inner] = extents(cx)?;
    let y = half::y(cx, 0)?;
    let d = NllLoss {
        x,
        target: cx.x(1)?,
        weight: half::opt(cx, 2)?,
        y: y.at.clone(),
        batch,
        classes,
        inner,
        ignore: cx.opt_int("ignore_index")?,
        reduction: reduction(cx)?,
    };
    let key = [half::compute_dtype(cx.dtype(0)?), cx.dtype(1)?];
    cx.call(&key, d)?;
    y.finish(cx)
}

fn lower_cross_entropy(cx: &mut LowerCx<'_>) -> Result<()> {
    let [outer, n, inner] = extents(cx)?;
    let dtype = half::compute_dtype(cx.dtype(0)?);
    let x = half::x(cx, 0)?;
    let wanted = half::opt_y(cx, 1)?;
    let log_prob = match &wanted {
        Some(y) => y.at.clone(),
        None => cx.scratch(cx.ty(0)?.numel() * Dim::from(dtype.size_bytes())),
    };
    cx.call(&[dtype], Softmax { x, y: log_prob.clone(), outer, n, inner, log: true })?;
    lower_loss(cx, log_prob)?;
    match wanted {
        Some(y) => y.finish(cx),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn reductions_weights_and_ignored_classes() {
        let x = Tensor::from_f32s(&[2, 3, 1], &[-1., -2., -3., -4., -5., -6.]);
        let target = Tensor::from_i64s(&[2, 1], &[2, 0]);
        let weight = Tensor::from_f32s(&[3], &[0.5, 1.0, 2.0]);
        let node = |reduction: &str| {
            case("", "NegativeLogLikelihoodLoss", 13)
                .input(x.clone())
                .input(target.clone())
                .attr("reduction", Attr::Str(reduction.into()))
        };
        assert_eq!(node("none").run_f32(), [3.0, 4.0]);
        assert_eq!(node("mean").run_f32(), [3.5]);
        assert_eq!(node("sum").input(weight.clone()).run_f32(), [8.0]);
        assert_eq!(node("mean").input(weight).run_f32(), [8.0 / 2.5]);
        assert_eq!(node("mean").attr("ignore_index", Attr::Int(0)).run_f32(), [3.0]);
        let bad = case("", "NegativeLogLikelihoodLoss", 13).input(x.clone()).input(Tensor::from_i64s(&[2, 1], &[3, 0]));
        assert!(bad.run().is_err());
        let ignored = case("", "NegativeLogLikelihoodLoss", 13).input(x).input(Tensor::from_i64s(&[2, 1], &[9, 0]));
        assert_eq!(ignored.attr("ignore_index", Attr::Int(9)).run_f32(), [4.0]);
    }

    #[test]
    fn cross_entropy_gives_its_probabilities() {
        let x = Tensor::from_f32s(&[1, 2], &[0., 3f32.ln()]);
        let node = case("", "SoftmaxCrossEntropyLoss", 13).input(x).input(Tensor::from_i32s(&[1], &[0])).outputs(2);
        let y = node.run().unwrap();
        assert!((y[0].to_f32s().unwrap()[0] - 4f32.ln()).abs() < 1e-6);
        assert!((y[1].to_f32s().unwrap()[1] - 0.75f32.ln()).abs() < 1e-6);
    }
}
