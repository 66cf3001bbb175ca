//! Attention in f32: blocks of queries through the tuned matrix products.
//!
//! K of a head is packed once; a block's scores lie in scratch, become exponentials there, and are multiplied with V read in
//! place; the division by their sum comes last. With few queries (decoding) K is read in place instead: packing would cost as
//! much as the products.

use super::core::{Attention, FEW_QUERIES, Operands, QUERY_BLOCK, ScoreStage};
use crate::gemm::pack::{PANEL, pack_panel_transposed};
use crate::gemm::{BLayout, GemmParams, Residual, pack_b_into, packed_len, product_f32, product_f32_units};
use crate::simd::{F32x16, LANES, Simd, math};
use crate::{Fault, Isa, PartOut, simd_fn};
use core::f32::consts::LOG2_E;
use core::ops::Range;

/// Keys whose scores are held at once: as many as stay near.
const KEY_BLOCK: usize = 256;

pub(super) fn heads_f32(
    isa: Isa,
    d: &Attention,
    units: Range<usize>,
    lens: &dyn Fn(usize) -> usize,
    o: Operands<'_, f32>,
) -> Result<(), Fault> {
    let Operands { q, k, v, mask, sink, mut y, mut scores, scratch } = o;
    let few = d.queries <= FEW_QUERIES;
    let (packed_k_row, packed_v_row) = if few { (0, 0) } else { (d.head_size, d.v_head_size) };
    let (packed, rest) = scratch.split_at_mut((d.keys + PANEL) * packed_k_row);
    // V is packed, or a product with it in place needs room: of one panel.
    let (packed_v, block) = rest.split_at_mut((d.keys + PANEL) * (packed_v_row + PANEL));
    let mut packed_head = usize::MAX;
    let n_blocks = d.queries.div_ceil(QUERY_BLOCK);
    for unit in units {
        let (b, h) = (unit / d.heads, unit % d.heads);
        let kv = h / (d.heads / d.kv_heads);
        let len = lens(b);
        let k = k.get(b * d.k_batch + kv * d.k_head..).unwrap_or_default();
        let v = v.get(b * d.v_batch + kv * d.v_head..).unwrap_or_default();
        if !few && packed_head != b * d.kv_heads + kv {
            packed_head = b * d.kv_heads + kv;
            pack_keys(isa, packed, k, d.head_size, len, d.k_row);
            if !pack_b_into(packed_v, v, len, d.v_head_size, d.v_row, false) {
                return Err(Fault::Descriptor);
            }
        }
        for i in 0..n_blocks {
            // Blocks of nearly the same length.
            let (from, to) = (d.queries * i / n_blocks, d.queries * (i + 1) / n_blocks);
            let (mut low, mut high) = (len, 0);
            for i in from..to {
                let visible = d.visible(i, len);
                if !visible.is_empty() {
                    low = low.min(visible.start);
                    high = high.max(visible.end);
                }
            }
            if mask.is_some() {
                high = high.min(d.mask_keys);
            }
            if scores.is_some() {
                (low, high) = (0, len);
            }
            // A panel cannot be entered in its middle.
            let low = low.min(high) / PANEL * PANEL;
            let sink = sink.map_or(f32::NEG_INFINITY, |s| s[h]);
            let rows = Rows { b, h, from, len, sink, q: &q[b * d.q_batch + h * d.q_head + from * d.q_row..] };
            let at = b * d.y_batch + h * d.y_head + from * d.y_row;
            let mut y = HeadOut { y: &mut y, at, stride: d.y_row, size: d.v_head_size };
            let mut states = [RowState::START; QUERY_BLOCK];
            // Scores are given out as whole rows; few queries make short ones anyway.
            let step = if few || scores.is_some() { (high - low).max(1) } else { KEY_BLOCK };
            let mut at = low;
            while at < high {
                let keys = at..high.min(at + step);
                let block = &mut block[..(to - from) * keys.len()];
                let ok = if few {
                    rows.dots(isa, d, k, &keys, block);
                    true
                } else {
                    let p = GemmParams { lda: d.q_row, ..GemmParams::packed(to - from, keys.len(), d.head_size) };
                    let k = &packed[at * d.head_size..];
                    product_f32(isa, &p, rows.q, k, None, Residual::None, block, &mut [])
                };
                let at_query = |i: usize| (unit * d.queries + i) * d.keys;
                // SAFETY: rows of the unit's head, which are the part's alone.
                let scores = scores.as_mut().map(|s| unsafe { s.own(at_query(from)..at_query(to)) });
                rows.softmax(isa, d, mask, &keys, block, &mut states, (at > low).then_some(&mut y), scores);
                let residual = if at > low { Residual::Output } else { Residual::None };
                let p = GemmParams { ldc: d.y_row, ..GemmParams::packed(to - from, d.v_head_size, keys.len()) };
                let ok = ok
                    && if few {
                        let p = GemmParams { ldb: d.v_row, b_layout: BLayout::Rows, ..p };
                        let v = v.get(at * d.v_row..).unwrap_or_default();
                        y.product(isa, &p, block, v, residual, packed_v)
                    } else {
                        let p = GemmParams { panel_rows: len, ..p };
                        y.product(isa, &p, block, &packed_v[at * PANEL..], residual, &mut [])
                    };
                if !ok {
                    return Err(Fault::Descriptor);
                }
                at += step;
            }
            for (i, state) in states[..to - from].iter().enumerate() {
                let y = y.row(i);
                match state.inverse(sink) {
                    _ if d.nan_zero && state.sum.is_nan() => y.fill(0.0),
                    // A product over no keys at all is zero in either spelling.
                    0.0 if d.unseen_nan && len > 0 => y.fill(f32::NAN),
                    inverse => scale(isa, y, inverse),
                }
            }
        }
    }
    Ok(())
}

/// Where the rows of a block of one head's queries go. Rows of other heads, which may be other parts', lie between them.
struct HeadOut<'o, 'a> {
    y: &'o mut PartOut<'a, f32>,
    /// First element of the first row, elements from row to row, and elements of a row.
    at: usize,
    stride: usize,
    size: usize,
}

impl HeadOut<'_, '_> {
    /// One row.
    fn row(&mut self, i: usize) -> &mut [f32] {
        let at = self.at + i * self.stride;
        // SAFETY: a row of the part's head.
        unsafe { self.y.own(at..at + self.size) }
    }

    /// A product into the rows.
    fn product(
        &mut self,
        isa: Isa,
        p: &GemmParams,
        a: &[f32],
        b: &[f32],
        residual: Residual<'_>,
        scratch: &mut [f32],
    ) -> bool {
        let Some(len) = self.y.len().checked_sub(self.at).filter(|_| p.n <= self.size) else { return false };
        let c = core::ptr::slice_from_raw_parts_mut(self.y.as_mut_ptr().wrapping_add(self.at), len);
        // SAFETY: rows of the part's head, `ldc` apart, and in them columns that are there.
        unsafe { product_f32_units(isa, p, 0..p.units(), a, b, None, residual, c, scratch) }
    }
}

/// What a query has seen so far.
#[derive(Clone, Copy)]
struct RowState {
    /// The greatest score.
    max: f32,
    /// Σ exp(score - max)
    sum: f32,
    /// Whether any key may be seen.
    any: bool,
}

impl RowState {
    const START: Self = Self { max: f32::NEG_INFINITY, sum: 0.0, any: false };

    /// What probabilities are multiplied by in the end, where a score that no key has takes its share (-∞: there is none).
    fn inverse(self, sink: f32) -> f32 {
        if !self.any || self.sum == 0.0 {
            return 0.0;
        }
        let share = if sink == f32::NEG_INFINITY { 0.0 } else { libm::expf(sink - self.max) };
        1.0 / (self.sum + share)
    }
}

/// Queries `from` and on of head `h` of batch entry `b`, which has `len` valid keys.
struct Rows<'a> {
    b: usize,
    h: usize,
    from: usize,
    len: usize,
    /// The score of no key, or -∞.
    sink: f32,
    q: &'a [f32],
}

impl Rows<'_> {
    /// Products with keys read in place.
    fn dots(&self, isa: Isa, d: &Attention, k: &[f32], keys: &Range<usize>, block: &mut [f32]) {
        for (i, row) in block.chunks_exact_mut(keys.len()).enumerate() {
            let q = &self.q[i * d.q_row..][..d.head_size];
            dots(isa, q, k.get(keys.start * d.k_row..).unwrap_or_default(), d.k_row, row);
        }
    }

    /// Turns a block of products into exponentials; `y`, what the keys before gave, is scaled to the new maxima.
    fn softmax(
        &self,
        isa: Isa,
        d: &Attention,
        mask: Option<&[f32]>,
        keys: &Range<usize>,
        block: &mut [f32],
        states: &mut [RowState; QUERY_BLOCK],
        mut y: Option<&mut HeadOut<'_, '_>>,
        mut scores: Option<&mut [f32]>,
    ) {
        let mut tops = [Top::default(); QUERY_BLOCK];
        // What a row is shifted by waits for all of it: first all rows' maxima, then the exponentials.
        for (i, row) in block.chunks_exact_mut(keys.len()).enumerate() {
            let visible = d.visible(self.from + i, self.len);
            let mask = mask.map(|m| &m[d.mask_at(self.b, self.h, self.from + i)..][..d.mask_keys]);
            if let Some(out) = scores.as_deref_mut() {
                score_out(d, row, &visible, mask, &mut out[i * d.keys..][..d.keys]);
            }
            tops[i] = top(isa, d, row, keys.start, visible, mask, states[i].max);
        }
        for (i, row) in block.chunks_exact_mut(keys.len()).enumerate() {
            let factor = exponentials(isa, d, row, tops[i], mask.is_some(), &mut states[i]);
            if let (Some(y), true) = (y.as_deref_mut(), factor != 1.0) {
                scale(isa, y.row(i), factor);
            }
            if let (Some(out), ScoreStage::Probability) = (scores.as_deref_mut(), d.stage) {
                let inverse = states[i].inverse(self.sink);
                let out = &mut out[i * d.keys..][..d.keys];
                out.fill(0.0);
                out.iter_mut().zip(&*row).for_each(|(o, p)| *o = if inverse == 0.0 { 0.0 } else { p * inverse });
            }
        }
    }
}

/// K of a head in panels of 16 keys.
fn pack_keys(isa: Isa, packed: &mut [f32], k: &[f32], size: usize, len: usize, stride: usize) {
    if size == 0 {
        return;
    }
    for (panel, out) in packed[..packed_len(size, len)].chunks_exact_mut(PANEL * size).enumerate() {
        let from = panel * PANEL;
        pack_panel_transposed(isa, out, &k[from * stride..], size, PANEL.min(len - from), stride);
    }
}

/// Gives out the scores of the first three stages; `row` holds the products of all valid keys.
fn score_out(d: &Attention, row: &[f32], visible: &Range<usize>, mask: Option<&[f32]>, out: &mut [f32]) {
    let capped = d.softcap > 0.0 && d.stage != ScoreStage::Product;
    for (j, out) in out.iter_mut().enumerate() {
        let mut s = row.get(j).map_or(0.0, |s| s * d.scale);
        if capped {
            s = d.softcap * math::scalar::tanh(s / d.softcap);
        }
        if d.stage == ScoreStage::Masked {
            s = match mask {
                _ if !visible.contains(&j) => f32::NEG_INFINITY,
                None => s,
                Some(m) => s + m.get(j).copied().unwrap_or(f32::NEG_INFINITY),
            };
        }
        *out = s;
    }
}

simd_fn! {
    /// `y[j] = q · k[j]` for rows of `k` that are `stride` apart.
    fn dots<S>(s, q: &[f32], k: &[f32], stride: usize, y: &mut [f32]) {
        for (j, y) in y.iter_mut().enumerate() {
            let Some(k) = k.get(j * stride..).and_then(|k| k.get(..q.len())) else { return };
            let mut sum = [s.zero(); 2];
            let mut at = 0;
            while at + 2 * LANES <= q.len() {
                sum[0] = s.load_slice(q, at).fma(s.load_slice(k, at), sum[0]);
                sum[1] = s.load_slice(q, at + LANES).fma(s.load_slice(k, at + LANES), sum[1]);
                at += 2 * LANES;
            }
            while at < q.len() {
                sum[0] = s.load_slice(q, at).fma(s.load_slice(k, at), sum[0]);
                at += LANES;
            }
            *y = (sum[0] + sum[1]).sum();
        }
    }
}

/// The greatest of `start` and the scaled products (for a positive scale), and the bias of them: none.
#[inline(always)]
fn greatest<S: Simd>(s: S, row: &[f32], scale: f32, start: f32) -> (f32, f32) {
    let mut max = [s.splat(f32::NEG_INFINITY); 4];
    let full = row.len() - row.len() % LANES;
    let mut at = 0;
    while at + 4 * LANES <= full {
        for i in 0..4 {
            // SAFETY: every access lies below `full`.
            max[i] = max[i].max(unsafe { s.load(row.as_ptr().add(at + i * LANES)) });
        }
        at += 4 * LANES;
    }
    while at < full {
        max[0] = max[0].max(s.load_slice(row, at));
        at += LANES;
    }
    let max = max[0].max(max[1]).max(max[2].max(max[3])).max_lane();
    let max = row[full..].iter().fold(max, |a, &x| if a > x { a } else { x }) * scale;
    (if max > start { max } else { start }, 0.0)
}

/// Turns products into scores: scaled, capped, masked. The greatest of `start` and them, and the greatest bias.
#[inline(always)]
fn finish_scores<S: Simd>(s: S, d: &Attention, row: &mut [f32], mask: Option<&[f32]>, start: f32) -> (f32, f32) {
    let n = row.len();
    let idx = s.array([0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.]);
    let lowest = s.splat(f32::NEG_INFINITY);
    let scale = s.splat(d.scale);
    let (mut max, mut top_bias) = (s.splat(start), if mask.is_some() { lowest } else { s.zero() });
    for at in (0..n).step_by(LANES) {
        let mut v = s.load_slice(row, at) * scale;
        if d.softcap > 0.0 {
            v = s.splat(d.softcap) * math::tanh(v / s.splat(d.softcap));
        }
        let inside = idx.lt(s.splat((n - at).min(LANES) as f32));
        if let Some(mask) = mask {
            let bias = s.load_slice(mask, at);
            top_bias = top_bias.max(S::F32::select(inside, bias, lowest));
            v = v + bias;
        }
        v.store_slice(row, at);
        max = max.max(S::F32::select(inside, v, lowest));
    }
    (max.max_lane(), top_bias.max_lane())
}

/// What is known of a row before its exponentials.
#[derive(Clone, Copy, Default)]
struct Top {
    /// The visible part of the row.
    start: usize,
    end: usize,
    /// The greatest score so far.
    max: f32,
    /// The greatest bias.
    bias: f32,
}

/// Whether scores stay products until they become exponentials: without cap and mask, scaling can wait, it keeps the order.
fn is_plain(d: &Attention, masked: bool) -> bool {
    d.softcap <= 0.0 && !masked && d.scale > 0.0
}

simd_fn! {
    /// The greatest score of a row of products, of the keys from `first` on, and of those before; keys outside of the visible
    /// ones get 0.
    fn top<S>(
        s, d: &Attention, row: &mut [f32], first: usize, visible: Range<usize>, mask: Option<&[f32]>, before: f32,
    ) -> Top {
        let end = visible.end.min(mask.map_or(usize::MAX, <[f32]>::len)).clamp(first, first + row.len()) - first;
        let start = visible.start.clamp(first, first + end) - first;
        row[..start].fill(0.0);
        row[end..].fill(0.0);
        let row = &mut row[start..end];
        let mask = mask.map(|m| &m[first + start..][..row.len()]);
        let (max, bias) = if is_plain(d, mask.is_some()) {
            greatest(s, row, d.scale, before)
        } else {
            finish_scores(s, d, row, mask, before)
        };
        Top { start, end, max, bias }
    }
}

/// What 2 is raised to for a score: its difference from the greatest.
#[inline(always)]
fn power<S: Simd>(s: S, x: S::F32, scale: S::F32, greatest: S::F32) -> S::F32 {
    (x * scale - greatest) * s.splat(LOG2_E)
}

/// Turns `N` vectors of scores into exponentials and adds them to the sums, each to its own.
///
/// # Safety
/// `p` is valid for reads and writes of `N` vectors; `N` is at most 4.
#[inline(always)]
unsafe fn powers<S: Simd, const N: usize>(s: S, p: *mut f32, scale: S::F32, greatest: S::F32, sums: &mut [S::F32; 4]) {
    let mut e = [s.zero(); N];
    // SAFETY: the caller vouches for the memory.
    unsafe {
        for i in 0..N {
            e[i] = power(s, s.load(p.add(i * LANES)), scale, greatest);
        }
        let e = math::exp2_small(e);
        for i in 0..N {
            e[i].store(p.add(i * LANES));
            sums[i] = sums[i] + e[i];
        }
    }
}

simd_fn! {
    /// Turns a row into exponentials under the greatest score so far; returns what the sums of the keys before are to be
    /// multiplied by.
    fn exponentials<S>(s, d: &Attention, row: &mut [f32], top: Top, masked: bool, state: &mut RowState) -> f32 {
        let row = &mut row[top.start..top.end];
        let (n, max) = (row.len(), top.max);
        // Whether a key is seen is decided by the bias alone: a score may be -∞ or NaN by itself.
        if n == 0 || top.bias == f32::NEG_INFINITY {
            row.fill(0.0);
            return 1.0;
        }
        // The difference from the greatest score comes first: it is exact where both are huge (masks of -3.4e38), and the factor from
        // powers of e to those of two would overflow them.
        let greatest = s.splat(if max == f32::NEG_INFINITY { 0.0 } else { max });
        let scale = s.splat(if is_plain(d, masked) { d.scale } else { 1.0 });
        let full = n - n % LANES;
        let mut sums = [s.zero(); 4];
        let mut at = 0;
        // SAFETY: every access lies below `full`.
        unsafe {
            let p = row.as_mut_ptr();
            if S::MANY_REGISTERS {
                while at + 4 * LANES <= full {
                    powers::<S, 4>(s, p.add(at), scale, greatest, &mut sums);
                    at += 4 * LANES;
                }
            }
            while at + 2 * LANES <= full {
                powers::<S, 2>(s, p.add(at), scale, greatest, &mut sums);
                at += 2 * LANES;
            }
        }
        while at < full {
            let [e] = math::exp2_small([power(s, s.load_slice(row, at), scale, greatest)]);
            e.store_slice(row, at);
            sums[0] = sums[0] + e;
            at += LANES;
        }
        let mut sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])).sum();
        if full < n {
            let [e] = math::exp2_small([power(s, s.load_slice(row, full), scale, greatest)]);
            e.store_slice(row, full);
            sum += row[full..].iter().sum::<f32>();
        }
        let factor = match (state.any, max == state.max) {
            (false, _) | (_, true) => 1.0,
            _ => math::exp2_small([s.splat((state.max - max) * LOG2_E)])[0].max_lane(),
        };
        *state = RowState { max, sum: state.sum * factor + sum, any: true };
        factor
    }
}

simd_fn! {
    /// `x *= factor`; zero for a factor of zero, whatever `x` holds.
    fn scale<S>(s, x: &mut [f32], factor: f32) {
        if factor == 0.0 {
            x.fill(0.0);
            return;
        }
        let f = s.splat(factor);
        for at in (0..x.len()).step_by(LANES) {
            (s.load_slice(x, at) * f).store_slice(x, at);
        }
    }
}
