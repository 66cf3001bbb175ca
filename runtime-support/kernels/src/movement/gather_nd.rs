//! GatherND: slices of `x` chosen by index tuples.
//!
//! In: `x` as `[batch, dims…, inner]`, tuples as `[batch, n, k]`. Out: `y` as `[batch, n, inner]`. An index outside its
//! axis is a fault. Source: <https://onnx.ai/onnx/operators/onnx__GatherND.html>

use super::index::{IndexElem, holds, product};
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[b, j, :] = x[b, indices[b, j, 0], …, indices[b, j, k-1], :]`; the first `k` of `dims` count.
    pub struct GatherNd {
        operands { read x: T, read indices: I, write y: T }
        nums { batch, n, k, inner }
        arrays { dims: 8 }
    }
    entries {
        gather_nd_b8 { T = u8, I = i64 } gather_nd_b16 { T = u16, I = i64 } gather_nd_b32 { T = u32, I = i64 }
        gather_nd_b64 { T = u64, I = i64 } gather_nd_b128 { T = [u64; 2], I = i64 }
    }
    body = gather_nd;
}

/// The position of a tuple among its axes, in units of what lies inside them.
pub(crate) fn tuple_position(tuple: &[i64], dims: &[usize]) -> Result<usize, Fault> {
    let mut at = 0;
    for (i, &d) in tuple.iter().zip(dims) {
        at = at * d + i.position(d).ok_or(Fault::IndexOutOfRange)?;
    }
    Ok(at)
}

fn gather_nd<T: Copy>(_: Isa, d: &GatherNd, x: &[T], indices: &[i64], y: &mut [T]) -> Result<(), Fault> {
    let GatherNd { batch, n, k, inner, .. } = *d;
    let dims = d.dims.get(..k).ok_or(Fault::Descriptor)?;
    let block = product(dims).and_then(|p| p.checked_mul(inner)).ok_or(Fault::Descriptor)?;
    if !holds(x.len(), &[batch, block]) || !holds(indices.len(), &[batch, n, k]) || !holds(y.len(), &[batch, n, inner])
    {
        return Err(Fault::Descriptor);
    }
    for b in 0..batch {
        let x = &x[b * block..(b + 1) * block];
        for j in b * n..(b + 1) * n {
            let at = tuple_position(&indices[j * k..(j + 1) * k], dims)?;
            if inner == 1 {
                y[j] = x[at];
            } else {
                y[j * inner..(j + 1) * inner].copy_from_slice(&x[at * inner..(at + 1) * inner]);
            }
        }
    }
    Ok(())
}
