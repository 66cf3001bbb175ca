//! CausalConvWithState: X `[N, C, L]`, weights `[C, 1, K]`, bias `[C]`, past state `[N, C, K-1]`.
//!
//! <https://onnx.ai/onnx/operators/onnx__CausalConvWithState.html>

use super::attention::expect_equal;
use super::unary::{Function, apply};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, half, tensor};
use crate::ir::{Dim, TensorType};
use crate::lower::LowerCx;
use kiln_kernels::{CausalConv, Dtype, MathOp};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "CausalConvWithState", &[27], infer, lower).with_flops(flops)];

/// Whether SiLU follows.
fn has_silu(cx: &NodeView<'_>) -> Result<bool> {
    match cx.text("activation", "none")? {
        "none" => Ok(false),
        "silu" | "swish" => Ok(true),
        other => Err(wrong(format!("expected none, silu or swish, found {other:?}")).at_attribute("activation")),
    }
}

/// The state's type.
fn state(cx: &NodeView<'_>) -> Result<TensorType> {
    let (x, w) = (cx.ty(0)?, cx.ty(1)?);
    let taps = w.shape[2].clone();
    if taps.lower() < 1 {
        return Err(wrong(format!("no taps in {w}")).at_input(1));
    }
    Ok(tensor(x.dtype, vec![x.shape[0].clone(), x.shape[1].clone(), taps - Dim::Const(1)]))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::F32, Dtype::F16, Dtype::Bf16])?;
    has_silu(cx)?;
    for (i, rank) in [(0, 3), (1, 3), (2, 1), (3, 3)] {
        if i < 2 || cx.has(i) {
            cx.expect_rank(i, rank)?;
            cx.expect_same_dtype(i, 0)?;
        }
    }
    let channels = cx.shape(0)?[1].clone();
    let w = cx.shape(1)?;
    expect_equal("weights and channels", &w[0], &channels).map_err(|e| e.at_input(1))?;
    expect_equal("the weights' middle extent and 1", &w[1], &Dim::Const(1)).map_err(|e| e.at_input(1))?;
    if cx.has(2) {
        expect_equal("bias and channels", &cx.shape(2)?[0], &channels).map_err(|e| e.at_input(2))?;
    }
    let state = state(cx)?;
    if let Some(past) = cx.opt_ty(3)? {
        for (a, b) in past.shape.iter().zip(&state.shape) {
            expect_equal("past and present state", a, b).map_err(|e| e.at_input(3))?;
        }
    }
    cx.same_as_input()?;
    cx.set(1, state);
    Ok(())
}

fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.out_ty(0)?.numel() * cx.shape(1)?[2].clone() * Dim::Const(2))
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let (x_ty, state) = (view.ty(0)?, state(&view)?);
    let y = half::y(cx, 0)?;
    let present = match half::opt_y(cx, 1)? {
        Some(present) => present,
        None => half::Output::exact(cx.scratch(state.numel() * Dim::Const(4))),
    };
    let d = CausalConv {
        x: half::x(cx, 0)?,
        w: half::x(cx, 1)?,
        bias: half::opt(cx, 2)?,
        past: half::opt(cx, 3)?,
        present: present.at.clone(),
        y: y.at.clone(),
        batch: x_ty.shape[0].clone(),
        channels: x_ty.shape[1].clone(),
        length: x_ty.shape[2].clone(),
        taps: view.shape(1)?[2].clone(),
    };
    cx.call(&[Dtype::F32], d)?;
    if has_silu(&view)? {
        apply(cx, Function::Math(MathOp::Swish), Dtype::F32, 1.0, 0.0, y.at.clone(), y.at.clone())?;
    }
    present.finish(cx)?;
    y.finish(cx)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn ramp(dims: &[usize], step: usize) -> Tensor {
        let n = dims.iter().product::<usize>();
        Tensor::from_f32s(dims, &(0..n).map(|i| (i * step % 7) as f32 - 3.0).collect::<Vec<_>>())
    }

    /// The definition: past and x joined, and one product per tap.
    fn want(x: &[f32], w: &[f32], past: &[f32], [rows, channels, length, taps]: [usize; 4]) -> (Vec<f32>, Vec<f32>) {
        let (mut y, mut present) = (Vec::new(), Vec::new());
        for r in 0..rows {
            let n = taps - 1;
            let all = [&past[r * n..][..n], &x[r * length..][..length]].concat();
            for t in 0..length {
                y.push((0..taps).map(|j| w[r % channels * taps + j] * all[t + j]).sum::<f32>() + 0.5);
            }
            present.extend(&all[length..]);
        }
        (y, present)
    }

    #[test]
    fn sees_only_the_past() {
        for (length, taps) in [(5, 3), (1, 4), (2, 4), (3, 1), (4, 4)] {
            let (x, w, past) = (ramp(&[2, 2, length], 3), ramp(&[2, 1, taps], 5), ramp(&[2, 2, taps - 1], 4));
            let node = |past: bool| {
                let c = case("", "CausalConvWithState", 27).input(x.clone()).input(w.clone()).outputs(2);
                let c = c.input(Tensor::from_f32s(&[2], &[0.5, 0.5]));
                if past { c.input(ramp(&[2, 2, taps - 1], 4)) } else { c }
            };
            for with_past in [true, false] {
                let old = past.to_f32s().unwrap();
                let old = if with_past { old } else { vec![0.0; old.len()] };
                let want = want(&x.to_f32s().unwrap(), &w.to_f32s().unwrap(), &old, [4, 2, length, taps]);
                let y = node(with_past).run().unwrap();
                assert_eq!((y[0].to_f32s().unwrap(), y[1].to_f32s().unwrap()), want, "{length} {taps} {with_past}");
            }
        }
    }

    #[test]
    fn activations_and_refusals() {
        let node = |activation: &str| {
            let c = case("", "CausalConvWithState", 27).input(ramp(&[1, 1, 1], 1)).input(ramp(&[1, 1, 1], 1));
            c.attr("activation", Attr::Str(activation.into()))
        };
        let y = node("silu").run_f32();
        assert!((y[0] - 9.0 / (1.0 + (-9.0f32).exp())).abs() < 1e-6);
        assert!(node("relu").infer().is_err());
        let c = case("", "CausalConvWithState", 27).input(ramp(&[1, 2, 3], 1));
        assert!(c.input(ramp(&[1, 1, 2], 1)).infer().is_err());
    }
}
