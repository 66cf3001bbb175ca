//! Pad with widths known only at run time; the result's extents are planned and checked.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__Pad.html>

use super::index::{IndexElem, holds};
use crate::{Fault, Isa, kernel, param_enum};

param_enum! {
    /// Where the elements of a border come from.
    pub enum PadMode {
        /// One value.
        Constant,
        /// The operand, reflected at its first and last element.
        Reflect,
        /// The nearest element.
        Edge,
        /// The operand again.
        Wrap,
    }
}

kernel! {
    /// `y` = `x` with borders of `pads` (`[before…, after…]`) for `axes` (absent: all); negative widths cut. `dims` and `out`
    /// end with the `rank` extents of `x` and `y`. An absent `value` is 0.
    pub struct PadAt {
        operands { read x: T, read pads: I, opt value: T, opt axes: I, write y: T }
        nums { rank, n_axes }
        arrays { dims: 8, out: 8 }
        params { mode: PadMode }
    }
    entries {
        pad_at_b8 { T = u8, I = i64 } pad_at_b16 { T = u16, I = i64 } pad_at_b32 { T = u32, I = i64 }
        pad_at_b64 { T = u64, I = i64 } pad_at_b128 { T = [u64; 2], I = i64 }
    }
    body = pad_at;
}

/// Where an element of the result comes from on one axis, of which `low..high` is kept and begins at `before`.
fn source(at: usize, before: i64, low: i64, high: i64, mode: PadMode) -> Option<usize> {
    let kept = high - low;
    let i = at as i64 - before;
    if (0..kept).contains(&i) {
        return usize::try_from(low + i).ok();
    }
    if kept <= 0 || mode == PadMode::Constant {
        return None;
    }
    let i = match mode {
        PadMode::Edge => i.clamp(0, kept - 1),
        PadMode::Wrap => i.rem_euclid(kept),
        _ => {
            let period = (2 * (kept - 1)).max(1);
            let r = i.rem_euclid(period);
            if r < kept { r } else { period - r }
        }
    };
    usize::try_from(low + i).ok()
}

fn pad_at<T: Copy + Default>(
    _: Isa,
    d: &PadAt,
    x: &[T],
    pads: &[i64],
    value: Option<&[T]>,
    axes: Option<&[i64]>,
    y: &mut [T],
) -> Result<(), Fault> {
    let missing = 8usize.checked_sub(d.rank).ok_or(Fault::Descriptor)?;
    let both = d.n_axes.checked_mul(2).and_then(|n| pads.get(..n)).ok_or(Fault::Descriptor)?;
    if !holds(x.len(), &d.dims) || !holds(y.len(), &d.out) || axes.is_some_and(|a| a.len() < d.n_axes) {
        return Err(Fault::Descriptor);
    }
    let mut widths = [[0i64; 2]; 8];
    for i in 0..d.n_axes {
        let axis = axes.map_or(i as i64, |a| a[i]).position(d.rank).ok_or(Fault::IndexOutOfRange)?;
        widths[missing + axis] = [both[i], both[d.n_axes + i]];
    }
    let value = value.and_then(|v| v.first().copied()).unwrap_or_default();
    // Per axis: the border before, and what is kept.
    let mut kept = [[0i64; 3]; 8];
    for a in 0..8 {
        let [before, after] = widths[a];
        let (cut, rest) = (before.saturating_neg().max(0), after.saturating_neg().max(0));
        let extent = d.dims[a] as i64;
        let (low, high) = (cut.min(extent), extent.saturating_sub(rest).max(cut.min(extent)));
        let total = before.max(0).saturating_add(high - low).saturating_add(after.max(0));
        if total != d.out[a] as i64 || (high == low && total > 0 && d.mode != PadMode::Constant) {
            return Err(Fault::ShapeMismatch);
        }
        kept[a] = [before.max(0), low, high];
    }
    let mut strides = [1usize; 8];
    for a in (0..7).rev() {
        strides[a] = strides[a + 1] * d.dims[a + 1];
    }
    let total: usize = d.out.iter().product();
    let mut at = [0usize; 8];
    for y in &mut y[..total] {
        let from = (0..8).try_fold(0, |sum, a| {
            let [before, low, high] = kept[a];
            Some(sum + source(at[a], before, low, high, d.mode)? * strides[a])
        });
        *y = from.map_or(value, |from| x[from]);
        for a in (0..8).rev() {
            at[a] += 1;
            if at[a] < d.out[a] {
                break;
            }
            at[a] = 0;
        }
    }
    Ok(())
}
