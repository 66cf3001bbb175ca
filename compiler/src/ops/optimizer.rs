//! Adagrad, Adam, Momentum: one step of an optimiser for any number of tensors.
//!
//! <https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Adam.html> and neighbours

use super::view::{NodeView, Result, may_equal, wrong};
use super::{InferCx, OpDef};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Adagrad, Adam, Dtype, Momentum};

const TRAINING: &str = "ai.onnx.preview.training";

pub(super) static OPS: &[OpDef] = &[
    OpDef::new(TRAINING, "Adagrad", &[1], infer, lower).with_flops(flops),
    OpDef::new(TRAINING, "Adam", &[1], infer, lower).with_flops(flops),
    OpDef::new(TRAINING, "Momentum", &[1], infer, lower).with_flops(flops),
];

/// Operands per tensor: itself, its gradient, its states.
fn per_tensor(cx: &NodeView<'_>) -> usize {
    if cx.node.op == "Adam" { 4 } else { 3 }
}

fn n_tensors(cx: &NodeView<'_>) -> Result<usize> {
    let (n, k) = (cx.n_inputs().saturating_sub(2), per_tensor(cx));
    if n == 0 || n % k != 0 {
        return Err(wrong(format!("{} operands are not a rate, a count and {k} for each tensor", cx.n_inputs())));
    }
    Ok(n / k)
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let floats = [Dtype::F32, Dtype::F64];
    cx.expect_dtype(0, &floats)?;
    cx.expect_dtype(1, &[Dtype::I64])?;
    for i in 0..2 {
        if cx.ty(i)?.numel().as_const().is_some_and(|n| n != 1) {
            return Err(wrong(format!("expected a scalar, found {}", cx.ty(i)?)).at_input(i));
        }
    }
    let n = n_tensors(cx)?;
    for i in 0..n {
        let x = cx.ty(2 + i)?.clone();
        cx.expect_dtype(2 + i, &floats)?;
        for j in 1..per_tensor(cx) {
            let other = cx.ty(2 + j * n + i)?;
            if other.dtype != x.dtype || !may_equal(&other.shape, &x.shape) {
                return Err(wrong(format!("expected {x}, found {other}")).at_input(2 + j * n + i));
            }
        }
        for j in 0..per_tensor(cx) - 1 {
            cx.set(j * n + i, x.clone());
        }
    }
    if cx.node.op == "Momentum" {
        nesterov(cx)?;
    }
    Ok(())
}

fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let n = n_tensors(cx)?;
    Ok((0..n).map(|i| Ok(cx.ty(2 + i)?.numel())).sum::<Result<Dim>>()? * Dim::Const(10))
}

fn nesterov(cx: &NodeView<'_>) -> Result<bool> {
    match cx.text("mode", "standard")? {
        "nesterov" => Ok(true),
        "standard" => Ok(false),
        other => Err(wrong(format!("unknown mode \"{other}\"")).at_attribute("mode")),
    }
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let n = n_tensors(cx)?;
    let (rate, t) = (cx.x(0)?, cx.x(1)?);
    let norm = cx.float("norm_coefficient", 0.0)?;
    for i in 0..n {
        let ty = cx.ty(2 + i)?;
        let key = [cx.dtype(0)?, Dtype::I64, ty.dtype];
        for j in 1..per_tensor(cx) {
            let other = cx.shape(2 + j * n + i)?;
            cx.expect_equal(other.iter().zip(&ty.shape))?;
        }
        let (x, g) = (cx.x(2 + i)?, cx.x(2 + n + i)?);
        let state = cx.x(2 + 2 * n + i)?;
        let (x_new, state_new) = (cx.y_or(i, ty)?, cx.y_or(n + i, ty)?);
        let (rate, t) = (rate.clone(), t.clone());
        match cx.node.op.as_str() {
            "Adagrad" => {
                let epsilon = cx.float("epsilon", 1e-6)?;
                let decay = cx.float("decay_factor", 0.0)?;
                cx.call(&key, Adagrad { rate, t, x, g, h: state, x_new, h_new: state_new, norm, epsilon, decay })?;
            }
            "Adam" => {
                let d = Adam {
                    rate,
                    t,
                    x,
                    g,
                    v: state,
                    h: cx.x(2 + 3 * n + i)?,
                    x_new,
                    v_new: state_new,
                    h_new: cx.y_or(2 * n + i, ty)?,
                    norm,
                    norm_post: cx.float("norm_coefficient_post", 0.0)?,
                    alpha: cx.float("alpha", 0.9)?,
                    beta: cx.float("beta", 0.999)?,
                    epsilon: cx.float("epsilon", 1e-6)?,
                };
                cx.call(&key, d)?;
            }
            _ => {
                let need = |name: &str| cx.opt_float(name)?.ok_or_else(|| wrong("is missing").at_attribute(name));
                let (alpha, beta) = (need("alpha")?, need("beta")?);
                let nesterov = nesterov(cx)?;
                cx.call(
                    &key,
                    Momentum { rate, t, x, g, v: state, x_new, v_new: state_new, norm, alpha, beta, nesterov },
                )?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn momentum_of_two_tensors() {
        let v = |x: f32| Tensor::from_f32s(&[1], &[x]);
        let node = |mode: &str| {
            let mut c = case("ai.onnx.preview.training", "Momentum", 1)
                .input(Tensor::from_f32s(&[], &[0.1]))
                .input(Tensor::from_i64s(&[], &[1]));
            for x in [1., 2., 10., 20., 3., 4.] {
                c = c.input(v(x));
            }
            c = c.attr("alpha", Attr::Float(0.5)).attr("beta", Attr::Float(1.0)).attr("mode", Attr::Str(mode.into()));
            let y = c.outputs(4).run().unwrap();
            y.iter().map(|t| t.to_f32s().unwrap()[0]).collect::<Vec<_>>()
        };
        let near = |a: Vec<f32>, b: &[f32]| assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?} {b:?}");
        near(node("standard"), &[-0.15, -0.2, 11.5, 22.0]);
        near(node("nesterov"), &[-0.575]);
    }
}
