//! Unique: the distinct elements, or slices along an axis, with where they stand.
//!
//! In: `x` as `[outer, n, inner]`, slices along the middle axis (flat: outer = inner = 1). NaNs are equal to each other.
//! Source: <https://onnx.ai/onnx/operators/onnx__Unique.html>

use super::Ordered;
use super::order::sort;
use crate::movement::holds;
use crate::{Fault, Isa, bf16, f16, kernel};
use core::cmp::Ordering;

kernel! {
    /// `y` = the distinct slices, sorted or in order of appearance; `first` = where each first stands, `inverse` = which of
    /// them each slice of `x` is, `counts` = how often each stands. `scratch` holds `3·n` positions.
    pub struct Unique {
        operands { read x: T, write y: T, write first: I, write inverse: I, write counts: I, write scratch: P }
        nums { outer, n, inner }
        params { sorted: bool }
        found { count }
    }
    entries {
        unique_f32 { T = f32, I = i64, P = u32 } unique_f64 { T = f64, I = i64, P = u32 }
        unique_f16 { T = f16, I = i64, P = u32 } unique_bf16 { T = bf16, I = i64, P = u32 }
        unique_i8 { T = i8, I = i64, P = u32 } unique_i16 { T = i16, I = i64, P = u32 }
        unique_i32 { T = i32, I = i64, P = u32 } unique_i64 { T = i64, I = i64, P = u32 }
        unique_u8 { T = u8, I = i64, P = u32 } unique_u16 { T = u16, I = i64, P = u32 }
        unique_u32 { T = u32, I = i64, P = u32 } unique_u64 { T = u64, I = i64, P = u32 }
    }
    body = unique;
}

fn unique<T: Ordered>(
    _: Isa,
    d: &Unique,
    x: &[T],
    y: &mut [T],
    first: &mut [i64],
    inverse: &mut [i64],
    counts: &mut [i64],
    scratch: &mut [u32],
) -> Result<[usize; 1], Fault> {
    let Unique { outer, n, inner, .. } = *d;
    if !holds(x.len(), &[outer, n, inner]) || !holds(scratch.len(), &[3, n]) || inverse.len() < n {
        return Err(Fault::Descriptor);
    }
    let (order, rest) = scratch.split_at_mut(n);
    let (representative, number) = rest.split_at_mut(n);
    let at = |slice: u32, o: usize, i: usize| x[(o * n + slice as usize) * inner + i];
    let compare = |a: u32, b: u32| -> Ordering {
        let elements = (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i)));
        elements.map(|(o, i)| at(a, o, i).order(at(b, o, i))).find(|c| c.is_ne()).unwrap_or(Ordering::Equal)
    };
    for (j, p) in order.iter_mut().enumerate() {
        *p = j as u32;
    }
    sort(order, &|a, b| compare(a, b).then(a.cmp(&b)));
    // Equal slices stand together now, each group led by its first.
    let mut count = 0;
    let mut leader = None;
    for &p in order.iter() {
        let lead = match leader {
            Some(l) if compare(l, p).is_eq() => l,
            _ => {
                number[p as usize] = count as u32;
                count += 1;
                p
            }
        };
        leader = Some(lead);
        representative[p as usize] = lead;
    }
    if !d.sorted {
        // Numbered anew by appearance.
        let leaders = (0..n as u32).filter(|&p| representative[p as usize] == p);
        for (k, p) in leaders.enumerate() {
            number[p as usize] = k as u32;
        }
    }
    if first.len() < count || counts.len() < count || !holds(y.len(), &[outer, count, inner]) {
        return Err(Fault::BoundExceeded);
    }
    counts[..count].fill(0);
    for p in 0..n {
        let lead = representative[p] as usize;
        let k = number[lead] as usize;
        inverse[p] = k as i64;
        counts[k] += 1;
        if lead == p {
            first[k] = p as i64;
            for o in 0..outer {
                let (from, to) = ((o * n + p) * inner, (o * count + k) * inner);
                y[to..to + inner].copy_from_slice(&x[from..from + inner]);
            }
        }
    }
    Ok([count])
}
