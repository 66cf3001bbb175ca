//! GroupNormalization and InstanceNormalization (a group per channel).
//!
//! In: `x` as `[batch, groups, channels, inner]`, possibly in the memory of `y`; scale and bias per channel, or per group.
//! Out: `y`, every group of `channels · inner` elements normalised, then scaled and shifted.

use super::stats;
use crate::simd::{Simd, scalar};
use crate::{Elem, Fault, Isa, kernel, simd_fn};

kernel! {
    /// `y = (x - mean) / √(var + eps) · scale + bias`, mean and variance over each group.
    pub struct GroupNorm {
        operands { alias x: T, read scale: T, read bias: T, write y: T }
        nums { batch, groups, channels, inner }
        params { eps: f32, per_group: bool }
    }
    entries { group_norm_f32 { T = f32 } group_norm_f64 { T = f64 } }
    body = group_norm;
}

trait GroupElem: Elem {
    fn run(isa: Isa, d: &GroupNorm, x: Option<&[Self]>, scale: &[Self], bias: &[Self], y: &mut [Self]);
}

fn group_norm<T: GroupElem>(
    isa: Isa,
    d: &GroupNorm,
    x: Option<&[T]>,
    scale: &[T],
    bias: &[T],
    y: &mut [T],
) -> Result<(), Fault> {
    let numel = [d.groups, d.channels, d.inner].iter().try_fold(d.batch, |n, &d| n.checked_mul(d));
    let n_scales = if d.per_group { Some(d.groups) } else { d.groups.checked_mul(d.channels) };
    if numel != Some(y.len())
        || x.is_some_and(|x| x.len() != y.len())
        || n_scales != Some(scale.len())
        || scale.len() != bias.len()
    {
        return Err(Fault::Descriptor);
    }
    if !y.is_empty() {
        T::run(isa, d, x, scale, bias, y);
    }
    Ok(())
}

impl GroupNorm {
    /// Where the scale of channel `c` of group `g` is.
    fn scale_idx(&self, g: usize, c: usize) -> usize {
        if self.per_group { g } else { g * self.channels + c }
    }
}

impl GroupElem for f32 {
    fn run(isa: Isa, d: &GroupNorm, x: Option<&[Self]>, scale: &[Self], bias: &[Self], y: &mut [Self]) {
        let to = y.as_mut_ptr();
        let from = x.map_or(to.cast_const(), <[Self]>::as_ptr);
        // SAFETY: both are valid for as many elements as `d` says, checked above; they are one memory or apart.
        unsafe { groups_f32(isa, d, from, scale, bias, to) }
    }
}

simd_fn! {
    /// # Safety
    /// `x` is valid for reads, `y` for writes of `d`'s number of elements; they are equal or do not overlap.
    unsafe fn groups_f32<S>(s, d: &GroupNorm, x: *const f32, scale: &[f32], bias: &[f32], y: *mut f32) {
        let n = d.channels * d.inner;
        for i in 0..d.batch * d.groups {
            // SAFETY: the caller vouches for every group.
            unsafe { group(s, d, i % d.groups, x.add(i * n), scale, bias, y.add(i * n)) }
        }
    }
}

/// # Safety
/// `x` is valid for reads, `y` for writes of `channels · inner` f32; they are equal or do not overlap.
#[inline(always)]
unsafe fn group<S: Simd>(s: S, d: &GroupNorm, g: usize, x: *const f32, scale: &[f32], bias: &[f32], y: *mut f32) {
    let n = d.channels * d.inner;
    // SAFETY: the caller vouches for `n` elements.
    unsafe {
        let mean = stats::mean(s, x, n);
        let inv = 1.0 / scalar::sqrt(stats::mean_square(s, x, n, mean) + d.eps);
        for c in 0..d.channels {
            let at = d.scale_idx(g, c);
            let a = inv * scale[at];
            stats::affine(s, x.add(c * d.inner), y.add(c * d.inner), d.inner, a, bias[at] - mean * a);
        }
    }
}

impl GroupElem for f64 {
    fn run(_: Isa, d: &GroupNorm, x: Option<&[Self]>, scale: &[Self], bias: &[Self], y: &mut [Self]) {
        if let Some(x) = x {
            y.copy_from_slice(x);
        }
        let n = d.channels * d.inner;
        for (i, y) in y.chunks_exact_mut(n).enumerate() {
            let mean = y.iter().sum::<Self>() / n as Self;
            let var = y.iter().map(|v| (v - mean) * (v - mean)).sum::<Self>() / n as Self;
            let inv = 1.0 / libm::sqrt(var + Self::from(d.eps));
            for (c, y) in y.chunks_exact_mut(d.inner).enumerate() {
                let at = d.scale_idx(i % d.groups, c);
                y.iter_mut().for_each(|y| *y = (*y - mean) * inv * scale[at] + bias[at]);
            }
        }
    }
}
