//! Activation functions: one description that every kernel's epilogue and the elementwise kernels share.
//!
//! In: a kind and up to two constants. Out: the function on one value ([`Activation::scalar`]), on a vector
//! ([`Activation::vector`]) and on rows in place ([`apply_rows`]).
//! Invariant: NaN in, NaN out, for every kind. The formulas are those of the ONNX operators of the same names.

use crate::simd::scalar::Scalar;
use crate::simd::{F32x16, LANES, Simd, math};
use crate::simd_fn;

/// Which function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ActivationKind {
    /// x
    #[default]
    None,
    /// max(x, 0)
    Relu,
    /// min(max(x, a), b)
    Clip,
    /// x where x ≥ 0, a·x below
    LeakyRelu,
    /// 1 / (1 + e^−x)
    Sigmoid,
    /// x · sigmoid(a·x), with a = 1 for SiLU
    Silu,
    /// tanh x
    Tanh,
    /// x/2 · (1 + erf(x/√2))
    Gelu,
    /// x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³)))
    GeluTanh,
    /// x · clip(x/6 + 1/2, 0, 1)
    HardSwish,
    /// clip(a·x + b, 0, 1)
    HardSigmoid,
}

/// A function and its constants; those its kind does not name are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activation {
    /// Which function.
    pub kind: ActivationKind,
    /// Its first constant.
    pub a: f32,
    /// Its second constant.
    pub b: f32,
}

impl Activation {
    /// The identity.
    pub const NONE: Self = Self::new(ActivationKind::None, 0.0, 0.0);
    /// max(x, 0)
    pub const RELU: Self = Self::new(ActivationKind::Relu, 0.0, 0.0);
    /// 1 / (1 + e^−x)
    pub const SIGMOID: Self = Self::new(ActivationKind::Sigmoid, 0.0, 0.0);
    /// x · sigmoid(x)
    pub const SILU: Self = Self::new(ActivationKind::Silu, 1.0, 0.0);
    /// tanh x
    pub const TANH: Self = Self::new(ActivationKind::Tanh, 0.0, 0.0);
    /// GELU by the error function.
    pub const GELU: Self = Self::new(ActivationKind::Gelu, 0.0, 0.0);
    /// GELU's approximation by tanh.
    pub const GELU_TANH: Self = Self::new(ActivationKind::GeluTanh, 0.0, 0.0);
    /// x · clip(x/6 + 1/2, 0, 1)
    pub const HARD_SWISH: Self = Self::new(ActivationKind::HardSwish, 0.0, 0.0);

    /// Any kind.
    pub const fn new(kind: ActivationKind, a: f32, b: f32) -> Self {
        Self { kind, a, b }
    }

    /// min(max(x, low), high)
    pub const fn clip(low: f32, high: f32) -> Self {
        Self::new(ActivationKind::Clip, low, high)
    }

    /// x where x ≥ 0, slope·x below
    pub const fn leaky_relu(slope: f32) -> Self {
        Self::new(ActivationKind::LeakyRelu, slope, 0.0)
    }

    /// clip(alpha·x + beta, 0, 1)
    pub const fn hard_sigmoid(alpha: f32, beta: f32) -> Self {
        Self::new(ActivationKind::HardSigmoid, alpha, beta)
    }

    /// The limits, where the function is nothing but a clamp: a kernel does those in registers.
    pub const fn as_clamp(self) -> Option<(f32, f32)> {
        match self.kind {
            ActivationKind::None => Some((f32::NEG_INFINITY, f32::INFINITY)),
            ActivationKind::Relu => Some((0.0, f32::INFINITY)),
            ActivationKind::Clip => Some((self.a, self.b)),
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
        let (a, b) = (s.splat(self.a), s.splat(self.b));
        match self.kind {
            ActivationKind::None => x,
            ActivationKind::Relu => s.zero().max(x),
            ActivationKind::Clip => b.min(a.max(x)),
            ActivationKind::LeakyRelu => S::F32::select(x.lt(s.zero()), a * x, x),
            ActivationKind::Sigmoid => math::sigmoid(x),
            ActivationKind::Silu => silu(s, x, a),
            ActivationKind::Tanh => math::tanh(x),
            ActivationKind::Gelu => gelu(s, x),
            ActivationKind::GeluTanh => gelu_tanh(s, x),
            ActivationKind::HardSwish => x * unit(s, x.fma(s.splat(1.0 / 6.0), s.splat(0.5))),
            ActivationKind::HardSigmoid => unit(s, x.fma(a, b)),
        }
    }
}

/// Clamps to 0..=1.
#[inline(always)]
fn unit<S: Simd>(s: S, x: S::F32) -> S::F32 {
    s.splat(1.0).min(s.zero().max(x))
}

/// x / (1 + e^(−a·x)): one division; −0 at −∞'s side, where the exponential overflows.
#[inline(always)]
fn silu<S: Simd>(s: S, x: S::F32, a: S::F32) -> S::F32 {
    let quotient = x / (s.splat(1.0) + math::exp(-(a * x)));
    // −∞ / ∞ would be NaN; the limit is 0.
    S::F32::select(x.eq(s.splat(f32::NEG_INFINITY)), s.zero(), quotient)
}

#[inline(always)]
fn gelu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let erf = math::erf(x * s.splat(core::f32::consts::FRAC_1_SQRT_2));
    half_times(s, x, erf)
}

#[inline(always)]
fn gelu_tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let cubic = (x * x).fma(s.splat(0.044_715 * SQRT_2_OVER_PI), s.splat(SQRT_2_OVER_PI));
    half_times(s, x, math::tanh(x * cubic))
}

/// x/2 · (1 + y), with 0 for −∞ (where y is −1).
#[inline(always)]
fn half_times<S: Simd>(s: S, x: S::F32, y: S::F32) -> S::F32 {
    let value = x * s.splat(0.5) * (y + s.splat(1.0));
    S::F32::select(x.eq(s.splat(f32::NEG_INFINITY)), s.zero(), value)
}

simd_fn! {
    /// Applies the function in place to `rows` rows of `n` values that start `stride` apart.
    ///
    /// # Safety
    /// Every row is valid for reads and writes of `n` f32.
    pub unsafe fn apply_rows<S>(s, f: Activation, x: *mut f32, rows: usize, n: usize, stride: usize) {
        macro_rules! kinds {
            ($($kind:ident),*) => {
                match f.kind {
                    // A literal kind lets the compiler drop the other arms of `vector`.
                    $(ActivationKind::$kind => {
                        let f = Activation { kind: ActivationKind::$kind, ..f };
                        for row in 0..rows {
                            // SAFETY: the caller vouches for the row.
                            unsafe { row_in_place(s, x.add(row * stride), n, #[inline(always)] |v| f.vector(s, v)) }
                        }
                    })*
                    ActivationKind::None => {}
                }
            };
        }
        kinds!(Relu, Clip, LeakyRelu, Sigmoid, Silu, Tanh, Gelu, GeluTanh, HardSwish, HardSigmoid)
    }
}

/// # Safety
/// `x` is valid for reads and writes of `n` f32.
#[inline(always)]
unsafe fn row_in_place<S: Simd>(s: S, x: *mut f32, n: usize, f: impl Fn(S::F32) -> S::F32) {
    let mut at = 0;
    // SAFETY: every access lies below `n`.
    unsafe {
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
        let (a, b) = (f64::from(f.a), f64::from(f.b));
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match f.kind {
            ActivationKind::None => x,
            ActivationKind::Relu => x.max(0.0),
            ActivationKind::Clip => x.max(a).min(b),
            ActivationKind::LeakyRelu => {
                if x < 0.0 {
                    a * x
                } else {
                    x
                }
            }
            ActivationKind::Sigmoid => sigmoid(x),
            ActivationKind::Silu => x * sigmoid(a * x),
            ActivationKind::Tanh => x.tanh(),
            // The tests' points lie where tanh's approximation of GELU is within 5e-4; the tight check of erf is in `math`.
            ActivationKind::Gelu | ActivationKind::GeluTanh => {
                0.5 * x
                    * (1.0
                        + ((2.0 / core::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x))
                            .tanh())
            }
            ActivationKind::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
            ActivationKind::HardSigmoid => (a * x + b).clamp(0.0, 1.0),
        }
    }

    const ALL: [Activation; 12] = [
        Activation::NONE,
        Activation::RELU,
        Activation::clip(-1.0, 6.0),
        Activation::leaky_relu(0.1),
        Activation::SIGMOID,
        Activation::SILU,
        Activation::new(ActivationKind::Silu, 1.702, 0.0),
        Activation::TANH,
        Activation::GELU,
        Activation::GELU_TANH,
        Activation::HARD_SWISH,
        Activation::hard_sigmoid(0.2, 0.5),
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
                        let tolerance = if f.kind == ActivationKind::Gelu {
                            5e-4
                        } else {
                            1e-6 * want.abs().max(0.3)
                        };
                        assert!(
                            (f64::from(y) - want).abs() <= tolerance,
                            "{isa:?} {f:?} of {x}: {y}, expected {want}"
                        );
                        assert!(
                            (f.scalar(x) - y).abs() <= 1e-6 * y.abs().max(0.3),
                            "{isa:?} {f:?} of {x}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn special_values() {
        for isa in Isa::supported() {
            for f in ALL {
                let mut y = [
                    f32::NAN,
                    1e30,
                    -1e30,
                    f32::INFINITY,
                    f32::NEG_INFINITY,
                    -200.0,
                    200.0,
                ];
                let x = y;
                apply(isa, f, &mut y);
                assert!(y[0].is_nan(), "{isa:?} {f:?}");
                for i in 1..y.len() {
                    assert!(
                        !y[i].is_nan() || f.kind == ActivationKind::HardSwish && x[i].is_infinite(),
                        "{isa:?} {f:?} of {}",
                        x[i]
                    );
                }
            }
        }
    }
}
