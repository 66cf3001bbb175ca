//! Masks as what is added to scores: of yes and no, and ONNX Runtime's of flags, lengths, and both ends.

use crate::real::Real;
use crate::{Elem, Fault, Isa, bf16, kernel};

kernel! {
    /// `y = x ? 0 : masked` element by element.
    pub struct MaskBias {
        operands { read x: B, write y: T }
        params { masked: f32 }
    }
    entries {
        mask_bias_f32 { B = u8, T = f32 } mask_bias_f64 { B = u8, T = f64 }
        mask_bias_bf16 { B = u8, T = bf16 }
        mask_bias_i32_f32 { B = i32, T = f32 } mask_bias_i32_f64 { B = i32, T = f64 }
    }
    body = mask_bias;
}

kernel! {
    /// What ONNX Runtime's masks add to scores: `y[b, h, i, j]` is `bias` (0 without one), and
    /// - with `causal`, the lowest number where key `j` lies behind query `i`'s position `past + i`, but for the last query, which sees all;
    /// - else `masked` where the mask hides the key. The mask is flags (0 hides) with strides per batch entry and query from
    ///   `x_start` on, or, with `lengths`, ends `[batch]`, ends and starts `[2 · batch]`, or `[3 · batch + 2]` with ends first.
    pub struct AttentionMask {
        operands { opt x: I, opt bias: T, write y: T }
        nums { batch, heads, rows, keys, past, x_start, x_batch, x_row, bias_batch, bias_head, bias_row }
        params { masked: f32, lengths: bool, causal: bool }
    }
    entries { attention_mask_i32_f32 { I = i32, T = f32 } }
    body = attention_mask;
}

kernel! {
    /// Lengths of keys as [`Attention`](super::Attention) takes them: where none is left all are, for all scores are lowered alike.
    pub struct KeyLengths {
        operands { read x: I, write y: I }
    }
    entries { key_lengths_i32 { I = i32 } }
    body = key_lengths;
}

/// Whether strides over extents stay below `len`, rows of `keys` elements included.
fn reaches(extents: [(usize, usize); 3], start: usize, keys: usize, len: usize) -> bool {
    if keys == 0 || extents.iter().any(|e| e.0 == 0) {
        return true;
    }
    let end = extents.iter().try_fold(start, |at, &(n, stride)| at.checked_add((n - 1).checked_mul(stride)?));
    end.and_then(|at| at.checked_add(keys)).is_some_and(|end| end <= len)
}

/// The keys that a mask of lengths leaves a batch entry.
fn left(x: &[i32], batch: usize, b: usize, keys: usize) -> core::ops::Range<usize> {
    let at = |v: i32| usize::try_from(v).unwrap_or(0).min(keys);
    let start = if x.len() == 2 * batch { at(x[batch + b]) } else { 0 };
    start..at(x[b])
}

fn attention_mask(
    _: Isa,
    d: &AttentionMask,
    x: Option<&[i32]>,
    bias: Option<&[f32]>,
    y: &mut [f32],
) -> Result<(), Fault> {
    let all = [d.heads, d.rows, d.keys].iter().try_fold(d.batch, |n, &d| n.checked_mul(d));
    let (b, h, r) = (d.batch, d.heads, d.rows);
    let flags = [(b, d.x_batch), (1, 0), (r, d.x_row)];
    let fits = |x: &[i32]| match d.lengths {
        true => [Some(b), b.checked_mul(2), b.checked_mul(3).and_then(|n| n.checked_add(2))].contains(&Some(x.len())),
        false => reaches(flags, d.x_start, d.keys, x.len()),
    };
    let biases = [(b, d.bias_batch), (h, d.bias_head), (r, d.bias_row)];
    if all != Some(y.len()) || !x.is_none_or(fits) || !bias.is_none_or(|m| reaches(biases, 0, d.keys, m.len())) {
        return Err(Fault::Descriptor);
    }
    if y.is_empty() {
        return Ok(());
    }
    for (at, y) in y.chunks_exact_mut(d.keys).enumerate() {
        let (b, h, i) = (at / (d.heads * d.rows), at / d.rows % d.heads, at % d.rows);
        match bias {
            Some(bias) => y.copy_from_slice(&bias[b * d.bias_batch + h * d.bias_head + i * d.bias_row..][..d.keys]),
            None => y.fill(0.0),
        }
        let behind = if d.causal && i + 1 < d.rows { d.past.saturating_add(i + 1).min(d.keys) } else { d.keys };
        y[behind..].iter_mut().for_each(|y| *y += f32::MIN);
        let Some(x) = x else { continue };
        if d.lengths {
            let left = left(x, d.batch, b, d.keys);
            let hidden = |(j, y): (usize, &mut f32)| {
                if !left.contains(&j) {
                    *y += d.masked
                }
            };
            y[..behind].iter_mut().enumerate().for_each(hidden);
        } else {
            let flags = &x[d.x_start + b * d.x_batch + i * d.x_row..][..behind];
            y.iter_mut().zip(flags).filter(|(_, flag)| **flag <= 0).for_each(|(y, _)| *y += d.masked);
        }
    }
    Ok(())
}

fn key_lengths(_: Isa, _: &KeyLengths, x: &[i32], y: &mut [i32]) -> Result<(), Fault> {
    if x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    x.iter().zip(y).for_each(|(&x, y)| *y = if x <= 0 { i32::MAX } else { x });
    Ok(())
}

fn mask_bias<B: Elem, T: Real>(_: Isa, d: &MaskBias, x: &[B], y: &mut [T]) -> Result<(), Fault> {
    if x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    for (&x, y) in x.iter().zip(y) {
        *y = T::put(if x == B::default() { f64::from(d.masked) } else { 0.0 });
    }
    Ok(())
}
