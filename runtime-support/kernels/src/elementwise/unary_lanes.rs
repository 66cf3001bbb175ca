//! The unary functions on vectors of f32; the rarest ones element by element.

use super::scalar_math;
use super::unary::{MathOp, UnaryOp, each};
use crate::simd::{F32x16, LANES, exp1, math, trig};
use crate::{Isa, simd_fn};

/// A function of one vector and two constants.
trait Lanes {
    fn apply<V: F32x16>(x: V, a: V, b: V) -> V;
}

/// Defines one type per function.
macro_rules! lanes {
    ($($name:ident |$x:ident, $a:ident, $b:ident| $value:expr),* $(,)?) => { $(
        struct $name;
        impl Lanes for $name {
            #[inline(always)]
            #[allow(unused_variables, reason = "most functions have no constants")]
            fn apply<V: F32x16>($x: V, $a: V, $b: V) -> V {
                $value
            }
        }
    )* };
}

lanes! {
    Abs |x, a, b| x.abs(),
    Neg |x, a, b| -x,
    Ceil |x, a, b| x.ceil(),
    Floor |x, a, b| x.floor(),
    Round |x, a, b| x.round(),
    Sqrt |x, a, b| x.sqrt(),
    Reciprocal |x, a, b| x.splat_like(1.0) / x,
    // Zeros and NaN are themselves.
    Sign |x, a, b| V::select(x.splat_like(0.0).lt(x.abs()), x.splat_like(1.0).copysign(x), x),
    Relu |x, a, b| x.splat_like(0.0).max(x),
    LeakyRelu |x, a, b| V::select(x.lt(x.splat_like(0.0)), a * x, x),
    HardSigmoid |x, a, b| unit(x.fma(a, b)),
    HardSwish |x, a, b| x * unit(x.fma(x.splat_like(1.0 / 6.0), x.splat_like(0.5))),
    Softsign |x, a, b| x / (x.splat_like(1.0) + x.abs()),
    ThresholdedRelu |x, a, b| V::select(a.lt(x), x, x.splat_like(0.0)),
    Shrink |x, a, b| V::select(x.lt(-a), x + b, V::select(a.lt(x), x - b, x.splat_like(0.0))),
    Square |x, a, b| x * x,
    Cube |x, a, b| x * x * x,
}

lanes! {
    Exp |x, a, b| math::exp(x),
    Log |x, a, b| math::log(x),
    Sigmoid |x, a, b| math::sigmoid(x),
    Tanh |x, a, b| math::tanh(x),
    Erf |x, a, b| math::erf(x),
    Gelu |x, a, b| gelu(x),
    GeluTanh |x, a, b| gelu_tanh(x),
    Elu |x, a, b| V::select(x.lt(x.splat_like(0.0)), a * exp1::expm1(x), x),
    Celu |x, a, b| V::select(x.lt(x.splat_like(0.0)), a * exp1::expm1(x / a), x),
    Selu |x, a, b| b * V::select(x.lt(x.splat_like(0.0)), a * exp1::expm1(x), x),
    Mish |x, a, b| exp1::mish(x),
    Softplus |x, a, b| exp1::softplus(x),
    Swish |x, a, b| swish(x, a),
}

/// Clamps to 0..=1, keeps NaN.
#[inline(always)]
fn unit<V: F32x16>(x: V) -> V {
    x.splat_like(1.0).min(x.splat_like(0.0).max(x))
}

/// `x / (1 + e^(-a·x))`, with the limit 0 at -∞.
#[inline(always)]
fn swish<V: F32x16>(x: V, a: V) -> V {
    let quotient = x / (x.splat_like(1.0) + math::exp(-(a * x)));
    V::select(x.eq(x.splat_like(f32::NEG_INFINITY)), x.splat_like(0.0), quotient)
}

#[inline(always)]
fn gelu<V: F32x16>(x: V) -> V {
    half_times(x, math::erf(x * x.splat_like(core::f32::consts::FRAC_1_SQRT_2)))
}

#[inline(always)]
fn gelu_tanh<V: F32x16>(x: V) -> V {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let cubic = (x * x).fma(x.splat_like(0.044_715 * SQRT_2_OVER_PI), x.splat_like(SQRT_2_OVER_PI));
    half_times(x, math::tanh(x * cubic))
}

/// `x/2 · (1 + y)`, with the limit 0 at -∞.
#[inline(always)]
fn half_times<V: F32x16>(x: V, y: V) -> V {
    let value = x * x.splat_like(0.5) * (y + x.splat_like(1.0));
    V::select(x.eq(x.splat_like(f32::NEG_INFINITY)), x.splat_like(0.0), value)
}

/// Calls [`map`] for the function of this name.
macro_rules! dispatch {
    ($ops:ident $op:expr; $isa:expr, $a:expr, $b:expr, $x:expr, $y:expr; $($name:ident),*; $($lone:ident $f:path),*) => {
        match $op {
            $($ops::$name => {
                let (n, out) = ($y.len(), $y.as_mut_ptr());
                let x = $x.map_or(out.cast_const(), <[f32]>::as_ptr);
                // SAFETY: the caller checked that both have `n` elements; in place, a vector is read before it is
                // overwritten.
                unsafe { map::<$name>($isa, $a, $b, x, out, n) }
            })*
            $($ops::$lone => each($x, $y, $f),)*
        }
    };
}

/// `y = op(x)`; both have one length, which the caller checked.
pub(super) fn arithmetic(isa: Isa, op: UnaryOp, a: f32, b: f32, x: Option<&[f32]>, y: &mut [f32]) {
    dispatch!(UnaryOp op; isa, a, b, x, y;
        Abs, Neg, Ceil, Floor, Round, Sqrt, Reciprocal, Sign, Relu, LeakyRelu, HardSigmoid, HardSwish, Softsign,
        ThresholdedRelu, Shrink, Square, Cube;);
}

/// `y = op(x)`; both have one length, which the caller checked.
pub(super) fn math(isa: Isa, op: MathOp, a: f32, b: f32, x: Option<&[f32]>, y: &mut [f32]) {
    if let MathOp::Sin | MathOp::Cos = op {
        let (n, out) = (y.len(), y.as_mut_ptr());
        let x = x.map_or(out.cast_const(), <[f32]>::as_ptr);
        // SAFETY: the caller checked that both have `n` elements; in place, a vector is read before it is overwritten.
        return unsafe { sin_cos(isa, op == MathOp::Sin, x, out, n) };
    }
    dispatch!(MathOp op; isa, a, b, x, y;
        Exp, Log, Sigmoid, Tanh, Erf, Gelu, GeluTanh, Elu, Celu, Selu, Mish, Softplus, Swish;
        Sin libm::sinf, Cos libm::cosf, Tan libm::tanf, Asin libm::asinf, Acos libm::acosf, Atan libm::atanf,
        Sinh libm::sinhf, Cosh libm::coshf, Asinh libm::asinhf, Acosh scalar_math::single::acosh, Atanh libm::atanhf);
}

simd_fn! {
    /// # Safety
    /// `x` is valid for reads and `y` for writes of `n` f32; they are one or do not overlap.
    unsafe fn sin_cos<S>(s, sine: bool, x: *const f32, y: *mut f32, n: usize) {
        for i in (0..n).step_by(LANES) {
            // SAFETY: indices stay below `n`.
            unsafe {
                let m = LANES.min(n - i);
                let v = s.load_n(x.add(i), m);
                let v = if sine { trig::sin(s, v) } else { trig::cos(s, v) };
                v.store_n(y.add(i), m);
            }
        }
    }
}

simd_fn! {
    /// # Safety
    /// `x` is valid for reads and `y` for writes of `n` f32; they are one or do not overlap.
    unsafe fn map<S>[F: Lanes][F](s, a: f32, b: f32, x: *const f32, y: *mut f32, n: usize) {
        let (a, b) = (s.splat(a), s.splat(b));
        let whole = n / LANES * LANES;
        // SAFETY: indices stay below `n`.
        unsafe {
            for i in (0..whole).step_by(LANES) {
                F::apply(s.load(x.add(i)), a, b).store(y.add(i));
            }
            if whole < n {
                F::apply(s.load_n(x.add(whole), n - whole), a, b).store_n(y.add(whole), n - whole);
            }
        }
    }
}
