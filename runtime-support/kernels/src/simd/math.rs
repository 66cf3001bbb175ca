//! Elementary functions of a 16-lane vector, each with a stated bound on its error.
//!
//! In and out: vectors of any instruction set. The bounds are in units in the last place (ULP) of the correctly rounded
//! result; they hold for every set, and the tests below measure them over all exponents. Results below
//! `f32::MIN_POSITIVE` are rounded there, not flushed, unless said otherwise.
//! Sources: Cody and Waite's reduction and Cephes' polynomials (exp, log, tanh); N. Juffa's erff.

use super::F32x16;
use core::f32::consts::LOG2_E;

/// Bound on the error of [`exp`].
pub const EXP_MAX_ULP: f64 = 1.5;
/// Bound on the error of [`exp2`].
pub const EXP2_MAX_ULP: f64 = 1.5;
/// Bound on the error of [`log`].
pub const LOG_MAX_ULP: f64 = 1.5;
/// Bound on the error of [`sigmoid`].
pub const SIGMOID_MAX_ULP: f64 = 3.0;
/// Bound on the error of [`tanh`].
pub const TANH_MAX_ULP: f64 = 2.5;
/// Bound on the error of [`erf`].
pub const ERF_MAX_ULP: f64 = 2.0;

/// ln 2 in two parts: the first has few enough bits that its product with an exponent is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `c[0] + c[1]·x + c[2]·x² + …` by Horner's rule.
#[inline(always)]
fn polynomial<V: F32x16, const N: usize>(x: V, c: [f32; N]) -> V {
    let mut sum = x.splat_like(c[N - 1]);
    for i in (0..N - 1).rev() {
        sum = sum.fma(x, x.splat_like(c[i]));
    }
    sum
}

/// e^x. Underflows to 0, overflows to ∞, keeps NaN.
#[inline(always)]
pub fn exp<V: F32x16>(x: V) -> V {
    // Outside these limits the result is 0 or ∞ anyway.
    exp_within(x, -104.0)
}

/// The exponent from which on [`exp_flushed`] is 0 and [`exp_from`] does not fall any more: e^x is still a normal number there.
/// Numbers that are not cost many processors a hundred cycles each.
const LEAST_EXPONENT: f32 = -87.0;

/// As [`exp`], but 0 below e^−87.
#[inline(always)]
pub fn exp_flushed<V: F32x16>(x: V) -> V {
    V::select(x.lt(x.splat_like(LEAST_EXPONENT)), x.splat_like(0.0), exp_from(x))
}

/// As [`exp`], but e^−87 below that: for sums with something far larger.
#[inline(always)]
pub fn exp_from<V: F32x16>(x: V) -> V {
    exp_within(x, LEAST_EXPONENT)
}

/// e^x of x no less than `least`, whatever x is.
#[inline(always)]
fn exp_within<V: F32x16>(x: V, least: f32) -> V {
    // Operands in this order keep a NaN.
    let x = x.splat_like(least).max(x.splat_like(89.0).min(x));
    let n = (x * x.splat_like(LOG2_E)).round();
    let r = n.fnma(x.splat_like(LN2_LOW), n.fnma(x.splat_like(LN2_HIGH), x));
    let tail = polynomial(r, [0.5, 1.666_666_5e-1, 4.166_579_6e-2, 8.333_452e-3, 1.398_2e-3, 1.987_569_1e-4]);
    let mantissa = (r * r).fma(tail, r) + r.splat_like(1.0);
    mantissa.mul_pow2(n)
}

/// 2^x. Underflows to 0, overflows to ∞, keeps NaN.
#[inline(always)]
pub fn exp2<V: F32x16>(x: V) -> V {
    // As in `exp`.
    let x = x.splat_like(-152.0).max(x.splat_like(129.0).min(x));
    let n = x.round();
    polynomial(x - n, EXP2).mul_pow2(n)
}

/// 2^x for x that are not above 128, of several vectors at a time: step by step for all, so that none waits for its own. 2^−125
/// less than the power, and so 0 for all x up to −125: only results below 2^−100 show it, and those that are no normal numbers, which
/// cost many processors a hundred cycles each, come of −125 < x < −124 only.
#[inline(always)]
pub fn exp2_small<V: F32x16, const N: usize>(mut x: [V; N]) -> [V; N] {
    let mut n = x;
    for i in 0..N {
        x[i] = x[i].splat_like(-125.0).max(x[i]);
        n[i] = x[i].round();
        x[i] = x[i] - n[i];
    }
    let mut y = polynomials(x, EXP2);
    for i in 0..N {
        y[i] = y[i].mul_pow2(n[i]) - y[i].splat_like(LEAST_POWER);
    }
    y
}

/// 2^−125.
const LEAST_POWER: f32 = 2.0 * f32::MIN_POSITIVE;

/// 2^r for r in -½..½.
const EXP2: [f32; 7] =
    [1.0, 6.931_472_4e-1, 2.402_265_2e-1, 5.550_310_4e-2, 9.617_693e-3, 1.340_664_3e-3, 1.559_467_8e-4];

/// [`polynomial`] of several vectors, step by step.
#[inline(always)]
fn polynomials<V: F32x16, const N: usize, const C: usize>(x: [V; N], c: [f32; C]) -> [V; N] {
    let mut sum = x;
    for i in 0..N {
        sum[i] = x[i].splat_like(c[C - 1]);
    }
    for k in (0..C - 1).rev() {
        for i in 0..N {
            sum[i] = sum[i].fma(x[i], x[i].splat_like(c[k]));
        }
    }
    sum
}

/// Natural logarithm. −∞ at zeros, NaN below, ∞ at ∞, keeps NaN.
#[inline(always)]
pub fn log<V: F32x16>(x: V) -> V {
    let (zero, one) = (x.splat_like(0.0), x.splat_like(1.0));
    let small = x.lt(x.splat_like(f32::MIN_POSITIVE));
    let normal = V::select(small, x * x.splat_like(33_554_432.0), x); // 2^25
    let (mantissa, exponent) = normal.split_pow2();
    let exponent = V::select(small, exponent - x.splat_like(25.0), exponent);
    // A mantissa around one: in √½..√2.
    let big = x.splat_like(core::f32::consts::SQRT_2).lt(mantissa);
    let r = V::select(big, mantissa * x.splat_like(0.5), mantissa) - one;
    let n = V::select(big, exponent + one, exponent);
    let tail = polynomial(
        r,
        [
            3.333_333e-1,
            -2.499_999_4e-1,
            2.000_071_5e-1,
            -1.666_805_8e-1,
            1.424_932_3e-1,
            -1.242_014_1e-1,
            1.167_699_9e-1,
            -1.151_461e-1,
            7.037_684e-2,
        ],
    );
    let square = r * r;
    let low = n.fma(x.splat_like(LN2_LOW), square * r * tail);
    let value = n.fma(x.splat_like(LN2_HIGH), r + square.fma(x.splat_like(-0.5), low));
    let infinite = x.eq(x.splat_like(f32::INFINITY));
    let value = V::select(V::or(infinite, x.is_nan()), x, value);
    let value = V::select(x.eq(zero), x.splat_like(f32::NEG_INFINITY), value);
    V::select(x.lt(zero), x.splat_like(f32::NAN), value)
}

/// 1 / (1 + e^−x): 0 at −∞, 1 at ∞, keeps NaN. Results below 2^-128 are flushed to 0.
#[inline(always)]
pub fn sigmoid<V: F32x16>(x: V) -> V {
    let one = x.splat_like(1.0);
    one / (one + exp_from(-x))
}

/// Hyperbolic tangent: ±1 at ±∞, keeps NaN and the sign of zero.
#[inline(always)]
pub fn tanh<V: F32x16>(x: V) -> V {
    let one = x.splat_like(1.0);
    let magnitude = x.abs();
    let square = x * x;
    let tail = polynomial(square, [-3.333_329e-1, 1.333_144_2e-1, -5.373_971_5e-2, 2.063_909e-2, -5.704_988e-3]);
    let near = (square * x).fma(tail, x);
    let far = one - x.splat_like(2.0) / (exp(magnitude + magnitude) + one);
    V::select(magnitude.lt(x.splat_like(0.625)), near, far).copysign(x)
}

/// Error function: ±1 at ±∞, keeps NaN and the sign of zero.
#[inline(always)]
pub fn erf<V: F32x16>(x: V) -> V {
    let (near, gap, small) = erf_parts(x);
    V::select(small, near, x.splat_like(1.0) - gap).copysign(x)
}

/// Φ(−t), what a normal variable exceeds `t` with, for t in 0..=14: relatively within 2e-6 up to 4 and 2e-5 up to 6.2, below 3e-10
/// beyond. NaN stays.
///
/// 2 to the power of a polynomial, fitted on 0..6.2 by a weight that falls as Φ does; it falls on all of 0..=14.
#[inline(always)]
pub fn normal_tail<V: F32x16, const N: usize>(t: [V; N]) -> [V; N] {
    exp2_small(polynomials(
        t,
        [
            -1.0,
            -1.151_108_3,
            -4.591_842_6e-1,
            -5.255_13e-2,
            7.105_171_7e-3,
            -1.256_346_3e-4,
            -2.207_926e-4,
            5.979_069_5e-5,
            -8.170_234e-6,
            6.029_435e-7,
            -1.901_100_3e-8,
        ],
    ))
}

/// erf(x) for small x, 1 − erf(|x|) for the others, and which are small.
#[inline(always)]
fn erf_parts<V: F32x16>(x: V) -> (V, V, V::Mask) {
    let square = x * x;
    let tail = polynomial(
        square,
        [1.283_791_7e-1, -3.761_253_4e-1, 1.128_199_2e-1, -2.676_813_5e-2, 4.991_194_2e-3, -5.967_617e-4],
    );
    let near = tail.fma(x, x);
    // Beyond 4 it is 1 in f32; the limit keeps the polynomial from overflowing, and keeps a NaN.
    let t = x.splat_like(4.0).min(x.abs());
    let exponent = polynomial(
        t,
        [
            -1.287_175_1e-1,
            -6.348_467e-1,
            -1.067_778_8e-1,
            2.425_462_2e-2,
            -3.883_964_4e-3,
            3.831_971_3e-4,
            -1.728_534_7e-5,
        ],
    );
    (near, exp(exponent.fma(t, -t)), x.abs().lt(x.splat_like(0.927_734_4)))
}

/// The functions on one value, by the portable set: the same bits on every processor.
pub mod scalar {
    use crate::simd::scalar::Scalar;
    use crate::simd::{F32x16, Simd};

    macro_rules! one_lane {
        ($($name:ident: $what:literal),*) => {$(
            #[doc = $what]
            pub fn $name(x: f32) -> f32 {
                super::$name(Scalar.splat(x)).to_array()[0]
            }
        )*};
    }
    one_lane!(exp: "e^x.", log: "Natural logarithm.", sigmoid: "1 / (1 + e^−x).", tanh: "Hyperbolic tangent.", erf: "Error function.");
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::isa::Isa;
    use crate::simd::LANES;
    use crate::simd_fn;
    use std::println;

    simd_fn! {
        fn apply<S>(s, which: usize, x: [f32; LANES]) -> [f32; LANES] {
            let x = s.array(x);
            match which {
                0 => exp(x),
                1 => log(x),
                2 => sigmoid(x),
                3 => tanh(x),
                4 => erf(x),
                5 => exp2(x),
                6 => exp2_small([s.splat(128.0).min(x)])[0],
                _ => exp_flushed(x),
            }
            .to_array()
        }
    }

    /// Error function in f64: a series of positive terms.
    fn erf_f64(x: f64) -> f64 {
        if x.abs() > 6.0 {
            return x.signum();
        }
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > sum.abs() * 1e-18 {
            n += 1.0;
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
        }
        sum * core::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp()
    }

    struct Case {
        name: &'static str,
        exact: fn(f64) -> f64,
        max_ulp: f64,
        /// Arguments outside of this range are only checked for special values.
        from: f64,
        /// An absolute error that is always allowed (documented flushes).
        flush: f64,
        special: &'static [(f32, f32)],
    }

    const INF: f32 = f32::INFINITY;
    const CASES: [Case; 8] = [
        Case {
            name: "exp",
            exact: f64::exp,
            max_ulp: EXP_MAX_ULP,
            from: f64::NEG_INFINITY,
            flush: 0.0,
            special: &[
                (0.0, 1.0),
                (-0.0, 1.0),
                (-1000.0, 0.0),
                (1000.0, INF),
                (INF, INF),
                (-INF, 0.0),
                (f32::MAX, INF),
                (f32::MIN, 0.0),
                (-104.0, 0.0),
                (89.0, INF),
            ],
        },
        Case {
            name: "log",
            exact: f64::ln,
            max_ulp: LOG_MAX_ULP,
            from: 0.0,
            flush: 0.0,
            special: &[
                (1.0, 0.0),
                (0.0, -INF),
                (-0.0, -INF),
                (-1.0, f32::NAN),
                (-INF, f32::NAN),
                (-1e-42, f32::NAN),
                (INF, INF),
            ],
        },
        Case {
            name: "sigmoid",
            exact: |x| 1.0 / (1.0 + (-x).exp()),
            max_ulp: SIGMOID_MAX_ULP,
            from: f64::NEG_INFINITY,
            flush: 2.939e-39,
            special: &[
                (0.0, 0.5),
                (1000.0, 1.0),
                (-1000.0, 0.0),
                (INF, 1.0),
                (-INF, 0.0),
                (f32::MAX, 1.0),
                (f32::MIN, 0.0),
            ],
        },
        Case {
            name: "tanh",
            exact: f64::tanh,
            max_ulp: TANH_MAX_ULP,
            from: f64::NEG_INFINITY,
            flush: 0.0,
            special: &[
                (0.0, 0.0),
                (-0.0, -0.0),
                (1000.0, 1.0),
                (-1000.0, -1.0),
                (INF, 1.0),
                (-INF, -1.0),
                (f32::MAX, 1.0),
                (f32::MIN, -1.0),
            ],
        },
        Case {
            name: "erf",
            exact: erf_f64,
            max_ulp: ERF_MAX_ULP,
            from: f64::NEG_INFINITY,
            flush: 0.0,
            special: &[
                (0.0, 0.0),
                (-0.0, -0.0),
                (1000.0, 1.0),
                (-1000.0, -1.0),
                (INF, 1.0),
                (-INF, -1.0),
                (f32::MAX, 1.0),
                (f32::MIN, -1.0),
            ],
        },
        Case {
            name: "exp2",
            exact: f64::exp2,
            max_ulp: EXP2_MAX_ULP,
            from: f64::NEG_INFINITY,
            flush: 0.0,
            special: &[
                (0.0, 1.0),
                (-0.0, 1.0),
                (10.0, 1024.0),
                (INF, INF),
                (f32::MAX, INF),
                (-INF, 0.0),
                (f32::MIN, 0.0),
                (-151.0, 0.0),
            ],
        },
        Case {
            name: "exp2_small",
            exact: |x| x.min(128.0).exp2(),
            max_ulp: EXP2_MAX_ULP,
            from: f64::NEG_INFINITY,
            flush: 1e-37,
            special: &[
                (0.0, 1.0),
                (-0.0, 1.0),
                (-1.0, 0.5),
                (10.0, 1024.0),
                (-INF, 0.0),
                (f32::MIN, 0.0),
                (-151.0, 0.0),
            ],
        },
        Case {
            name: "exp_flushed",
            exact: f64::exp,
            max_ulp: EXP_MAX_ULP,
            from: f64::NEG_INFINITY,
            flush: 1.65e-38,
            special: &[(0.0, 1.0), (-87.5, 0.0), (-1000.0, 0.0), (-INF, 0.0), (INF, INF)],
        },
    ];

    /// Distance in units in the last place of `exact` rounded to f32.
    fn ulp_error(got: f32, exact: f64) -> f64 {
        let rounded = exact as f32;
        if got == rounded || got.is_nan() && exact.is_nan() {
            return 0.0;
        }
        let exponent = exact.abs().log2().floor().clamp(-126.0, 127.0);
        // One step beyond the last finite value counts as one.
        let got = if got.is_infinite() { f64::from(got.signum()) * 128f64.exp2() } else { f64::from(got) };
        (got - exact).abs() / (exponent - 23.0).exp2()
    }

    #[test]
    fn errors_stay_within_their_bounds() {
        for isa in Isa::supported() {
            for (which, case) in CASES.iter().enumerate() {
                let mut worst = (0.0, 0.0);
                // Every 1009th bit pattern of either sign: 2.1 million values over all exponents.
                let mut bits = 0u32;
                for _ in 0..(1u64 << 32) / (1009 * LANES as u64) {
                    let x: [f32; LANES] = core::array::from_fn(|i| f32::from_bits(bits.wrapping_add(1009 * i as u32)));
                    bits = bits.wrapping_add(1009 * LANES as u32);
                    let got = apply(isa, which, x);
                    for (x, got) in x.into_iter().zip(got) {
                        if x.is_nan() {
                            assert!(got.is_nan(), "{isa:?} {}(NaN) = {got:e}", case.name);
                            continue;
                        }
                        if f64::from(x) < case.from {
                            continue;
                        }
                        let exact = (case.exact)(f64::from(x));
                        let error = ulp_error(got, exact);
                        if error > worst.0 && (f64::from(got) - exact).abs() > case.flush {
                            worst = (error, x);
                        }
                        assert!(!got.is_nan() || exact.is_nan(), "{isa:?} {}({x:e}) is NaN", case.name);
                    }
                }
                println!("{isa:?} {}: {:.3} ulp at {:e}", case.name, worst.0, worst.1);
                assert!(worst.0 <= case.max_ulp, "{isa:?} {}({:e}): {} ulp", case.name, worst.1, worst.0);
                for &(x, want) in case.special {
                    let got = apply(isa, which, [x; LANES])[5];
                    assert!(
                        got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                        "{isa:?} {}({x:e}) = {got:e}, expected {want:e}",
                        case.name
                    );
                }
            }
        }
    }

    #[test]
    fn one_value_equals_a_lane_of_the_portable_set() {
        for i in -200..200 {
            let x = i as f32 * 0.37;
            let lane = |which| apply(Isa::Scalar, which, [x; LANES])[3].to_bits();
            assert_eq!(lane(0), scalar::exp(x).to_bits());
            assert_eq!(lane(2), scalar::sigmoid(x).to_bits());
            assert_eq!(lane(3), scalar::tanh(x).to_bits());
            assert_eq!(lane(4), scalar::erf(x).to_bits());
        }
    }

    /// What is used inside of kernels makes no number between 0 and the least normal one.
    #[test]
    fn small_results_are_normal_or_zero() {
        for isa in Isa::supported() {
            for i in 0..40_000 {
                let x: [f32; LANES] = core::array::from_fn(|l| -80.0 - (i * LANES + l) as f32 * 1e-4);
                for which in [6, 7] {
                    let y = apply(isa, which, x);
                    let fits =
                        |(x, y): (&f32, &f32)| *y == 0.0 || y.is_normal() || which == 6 && (-125.0..-124.0).contains(x);
                    assert!(x.iter().zip(&y).all(fits), "{isa:?} {which} of {x:?}: {y:?}");
                }
            }
        }
    }
}
