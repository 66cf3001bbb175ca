//! Arithmetic of two broadcast operands: Add, Sub, Mul, Div, Min, Max, Mod, PRelu, Pow and the bit operations.
//!
//! In: `a` and `b` of one type with broadcast strides, either of them perhaps in the memory of `y`. Out: `y`, contiguous.
//! Integers wrap; a quotient or remainder by zero is 0. Min and Max keep NaN.
//! <https://onnx.ai/onnx/operators/onnx__Add.html> and the operators' own pages.

use super::binary_lanes;
use super::blocks::{Wide, zip_blocks};
use super::scalar_math;
use super::walk::checked_numel;
use crate::{Fault, Isa, bf16, f16, kernel, param_enum, simd_fn};

param_enum! {
    /// A function of two values of one type.
    pub enum BinaryOp {
        /// `a + b`
        Add,
        /// `a - b`
        Sub,
        /// `a · b`
        Mul,
        /// `a / b`, towards zero for integers
        Div,
        /// The smaller one
        Min,
        /// The greater one
        Max,
        /// The remainder with the sign of `b`
        Mod,
        /// The remainder with the sign of `a`
        Fmod,
        /// `a < 0 ? a · b : a`
        Prelu,
        /// `a` to the power of `b`
        Pow,
        /// Bitwise and
        BitAnd,
        /// Bitwise or
        BitOr,
        /// Bitwise exclusive or
        BitXor,
        /// Shift left by `b` bits; 0 where `b` is none of the type's
        ShiftLeft,
        /// Shift right by `b` bits; all sign bits where `b` is none of the type's
        ShiftRight
    }
}

kernel! {
    /// `y = op(a, b)` over all indices below `dims`; strides are in elements, 0 repeats.
    pub struct Binary {
        operands { alias a: T, alias b: T, write y: T }
        arrays { dims: 8, a_strides: 8, b_strides: 8 }
        params { op: BinaryOp }
    }
    entries {
        binary_f32 { T = f32 } binary_f64 { T = f64 } binary_f16 { T = f16 } binary_bf16 { T = bf16 }
        binary_i8 { T = i8 } binary_i16 { T = i16 } binary_i32 { T = i32 } binary_i64 { T = i64 }
        binary_u8 { T = u8 } binary_u16 { T = u16 } binary_u32 { T = u32 } binary_u64 { T = u64 }
    }
    body = binary;
}

/// The operations of a type on blocks; the result goes to the first argument.
pub(super) trait Arithmetic: Wide {
    /// `None` where the type has no such operation.
    fn on_blocks(op: BinaryOp) -> Option<fn(&mut [Self::C], &[Self::C])>;

    /// Does the whole call where the type has a faster way for it.
    fn on_vectors(_: Isa, _: &Binary, _: Option<&[Self]>, _: Option<&[Self]>, _: &mut [Self]) -> bool {
        false
    }
}

fn binary<T: Arithmetic>(isa: Isa, d: &Binary, a: Option<&[T]>, b: Option<&[T]>, y: &mut [T]) -> Result<(), Fault> {
    let (a_len, b_len) = (a.map_or(y.len(), <[T]>::len), b.map_or(y.len(), <[T]>::len));
    let numel = checked_numel(&d.dims, &[(a_len, &d.a_strides), (b_len, &d.b_strides)]);
    if numel != Some(y.len()) {
        return Err(Fault::Descriptor);
    }
    if y.is_empty() || T::on_vectors(isa, d, a, b, y) {
        return Ok(());
    }
    let f = T::on_blocks(d.op).ok_or(Fault::Descriptor)?;
    zip_blocks(&d.dims, (a, &d.a_strides), (b, &d.b_strides), y, f);
    Ok(())
}

simd_fn! {
    /// The blocks of a type that is computed in f32: its conversions gain from wide vectors.
    fn zip_widened<S>[T: Arithmetic][T](s, d: &Binary, a: Option<&[T]>, b: Option<&[T]>, y: &mut [T]) -> bool {
        let _ = s;
        let Some(f) = T::on_blocks(d.op) else { return false };
        zip_blocks(&d.dims, (a, &d.a_strides), (b, &d.b_strides), y, f);
        true
    }
}

macro_rules! block_ops {
    ($op:expr; $($name:ident => |$a:ident, $b:ident| $value:expr),* $(,)?) => {
        match $op {
            $(BinaryOp::$name => Some(|a, b| for (x, &$b) in a.iter_mut().zip(b) {
                let $a = *x;
                *x = $value;
            }),)*
            #[allow(unreachable_patterns, reason = "not every type has every operation")]
            _ => None,
        }
    };
}

macro_rules! float_arithmetic {
    ($math:ident: $($t:ident $(($vectors:item))?),*) => { $(
        impl Arithmetic for $t {
            fn on_blocks(op: BinaryOp) -> Option<fn(&mut [Self::C], &[Self::C])> {
                block_ops! { op;
                    Add => |a, b| a + b,
                    Sub => |a, b| a - b,
                    Mul => |a, b| a * b,
                    Div => |a, b| a / b,
                    Min => |a, b| if a < b || a.is_nan() { a } else { b },
                    Max => |a, b| if a > b || a.is_nan() { a } else { b },
                    Mod => |a, b| scalar_math::$math::floor_mod(a, b),
                    Fmod => |a, b| scalar_math::$math::fmod(a, b),
                    Prelu => |a, b| if a < 0.0 { a * b } else { a },
                    Pow => |a, b| scalar_math::$math::pow(a, b),
                }
            }
            $($vectors)?
        }
    )* };
}
float_arithmetic!(single: f16 (
    fn on_vectors(isa: Isa, d: &Binary, a: Option<&[f16]>, b: Option<&[f16]>, y: &mut [f16]) -> bool {
        zip_widened(isa, d, a, b, y)
    }
), bf16 (
    fn on_vectors(isa: Isa, d: &Binary, a: Option<&[bf16]>, b: Option<&[bf16]>, y: &mut [bf16]) -> bool {
        zip_widened(isa, d, a, b, y)
    }
), f32 (
    fn on_vectors(isa: Isa, d: &Binary, a: Option<&[f32]>, b: Option<&[f32]>, y: &mut [f32]) -> bool {
        binary_lanes::run(isa, d, a, b, y)
    }
));
float_arithmetic!(double: f64);

macro_rules! integer_arithmetic {
    ($($t:ident $negative:expr),* $(,)?) => { $(
        impl Arithmetic for $t {
            fn on_blocks(op: BinaryOp) -> Option<fn(&mut [$t], &[$t])> {
                block_ops! { op;
                    Add => |a, b| a.wrapping_add(b),
                    Sub => |a, b| a.wrapping_sub(b),
                    Mul => |a, b| a.wrapping_mul(b),
                    Div => |a, b| if b == 0 { 0 } else { a.wrapping_div(b) },
                    Min => |a, b| a.min(b),
                    Max => |a, b| a.max(b),
                    Mod => |a, b| if b == 0 { 0 } else {
                        let r = a.wrapping_rem(b);
                        if r != 0 && $negative(r ^ b) { r.wrapping_add(b) } else { r }
                    },
                    Fmod => |a, b| if b == 0 { 0 } else { a.wrapping_rem(b) },
                    Prelu => |a, b| if $negative(a) { a.wrapping_mul(b) } else { a },
                    Pow => |a, b| scalar_math::pow_int!($t, a, b, $negative(b)),
                    BitAnd => |a, b| a & b,
                    BitOr => |a, b| a | b,
                    BitXor => |a, b| a ^ b,
                    ShiftLeft => |a, b| match u32::try_from(b) {
                        Ok(n) if n < <$t>::BITS => a << n,
                        _ => 0,
                    },
                    ShiftRight => |a, b| match u32::try_from(b) {
                        Ok(n) if n < <$t>::BITS => a >> n,
                        _ if $negative(a) => !0,
                        _ => 0,
                    },
                }
            }
        }
    )* };
}
integer_arithmetic!(
    i8 |x: i8| x < 0, i16 |x: i16| x < 0, i32 |x: i32| x < 0, i64 |x: i64| x < 0,
    u8 |_| false, u16 |_| false, u32 |_| false, u64 |_| false,
);

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    fn dims(inner: [usize; 3]) -> [usize; 8] {
        [1, 1, 1, 1, 1, inner[0], inner[1], inner[2]]
    }

    fn strides(inner: [usize; 3]) -> [usize; 8] {
        [0, 0, 0, 0, 0, inner[0], inner[1], inner[2]]
    }

    fn call(op: BinaryOp, d: [usize; 3], a: [usize; 3], b: [usize; 3]) -> Binary {
        let at = || crate::Operand::at(0, 0, 0);
        Binary { a: at(), b: at(), y: at(), dims: dims(d), a_strides: strides(a), b_strides: strides(b), op }
    }

    /// Every stride pattern, every size around the vector's and the block's, in place and not, against the formula.
    #[test]
    fn patterns_agree_with_the_formula() {
        use BinaryOp::*;
        let x: Vec<f32> = (0..5 * 3 * 200).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.25).collect();
        for n in [1, 2, 15, 16, 17, 33, 64, 65, 130] {
            let d = [2, 3, n];
            let full = [3 * n, n, 1];
            for b_strides in [full, [0, 0, 0], [0, 0, 1], [0, 1, 0], [3, 1, 0], [0, n, 1], [n, 0, 1]] {
                for op in [Add, Sub, Mul, Div, Min, Max, Prelu, Fmod] {
                    let f = |a: f32, b: f32| match op {
                        Add => a + b,
                        Sub => a - b,
                        Mul => a * b,
                        Div => a / b,
                        Min => a.min(b),
                        Max => a.max(b),
                        Prelu => {
                            if a < 0.0 {
                                a * b
                            } else {
                                a
                            }
                        }
                        _ => a % b,
                    };
                    let at = |s: [usize; 3], i: usize| x[i / (3 * n) * s[0] + i / n % 3 * s[1] + i % n * s[2]];
                    let want: Vec<f32> = (0..6 * n).map(|i| f(at(full, i), at(b_strides, i))).collect();
                    let turned: Vec<f32> = (0..6 * n).map(|i| f(at(b_strides, i), at(full, i))).collect();
                    let same = |got: &[f32], want: &[f32]| {
                        got.iter().zip(want).all(|(g, w)| g == w || g.is_nan() && w.is_nan())
                    };
                    for isa in Isa::supported() {
                        let mut y = std::vec![0.0f32; 6 * n];
                        let c = call(op, d, full, b_strides);
                        binary(isa, &c, Some(&x[..6 * n]), Some(&x), &mut y).unwrap();
                        assert!(same(&y, &want), "{isa:?} {op:?} {n} {b_strides:?}: {y:?} {want:?}");
                        y.copy_from_slice(&x[..6 * n]);
                        binary(isa, &c, None, Some(&x), &mut y).unwrap();
                        assert!(same(&y, &want), "{isa:?} {op:?} {n} {b_strides:?} in place");
                        let c = call(op, d, b_strides, full);
                        y.copy_from_slice(&x[..6 * n]);
                        binary(isa, &c, Some(&x), None, &mut y).unwrap();
                        assert!(same(&y, &turned), "{isa:?} {op:?} {n} {b_strides:?} b in place");
                    }
                }
            }
        }
    }

    #[test]
    fn integers_are_defined_everywhere() {
        fn one<T: Arithmetic>(op: BinaryOp, a: T, b: T) -> T {
            let mut y = [T::default()];
            binary(Isa::Scalar, &call(op, [1, 1, 1], [1, 1, 1], [1, 1, 1]), Some(&[a]), Some(&[b]), &mut y).unwrap();
            y[0]
        }
        use BinaryOp::*;
        for (op, a, b, want) in [
            (Div, 7, 0, 0),
            (Div, -7, 2, -3),
            (Div, i32::MIN, -1, i32::MIN),
            (Mod, -7, 3, 2),
            (Mod, 7, -3, -2),
            (Mod, -6, 3, 0),
            (Mod, i32::MIN, -1, 0),
            (Mod, 5, 0, 0),
            (Fmod, -7, 3, -1),
            (Pow, 3, 4, 81),
            (Pow, -2, 3, -8),
            (Pow, 2, 40, 0),
            (Pow, 2, -1, 0),
            (Pow, -1, -3, -1),
            (Pow, 0, 0, 1),
            (Add, i32::MAX, 1, i32::MIN),
            (ShiftRight, -8, 1, -4),
            (ShiftRight, -8, 40, -1),
            (ShiftLeft, 1, 32, 0),
            (ShiftLeft, 1, -1, 0),
            (Prelu, -3, 2, -6),
        ] {
            assert_eq!(one(op, a, b), want, "{op:?} {a} {b}");
        }
        assert_eq!(one(ShiftLeft, 0x80u8, 1), 0);
        assert_eq!(one(ShiftRight, 0x80u8, 8), 0);
        assert_eq!(one(Mod, 250u8, 7), 5);
        assert_eq!(one(Add, f16::from_f32(2048.0), f16::ONE).to_f32(), 2048.0);
        assert_eq!(one(Mod, -1.0f32, 3.0), 2.0);
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            assert!(one(Min, a, b).is_nan() && one(Max, a, b).is_nan());
        }
    }

    #[test]
    fn wrong_extents_are_refused() {
        let mut y = [0.0f32; 6];
        let c = call(BinaryOp::Add, [1, 2, 3], [6, 3, 1], [6, 3, 1]);
        assert_eq!(binary(Isa::Scalar, &c, Some(&[0.0; 5]), Some(&[0.0; 6]), &mut y), Err(Fault::Descriptor));
        assert_eq!(binary(Isa::Scalar, &c, None, Some(&[0.0; 6]), &mut y[..5]), Err(Fault::Descriptor));
    }
}
