//! `com.microsoft`: MultiHeadAttention, Attention, GroupQueryAttention, EmbedLayerNormalization.
//!
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>

mod embed;
mod fused;
mod group_query;
mod multi_head;

use super::attention::{Bias, bias_of, expect_equal};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, MaskBias, Operand};

const MS: &str = "com.microsoft";

pub(super) static OPS: &[OpDef] = &[
    OpDef::new(MS, "MultiHeadAttention", &[1], multi_head::infer, multi_head::lower).with_flops(flops),
    OpDef::new(MS, "Attention", &[1], fused::infer, fused::lower).with_flops(flops),
    OpDef::new(MS, "GroupQueryAttention", &[1], group_query::infer, group_query::lower).with_flops(flops),
    OpDef::new(MS, "EmbedLayerNormalization", &[1], embed::infer, embed::lower).with_flops(embed::flops),
];

/// By the result and the keys of the first present, where there is one: products of every query with every key.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let y = cx.out_ty(0)?;
    let keys = match cx.node.output(1).and_then(|v| cx.graph.tensor_type(v).ok()) {
        Some(t) if t.rank() >= 2 => t.shape[t.rank() - 2].clone(),
        _ => y.shape.get(1).cloned().unwrap_or(Dim::Const(1)),
    };
    Ok(y.numel() * keys * Dim::Const(4))
}

fn num_heads(cx: &NodeView<'_>, name: &str) -> Result<i64> {
    match cx.opt_int(name)? {
        Some(n) if n > 0 => Ok(n),
        Some(n) => Err(wrong(format!("{n} heads")).at_attribute(name)),
        None => Err(wrong("is missing").at_attribute(name)),
    }
}

fn expect_f32_or_half(cx: &NodeView<'_>, i: usize) -> Result<()> {
    cx.expect_dtype(i, &[Dtype::F32, Dtype::F16, Dtype::Bf16])
}

/// What a mask of integers says.
enum KeyMask {
    None,
    /// Valid keys of each batch entry.
    Lens(Operand<Dim>),
    /// 0 or the filter value, added to scores.
    Bias(Bias),
}

/// A mask operand: `[batch]` lengths, `[3 batch + 2]` with lengths first, or flags: `[batch, keys]`,
/// `[batch, queries, keys]`, `[batch, 1, queries, keys]`.
fn key_mask(cx: &mut LowerCx<'_>, i: usize, batch: &Dim) -> Result<KeyMask> {
    let Some(ty) = cx.opt_ty(i)? else { return Ok(KeyMask::None) };
    cx.expect_dtype(i, &[Dtype::I32])?;
    let x = cx.x(i)?;
    if ty.rank() == 1 {
        // Lengths, and behind them where queries and keys begin if all were packed: only the lengths matter here.
        if ty.shape[0] == batch.clone() * Dim::Const(3) + Dim::Const(2) {
            return Ok(KeyMask::Lens(Operand::at(x.mem, x.off, batch.clone() * Dim::Const(4))));
        }
        expect_equal("lengths and batch", &ty.shape[0], batch)
            .map_err(|_| wrong(format!("a mask {ty} of ends and starts is not supported")).at_input(i))?;
        return Ok(KeyMask::Lens(x));
    }
    let keys = ty.shape[ty.rank() - 1].clone();
    let rows = match ty.rank() {
        2 => Dim::Const(1),
        3 => ty.shape[1].clone(),
        4 => ty.shape[2].clone(),
        _ => return Err(wrong(format!("a mask {ty}")).at_input(i)),
    };
    let masked = cx.float("mask_filter_value", -10000.0)?;
    let y = cx.scratch(ty.numel() * Dim::Const(4));
    cx.call(&[Dtype::I32, Dtype::F32], MaskBias { x, y: y.clone(), masked })?;
    let zero = || Dim::Const(0);
    let row_stride = if ty.rank() == 2 { zero() } else { keys.clone() };
    let batch_stride = if ty.shape[0].is(1) { zero() } else { rows * keys.clone() };
    Ok(KeyMask::Bias(Bias { at: y, strides: [batch_stride, zero(), row_stride], keys }))
}

/// The additive bias of an operand and a key mask; both together are not supported.
fn join_bias(cx: &mut LowerCx<'_>, i: usize, mask: KeyMask) -> Result<(Option<Bias>, Option<Operand<Dim>>)> {
    let bias = bias_of(cx, i, Dtype::F32, f32::NEG_INFINITY)?;
    match (bias, mask) {
        (bias, KeyMask::None) => Ok((bias, None)),
        (bias, KeyMask::Lens(lens)) => Ok((bias, Some(lens))),
        (None, KeyMask::Bias(bias)) => Ok((Some(bias), None)),
        (Some(_), KeyMask::Bias(_)) => Err(wrong("a mask of flags and an attention bias together are not supported")),
    }
}

/// Results `first` and `first + 1`: the keys and values with their past.
fn set_presents(cx: &mut InferCx<'_>, first: usize, dtype: Dtype, k: Vec<Dim>, v: Vec<Dim>) {
    cx.set(first, super::tensor(dtype, k));
    cx.set(first + 1, super::tensor(dtype, v));
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::{Case, case};

    fn ramp(dims: &[usize], step: usize) -> Tensor {
        let n: usize = dims.iter().product();
        Tensor::from_f32s(dims, &(0..n).map(|i| ((i * step) % 29) as f32 * 0.1 - 1.4).collect::<Vec<_>>())
    }

    /// ONNX's own operator over heads that lie together.
    fn onnx(q: &Tensor, k: &Tensor, v: &Tensor, heads: [i64; 2]) -> Case {
        let c = case("", "Attention", 23).input(q.clone()).input(k.clone()).input(v.clone());
        c.attr("q_num_heads", Attr::Int(heads[0])).attr("kv_num_heads", Attr::Int(heads[1]))
    }

    fn near(a: &[f32], b: &[f32]) {
        assert_eq!(a.len(), b.len());
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5 * b.abs().max(1.0)), "{a:?} {b:?}");
    }

    #[test]
    fn multi_head_lengths_and_packed_operands() {
        let (q, k, v) = (ramp(&[2, 5, 8], 7), ramp(&[2, 3, 8], 5), ramp(&[2, 3, 8], 11));
        let node = |k: &Tensor, v: &Tensor| {
            let c = case("com.microsoft", "MultiHeadAttention", 1).input(q.clone()).input(k.clone()).input(v.clone());
            c.attr("num_heads", Attr::Int(2))
        };
        near(&node(&k, &v).run_f32(), &onnx(&q, &k, &v, [2, 2]).run_f32());
        // One valid key: its value is the result.
        let y = node(&k, &v).absent().input(Tensor::from_i32s(&[2], &[1, 1])).run_f32();
        near(&y[..8], &v.to_f32s().unwrap()[..8]);
        // K and V side by side in every head.
        let (kv, vv) = (k.to_f32s().unwrap(), v.to_f32s().unwrap());
        let packed: Vec<f32> = (0..2 * 3 * 2).flat_map(|h| [&kv[h * 4..][..4], &vv[h * 4..][..4]].concat()).collect();
        let c = case("com.microsoft", "MultiHeadAttention", 1).input(q.clone());
        let c = c.input(Tensor::from_f32s(&[2, 3, 2, 2, 4], &packed)).attr("num_heads", Attr::Int(2));
        near(&c.run_f32(), &node(&k, &v).run_f32());
    }

    #[test]
    fn lengths_with_offsets_behind_them_are_lengths() {
        let x = ramp(&[2, 3, 4], 7);
        let node = |mask: &[i32]| {
            let c = case("com.microsoft", "Attention", 1).input(x.clone()).constant(ramp(&[4, 12], 5));
            let c = c.constant(ramp(&[12], 3)).input(Tensor::from_i32s(&[mask.len()], mask));
            c.attr("num_heads", Attr::Int(2)).run_f32()
        };
        near(&node(&[2, 3, 0, 2, 5, 0, 2, 5]), &node(&[2, 3]));
        assert!(node(&[2, 3]).iter().zip(&node(&[3, 3])).any(|(a, b)| (a - b).abs() > 1e-3));
    }

    #[test]
    fn fused_projection() {
        let x = ramp(&[1, 3, 4], 7);
        // Q, K and V all are the input.
        let mut w = vec![0.0; 4 * 12];
        (0..4).for_each(|i| (0..3).for_each(|p| w[i * 12 + p * 4 + i] = 1.0));
        let node = |constant: bool| {
            let c = case("com.microsoft", "Attention", 1).input(x.clone()).attr("num_heads", Attr::Int(2));
            let w = Tensor::from_f32s(&[4, 12], &w);
            let c = if constant { c.constant(w) } else { c.input(w) };
            c.input(Tensor::from_f32s(&[12], &[0.0; 12])).run_f32()
        };
        let want = onnx(&x, &x, &x, [2, 2]).run_f32();
        near(&node(true), &want);
        near(&node(false), &want);
    }

    #[test]
    fn group_query_appends_to_its_cache() {
        let (q, k, v) = (ramp(&[1, 2, 8], 7), ramp(&[1, 2, 4], 5), ramp(&[1, 2, 4], 11));
        let (pk, pv) = (ramp(&[1, 1, 3, 4], 3), ramp(&[1, 1, 3, 4], 13));
        let node = |past: &[usize], total: i32| {
            let grow = |t: &Tensor| {
                let mut values = t.to_f32s().unwrap();
                values.resize(past.iter().product(), 9.0);
                Tensor::from_f32s(past, &values)
            };
            let c = case("com.microsoft", "GroupQueryAttention", 1).input(q.clone()).input(k.clone()).input(v.clone());
            c.input(grow(&pk))
                .input(grow(&pv))
                .input(Tensor::from_i32s(&[1], &[total - 1]))
                .constant(Tensor::from_i32s(&[1], &[total]))
                .attr("num_heads", Attr::Int(2))
                .attr("kv_num_heads", Attr::Int(1))
                .outputs(3)
                .run()
        };
        let want = onnx(&q, &k, &v, [2, 1]).absent().input(pk.clone()).input(pv.clone());
        let want = want.attr("is_causal", Attr::Int(1)).run_f32();
        // The past as it is, and in a longer buffer.
        for rows in [3, 7] {
            let y = node(&[1, 1, rows, 4], 5).unwrap();
            near(&y[0].to_f32s().unwrap(), &want);
            assert_eq!(y[1].dims(), [1, 1, rows.max(5), 4]);
            let keys = y[1].to_f32s().unwrap();
            assert_eq!(keys[..12], pk.to_f32s().unwrap()[..]);
            assert_eq!(keys[12..20], k.to_f32s().unwrap()[..]);
        }
        // Fewer rows in all than new ones.
        assert!(node(&[1, 1, 3, 4], 1).is_err());
    }

    #[test]
    fn embeddings_are_summed_and_normalised() {
        let c = case("com.microsoft", "EmbedLayerNormalization", 1)
            .input(Tensor::from_i32s(&[1, 2], &[1, 0]))
            .absent()
            .input(Tensor::from_f32s(&[2, 2], &[1., 2., 3., 4.]))
            .input(Tensor::from_f32s(&[2, 2], &[0., 1., 0., 5.]))
            .absent()
            .input(Tensor::from_f32s(&[2], &[1., 1.]))
            .input(Tensor::from_f32s(&[2], &[0., 0.]))
            .input(Tensor::from_i32s(&[1, 2], &[1, 0]))
            .outputs(3);
        let y = c.run().unwrap();
        near(&y[0].to_f32s().unwrap(), &[-1., 1., -1., 1.]);
        assert_eq!(y[1].to_i32s().unwrap(), [1]);
        assert_eq!(y[2].to_f32s().unwrap(), [3., 5., 1., 7.]);
    }
}
