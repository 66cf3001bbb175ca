//! MelWeightMatrix: triangular filters that turn a linear spectrum into a mel spectrum.
//!
//! In: the sample rate and the edges in hertz. Out: `[dft_length/2 + 1, bins]` weights.
//! Source: <https://onnx.ai/onnx/operators/onnx__MelWeightMatrix.html>

use crate::real::Real;
use crate::{Elem, Fault, Isa, kernel};
use core::f64::consts::LN_10;

kernel! {
    /// The weights of `bins` filters.
    pub struct MelWeights {
        operands { read rate: I, read low: F, read high: F, write y: T }
        nums { bins, dft_length }
    }
    entries {
        mel_weights_f32 { I = i64, F = f32, T = f32 } mel_weights_f64 { I = i64, F = f32, T = f64 }
        mel_weights_i32_f32 { I = i32, F = f32, T = f32 } mel_weights_i32_f64 { I = i32, F = f32, T = f64 }
        mel_weights_f64_f32 { I = i64, F = f64, T = f32 } mel_weights_f64_f64 { I = i64, F = f64, T = f64 }
        mel_weights_i32_f64_f32 { I = i32, F = f64, T = f32 } mel_weights_i32_f64_f64 { I = i32, F = f64, T = f64 }
    }
    body = mel_weights;
}

fn mel_weights<I: Elem + Into<i64>, F: Real, T: Real>(
    _: Isa,
    d: &MelWeights,
    rate: &[I],
    low: &[F],
    high: &[F],
    y: &mut [T],
) -> Result<(), Fault> {
    let ([rate], [low], [high]) = (rate, low, high) else { return Err(Fault::Descriptor) };
    let rows = d.dft_length / 2 + 1;
    if rows.checked_mul(d.bins) != Some(y.len()) {
        return Err(Fault::Descriptor);
    }
    let rate: i64 = (*rate).into();
    let to_mel = |hertz: f64| 2595.0 * libm::log1p(hertz / 700.0) / LN_10;
    let (low, high) = (to_mel(low.get()), to_mel(high.get()));
    let step = (high - low) / (d.bins + 2) as f64;
    // The spectrum's row at filter edge `i`.
    let edge = |i: usize| {
        let hertz = 700.0 * libm::expm1((i as f64 * step + low) / 2595.0 * LN_10);
        let row = libm::floor((d.dft_length + 1) as f64 * hertz / rate as f64);
        if row >= 0.0 && row <= rows as f64 { Ok(row as usize) } else { Err(Fault::IndexOutOfRange) }
    };
    y.fill(T::default());
    for bin in 0..d.bins {
        let (left, center, right) = (edge(bin)?, edge(bin + 1)?, edge(bin + 2)?);
        let mut put = |row: usize, value: f64| match y.get_mut(row * d.bins + bin) {
            Some(y) if row < rows => {
                *y = T::put(value);
                Ok(())
            }
            _ => Err(Fault::IndexOutOfRange),
        };
        if left == center {
            put(center, 1.0)?;
        }
        for row in left..=center {
            if left != center {
                put(row, (row - left) as f64 / (center - left) as f64)?;
            }
        }
        for row in center..right {
            put(row, (right - row) as f64 / (right - center) as f64)?;
        }
    }
    Ok(())
}
