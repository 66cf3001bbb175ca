//! TfIdfVectorizer: how often each known n-gram occurs in a sequence, with items skipped.
//!
//! In: rows of items, and the pool of n-grams sorted by length and then item by item. Out: per row one number for each
//! coordinate. Source: <https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html>

use crate::movement::holds;
use crate::{Elem, Fault, Isa, kernel};
use core::cmp::Ordering;

kernel! {
    /// `y[row, slots[i]] += weights[i]` for every occurrence of n-gram `i`; set once with `once`.
    ///
    /// `levels` has three numbers for each length from 1 on: where the n-grams of this length start in `grams`, the first
    /// one's index, and their number. `min` is the shortest length that counts, `skips` the most items left out in between.
    pub struct NGrams {
        operands { read x: X, read grams: I, read levels: I, read slots: I, read weights: W, write y: W }
        nums { rows, n, width }
        params { min: u32, skips: u32, once: bool }
    }
    entries { n_grams_i32 { X = i32, I = i64, W = f32 } n_grams_i64 { X = i64, I = i64, W = f32 } }
    body = n_grams;
}

/// The n-grams of one length.
struct Level<'p> {
    length: usize,
    grams: &'p [i64],
    slots: &'p [i64],
    weights: &'p [f32],
}

impl<'p> Level<'p> {
    fn of(length: usize, place: &[i64], grams: &'p [i64], slots: &'p [i64], weights: &'p [f32]) -> Option<Self> {
        let number = |i: usize| usize::try_from(*place.get(i)?).ok();
        let (start, first, count) = (number(0)?, number(1)?, number(2)?);
        let (items, last) = (count.checked_mul(length)?, first.checked_add(count)?);
        let grams = grams.get(start..start.checked_add(items)?)?;
        Some(Self { length, grams, slots: slots.get(first..last)?, weights: weights.get(first..last)? })
    }

    /// The index of the n-gram that these items are.
    fn find(&self, items: impl Iterator<Item = i64> + Clone) -> Option<usize> {
        let (mut low, mut high) = (0, self.slots.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.grams[middle * self.length..][..self.length].iter().copied().cmp(items.clone()) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Some(middle),
            }
        }
        None
    }
}

fn n_grams<X: Elem + Into<i64>>(
    _: Isa,
    d: &NGrams,
    x: &[X],
    grams: &[i64],
    levels: &[i64],
    slots: &[i64],
    weights: &[f32],
    y: &mut [f32],
) -> Result<(), Fault> {
    let NGrams { rows, n, width, once, .. } = *d;
    if !holds(x.len(), &[rows, n]) || !holds(y.len(), &[rows, width]) || d.min == 0 {
        return Err(Fault::Descriptor);
    }
    y[..rows * width].fill(0.0);
    for row in 0..rows {
        let (x, y) = (&x[row * n..][..n], &mut y[row * width..][..width]);
        for (i, place) in levels.chunks_exact(3).enumerate().skip(d.min as usize - 1) {
            let level = Level::of(i + 1, place, grams, slots, weights).ok_or(Fault::Descriptor)?;
            // A single item skips nothing: it counts once.
            let widest = if level.length == 1 { 1 } else { d.skips as usize + 1 };
            for step in 1..=widest {
                let Some(reach) = step.checked_mul(level.length - 1).filter(|r| *r < n) else { break };
                for start in 0..n - reach {
                    let items = x[start..].iter().step_by(step).take(level.length).map(|&v| v.into());
                    let Some(found) = level.find(items) else { continue };
                    let slot = usize::try_from(level.slots[found]).ok().and_then(|s| y.get_mut(s));
                    let slot = slot.ok_or(Fault::Descriptor)?;
                    *slot = if once { 0.0 } else { *slot } + level.weights[found];
                }
            }
        }
    }
    Ok(())
}
