//! EmbedLayerNormalization: the sum of word, position and segment embeddings, normalised.

use super::super::attention::expect_equal;
use super::super::view::{NodeView, Result, wrong};
use super::super::{InferCx, half, tensor};
use super::expect_f32_or_half;
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, EmbedSum, LayerNorm, MaskCount};

/// Operands: ids, segment ids, tables of words, positions, segments, scale, bias, mask, position ids.
const TABLES: [usize; 3] = [2, 3, 4];

fn width(cx: &NodeView<'_>) -> Result<Dim> {
    cx.expect_rank(2, 2)?;
    Ok(cx.shape(2)?[1].clone())
}

pub(super) fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_rank(0, 2)?;
    let n = width(cx)?;
    for i in [0, 1, 7, 8] {
        if cx.has(i) {
            cx.expect_dtype(i, &[Dtype::I32])?;
            cx.expect_rank(i, 2)?;
        }
    }
    for i in TABLES {
        if i != 4 || cx.has(4) {
            expect_f32_or_half(cx, i)?;
            cx.expect_rank(i, 2)?;
            expect_equal("widths of the tables", &cx.shape(i)?[1], &n).map_err(|e| e.at_input(i))?;
        }
    }
    for i in 5..7 {
        half::expect_vector(cx, i, &n)?;
    }
    if cx.has(1) && !cx.has(4) {
        return Err(wrong("segment ids without a table").at_input(1));
    }
    let [batch, rows] = cx.shape(0)? else { return Err(wrong("rank 2")) };
    let (batch, rows) = (batch.clone(), rows.clone());
    let y = tensor(cx.dtype(2)?, vec![batch.clone(), rows, n]);
    cx.set(0, y.clone());
    cx.set(1, tensor(Dtype::I32, vec![batch]));
    cx.set(2, y);
    Ok(())
}

pub(super) fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.ty(0)?.numel() * width(cx)? * Dim::Const(10))
}

pub(super) fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let n = width(cx)?;
    let [batch, rows] = cx.shape(0)? else { return Err(wrong("rank 2")) };
    let all = batch.clone() * rows.clone();
    let y = half::y(cx, 0)?;
    let sum = half::opt_y(cx, 2)?;
    let at = match &sum {
        Some(s) => s.at.clone(),
        None => cx.scratch(all.clone() * n.clone() * Dim::Const(4)),
    };
    let d = EmbedSum {
        ids: cx.x(0)?,
        segment_ids: cx.opt(1)?,
        position_ids: cx.opt(8)?,
        words: half::x(cx, 2)?,
        positions: half::x(cx, 3)?,
        segments: half::opt(cx, 4)?,
        y: at.clone(),
        batch: batch.clone(),
        rows: rows.clone(),
        n: n.clone(),
    };
    cx.call(&[Dtype::I32, Dtype::F32], d)?;
    let d = LayerNorm {
        x: at,
        skip: None,
        skip_bias: None,
        scale: Some(half::x(cx, 5)?),
        bias: Some(half::x(cx, 6)?),
        y: y.at.clone(),
        sum: None,
        mean: None,
        inv_std_dev: None,
        rows: all,
        n,
        skip_rows: Dim::Const(1),
        scale_step: Dim::Const(0),
        bias_step: Dim::Const(0),
        eps: cx.float("epsilon", 1e-12)?,
        rms: false,
    };
    cx.call(&[Dtype::F32, Dtype::F32], d)?;
    y.finish(cx)?;
    if cx.wants(1) {
        let count = cx.y(1)?;
        // Without a mask the count is zero: of no elements.
        let mask = match cx.opt(7)? {
            Some(mask) => mask,
            None => cx.weights(Vec::new()),
        };
        cx.call(&[Dtype::I32], MaskCount { x: mask, y: count })?;
    }
    match sum {
        Some(sum) => sum.finish(cx),
        None => Ok(()),
    }
}
