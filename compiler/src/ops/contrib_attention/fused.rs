//! Attention of `com.microsoft`: the product that makes Q, K and V is part of it.
//!
//! Input `[batch, rows, n]`, weights `[n, q + k + v]`, bias; past and present `[2, batch, heads, rows, size]`.

use super::super::attention::{Heads, attend, expect_equal, scale_of};
use super::super::view::{NodeView, Result, wrong};
use super::super::{InferCx, half, tensor};
use super::multi_head::slice;
use super::{expect_f32_or_half, num_heads, seen};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::gemm::pack_b;
use kiln_kernels::gemm::tile::MAX_PANELS;
use kiln_kernels::{Activation, Attention, BLayout, Dtype, Gemm, Operand};

struct Shapes {
    batch: Dim,
    rows: Dim,
    n: Dim,
    heads: i64,
    /// Widths of Q, K and V.
    widths: [i64; 3],
    past: Option<Dim>,
}

fn shapes(cx: &NodeView<'_>) -> Result<Shapes> {
    expect_f32_or_half(cx, 0)?;
    cx.expect_rank(0, 3)?;
    cx.expect_rank(1, 2)?;
    cx.expect_same_dtype(1, 0)?;
    let heads = num_heads(cx, "num_heads")?;
    let [batch, rows, n] = cx.shape(0)? else { return Err(wrong("rank 3")) };
    expect_equal("input and weights", n, &cx.shape(1)?[0])?;
    let all = cx.shape(1)?[1].as_const().ok_or_else(|| wrong("its shape must be constant").at_input(1))?;
    let widths = match cx.opt_ints("qkv_hidden_sizes")? {
        Some([q, k, v]) => [*q, *k, *v],
        Some(_) => return Err(wrong("expected three sizes").at_attribute("qkv_hidden_sizes")),
        None => [all / 3; 3],
    };
    let sum = widths.iter().fold(0i64, |a, &w| a.saturating_add(w));
    if sum != all || widths[0] != widths[1] || widths.iter().any(|&w| w < 1 || w % heads != 0) {
        return Err(wrong(format!("widths {widths:?} of {all} for {heads} heads")));
    }
    if cx.int("do_rotary", 0)? != 0 {
        return Err(wrong("is not supported").at_attribute("do_rotary"));
    }
    if cx.has(6) {
        return Err(wrong("a shared buffer of past and present is not supported").at_input(6));
    }
    let past = match cx.opt_ty(4)? {
        None => None,
        Some(ty) => {
            cx.expect_rank(4, 5)?;
            Some(ty.shape[3].clone())
        }
    };
    if (past.is_some() || cx.wants(1)) && widths[2] != widths[0] {
        return Err(wrong("a past for values of another width than keys"));
    }
    Ok(Shapes { batch: batch.clone(), rows: rows.clone(), n: n.clone(), heads, widths, past })
}

impl Shapes {
    fn total(&self) -> Dim {
        self.past.clone().map_or_else(|| self.rows.clone(), |p| p + self.rows.clone())
    }

    fn size(&self, i: usize) -> Dim {
        Dim::Const(self.widths[i] / self.heads)
    }

    fn present(&self) -> Vec<Dim> {
        vec![Dim::Const(2), self.batch.clone(), Dim::Const(self.heads), self.total(), self.size(1)]
    }

    /// Q, K or V inside of the product's rows.
    fn part(&self, i: usize) -> Heads {
        let width = Dim::Const(self.widths.iter().sum());
        Heads {
            batch: self.batch.clone(),
            heads: Dim::Const(self.heads),
            rows: self.rows.clone(),
            size: self.size(i),
            batch_stride: self.rows.clone() * width.clone(),
            head_stride: self.size(i),
            row_stride: width,
        }
    }
}

pub(super) fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let s = shapes(cx)?;
    let dtype = cx.dtype(0)?;
    cx.set(0, tensor(dtype, vec![s.batch.clone(), s.rows.clone(), Dim::Const(s.widths[2])]));
    cx.set(1, tensor(dtype, s.present()));
    Ok(())
}

/// Q, K and V of all rows.
fn project(cx: &mut LowerCx<'_>, s: &Shapes) -> Result<Operand<Dim>> {
    let width: i64 = s.widths.iter().sum();
    let rows = s.batch.clone() * s.rows.clone();
    let a = half::x(cx, 0)?;
    let columns = usize::try_from(width).unwrap_or(0);
    let own = s.n.as_const().and_then(|n| usize::try_from(n).ok()).zip(cx.constant(1).and_then(|t| t.to_f32s()));
    let (b, b_layout, scratch) = match own {
        Some((n, w)) => (cx.f32_weights(&pack_b(&w, n, columns, false)), BLayout::Packed, None),
        None => {
            let scratch = cx.scratch(s.n.clone() * Dim::from(MAX_PANELS * 16 * 4));
            (half::x(cx, 1)?, BLayout::Rows, Some(scratch))
        }
    };
    let c = cx.scratch(rows.clone() * Dim::Const(width) * Dim::Const(4));
    let zero = || [Dim::Const(0), Dim::Const(0)];
    let d = Gemm {
        a,
        b,
        bias: half::opt(cx, 2)?,
        residual: None,
        c: c.clone(),
        scratch,
        m: rows,
        n: Dim::Const(width),
        k: s.n.clone(),
        lda: s.n.clone(),
        ldb: Dim::Const(width),
        ldc: Dim::Const(width),
        ld_residual: Dim::Const(0),
        batch: [Dim::Const(1), Dim::Const(1)],
        a_batch: zero(),
        b_batch: zero(),
        c_batch: zero(),
        residual_batch: zero(),
        b_layout,
        activation: Activation::None,
        share: [0, 1],
    };
    cx.call(&[Dtype::F32], d)?;
    Ok(c)
}

pub(super) fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let s = shapes(cx)?;
    let all = project(cx, &s)?;
    let [wq, wk, _] = s.widths;
    let q = slice(&all, &Dim::Const(0), None);
    let mut kv = [slice(&all, &Dim::Const(wq), None), slice(&all, &Dim::Const(wq + wk), None)];
    let mut kv_heads = [s.part(1), s.part(2)];
    if s.past.is_some() || cx.wants(1) {
        let present = half::opt_y(cx, 1)?;
        let len: Dim = s.present().into_iter().skip(1).product();
        let at = match &present {
            Some(p) => p.at.clone(),
            None => cx.scratch(len.clone() * Dim::Const(8)),
        };
        let past = half::opt(cx, 4)?;
        let first = s.past.clone().unwrap_or(Dim::Const(0));
        for i in 0..2 {
            let apart = |rows: Dim| Heads::apart(s.batch.clone(), Dim::Const(s.heads), rows, s.size(1));
            let to = apart(s.total());
            // Where the second half begins may be symbolic: strides count from the whole operand's start.
            let half_start = Dim::from(i) * len.clone();
            if let Some(past) = &past {
                let old = apart(first.clone());
                let past_len: Dim = old.batch.clone() * old.batch_stride.clone();
                copy(cx, past, Dim::from(i) * past_len, &old, &at, half_start.clone(), &to)?;
            }
            let start = half_start.clone() + first.clone() * to.row_stride.clone();
            copy(cx, &kv[i], Dim::Const(0), &kv_heads[i], &at, start, &to)?;
            let bytes = len.clone() * Dim::Const(4);
            let half_bytes = half_start.as_const().ok_or_else(|| wrong("a past of symbolic size is not supported"))?;
            kv[i] = Operand::at(at.mem, at.off + u64::try_from(half_bytes * 4).unwrap_or(0), bytes);
            kv_heads[i] = to;
        }
        if let Some(present) = present {
            present.finish(cx)?;
        }
    }
    let past = s.past.clone().unwrap_or(Dim::Const(0));
    let q_heads = s.part(0);
    let seen = seen(cx, [3, 5], &q_heads, [&past, &s.total()], false)?;
    let y = half::y(cx, 0)?;
    let y_heads = Heads::together(s.batch.clone(), s.rows.clone(), Dim::Const(s.heads), s.size(2));
    let [k, v] = kv;
    let call = attend(
        cx,
        Dtype::F32,
        [(q, &q_heads), (k, &kv_heads[0]), (v, &kv_heads[1]), (y.at.clone(), &y_heads)],
        seen.bias,
    );
    let d = Attention {
        lens: seen.lens,
        offset: past,
        scale: scale_of(cx, &s.size(0), true)?,
        causal: seen.causal,
        ..call
    };
    cx.call(&[Dtype::F32, Dtype::I32], d)?;
    y.finish(cx)
}

/// Copies rows between two layouts, each from an element on.
fn copy(
    cx: &mut LowerCx<'_>,
    x: &Operand<Dim>,
    x_start: Dim,
    from: &Heads,
    y: &Operand<Dim>,
    y_start: Dim,
    to: &Heads,
) -> Result<()> {
    let strides = |h: &Heads| vec![h.batch_stride.clone(), h.head_stride.clone(), h.row_stride.clone(), Dim::Const(1)];
    let copy = super::super::strided::StridedCopy {
        dims: vec![from.batch.clone(), from.heads.clone(), from.rows.clone(), from.size.clone()],
        x_start,
        x_strides: strides(from),
        y_start,
        y_strides: strides(to),
    };
    copy.lower(cx, Dtype::F32, x.clone(), y.clone())
}
