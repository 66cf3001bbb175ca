//! Attention, and what its `com.microsoft` relatives share with it.
//!
//! <https://onnx.ai/onnx/operators/onnx__Attention.html>

use super::append::{Rows, grow};
use super::broadcast;
use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, half, tensor};
use crate::ir::{Dim, TensorType};
use crate::lower::LowerCx;
use kiln_kernels::{Attention, Dtype, FEW_QUERIES, MaskBias, Operand, QUERY_BLOCK, ScoreStage};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "Attention", &[23, 24, 25], infer, lower).with_flops(flops)];

/// How the heads of a tensor lie: strides in elements; a row's elements are contiguous.
#[derive(Clone)]
pub(super) struct Heads {
    pub batch: Dim,
    pub heads: Dim,
    pub rows: Dim,
    pub size: Dim,
    pub batch_stride: Dim,
    pub head_stride: Dim,
    pub row_stride: Dim,
}

impl Heads {
    /// `[batch, heads, rows, size]`
    pub fn apart(batch: Dim, heads: Dim, rows: Dim, size: Dim) -> Self {
        Self {
            batch_stride: heads.clone() * rows.clone() * size.clone(),
            head_stride: rows.clone() * size.clone(),
            row_stride: size.clone(),
            batch,
            heads,
            rows,
            size,
        }
    }

    /// Heads apart in memory of this form ([`TensorType::physical_shape`]): a cache that grows in place has room behind each.
    pub fn spaced(mut self, physical: &[Dim]) -> Self {
        self.head_stride = head_pitch(physical);
        self.batch_stride = self.heads.clone() * self.head_stride.clone();
        self
    }

    /// `[batch, rows, heads · size]`
    pub fn together(batch: Dim, rows: Dim, heads: Dim, size: Dim) -> Self {
        let width = heads.clone() * size.clone();
        Self {
            batch_stride: rows.clone() * width.clone(),
            head_stride: size.clone(),
            row_stride: width,
            batch,
            heads,
            rows,
            size,
        }
    }

    /// By rank: 4 for heads apart, 3 for heads together, of which there are `n`.
    pub fn of(ty: &TensorType, n: Option<i64>) -> Result<Self> {
        match &ty.shape[..] {
            [b, h, l, d] => Ok(Self::apart(b.clone(), h.clone(), l.clone(), d.clone())),
            [b, l, width] => {
                let n = n.filter(|&n| n > 0).ok_or_else(|| wrong(format!("{ty} needs a number of heads")))?;
                if width.as_const().is_some_and(|w| w % n != 0) {
                    return Err(wrong(format!("{ty} does not divide into {n} heads")));
                }
                Ok(Self::together(b.clone(), l.clone(), Dim::Const(n), width.floor_div(&Dim::Const(n))))
            }
            _ => Err(wrong(format!("expected rank 3 or 4, found {ty}"))),
        }
    }

    fn strides(&self) -> Vec<Dim> {
        vec![self.batch_stride.clone(), self.head_stride.clone(), self.row_stride.clone(), Dim::Const(1)]
    }

    /// Copies all rows of `x` into rows `first` and on of `y`.
    pub fn copy(
        &self,
        cx: &mut LowerCx<'_>,
        dtype: Dtype,
        x: Operand<Dim>,
        to: &Self,
        first: Dim,
        y: Operand<Dim>,
    ) -> Result<()> {
        let copy = StridedCopy {
            dims: vec![self.batch.clone(), self.heads.clone(), self.rows.clone(), self.size.clone()],
            x_start: Dim::Const(0),
            x_strides: self.strides(),
            y_start: first * to.row_stride.clone(),
            y_strides: to.strides(),
        };
        copy.lower(cx, dtype, x, y)
    }
}

/// Elements from one head to the next in memory of this form.
pub(super) fn head_pitch(physical: &[Dim]) -> Dim {
    row_major(physical).swap_remove(1)
}

/// What is added to the scores: elements with a stride per batch entry, head and query.
pub(super) struct Bias {
    pub at: Operand<Dim>,
    pub strides: [Dim; 3],
    pub keys: Dim,
}

/// A mask operand, at most rank 4, that broadcasts to `[batch, heads, queries, keys]`; yes/no masks become 0 or `masked`.
pub(super) fn bias_of(cx: &mut LowerCx<'_>, i: usize, dtype: Dtype, masked: f32) -> Result<Option<Bias>> {
    let Some(ty) = cx.opt_ty(i)? else { return Ok(None) };
    let keys = ty.shape.last().cloned().ok_or_else(|| wrong("a scalar mask").at_input(i))?;
    let missing = 4usize
        .checked_sub(ty.rank())
        .ok_or_else(|| wrong(format!("expected rank 4 at most, found {ty}")).at_input(i))?;
    let strides = row_major(&ty.shape);
    let stride = |a: usize| match a.checked_sub(missing) {
        // Whatever it is broadcast to.
        Some(a) => broadcast::stride(&strides[a], &ty.shape[a], &Dim::Const(-1)),
        None => Dim::Const(0),
    };
    let at = if ty.dtype == Dtype::Bool {
        let x = cx.x(i)?;
        let y = cx.scratch(ty.numel() * Dim::from(dtype.size_bytes()));
        cx.call(&[Dtype::U8, dtype], MaskBias { x, y: y.clone(), masked })?;
        y
    } else {
        operand(cx, i, dtype)?
    };
    Ok(Some(Bias { at, strides: [stride(0), stride(1), stride(2)], keys }))
}

/// An operand in the type that the kernel computes in: bf16 has a kernel of its own.
pub(super) fn operand(cx: &mut LowerCx<'_>, i: usize, dtype: Dtype) -> Result<Operand<Dim>> {
    if dtype == Dtype::Bf16 { cx.x(i) } else { half::x_as(cx, i, dtype) }
}

/// A result in the type that the kernel computes in.
fn result(cx: &mut LowerCx<'_>, i: usize, dtype: Dtype) -> Result<half::Output> {
    if dtype == Dtype::Bf16 { Ok(half::Output::exact(cx.y(i)?)) } else { half::y_as(cx, i, dtype) }
}

/// As [`result`], for a result that may be unwanted.
fn opt_result(cx: &mut LowerCx<'_>, i: usize, dtype: Dtype) -> Result<Option<half::Output>> {
    if cx.wants(i) { result(cx, i, dtype).map(Some) } else { Ok(None) }
}

/// A call of the attention kernel, before its options.
pub(super) fn attend(
    cx: &mut LowerCx<'_>,
    dtype: Dtype,
    [(q, q_heads), (k, k_heads), (v, v_heads), (y, y_heads)]: [(Operand<Dim>, &Heads); 4],
    bias: Option<Bias>,
) -> Attention<Dim> {
    let zero = || Dim::Const(0);
    let keys = k_heads.rows.clone();
    // As `attention_scratch_len` says.
    let n_queries = q_heads.rows.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(QUERY_BLOCK);
    let packed = if n_queries > FEW_QUERIES { k_heads.size.clone() + v_heads.size.clone() } else { Dim::Const(0) };
    let scratch_len = (keys.clone() + Dim::Const(16)) * (packed + Dim::from(n_queries.min(QUERY_BLOCK) + 16));
    let scratch = cx.scratch(scratch_len * Dim::from(dtype.size_bytes()));
    let (mask, [mask_batch, mask_head, mask_row], mask_keys) = match bias {
        None => (None, [zero(), zero(), zero()], zero()),
        // What a mask has beyond the keys there are does not matter.
        Some(b) => (Some(b.at), b.strides, Dim::min(&b.keys, &keys)),
    };
    Attention {
        q,
        k,
        v,
        mask,
        lens: None,
        sink: None,
        y,
        scores: None,
        scratch,
        batch: q_heads.batch.clone(),
        heads: q_heads.heads.clone(),
        kv_heads: k_heads.heads.clone(),
        queries: q_heads.rows.clone(),
        keys,
        head_size: q_heads.size.clone(),
        v_head_size: v_heads.size.clone(),
        q_batch: q_heads.batch_stride.clone(),
        q_head: q_heads.head_stride.clone(),
        q_row: q_heads.row_stride.clone(),
        k_batch: k_heads.batch_stride.clone(),
        k_head: k_heads.head_stride.clone(),
        k_row: k_heads.row_stride.clone(),
        v_batch: v_heads.batch_stride.clone(),
        v_head: v_heads.head_stride.clone(),
        v_row: v_heads.row_stride.clone(),
        y_batch: y_heads.batch_stride.clone(),
        y_head: y_heads.head_stride.clone(),
        y_row: y_heads.row_stride.clone(),
        mask_batch,
        mask_head,
        mask_row,
        mask_keys,
        offset: zero(),
        scale: 1.0,
        softcap: 0.0,
        causal: false,
        from_end: false,
        window: [-1, -1],
        stage: ScoreStage::Product,
        wide_softmax: true,
        unseen_nan: false,
        nan_zero: false,
        share: [0, 1],
    }
}

/// 1 / √head size, or the attribute if it is given (and, with `zero_is_none`, not zero).
pub(super) fn scale_of(cx: &NodeView<'_>, head_size: &Dim, zero_is_none: bool) -> Result<f32> {
    match cx.opt_float("scale")? {
        Some(s) if !(zero_is_none && s == 0.0) => Ok(s),
        _ => Ok(match head_size.as_const() {
            Some(size) => (1.0 / (size.max(1) as f64).sqrt()) as f32,
            None => kiln_kernels::DEFAULT_SCALE,
        }),
    }
}

/// Refuses extents that are both known and differ.
pub(super) fn expect_equal(what: &str, a: &Dim, b: &Dim) -> Result<()> {
    if a != b && a.as_const().is_some() && b.as_const().is_some() {
        return Err(wrong(format!("{what}: {a} and {b}")));
    }
    Ok(())
}

/// The operands of a node.
struct Shapes {
    q: Heads,
    k: Heads,
    v: Heads,
    past: Option<Dim>,
    /// Rank 3 in, rank 3 out.
    together: bool,
}

impl Shapes {
    fn total(&self) -> Dim {
        self.past.clone().map_or_else(|| self.k.rows.clone(), |p| p + self.k.rows.clone())
    }

    fn present(&self, of: &Heads) -> Heads {
        Heads::apart(of.batch.clone(), of.heads.clone(), self.total(), of.size.clone())
    }

    fn y(&self) -> Heads {
        let (b, h, l, d) = (self.q.batch.clone(), self.q.heads.clone(), self.q.rows.clone(), self.v.size.clone());
        if self.together { Heads::together(b, l, h, d) } else { Heads::apart(b, h, l, d) }
    }
}

fn shapes(cx: &NodeView<'_>) -> Result<Shapes> {
    for i in 0..3 {
        half::expect_float(cx, i)?;
    }
    let (q_heads, kv_heads) = (cx.opt_int("q_num_heads")?, cx.opt_int("kv_num_heads")?);
    let rank = cx.rank(0)?;
    for i in 1..3 {
        cx.expect_rank(i, rank)?;
    }
    let q = Heads::of(cx.ty(0)?, q_heads).map_err(|e| e.at_input(0))?;
    let k = Heads::of(cx.ty(1)?, kv_heads).map_err(|e| e.at_input(1))?;
    let v = Heads::of(cx.ty(2)?, kv_heads).map_err(|e| e.at_input(2))?;
    expect_equal("batch of Q and K", &q.batch, &k.batch)?;
    expect_equal("batch of Q and V", &q.batch, &v.batch)?;
    expect_equal("head size of Q and K", &q.size, &k.size)?;
    expect_equal("heads of K and V", &k.heads, &v.heads)?;
    expect_equal("rows of K and V", &k.rows, &v.rows)?;
    if let (Some(q), Some(k)) = (q.heads.as_const(), k.heads.as_const())
        && (k < 1 || q % k != 0)
    {
        return Err(wrong(format!("{q} heads of Q do not share {k} of K")));
    }
    let past = match (cx.opt_ty(4)?, cx.opt_ty(5)?) {
        (None, None) => None,
        (Some(pk), Some(pv)) => {
            for (i, past, new) in [(4, pk, &k), (5, pv, &v)] {
                cx.expect_rank(i, 4)?;
                for (a, b) in [(0, &new.batch), (1, &new.heads), (3, &new.size)] {
                    expect_equal("past and new", &past.shape[a], b).map_err(|e| e.at_input(i))?;
                }
                cx.expect_same_dtype(i, i - 3)?;
            }
            expect_equal("rows of past key and value", &pk.shape[2], &pv.shape[2])?;
            Some(pk.shape[2].clone())
        }
        _ => return Err(wrong("past_key and past_value must be given together")),
    };
    if cx.has(6) {
        cx.expect_dtype(6, &[Dtype::I64])?;
        expect_equal("lengths and batch", &cx.ty(6)?.numel(), &q.batch).map_err(|e| e.at_input(6))?;
        if past.is_some() {
            return Err(wrong("lengths and a past cannot be given together").at_input(6));
        }
    }
    let s = Shapes { q, k, v, past, together: rank == 3 };
    if let Some(mask) = cx.opt_ty(3)? {
        if mask.dtype.is_complex() || mask.dtype == Dtype::Str {
            return Err(wrong(format!("expected bool or numbers, found {mask}")).at_input(3));
        }
        let wanted = [&s.q.batch, &s.q.heads, &s.q.rows];
        for (d, w) in mask.shape.iter().rev().skip(1).zip(wanted.into_iter().rev()) {
            if !d.is(1) {
                expect_equal("mask and scores", d, w).map_err(|e| e.at_input(3))?;
            }
        }
        let keys = mask.shape.last().and_then(Dim::as_const).zip(s.total().as_const());
        if keys.is_none_or(|(m, t)| m > t) && keys.is_some() || mask.rank() > 4 || mask.rank() == 0 {
            return Err(wrong(format!("{mask} does not fit {} keys", s.total())).at_input(3));
        }
    }
    Ok(s)
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let s = shapes(cx)?;
    stage(cx)?;
    let (q, v) = (cx.dtype(0)?, cx.dtype(2)?);
    let (b, h, l) = (s.q.batch.clone(), s.q.heads.clone(), s.q.rows.clone());
    let y = if s.together {
        vec![b.clone(), l.clone(), h.clone() * s.v.size.clone()]
    } else {
        vec![b.clone(), h.clone(), l.clone(), s.v.size.clone()]
    };
    cx.set(0, tensor(q, y));
    let present = |of: &Heads| vec![of.batch.clone(), of.heads.clone(), s.total(), of.size.clone()];
    cx.set(1, tensor(q, present(&s.k)));
    cx.set(2, tensor(v, present(&s.v)));
    cx.set(3, tensor(q, vec![b, h, l, s.total()]));
    Ok(())
}

/// Two products, and the softmax between them.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let s = shapes(cx)?;
    let scores = s.q.batch.clone() * s.q.heads.clone() * s.q.rows.clone() * s.total();
    Ok(scores * (s.q.size.clone() * Dim::Const(2) + s.v.size.clone() * Dim::Const(2) + Dim::Const(5)))
}

fn stage(cx: &NodeView<'_>) -> Result<ScoreStage> {
    Ok(match cx.int("qk_matmul_output_mode", 0)? {
        0 => ScoreStage::Product,
        1 => ScoreStage::Capped,
        2 => ScoreStage::Masked,
        3 => ScoreStage::Probability,
        other => return Err(wrong(format!("unknown mode {other}")).at_attribute("qk_matmul_output_mode")),
    })
}

/// K or V with the past before it, heads apart; the operand itself where nothing is to be joined or given out.
pub(super) fn with_past(
    cx: &mut LowerCx<'_>,
    dtype: Dtype,
    (new, new_heads): (Operand<Dim>, &Heads),
    past: Option<(usize, Dim)>,
    output: usize,
) -> Result<(Operand<Dim>, Heads)> {
    if past.is_none() && !cx.wants(output) {
        return Ok((new, new_heads.clone()));
    }
    let first = past.as_ref().map_or(Dim::Const(0), |p| p.1.clone());
    let rows = first.clone() + new_heads.rows.clone();
    let mut all = Heads::apart(new_heads.batch.clone(), new_heads.heads.clone(), rows, new_heads.size.clone());
    let bytes = all.batch.clone() * all.batch_stride.clone() * Dim::from(dtype.size_bytes());
    let given = opt_result(cx, output, dtype)?;
    let y = match &given {
        Some(g) => {
            all = all.spaced(&cx.out_physical(output)?);
            g.at.clone()
        }
        None => cx.scratch(bytes),
    };
    match past {
        Some((i, past_rows)) => {
            let (past, past_pitch) = (operand(cx, i, dtype)?, head_pitch(&cx.physical(i)?));
            let rows = Rows { x: new, heads: new_heads };
            grow(cx, dtype, (past, past_rows, past_pitch), rows, (y.clone(), all.head_stride.clone()))?;
        }
        None => new_heads.copy(cx, dtype, new, &all, Dim::Const(0), y.clone())?,
    }
    if let Some(given) = given {
        given.finish(cx)?;
    }
    Ok((y, all))
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let s = shapes(cx)?;
    let is_bf16 = |i: usize| cx.dtype(i).is_ok_and(|d| d == Dtype::Bf16);
    let all_bf16 = (0..3).all(is_bf16) && (!cx.has(3) || is_bf16(3) || cx.dtype(3)? == Dtype::Bool);
    let dtype = if all_bf16 { Dtype::Bf16 } else { half::joint_dtype(cx, &[0, 1, 2])? };
    let (q, k, v) = (operand(cx, 0, dtype)?, operand(cx, 1, dtype)?, operand(cx, 2, dtype)?);
    let past = |i: usize| s.past.clone().map(|rows| (i, rows));
    let (k, k_heads) = with_past(cx, dtype, (k, &s.k), past(4), 1)?;
    let (v, v_heads) = with_past(cx, dtype, (v, &s.v), past(5), 2)?;
    let bias = bias_of(cx, 3, dtype, f32::NEG_INFINITY)?;
    let lens = cx.opt(6)?;
    let y = result(cx, 0, dtype)?;
    let scores = opt_result(cx, 3, dtype)?;
    debug_assert_eq!(s.present(&s.k).rows, k_heads.rows);
    let call = attend(cx, dtype, [(q, &s.q), (k, &k_heads), (v, &v_heads), (y.at.clone(), &s.y())], bias);
    let d = Attention {
        from_end: lens.is_some(),
        lens,
        scores: scores.as_ref().map(|o| o.at.clone()),
        offset: s.past.clone().unwrap_or(Dim::Const(0)),
        scale: scale_of(cx, &s.q.size, false)?,
        softcap: cx.float("softcap", 0.0)?,
        causal: cx.int("is_causal", 0)? != 0,
        window: [cx.int("left_window_size", -1)?, cx.int("right_window_size", -1)?],
        stage: stage(cx)?,
        wide_softmax: !matches!(cx.opt_int("softmax_precision")?, None | Some(16)),
        ..call
    };
    cx.call(&[dtype, Dtype::I64], d)?;
    y.finish(cx)?;
    match scores {
        Some(scores) => scores.finish(cx),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::{Case, case};

    fn values(n: usize, step: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * step) % 29) as f32 * 0.1 - 1.4).collect()
    }

    fn ramp(dims: &[usize], step: usize) -> Tensor {
        Tensor::from_f32s(dims, &values(dims.iter().product(), step))
    }

    fn wide(t: &Tensor) -> Tensor {
        Tensor::from_f64s(t.dims(), &t.to_f32s().unwrap().into_iter().map(f64::from).collect::<Vec<_>>())
    }

    fn put(c: Case, t: &Option<Tensor>) -> Case {
        match t {
            Some(t) => c.input(t.clone()),
            None => c.absent(),
        }
    }

    /// The f32 kernel in blocks against the f64 one from the definition.
    #[test]
    fn blocks_agree_with_the_definition() {
        for (heads, kv_heads, l, keys, past, d, dv) in
            [(4, 2, 130, 130, 0, 24, 20), (2, 2, 1, 7, 33, 64, 64), (2, 1, 3, 3, 5, 8, 16), (1, 1, 60, 200, 0, 32, 40)]
        {
            let q = ramp(&[2, heads, l, d], 7);
            let (k, v) = (ramp(&[2, kv_heads, keys, d], 5), ramp(&[2, kv_heads, keys, dv], 11));
            let (pk, pv) = (ramp(&[2, kv_heads, past, d], 3), ramp(&[2, kv_heads, past, dv], 13));
            let mask = Some(ramp(&[2, 1, l, keys + past], 17));
            for (causal, window, mask, cap) in
                [(0, -1, None, 0.0), (1, -1, None, 0.0), (1, 3, mask.clone(), 2.0), (0, 40, mask, 0.0)]
            {
                for mode in 0..4 {
                    let node = |double: bool| {
                        let of = |t: &Tensor| if double { wide(t) } else { t.clone() };
                        let c = case("", "Attention", 25).input(of(&q)).input(of(&k)).input(of(&v));
                        let mut c = put(c, &mask.as_ref().map(of));
                        if past > 0 {
                            c = c.input(of(&pk)).input(of(&pv));
                        }
                        c.attr("is_causal", Attr::Int(causal))
                            .attr("left_window_size", Attr::Int(window))
                            .attr("softcap", Attr::Float(cap))
                            .attr("qk_matmul_output_mode", Attr::Int(mode))
                            .outputs(4)
                            .run()
                            .unwrap()
                    };
                    for (a, b) in node(false).iter().zip(node(true)) {
                        assert_eq!(a.dims(), b.dims());
                        for (a, b) in a.to_f32s().unwrap().into_iter().zip(b.to_f64s().unwrap()) {
                            let near = f64::from(a) == b || (f64::from(a) - b).abs() < 2e-5 * b.abs().max(1.0);
                            assert!(near, "{a} {b} (heads {heads}/{kv_heads}, mode {mode})");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_visible_gives_zeros() {
        let q = ramp(&[1, 2, 8], 7);
        let mask = Tensor::new(kiln_kernels::Dtype::Bool, vec![2, 3], vec![0, 0, 0, 1, 1, 0].into()).unwrap();
        let node = case("", "Attention", 23).input(q).input(ramp(&[1, 3, 8], 5)).input(ramp(&[1, 3, 8], 3)).input(mask);
        let y = node.attr("q_num_heads", Attr::Int(2)).attr("kv_num_heads", Attr::Int(2)).run_f32();
        assert_eq!(y[..8], [0.0; 8]);
        assert!(y[8..].iter().all(|v| v.is_finite() && *v != 0.0));
    }

    #[test]
    fn refuses() {
        let node = |k: &[usize], v: &[usize]| {
            case("", "Attention", 23).input(ramp(&[1, 4, 2, 8], 1)).input(ramp(k, 1)).input(ramp(v, 1))
        };
        assert!(node(&[1, 2, 2, 8], &[1, 2, 2, 8]).infer().is_ok());
        assert!(node(&[1, 3, 2, 8], &[1, 3, 2, 8]).infer().is_err());
        assert!(node(&[1, 2, 2, 7], &[1, 2, 2, 8]).infer().is_err());
        assert!(node(&[1, 2, 2, 8], &[1, 2, 3, 8]).infer().is_err());
        assert!(node(&[1, 2, 8], &[1, 2, 8]).infer().is_err());
    }
}
