//! Linear attention: a state per head, updated by every step's key and value, read by its queries.
//!
//! In: q, k, v as `[batch, steps, heads · size]`, decays (logarithms) and update rates per step. Out: `y` alike, the last
//! state. Source: <https://onnx.ai/onnx/operators/onnx__LinearAttention.html>

use crate::simd::math;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `S = exp(decay)·S + k ⊗ v`, or with `delta` `… + k ⊗ beta·(v - Sᵀk)`; `y = scale · Sᵀq`. Widths are elements per step:
    /// of decays a head's or every key element's, of rates a head's or one. Scratch: one row of v.
    pub struct LinearAttention {
        operands {
            read q: T, read k: T, read v: T, opt past: T, opt decay: T, opt beta: T,
            write y: T, write state: T, write scratch: T,
        }
        nums { batch, steps, q_heads, kv_heads, k_size, v_size, decay_width, beta_width }
        params { scale: f32, delta: bool }
    }
    entries { linear_attention_f32 { T = f32 } }
    body = linear_attention;
}

fn linear_attention(
    _: Isa,
    d: &LinearAttention,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    past: Option<&[f32]>,
    decay: Option<&[f32]>,
    beta: Option<&[f32]>,
    y: &mut [f32],
    state: &mut [f32],
    scratch: &mut [f32],
) -> Result<(), Fault> {
    let rows = d.batch.checked_mul(d.steps).ok_or(Fault::Descriptor)?;
    let len = |heads: usize, size: usize| heads.checked_mul(size)?.checked_mul(rows);
    let state_len = [d.kv_heads, d.k_size, d.v_size].iter().try_fold(d.batch, |n, &d| n.checked_mul(d));
    let per_key = d.kv_heads.checked_mul(d.k_size);
    let ok = d.kv_heads > 0
        && d.q_heads.is_multiple_of(d.kv_heads)
        && len(d.q_heads, d.k_size) == Some(q.len())
        && len(d.kv_heads, d.k_size) == Some(k.len())
        && len(d.kv_heads, d.v_size) == Some(v.len())
        && len(d.q_heads, d.v_size) == Some(y.len())
        && state_len == Some(state.len())
        && past.is_none_or(|p| p.len() == state.len())
        && decay.is_none_or(|x| {
            (d.decay_width == d.kv_heads || per_key == Some(d.decay_width))
                && rows.checked_mul(d.decay_width) == Some(x.len())
        })
        && beta.is_none_or(|x| {
            (d.beta_width == d.kv_heads || d.beta_width == 1) && rows.checked_mul(d.beta_width) == Some(x.len())
        })
        && scratch.len() >= d.v_size;
    if !ok {
        return Err(Fault::Descriptor);
    }
    match past {
        Some(past) => state.copy_from_slice(past),
        None => state.fill(0.0),
    }
    let write = &mut scratch[..d.v_size];
    let scale = super::scale_or_default(d.scale, d.k_size);
    let group = d.q_heads / d.kv_heads;
    if d.k_size == 0 || d.v_size == 0 {
        y.fill(0.0);
        return Ok(());
    }
    for (bh, state) in state.chunks_exact_mut(d.k_size * d.v_size).enumerate() {
        let (b, h) = (bh / d.kv_heads, bh % d.kv_heads);
        for t in 0..d.steps {
            let row = b * d.steps + t;
            let k = &k[(row * d.kv_heads + h) * d.k_size..][..d.k_size];
            let v = &v[(row * d.kv_heads + h) * d.v_size..][..d.v_size];
            if let Some(decay) = decay {
                for (i, s) in state.chunks_exact_mut(d.v_size).enumerate() {
                    let own = if d.decay_width == d.kv_heads { h } else { h * d.k_size + i };
                    let keep = math::scalar::exp(decay[row * d.decay_width + own]);
                    s.iter_mut().for_each(|s| *s *= keep);
                }
            }
            write.copy_from_slice(v);
            if d.delta {
                for (&k, s) in k.iter().zip(state.chunks_exact(d.v_size)) {
                    write.iter_mut().zip(s).for_each(|(w, s)| *w -= k * s);
                }
            }
            if let Some(beta) = beta {
                let rate = beta[row * d.beta_width + if d.beta_width == 1 { 0 } else { h }];
                write.iter_mut().for_each(|w| *w *= rate);
            }
            for (&k, s) in k.iter().zip(state.chunks_exact_mut(d.v_size)) {
                s.iter_mut().zip(&*write).for_each(|(s, w)| *s += k * w);
            }
            for head in h * group..(h + 1) * group {
                let q = &q[(row * d.q_heads + head) * d.k_size..][..d.k_size];
                let y = &mut y[(row * d.q_heads + head) * d.v_size..][..d.v_size];
                y.fill(0.0);
                for (&q, s) in q.iter().zip(state.chunks_exact(d.v_size)) {
                    y.iter_mut().zip(s).for_each(|(y, s)| *y += q * s);
                }
                y.iter_mut().for_each(|y| *y *= scale);
            }
        }
    }
    Ok(())
}
