//! TensorScatter: rows written into a cache from an index of each batch on.
//!
//! In: `past` as `[batch, outer, length, inner]`, `update` as `[batch, outer, rows, inner]`.
//! Source: <https://onnx.ai/onnx/operators/onnx__TensorScatter.html>

use crate::movement::holds;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y = past`, then `y[b, o, write_indices[b] + r, :] = update[b, o, r, :]`, `circular`: modulo the length. Absent
    /// indices are 0; a row outside the cache is a fault.
    pub struct TensorScatter {
        operands { alias past: T, read update: T, opt write_indices: I, write y: T }
        nums { batch, outer, length, rows, inner }
        params { circular: bool }
    }
    entries {
        tensor_scatter_b8 { T = u8, I = i64 } tensor_scatter_b16 { T = u16, I = i64 } tensor_scatter_b32 { T = u32, I = i64 }
        tensor_scatter_b64 { T = u64, I = i64 } tensor_scatter_b128 { T = [u64; 2], I = i64 }
    }
    body = tensor_scatter;
}

fn tensor_scatter<T: Copy>(
    _: Isa,
    d: &TensorScatter,
    past: Option<&[T]>,
    update: &[T],
    write_indices: Option<&[i64]>,
    y: &mut [T],
) -> Result<(), Fault> {
    let TensorScatter { batch, outer, length, rows, inner, circular, .. } = *d;
    let all = [batch, outer, length, inner];
    if !holds(y.len(), &all)
        || !holds(update.len(), &[batch, outer, rows, inner])
        || write_indices.is_some_and(|w| w.len() < batch)
    {
        return Err(Fault::Descriptor);
    }
    if let Some(past) = past {
        if past.len() != y.len() {
            return Err(Fault::Descriptor);
        }
        y.copy_from_slice(past);
    }
    for b in 0..batch {
        let start = write_indices.map_or(0, |w| w[b]);
        let start = usize::try_from(start).map_err(|_| Fault::IndexOutOfRange)?;
        for o in 0..outer {
            for r in 0..rows {
                let at = start.checked_add(r).ok_or(Fault::IndexOutOfRange)?;
                let at = if circular { at.checked_rem(length) } else { Some(at).filter(|&at| at < length) };
                let to = ((b * outer + o) * length + at.ok_or(Fault::IndexOutOfRange)?) * inner;
                let from = ((b * outer + o) * rows + r) * inner;
                y[to..to + inner].copy_from_slice(&update[from..from + inner]);
            }
        }
    }
    Ok(())
}
