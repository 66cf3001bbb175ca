//! GroupQueryAttention: a cache of keys and values, rotary positions, fewer heads of K and V than of Q.
//!
//! Q `[batch, rows, heads · size]`, or Q, K and V side by side in every row; the cache has its heads apart.

use super::super::attention::{Heads, attend, bias_of, expect_equal, head_pitch, scale_of};
use super::super::view::{NodeView, Result, wrong};
use super::super::{InferCx, half, tensor};
use super::multi_head::slice;
use super::{expect_f32_or_half, num_heads, set_presents};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Attention, CacheAppend, CachePositions, Dtype, Operand, RotaryEmbedding};

struct Shapes {
    q: Heads,
    kv: Heads,
    /// Where K and V begin in a row of Q, if they are there.
    packed: Option<[Dim; 2]>,
    past_rows: Dim,
    total: Dim,
}

fn shapes(cx: &NodeView<'_>) -> Result<Shapes> {
    expect_f32_or_half(cx, 0)?;
    cx.expect_rank(0, 3)?;
    let (n, n_kv) = (num_heads(cx, "num_heads")?, num_heads(cx, "kv_num_heads")?);
    if n % n_kv != 0 {
        return Err(wrong(format!("{n} heads of Q do not share {n_kv}")));
    }
    let [batch, rows, width] = cx.shape(0)? else { return Err(wrong("rank 3")) };
    let (heads, kv_heads) = (Dim::Const(n), Dim::Const(n_kv));
    let (q, kv, packed) = if cx.has(1) {
        cx.expect_rank(1, 3)?;
        cx.expect_rank(2, 3)?;
        let q = Heads::of(cx.ty(0)?, Some(n))?;
        let kv = Heads::of(cx.ty(1)?, Some(n_kv)).map_err(|e| e.at_input(1))?;
        expect_equal("head size of Q and K", &q.size, &kv.size)?;
        expect_equal("K and V", &cx.shape(1)?[2], &cx.shape(2)?[2])?;
        expect_equal("rows of Q and K", &q.rows, &kv.rows)?;
        (q, kv, None)
    } else {
        let size = width.floor_div(&Dim::Const(n + 2 * n_kv));
        let side = |heads: &Dim| Heads {
            batch: batch.clone(),
            heads: heads.clone(),
            rows: rows.clone(),
            size: size.clone(),
            batch_stride: rows.clone() * width.clone(),
            head_stride: size.clone(),
            row_stride: width.clone(),
        };
        let k_start = heads.clone() * size.clone();
        let v_start = k_start.clone() + kv_heads.clone() * size.clone();
        (side(&heads), side(&kv_heads), Some([k_start, v_start]))
    };
    cx.expect_dtype(5, &[Dtype::I32])?;
    expect_equal("lengths and batch", &cx.ty(5)?.numel(), batch).map_err(|e| e.at_input(5))?;
    let total = match &cx.need_dims(6)?[..] {
        [d] => d.clone(),
        _ => return Err(wrong("expected a scalar").at_input(6)),
    };
    let past_rows = match cx.opt_ty(3)? {
        None => Dim::Const(0),
        Some(past) => {
            cx.expect_rank(3, 4)?;
            cx.expect_rank(4, 4)?;
            expect_equal("heads of the past", &past.shape[1], &kv_heads).map_err(|e| e.at_input(3))?;
            expect_equal("head size of the past", &past.shape[3], &kv.size).map_err(|e| e.at_input(3))?;
            past.shape[2].clone()
        }
    };
    for i in 12..cx.n_inputs() {
        if cx.has(i) {
            return Err(wrong("is not supported").at_input(i));
        }
    }
    if let Some(given) = cx.opt_ty(9)? {
        cx.expect_dtype(9, &[Dtype::I64])?;
        expect_equal("positions and rows", &given.numel(), &(batch.clone() * rows.clone()))
            .map_err(|e| e.at_input(9))?;
    }
    if cx.has(11) {
        half::expect_vector(cx, 11, &heads)?;
    }
    if cx.int("do_rotary", 0)? != 0 && !(cx.has(7) && cx.has(8)) {
        return Err(wrong("rotary positions need tables").at_attribute("do_rotary"));
    }
    Ok(Shapes { q, kv, packed, past_rows, total })
}

impl Shapes {
    fn present_rows(&self) -> Dim {
        Dim::max(&self.past_rows, &self.total)
    }

    fn present(&self) -> Heads {
        let kv = &self.kv;
        Heads::apart(kv.batch.clone(), kv.heads.clone(), self.present_rows(), kv.size.clone())
    }
}

pub(super) fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let s = shapes(cx)?;
    let dtype = cx.dtype(0)?;
    let q = &s.q;
    cx.set(0, tensor(dtype, vec![q.batch.clone(), q.rows.clone(), q.heads.clone() * q.size.clone()]));
    let p = s.present();
    let present = vec![p.batch, p.heads, p.rows, p.size];
    set_presents(cx, 1, dtype, present.clone(), present);
    Ok(())
}

/// Rotated heads in new memory, in the layout of [`Heads::together`].
fn rotated(
    cx: &mut LowerCx<'_>,
    x: Operand<Dim>,
    heads: &Heads,
    positions: &Operand<Dim>,
) -> Result<(Operand<Dim>, Heads)> {
    let to = Heads::together(heads.batch.clone(), heads.rows.clone(), heads.heads.clone(), heads.size.clone());
    let y = cx.scratch(to.batch.clone() * to.batch_stride.clone() * Dim::Const(4));
    let table = cx.shape(7)?;
    let [table_rows, half_size] = table else {
        return Err(wrong(format!("expected rank 2, found {}", cx.ty(7)?)).at_input(7));
    };
    let d = RotaryEmbedding {
        x,
        positions: Some(positions.clone()),
        cos: half::x(cx, 7)?,
        sin: half::x(cx, 8)?,
        y: y.clone(),
        batch: heads.batch.clone(),
        heads: heads.heads.clone(),
        rows: heads.rows.clone(),
        head_size: heads.size.clone(),
        rotary: half_size.clone() * Dim::Const(2),
        table_rows: table_rows.clone(),
        table_batch: Dim::Const(0),
        x_batch: heads.batch_stride.clone(),
        x_head: heads.head_stride.clone(),
        x_row: heads.row_stride.clone(),
        y_batch: to.batch_stride.clone(),
        y_head: to.head_stride.clone(),
        y_row: to.row_stride.clone(),
        interleaved: cx.int("rotary_interleaved", 0)? != 0,
    };
    cx.call(&[Dtype::F32, Dtype::I64], d)?;
    Ok((y, to))
}

pub(super) fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let s = shapes(cx)?;
    let (batch, rows) = (s.q.batch.clone(), s.q.rows.clone());
    let positions = cx.scratch(batch.clone() * rows.clone() * Dim::Const(8));
    let valid = cx.scratch(batch.clone() * Dim::Const(8));
    let d = CachePositions {
        lens: cx.x(5)?,
        given: cx.opt(9)?,
        positions: positions.clone(),
        valid: valid.clone(),
        batch: batch.clone(),
        rows: rows.clone(),
        total: s.total.clone(),
    };
    cx.call(&[Dtype::I32, Dtype::I64], d)?;
    let q = half::x(cx, 0)?;
    let (k, v) = match &s.packed {
        Some([k, v]) => {
            if k.as_const().is_none() {
                return Err(wrong("packed heads of symbolic size"));
            }
            (slice(&q, k, None), slice(&q, v, None))
        }
        None => (half::x(cx, 1)?, half::x(cx, 2)?),
    };
    let (mut q, mut q_heads, mut k, mut k_heads) = (q, s.q.clone(), k, s.kv.clone());
    if cx.int("do_rotary", 0)? != 0 {
        (q, q_heads) = rotated(cx, q, &q_heads, &positions)?;
        (k, k_heads) = rotated(cx, k, &k_heads, &positions)?;
    }
    let (mut presents, mut places) = (Vec::new(), Vec::new());
    for (i, (x, heads)) in [(k, &k_heads), (v, &s.kv)].into_iter().enumerate() {
        let output = half::opt_y(cx, 1 + i)?;
        let mut present = s.present();
        if output.is_some() {
            present = present.spaced(&cx.out_physical(1 + i)?);
        }
        let past_head = if cx.has(3 + i) { head_pitch(&cx.physical(3 + i)?) } else { Dim::Const(0) };
        let bytes = present.batch.clone() * present.batch_stride.clone() * Dim::Const(4);
        let at = match &output {
            Some(o) => o.at.clone(),
            None => cx.scratch(bytes),
        };
        let past = half::opt(cx, 3 + i)?;
        let (past, whole) = cx.held(past, at.clone());
        let d = CacheAppend {
            x,
            past,
            valid: valid.clone(),
            present: whole,
            batch: batch.clone(),
            heads: heads.heads.clone(),
            rows: rows.clone(),
            size: heads.size.clone(),
            past_rows: s.past_rows.clone(),
            present_rows: present.rows.clone(),
            x_batch: heads.batch_stride.clone(),
            x_head: heads.head_stride.clone(),
            x_row: heads.row_stride.clone(),
            past_head,
            present_head: present.head_stride.clone(),
        };
        presents.push(present);
        cx.call(&[Dtype::F32, Dtype::I64], d)?;
        if let Some(output) = output {
            output.finish(cx)?;
        }
        places.push(at);
    }
    let y = half::y(cx, 0)?;
    let y_heads = Heads::together(batch, rows, s.q.heads.clone(), s.q.size.clone());
    let bias = bias_of(cx, 10, Dtype::F32, f32::NEG_INFINITY)?;
    let (k, v) = (places[0].clone(), places[1].clone());
    // A score of no key for each head, or 0 for all of them.
    let sink = match cx.int("smooth_softmax", 0)? {
        _ if cx.has(11) => Some(half::x(cx, 11)?),
        1 => Some(cx.f32_weights(&vec![0.0; usize::try_from(num_heads(cx, "num_heads")?).unwrap_or(0)])),
        _ => None,
    };
    let (k_at, v_at) = ((k, &presents[0]), (v, &presents[1]));
    let call = attend(cx, Dtype::F32, [(q, &q_heads), k_at, v_at, (y.at.clone(), &y_heads)], bias);
    let window = match cx.int("local_window_size", -1)? {
        w if w > 0 => w - 1,
        _ => -1,
    };
    let d = Attention {
        lens: Some(valid),
        sink,
        from_end: true,
        scale: scale_of(cx, &s.q.size, true)?,
        softcap: cx.float("softcap", 0.0)?,
        causal: true,
        window: [window, -1],
        ..call
    };
    cx.call(&[Dtype::F32, Dtype::I64], d)?;
    y.finish(cx)
}
