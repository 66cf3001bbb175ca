//! LRN: every element divided by a power of the squares around it, across channels.
//!
//! In: `x` as `[batch, channels, inner]`. Out: `y`. Vectorised along `inner`.

use crate::real::Real;
use crate::simd::{F32x16, LANES, math};
use crate::{Elem, Fault, Isa, kernel, simd_fn};
use core::ops::Range;

kernel! {
    /// `y = x / (bias + alpha/size · Σ x²)^beta` over the `size` channels around each.
    pub struct Lrn {
        operands { read x: T, write y: T }
        nums { batch, channels, inner }
        params { size: u32, alpha: f32, beta: f32, bias: f32 }
    }
    entries { lrn_f32 { T = f32 } lrn_f64 { T = f64 } }
    body = lrn;
}

trait LrnElem: Elem {
    /// One batch entry.
    fn image(isa: Isa, d: &Lrn, x: &[Self], y: &mut [Self]);
}

impl Lrn {
    /// The channels that count for channel `c`.
    fn around(&self, c: usize) -> Range<usize> {
        let size = self.size as usize;
        let before = size.saturating_sub(1) / 2;
        let after = size.saturating_sub(1).div_ceil(2);
        c.saturating_sub(before)..self.channels.min(c + after + 1)
    }
}

fn lrn<T: LrnElem>(isa: Isa, d: &Lrn, x: &[T], y: &mut [T]) -> Result<(), Fault> {
    let image = d.channels.checked_mul(d.inner).ok_or(Fault::Descriptor)?;
    if d.batch.checked_mul(image) != Some(x.len()) || x.len() != y.len() || d.size == 0 {
        return Err(Fault::Descriptor);
    }
    if !x.is_empty() {
        for (x, y) in x.chunks_exact(image).zip(y.chunks_exact_mut(image)) {
            T::image(isa, d, x, y);
        }
    }
    Ok(())
}

impl LrnElem for f32 {
    fn image(isa: Isa, d: &Lrn, x: &[Self], y: &mut [Self]) {
        image_f32(isa, d, x, y);
    }
}

simd_fn! {
    fn image_f32<S>(s, d: &Lrn, x: &[f32], y: &mut [f32]) {
        let (factor, bias, power) = (s.splat(d.alpha / d.size as f32), s.splat(d.bias), s.splat(-d.beta));
        for c in 0..d.channels {
            let row = &mut y[c * d.inner..][..d.inner];
            for at in (0..d.inner).step_by(LANES) {
                let mut sum = s.zero();
                for near in d.around(c) {
                    let v = s.load_slice(x, near * d.inner + at);
                    sum = v.fma(v, sum);
                }
                let base = sum.fma(factor, bias);
                let v = s.load_slice(x, c * d.inner + at);
                let scale = if d.beta == 0.75 {
                    // x^(3/4) = √x · √√x
                    let root = base.sqrt();
                    s.splat(1.0) / (root * root.sqrt())
                } else {
                    math::exp(power * math::log(base))
                };
                (v * scale).store_slice(row, at);
            }
        }
    }
}

impl LrnElem for f64 {
    fn image(_: Isa, d: &Lrn, x: &[Self], y: &mut [Self]) {
        for c in 0..d.channels {
            for i in 0..d.inner {
                let sum: Self = d.around(c).map(|near| x[near * d.inner + i].get()).map(|v| v * v).sum();
                let base = Self::from(d.bias) + Self::from(d.alpha) / Self::from(d.size) * sum;
                y[c * d.inner + i] = x[c * d.inner + i] / libm::pow(base, Self::from(d.beta));
            }
        }
    }
}
