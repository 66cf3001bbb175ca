//! IsNaN and IsInf: one byte per element, 0 or 1.
//!
//! <https://onnx.ai/onnx/operators/onnx__IsInf.html>, <https://onnx.ai/onnx/operators/onnx__IsNaN.html>

use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// Whether each element is one of the chosen kinds.
    pub struct Classify {
        operands { read x: T, write y: Truth }
        nums { n }
        params { nan: bool, positive_infinity: bool, negative_infinity: bool }
    }
    entries {
        classify_f32 { T = f32, Truth = u8 } classify_f64 { T = f64, Truth = u8 }
        classify_f16 { T = f16, Truth = u8 } classify_bf16 { T = bf16, Truth = u8 }
    }
    body = classify;
}

fn classify<T: Copy + Into<f64>>(_: Isa, d: &Classify, x: &[T], y: &mut [u8]) -> Result<(), Fault> {
    if x.len() != d.n || y.len() != d.n {
        return Err(Fault::Descriptor);
    }
    for (y, &x) in y.iter_mut().zip(x) {
        let x: f64 = x.into();
        let holds = d.nan & x.is_nan()
            | d.positive_infinity & (x == f64::INFINITY)
            | d.negative_infinity & (x == f64::NEG_INFINITY);
        *y = holds.into();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        let at = || crate::Operand::at(0, 0, 0);
        let x = [1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        for (nan, pos, neg, want) in
            [(true, false, false, [0, 1, 0, 0]), (false, true, true, [0, 0, 1, 1]), (false, true, false, [0, 0, 1, 0])]
        {
            let d = Classify { x: at(), y: at(), n: 4, nan, positive_infinity: pos, negative_infinity: neg };
            let mut y = [9; 4];
            classify(Isa::Scalar, &d, &x, &mut y).unwrap();
            assert_eq!(y, want);
            classify(Isa::Scalar, &d, &x.map(f16::from_f32), &mut y).unwrap();
            assert_eq!(y, want);
        }
    }
}
