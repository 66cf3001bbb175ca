//! Masks of yes and no as what is added to scores.

use crate::real::Real;
use crate::{Elem, Fault, Isa, bf16, kernel};

kernel! {
    /// `y = x ? 0 : masked` element by element.
    pub struct MaskBias {
        operands { read x: B, write y: T }
        params { masked: f32 }
    }
    entries {
        mask_bias_f32 { B = u8, T = f32 } mask_bias_f64 { B = u8, T = f64 }
        mask_bias_bf16 { B = u8, T = bf16 }
        mask_bias_i32_f32 { B = i32, T = f32 } mask_bias_i32_f64 { B = i32, T = f64 }
    }
    body = mask_bias;
}

fn mask_bias<B: Elem, T: Real>(_: Isa, d: &MaskBias, x: &[B], y: &mut [T]) -> Result<(), Fault> {
    if x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    for (&x, y) in x.iter().zip(y) {
        *y = T::put(if x == B::default() { f64::from(d.masked) } else { 0.0 });
    }
    Ok(())
}
