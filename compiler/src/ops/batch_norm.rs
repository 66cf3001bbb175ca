//! BatchNormalization, with given statistics and with the batch's own.
//!
//! <https://onnx.ai/onnx/operators/onnx__BatchNormalization.html>

use super::view::{NodeView, Result, wrong};
use super::{InferCx, LayoutRule, OpDef, half};
use crate::ir::{Dim, Layout};
use crate::lower::LowerCx;
use kiln_kernels::{BatchNorm, BatchNormBlocked, BatchStats, Dtype};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "BatchNormalization", &[1, 6, 7, 9, 14, 15], infer, lower)
    .with_flops(flops)
    .with_layout(LayoutRule::Channelwise)];

/// Scale and shift.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.ty(0)?.numel() * Dim::Const(2))
}

/// Whether statistics are taken from the batch.
fn is_training(cx: &NodeView<'_>) -> Result<bool> {
    Ok(match cx.version() {
        ..7 => cx.int("is_test", 0)? == 0 && (1..cx.n_outputs()).any(|i| cx.wants(i)),
        7..14 => (1..cx.n_outputs()).any(|i| cx.wants(i)),
        _ => cx.int("training_mode", 0)? != 0,
    })
}

/// `[batch, channels, inner]`; where the statistics are per element (`spatial` = 0), every element is a channel.
fn batch_lines(cx: &NodeView<'_>) -> Result<[Dim; 3]> {
    let shape = cx.shape(0)?;
    let product = |s: &[Dim]| s.iter().cloned().product::<Dim>();
    Ok(match shape {
        [] => return Err(wrong("a scalar has no channels").at_input(0)),
        [batch] => [batch.clone(), Dim::Const(1), Dim::Const(1)],
        _ if cx.version() < 9 && cx.int("spatial", 1)? == 0 => [shape[0].clone(), product(&shape[1..]), Dim::Const(1)],
        _ => [shape[0].clone(), shape[1].clone(), product(&shape[2..])],
    })
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    let [_, channels, _] = batch_lines(cx)?;
    for i in 1..5 {
        half::expect_float(cx, i)?;
        let ty = cx.ty(i)?;
        if ty.numel() != channels && ty.numel().as_const().is_some() && channels.as_const().is_some() {
            return Err(wrong(format!("expected {channels} elements, one per channel, found {ty}")).at_input(i));
        }
    }
    cx.same_as_input()?;
    for i in 1..cx.n_outputs() {
        let stats = cx.ty(if i % 2 == 1 { 3 } else { 4 })?.clone();
        cx.set(i, stats);
    }
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let [batch, channels, inner] = batch_lines(cx)?;
    // The blocked layout is f32's alone.
    let blocked = cx.layout(0)? == Layout::Blocked16;
    let dtype = if blocked { Dtype::F32 } else { half::joint_dtype(cx, &[0, 1, 2, 3, 4])? };
    let eps = cx.float("epsilon", 1e-5)?;
    let x = half::x_as(cx, 0, dtype)?;
    let (scale, bias) = (half::x_as(cx, 1, dtype)?, half::x_as(cx, 2, dtype)?);
    let (mut mean, mut var) = (half::x_as(cx, 3, dtype)?, half::x_as(cx, 4, dtype)?);
    let y = half::y_as(cx, 0, dtype)?;
    if blocked {
        let d = BatchNormBlocked { x, scale, bias, mean, var, y: y.at.clone(), batch, channels, inner, eps };
        return cx.call(&[dtype], d);
    }
    if is_training(cx)? {
        let momentum = cx.float("momentum", 0.9)?;
        let bytes = channels.clone() * Dim::from(dtype.size_bytes());
        let (batch_mean, batch_var) = (cx.scratch(bytes.clone()), cx.scratch(bytes));
        let wanted = |cx: &mut LowerCx<'_>, i: usize| cx.wants(i).then(|| half::y_as(cx, i, dtype)).transpose();
        let (running_mean, running_var) = (wanted(cx, 1)?, wanted(cx, 2)?);
        // Before opset 14 results 3 and 4 are the saved statistics of this batch.
        let saved = (wanted(cx, 3)?, wanted(cx, 4)?);
        let d = BatchStats {
            x: x.clone(),
            old_mean: mean,
            old_var: var,
            mean: saved.0.as_ref().map_or(batch_mean, |o| o.at.clone()),
            var: saved.1.as_ref().map_or(batch_var, |o| o.at.clone()),
            running_mean: running_mean.as_ref().map(|o| o.at.clone()),
            running_var: running_var.as_ref().map(|o| o.at.clone()),
            batch: batch.clone(),
            channels: channels.clone(),
            inner: inner.clone(),
            momentum,
        };
        (mean, var) = (d.mean.clone(), d.var.clone());
        cx.call(&[dtype], d)?;
        for output in [running_mean, running_var, saved.0, saved.1].into_iter().flatten() {
            output.finish(cx)?;
        }
    }
    let d = BatchNorm { x, scale, bias, mean, var, y: y.at.clone(), batch, channels, inner, eps };
    cx.call(&[dtype], d)?;
    y.finish(cx)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::{Case, case};

    fn vector(v: &[f32]) -> Tensor {
        Tensor::from_f32s(&[v.len()], v)
    }

    fn node(version: i64, dims: &[usize]) -> Case {
        let n: usize = dims.iter().product();
        let x = Tensor::from_f32s(dims, &(0..n).map(|i| i as f32).collect::<Vec<_>>());
        case("", "BatchNormalization", version)
            .input(x)
            .input(vector(&[1.0, 2.0]))
            .input(vector(&[0.0, 1.0]))
            .input(vector(&[0.5, 3.0]))
            .input(vector(&[4.0, 0.25]))
            .attr("epsilon", Attr::Float(0.0))
    }

    #[test]
    fn given_statistics() {
        for (version, dims) in [(7, vec![1, 2, 3]), (9, vec![1, 2, 3]), (15, vec![1, 2, 1, 3])] {
            assert_eq!(node(version, &dims).run_f32(), [-0.25, 0.25, 0.75, 1.0, 5.0, 9.0]);
        }
        assert_eq!(node(15, &[2, 2]).run_f32(), [-0.25, -7.0, 0.75, 1.0]);
    }

    #[test]
    fn the_batch_own_statistics() {
        let y = node(14, &[2, 2, 1]).attr("training_mode", Attr::Int(1)).outputs(3).run().unwrap();
        // Channels hold 0, 2 and 1, 3: means 1 and 2, variances 1.
        assert_eq!(y[0].to_f32s().unwrap(), [-1.0, -1.0, 1.0, 3.0]);
        for (got, want) in [(&y[1], [0.55, 2.9]), (&y[2], [3.7, 0.325])] {
            assert!(got.to_f32s().unwrap().iter().zip(want).all(|(g, w): (&f32, f32)| (g - w).abs() < 1e-6));
        }
    }

    #[test]
    fn refuses_other_channel_counts() {
        assert!(node(9, &[1, 3, 2]).infer().is_err());
    }
}
