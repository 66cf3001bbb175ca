//! Slice with bounds known only at run time.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__Slice.html>

use super::index::{IndexElem, holds};
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y` = the slice of `x`, whose extents are the last `rank` of `dims`; absent `axes` are the first ones, absent `steps` 1.
    /// Where `exact`, the extents found must be those of `planned`, else they must not exceed them.
    pub struct SliceAt {
        operands { read x: T, read starts: I, read ends: I, opt axes: I, opt steps: I, write y: T }
        nums { rank }
        arrays { dims: 8, planned: 8 }
        params { exact: bool }
        found { n0, n1, n2, n3, n4, n5, n6, n7 }
    }
    entries {
        slice_at_b8 { T = u8, I = i64 } slice_at_b16 { T = u16, I = i64 } slice_at_b32 { T = u32, I = i64 }
        slice_at_b64 { T = u64, I = i64 } slice_at_b128 { T = [u64; 2], I = i64 }
    }
    body = slice_at;
}

/// First position and count of a slice of one axis.
fn span(extent: usize, start: i64, end: i64, step: i64) -> (usize, usize) {
    let extent = extent as i128;
    let (low, high) = if step > 0 { (0, extent) } else { (-1, extent - 1) };
    let place = |at: i64, low: i128| {
        let at = i128::from(at);
        (if at < 0 { at + extent } else { at }).clamp(low.min(high), high)
    };
    let (first, last, step) = (place(start, 0), place(end, low), i128::from(step));
    let way = if step > 0 { last - first } else { first - last };
    let n = if way <= 0 || extent == 0 { 0 } else { (way + step.abs() - 1) / step.abs() };
    (first.max(0) as usize, n as usize)
}

fn slice_at<T: Copy>(
    _: Isa,
    d: &SliceAt,
    x: &[T],
    starts: &[i64],
    ends: &[i64],
    axes: Option<&[i64]>,
    steps: Option<&[i64]>,
    y: &mut [T],
) -> Result<[usize; 8], Fault> {
    let missing = 8usize.checked_sub(d.rank).ok_or(Fault::Descriptor)?;
    let n = starts.len();
    let short = |v: Option<&[i64]>| v.is_some_and(|v| v.len() < n);
    if !holds(x.len(), &d.dims) || ends.len() < n || short(axes) || short(steps) {
        return Err(Fault::Descriptor);
    }
    // Axes in front of the operand's own have extent 1.
    let (mut first, mut count, mut step) = ([0usize; 8], d.dims, [1i64; 8]);
    for i in 0..n {
        let axis = axes.map_or(i as i64, |a| a[i]).position(d.rank).ok_or(Fault::IndexOutOfRange)? + missing;
        step[axis] = steps.map_or(1, |s| s[i]);
        if step[axis] == 0 {
            return Err(Fault::ShapeMismatch);
        }
        (first[axis], count[axis]) = span(d.dims[axis], starts[i], ends[i], step[axis]);
    }
    for (n, p) in count.iter().zip(&d.planned) {
        if d.exact && n != p {
            return Err(Fault::ShapeMismatch);
        }
        if n > p {
            return Err(Fault::BoundExceeded);
        }
    }
    if !holds(y.len(), &count) {
        return Err(Fault::BoundExceeded);
    }
    let mut strides = [1usize; 8];
    for a in (0..7).rev() {
        strides[a] = strides[a + 1] * d.dims[a + 1];
    }
    let mut at = [0usize; 8];
    let total: usize = count.iter().product();
    for y in &mut y[..total] {
        let mut from = 0;
        for a in 0..8 {
            // Inside the axis by `span`.
            from += (first[a] as i64 + at[a] as i64 * step[a]) as usize * strides[a];
        }
        *y = x[from];
        for a in (0..8).rev() {
            at[a] += 1;
            if at[a] < count[a] {
                break;
            }
            at[a] = 0;
        }
    }
    Ok(count)
}
