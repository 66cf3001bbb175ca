//! The unary functions on vectors of f32; the rarest ones element by element.

use super::scalar_math;
use super::unary::{MathOp, UnaryOp, each};
use crate::simd::{F32x16, LANES, Simd, exp1, math, trig};
use crate::{Activation, Isa, simd_fn};

/// A function of one vector and two constants.
trait Lanes {
    fn apply<S: Simd>(s: S, x: S::F32, a: S::F32, b: S::F32) -> S::F32;
}

/// Defines one type per function.
macro_rules! lanes {
    ($($name:ident |$s:ident, $x:ident, $a:ident, $b:ident| $value:expr),* $(,)?) => { $(
        struct $name;
        impl Lanes for $name {
            #[inline(always)]
            #[allow(unused_variables, reason = "most functions have no constants")]
            fn apply<S: Simd>($s: S, $x: S::F32, $a: S::F32, $b: S::F32) -> S::F32 {
                $value
            }
        }
    )* };
}

/// Lanes of `x` where the mask holds, of `y` elsewhere.
#[inline(always)]
fn choose<V: F32x16>(mask: V::Mask, x: V, y: V) -> V {
    V::select(mask, x, y)
}

lanes! {
    Abs |s, x, a, b| x.abs(),
    Neg |s, x, a, b| -x,
    Ceil |s, x, a, b| x.ceil(),
    Floor |s, x, a, b| x.floor(),
    Round |s, x, a, b| x.round(),
    Sqrt |s, x, a, b| x.sqrt(),
    Reciprocal |s, x, a, b| s.splat(1.0) / x,
    // Zeros and NaN are themselves.
    Sign |s, x, a, b| choose(s.zero().lt(x.abs()), s.splat(1.0).copysign(x), x),
    Relu |s, x, a, b| s.zero().max(x),
    LeakyRelu |s, x, a, b| choose(x.lt(s.zero()), a * x, x),
    HardSigmoid |s, x, a, b| s.splat(1.0).min(s.zero().max(x.fma(a, b))),
    HardSwish |s, x, a, b| Activation::HardSwish.vector(s, x),
    Softsign |s, x, a, b| x / (s.splat(1.0) + x.abs()),
    ThresholdedRelu |s, x, a, b| choose(a.lt(x), x, s.zero()),
    Shrink |s, x, a, b| choose(x.lt(-a), x + b, choose(a.lt(x), x - b, s.zero())),
    Square |s, x, a, b| x * x,
    Cube |s, x, a, b| x * x * x,
}

lanes! {
    Exp |s, x, a, b| math::exp(x),
    Log |s, x, a, b| math::log(x),
    Sigmoid |s, x, a, b| math::sigmoid(x),
    Tanh |s, x, a, b| math::tanh(x),
    Erf |s, x, a, b| math::erf(x),
    Gelu |s, x, a, b| Activation::Gelu.vector(s, x),
    GeluTanh |s, x, a, b| Activation::GeluTanh.vector(s, x),
    Elu |s, x, a, b| choose(x.lt(s.zero()), a * exp1::expm1(x), x),
    Celu |s, x, a, b| choose(x.lt(s.zero()), a * exp1::expm1(x / a), x),
    Selu |s, x, a, b| b * choose(x.lt(s.zero()), a * exp1::expm1(x), x),
    Mish |s, x, a, b| exp1::mish(x),
    Softplus |s, x, a, b| exp1::softplus(x),
    // The limit at -∞ is 0, where the quotient is NaN.
    Swish |s, x, a, b| choose(x.eq(s.splat(f32::NEG_INFINITY)), s.zero(), x / (s.splat(1.0) + math::exp_from(-(a * x)))),
    Sin |s, x, a, b| trig::sin(s, x),
    Cos |s, x, a, b| trig::cos(s, x),
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
    dispatch!(MathOp op; isa, a, b, x, y;
        Exp, Log, Sigmoid, Tanh, Erf, Gelu, GeluTanh, Elu, Celu, Selu, Mish, Softplus, Swish, Sin, Cos;
        Tan libm::tanf, Asin libm::asinf, Acos libm::acosf, Atan libm::atanf,
        Sinh libm::sinhf, Cosh libm::coshf, Asinh libm::asinhf, Acosh scalar_math::single::acosh, Atanh libm::atanhf);
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
                F::apply(s, s.load(x.add(i)), a, b).store(y.add(i));
            }
            if whole < n {
                F::apply(s, s.load_n(x.add(whole), n - whole), a, b).store_n(y.add(whole), n - whole);
            }
        }
    }
}
