//! Attention in f32: blocks of queries through the tuned matrix products.
//!
//! K of a head is packed once; a block's scores lie in scratch, become exponentials there, and are multiplied with V read in
//! place; the division by their sum comes last. With few queries (decoding) K is read in place instead: packing would cost as
//! much as the products.

use super::core::{Attention, Operands, QUERY_BLOCK, ScoreStage};
use crate::gemm::{BLayout, GemmParams, Residual, pack_b_into, product_f32};
use crate::simd::{F32x16, LANES, math};
use crate::{Fault, Isa, simd_fn};
use core::ops::Range;

/// Up to this many queries K is not packed.
const FEW_QUERIES: usize = 3;
/// Keys of a packed panel.
const PANEL: usize = 16;

pub(super) fn heads_f32(
    isa: Isa,
    d: &Attention,
    units: Range<usize>,
    lens: &dyn Fn(usize) -> usize,
    o: Operands<'_, f32>,
) -> Result<(), Fault> {
    let Operands { q, k, v, mask, y, mut scores, scratch } = o;
    let (packed, rest) = scratch.split_at_mut((d.keys + 16) * d.head_size);
    let (block, product_scratch) = rest.split_at_mut((d.keys + 16) * QUERY_BLOCK);
    let mut packed_head = usize::MAX;
    for unit in units {
        let (b, h) = (unit / d.heads, unit % d.heads);
        let kv = h / (d.heads / d.kv_heads);
        let len = lens(b);
        let k = k.get(b * d.k_batch + kv * d.k_head..).unwrap_or_default();
        let v = v.get(b * d.v_batch + kv * d.v_head..).unwrap_or_default();
        let few = d.queries <= FEW_QUERIES;
        if !few && packed_head != b * d.kv_heads + kv {
            packed_head = b * d.kv_heads + kv;
            if !pack_b_into(packed, k, d.head_size, len, d.k_row, true) {
                return Err(Fault::Descriptor);
            }
        }
        let mut from = 0;
        while from < d.queries {
            let to = d.queries.min(from + QUERY_BLOCK);
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
            let n = high - low;
            let m = to - from;
            let q = &q[b * d.q_batch + h * d.q_head + from * d.q_row..];
            let block = &mut block[..m * n];
            let mut ok = true;
            if few {
                for i in 0..m {
                    let q = &q[i * d.q_row..][..d.head_size];
                    dots(isa, q, k.get(low * d.k_row..).unwrap_or_default(), d.k_row, &mut block[i * n..][..n]);
                }
            } else {
                let p = GemmParams { lda: d.q_row, ..GemmParams::packed(m, n, d.head_size) };
                ok = product_f32(isa, &p, q, &packed[low * d.head_size..], None, Residual::None, block, &mut []);
            }
            let mut inverse = [0.0f32; QUERY_BLOCK];
            for i in 0..m {
                let row = &mut block[i * n..][..n];
                let visible = d.visible(from + i, len);
                let mask = mask.map(|m| &m[d.mask_at(b, h, from + i)..][..d.mask_keys]);
                let mut out = scores.as_deref_mut().map(|s| &mut s[(unit * d.queries + from + i) * d.keys..][..d.keys]);
                if let Some(out) = out.as_deref_mut() {
                    score_out(d, row, &visible, mask, out);
                }
                inverse[i] = exponentials(isa, d, row, low, visible, mask);
                if let (Some(out), ScoreStage::Probability) = (out, d.stage) {
                    out.fill(0.0);
                    out.iter_mut().zip(&*row).for_each(|(o, p)| *o = p * inverse[i]);
                }
            }
            let y = &mut y[b * d.y_batch + h * d.y_head + from * d.y_row..];
            let p = GemmParams {
                ldb: d.v_row,
                ldc: d.y_row,
                b_layout: BLayout::Rows,
                ..GemmParams::packed(m, d.v_head_size, n)
            };
            let v = v.get(low * d.v_row..).unwrap_or_default();
            ok &= product_f32(isa, &p, block, v, None, Residual::None, y, product_scratch);
            if !ok {
                return Err(Fault::Descriptor);
            }
            for (i, &inverse) in inverse[..m].iter().enumerate() {
                scale(isa, &mut y[i * d.y_row..][..d.v_head_size], inverse);
            }
            from = to;
        }
    }
    Ok(())
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

simd_fn! {
    /// Turns a row of products, of the keys from `first` on, into exponentials; returns 1 / their sum, or 0 where no key may be
    /// seen. Keys outside of the visible ones get 0.
    fn exponentials<S>(
        s, d: &Attention, row: &mut [f32], first: usize, visible: Range<usize>, mask: Option<&[f32]>,
    ) -> f32 {
        let end = visible.end.min(mask.map_or(usize::MAX, <[f32]>::len)).clamp(first, first + row.len()) - first;
        let start = visible.start.clamp(first, first + end) - first;
        row[..start].fill(0.0);
        row[end..].fill(0.0);
        let row = &mut row[start..end];
        let mask = mask.map(|m| &m[first + start..][..row.len()]);
        let n = row.len();
        let idx = s.array([0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.]);
        let lowest = s.splat(f32::NEG_INFINITY);
        let scale = s.splat(d.scale);
        let (mut max, mut top_bias) = (lowest, lowest);
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
            let v = S::F32::select(inside, v, lowest);
            max = S::F32::select(max.is_nan(), max, max.max(v));
        }
        // Whether a key is seen is decided by the bias alone: a score may be -∞ or NaN by itself.
        if n == 0 || (mask.is_some() && top_bias.max_lane() == f32::NEG_INFINITY) {
            row.fill(0.0);
            return 0.0;
        }
        let max = max.to_array().into_iter().fold(f32::NEG_INFINITY, |a, x| if a > x || a.is_nan() { a } else { x });
        let max = s.splat(if max == f32::NEG_INFINITY { 0.0 } else { max });
        let mut sum = s.zero();
        for at in (0..n).step_by(LANES) {
            let e = math::exp(s.load_slice(row, at) - max);
            e.store_slice(row, at);
            let inside = idx.lt(s.splat((n - at).min(LANES) as f32));
            sum = sum + S::F32::select(inside, e, s.zero());
        }
        let sum = sum.sum();
        if sum == 0.0 { 0.0 } else { 1.0 / sum }
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
