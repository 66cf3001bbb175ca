//! LayerNormalization, RMSNormalization and their fusions with the addition before them.
//!
//! In: `x` as `[rows, n]`, possibly in the memory of `y`; `skip` (its rows repeat) and `skip_bias` are added first; `scale`
//! and `bias` of `n` elements, or one row of them per row of `x` (`scale_step`, `bias_step` = n instead of 0).
//! Out: `y`; where wanted the sum that was normalised, each row's mean and 1 / standard deviation.

use super::stats::{self, load_w, store_w};
use crate::simd::{F32x16, LANES, Simd, scalar};
use crate::{Elem, Fault, Isa, kernel, simd_fn};

kernel! {
    /// `y = (x - mean) / √(var + eps) · scale + bias` for every row; with `rms` the mean is taken as 0.
    pub struct LayerNorm {
        operands {
            alias x: T, opt skip: T, opt skip_bias: T, opt scale: T, opt bias: T,
            write y: T, opt_write sum: T, opt_write mean: S, opt_write inv_std_dev: S,
        }
        nums { rows, n, skip_rows, scale_step, bias_step }
        params { eps: f32, rms: bool }
    }
    entries { layer_norm_f32 { T = f32, S = f32 } layer_norm_f64 { T = f64, S = f32 } }
    body = layer_norm;
}

/// One row's operands.
struct Row<T> {
    x: *const T,
    skip: Option<*const T>,
    skip_bias: Option<*const T>,
    scale: Option<*const T>,
    bias: Option<*const T>,
    y: *mut T,
    sum: Option<*mut T>,
}

trait NormElem: Elem {
    /// Normalises `rows` rows that `row` finds; `stats` gets (row, mean, 1 / standard deviation).
    ///
    /// # Safety
    /// The pointers of every row are valid for `n` elements; `x` is `y` or does not overlap it.
    unsafe fn run(isa: Isa, d: &LayerNorm, row: &dyn Fn(usize) -> Row<Self>, stats: &mut dyn FnMut(usize, f32, f32));
}

fn layer_norm<T: NormElem>(
    isa: Isa,
    d: &LayerNorm,
    x: Option<&[T]>,
    skip: Option<&[T]>,
    skip_bias: Option<&[T]>,
    scale: Option<&[T]>,
    bias: Option<&[T]>,
    y: &mut [T],
    sum: Option<&mut [T]>,
    mut mean: Option<&mut [f32]>,
    mut inv_std_dev: Option<&mut [f32]>,
) -> Result<(), Fault> {
    let (rows, n) = (d.rows, d.n);
    let whole = |len: usize| rows.checked_mul(n) == Some(len);
    let stepped =
        |o: Option<&[T]>, step: usize| o.is_none_or(|o| if step == 0 { o.len() == n } else { whole(o.len()) });
    let ok = whole(y.len())
        && x.is_none_or(|x| whole(x.len()))
        && sum.as_deref().is_none_or(|s| whole(s.len()))
        && skip.is_none_or(|s| d.skip_rows > 0 && d.skip_rows.checked_mul(n) == Some(s.len()))
        && skip_bias.is_none_or(|b| b.len() == n)
        && [d.scale_step, d.bias_step].iter().all(|&s| s == 0 || s == n)
        && stepped(scale, d.scale_step)
        && stepped(bias, d.bias_step)
        && mean.as_deref().is_none_or(|m| m.len() == rows)
        && inv_std_dev.as_deref().is_none_or(|m| m.len() == rows);
    if !ok {
        return Err(Fault::Descriptor);
    }
    let y = y.as_mut_ptr();
    let x = x.map_or(y.cast_const(), <[T]>::as_ptr);
    let sum = sum.map(<[T]>::as_mut_ptr);
    let row = |i: usize| Row {
        x: x.wrapping_add(i * n),
        skip: skip.map(|s| s.as_ptr().wrapping_add(i % d.skip_rows * n)),
        skip_bias: skip_bias.map(<[T]>::as_ptr),
        scale: scale.map(|s| s.as_ptr().wrapping_add(i * d.scale_step)),
        bias: bias.map(|b| b.as_ptr().wrapping_add(i * d.bias_step)),
        y: y.wrapping_add(i * n),
        sum: sum.map(|s| s.wrapping_add(i * n)),
    };
    // SAFETY: the lengths checked above; `x` is `y` itself or, by the entry's check, apart from it.
    unsafe {
        T::run(isa, d, &row, &mut |i, m, r| {
            if let Some(mean) = mean.as_deref_mut() {
                mean[i] = m;
            }
            if let Some(inv) = inv_std_dev.as_deref_mut() {
                inv[i] = r;
            }
        });
    }
    Ok(())
}

impl NormElem for f32 {
    unsafe fn run(isa: Isa, d: &LayerNorm, row: &dyn Fn(usize) -> Row<Self>, stats: &mut dyn FnMut(usize, f32, f32)) {
        // SAFETY: the caller's.
        unsafe { rows_f32(isa, d.rows, d.n, d.eps, d.rms, row, stats) }
    }
}

simd_fn! {
    /// # Safety
    /// As [`NormElem::run`].
    unsafe fn rows_f32<S>(
        s, rows: usize, n: usize, eps: f32, rms: bool, row: &dyn Fn(usize) -> Row<f32>, stats: &mut dyn FnMut(usize, f32, f32),
    ) {
        for i in 0..rows {
            let row = row(i);
            // SAFETY: the caller vouches for the row.
            let (mean, inv) = unsafe { normalize(s, &row, n, eps, rms) };
            stats(i, mean, inv);
        }
    }
}

/// Vectors of a row: `f(at, lanes)` for each.
#[inline(always)]
fn vectors(n: usize, mut f: impl FnMut(usize, usize)) {
    let mut at = 0;
    while at + LANES <= n {
        f(at, LANES);
        at += LANES;
    }
    if at < n {
        f(at, n - at);
    }
}

/// # Safety
/// The row's pointers are valid for `n` f32.
#[inline(always)]
unsafe fn normalize<S: Simd>(s: S, row: &Row<f32>, n: usize, eps: f32, rms: bool) -> (f32, f32) {
    // Macros, so that no closure keeps the vector code from being inlined.
    macro_rules! load {
        ($p:expr, $at:expr, $w:expr) => {
            // SAFETY: `vectors` gives lanes below `n`, for which the caller vouches.
            unsafe { load_w(s, $p.add($at), $w) }
        };
    }
    macro_rules! store {
        ($v:expr, $p:expr, $at:expr, $w:expr) => {{
            let v: S::F32 = $v;
            // SAFETY: as above.
            unsafe { store_w(v, $p.add($at), $w) }
        }};
    }
    let (mut x, y) = (row.x, row.y);
    if row.skip.is_some() || row.skip_bias.is_some() || row.sum.is_some() {
        vectors(
            n,
            #[inline(always)]
            |at, w| {
                let mut v = load!(x, at, w);
                if let Some(skip) = row.skip {
                    v = v + load!(skip, at, w);
                }
                if let Some(bias) = row.skip_bias {
                    v = v + load!(bias, at, w);
                }
                store!(v, y, at, w);
                if let Some(sum) = row.sum {
                    store!(v, sum, at, w);
                }
            },
        );
        x = y;
    }
    // SAFETY: the caller vouches for `n` elements.
    let (mean, var) = unsafe {
        let mean = if rms { 0.0 } else { stats::mean(s, x, n) };
        (mean, stats::mean_square(s, x, n, mean))
    };
    let inv = 1.0 / scalar::sqrt(var + eps);
    let (m, r) = (s.splat(mean), s.splat(inv));
    match (row.scale, row.bias) {
        (Some(scale), Some(bias)) => vectors(
            n,
            #[inline(always)]
            |at, w| store!(((load!(x, at, w) - m) * r).fma(load!(scale, at, w), load!(bias, at, w)), y, at, w),
        ),
        (Some(scale), None) => vectors(
            n,
            #[inline(always)]
            |at, w| store!((load!(x, at, w) - m) * r * load!(scale, at, w), y, at, w),
        ),
        (None, bias) => vectors(
            n,
            #[inline(always)]
            |at, w| {
                let v = (load!(x, at, w) - m) * r;
                store!(if let Some(bias) = bias { v + load!(bias, at, w) } else { v }, y, at, w);
            },
        ),
    }
    (mean, inv)
}

impl NormElem for f64 {
    unsafe fn run(_: Isa, d: &LayerNorm, row: &dyn Fn(usize) -> Row<Self>, stats: &mut dyn FnMut(usize, f32, f32)) {
        let n = d.n;
        for i in 0..d.rows {
            let row = row(i);
            // SAFETY: every index is below `n`, for which the caller vouches.
            let get = |p: Option<*const f64>, j: usize, other: f64| p.map_or(other, |p| unsafe { *p.add(j) });
            for j in 0..n {
                let v = get(Some(row.x), j, 0.0) + get(row.skip, j, 0.0) + get(row.skip_bias, j, 0.0);
                // SAFETY: as above.
                unsafe {
                    *row.y.add(j) = v;
                    if let Some(sum) = row.sum {
                        *sum.add(j) = v;
                    }
                }
            }
            // SAFETY: `y` is valid for `n` elements, all written above, and nothing else refers to them.
            let y = unsafe { core::slice::from_raw_parts_mut(row.y, n) };
            let mean = if d.rms { 0.0 } else { y.iter().sum::<f64>() / n as f64 };
            let var = y.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
            let inv = 1.0 / libm::sqrt(var + f64::from(d.eps));
            for (j, y) in y.iter_mut().enumerate() {
                *y = (*y - mean) * inv * get(row.scale, j, 1.0) + get(row.bias, j, 0.0);
            }
            stats(i, mean as f32, inv as f32);
        }
    }
}
