//! Plain-layout convolution and its transpose, row by row, for element types without kernels of their own.
//!
//! In: a checked call and an output row's place. Out: that row: bias and residual, then one multiply-add of an input row
//! per input channel and tap, in that order.

use super::WindowShape;
use super::plain::PlainCall;
use crate::Elem;
use core::ops::{Add, Mul};

/// Types that convolve row by row; integers wrap.
pub(super) trait RowElem: Elem {
    /// `self + a·b`
    fn plus_product(self, a: Self, b: Self) -> Self;
    /// `self + a`
    fn plus(self, a: Self) -> Self;
}

impl RowElem for f64 {
    #[inline(always)]
    fn plus_product(self, a: Self, b: Self) -> Self {
        self.add(a.mul(b))
    }
    #[inline(always)]
    fn plus(self, a: Self) -> Self {
        self + a
    }
}

impl RowElem for i32 {
    #[inline(always)]
    fn plus_product(self, a: Self, b: Self) -> Self {
        self.wrapping_add(a.wrapping_mul(b))
    }
    #[inline(always)]
    fn plus(self, a: Self) -> Self {
        self.wrapping_add(a)
    }
}

/// A call, computed by rows.
pub(super) struct Rows<'a, T>(PlainCall<'a, T>);

impl<'a, T: RowElem> Rows<'a, T> {
    pub(super) fn new(call: PlainCall<'a, T>) -> Self {
        Self(call)
    }

    pub(super) fn call(&self) -> &PlainCall<'a, T> {
        &self.0
    }

    /// Columns `col..col + cols` (cut at the row's end) of one output row, for every channel of the group.
    pub(super) fn run(&mut self, image: usize, group: usize, depth: usize, row: usize, col: usize, cols: usize) {
        let c = &mut self.0;
        let g = c.window;
        let (icg, ocg) = (c.ic / c.groups, c.oc / c.groups);
        let [xd, xh, xw] = g.x;
        let [od, oh, ow] = g.y;
        let [kd, kh, kw] = g.kernel;
        let taps = kd * kh * kw;
        let end = (col + cols).min(ow);
        for o in 0..ocg {
            let channel = group * ocg + o;
            let at = (((image * c.oc + channel) * od + depth) * oh + row) * ow;
            let bias = c.bias.map_or(T::default(), |b| b[channel]);
            // SAFETY: columns of the unit, which are the part's alone; the row's others may be another unit's.
            let y = unsafe { c.y.own(at + col..at + end.max(col)) };
            for (q, y) in (col..end).zip(&mut *y) {
                *y = match c.residual {
                    None => bias,
                    Some(None) => bias.plus(*y),
                    Some(Some(r)) => bias.plus(r[at + q]),
                };
            }
            for ic in 0..icg {
                let volume = (image * c.ic + group * icg + ic) * xd;
                let w = if c.transposed { (group * icg + ic) * ocg + o } else { channel * icg + ic };
                for tz in 0..kd {
                    let Some(i) = input(c.transposed, &g, 0, depth, tz) else { continue };
                    for ty in 0..kh {
                        let Some(j) = input(c.transposed, &g, 1, row, ty) else { continue };
                        let x = &c.x[((volume + i) * xh + j) * xw..][..xw];
                        for tx in 0..kw {
                            let w = c.weights[w * taps + (tz * kh + ty) * kw + tx];
                            if c.transposed {
                                scatter(x, y, w, [g.strides[2], g.pads[2], tx * g.dilations[2]], col, end);
                            } else {
                                accumulate(x, y, w, [g.strides[2], g.pads[2], tx * g.dilations[2]], col, end);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The input position that a tap joins with an output position in one dimension.
#[inline(always)]
fn input(transposed: bool, g: &WindowShape, axis: usize, out: usize, tap: usize) -> Option<usize> {
    if transposed {
        let at = (out + g.pads[axis]).checked_sub(tap * g.dilations[axis])?;
        (at.is_multiple_of(g.strides[axis]) && at / g.strides[axis] < g.x[axis]).then(|| at / g.strides[axis])
    } else {
        g.at(axis, out, tap)
    }
}

/// `y[q] += w · x[q·stride + tap − pad]` for `q` in `begin..end` where that lies in `x`; the slice `y` is those.
#[inline(always)]
fn accumulate<T: RowElem>(x: &[T], y: &mut [T], w: T, [stride, pad, tap]: [usize; 3], begin: usize, end: usize) {
    let first = pad.saturating_sub(tap).div_ceil(stride).max(begin);
    let last = (x.len() + pad).saturating_sub(tap).div_ceil(stride).min(end);
    if first >= last {
        return;
    }
    let x = &x[first * stride + tap - pad..];
    if stride == 1 {
        for (y, &x) in y[first - begin..last - begin].iter_mut().zip(x) {
            *y = y.plus_product(w, x);
        }
    } else {
        for (q, y) in y[first - begin..last - begin].iter_mut().enumerate() {
            *y = y.plus_product(w, x[q * stride]);
        }
    }
}

/// `y[j·stride + tap − pad] += w · x[j]` where that lies in `begin..end`; the slice `y` is those.
#[inline(always)]
fn scatter<T: RowElem>(x: &[T], y: &mut [T], w: T, [stride, pad, tap]: [usize; 3], begin: usize, end: usize) {
    let first = (begin + pad).saturating_sub(tap).div_ceil(stride).min(x.len());
    let last = (end + pad).saturating_sub(tap).div_ceil(stride).clamp(first, x.len());
    for (j, &x) in x[first..last].iter().enumerate() {
        let q = (first + j) * stride + tap - pad - begin;
        y[q] = y[q].plus_product(w, x);
    }
}
