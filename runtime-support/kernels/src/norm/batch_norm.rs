//! BatchNormalization with given statistics, in the plain and the blocked layout, and the statistics of a batch.
//!
//! In: `x` as `[batch, channels, inner]` (blocked: `[batch, channels/16, inner, 16]`), possibly in the memory of `y`; scale,
//! bias, mean and variance per channel. Out: `y`; or mean and variance over batch and inner.

use super::stats;
use crate::simd::{F32x16, LANES, scalar};
use crate::{Elem, Fault, Isa, kernel, simd_fn};

kernel! {
    /// `y = (x - mean) / √(var + eps) · scale + bias`, channel by channel.
    pub struct BatchNorm {
        operands { alias x: T, read scale: T, read bias: T, read mean: T, read var: T, write y: T }
        nums { batch, channels, inner }
        params { eps: f32 }
    }
    entries { batch_norm_f32 { T = f32 } batch_norm_f64 { T = f64 } }
    body = batch_norm;
}

kernel! {
    /// As [`BatchNorm`], `x` and `y` with channels in blocks of 16.
    pub struct BatchNormBlocked {
        operands { alias x: T, read scale: T, read bias: T, read mean: T, read var: T, write y: T }
        nums { batch, channels, inner }
        params { eps: f32 }
    }
    entries { batch_norm_blocked_f32 { T = f32 } }
    body = batch_norm_blocked;
}

kernel! {
    /// Mean and (population) variance of each channel over batch and inner, and the running ones:
    /// `running = old · momentum + new · (1 - momentum)`.
    pub struct BatchStats {
        operands {
            read x: T, read old_mean: T, read old_var: T,
            write mean: T, write var: T, opt_write running_mean: T, opt_write running_var: T,
        }
        nums { batch, channels, inner }
        params { momentum: f32 }
    }
    entries { batch_stats_f32 { T = f32 } batch_stats_f64 { T = f64 } }
    body = batch_stats;
}

trait BatchElem: Elem + Into<f64> {
    fn round(x: f64) -> Self;
    /// `y = x·a + b` for each of these, a and b of the channel.
    fn lines(isa: Isa, d: &BatchNorm, x: Option<&[Self]>, p: [&[Self]; 4], y: &mut [Self]);
}

fn batch_norm<T: BatchElem>(
    isa: Isa,
    d: &BatchNorm,
    x: Option<&[T]>,
    scale: &[T],
    bias: &[T],
    mean: &[T],
    var: &[T],
    y: &mut [T],
) -> Result<(), Fault> {
    let numel = d.batch.checked_mul(d.channels).and_then(|n| n.checked_mul(d.inner));
    let p = [scale, bias, mean, var];
    if numel != Some(y.len()) || x.is_some_and(|x| x.len() != y.len()) || p.iter().any(|p| p.len() != d.channels) {
        return Err(Fault::Descriptor);
    }
    if !y.is_empty() {
        T::lines(isa, d, x, p, y);
    }
    Ok(())
}

impl BatchElem for f64 {
    fn round(x: f64) -> Self {
        x
    }

    fn lines(_: Isa, d: &BatchNorm, x: Option<&[Self]>, [scale, bias, mean, var]: [&[Self]; 4], y: &mut [Self]) {
        if let Some(x) = x {
            y.copy_from_slice(x);
        }
        for (i, y) in y.chunks_exact_mut(d.inner).enumerate() {
            let c = i % d.channels;
            let inv = 1.0 / libm::sqrt(var[c] + Self::from(d.eps));
            y.iter_mut().for_each(|y| *y = (*y - mean[c]) * inv * scale[c] + bias[c]);
        }
    }
}

impl BatchElem for f32 {
    fn round(x: f64) -> Self {
        x as Self
    }

    fn lines(isa: Isa, d: &BatchNorm, x: Option<&[Self]>, p: [&[Self]; 4], y: &mut [Self]) {
        let to = y.as_mut_ptr();
        let from = x.map_or(to.cast_const(), <[Self]>::as_ptr);
        // SAFETY: both are valid for as many elements as `d` says, checked above; they are one memory or apart.
        unsafe {
            if d.inner == 1 {
                across(isa, d.batch, from, p, to, d.eps);
            } else {
                along(isa, d, from, p, to);
            }
        }
    }
}

simd_fn! {
    /// Each channel's line is contiguous.
    ///
    /// # Safety
    /// `x` is valid for reads, `y` for writes of `d`'s number of elements; they are equal or do not overlap.
    unsafe fn along<S>(s, d: &BatchNorm, x: *const f32, p: [&[f32]; 4], y: *mut f32) {
        let [scale, bias, mean, var] = p;
        for i in 0..d.batch * d.channels {
            let c = i % d.channels;
            let a = scale[c] / scalar::sqrt(var[c] + d.eps);
            // SAFETY: the caller vouches for every line.
            unsafe { stats::affine(s, x.add(i * d.inner), y.add(i * d.inner), d.inner, a, bias[c] - mean[c] * a) }
        }
    }
}

simd_fn! {
    /// Channels lie side by side: `[batch, channels]`.
    ///
    /// # Safety
    /// `x` is valid for reads, `y` for writes of `batch · channels` f32; they are equal or do not overlap.
    unsafe fn across<S>(s, batch: usize, x: *const f32, p: [&[f32]; 4], y: *mut f32, eps: f32) {
        let [scale, bias, mean, var] = p;
        let channels = scale.len();
        for c in (0..channels).step_by(LANES) {
            let a = s.load_slice(scale, c) / (s.load_slice(var, c) + s.splat(eps)).sqrt();
            let b = s.load_slice(mean, c).fnma(a, s.load_slice(bias, c));
            let w = LANES.min(channels - c);
            for n in 0..batch {
                // SAFETY: the caller vouches for these `w` elements.
                unsafe { s.load_n(x.add(n * channels + c), w).fma(a, b).store_n(y.add(n * channels + c), w) }
            }
        }
    }
}

simd_fn! {
    /// # Safety
    /// `x` is valid for reads, `y` for writes of `batch · ceil(channels / 16) · inner · 16` f32; they are equal or do not
    /// overlap.
    unsafe fn blocks<S>(s, batch: usize, inner: usize, x: *const f32, p: [&[f32]; 4], y: *mut f32, eps: f32) {
        let [scale, bias, mean, var] = p;
        let blocks = scale.len().div_ceil(LANES);
        for i in 0..batch * blocks {
            let c = i % blocks * LANES;
            let a = s.load_slice(scale, c) / (s.load_slice(var, c) + s.splat(eps)).sqrt();
            let b = s.load_slice(mean, c).fnma(a, s.load_slice(bias, c));
            for at in (i * inner..(i + 1) * inner).map(|at| at * LANES) {
                // SAFETY: the caller vouches for these elements.
                unsafe { s.load(x.add(at)).fma(a, b).store(y.add(at)) }
            }
        }
    }
}

fn batch_norm_blocked(
    isa: Isa,
    d: &BatchNormBlocked,
    x: Option<&[f32]>,
    scale: &[f32],
    bias: &[f32],
    mean: &[f32],
    var: &[f32],
    y: &mut [f32],
) -> Result<(), Fault> {
    let numel = [d.channels.div_ceil(LANES), d.inner, LANES].iter().try_fold(d.batch, |n, &d| n.checked_mul(d));
    let p = [scale, bias, mean, var];
    if numel != Some(y.len()) || x.is_some_and(|x| x.len() != y.len()) || p.iter().any(|p| p.len() != d.channels) {
        return Err(Fault::Descriptor);
    }
    let to = y.as_mut_ptr();
    let from = x.map_or(to.cast_const(), <[f32]>::as_ptr);
    // SAFETY: both are valid for as many elements as `d` says; they are one memory or apart.
    unsafe { blocks(isa, d.batch, d.inner, from, p, to, d.eps) }
    Ok(())
}

fn batch_stats<T: BatchElem>(
    _: Isa,
    d: &BatchStats,
    x: &[T],
    old_mean: &[T],
    old_var: &[T],
    mean: &mut [T],
    var: &mut [T],
    mut running_mean: Option<&mut [T]>,
    mut running_var: Option<&mut [T]>,
) -> Result<(), Fault> {
    let numel = d.batch.checked_mul(d.channels).and_then(|n| n.checked_mul(d.inner));
    let per_channel = |len: usize| len == d.channels;
    if numel != Some(x.len())
        || ![old_mean.len(), old_var.len(), mean.len(), var.len()].into_iter().all(per_channel)
        || [&running_mean, &running_var].into_iter().flatten().any(|r| !per_channel(r.len()))
    {
        return Err(Fault::Descriptor);
    }
    let n = (d.batch * d.inner) as f64;
    let momentum = f64::from(d.momentum);
    for c in 0..d.channels {
        let lines = || {
            (0..d.batch)
                .flat_map(|b| x[(b * d.channels + c) * d.inner..][..d.inner].iter().copied().map(Into::<f64>::into))
        };
        let m = lines().sum::<f64>() / n;
        let v = lines().map(|x| (x - m) * (x - m)).sum::<f64>() / n;
        (mean[c], var[c]) = (T::round(m), T::round(v));
        let running = |old: T, new: f64| T::round(old.into() * momentum + new * (1.0 - momentum));
        if let Some(r) = running_mean.as_deref_mut() {
            r[c] = running(old_mean[c], m);
        }
        if let Some(r) = running_var.as_deref_mut() {
            r[c] = running(old_var[c], v);
        }
    }
    Ok(())
}
