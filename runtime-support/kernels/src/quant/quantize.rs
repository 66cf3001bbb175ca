//! Floats to integers and to small floats: `y = saturate(round(x / scale) + zero)`.
//!
//! The quotient is rounded to nearest, ties to even, before the zero point is added; NaN becomes the least value.
//! <https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html>

use super::scales::{Precision, Run, Scales};
use crate::simd::{F32x16, I32x16, LANES};
use crate::{Elem, Fault, Isa, SmallFloat, kernel, simd_fn};

kernel! {
    /// To integers in `lo..=hi`. `x` is `[outer, n, inner]`; the scale of an element is at
    /// `outer·s_outer + (n / block)·s_n + inner·s_inner`.
    pub struct Quantize {
        operands { read x: F, read scale: F, opt zero: Q, write y: Q }
        nums { outer, n, inner, block, s_outer, s_n, s_inner }
        params { lo: i32, hi: i32, precision: Precision }
    }
    entries {
        quantize_f32_u8 { F = f32, Q = u8 } quantize_f32_i8 { F = f32, Q = i8 }
        quantize_f32_u16 { F = f32, Q = u16 } quantize_f32_i16 { F = f32, Q = i16 }
    }
    body = quantize;
}

kernel! {
    /// To codes of small floats; scales as in [`Quantize`]. The zero points are codes, too.
    pub struct QuantizeSmall {
        operands { read x: F, read scale: F, opt zero: Q, write y: Q }
        nums { outer, n, inner, block, s_outer, s_n, s_inner }
        params { format: SmallFloat, saturate: bool, infinity_saturates: bool, precision: Precision }
    }
    entries { quantize_small_f32 { F = f32, Q = u8 } }
    body = quantize_small;
}

/// An integer that a tensor is quantised to.
pub trait Quantised: Elem {
    /// Its value.
    fn wide(self) -> i32;
    /// The low bits: the value, as the caller has clamped it.
    fn narrow(v: i32) -> Self;
}

macro_rules! quantised {
    ($($t:ty),*) => { $(impl Quantised for $t {
        #[inline(always)]
        fn wide(self) -> i32 {
            self.into()
        }
        #[inline(always)]
        fn narrow(v: i32) -> Self {
            v as Self
        }
    })* };
}
quantised!(u8, i8, u16, i16);

fn quantize<Q: Quantised>(
    isa: Isa,
    d: &Quantize,
    x: &[f32],
    scale: &[f32],
    zero: Option<&[Q]>,
    y: &mut [Q],
) -> Result<(), Fault> {
    let scales = Scales { dims: [d.outer, d.n, d.inner], block: d.block, strides: [d.s_outer, d.s_n, d.s_inner] };
    let scales = scales.checked(x.len(), y.len(), scale.len(), zero.map(<[_]>::len))?;
    if d.precision != Precision::F32 {
        scales.runs(|r| rounded(d, &r, x, scale, zero, y));
        return Ok(());
    }
    scales.runs(|r| {
        let (from, to) = (&x[r.at..r.at + r.len], &mut y[r.at..r.at + r.len]);
        if r.each {
            let zero = zero.map(|z| &z[r.scale..r.scale + r.len]);
            quantize_each(isa, from, &scale[r.scale..r.scale + r.len], zero, (d.lo, d.hi), to);
        } else {
            let zero = zero.map_or(0, |z| z[r.scale].wide());
            quantize_run(isa, from, scale[r.scale], zero, (d.lo, d.hi), to);
        }
    });
    Ok(())
}

/// The definition, for quotients in a narrower precision.
fn rounded<Q: Quantised>(d: &Quantize, r: &Run, x: &[f32], scale: &[f32], zero: Option<&[Q]>, y: &mut [Q]) {
    for i in 0..r.len {
        let at = r.scale + if r.each { i } else { 0 };
        let zero = zero.map_or(0, |z| z[at].wide());
        let p = d.precision;
        let q = p.round(p.round(x[r.at + i]) / p.round(scale[at]));
        y[r.at + i] = Q::narrow(round_clamped(q, d.lo - zero, d.hi - zero) + zero);
    }
}

/// Rounds to nearest, ties to even, within limits; NaN becomes the lower one.
#[inline(always)]
pub(crate) fn round_clamped(x: f32, lo: i32, hi: i32) -> i32 {
    let (lo, hi) = (lo as f32, hi as f32);
    let x = if x > lo { x } else { lo };
    libm::rintf(if x < hi { x } else { hi }) as i32
}

simd_fn! {
    /// One scale and zero point for all. `y` is as long as `x`.
    pub(crate) fn quantize_run<S>[Q: Quantised][Q](s, x: &[f32], scale: f32, zero: i32, limits: (i32, i32), y: &mut [Q]) {
        let (lo, hi) = (s.splat((limits.0 - zero) as f32), s.splat((limits.1 - zero) as f32));
        let scale = s.splat(scale);
        for (i, to) in y.chunks_mut(LANES).enumerate() {
            let q = s.to_i32((s.load_slice(x, i * LANES) / scale).max(lo).min(hi)).to_array();
            for (to, q) in to.iter_mut().zip(q) {
                *to = Q::narrow(q + zero);
            }
        }
    }
}

simd_fn! {
    fn quantize_each<S>[Q: Quantised][Q](
        s, x: &[f32], scale: &[f32], zero: Option<&[Q]>, limits: (i32, i32), y: &mut [Q],
    ) {
        for (i, to) in y.chunks_mut(LANES).enumerate() {
            let at = i * LANES;
            let mut zeros = [0i32; LANES];
            if let Some(zero) = zero {
                for (to, &z) in zeros.iter_mut().zip(&zero[at..]) {
                    *to = z.wide();
                }
            }
            let lo = s.array(zeros.map(|z| (limits.0 - z) as f32));
            let hi = s.array(zeros.map(|z| (limits.1 - z) as f32));
            let q = s.to_i32((s.load_slice(x, at) / s.load_slice(scale, at)).max(lo).min(hi)).to_array();
            for ((to, q), z) in to.iter_mut().zip(q).zip(zeros) {
                *to = Q::narrow(q + z);
            }
        }
    }
}

fn quantize_small(
    _: Isa,
    d: &QuantizeSmall,
    x: &[f32],
    scale: &[f32],
    zero: Option<&[u8]>,
    y: &mut [u8],
) -> Result<(), Fault> {
    let scales = Scales { dims: [d.outer, d.n, d.inner], block: d.block, strides: [d.s_outer, d.s_n, d.s_inner] };
    let scales = scales.checked(x.len(), y.len(), scale.len(), zero.map(<[_]>::len))?;
    let p = d.precision;
    scales.runs(|r| {
        for i in 0..r.len {
            let at = r.scale + if r.each { i } else { 0 };
            let q = p.round(p.round(x[r.at + i]) / p.round(scale[at])) + zero.map_or(0.0, |z| d.format.decode(z[at]));
            y[r.at + i] = d.format.encode(q, d.saturate, d.infinity_saturates);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn ties_saturation_and_tails_on_every_set() {
        let x: Vec<f32> = (-40..40).map(|i| i as f32 * 0.5).chain([f32::NAN, 1e30, -1e30, f32::INFINITY]).collect();
        for isa in Isa::supported() {
            for (zero, lo, hi) in [(0, 0, 255), (128, 0, 255), (7, 0, 15), (3, 0, 3)] {
                let mut y = std::vec![0u8; x.len()];
                quantize_run(isa, &x, 1.0, zero, (lo, hi), &mut y);
                for (&x, &y) in x.iter().zip(&y) {
                    let want = (x.round_ties_even() as i64).saturating_add(zero.into()).clamp(lo.into(), hi.into());
                    let want = if x.is_nan() { lo.into() } else { want };
                    assert_eq!(i64::from(y), want, "{x} with zero point {zero} on {}", isa.name());
                }
            }
        }
    }

    #[test]
    fn a_scale_for_each() {
        let n = 21;
        let x: Vec<f32> = (0..n).map(|i| i as f32 - 10.0).collect();
        let scale: Vec<f32> = (0..n).map(|i| 0.25 + i as f32 * 0.125).collect();
        let zero: Vec<i8> = (0..n).map(|i| i as i8 - 3).collect();
        for isa in Isa::supported() {
            let mut y = std::vec![0i8; n];
            quantize_each(isa, &x, &scale, Some(&zero), (-128, 127), &mut y);
            for i in 0..n {
                let want = (x[i] / scale[i]).round_ties_even() as i32 + i32::from(zero[i]);
                assert_eq!(i32::from(y[i]), want.clamp(-128, 127));
            }
        }
    }
}
