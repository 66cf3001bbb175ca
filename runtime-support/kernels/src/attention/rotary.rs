//! Rotary position embedding.
//!
//! In: `x` with a stride per batch entry, head and row; cosines and sines by position; positions per batch entry and row, or
//! one start, or none (row `i` of entry `b` then is row `b·rows + i` of the tables, or row `i`).
//! Out: `y` in any such layout: pairs of elements rotated, the rest of a head copied.

use crate::{Elem, Fault, Isa, kernel};
use core::ops::{Add, Mul, Sub};

kernel! {
    /// Rotates the first `rotary` elements of every head: pairs are neighbours (`interleaved`) or lie half of `rotary` apart.
    /// `positions` has one element per batch entry and row, or a single start. Without it, the tables' row is `i + b·table_batch`.
    pub struct RotaryEmbedding {
        operands { read x: T, opt positions: I, read cos: T, read sin: T, update y: T }
        nums {
            batch, heads, rows, head_size, rotary, table_rows, table_batch,
            x_batch, x_head, x_row, y_batch, y_head, y_row,
        }
        params { interleaved: bool }
    }
    entries { rotary_embedding_f32 { T = f32, I = i64 } rotary_embedding_f64 { T = f64, I = i64 } }
    body = rotary_embedding;
}

fn rotary_embedding<T: Elem + Mul<Output = T> + Add<Output = T> + Sub<Output = T>>(
    _: Isa,
    d: &RotaryEmbedding,
    x: &[T],
    positions: Option<&[i64]>,
    cos: &[T],
    sin: &[T],
    y: &mut [T],
) -> Result<(), Fault> {
    let reach = |strides: [usize; 3]| {
        let terms = [(d.batch, strides[0]), (d.heads, strides[1]), (d.rows, strides[2])];
        if terms.iter().any(|t| t.0 == 0) {
            return Some(0);
        }
        terms.iter().try_fold(d.head_size, |sum, &(n, stride)| sum.checked_add((n - 1).checked_mul(stride)?))
    };
    let half = d.rotary / 2;
    let table = d.table_rows.checked_mul(half);
    let n_positions = d.batch.checked_mul(d.rows);
    let ok = reach([d.x_batch, d.x_head, d.x_row]).is_some_and(|n| n <= x.len())
        && reach([d.y_batch, d.y_head, d.y_row]).is_some_and(|n| n <= y.len())
        && d.rotary.is_multiple_of(2)
        && d.rotary <= d.head_size
        && table == Some(cos.len())
        && table == Some(sin.len())
        && positions.is_none_or(|p| p.len() == 1 || n_positions == Some(p.len()));
    if !ok {
        return Err(Fault::Descriptor);
    }
    for b in 0..d.batch {
        for i in 0..d.rows {
            let row = match positions {
                None => b.checked_mul(d.table_batch).and_then(|r| r.checked_add(i)),
                Some([start]) if n_positions != Some(1) => usize::try_from(*start).ok().and_then(|s| s.checked_add(i)),
                Some(p) => usize::try_from(p[b * d.rows + i]).ok(),
            };
            let row = row.filter(|&r| r < d.table_rows).ok_or(Fault::IndexOutOfRange)?;
            let (cos, sin) = (&cos[row * half..][..half], &sin[row * half..][..half]);
            for h in 0..d.heads {
                let x = &x[b * d.x_batch + h * d.x_head + i * d.x_row..][..d.head_size];
                let y = &mut y[b * d.y_batch + h * d.y_head + i * d.y_row..][..d.head_size];
                y[d.rotary..].copy_from_slice(&x[d.rotary..]);
                let (x, y) = (&x[..d.rotary], &mut y[..d.rotary]);
                if d.interleaved {
                    for (((x, y), &c), &s) in x.chunks_exact(2).zip(y.chunks_exact_mut(2)).zip(cos).zip(sin) {
                        (y[0], y[1]) = (c * x[0] - s * x[1], s * x[0] + c * x[1]);
                    }
                } else {
                    let (x0, x1) = x.split_at(half);
                    let (y0, y1) = y.split_at_mut(half);
                    for j in 0..half {
                        y0[j] = cos[j] * x0[j] - sin[j] * x1[j];
                        y1[j] = sin[j] * x0[j] + cos[j] * x1[j];
                    }
                }
            }
        }
    }
    Ok(())
}
