//! Quantisation to `u8` with a scale and zero point found from the tensor itself.
//!
//! `scale = (max(x, 0) − min(x, 0)) / 255` (1 where that is zero), `zero = saturate(round(−min / scale))`.
//! <https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html>

use super::quantize::quantize_run;
use crate::simd::{F32x16, LANES};
use crate::{Fault, Isa, kernel, simd_fn};

kernel! {
    /// `scale` and `zero` have one element each.
    pub struct DynamicQuantize {
        operands { read x: F, write y: Q, write scale: F, write zero: Q }
    }
    entries { dynamic_quantize_f32_u8 { F = f32, Q = u8 } }
    body = dynamic_quantize;
}

fn dynamic_quantize(
    isa: Isa,
    _: &DynamicQuantize,
    x: &[f32],
    y: &mut [u8],
    scale: &mut [f32],
    zero: &mut [u8],
) -> Result<(), Fault> {
    let ([scale], [zero]) = (scale, zero) else { return Err(Fault::Descriptor) };
    if x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    let (low, high) = range(isa, x);
    *scale = if high == low { 1.0 } else { (high - low) / 255.0 };
    let middle = -low / *scale;
    *zero = libm::rintf(middle.clamp(0.0, 255.0)) as u8;
    quantize_run(isa, x, *scale, i32::from(*zero), (0, 255), y);
    Ok(())
}

simd_fn! {
    /// The least and the greatest of the elements and zero.
    fn range<S>(s, x: &[f32]) -> (f32, f32) {
        let (mut low, mut high) = (s.zero(), s.zero());
        let mut at = 0;
        while at < x.len() {
            let v = s.load_slice(x, at);
            low = v.min(low);
            high = v.max(high);
            at += LANES;
        }
        (low.min_lane(), high.max_lane())
    }
}
