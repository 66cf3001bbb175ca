//! Sine and cosine of a 16-lane vector, with a stated bound on their errors.
//!
//! Lanes up to [`VECTOR_LIMIT`] are reduced by multiples of π/2 in three parts (Cody and Waite) and go through Cephes'
//! polynomials; a vector with a greater lane, an infinity or a NaN goes lane by lane through crate `libm`.

use super::{F32x16, LANES, Simd};
use core::f32::consts::FRAC_2_PI;

/// Bound on the error of [`sin`] and [`cos`] relative to the larger of the result and 2^-12, in units in the last place.
pub const SIN_COS_MAX_ULP: f64 = 2.0;

/// The greatest magnitude that the vector's reduction is exact enough for.
pub const VECTOR_LIMIT: f32 = 8192.0;

/// Sine.
#[inline(always)]
pub fn sin<S: Simd>(s: S, x: S::F32) -> S::F32 {
    if in_reach(x) { reduced(x, s.zero()) } else { lane_by_lane(s, x, libm::sinf) }
}

/// Cosine.
#[inline(always)]
pub fn cos<S: Simd>(s: S, x: S::F32) -> S::F32 {
    if in_reach(x) { reduced(x, s.splat(1.0)) } else { lane_by_lane(s, x, libm::cosf) }
}

/// Whether every lane is a number within the limit. NaN makes the comparison false.
#[inline(always)]
fn in_reach<V: F32x16>(x: V) -> bool {
    let one = x.splat_like(1.0);
    let within = V::select(x.abs().le(x.splat_like(VECTOR_LIMIT)), one, x.splat_like(0.0));
    within.min_lane() == 1.0
}

#[cold]
#[inline(never)]
fn lanes_of(x: &mut [f32; LANES], f: fn(f32) -> f32) {
    for v in x {
        *v = f(*v);
    }
}

#[inline(always)]
fn lane_by_lane<S: Simd>(s: S, x: S::F32, f: fn(f32) -> f32) -> S::F32 {
    let mut lanes = x.to_array();
    lanes_of(&mut lanes, f);
    s.array(lanes)
}

/// Sine of `x + quarter·π/2`.
#[inline(always)]
fn reduced<V: F32x16>(x: V, quarter: V) -> V {
    let n = (x * x.splat_like(FRAC_2_PI)).round();
    // π/2 in three parts; the first two have few enough bits that their products with `n` are exact.
    let r = n.fnma(x.splat_like(1.570_312_5), x);
    let r = n.fnma(x.splat_like(4.837_513e-4), r);
    let r = n.fnma(x.splat_like(7.549_79e-8), r);
    let z = r * r;
    let odd = z.fma(x.splat_like(-1.951_529_6e-4), x.splat_like(8.332_161e-3)).fma(z, x.splat_like(-1.666_665_5e-1));
    let sine = (odd * z).fma(r, r);
    let even = z.fma(x.splat_like(2.443_315_7e-5), x.splat_like(-1.388_731_6e-3)).fma(z, x.splat_like(4.166_664_6e-2));
    let cosine = (even * z).fma(z, z.fma(x.splat_like(-0.5), x.splat_like(1.0)));
    // The quarter turn modulo 4: 1 and 3 exchange the two, 2 and 3 turn the sign.
    let turn = n + quarter;
    let turn = turn - (turn * x.splat_like(0.25)).floor() * x.splat_like(4.0);
    let half = turn * x.splat_like(0.5);
    let is_odd = half.floor().lt(half);
    let value = V::select(is_odd, cosine, sine);
    V::select(turn.lt(x.splat_like(1.5)), value, -value)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::isa::Isa;
    use crate::simd_fn;

    simd_fn! {
        fn apply<S>(s, sine: bool, x: [f32; LANES]) -> [f32; LANES] {
            let x = s.array(x);
            if sine { sin(s, x) } else { cos(s, x) }.to_array()
        }
    }

    #[test]
    fn errors_stay_within_the_bound() {
        for isa in Isa::supported() {
            for (sine, exact) in [(true, f64::sin as fn(f64) -> f64), (false, f64::cos)] {
                let mut worst = (0.0, 0.0);
                for block in 0..40_000 {
                    let x: [f32; LANES] = core::array::from_fn(|i| {
                        let i = (block * LANES + i) as f32;
                        (i - 320_000.0) * 0.025_6
                    });
                    for (x, got) in x.into_iter().zip(apply(isa, sine, x)) {
                        let want = exact(x.into());
                        let unit = want.abs().max(1.0 / 4096.0).log2().floor().exp2() * 2f64.powi(-23);
                        let error = (f64::from(got) - want).abs() / unit;
                        if error > worst.0 {
                            worst = (error, x);
                        }
                    }
                }
                std::println!("{isa:?} sine: {sine}: {:.3} ulp at {:e}", worst.0, worst.1);
                assert!(worst.0 <= SIN_COS_MAX_ULP, "{isa:?} {} at {:e}", worst.0, worst.1);
            }
            let special = |x: f32| (apply(isa, true, [x; LANES])[3], apply(isa, false, [x; LANES])[3]);
            for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                assert!(special(x).0.is_nan() && special(x).1.is_nan());
            }
            assert_eq!(special(0.0), (0.0, 1.0));
            let big = special(1e6);
            assert!((f64::from(big.0) - 1e6f64.sin()).abs() < 1e-7 && (f64::from(big.1) - 1e6f64.cos()).abs() < 1e-7);
        }
    }
}
