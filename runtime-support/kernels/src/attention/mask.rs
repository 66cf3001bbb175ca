//! Masks of yes and no as what is added to scores.

use crate::{Elem, Fault, Isa, kernel};

kernel! {
    /// `y = x ? 0 : masked` element by element.
    pub struct MaskBias {
        operands { read x: B, write y: T }
        params { masked: f32 }
    }
    entries {
        mask_bias_f32 { B = u8, T = f32 } mask_bias_f64 { B = u8, T = f64 }
        mask_bias_i32_f32 { B = i32, T = f32 } mask_bias_i32_f64 { B = i32, T = f64 }
    }
    body = mask_bias;
}

fn mask_bias<B: Elem, T: Elem + From<f32>>(_: Isa, d: &MaskBias, x: &[B], y: &mut [T]) -> Result<(), Fault> {
    if x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    for (&x, y) in x.iter().zip(y) {
        *y = T::from(if x == B::default() { d.masked } else { 0.0 });
    }
    Ok(())
}
