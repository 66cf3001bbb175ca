//! The cache of keys and values of GroupQueryAttention: how long each batch entry's is, and new rows at its end.
//!
//! In: `lens`, the index of each entry's last valid row after this call's rows. An entry's past is what comes before the new
//! rows; in the first call (as many new rows as rows in all) there is none.

use crate::{Elem, Fault, Isa, kernel};

kernel! {
    /// Positions of the new rows, and each entry's number of valid rows. Of positions that are `given` the first call takes the
    /// first one only, for all entries, and counts from there, as ONNX Runtime does.
    pub struct CachePositions {
        operands { read lens: I, opt given: P, write positions: P, write valid: P }
        nums { batch, rows, total }
    }
    entries { cache_positions_i32 { I = i32, P = i64 } }
    body = cache_positions;
}

kernel! {
    /// `present` is each entry's past, then its rows of `x`, then zeros. `x` has a stride per
    /// batch entry, head and row; heads of past and present lie `past_head` and `present_head` elements behind each other;
    /// `valid` is [`CachePositions`]'.
    pub struct CacheAppend {
        operands { read x: T, opt_alias past: T, read valid: P, update present: T }
        nums { batch, heads, rows, size, past_rows, present_rows, x_batch, x_head, x_row, past_head, present_head }
    }
    entries { cache_append_f32 { T = f32, P = i64 } }
    body = cache_append;
}

fn cache_positions(
    _: Isa,
    d: &CachePositions,
    lens: &[i32],
    given: Option<&[i64]>,
    positions: &mut [i64],
    valid: &mut [i64],
) -> Result<(), Fault> {
    let ok = lens.len() == d.batch && valid.len() == d.batch && d.batch.checked_mul(d.rows) == Some(positions.len());
    if !ok || given.is_some_and(|g| g.len() != positions.len()) {
        return Err(Fault::Descriptor);
    }
    let rows = i64::try_from(d.rows).map_err(|_| Fault::Descriptor)?;
    for (b, (&last, valid)) in lens.iter().zip(valid).enumerate() {
        let is_first = d.rows == d.total;
        let past = if is_first { 0 } else { i64::from(last) + 1 - rows };
        if past < 0 {
            return Err(Fault::IndexOutOfRange);
        }
        *valid = past + rows;
        let new = &mut positions[b * d.rows..][..d.rows];
        match given {
            Some(given) if !is_first => new.copy_from_slice(&given[b * d.rows..][..d.rows]),
            _ => {
                let start = given.and_then(|g| g.first()).copied().unwrap_or(past);
                new.iter_mut().zip(0..).for_each(|(p, i)| *p = start.saturating_add(i));
            }
        }
    }
    Ok(())
}

fn cache_append<T: Elem>(
    _: Isa,
    d: &CacheAppend,
    x: &[T],
    past: Option<Option<&[T]>>,
    valid: &[i64],
    present: &mut [T],
) -> Result<(), Fault> {
    // What the heads take, the last one's rows and all before; heads do not overlap.
    let fits = |rows: usize, pitch: usize, room: usize| {
        let (head, heads) = (rows.checked_mul(d.size), d.batch.checked_mul(d.heads));
        let len = head.zip(heads).and_then(|(head, heads)| {
            let before = heads.checked_sub(1)?.checked_mul(pitch)?;
            before.checked_add(head).filter(|_| heads == 1 || head <= pitch)
        });
        d.batch == 0 || d.heads == 0 || len.is_some_and(|len| len <= room)
    };
    let terms = [(d.batch, d.x_batch), (d.heads, d.x_head), (d.rows, d.x_row)];
    let reach =
        terms.iter().try_fold(d.size, |sum, &(n, stride)| sum.checked_add(n.saturating_sub(1).checked_mul(stride)?));
    let empty = terms.iter().any(|t| t.0 == 0);
    let in_place = matches!(past, Some(None));
    let ok = fits(d.present_rows, d.present_head, present.len())
        && past.flatten().is_none_or(|p| fits(d.past_rows, d.past_head, p.len()))
        && (!in_place || d.past_head == d.present_head)
        && valid.len() == d.batch
        && (empty || reach.is_some_and(|r| r <= x.len()));
    if !ok {
        return Err(Fault::Descriptor);
    }
    for bh in 0..d.batch * d.heads {
        let (b, h) = (bh / d.heads, bh % d.heads);
        let present = &mut present[bh * d.present_head..][..d.present_rows * d.size];
        let end = usize::try_from(valid[b]).ok().filter(|&v| v <= d.present_rows && v >= d.rows);
        let start = end.ok_or(Fault::IndexOutOfRange)? - d.rows;
        let mut filled = 0;
        if let Some(past) = past {
            filled = start.min(d.past_rows) * d.size;
            if let Some(past) = past {
                present[..filled].copy_from_slice(&past[bh * d.past_head..][..filled]);
            }
        }
        present[filled..].fill(T::default());
        for i in 0..d.rows {
            let from = b * d.x_batch + h * d.x_head + i * d.x_row;
            present[(start + i) * d.size..][..d.size].copy_from_slice(&x[from..][..d.size]);
        }
    }
    Ok(())
}
