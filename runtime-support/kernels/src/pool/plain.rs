//! Pools over the plain layout `[N, C, D, H, W]` (lower ranks with leading extents of 1).
//!
//! In: `x`, and for maxima optionally where to put their positions. Out: `y`. A unit is one output row.

use super::blocked::bounded;
use super::root::{power, root};
use super::{PoolKind, valid_taps};
use crate::{Elem, Fault, Isa, PartOut, kernel, simd_fn};

kernel! {
    /// Pool over windows; `planes` is batch · channels. Units `part_begin..part_end` of `planes·y[0]·y[1]`.
    /// Integers have maxima only.
    pub struct Pool {
        operands { read x: T, write_parts y: T }
        nums { planes, part_begin, part_end }
        arrays { x_dims: 3, y_dims: 3, kernel: 3, strides: 3, dilations: 3, pads_begin: 3, pads_end: 3 }
        params { kind: PoolKind, p: u32 }
    }
    entries { pool_f32 { T = f32 } pool_f64 { T = f64 } pool_i8 { T = i8 } pool_u8 { T = u8 } }
    body = pool;
}

kernel! {
    /// Maximum over windows and its position: the index in `x` as a whole, spatial dimensions in row-major order or (`column_major`)
    /// in column-major order. The first of equal values counts. Units as for [`Pool`].
    pub struct MaxPoolIndices {
        operands { read x: T, write_parts y: T, write_parts indices: I }
        nums { planes, part_begin, part_end }
        arrays { x_dims: 3, y_dims: 3, kernel: 3, strides: 3, dilations: 3, pads_begin: 3 }
        params { column_major: bool }
    }
    entries {
        max_pool_indices_f32 { T = f32, I = i64 }
        max_pool_indices_f64 { T = f64, I = i64 }
        max_pool_indices_i8 { T = i8, I = i64 }
        max_pool_indices_u8 { T = u8, I = i64 }
    }
    body = max_pool_indices;
}

/// Units of work of a [`Pool`] or [`MaxPoolIndices`].
pub const fn pool_units(planes: usize, y_dims: [usize; 3]) -> usize {
    planes * y_dims[0] * y_dims[1]
}

/// Elements that pools combine.
pub trait PoolElem: Elem + PartialOrd {
    /// Below every other value.
    const LOWEST: Self;
    /// Whether averages and norms are defined.
    const AVERAGES: bool;
    /// Sum.
    fn add(self, other: Self) -> Self;
    /// Quotient by a count.
    fn by_count(self, n: usize) -> Self;
    /// |x|^p
    fn abs_power(self, p: u32) -> Self;
    /// x^(1/p)
    fn root(self, p: u32) -> Self;
}

macro_rules! float_elems {
    ($($t:ident)*) => {$(
        impl PoolElem for $t {
            const LOWEST: Self = $t::NEG_INFINITY;
            const AVERAGES: bool = true;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn by_count(self, n: usize) -> Self {
                self / n as $t
            }
            #[inline(always)]
            fn abs_power(self, p: u32) -> Self {
                power(self.abs(), p)
            }
            #[inline]
            fn root(self, p: u32) -> Self {
                root(self, p)
            }
        }
    )*};
}
float_elems!(f32 f64);

macro_rules! integer_elems {
    ($($t:ident)*) => {$(
        impl PoolElem for $t {
            const LOWEST: Self = $t::MIN;
            const AVERAGES: bool = false;
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn by_count(self, _: usize) -> Self {
                self
            }
            fn abs_power(self, _: u32) -> Self {
                self
            }
            fn root(self, _: u32) -> Self {
                self
            }
        }
    )*};
}
integer_elems!(i8 u8);

/// Extents of either kernel.
struct Windows<'d> {
    planes: usize,
    x: &'d [usize; 3],
    y: &'d [usize; 3],
    kernel: &'d [usize; 3],
    strides: &'d [usize; 3],
    dilations: &'d [usize; 3],
    pads: &'d [usize; 3],
}

impl Windows<'_> {
    /// Elements of `x` and `y`, if nothing overflows and steps are at least 1.
    fn lens(&self) -> Option<(usize, usize)> {
        let dims = [self.x, self.y, self.kernel, self.strides, self.dilations, self.pads];
        let small = dims.iter().all(|d| d.iter().all(|&v| v < 1 << 40)) && self.planes < 1 << 40;
        let steps = [self.kernel, self.strides, self.dilations].iter().all(|d| d.iter().all(|&v| v >= 1));
        let sane = small
            && steps
            && (0..3).all(|a| bounded(&[self.y[a], self.strides[a]]) && bounded(&[self.kernel[a], self.dilations[a]]))
            && bounded(&[self.planes, self.x[0], self.x[1], self.x[2]])
            && bounded(&[self.planes, self.y[0], self.y[1], self.y[2]]);
        sane.then(|| (self.planes * self.x.iter().product::<usize>(), self.planes * self.y.iter().product::<usize>()))
    }

    /// First position and valid taps of an output position in one dimension.
    fn taps(&self, axis: usize, out: usize) -> (usize, usize, usize) {
        let start = out * self.strides[axis];
        let pad = self.pads[axis];
        let (first, last) = valid_taps(start, self.kernel[axis], self.dilations[axis], pad, pad + self.x[axis]);
        (start, first, last)
    }
}

fn pool<T: PoolElem>(isa: Isa, d: &Pool, x: &[T], mut y: PartOut<'_, T>) -> Result<(), Fault> {
    let g = Windows {
        planes: d.planes,
        x: &d.x_dims,
        y: &d.y_dims,
        kernel: &d.kernel,
        strides: &d.strides,
        dilations: &d.dilations,
        pads: &d.pads_begin,
    };
    let Some((x_len, y_len)) = g.lens() else { return Err(Fault::Descriptor) };
    let units = pool_units(d.planes, d.y_dims);
    let in_parts = d.part_begin <= d.part_end && d.part_end <= units && d.pads_end.iter().all(|&v| v < 1 << 40);
    if x.len() < x_len || y.len() < y_len || !in_parts {
        return Err(Fault::Descriptor);
    }
    let ow = d.y_dims[2];
    // SAFETY: the rows of the part's units, which are the part's alone.
    let y = unsafe { y.own(d.part_begin * ow..d.part_end * ow) };
    let (zero, p) = (T::default(), d.p);
    match d.kind {
        PoolKind::Max => rows(isa, d, &g, x, y, T::LOWEST, greater, greater, |v, _| v),
        _ if !T::AVERAGES => return Err(Fault::Descriptor),
        PoolKind::Lp if p == 2 => rows(isa, d, &g, x, y, zero, |a, v| a.add(v.abs_power(2)), T::add, |v, _| v.root(2)),
        PoolKind::Lp => rows(isa, d, &g, x, y, zero, |a, v| a.add(v.abs_power(p)), T::add, |v, _| v.root(p)),
        _ => rows(isa, d, &g, x, y, zero, T::add, T::add, T::by_count),
    }
    Ok(())
}

/// The greater of two.
#[inline(always)]
fn greater<T: PoolElem>(a: T, v: T) -> T {
    if v > a { v } else { a }
}

simd_fn! {
    /// Combines row after row of taps into each output row, then finishes it; `finish` gets the number of taps to average over.
    /// `y` begins with the first unit's row; `join` is for two partial results of `combine`.
    fn rows<S>[T: PoolElem, F: Fn(T, T) -> T, J: Fn(T, T) -> T, G: Fn(T, usize) -> T][T, F, J, G](
        s, d: &Pool, g: &Windows<'_>, x: &[T], y: &mut [T], neutral: T, combine: F, join: J, finish: G,
    ) {
        let _ = s;
        let with_pads = d.kind == PoolKind::AverageWithPads;
        let [_, xh, xw] = d.x_dims;
        let [od, oh, ow] = d.y_dims;
        let whole_rows = ow == 1 && d.kernel[2] == xw && d.dilations[2] == 1 && d.pads_begin[2] == 0;
        let padded = |axis: usize, start: usize| {
            let high = d.pads_begin[axis] + d.x_dims[axis] + d.pads_end[axis];
            let (a, b) = valid_taps(start, d.kernel[axis], d.dilations[axis], 0, high);
            b - a
        };
        for unit in d.part_begin..d.part_end {
            let (plane, z, r) = (unit / (od * oh), unit / oh % od, unit % oh);
            let (zs, z0, z1) = g.taps(0, z);
            let (rs, r0, r1) = g.taps(1, r);
            let out = &mut y[(unit - d.part_begin) * ow..][..ow];
            out.fill(neutral);
            for tz in z0..z1 {
                for tr in r0..r1 {
                    let i = zs + tz * d.dilations[0] - d.pads_begin[0];
                    let j = rs + tr * d.dilations[1] - d.pads_begin[1];
                    let row = &x[((plane * d.x_dims[0] + i) * xh + j) * xw..][..xw];
                    if whole_rows {
                        out[0] = join(out[0], whole_row(row, neutral, &combine, &join));
                    } else {
                        tap_row(d, row, out, &combine);
                    }
                }
            }
            for q in 0..ow {
                let (start, a, b) = g.taps(2, q);
                let n = if with_pads {
                    padded(0, zs) * padded(1, rs) * padded(2, start)
                } else {
                    (z1 - z0) * (r1 - r0) * (b - a)
                };
                out[q] = finish(out[q], n);
            }
        }
    }
}

/// All elements of a row, in partial results that do not wait for one another.
#[inline(always)]
fn whole_row<T: Copy>(row: &[T], neutral: T, combine: &impl Fn(T, T) -> T, join: &impl Fn(T, T) -> T) -> T {
    let mut parts = [neutral; 64];
    let (chunks, rest) = row.as_chunks::<64>();
    for chunk in chunks {
        for (part, &v) in parts.iter_mut().zip(chunk) {
            *part = combine(*part, v);
        }
    }
    for (part, &v) in parts.iter_mut().zip(rest) {
        *part = combine(*part, v);
    }
    let mut n = parts.len();
    while n > 1 {
        n /= 2;
        for i in 0..n {
            parts[i] = join(parts[i], parts[i + n]);
        }
    }
    parts[0]
}

/// Combines every tap of one kernel row into one output row.
#[inline(always)]
fn tap_row<T: Copy>(d: &Pool, row: &[T], out: &mut [T], combine: &impl Fn(T, T) -> T) {
    let (stride, pad) = (d.strides[2], d.pads_begin[2]);
    for t in 0..d.kernel[2] {
        let at = t * d.dilations[2];
        // Output columns whose tap lies in the image.
        let first = pad.saturating_sub(at).div_ceil(stride).min(out.len());
        let last = (row.len() + pad).saturating_sub(at).div_ceil(stride).clamp(first, out.len());
        if first == last {
            continue;
        }
        let row = &row[first * stride + at - pad..];
        let out = &mut out[first..last];
        if stride == 1 {
            for (o, &v) in out.iter_mut().zip(row) {
                *o = combine(*o, v);
            }
        } else {
            for (q, o) in out.iter_mut().enumerate() {
                *o = combine(*o, row[q * stride]);
            }
        }
    }
}

fn max_pool_indices<T: PoolElem>(
    _: Isa,
    d: &MaxPoolIndices,
    x: &[T],
    mut y: PartOut<'_, T>,
    mut indices: PartOut<'_, i64>,
) -> Result<(), Fault> {
    let g = Windows {
        planes: d.planes,
        x: &d.x_dims,
        y: &d.y_dims,
        kernel: &d.kernel,
        strides: &d.strides,
        dilations: &d.dilations,
        pads: &d.pads_begin,
    };
    let Some((x_len, y_len)) = g.lens() else { return Err(Fault::Descriptor) };
    let units = pool_units(d.planes, d.y_dims);
    let fits = x.len() >= x_len && y.len() >= y_len && indices.len() >= y_len;
    if !fits || d.part_begin > d.part_end || d.part_end > units {
        return Err(Fault::Descriptor);
    }
    let [xd, xh, xw] = d.x_dims;
    let [od, oh, ow] = d.y_dims;
    for unit in d.part_begin..d.part_end {
        // SAFETY: the unit's row, which is the part's alone.
        let (y, indices) = unsafe { (y.own(unit * ow..(unit + 1) * ow), indices.own(unit * ow..(unit + 1) * ow)) };
        let (plane, z, r) = (unit / (od * oh), unit / oh % od, unit % oh);
        let (zs, z0, z1) = g.taps(0, z);
        let (rs, r0, r1) = g.taps(1, r);
        for q in 0..ow {
            let (qs, q0, q1) = g.taps(2, q);
            let mut best: Option<(T, [usize; 3])> = None;
            for tz in z0..z1 {
                for tr in r0..r1 {
                    for tq in q0..q1 {
                        let i = zs + tz * d.dilations[0] - d.pads_begin[0];
                        let j = rs + tr * d.dilations[1] - d.pads_begin[1];
                        let k = qs + tq * d.dilations[2] - d.pads_begin[2];
                        let v = x[((plane * xd + i) * xh + j) * xw + k];
                        if best.is_none_or(|(b, _)| v > b) {
                            best = Some((v, [i, j, k]));
                        }
                    }
                }
            }
            let (v, [i, j, k]) = best.unwrap_or((T::LOWEST, [0; 3]));
            let spatial = if d.column_major { (k * xh + j) * xd + i } else { (i * xh + j) * xw + k };
            y[q] = v;
            indices[q] = (plane * xd * xh * xw + spatial) as i64;
        }
    }
    Ok(())
}
