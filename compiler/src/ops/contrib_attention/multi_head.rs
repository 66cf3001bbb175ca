//! MultiHeadAttention.
//!
//! Q `[batch, rows, heads · size]`, or Q, K and V together `[batch, rows, heads, 3, size]`; K alike, K and V together
//! `[batch, rows, heads, 2, size]`, or heads apart.

use super::super::attention::{Heads, attend, expect_equal, scale_of, with_past};
use super::super::view::{NodeView, Result, wrong};
use super::super::{InferCx, half, tensor};
use super::{expect_f32_or_half, num_heads, seen, set_presents};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Attention, BiasRows, Dtype, Operand, ScoreStage};

/// A part of an operand: which one, the first element, how its heads lie.
struct Part {
    input: usize,
    start: Dim,
    heads: Heads,
}

struct Shapes {
    q: Part,
    k: Part,
    v: Part,
    past: Option<Dim>,
}

impl Shapes {
    fn total(&self) -> Dim {
        self.past.clone().map_or_else(|| self.k.heads.rows.clone(), |p| p + self.k.heads.rows.clone())
    }

    fn y(&self) -> Heads {
        let q = &self.q.heads;
        Heads::together(q.batch.clone(), q.rows.clone(), q.heads.clone(), self.v.heads.size.clone())
    }
}

/// One of `n` parts that lie side by side in every head.
fn packed(cx: &NodeView<'_>, input: usize, which: i64, n: i64) -> Result<Part> {
    let ty = cx.ty(input)?;
    let [batch, rows, heads, parts, size] = &ty.shape[..] else {
        return Err(wrong(format!("expected rank 5, found {ty}")).at_input(input));
    };
    expect_equal("parts", parts, &Dim::Const(n)).map_err(|e| e.at_input(input))?;
    let head_stride = size.clone() * Dim::Const(n);
    let row_stride = heads.clone() * head_stride.clone();
    let heads = Heads {
        batch: batch.clone(),
        heads: heads.clone(),
        rows: rows.clone(),
        size: size.clone(),
        batch_stride: rows.clone() * row_stride.clone(),
        head_stride,
        row_stride,
    };
    Ok(Part { input, start: Dim::Const(which) * size.clone(), heads })
}

fn shapes(cx: &NodeView<'_>) -> Result<Shapes> {
    let n = num_heads(cx, "num_heads")?;
    expect_f32_or_half(cx, 0)?;
    let plain = |i: usize| {
        let heads = Heads::of(cx.ty(i)?, Some(n)).map_err(|e| e.at_input(i))?;
        Ok::<_, crate::error::CompileError>(Part { input: i, start: Dim::Const(0), heads })
    };
    let (q, k, v) = if !cx.has(1) {
        (packed(cx, 0, 0, 3)?, packed(cx, 0, 1, 3)?, packed(cx, 0, 2, 3)?)
    } else if !cx.has(2) {
        (plain(0)?, packed(cx, 1, 0, 2)?, packed(cx, 1, 1, 2)?)
    } else {
        (plain(0)?, plain(1)?, plain(2)?)
    };
    for i in 1..3 {
        if cx.has(i) {
            cx.expect_same_dtype(i, 0)?;
        }
    }
    expect_equal("batch of Q and K", &q.heads.batch, &k.heads.batch)?;
    expect_equal("head size of Q and K", &q.heads.size, &k.heads.size)?;
    expect_equal("rows of K and V", &k.heads.rows, &v.heads.rows)?;
    expect_equal("heads", &q.heads.heads, &k.heads.heads)?;
    expect_equal("heads", &k.heads.heads, &v.heads.heads)?;
    if cx.has(3) && !(cx.has(1) && cx.has(2)) {
        return Err(wrong("a bias for packed operands is not supported").at_input(3));
    }
    let past = match cx.opt_ty(6)? {
        None => None,
        Some(past) => {
            cx.expect_rank(6, 4)?;
            cx.expect_rank(7, 4)?;
            Some(past.shape[2].clone())
        }
    };
    for i in 8..10 {
        if cx.has(i) {
            return Err(wrong("a shared buffer of past and present is not supported").at_input(i));
        }
    }
    Ok(Shapes { q, k, v, past })
}

pub(super) fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let s = shapes(cx)?;
    let dtype = cx.dtype(0)?;
    let (q, v) = (&s.q.heads, &s.v.heads);
    cx.set(0, tensor(dtype, vec![q.batch.clone(), q.rows.clone(), q.heads.clone() * v.size.clone()]));
    let present = |size: &Dim| vec![q.batch.clone(), q.heads.clone(), s.total(), size.clone()];
    set_presents(cx, 1, dtype, present(&q.size), present(&v.size));
    cx.set(3, tensor(dtype, vec![q.batch.clone(), q.heads.clone(), q.rows.clone(), s.total()]));
    Ok(())
}

/// A part's memory, with its share of the bias added; `bias_start` counts elements of the bias.
fn operand(cx: &mut LowerCx<'_>, part: &Part, bias_start: Option<Dim>) -> Result<Operand<Dim>> {
    let all = half::x(cx, part.input)?;
    let Some(bias_start) = bias_start else { return Ok(slice(&all, &part.start, None)) };
    let h = &part.heads;
    let n = h.heads.clone() * h.size.clone();
    if cx.rank(part.input)? == 4 {
        // Heads apart (keys of another sequence): they come with their bias.
        return Ok(all);
    }
    let bias = half::x(cx, 3)?;
    let y = cx.scratch(all.bytes.clone());
    let bias = slice(&bias, &bias_start, Some(n.clone()));
    let rows = h.batch.clone() * h.rows.clone();
    cx.call(&[Dtype::F32], BiasRows { x: all, bias, y: y.clone(), rows, n })?;
    Ok(y)
}

/// Elements from `start` on of an `f32` operand.
pub(super) fn slice(x: &Operand<Dim>, start: &Dim, len: Option<Dim>) -> Operand<Dim> {
    let skipped = start.as_const().and_then(|s| u64::try_from(s).ok()).unwrap_or(0) * 4;
    let bytes = len.map_or_else(|| x.bytes.clone() - start.clone() * Dim::Const(4), |l| l * Dim::Const(4));
    Operand::at(x.mem, x.off + skipped, bytes)
}

pub(super) fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let s = shapes(cx)?;
    let width = |h: &Heads| h.heads.clone() * h.size.clone();
    let (nq, nk) = (width(&s.q.heads), width(&s.k.heads));
    let starts = if cx.has(3) { [Some(Dim::Const(0)), Some(nq.clone()), Some(nq + nk)] } else { [None, None, None] };
    for start in [&s.q.start, &s.k.start, &s.v.start].into_iter().chain(starts.iter().flatten()) {
        if start.as_const().is_none() {
            return Err(wrong("heads of symbolic size"));
        }
    }
    let [q_bias, k_bias, v_bias] = starts;
    let q = operand(cx, &s.q, q_bias)?;
    let k = operand(cx, &s.k, k_bias)?;
    let v = operand(cx, &s.v, v_bias)?;
    let past_of = |i: usize| s.past.clone().map(|rows| (i, rows));
    let (k, k_heads) = with_past(cx, Dtype::F32, (k, &s.k.heads), past_of(6), 1)?;
    let (v, v_heads) = with_past(cx, Dtype::F32, (v, &s.v.heads), past_of(7), 2)?;
    let past = s.past.clone().unwrap_or(Dim::Const(0));
    let seen = seen(cx, [4, 5], &s.q.heads, [&past, &s.total()], cx.wants(3))?;
    let y = half::y(cx, 0)?;
    let scores = half::opt_y(cx, 3)?;
    let call =
        attend(cx, Dtype::F32, [(q, &s.q.heads), (k, &k_heads), (v, &v_heads), (y.at.clone(), &s.y())], seen.bias);
    let d = Attention {
        lens: seen.lens,
        scores: scores.as_ref().map(|o| o.at.clone()),
        stage: ScoreStage::Masked,
        offset: past,
        scale: scale_of(cx, &s.q.heads.size, true)?,
        causal: seen.causal,
        ..call
    };
    cx.call(&[Dtype::F32, Dtype::I32], d)?;
    y.finish(cx)?;
    match scores {
        Some(scores) => scores.finish(cx),
        None => Ok(()),
    }
}
