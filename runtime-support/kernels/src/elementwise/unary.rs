//! Functions of one floating-point value: roundings, roots, exponentials, trigonometry and the activations.
//!
//! In: `x`, perhaps in the memory of `y`, and up to two constants. Out: `y`. f16 and bf16 are computed in f32 and rounded
//! once, f64 by crate `libm`. Two descriptors, so that a module without exponentials does not link them.
//! The formulas are those of the ONNX operators of the same names: <https://onnx.ai/onnx/operators/>.

use super::blocks::{BLOCK, Wide, load, store};
use super::{scalar_math, unary_lanes};
use crate::{Elem, Fault, Isa, bf16, f16, kernel, param_enum, simd_fn};

param_enum! {
    /// A function of one value that needs arithmetic only; `a` and `b` are the call's constants.
    pub enum UnaryOp {
        /// `|x|`
        Abs,
        /// `-x`
        Neg,
        /// To the least integer not below
        Ceil,
        /// To the greatest integer not above
        Floor,
        /// To the nearest integer, ties to even
        Round,
        /// `√x`
        Sqrt,
        /// `1 / x`
        Reciprocal,
        /// -1, 0 or 1; NaN stays
        Sign,
        /// `max(x, 0)`
        Relu,
        /// `x < 0 ? a·x : x`
        LeakyRelu,
        /// `clip(a·x + b, 0, 1)`
        HardSigmoid,
        /// `x · clip(x/6 + 1/2, 0, 1)`
        HardSwish,
        /// `x / (1 + |x|)`
        Softsign,
        /// `x > a ? x : 0`
        ThresholdedRelu,
        /// `x + b` below `-a`, `x - b` above `a`, else 0
        Shrink,
        /// `x · x`
        Square,
        /// `x · x · x`
        Cube
    }
}

param_enum! {
    /// A transcendental function of one value; `a` and `b` are the call's constants.
    pub enum MathOp {
        /// `e^x`
        Exp,
        /// Natural logarithm
        Log,
        /// `1 / (1 + e^-x)`
        Sigmoid,
        /// Hyperbolic tangent
        Tanh,
        /// Error function
        Erf,
        /// `x/2 · (1 + erf(x/√2))`
        Gelu,
        /// `x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`
        GeluTanh,
        /// `x < 0 ? a·(e^x - 1) : x`
        Elu,
        /// `max(x, 0) + min(0, a·(e^(x/a) - 1))`
        Celu,
        /// `b · (x > 0 ? x : a·(e^x - 1))`
        Selu,
        /// `x · tanh(softplus(x))`
        Mish,
        /// `ln(1 + e^x)`
        Softplus,
        /// `x · sigmoid(a·x)`
        Swish,
        /// Sine
        Sin,
        /// Cosine
        Cos,
        /// Tangent
        Tan,
        /// Arc sine
        Asin,
        /// Arc cosine
        Acos,
        /// Arc tangent
        Atan,
        /// Hyperbolic sine
        Sinh,
        /// Hyperbolic cosine
        Cosh,
        /// Area hyperbolic sine
        Asinh,
        /// Area hyperbolic cosine
        Acosh,
        /// Area hyperbolic tangent
        Atanh
    }
}

kernel! {
    /// `y = op(x)`
    pub struct Unary {
        operands { alias x: T, write y: T }
        nums { n }
        params { op: UnaryOp, a: f32, b: f32 }
    }
    entries { unary_f32 { T = f32 } unary_f64 { T = f64 } unary_f16 { T = f16 } unary_bf16 { T = bf16 } }
    body = unary;
}

kernel! {
    /// `y = op(x)`
    pub struct UnaryMath {
        operands { alias x: T, write y: T }
        nums { n }
        params { op: MathOp, a: f32, b: f32 }
    }
    entries {
        unary_math_f32 { T = f32 } unary_math_f64 { T = f64 } unary_math_f16 { T = f16 } unary_math_bf16 { T = bf16 }
    }
    body = unary_math;
}

/// A type with both families of functions.
trait Real: Elem {
    fn arithmetic(isa: Isa, d: &Unary, x: Option<&[Self]>, y: &mut [Self]);
    fn math(isa: Isa, d: &UnaryMath, x: Option<&[Self]>, y: &mut [Self]);
}

impl Real for f32 {
    fn arithmetic(isa: Isa, d: &Unary, x: Option<&[f32]>, y: &mut [f32]) {
        unary_lanes::arithmetic(isa, d.op, d.a, d.b, x, y);
    }
    fn math(isa: Isa, d: &UnaryMath, x: Option<&[f32]>, y: &mut [f32]) {
        unary_lanes::math(isa, d.op, d.a, d.b, x, y);
    }
}

simd_fn! {
    /// Applies a function of f32 in place to blocks of a narrower type.
    fn in_f32<S>[T: Wide<C = f32>][T](s, x: Option<&[T]>, y: &mut [T], f: &dyn Fn(&mut [f32])) {
        let _ = s;
        let mut block = [0.0; BLOCK];
        for at in (0..y.len()).step_by(BLOCK) {
            let n = BLOCK.min(y.len() - at);
            load(x.unwrap_or(y), at, 1, &mut block[..n]);
            f(&mut block[..n]);
            store(&block[..n], &mut y[at..at + n]);
        }
    }
}

macro_rules! real_in_f32 {
    ($($t:ty),*) => { $(impl Real for $t {
        fn arithmetic(isa: Isa, d: &Unary, x: Option<&[Self]>, y: &mut [Self]) {
            in_f32(isa, x, y, &|block| unary_lanes::arithmetic(isa, d.op, d.a, d.b, None, block));
        }
        fn math(isa: Isa, d: &UnaryMath, x: Option<&[Self]>, y: &mut [Self]) {
            in_f32(isa, x, y, &|block| unary_lanes::math(isa, d.op, d.a, d.b, None, block));
        }
    })* };
}
real_in_f32!(f16, bf16);

impl Real for f64 {
    fn arithmetic(_: Isa, d: &Unary, x: Option<&[f64]>, y: &mut [f64]) {
        let (a, b) = (f64::from(d.a), f64::from(d.b));
        let unit = |x: f64| x.clamp(0.0, 1.0);
        each(x, y, |x| match d.op {
            UnaryOp::Abs => x.abs(),
            UnaryOp::Neg => -x,
            UnaryOp::Ceil => libm::ceil(x),
            UnaryOp::Floor => libm::floor(x),
            UnaryOp::Round => libm::rint(x),
            UnaryOp::Sqrt => libm::sqrt(x),
            UnaryOp::Reciprocal => 1.0 / x,
            UnaryOp::Sign if x > 0.0 => 1.0,
            UnaryOp::Sign if x < 0.0 => -1.0,
            UnaryOp::Sign => x,
            UnaryOp::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            UnaryOp::LeakyRelu => {
                if x < 0.0 {
                    a * x
                } else {
                    x
                }
            }
            UnaryOp::HardSigmoid => unit(a * x + b),
            UnaryOp::HardSwish => x * unit(x / 6.0 + 0.5),
            UnaryOp::Softsign => x / (1.0 + x.abs()),
            UnaryOp::ThresholdedRelu => {
                if x > a {
                    x
                } else {
                    0.0
                }
            }
            UnaryOp::Shrink if x < -a => x + b,
            UnaryOp::Shrink if x > a => x - b,
            UnaryOp::Shrink => 0.0,
            UnaryOp::Square => x * x,
            UnaryOp::Cube => x * x * x,
        });
    }

    fn math(_: Isa, d: &UnaryMath, x: Option<&[f64]>, y: &mut [f64]) {
        let (a, b) = (f64::from(d.a), f64::from(d.b));
        each(x, y, |x| math_f64(d.op, a, b, x));
    }
}

fn math_f64(op: MathOp, a: f64, b: f64, x: f64) -> f64 {
    use core::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};
    let sigmoid = |x: f64| 1.0 / (1.0 + libm::exp(-x));
    let softplus = |x: f64| if x > 0.0 { x + libm::log1p(libm::exp(-x)) } else { libm::log1p(libm::exp(x)) };
    // The limit at -∞ is 0, where the product would be NaN.
    let times = |x: f64, y: f64| if x == f64::NEG_INFINITY { 0.0 } else { x * y };
    match op {
        MathOp::Exp => libm::exp(x),
        MathOp::Log => libm::log(x),
        MathOp::Sigmoid => sigmoid(x),
        MathOp::Tanh => libm::tanh(x),
        MathOp::Erf => libm::erf(x),
        MathOp::Gelu => times(x, 0.5 * libm::erfc(-x * FRAC_1_SQRT_2)),
        MathOp::GeluTanh => {
            // √(2/π)
            let root = FRAC_2_SQRT_PI / SQRT_2;
            times(x, sigmoid(2.0 * root * (x + 0.044715 * x * x * x)))
        }
        MathOp::Elu => {
            if x < 0.0 {
                a * libm::expm1(x)
            } else {
                x
            }
        }
        MathOp::Celu => {
            if x < 0.0 {
                a * libm::expm1(x / a)
            } else {
                x
            }
        }
        MathOp::Selu => b * if x < 0.0 { a * libm::expm1(x) } else { x },
        MathOp::Mish => times(x, libm::tanh(softplus(x))),
        MathOp::Softplus => softplus(x),
        MathOp::Swish => times(x, sigmoid(a * x)),
        MathOp::Sin => libm::sin(x),
        MathOp::Cos => libm::cos(x),
        MathOp::Tan => libm::tan(x),
        MathOp::Asin => libm::asin(x),
        MathOp::Acos => libm::acos(x),
        MathOp::Atan => libm::atan(x),
        MathOp::Sinh => libm::sinh(x),
        MathOp::Cosh => libm::cosh(x),
        MathOp::Asinh => libm::asinh(x),
        MathOp::Acosh => scalar_math::double::acosh(x),
        MathOp::Atanh => libm::atanh(x),
    }
}

/// `y = f(x)` element by element; `x` is `None` where it is `y`.
pub(super) fn each<T: Copy>(x: Option<&[T]>, y: &mut [T], f: impl Fn(T) -> T) {
    match x {
        None => y.iter_mut().for_each(|y| *y = f(*y)),
        Some(x) => y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(x)),
    }
}

fn unary<T: Real>(isa: Isa, d: &Unary, x: Option<&[T]>, y: &mut [T]) -> Result<(), Fault> {
    if y.len() != d.n || x.is_some_and(|x| x.len() != d.n) {
        return Err(Fault::Descriptor);
    }
    T::arithmetic(isa, d, x, y);
    Ok(())
}

fn unary_math<T: Real>(isa: Isa, d: &UnaryMath, x: Option<&[T]>, y: &mut [T]) -> Result<(), Fault> {
    if y.len() != d.n || x.is_some_and(|x| x.len() != d.n) {
        return Err(Fault::Descriptor);
    }
    T::math(isa, d, x, y);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use crate::Operand;
    use std::vec::Vec;

    const ARITHMETIC: [UnaryOp; 17] = [
        UnaryOp::Abs,
        UnaryOp::Neg,
        UnaryOp::Ceil,
        UnaryOp::Floor,
        UnaryOp::Round,
        UnaryOp::Sqrt,
        UnaryOp::Reciprocal,
        UnaryOp::Sign,
        UnaryOp::Relu,
        UnaryOp::LeakyRelu,
        UnaryOp::HardSigmoid,
        UnaryOp::HardSwish,
        UnaryOp::Softsign,
        UnaryOp::ThresholdedRelu,
        UnaryOp::Shrink,
        UnaryOp::Square,
        UnaryOp::Cube,
    ];
    const MATH: [MathOp; 24] = [
        MathOp::Exp,
        MathOp::Log,
        MathOp::Sigmoid,
        MathOp::Tanh,
        MathOp::Erf,
        MathOp::Gelu,
        MathOp::GeluTanh,
        MathOp::Elu,
        MathOp::Celu,
        MathOp::Selu,
        MathOp::Mish,
        MathOp::Softplus,
        MathOp::Swish,
        MathOp::Sin,
        MathOp::Cos,
        MathOp::Tan,
        MathOp::Asin,
        MathOp::Acos,
        MathOp::Atan,
        MathOp::Sinh,
        MathOp::Cosh,
        MathOp::Asinh,
        MathOp::Acosh,
        MathOp::Atanh,
    ];

    fn arguments() -> Vec<f32> {
        let special =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.5, -0.5, 1.5, 2.5, 1.0, -1.0, 1e-8, -1e-8];
        let spread = (-2000..2000).map(|i| i as f32 * 0.01 + 0.003);
        let wide = (0..400).map(|i| (i as f32 - 200.0) * 53.7);
        let unit = (-100..=100).map(|i| i as f32 * 0.01);
        special.into_iter().chain(spread).chain(wide).chain(unit).collect()
    }

    /// f32 on every set against f64, f16 and bf16 against f32, in place against out of place.
    #[test]
    fn types_agree() {
        let at = || Operand::at(0, 0, 0);
        let x = arguments();
        let wide: Vec<f64> = x.iter().map(|&x| x.into()).collect();
        let n = x.len();
        let check = |name: &str, got: &[f32], exact: &[f64], tolerance: f64| {
            for ((&g, &e), &x) in got.iter().zip(exact).zip(&x) {
                let (g, e32) = (f64::from(g), f64::from(e as f32));
                let near = g == e32
                    || g.is_nan() && e.is_nan()
                    || (g - e).abs() <= tolerance * e.abs() + 1e-7
                    || e.abs() > 1e38 && g.abs() > 1e38;
                assert!(near, "{name}({x:e}) = {g:e}, expected {e:e}");
            }
        };
        let halves: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
        let exact_halves: Vec<f32> = halves.iter().map(|h| h.to_f32()).collect();
        macro_rules! compare {
            ($ops:expr, $kernel:ident, $body:ident) => {
                for op in $ops {
                    let d = $kernel { x: at(), y: at(), n, op, a: 0.7, b: 0.3 };
                    let name = std::format!("{op:?}");
                    let mut exact = std::vec![0.0f64; n];
                    $body(Isa::Scalar, &d, Some(&wide), &mut exact).unwrap();
                    for isa in Isa::supported() {
                        let mut y = std::vec![0.0f32; n];
                        $body(isa, &d, Some(&x), &mut y).unwrap();
                        check(&name, &y, &exact, 1e-6);
                        let mut own = x.clone();
                        $body(isa, &d, None, &mut own).unwrap();
                        assert!(own.iter().zip(&y).all(|(a, b)| a.to_bits() == b.to_bits()), "{name} in place");
                        let mut h = halves.clone();
                        $body(isa, &d, None, &mut h).unwrap();
                        $body(isa, &d, Some(&exact_halves), &mut y).unwrap();
                        for (h, y) in h.iter().zip(&y) {
                            assert!(f16::from_f32(*y) == *h || y.is_nan(), "{name} f16");
                        }
                    }
                }
            };
        }
        compare!(ARITHMETIC, Unary, unary);
        compare!(MATH, UnaryMath, unary_math);
    }

    /// Where the result is small against its operand, it still has its leading digits.
    #[test]
    fn gelu_tails() {
        for isa in Isa::supported() {
            for (op, tolerance) in [(MathOp::Gelu, 2e-5), (MathOp::GeluTanh, 2e-5)] {
                let x: Vec<f32> = (0..500).map(|i| i as f32 * -0.01).collect();
                let d = UnaryMath { x: Operand::at(0, 0, 0), y: Operand::at(0, 0, 0), n: x.len(), op, a: 0.0, b: 0.0 };
                let mut y = x.clone();
                unary_math(isa, &d, None, &mut y).unwrap();
                for (&x, &y) in x.iter().zip(&y) {
                    let want = math_f64(op, 0.0, 0.0, x.into());
                    assert!((f64::from(y) - want).abs() <= tolerance * want.abs(), "{isa:?} {op:?} {x}: {y} {want}");
                }
            }
        }
    }

    #[test]
    fn corner_values() {
        let run = |op: UnaryOp, x: f32| {
            let d = Unary { x: Operand::at(0, 0, 0), y: Operand::at(0, 0, 0), n: 1, op, a: 0.5, b: 0.0 };
            let mut y = [x];
            unary(Isa::detect(), &d, None, &mut y).unwrap();
            y[0]
        };
        for (op, x, want) in [
            (UnaryOp::Round, 0.5, 0.0),
            (UnaryOp::Round, 1.5, 2.0),
            (UnaryOp::Round, -2.5, -2.0),
            (UnaryOp::Reciprocal, 0.0, f32::INFINITY),
            (UnaryOp::Ceil, -0.5, -0.0),
            (UnaryOp::Sign, -3.0, -1.0),
            (UnaryOp::Sqrt, 4.0, 2.0),
            (UnaryOp::Shrink, 0.5, 0.0),
            (UnaryOp::ThresholdedRelu, 0.5, 0.0),
        ] {
            assert_eq!(run(op, x).to_bits(), want.to_bits(), "{op:?} {x}");
        }
        for op in [UnaryOp::Relu, UnaryOp::Sign, UnaryOp::HardSigmoid, UnaryOp::HardSwish, UnaryOp::LeakyRelu] {
            assert!(run(op, f32::NAN).is_nan(), "{op:?}");
        }
    }
}
