//! Attention as one kernel: softmax(scale · Q·Kᵀ + bias)·V for all heads of a batch, without the whole score matrix.
//!
//! In: Q, K, V with a stride per batch entry, head and row (a row's elements are contiguous), so that heads need not be moved
//! apart; several heads of Q may share one of K and V. What a query may see is an interval of keys (cache length, causality,
//! window) and an additive mask. Out: Y in any such layout; where wanted the scores at one of four stages.
//! Invariant: a query that may see no key gives zeros, not NaN, unless that is asked for. Keys past a batch entry's length are never read.

use super::{definition::heads_by_definition, f32::heads_f32};
use crate::{Elem, Fault, Isa, PartOut, bf16, kernel, param_enum};
use core::ops::Range;

param_enum! {
    /// At which stage scores are given out.
    pub enum ScoreStage {
        /// Scaled products.
        Product,
        /// After the soft cap.
        Capped,
        /// After the mask.
        Masked,
        /// Probabilities.
        Probability,
    }
}

kernel! {
    /// Attention; see the module's text. Strides are in elements. `lens` are the numbers of valid keys by batch entry. A query
    /// `i` stands at position `offset + i`, or, with `from_end`, so that the last query stands at the last valid key.
    /// `sink` holds a score by head that no key has: it takes its share of the probabilities.
    /// `scratch` has [`attention_scratch_len`] elements, for each stream its own.
    pub struct Attention {
        operands {
            read q: T, read k: T, read v: T, opt mask: T, opt lens: I, opt sink: T,
            update_parts y: T, opt_write_parts scores: T, write scratch: T,
        }
        nums {
            batch, heads, kv_heads, queries, keys, head_size, v_head_size,
            q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, y_batch, y_head, y_row,
            mask_batch, mask_head, mask_row, mask_keys, offset,
        }
        params {
            /// [`DEFAULT_SCALE`](super::DEFAULT_SCALE) for that of the head size.
            scale: f32,
            /// 0 for none.
            softcap: f32,
            causal: bool,
            from_end: bool,
            /// How many keys to the left and right of its own position a query sees; negative for all.
            window: [i64; 2],
            stage: ScoreStage,
            /// Whether the softmax is computed in a wider type than bf16 (others always compute in their own).
            wide_softmax: bool,
            /// Whether a query that may see no key gives NaN, as a softmax in primitives does, and not zeros.
            unseen_nan: bool,
            /// Whether a query whose probabilities are NaN gives zeros.
            nan_zero: bool,
            /// `[i, n]`: the i-th of n equal shares of the work (heads of all batch entries).
            share: [u32; 2]
        }
    }
    entries {
        attention_f32 { T = f32, I = i64 } attention_f32_i32 { T = f32, I = i32 }
        attention_f64 { T = f64, I = i64 } attention_f64_i32 { T = f64, I = i32 }
        attention_bf16 { T = bf16, I = i64 }
    }
    body = attention;
}

/// Most queries of a block.
pub const QUERY_BLOCK: usize = 64;

/// Up to this many queries K and V are read in place.
pub const FEW_QUERIES: usize = 4;

/// Elements of scratch: K and V packed, unless there are few queries, and a block's scores.
pub const fn attention_scratch_len(queries: usize, keys: usize, head_size: usize, v_head_size: usize) -> usize {
    let packed = if queries > FEW_QUERIES { head_size.saturating_add(v_head_size) } else { 0 };
    let block = if queries < QUERY_BLOCK { queries } else { QUERY_BLOCK };
    keys.saturating_add(16).saturating_mul(packed.saturating_add(block + 16))
}

/// Element types of attention.
pub(super) trait AttentionElem: Elem {
    /// The heads `units` of all batch entries; `lens` gives the valid keys of a batch entry.
    fn heads(
        isa: Isa,
        d: &Attention,
        units: Range<usize>,
        lens: &dyn Fn(usize) -> usize,
        operands: Operands<'_, Self>,
    ) -> Result<(), Fault>;
}

/// The slices of a call.
pub(super) struct Operands<'a, T> {
    pub q: &'a [T],
    pub k: &'a [T],
    pub v: &'a [T],
    pub mask: Option<&'a [T]>,
    pub sink: Option<&'a [T]>,
    pub y: PartOut<'a, T>,
    pub scores: Option<PartOut<'a, T>>,
    pub scratch: &'a mut [T],
}

impl AttentionElem for f32 {
    fn heads(
        isa: Isa,
        d: &Attention,
        units: Range<usize>,
        lens: &dyn Fn(usize) -> usize,
        o: Operands<'_, Self>,
    ) -> Result<(), Fault> {
        heads_f32(isa, d, units, lens, o)
    }
}

macro_rules! by_definition {
    ($($t:ident)*) => { $(impl AttentionElem for $t {
        fn heads(
            _: Isa,
            d: &Attention,
            units: Range<usize>,
            lens: &dyn Fn(usize) -> usize,
            o: Operands<'_, Self>,
        ) -> Result<(), Fault> {
            heads_by_definition(d, units, lens, o);
            Ok(())
        }
    })* };
}
by_definition!(f64 bf16);

fn attention<T: AttentionElem, I: Copy + TryInto<i64>>(
    isa: Isa,
    d: &Attention,
    q: &[T],
    k: &[T],
    v: &[T],
    mask: Option<&[T]>,
    lens: Option<&[I]>,
    sink: Option<&[T]>,
    y: PartOut<'_, T>,
    scores: Option<PartOut<'_, T>>,
    scratch: &mut [T],
) -> Result<(), Fault> {
    let d = &Attention { scale: super::scale_or_default(d.scale, d.head_size), ..d.clone() };
    let reach = |batch: usize, heads: usize, rows: usize, strides: [usize; 3], row: usize| {
        let terms = [(batch, strides[0]), (heads, strides[1]), (rows, strides[2])];
        if terms.iter().any(|t| t.0 == 0) || row == 0 {
            return Some(0);
        }
        terms.iter().try_fold(row, |sum, &(n, stride)| sum.checked_add((n - 1).checked_mul(stride)?))
    };
    let within = |need: Option<usize>, have: usize| need.is_some_and(|n| n <= have);
    let n_scores = [d.heads, d.queries, d.keys].iter().try_fold(d.batch, |n, &d| n.checked_mul(d));
    let (i, n) = (d.share[0] as usize, d.share[1] as usize);
    let n_units =
        d.batch.checked_mul(d.heads).and_then(|u| u.checked_mul(n.max(1))).ok_or(Fault::Descriptor)? / n.max(1);
    let ok = i < n
        && d.kv_heads > 0
        && d.heads.is_multiple_of(d.kv_heads)
        && within(reach(d.batch, d.heads, d.queries, [d.q_batch, d.q_head, d.q_row], d.head_size), q.len())
        && within(reach(d.batch, d.kv_heads, d.keys, [d.k_batch, d.k_head, d.k_row], d.head_size), k.len())
        && within(reach(d.batch, d.kv_heads, d.keys, [d.v_batch, d.v_head, d.v_row], d.v_head_size), v.len())
        && within(reach(d.batch, d.heads, d.queries, [d.y_batch, d.y_head, d.y_row], d.v_head_size), y.len())
        && (d.y_row >= d.v_head_size || d.queries <= 1)
        && mask.is_none_or(|m| {
            let strides = [d.mask_batch, d.mask_head, d.mask_row];
            d.mask_keys <= d.keys && within(reach(d.batch, d.heads, d.queries, strides, d.mask_keys), m.len())
        })
        && lens.is_none_or(|l| l.len() == d.batch)
        && sink.is_none_or(|s| s.len() == d.heads)
        && scores.as_ref().is_none_or(|s| n_scores == Some(s.len()))
        && attention_scratch_len(d.queries, d.keys, d.head_size, d.v_head_size) <= scratch.len();
    if !ok {
        return Err(Fault::Descriptor);
    }
    let len = |b: usize| match lens {
        None => d.keys,
        // A length beyond the keys there are counts as all of them, a negative one as none.
        Some(lens) => lens[b].try_into().ok().and_then(|l| usize::try_from(l).ok()).map_or(0, |l| l.min(d.keys)),
    };
    let units = n_units * i / n..n_units * (i + 1) / n;
    T::heads(isa, d, units, &len, Operands { q, k, v, mask, sink, y, scores, scratch })
}

impl Attention {
    /// The keys that query `i` of a batch entry with `len` valid keys may see, mask aside.
    pub(super) fn visible(&self, i: usize, len: usize) -> Range<usize> {
        let wide = |x: usize| x as i128;
        let position = if self.from_end { wide(len) - wide(self.queries) } else { wide(self.offset) } + wide(i);
        let (mut low, mut high) = (0, wide(len));
        if self.causal {
            high = high.min(position + 1);
        }
        if self.window[0] >= 0 {
            low = low.max(position - i128::from(self.window[0]));
        }
        if self.window[1] >= 0 {
            high = high.min(position + 1 + i128::from(self.window[1]));
        }
        let high = usize::try_from(high).unwrap_or(0);
        usize::try_from(low).unwrap_or(0).min(high)..high
    }

    /// Where the mask of a query begins.
    pub(super) fn mask_at(&self, b: usize, h: usize, i: usize) -> usize {
        b * self.mask_batch + h * self.mask_head + i * self.mask_row
    }
}
