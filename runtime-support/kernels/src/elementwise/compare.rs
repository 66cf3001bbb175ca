//! Comparison of two broadcast operands: Equal, Less, LessOrEqual; the others are these with operands exchanged.
//!
//! Out: one byte per element, 0 or 1. A comparison with NaN is false.
//! <https://onnx.ai/onnx/operators/onnx__Equal.html>, <https://onnx.ai/onnx/operators/onnx__Less.html>

use super::blocks::{Wide, compare_blocks};
use super::walk::checked_numel;
use crate::{Fault, Isa, bf16, f16, kernel, param_enum};

param_enum! {
    /// A relation of two values.
    pub enum CompareOp {
        /// `a == b`
        Equal,
        /// `a < b`
        Less,
        /// `a <= b`
        LessEqual
    }
}

kernel! {
    /// `y = a op b` over all indices below `dims`; strides are in elements, 0 repeats.
    pub struct Compare {
        operands { read a: T, read b: T, write y: Truth }
        arrays { dims: 8, a_strides: 8, b_strides: 8 }
        params { op: CompareOp }
    }
    entries {
        compare_f32 { T = f32, Truth = u8 } compare_f64 { T = f64, Truth = u8 }
        compare_f16 { T = f16, Truth = u8 } compare_bf16 { T = bf16, Truth = u8 }
        compare_i8 { T = i8, Truth = u8 } compare_i16 { T = i16, Truth = u8 }
        compare_i32 { T = i32, Truth = u8 } compare_i64 { T = i64, Truth = u8 }
        compare_u8 { T = u8, Truth = u8 } compare_u16 { T = u16, Truth = u8 }
        compare_u32 { T = u32, Truth = u8 } compare_u64 { T = u64, Truth = u8 }
    }
    body = compare;
}

fn compare<T: Wide>(_: Isa, d: &Compare, a: &[T], b: &[T], y: &mut [u8]) -> Result<(), Fault> {
    if checked_numel(&d.dims, &[(a.len(), &d.a_strides), (b.len(), &d.b_strides)]) != Some(y.len()) {
        return Err(Fault::Descriptor);
    }
    if y.is_empty() {
        return Ok(());
    }
    macro_rules! relation {
        ($op:tt) => {
            |a, b, y| {
                for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                    *y = u8::from(a $op b);
                }
            }
        };
    }
    let f: fn(&[T::C], &[T::C], &mut [u8]) = match d.op {
        CompareOp::Equal => relation!(==),
        CompareOp::Less => relation!(<),
        CompareOp::LessEqual => relation!(<=),
    };
    compare_blocks(&d.dims, (a, &d.a_strides), (b, &d.b_strides), y, f);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relations() {
        let at = || crate::Operand::at(0, 0, 0);
        let one = [1; 8];
        let mut d =
            Compare { a: at(), b: at(), y: at(), dims: one, a_strides: one, b_strides: one, op: CompareOp::Equal };
        d.dims[7] = 5;
        d.b_strides[7] = 0;
        let (a, b) = ([1.0f32, 2.0, 3.0, f32::NAN, -0.0], [2.0f32]);
        for (op, want) in [
            (CompareOp::Equal, [0, 1, 0, 0, 0]),
            (CompareOp::Less, [1, 0, 0, 0, 1]),
            (CompareOp::LessEqual, [1, 1, 0, 0, 1]),
        ] {
            let mut y = [9; 5];
            d.op = op;
            compare(Isa::Scalar, &d, &a, &b, &mut y).unwrap();
            assert_eq!(y, want, "{op:?}");
        }
        assert!(compare(Isa::Scalar, &d, &a[..4], &b, &mut [0; 5]).is_err());
        assert!(compare(Isa::Scalar, &d, &a, &[], &mut [0; 5]).is_err());
    }
}
