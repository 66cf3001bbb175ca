//! What the epilogues of convolutions and pools need of activations.

use crate::simd::{F32x16, Simd, math};
use crate::{Activation, simd_fn};

/// The limits, where the function is nothing but a clamp: those are applied in registers.
pub(crate) fn as_clamp(f: Activation) -> Option<(f32, f32)> {
    match f {
        Activation::None => Some((f32::NEG_INFINITY, f32::INFINITY)),
        Activation::Relu => Some((0.0, f32::INFINITY)),
        Activation::Clip { lo, hi } => Some((lo, hi)),
        _ => None,
    }
}

/// Clamps to 0..=1; keeps NaN.
#[inline(always)]
fn unit<S: Simd>(s: S, x: S::F32) -> S::F32 {
    s.splat(1.0).min(s.zero().max(x))
}

/// x/2 · (1 + y), with 0 for −∞ (where y is −1).
#[inline(always)]
fn half_times<S: Simd>(s: S, x: S::F32, y: S::F32) -> S::F32 {
    let value = x * s.splat(0.5) * (y + s.splat(1.0));
    S::F32::select(x.eq(s.splat(f32::NEG_INFINITY)), s.zero(), value)
}

simd_fn! {
    /// Applies the function in place to `rows` rows of `n` values (a multiple of 16) that start `stride` apart.
    ///
    /// # Safety
    /// Every row is valid for reads and writes of `n` f32.
    pub(crate) unsafe fn apply_rows<S>(s, f: Activation, x: *mut f32, rows: usize, n: usize, stride: usize) {
        macro_rules! rows {
            ($v:ident => $e:expr) => {
                for row in 0..rows {
                    for at in (0..n / 16 * 16).step_by(16) {
                        let p = x.wrapping_add(row * stride + at);
                        // SAFETY: the caller vouches for the row.
                        unsafe {
                            let $v = s.load(p);
                            $e.store(p);
                        }
                    }
                }
            };
        }
        match f {
            Activation::None => {}
            Activation::Relu => rows!(v => s.zero().max(v)),
            Activation::Clip { lo, hi } => rows!(v => s.splat(hi).min(s.splat(lo).max(v))),
            Activation::LeakyRelu { alpha } => rows!(v => S::F32::select(v.lt(s.zero()), s.splat(alpha) * v, v)),
            Activation::Sigmoid => rows!(v => math::sigmoid(v)),
            Activation::Silu => rows!(v => {
                let quotient = v / (s.splat(1.0) + math::exp(-v));
                // −∞ / ∞ would be NaN; the limit is 0.
                S::F32::select(v.eq(s.splat(f32::NEG_INFINITY)), s.zero(), quotient)
            }),
            Activation::Tanh => rows!(v => math::tanh(v)),
            Activation::Gelu => rows!(v => half_times(s, v, math::erf(v * s.splat(core::f32::consts::FRAC_1_SQRT_2)))),
            Activation::GeluTanh => rows!(v => {
                const SQRT_2_OVER_PI: f32 = 0.797_884_6;
                let cubic = (v * v).fma(s.splat(0.044_715 * SQRT_2_OVER_PI), s.splat(SQRT_2_OVER_PI));
                half_times(s, v, math::tanh(v * cubic))
            }),
            Activation::HardSwish => rows!(v => v * unit(s, v.fma(s.splat(1.0 / 6.0), s.splat(0.5)))),
            Activation::HardSigmoid { alpha, beta } => rows!(v => unit(s, v.fma(s.splat(alpha), s.splat(beta)))),
        }
    }
}
