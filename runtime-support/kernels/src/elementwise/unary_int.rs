//! Functions of one integer (or truth value): Abs, Neg, Sign, Relu, Not, and the float functions ONNX allows on integers.
//!
//! Integers wrap. <https://onnx.ai/onnx/operators/onnx__Abs.html> and the operators' own pages.

use super::unary::each;
use crate::{Fault, Isa, kernel, param_enum};

param_enum! {
    /// A function of one integer; `a` and `b` are the call's constants.
    pub enum IntOp {
        /// `|x|`
        Abs,
        /// `-x`
        Neg,
        /// -1, 0 or 1
        Sign,
        /// `max(x, 0)`
        Relu,
        /// All bits turned
        BitNot,
        /// 1 for 0, 0 for anything else
        Not,
        /// `x + b` below `-a`, `x - b` above `a`, else 0; computed in f64 and truncated
        Shrink,
        /// Error function, truncated
        Erf,
        /// The low 4 bits, sign-extended in a signed type
        Low4,
        /// The low 2 bits, sign-extended in a signed type
        Low2
    }
}

kernel! {
    /// `y = op(x)`
    pub struct UnaryInt {
        operands { alias x: T, write y: T }
        nums { n }
        params { op: IntOp, a: f32, b: f32 }
    }
    entries {
        unary_i8 { T = i8 } unary_i16 { T = i16 } unary_i32 { T = i32 } unary_i64 { T = i64 }
        unary_u8 { T = u8 } unary_u16 { T = u16 } unary_u32 { T = u32 } unary_u64 { T = u64 }
    }
    body = unary_int;
}

trait Integer: Copy {
    fn apply(d: &UnaryInt, x: Option<&[Self]>, y: &mut [Self]);
}

macro_rules! integers {
    ($($t:ident $signed:literal),*) => { $(impl Integer for $t {
        #[allow(unused_comparisons, reason = "one text for signed and unsigned types")]
        fn apply(d: &UnaryInt, x: Option<&[$t]>, y: &mut [$t]) {
            let (a, b) = (f64::from(d.a), f64::from(d.b));
            match d.op {
                IntOp::Abs => each(x, y, |x| if x < 0 { x.wrapping_neg() } else { x }),
                IntOp::Neg => each(x, y, |x| x.wrapping_neg()),
                IntOp::Sign => each(x, y, |x| if x < 0 { !0 } else { $t::from(x != 0) }),
                IntOp::Relu => each(x, y, |x| x.max(0)),
                IntOp::BitNot => each(x, y, |x| !x),
                IntOp::Not => each(x, y, |x| $t::from(x == 0)),
                IntOp::Shrink => each(x, y, |x| {
                    let wide = x as f64;
                    if wide < -a {
                        (wide + b) as $t
                    } else if wide > a {
                        (wide - b) as $t
                    } else {
                        0
                    }
                }),
                IntOp::Erf => each(x, y, |x| libm::erf(x as f64) as $t),
                // The shifts of a signed type keep the sign.
                IntOp::Low4 => each(x, y, |x| x << ($t::BITS - 4) >> ($t::BITS - 4)),
                IntOp::Low2 => each(x, y, |x| x << ($t::BITS - 2) >> ($t::BITS - 2)),
            }
        }
    })* };
}
integers!(i8 true, i16 true, i32 true, i64 true, u8 false, u16 false, u32 false, u64 false);

fn unary_int<T: Integer>(_: Isa, d: &UnaryInt, x: Option<&[T]>, y: &mut [T]) -> Result<(), Fault> {
    if y.len() != d.n || x.is_some_and(|x| x.len() != d.n) {
        return Err(Fault::Descriptor);
    }
    T::apply(d, x, y);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operand;

    #[test]
    fn values() {
        let run = |op, x: i8| {
            let d = UnaryInt { x: Operand::at(0, 0, 0), y: Operand::at(0, 0, 0), n: 1, op, a: 1.5, b: 1.0 };
            let (mut y, mut own) = ([0i8], [x]);
            unary_int(Isa::Scalar, &d, Some(&[x]), &mut y).unwrap();
            unary_int(Isa::Scalar, &d, None, &mut own).unwrap();
            assert_eq!(y, own);
            y[0]
        };
        for (op, x, want) in [
            (IntOp::Abs, -128, -128),
            (IntOp::Abs, -5, 5),
            (IntOp::Neg, 7, -7),
            (IntOp::Sign, -7, -1),
            (IntOp::Sign, 0, 0),
            (IntOp::Relu, -7, 0),
            (IntOp::BitNot, 0, -1),
            (IntOp::Not, 0, 1),
            (IntOp::Not, 1, 0),
            (IntOp::Shrink, -3, -2),
            (IntOp::Shrink, 1, 0),
            (IntOp::Shrink, 2, 1),
            (IntOp::Erf, 3, 0),
            (IntOp::Low4, 15, -1),
            (IntOp::Low4, 7, 7),
            (IntOp::Low2, 2, -2),
        ] {
            assert_eq!(run(op, x), want, "{op:?} {x}");
        }
    }
}
