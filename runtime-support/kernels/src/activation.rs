//! Activations: the element-wise functions that fused kernels apply in their epilogue.
//!
//! In: a kind with its parameters. Out: the function on one value ([`Activation::scalar`]), on a vector
//! ([`Activation::vector`]) and on rows in place ([`apply_rows`]).
//! Invariant: NaN in, NaN out, for every kind.

use crate::Literal;
use crate::simd::scalar::Scalar;
use crate::simd::{F32x16, LANES, Simd, math};
use crate::simd_fn;
use core::fmt;

/// An activation with its parameters. Definitions: the ONNX operator pages of the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// `x`
    #[default]
    None,
    /// `max(x, 0)`
    Relu,
    /// `min(max(x, lo), hi)`
    Clip {
        /// Lower bound.
        lo: f32,
        /// Upper bound.
        hi: f32,
    },
    /// `x < 0 ? alpha·x : x`
    LeakyRelu {
        /// Slope below zero.
        alpha: f32,
    },
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `x · sigmoid(x)`
    Silu,
    /// `tanh(x)`
    Tanh,
    /// `x/2 · (1 + erf(x/√2))`
    Gelu,
    /// `x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`
    GeluTanh,
    /// `x · clip(x/6 + 1/2, 0, 1)`
    HardSwish,
    /// `clip(alpha·x + beta, 0, 1)`
    HardSigmoid {
        /// Slope.
        alpha: f32,
        /// Offset.
        beta: f32,
    },
}

impl Literal for Activation {
    fn literal(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str("k::Activation::")?;
        let mut fields = |name: &str, fields: &[(&str, f32)]| {
            out.write_str(name)?;
            for (i, (field, value)) in fields.iter().enumerate() {
                write!(out, "{}{field}: ", if i == 0 { " { " } else { ", " })?;
                value.literal(out)?;
            }
            out.write_str(if fields.is_empty() { "" } else { " }" })
        };
        match *self {
            Self::None => fields("None", &[]),
            Self::Relu => fields("Relu", &[]),
            Self::Clip { lo, hi } => fields("Clip", &[("lo", lo), ("hi", hi)]),
            Self::LeakyRelu { alpha } => fields("LeakyRelu", &[("alpha", alpha)]),
            Self::Sigmoid => fields("Sigmoid", &[]),
            Self::Silu => fields("Silu", &[]),
            Self::Tanh => fields("Tanh", &[]),
            Self::Gelu => fields("Gelu", &[]),
            Self::GeluTanh => fields("GeluTanh", &[]),
            Self::HardSwish => fields("HardSwish", &[]),
            Self::HardSigmoid { alpha, beta } => fields("HardSigmoid", &[("alpha", alpha), ("beta", beta)]),
        }
    }
}

impl Activation {
    /// The limits, where the function is nothing but a clamp: a kernel does those in registers.
    pub const fn as_clamp(self) -> Option<(f32, f32)> {
        match self {
            Self::None => Some((f32::NEG_INFINITY, f32::INFINITY)),
            Self::Relu => Some((0.0, f32::INFINITY)),
            Self::Clip { lo, hi } => Some((lo, hi)),
            _ => None,
        }
    }

    /// The function on one value, by the portable set.
    pub fn scalar(self, x: f32) -> f32 {
        self.vector(Scalar, Scalar.splat(x)).to_array()[0]
    }

    /// The function on 16 lanes. The kind is a branch: keep it outside of loops ([`apply_rows`] does).
    #[inline(always)]
    pub fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        match self {
            Self::None => x,
            Self::Relu => s.zero().max(x),
            Self::Clip { lo, hi } => s.splat(hi).min(s.splat(lo).max(x)),
            Self::LeakyRelu { alpha } => S::F32::select(x.lt(s.zero()), s.splat(alpha) * x, x),
            Self::Sigmoid => math::sigmoid(x),
            Self::Silu => silu(s, x),
            Self::Tanh => math::tanh(x),
            Self::Gelu => gelu(s, [x])[0],
            Self::GeluTanh => gelu_tanh(s, x),
            Self::HardSwish => x * unit(s, x.fma(s.splat(1.0 / 6.0), s.splat(0.5))),
            Self::HardSigmoid { alpha, beta } => unit(s, x.fma(s.splat(alpha), s.splat(beta))),
        }
    }
}

impl Activation {
    /// The function on several vectors; costly kinds go step by step through all of them, so that none waits for its own.
    #[inline(always)]
    fn vectors<S: Simd, const N: usize>(self, s: S, mut x: [S::F32; N]) -> [S::F32; N] {
        if let Self::Gelu = self {
            return gelu(s, x);
        }
        for i in 0..N {
            x[i] = self.vector(s, x[i]);
        }
        x
    }
}

/// Clamps to 0..=1.
#[inline(always)]
fn unit<S: Simd>(s: S, x: S::F32) -> S::F32 {
    s.splat(1.0).min(s.zero().max(x))
}

/// x / (1 + e^−x): one division.
#[inline(always)]
fn silu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    weighed(s, x, -x)
}

/// x / (1 + e^y), with 0 for −∞, where y is ∞ and the quotient NaN.
#[inline(always)]
fn weighed<S: Simd>(s: S, x: S::F32, y: S::F32) -> S::F32 {
    let quotient = x / (s.splat(1.0) + math::exp_from(y));
    S::F32::select(x.eq(s.splat(f32::NEG_INFINITY)), s.zero(), quotient)
}

/// x·Φ(x) as max(x, 0) − |x|·Φ(−|x|); beyond the limit, which keeps ∞ out of the product, it is max(x, 0).
#[inline(always)]
fn gelu<S: Simd, const N: usize>(s: S, mut x: [S::F32; N]) -> [S::F32; N] {
    let mut t = x;
    for i in 0..N {
        t[i] = s.splat(14.0).min(x[i].abs());
    }
    let tail = math::normal_tail(t);
    for i in 0..N {
        x[i] = t[i].fnma(tail[i], s.zero().max(x[i]));
    }
    x
}

/// (1 + tanh y)/2 is 1 / (1 + e^−2y), which loses nothing to cancellation.
#[inline(always)]
fn gelu_tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    const MINUS_2_SQRT_2_OVER_PI: f32 = -1.595_769;
    let cubic = (x * x).fma(s.splat(0.044_715 * MINUS_2_SQRT_2_OVER_PI), s.splat(MINUS_2_SQRT_2_OVER_PI));
    weighed(s, x, x * cubic)
}

simd_fn! {
    /// Applies the function in place to `rows` rows of `n` values that start `stride` apart.
    ///
    /// # Safety
    /// Every row is valid for reads and writes of `n` f32.
    pub unsafe fn apply_rows<S>(s, f: Activation, x: *mut f32, rows: usize, n: usize, stride: usize) {
        // A kind of its own in every arm: inside it `vector`'s branch is gone.
        macro_rules! kinds {
            ($($kind:ident $({ $($field:ident),* })?),*) => {
                match f {
                    Activation::None => {}
                    $(Activation::$kind $({ $($field),* })? => {
                        for row in 0..rows {
                            // SAFETY: the caller vouches for the row.
                            unsafe {
                                let f = Activation::$kind $({ $($field),* })?;
                                row_in_place(
                                    s,
                                    x.add(row * stride),
                                    n,
                                    #[inline(always)] |v| f.vector(s, v),
                                    #[inline(always)] |v| f.vectors(s, v),
                                    #[inline(always)] |v| f.vectors(s, v),
                                )
                            }
                        }
                    })*
                }
            };
        }
        kinds!(
            Relu, Clip { lo, hi }, LeakyRelu { alpha }, Sigmoid, Silu, Tanh, Gelu, GeluTanh, HardSwish,
            HardSigmoid { alpha, beta }
        )
    }
}

/// # Safety
/// `x` is valid for reads and writes of 16 · `N` f32.
#[inline(always)]
unsafe fn block<S: Simd, const N: usize>(s: S, x: *mut f32, f: &impl Fn([S::F32; N]) -> [S::F32; N]) {
    let mut v = [s.zero(); N];
    // SAFETY: the caller vouches for the block.
    unsafe {
        for i in 0..N {
            v[i] = s.load(x.add(i * LANES));
        }
        let v = f(v);
        for i in 0..N {
            v[i].store(x.add(i * LANES));
        }
    }
}

/// # Safety
/// `x` is valid for reads and writes of `n` f32.
#[inline(always)]
unsafe fn row_in_place<S: Simd>(
    s: S,
    x: *mut f32,
    n: usize,
    f: impl Fn(S::F32) -> S::F32,
    two: impl Fn([S::F32; 2]) -> [S::F32; 2],
    four: impl Fn([S::F32; 4]) -> [S::F32; 4],
) {
    let mut at = 0;
    // SAFETY: every access lies below `n`.
    unsafe {
        if S::MANY_REGISTERS {
            while at + 4 * LANES <= n {
                block(s, x.add(at), &four);
                at += 4 * LANES;
            }
        }
        while at + 2 * LANES <= n {
            block(s, x.add(at), &two);
            at += 2 * LANES;
        }
        while at + LANES <= n {
            f(s.load(x.add(at))).store(x.add(at));
            at += LANES;
        }
        if at < n {
            f(s.load_n(x.add(at), n - at)).store_n(x.add(at), n - at);
        }
    }
}

simd_fn! {
    /// Applies the function in place.
    pub fn apply<S>(s, f: Activation, x: &mut [f32]) {
        // SAFETY: one row of the slice's length.
        unsafe { apply_rows(S::ISA, f, x.as_mut_ptr(), 1, x.len(), 0) };
        let _ = s;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::isa::Isa;
    use std::vec::Vec;

    fn exact(f: Activation, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match f {
            Activation::None => x,
            Activation::Relu => x.max(0.0),
            Activation::Clip { lo, hi } => x.max(f64::from(lo)).min(f64::from(hi)),
            Activation::LeakyRelu { alpha } => {
                if x < 0.0 {
                    f64::from(alpha) * x
                } else {
                    x
                }
            }
            Activation::Sigmoid => sigmoid(x),
            Activation::Silu => x * sigmoid(x),
            Activation::Tanh => x.tanh(),
            // The approximation by tanh is within 5e-4 of the definition; the tight check of erf is in `math`.
            Activation::Gelu | Activation::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / core::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
            }
            Activation::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
            Activation::HardSigmoid { alpha, beta } => (f64::from(alpha) * x + f64::from(beta)).clamp(0.0, 1.0),
        }
    }

    const ALL: [Activation; 11] = [
        Activation::None,
        Activation::Relu,
        Activation::Clip { lo: -1.0, hi: 6.0 },
        Activation::LeakyRelu { alpha: 0.1 },
        Activation::Sigmoid,
        Activation::Silu,
        Activation::Tanh,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::HardSwish,
        Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
    ];

    #[test]
    fn every_kind_on_every_set_and_length() {
        for isa in Isa::supported() {
            for f in ALL {
                for n in [1, 15, 16, 17, 100] {
                    let x: Vec<f32> = (0..n).map(|i| (i as f32 - n as f32 / 2.0) * 0.33).collect();
                    let mut y = x.clone();
                    apply(isa, f, &mut y);
                    for (&x, &y) in x.iter().zip(&y) {
                        let want = exact(f, f64::from(x));
                        let tolerance = if f == Activation::Gelu { 5e-4 } else { 1e-6 * want.abs().max(0.3) };
                        assert!((f64::from(y) - want).abs() <= tolerance, "{isa:?} {f:?} of {x}: {y}, expected {want}");
                        assert!((f.scalar(x) - y).abs() <= 1e-6 * y.abs().max(0.3), "{isa:?} {f:?} of {x}");
                    }
                }
            }
        }
    }

    /// Φ(x) by its series, in f64.
    fn normal(x: f64) -> f64 {
        let (mut term, mut sum, mut n) = (x, x, 1.0);
        while term.abs() > 1e-20 {
            n += 2.0;
            term *= x * x / n;
            sum += term;
        }
        0.5 + sum * (-x * x / 2.0).exp() / (2.0 * core::f64::consts::PI).sqrt()
    }

    #[test]
    fn gelu_is_within_a_few_units_of_its_definition() {
        for isa in Isa::supported() {
            let mut y: Vec<f32> = (-60_000..=60_000).map(|i| i as f32 * 1e-4).collect();
            let x = y.clone();
            apply(isa, Activation::Gelu, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                let want = f64::from(x) * normal(f64::from(x));
                let error = (f64::from(y) - want).abs();
                assert!(
                    error <= 1e-9 + 6e-7 * f64::from(x).abs().min(want.abs() + 2e-2),
                    "{isa:?} gelu({x}) = {y}, not {want}"
                );
            }
        }
    }

    #[test]
    fn special_values() {
        for isa in Isa::supported() {
            for f in ALL {
                let mut y = [f32::NAN, 1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY, -200.0, 200.0];
                let x = y;
                apply(isa, f, &mut y);
                assert!(y[0].is_nan(), "{isa:?} {f:?}");
                for i in 1..y.len() {
                    assert!(
                        !y[i].is_nan() || f == Activation::HardSwish && x[i].is_infinite(),
                        "{isa:?} {f:?} of {}",
                        x[i]
                    );
                }
            }
        }
    }
}
