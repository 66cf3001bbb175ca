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

/// A mask operand: `[batch]` lengths, `[batch, keys]`, `[batch, queries, keys]` or `[batch, 1, queries, keys]` flags.
fn key_mask(cx: &mut LowerCx<'_>, i: usize, batch: &Dim) -> Result<KeyMask> {
    let Some(ty) = cx.opt_ty(i)? else { return Ok(KeyMask::None) };
    cx.expect_dtype(i, &[Dtype::I32])?;
    let x = cx.x(i)?;
    if ty.rank() == 1 {
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
