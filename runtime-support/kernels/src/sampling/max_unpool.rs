//! MaxUnpool: values put back to where a pooling took them from, zero elsewhere.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__MaxUnpool.html>

use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[indices[i]] = x[i]` for `i < n`, the other of `len` elements 0.
    pub struct MaxUnpool {
        operands { read x: T, read indices: I, write y: T }
        nums { n, len }
    }
    entries {
        max_unpool_b8 { T = u8, I = i64 } max_unpool_b16 { T = u16, I = i64 } max_unpool_b32 { T = u32, I = i64 }
        max_unpool_b64 { T = u64, I = i64 }
    }
    body = max_unpool;
}

fn max_unpool<T: Copy + Default>(_: Isa, d: &MaxUnpool, x: &[T], indices: &[i64], y: &mut [T]) -> Result<(), Fault> {
    let (Some(x), Some(indices), Some(y)) = (x.get(..d.n), indices.get(..d.n), y.get_mut(..d.len)) else {
        return Err(Fault::Descriptor);
    };
    y.fill(T::default());
    for (&x, &i) in x.iter().zip(indices) {
        let at = usize::try_from(i).ok().and_then(|i| y.get_mut(i));
        *at.ok_or(Fault::IndexOutOfRange)? = x;
    }
    Ok(())
}
