//! ReverseSequence: the first `lengths[b]` steps of each batch in reverse order.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__ReverseSequence.html>

use crate::movement::holds;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `x` as `[time, batch, inner]`, or as `[batch, time, inner]` if `batch_first`.
    pub struct ReverseSequence {
        operands { read x: T, read lengths: I, write y: T }
        nums { time, batch, inner }
        params { batch_first: bool }
    }
    entries {
        reverse_sequence_b8 { T = u8, I = i64 } reverse_sequence_b16 { T = u16, I = i64 }
        reverse_sequence_b32 { T = u32, I = i64 } reverse_sequence_b64 { T = u64, I = i64 }
        reverse_sequence_b128 { T = [u64; 2], I = i64 }
    }
    body = reverse_sequence;
}

fn reverse_sequence<T: Copy>(_: Isa, d: &ReverseSequence, x: &[T], lengths: &[i64], y: &mut [T]) -> Result<(), Fault> {
    let ReverseSequence { time, batch, inner, batch_first, .. } = *d;
    let all = [time, batch, inner];
    if !holds(x.len(), &all) || !holds(y.len(), &all) || lengths.len() < batch {
        return Err(Fault::Descriptor);
    }
    for (b, &n) in lengths[..batch].iter().enumerate() {
        let n = usize::try_from(n).ok().filter(|&n| n <= time).ok_or(Fault::IndexOutOfRange)?;
        for t in 0..time {
            let row = |t: usize| if batch_first { b * time + t } else { t * batch + b } * inner;
            let (from, to) = (row(if t < n { n - 1 - t } else { t }), row(t));
            y[to..to + inner].copy_from_slice(&x[from..from + inner]);
        }
    }
    Ok(())
}
