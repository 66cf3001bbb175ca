//! Trilu: the upper or lower triangle of matrices, zero elsewhere.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__Trilu.html>

use crate::movement::holds;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[m, r, c] = x[m, r, c]` where `c - r >= k` (upper) or `c - r <= k` (lower), else 0. `k` is 0 if absent.
    pub struct Trilu {
        operands { read x: T, opt k: I, write y: T }
        nums { outer, h, w }
        params { upper: bool }
    }
    entries {
        trilu_b8 { T = u8, I = i64 } trilu_b16 { T = u16, I = i64 } trilu_b32 { T = u32, I = i64 }
        trilu_b64 { T = u64, I = i64 } trilu_b128 { T = [u64; 2], I = i64 }
    }
    body = trilu;
}

fn trilu<T: Copy + Default>(_: Isa, d: &Trilu, x: &[T], k: Option<&[i64]>, y: &mut [T]) -> Result<(), Fault> {
    let Trilu { outer, h, w, upper, .. } = *d;
    let k = match k {
        None => 0,
        Some(k) => *k.first().ok_or(Fault::Descriptor)?,
    };
    if !holds(x.len(), &[outer, h, w]) || !holds(y.len(), &[outer, h, w]) {
        return Err(Fault::Descriptor);
    }
    if outer * h * w == 0 {
        return Ok(());
    }
    for (row, (x, y)) in x.chunks_exact(w).zip(y.chunks_exact_mut(w)).take(outer * h).enumerate() {
        let r = (row % h) as i64;
        // The first column of the upper triangle; the lower one ends one further.
        let diagonal = if upper { r.saturating_add(k) } else { r.saturating_add(k).saturating_add(1) };
        let at = diagonal.clamp(0, w as i64) as usize;
        let (keep, clear) = if upper { (at..w, 0..at) } else { (0..at, at..w) };
        y[keep.clone()].copy_from_slice(&x[keep]);
        y[clear].fill(T::default());
    }
    Ok(())
}
