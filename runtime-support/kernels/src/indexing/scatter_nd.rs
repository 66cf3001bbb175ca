//! ScatterND: a copy of `x` in which slices chosen by index tuples are updated.
//!
//! In: `x` as `[dims…, inner]`, tuples as `[n, k]`, updates as `[n, inner]`. An index outside its axis is a fault.
//! Source: <https://onnx.ai/onnx/operators/onnx__ScatterND.html>

use super::{Join, Update};
use crate::movement::{holds, tuple_position};
use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y = x`, then `y[indices[j]…, :]` joined with `updates[j, :]`, `j` rising; the first `k` of `dims` count.
    pub struct ScatterNd {
        operands { alias x: T, read indices: I, read updates: T, write y: T }
        nums { n, k, inner }
        arrays { dims: 8 }
        params { how: Update }
    }
    entries {
        scatter_nd_u8 { T = u8, I = i64 } scatter_nd_u16 { T = u16, I = i64 } scatter_nd_u32 { T = u32, I = i64 }
        scatter_nd_u64 { T = u64, I = i64 } scatter_nd_b128 { T = [u64; 2], I = i64 }
        scatter_nd_i8 { T = i8, I = i64 } scatter_nd_i16 { T = i16, I = i64 } scatter_nd_i32 { T = i32, I = i64 }
        scatter_nd_i64 { T = i64, I = i64 } scatter_nd_f16 { T = f16, I = i64 } scatter_nd_bf16 { T = bf16, I = i64 }
        scatter_nd_f32 { T = f32, I = i64 } scatter_nd_f64 { T = f64, I = i64 }
    }
    body = scatter_nd;
}

fn scatter_nd<T: Join>(
    _: Isa,
    d: &ScatterNd,
    x: Option<&[T]>,
    indices: &[i64],
    updates: &[T],
    y: &mut [T],
) -> Result<(), Fault> {
    let ScatterNd { n, k, inner, .. } = *d;
    let dims = d.dims.get(..k).ok_or(Fault::Descriptor)?;
    let mut extents = [1; 9];
    extents[..k].copy_from_slice(dims);
    extents[8] = inner;
    if !holds(y.len(), &extents) || !holds(indices.len(), &[n, k]) || !holds(updates.len(), &[n, inner]) {
        return Err(Fault::Descriptor);
    }
    if let Some(x) = x {
        if x.len() != y.len() {
            return Err(Fault::Descriptor);
        }
        y.copy_from_slice(x);
    }
    for j in 0..n {
        let at = tuple_position(&indices[j * k..(j + 1) * k], dims)? * inner;
        let (to, new) = (&mut y[at..at + inner], &updates[j * inner..(j + 1) * inner]);
        if d.how == Update::Replace {
            to.copy_from_slice(new);
        } else {
            for (y, &new) in to.iter_mut().zip(new) {
                *y = y.join(d.how, new);
            }
        }
    }
    Ok(())
}
