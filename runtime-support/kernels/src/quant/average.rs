//! The mean over all positions of a quantised tensor's channels, requantised.
//!
//! `y = saturate(round((Σx − n·x_zero) · (x_scale / (y_scale·n))) + y_zero)`, the sum exact in `i32`.
//! Source: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md> (QLinearGlobalAveragePool).

use super::quantize::{Quantised, round_clamped};
use crate::{Fault, Isa, kernel, simd_fn};

kernel! {
    /// `x` is `[outer, n, inner]`, `y` is `[outer, inner]`; scales and zero points have one element each.
    pub struct QMean {
        operands { read x: Q, read x_scale: F, read y_scale: F, opt x_zero: Q, opt y_zero: Q, write y: Q }
        nums { outer, n, inner }
        params { lo: i32, hi: i32 }
    }
    entries { qmean_u8 { Q = u8, F = f32 } qmean_i8 { Q = i8, F = f32 } }
    body = qmean;
}

/// Inner positions summed at a time.
const BLOCK: usize = 64;

fn qmean<Q: Quantised>(
    isa: Isa,
    d: &QMean,
    x: &[Q],
    x_scale: &[f32],
    y_scale: &[f32],
    x_zero: Option<&[Q]>,
    y_zero: Option<&[Q]>,
    y: &mut [Q],
) -> Result<(), Fault> {
    let len = d.outer.checked_mul(d.n).and_then(|v| v.checked_mul(d.inner));
    let out = d.outer.checked_mul(d.inner);
    let ([sx, ..], [sy, ..]) = (x_scale, y_scale) else { return Err(Fault::Descriptor) };
    if len != Some(x.len()) || out != Some(y.len()) || d.n == 0 {
        return Err(Fault::Descriptor);
    }
    let zero = |z: Option<&[Q]>| z.and_then(|z| z.first()).map_or(0, |z| z.wide());
    let (zx, zy) = (zero(x_zero), zero(y_zero));
    let factor = sx / (sy * d.n as f32);
    let bias = zx.wrapping_mul(d.n as i32);
    let code = |sum: i32| {
        let v = sum.wrapping_sub(bias) as f32 * factor;
        Q::narrow(round_clamped(v, d.lo - zy, d.hi - zy) + zy)
    };
    if d.inner == 1 {
        for (x, y) in x.chunks_exact(d.n).zip(y) {
            *y = code(sum(isa, x));
        }
        return Ok(());
    }
    if d.inner == 0 {
        return Ok(());
    }
    for (x, y) in x.chunks_exact(d.n * d.inner).zip(y.chunks_exact_mut(d.inner)) {
        for (i, y) in y.chunks_mut(BLOCK).enumerate() {
            let mut sums = [0i32; BLOCK];
            add_rows(isa, x, d.inner, i * BLOCK, &mut sums[..y.len()]);
            for (y, &s) in y.iter_mut().zip(&sums) {
                *y = code(s);
            }
        }
    }
    Ok(())
}

simd_fn! {
    fn sum<S>[Q: Quantised][Q](_s, x: &[Q]) -> i32 {
        x.iter().fold(0i32, |sum, x| sum.wrapping_add(x.wide()))
    }
}

simd_fn! {
    /// Adds columns `from..` of every row.
    fn add_rows<S>[Q: Quantised][Q](_s, x: &[Q], row_len: usize, from: usize, sums: &mut [i32]) {
        for row in x.chunks_exact(row_len) {
            for (sum, x) in sums.iter_mut().zip(&row[from..]) {
                *sum = sum.wrapping_add(x.wide());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::Operand;
    use std::vec::Vec;

    #[test]
    fn rows_and_columns_agree() {
        let o = Operand::at(0, 0, 0);
        let (n, channels) = (49, 70);
        let rows: Vec<u8> = (0..channels * n).map(|i| (i * 31 % 251) as u8).collect();
        let columns: Vec<u8> = (0..n * channels).map(|i| rows[i % channels * n + i / channels]).collect();
        let d = |outer, inner| QMean {
            x: o,
            x_scale: o,
            y_scale: o,
            x_zero: Some(o),
            y_zero: Some(o),
            y: o,
            outer,
            n,
            inner,
            lo: 0,
            hi: 255,
        };
        for isa in Isa::supported() {
            let (mut a, mut b) = (std::vec![0u8; channels], std::vec![0u8; channels]);
            qmean(isa, &d(channels, 1), &rows, &[0.02], &[0.01], Some(&[100]), Some(&[40]), &mut a).unwrap();
            qmean(isa, &d(1, channels), &columns, &[0.02], &[0.01], Some(&[100]), Some(&[40]), &mut b).unwrap();
            assert_eq!(a, b);
            let sum: i32 = rows[..n].iter().map(|&v| i32::from(v) - 100).sum();
            assert_eq!(
                i32::from(a[0]),
                ((sum as f32 * (0.02f32 / (0.01 * 49.0))).round_ties_even() as i32 + 40).clamp(0, 255)
            );
        }
    }
}
