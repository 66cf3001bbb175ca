//! One pass of interpolation: the weighted sums of positions along one axis.
//!
//! In: `x` as `[outer, n_in, inner]`, a table. Out: `y` as `[outer, n_out, inner]`. Sums are in f32 for f32 and narrower
//! types, in f64 for wider ones; integers are rounded to nearest, ties to even, and saturate.

use super::sample::{Sample, Sum};
use crate::movement::holds;
use crate::{Fault, Isa, bf16, f16, kernel, simd_fn};

kernel! {
    /// `y[o, j, i] = Σ_t weight[j, t] · x[o, index[j, t], i]`; `fill` where `index[j, 0]` is negative.
    pub struct Interpolate {
        operands { read x: T, read index: I, read weight: W, write y: U }
        nums { outer, n_in, n_out, inner, taps }
        params { fill: f64 }
    }
    entries {
        interpolate_f32 { T = f32, U = f32, W = f32, I = i32 } interpolate_f64 { T = f64, U = f64, W = f64, I = i32 }
        interpolate_from_f16 { T = f16, U = f32, W = f32, I = i32 } interpolate_to_f16 { T = f32, U = f16, W = f32, I = i32 }
        interpolate_from_bf16 { T = bf16, U = f32, W = f32, I = i32 } interpolate_to_bf16 { T = f32, U = bf16, W = f32, I = i32 }
        interpolate_from_u8 { T = u8, U = f32, W = f32, I = i32 } interpolate_to_u8 { T = f32, U = u8, W = f32, I = i32 }
        interpolate_from_i8 { T = i8, U = f32, W = f32, I = i32 } interpolate_to_i8 { T = f32, U = i8, W = f32, I = i32 }
        interpolate_from_u16 { T = u16, U = f32, W = f32, I = i32 } interpolate_to_u16 { T = f32, U = u16, W = f32, I = i32 }
        interpolate_from_i16 { T = i16, U = f32, W = f32, I = i32 } interpolate_to_i16 { T = f32, U = i16, W = f32, I = i32 }
        interpolate_from_u32 { T = u32, U = f64, W = f64, I = i32 } interpolate_to_u32 { T = f64, U = u32, W = f64, I = i32 }
        interpolate_from_i32 { T = i32, U = f64, W = f64, I = i32 } interpolate_to_i32 { T = f64, U = i32, W = f64, I = i32 }
        interpolate_from_u64 { T = u64, U = f64, W = f64, I = i32 } interpolate_to_u64 { T = f64, U = u64, W = f64, I = i32 }
        interpolate_from_i64 { T = i64, U = f64, W = f64, I = i32 } interpolate_to_i64 { T = f64, U = i64, W = f64, I = i32 }
    }
    body = interpolate;
}

fn interpolate<T: Sample<W>, U: Sample<W>, W: Sum>(
    isa: Isa,
    d: &Interpolate,
    x: &[T],
    index: &[i32],
    weight: &[W],
    y: &mut [U],
) -> Result<(), Fault> {
    let Interpolate { outer, n_in, n_out, inner, taps, .. } = *d;
    let table = [n_out, taps];
    if taps == 0
        || !holds(x.len(), &[outer, n_in, inner])
        || !holds(y.len(), &[outer, n_out, inner])
        || !holds(index.len(), &table)
        || !holds(weight.len(), &table)
    {
        return Err(Fault::Descriptor);
    }
    if outer * n_out * inner == 0 {
        return Ok(());
    }
    let (index, weight) = (&index[..n_out * taps], &weight[..n_out * taps]);
    let bad = |(i, &at): (usize, &i32)| at as i64 >= n_in as i64 || (at < 0 && i % taps != 0);
    if index.iter().enumerate().any(bad) {
        return Err(Fault::Descriptor);
    }
    let fill = U::store(W::from_f64(d.fill));
    for o in 0..outer {
        let x = &x[o * n_in * inner..(o + 1) * n_in * inner];
        let y = &mut y[o * n_out * inner..(o + 1) * n_out * inner];
        let common = const { T::COMMON && U::COMMON };
        match (inner, taps) {
            (1, 2) if common => line::<T, U, W, 2>(isa, x, index, weight, y, fill),
            (1, 4) if common => line::<T, U, W, 4>(isa, x, index, weight, y, fill),
            (1, _) => any_line(x, index, weight, y, fill, taps),
            _ if common => rows_on(isa, x, index, weight, y, fill, taps, inner),
            _ => rows(x, index, weight, y, fill, taps, inner),
        }
    }
    Ok(())
}

simd_fn! {
    /// One line along the axis itself.
    fn line<S>[T: Sample<W>, U: Sample<W>, W: Sum, const N: usize][T, U, W, N](
        s, x: &[T], index: &[i32], weight: &[W], y: &mut [U], fill: U,
    ) {
        let _ = s;
        for ((y, index), weight) in y.iter_mut().zip(index.as_chunks::<N>().0).zip(weight.as_chunks::<N>().0) {
            if index[0] < 0 {
                *y = fill;
                continue;
            }
            let mut sum = W::default();
            for t in 0..N {
                sum = sum + x[index[t] as usize].load() * weight[t];
            }
            *y = U::store(sum);
        }
    }
}

fn any_line<T: Sample<W>, U: Sample<W>, W: Sum>(
    x: &[T],
    index: &[i32],
    weight: &[W],
    y: &mut [U],
    fill: U,
    taps: usize,
) {
    for ((y, index), weight) in y.iter_mut().zip(index.chunks_exact(taps)).zip(weight.chunks_exact(taps)) {
        if index[0] < 0 {
            *y = fill;
            continue;
        }
        let mut sum = W::default();
        for (&at, &w) in index.iter().zip(weight) {
            sum = sum + x[at as usize].load() * w;
        }
        *y = U::store(sum);
    }
}

/// Elements of a row that are summed side by side.
const COLUMNS: usize = 64;

simd_fn! {
    /// Rows across the axis, for each instruction set.
    fn rows_on<S>[T: Sample<W>, U: Sample<W>, W: Sum][T, U, W](
        s, x: &[T], index: &[i32], weight: &[W], y: &mut [U], fill: U, taps: usize, inner: usize,
    ) {
        let _ = s;
        rows(x, index, weight, y, fill, taps, inner);
    }
}

/// Rows across the axis.
#[inline(always)]
fn rows<T: Sample<W>, U: Sample<W>, W: Sum>(
    x: &[T],
    index: &[i32],
    weight: &[W],
    y: &mut [U],
    fill: U,
    taps: usize,
    inner: usize,
) {
    for ((y, index), weight) in y.chunks_exact_mut(inner).zip(index.chunks_exact(taps)).zip(weight.chunks_exact(taps)) {
        if index[0] < 0 {
            y.fill(fill);
            continue;
        }
        if let (&[i0, i1], &[w0, w1]) = (index, weight) {
            let (a, b) = (&x[i0 as usize * inner..][..inner], &x[i1 as usize * inner..][..inner]);
            for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                *y = U::store(a.load() * w0 + b.load() * w1);
            }
            continue;
        }
        for (c, y) in y.chunks_mut(COLUMNS).enumerate() {
            let mut sums = [W::default(); COLUMNS];
            for (&at, &w) in index.iter().zip(weight) {
                let row = &x[at as usize * inner + c * COLUMNS..][..y.len()];
                for (sum, v) in sums.iter_mut().zip(row) {
                    *sum = *sum + v.load() * w;
                }
            }
            for (y, sum) in y.iter_mut().zip(sums) {
                *y = U::store(sum);
            }
        }
    }
}
