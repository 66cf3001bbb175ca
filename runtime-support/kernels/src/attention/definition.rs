//! Attention step by step as its definition has it: for f64, and for bf16 with every step rounded as the operator's function
//! body rounds it.

use super::core::{Attention, Operands, ScoreStage};
use crate::real::Real;
use core::ops::Range;

/// The heads `units`; see [`Attention`].
pub(super) fn heads_by_definition<T: Real>(
    d: &Attention,
    units: Range<usize>,
    lens: &dyn Fn(usize) -> usize,
    o: Operands<'_, T>,
) {
    let Operands { q, k, v, mask, sink, mut y, mut scores, scratch } = o;
    let round = |x: f64| T::put(x).get();
    // Both factors of a product are scaled by the root.
    let root = round(libm::sqrt(f64::from(d.scale)));
    let cap = f64::from(d.softcap);
    // The softmax may be computed in a wider type.
    let fine = |x: f64| if d.wide_softmax { x } else { round(x) };
    let line = &mut scratch[..d.keys];
    for unit in units {
        let (b, h) = (unit / d.heads, unit % d.heads);
        let kv = h / (d.heads / d.kv_heads);
        let len = lens(b);
        for i in 0..d.queries {
            let visible = d.visible(i, len);
            let q = &q[b * d.q_batch + h * d.q_head + i * d.q_row..][..d.head_size];
            let at = b * d.y_batch + h * d.y_head + i * d.y_row;
            // SAFETY: a row of the unit's head, which is the part's alone.
            let y = unsafe { y.own(at..at + d.v_head_size) };
            let bias = |j: usize| match (visible.contains(&j), mask) {
                (false, _) => f64::NEG_INFINITY,
                (true, None) => 0.0,
                (true, Some(_)) if j >= d.mask_keys => f64::NEG_INFINITY,
                (true, Some(m)) => m[d.mask_at(b, h, i) + j].get(),
            };
            let at = (unit * d.queries + i) * d.keys;
            // SAFETY: as above.
            let mut out = scores.as_mut().map(|s| unsafe { s.own(at..at + d.keys) });
            let mut put = |stage: ScoreStage, j: usize, x: f64| {
                if let (Some(out), true) = (out.as_deref_mut(), stage == d.stage) {
                    out[j] = T::put(x);
                }
            };
            let (mut any, mut max) = (false, f64::NEG_INFINITY);
            for (j, line) in line.iter_mut().enumerate() {
                let k = k.get(b * d.k_batch + kv * d.k_head + j * d.k_row..).unwrap_or_default();
                // Keys past the length may hold anything.
                let products = q.iter().zip(k).map(|(q, k)| round(q.get() * root) * round(k.get() * root));
                let mut s = if j < len { round(products.sum::<f64>()) } else { 0.0 };
                put(ScoreStage::Product, j, s);
                if cap > 0.0 {
                    s = round(round(libm::tanh(round(s / cap))) * cap);
                }
                put(ScoreStage::Capped, j, s);
                let bias = bias(j);
                any |= bias != f64::NEG_INFINITY;
                s = if visible.contains(&j) { round(s + bias) } else { bias };
                put(ScoreStage::Masked, j, s);
                max = if max > s || max.is_nan() { max } else { s };
                *line = T::put(s);
            }
            let max = if max == f64::NEG_INFINITY { 0.0 } else { max };
            let exponential = |s: T| if any { fine(libm::exp(fine(s.get() - max))) } else { 0.0 };
            // Every addition is rounded, in blocks of eight: longer sums would stop growing.
            let block = |b: &[T]| b.iter().fold(0.0, |sum, &s| fine(sum + exponential(s)));
            let sum = fine(line.chunks(8).map(block).sum());
            let sum = sum + sink.filter(|_| any).map_or(0.0, |s| fine(libm::exp(fine(s[h].get() - max))));
            let sum = if sum == 0.0 { 1.0 } else { sum };
            for (j, s) in line.iter_mut().enumerate() {
                *s = T::put(exponential(*s) / sum);
                put(ScoreStage::Probability, j, s.get());
            }
            for (c, y) in y.iter_mut().enumerate() {
                let rows = line[..len].iter().enumerate().filter(|(_, p)| p.get() != 0.0);
                let value = |j: usize| v[b * d.v_batch + kv * d.v_head + j * d.v_row + c].get();
                *y = T::put(rows.map(|(j, p)| p.get() * value(j)).sum::<f64>());
            }
        }
    }
}
