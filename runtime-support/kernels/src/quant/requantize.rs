//! Sums of products to quantised values or to floats, by scales found at run time.
//!
//! In: `i32` sums of `a`'s and `b`'s values. Out: `saturate(round(sum · (a_scale · b_scale / y_scale)) + y_zero)`, or
//! `sum · (a_scale · b_scale) + bias`. The factor is rounded after each operation, as ONNX Runtime does.

use super::quantize::Quantised;
use super::scales::Precision;
use crate::simd::{F32x16, I32x16, LANES, Simd};
use crate::{Fault, Isa, kernel, simd_fn};

kernel! {
    /// `x` is `[outer, n, inner]`; each scale has a stride for every axis, the innermost 0 or 1. `y_zero` goes with
    /// `y_scale`.
    pub struct Requantize {
        operands { read x: X, read a_scale: F, read b_scale: F, read y_scale: F, opt y_zero: Q, write y: Q }
        arrays { dims: 3, a_strides: 3, b_strides: 3, y_strides: 3 }
        params { lo: i32, hi: i32, precision: Precision }
    }
    entries { requantize_i32_u8 { X = i32, F = f32, Q = u8 } requantize_i32_i8 { X = i32, F = f32, Q = i8 } }
    body = requantize;
}

kernel! {
    /// `y = x · (a_scale · b_scale) + bias`, `x` as `[rows, n]`; `b_scale` is one or one a column (`b_column` 1),
    /// `a_scale` one or one a row (`a_row` 1).
    pub struct DequantizeSums {
        operands { read x: X, read a_scale: F, read b_scale: F, opt bias: F, write y: F }
        nums { rows, n, a_row, b_column }
    }
    entries { dequantize_sums_f32 { X = i32, F = f32 } }
    body = dequantize_sums;
}

/// Whether `[outer, n, inner]` with these strides stays within a length.
fn covers(len: usize, dims: &[usize; 3], strides: &[usize; 3]) -> bool {
    let reach = dims.iter().zip(strides).map(|(&d, &s)| (d - 1).checked_mul(s));
    reach.into_iter().try_fold(0usize, |sum, v| sum.checked_add(v?)).is_some_and(|last| last < len)
}

fn requantize<Q: Quantised>(
    isa: Isa,
    d: &Requantize,
    x: &[i32],
    a_scale: &[f32],
    b_scale: &[f32],
    y_scale: &[f32],
    y_zero: Option<&[Q]>,
    y: &mut [Q],
) -> Result<(), Fault> {
    let numel = d.dims.iter().try_fold(1usize, |p, &v| p.checked_mul(v)).ok_or(Fault::Descriptor)?;
    if x.len() != numel || y.len() != numel {
        return Err(Fault::Descriptor);
    }
    if numel == 0 {
        return Ok(());
    }
    let fits = covers(a_scale.len(), &d.dims, &d.a_strides)
        && covers(b_scale.len(), &d.dims, &d.b_strides)
        && covers(y_scale.len(), &d.dims, &d.y_strides)
        && y_zero.is_none_or(|z| covers(z.len(), &d.dims, &d.y_strides))
        && [d.a_strides[2], d.b_strides[2], d.y_strides[2]].iter().all(|&s| s <= 1);
    if !fits {
        return Err(Fault::Descriptor);
    }
    let inner = d.dims[2];
    for (row, (x, y)) in x.chunks_exact(inner).zip(y.chunks_exact_mut(inner)).enumerate() {
        let (o, j) = (row / d.dims[1], row % d.dims[1]);
        let at = |s: &[usize; 3]| o * s[0] + j * s[1];
        let call = Row {
            a: (&a_scale[at(&d.a_strides)..], d.a_strides[2]),
            b: (&b_scale[at(&d.b_strides)..], d.b_strides[2]),
            c: (&y_scale[at(&d.y_strides)..], d.y_strides[2]),
            zero: y_zero.map(|z| &z[at(&d.y_strides)..]),
            limits: (d.lo, d.hi),
            precision: d.precision,
        };
        requantize_row(isa, &call, x, y);
    }
    Ok(())
}

/// The scales of a row, each with its stride.
struct Row<'a, Q> {
    a: (&'a [f32], usize),
    b: (&'a [f32], usize),
    c: (&'a [f32], usize),
    zero: Option<&'a [Q]>,
    limits: (i32, i32),
    precision: Precision,
}

simd_fn! {
    fn requantize_row<S>[Q: Quantised][Q](s, r: &Row<'_, Q>, x: &[i32], y: &mut [Q]) {
        let one = r.a.1 == 0 && r.b.1 == 0 && r.c.1 == 0;
        let (mut factor, mut zeros) = (s.zero(), [0i32; LANES]);
        let (lo, hi) = (r.limits.0, r.limits.1);
        for (i, (x, y)) in x.chunks(LANES).zip(y.chunks_mut(LANES)).enumerate() {
            let at = i * LANES;
            if i == 0 || !one {
                factor = factors(s, r, at);
                if let Some(z) = r.zero {
                    for l in 0..x.len().max(if one { LANES } else { 0 }) {
                        zeros[l] = z[(at + l) * r.c.1].wide();
                    }
                }
            }
            let low = s.array(zeros.map(|z| (lo - z) as f32));
            let high = s.array(zeros.map(|z| (hi - z) as f32));
            let mut sums = [0.0f32; LANES];
            for (to, &x) in sums.iter_mut().zip(x) {
                *to = x as f32;
            }
            let q = s.to_i32((s.array(sums) * factor).max(low).min(high)).to_array();
            for ((y, q), z) in y.iter_mut().zip(q).zip(zeros) {
                *y = Q::narrow(q + z);
            }
        }
    }
}

/// 16 values from `at` on, or one sixteen times.
#[inline(always)]
fn lanes<S: Simd>(s: S, (x, stride): (&[f32], usize), at: usize) -> S::F32 {
    if stride == 0 { s.splat(x[0]) } else { s.load_slice(x, at) }
}

/// `a · b / c` of 16 positions.
#[inline(always)]
fn factors<S: Simd, Q>(s: S, r: &Row<'_, Q>, at: usize) -> S::F32 {
    let (a, b, c) = (lanes(s, r.a, at), lanes(s, r.b, at), lanes(s, r.c, at));
    if r.precision == Precision::F32 {
        return a * b / c;
    }
    let p = r.precision;
    let product = (a * b).to_array().map(|v| p.round(v));
    s.array((s.array(product) / c).to_array().map(|v| p.round(v)))
}

fn dequantize_sums(
    isa: Isa,
    d: &DequantizeSums,
    x: &[i32],
    a_scale: &[f32],
    b_scale: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
) -> Result<(), Fault> {
    let numel = d.rows.checked_mul(d.n).ok_or(Fault::Descriptor)?;
    if x.len() != numel || y.len() != numel {
        return Err(Fault::Descriptor);
    }
    if numel == 0 {
        return Ok(());
    }
    let fits = d.a_row <= 1
        && d.b_column <= 1
        && a_scale.len() > (d.rows - 1) * d.a_row
        && b_scale.len() > (d.n - 1) * d.b_column
        && bias.is_none_or(|b| b.len() >= d.n);
    if !fits {
        return Err(Fault::Descriptor);
    }
    for (i, (x, y)) in x.chunks_exact(d.n).zip(y.chunks_exact_mut(d.n)).enumerate() {
        dequantize_row(isa, x, a_scale[i * d.a_row], (b_scale, d.b_column), bias, y);
    }
    Ok(())
}

simd_fn! {
    fn dequantize_row<S>(_s, x: &[i32], a: f32, b: (&[f32], usize), bias: Option<&[f32]>, y: &mut [f32]) {
        if b.1 == 0 {
            let scale = a * b.0[0];
            for (y, &x) in y.iter_mut().zip(x) {
                *y = x as f32 * scale;
            }
        } else {
            for ((y, &x), &b) in y.iter_mut().zip(x).zip(b.0) {
                *y = x as f32 * (a * b);
            }
        }
        if let Some(bias) = bias {
            for (y, &b) in y.iter_mut().zip(bias) {
                *y += b;
            }
        }
    }
}
