//! The sums of embeddings at a transformer's entrance, rows plus one bias row, and counts of masks.

use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[b, i] = words[ids[b, i]] + positions[p] + segments[s]`, `p` the given position or `i`, `s` the given segment or 0.
    pub struct EmbedSum {
        operands {
            read ids: I, opt segment_ids: I, opt position_ids: I,
            read words: T, read positions: T, opt segments: T, write y: T,
        }
        nums { batch, rows, n }
    }
    entries { embed_sum_f32 { I = i32, T = f32 } }
    body = embed_sum;
}

fn embed_sum(
    _: Isa,
    d: &EmbedSum,
    ids: &[i32],
    segment_ids: Option<&[i32]>,
    position_ids: Option<&[i32]>,
    words: &[f32],
    positions: &[f32],
    segments: Option<&[f32]>,
    y: &mut [f32],
) -> Result<(), Fault> {
    let n_ids = d.batch.checked_mul(d.rows).ok_or(Fault::Descriptor)?;
    let ok = ids.len() == n_ids
        && n_ids.checked_mul(d.n) == Some(y.len())
        && segment_ids.is_none_or(|s| s.len() == n_ids)
        // One row of positions may serve all entries.
        && position_ids.is_none_or(|p| p.len() == n_ids || p.len() == d.rows);
    if !ok {
        return Err(Fault::Descriptor);
    }
    if d.n == 0 {
        return Ok(());
    }
    let row = |table: &[f32], id: i32| {
        let at = usize::try_from(id).ok().filter(|&i| i < table.len() / d.n).ok_or(Fault::IndexOutOfRange)?;
        Ok(at * d.n)
    };
    for (at, (y, &id)) in y.chunks_exact_mut(d.n).zip(ids).enumerate() {
        let word = row(words, id)?;
        let position = match position_ids {
            Some(p) => row(positions, p[at % p.len()])?,
            None => row(positions, i32::try_from(at % d.rows).map_err(|_| Fault::IndexOutOfRange)?)?,
        };
        let (word, position) = (&words[word..][..d.n], &positions[position..][..d.n]);
        y.iter_mut().zip(word).zip(position).for_each(|((y, w), p)| *y = w + p);
        if let Some(segments) = segments {
            let segment = row(segments, segment_ids.map_or(0, |s| s[at]))?;
            y.iter_mut().zip(&segments[segment..]).for_each(|(y, s)| *y += s);
        }
    }
    Ok(())
}

kernel! {
    /// `y[b]` = how many elements of row `b` are not zero.
    pub struct MaskCount {
        operands { read x: I, write y: I }
    }
    entries { mask_count_i32 { I = i32 } }
    body = mask_count;
}

fn mask_count(_: Isa, _: &MaskCount, x: &[i32], y: &mut [i32]) -> Result<(), Fault> {
    if y.is_empty() {
        return Ok(());
    }
    let n = x.len() / y.len();
    if n * y.len() != x.len() {
        return Err(Fault::Descriptor);
    }
    for (i, y) in y.iter_mut().enumerate() {
        let count = x[i * n..][..n].iter().filter(|&&x| x != 0).count();
        *y = i32::try_from(count).unwrap_or(i32::MAX);
    }
    Ok(())
}

kernel! {
    /// `y = x + bias` for every row of `n`.
    pub struct BiasRows {
        operands { alias x: T, read bias: T, write y: T }
        nums { rows, n }
    }
    entries { bias_rows_f32 { T = f32 } }
    body = bias_rows;
}

fn bias_rows(_: Isa, d: &BiasRows, x: Option<&[f32]>, bias: &[f32], y: &mut [f32]) -> Result<(), Fault> {
    let ok = d.rows.checked_mul(d.n) == Some(y.len()) && bias.len() == d.n && x.is_none_or(|x| x.len() == y.len());
    if !ok {
        return Err(Fault::Descriptor);
    }
    if d.n == 0 {
        return Ok(());
    }
    match x {
        Some(x) => {
            for (x, y) in x.chunks_exact(d.n).zip(y.chunks_exact_mut(d.n)) {
                y.iter_mut().zip(x).zip(bias).for_each(|((y, x), b)| *y = x + b);
            }
        }
        None => y.chunks_exact_mut(d.n).for_each(|y| y.iter_mut().zip(bias).for_each(|(y, b)| *y += b)),
    }
    Ok(())
}
