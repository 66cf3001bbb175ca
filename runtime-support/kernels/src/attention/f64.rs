//! Attention in f64, from the definition.

use super::core::{Attention, Operands, ScoreStage};
use core::ops::Range;

pub(super) fn heads_f64(d: &Attention, units: Range<usize>, lens: &dyn Fn(usize) -> usize, o: Operands<'_, f64>) {
    let Operands { q, k, v, mask, y, mut scores, scratch } = o;
    let (scale, cap) = (f64::from(d.scale), f64::from(d.softcap));
    let line = &mut scratch[..d.keys];
    for unit in units {
        let (b, h) = (unit / d.heads, unit % d.heads);
        let kv = h / (d.heads / d.kv_heads);
        let len = lens(b);
        for i in 0..d.queries {
            let visible = d.visible(i, len);
            let q = &q[b * d.q_batch + h * d.q_head + i * d.q_row..][..d.head_size];
            let y = &mut y[b * d.y_batch + h * d.y_head + i * d.y_row..][..d.v_head_size];
            let bias = |j: usize| match (visible.contains(&j), mask) {
                (false, _) => f64::NEG_INFINITY,
                (true, None) => 0.0,
                (true, Some(_)) if j >= d.mask_keys => f64::NEG_INFINITY,
                (true, Some(m)) => m[d.mask_at(b, h, i) + j],
            };
            let mut out = scores.as_deref_mut().map(|s| &mut s[(unit * d.queries + i) * d.keys..][..d.keys]);
            let mut put = |stage: ScoreStage, j: usize, x: f64| {
                if let (Some(out), true) = (out.as_deref_mut(), stage == d.stage) {
                    out[j] = x;
                }
            };
            let mut any = false;
            for (j, s) in line.iter_mut().enumerate() {
                let k = &k[b * d.k_batch + kv * d.k_head + j * d.k_row..][..d.head_size];
                // Keys past the length may hold anything.
                *s = if j < len { q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * scale } else { 0.0 };
                put(ScoreStage::Product, j, *s);
                if cap > 0.0 {
                    *s = cap * libm::tanh(*s / cap);
                }
                put(ScoreStage::Capped, j, *s);
                let bias = bias(j);
                any |= bias != f64::NEG_INFINITY;
                *s = if visible.contains(&j) { *s + bias } else { bias };
                put(ScoreStage::Masked, j, *s);
            }
            let max = line.iter().copied().fold(f64::NEG_INFINITY, |a, x| if a > x || a.is_nan() { a } else { x });
            let max = if max == f64::NEG_INFINITY { 0.0 } else { max };
            let mut sum = 0.0;
            for s in line.iter_mut() {
                *s = if any { libm::exp(*s - max) } else { 0.0 };
                sum += *s;
            }
            let inverse = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            y.fill(0.0);
            for (j, s) in line.iter().enumerate() {
                put(ScoreStage::Probability, j, s * inverse);
                if j < len && *s != 0.0 {
                    let v = &v[b * d.v_batch + kv * d.v_head + j * d.v_row..][..d.v_head_size];
                    y.iter_mut().zip(v).for_each(|(y, v)| *y += s * inverse * v);
                }
            }
        }
    }
}
