//! Nearest resizing of two neighbouring axes at once: rows and columns chosen by tables.
//!
//! In: `x` as `[outer, h, w, inner]`. Out: `y` as `[outer, oh, ow, inner]`. Rows that repeat are copied from the one before.

use crate::movement::holds;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[o, r, c, :] = x[o, rows[r], cols[c], :]`; `fill` where either is negative.
    pub struct ResizeNearest {
        operands { read x: T, read rows: I, read cols: I, opt fill: T, write y: T }
        nums { outer, h, w, oh, ow, inner }
    }
    entries {
        resize_nearest_b8 { T = u8, I = i32 } resize_nearest_b16 { T = u16, I = i32 } resize_nearest_b32 { T = u32, I = i32 }
        resize_nearest_b64 { T = u64, I = i32 } resize_nearest_b128 { T = [u64; 2], I = i32 }
    }
    body = resize_nearest;
}

fn resize_nearest<T: Copy + Default>(
    _: Isa,
    d: &ResizeNearest,
    x: &[T],
    rows: &[i32],
    cols: &[i32],
    fill: Option<&[T]>,
    y: &mut [T],
) -> Result<(), Fault> {
    let ResizeNearest { outer, h, w, oh, ow, inner, .. } = *d;
    if !holds(x.len(), &[outer, h, w, inner]) || !holds(y.len(), &[outer, oh, ow, inner]) {
        return Err(Fault::Descriptor);
    }
    if outer * oh * ow * inner == 0 {
        return Ok(());
    }
    let (rows, cols) = (rows.get(..oh).ok_or(Fault::Descriptor)?, cols.get(..ow).ok_or(Fault::Descriptor)?);
    if rows.iter().any(|&r| i64::from(r) >= h as i64) || cols.iter().any(|&c| i64::from(c) >= w as i64) {
        return Err(Fault::Descriptor);
    }
    let fill = fill.and_then(|f| f.first().copied()).unwrap_or_default();
    let doubles = ow == 2 * w && inner == 1 && cols.iter().enumerate().all(|(j, &c)| c as usize == j / 2);
    let blocks = cols.iter().all(|&c| c >= 0);
    let row_len = ow * inner;
    for o in 0..outer {
        let x = &x[o * h * w * inner..(o + 1) * h * w * inner];
        let y = &mut y[o * oh * row_len..(o + 1) * oh * row_len];
        for (r, &from) in rows.iter().enumerate() {
            if r > 0 && rows[r - 1] == from {
                y.copy_within((r - 1) * row_len..r * row_len, r * row_len);
                continue;
            }
            let y = &mut y[r * row_len..(r + 1) * row_len];
            if from < 0 {
                y.fill(fill);
                continue;
            }
            let x = &x[from as usize * w * inner..][..w * inner];
            if doubles {
                for (y, &x) in y.as_chunks_mut::<2>().0.iter_mut().zip(x) {
                    *y = [x; 2];
                }
            } else if blocks && inner == 16 {
                for (y, &c) in y.as_chunks_mut::<16>().0.iter_mut().zip(cols) {
                    *y = x.as_chunks::<16>().0[c as usize];
                }
            } else {
                for (y, &c) in y.chunks_exact_mut(inner).zip(cols) {
                    match usize::try_from(c) {
                        Err(_) => y.fill(fill),
                        Ok(c) if inner == 1 => y[0] = x[c],
                        Ok(c) => y.copy_from_slice(&x[c * inner..(c + 1) * inner]),
                    }
                }
            }
        }
    }
    Ok(())
}
