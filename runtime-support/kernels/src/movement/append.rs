//! A cache grows: new rows behind those that are there, for which there is room.
//!
//! In: `past`, `lines` lines of which each begins with `past_rows` rows of `size` elements and lies `past_pitch` elements
//! behind the one before; `x`, rows with a stride per line of two levels and per row. Out: `y`, lines of `y_pitch` elements
//! that begin with the old rows and go on with the new ones; what is behind those keeps its bytes.
//! Where `past` is `y` (a state that a model keeps in place) only the new rows move.

use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[l, ..past_rows] = past[l, ..past_rows]`, `y[l, past_rows + r] = x[l / inner, l % inner, r]` for `lines` lines `l`.
    pub struct Append {
        operands { alias past: T, read x: T, update y: T }
        nums { lines, inner, past_rows, rows, size, past_pitch, y_pitch, x_outer, x_inner, x_row }
    }
    entries { append_b8 { T = u8 } append_b16 { T = u16 } append_b32 { T = u32 } append_b64 { T = u64 } append_b128 { T = [u64; 2] } }
    body = append;
}

fn append<T: Copy>(_: Isa, d: &Append, past: Option<&[T]>, x: &[T], y: &mut [T]) -> Result<(), Fault> {
    let Append { lines, inner, past_rows, rows, size, past_pitch, y_pitch, x_outer, x_inner, x_row, .. } = *d;
    if lines == 0 || size == 0 {
        return Ok(());
    }
    let line = |rows: usize| rows.checked_mul(size).ok_or(Fault::Descriptor);
    let total = past_rows.checked_add(rows).ok_or(Fault::Descriptor)?;
    let (old, all) = (line(past_rows)?, line(total)?);
    let end = |pitch: usize, len: usize| (lines - 1).checked_mul(pitch).and_then(|n| n.checked_add(len));
    let fits = |len: usize, pitch: usize, room: usize| {
        (lines == 1 || len <= pitch) && end(pitch, len).is_some_and(|end| end <= room)
    };
    if !fits(all, y_pitch, y.len()) || past.is_some_and(|p| !fits(old, past_pitch, p.len())) || inner == 0 {
        return Err(Fault::Descriptor);
    }
    if past.is_none() && lines > 1 && past_pitch != y_pitch {
        return Err(Fault::Descriptor);
    }
    for l in 0..lines {
        let to = &mut y[l * y_pitch..][..all];
        if let Some(past) = past {
            to[..old].copy_from_slice(&past[l * past_pitch..][..old]);
        }
        let start = (l / inner).wrapping_mul(x_outer).wrapping_add((l % inner).wrapping_mul(x_inner));
        for (r, to) in to[old..].chunks_exact_mut(size).enumerate() {
            let from = start.wrapping_add(r.wrapping_mul(x_row));
            let from = x.get(from..).and_then(|x| x.get(..size)).ok_or(Fault::Descriptor)?;
            to.copy_from_slice(from);
        }
    }
    Ok(())
}

/// How the lines of a tensor lie that has room for more rows in one axis: what a tensor with its axes row by row is spread to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The axis that grows.
    pub axis: usize,
    /// Rows that there is room for.
    pub rows: usize,
}

impl Reserved {
    /// Lines, the bytes used of each and the bytes from one to the next; `None` where there are more rows than room.
    fn lines(&self, shape: &[usize], size: usize) -> Option<(usize, usize, usize)> {
        let product = |dims: &[usize], unit: usize| dims.iter().try_fold(unit, |n, &d| n.checked_mul(d));
        let (outer, rows) = (shape.get(..self.axis)?, *shape.get(self.axis)?);
        let row = product(shape.get(self.axis + 1..)?, size)?;
        let pitch = row.checked_mul(self.rows)?;
        (rows <= self.rows).then_some((product(outer, 1)?, row * rows, pitch))
    }

    /// Copies a tensor of elements of `size` bytes from rows behind each other to its place with room; `None` where it
    /// does not fit.
    pub fn spread(&self, from: &[u8], shape: &[usize], size: usize, to: &mut [u8]) -> Option<()> {
        let (lines, used, pitch) = self.lines(shape, size)?;
        if from.len() != lines.checked_mul(used)? {
            return None;
        }
        (0..lines).try_for_each(|l| {
            to.get_mut(l * pitch..)?.get_mut(..used)?.copy_from_slice(&from[l * used..][..used]);
            Some(())
        })
    }

    /// The used bytes of every line of a tensor with room, in order; `None` where it does not fit.
    pub fn gather(&self, from: &[u8], shape: &[usize], size: usize, each: &mut dyn FnMut(&[u8])) -> Option<()> {
        let (lines, used, pitch) = self.lines(shape, size)?;
        (0..lines).try_for_each(|l| {
            each(from.get(l * pitch..)?.get(..used)?);
            Some(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operand;
    use std::vec;
    use std::vec::Vec;

    fn descriptor(past_pitch: usize) -> Append {
        let o = || Operand::at(0, 0, 0);
        Append {
            past: o(),
            x: o(),
            y: o(),
            lines: 4,
            inner: 2,
            past_rows: 2,
            rows: 1,
            size: 2,
            past_pitch,
            y_pitch: 10,
            x_outer: 4,
            x_inner: 2,
            x_row: 2,
        }
    }

    #[test]
    fn new_rows_follow_the_old_ones() {
        let (past, x): (Vec<u8>, Vec<u8>) = ((1..=16).collect(), (101..=108).collect());
        let mut y = vec![0u8; 40];
        append(Isa::Scalar, &descriptor(4), Some(&past), &x, &mut y).unwrap();
        for l in 0..4u8 {
            let line = &y[l as usize * 10..][..10];
            let old = 4 * l + 1;
            assert_eq!(line, [old, old + 1, old + 2, old + 3, 101 + 2 * l, 102 + 2 * l, 0, 0, 0, 0]);
        }
        // In place the old rows are there already.
        let mut again = y.clone();
        again.iter_mut().filter(|v| **v > 100).for_each(|v| *v = 0);
        append(Isa::Scalar, &descriptor(10), None, &x, &mut again).unwrap();
        assert_eq!(again, y);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (past, x) = ([0u8; 16], [0u8; 8]);
        assert!(append(Isa::Scalar, &descriptor(4), Some(&past), &x, &mut [0; 35]).is_err());
        assert!(append(Isa::Scalar, &descriptor(4), Some(&past), &x[..7], &mut [0; 40]).is_err());
        assert!(append(Isa::Scalar, &descriptor(4), Some(&past[..15]), &x, &mut [0; 40]).is_err());
        assert!(append(Isa::Scalar, &descriptor(4), None, &x, &mut [0; 40]).is_err());
        assert!(append(Isa::Scalar, &Append { rows: 4, ..descriptor(4) }, Some(&past), &x, &mut [0; 40]).is_err());
    }

    #[test]
    fn spreading_and_gathering_are_inverse() {
        let (room, shape) = (Reserved { axis: 1, rows: 3 }, [2, 2, 2]);
        let data: Vec<u8> = (1..=8).collect();
        let mut to = [0u8; 12];
        room.spread(&data, &shape, 1, &mut to).unwrap();
        assert_eq!(to, [1, 2, 3, 4, 0, 0, 5, 6, 7, 8, 0, 0]);
        let mut back = Vec::new();
        room.gather(&to, &shape, 1, &mut |line| back.extend_from_slice(line)).unwrap();
        assert_eq!(back, data);
        assert!(room.spread(&data, &[2, 4, 1], 1, &mut to).is_none());
        assert!(room.spread(&data, &shape, 1, &mut to[..9]).is_none());
    }
}
