//! Functions around e^x - 1 and ln(1 + x) that keep their precision near zero: expm1, softplus, mish.

use super::{F32x16, math};

/// e^x - 1: relative error a few units in the last place, also near zero.
#[inline(always)]
pub fn expm1<V: F32x16>(x: V) -> V {
    let near = {
        let mut tail = x.splat_like(1.987_569_1e-4);
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            tail = tail.fma(x, x.splat_like(c));
        }
        (x * x).fma(tail, x)
    };
    let far = math::exp_from(x) - x.splat_like(1.0);
    V::select(x.abs().lt(x.splat_like(0.346)), near, far)
}

/// ln(1 + x) for x in 0..=1.
#[inline(always)]
fn log1p_unit<V: F32x16>(x: V) -> V {
    let one = x.splat_like(1.0);
    let sum = one + x;
    // What the sum lost, put back to first order.
    math::log(sum) + (x - (sum - one)) / sum
}

/// ln(1 + e^x).
#[inline(always)]
pub fn softplus<V: F32x16>(x: V) -> V {
    x.splat_like(0.0).max(x) + log1p_unit(math::exp_flushed(-x.abs()))
}

/// x · tanh(ln(1 + e^x)) = x · (t² + 2t) / (t² + 2t + 2) with t = e^x.
#[inline(always)]
pub fn mish<V: F32x16>(x: V) -> V {
    // Beyond 20 the factor is 1 in f32, and t² would overflow. The order of the operands keeps a NaN.
    let t = math::exp_flushed(x.splat_like(20.0).min(x));
    let two = x.splat_like(2.0);
    let part = t * (t + two);
    let value = x * (part / (part + two));
    V::select(x.eq(x.splat_like(f32::NEG_INFINITY)), x.splat_like(0.0), value)
}
