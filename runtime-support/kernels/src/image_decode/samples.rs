//! From a JPEG's coefficients to samples: the accurate integer transform, and smooth upsampling.
//!
//! Both round as libjpeg does, bit by bit. Source: Loeffler, Ligtenberg and Moschytz 1989 for the transform;
//! <https://onnx.ai/onnx/operators/onnx__ImageDecoder.html> for upsampling.

use std::vec::Vec;

/// Fraction bits of the constants, and those kept between the passes.
const BITS: u32 = 13;
const KEPT: u32 = 2;

/// The inverse cosine transform of a block, in samples.
pub(super) fn transform(coefficients: &[i32; 64]) -> [u8; 64] {
    let mut work = coefficients.map(i64::from);
    for column in 0..8 {
        let line = line(core::array::from_fn(|i| work[i * 8 + column]), BITS - KEPT);
        (0..8).for_each(|i| work[i * 8 + column] = line[i]);
    }
    let mut out = [0; 64];
    for (row, out) in out.chunks_exact_mut(8).enumerate() {
        let line = line(core::array::from_fn(|i| work[row * 8 + i]), BITS + KEPT + 3);
        (0..8).for_each(|i| out[i] = (line[i] + 128).clamp(0, 255) as u8);
    }
    out
}

/// One line of eight, divided by `2^shift`. (Inputs have 34 bits at most: nothing overflows.)
fn line(x: [i64; 8], shift: u32) -> [i64; 8] {
    // The constants are those of the paper, times 2^13.
    let z = (x[2] + x[6]) * 4433;
    let (even2, even3) = (z - x[6] * 15137, z + x[2] * 6270);
    let (even0, even1) = ((x[0] + x[4]) << BITS, (x[0] - x[4]) << BITS);
    let even = [even0 + even3, even1 + even2, even1 - even2, even0 - even3];
    let (z3, z4) = (x[7] + x[3], x[5] + x[1]);
    let z5 = (z3 + z4) * 9633;
    let (z1, z2) = ((x[7] + x[1]) * -7373, (x[5] + x[3]) * -20995);
    let (z3, z4) = (z3 * -16069 + z5, z4 * -3196 + z5);
    let odd = [x[1] * 12299 + z1 + z4, x[3] * 25172 + z2 + z3, x[5] * 16819 + z2 + z4, x[7] * 2446 + z1 + z3];
    let rounded = |v: i64| (v + (1 << (shift - 1))) >> shift;
    core::array::from_fn(|i| rounded(if i < 4 { even[i] + odd[i] } else { even[7 - i] - odd[7 - i] }))
}

/// A component at full size, `width` by `height`: each axis once or twice as many samples.
pub(super) fn upsampled(rows: &[&[u8]], h: usize, v: usize, width: usize, height: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(width * height);
    let n = rows.first().map_or(0, |r| r.len());
    // Narrow components are repeated, as in libjpeg.
    let smooth = h == 1 || n > 2;
    for y in 0..height {
        let near = rows[y / v];
        let far = if y % v == 1 { (y / v + 1).min(rows.len() - 1) } else { (y / v).saturating_sub(1) };
        let far = rows[far];
        for x in 0..width {
            let i = x / h;
            out.push(match (h, v) {
                (1, 1) => near[i],
                (1, _) => {
                    let bias = if y % v == 1 { 2 } else { 1 };
                    ((3 * u32::from(near[i]) + u32::from(far[i]) + bias) >> 2) as u8
                }
                _ if !smooth => near[i],
                (_, 1) => between(near[i].into(), neighbour(i, x, n, |j| near[j].into()), x, 2),
                _ => {
                    let sum = |j: usize| 3 * u32::from(near[j]) + u32::from(far[j]);
                    between(sum(i), neighbour(i, x, n, sum), x, 4)
                }
            });
        }
    }
    out
}

/// The sample on the other side of an output position; at the border, the same.
fn neighbour(i: usize, x: usize, n: usize, value: impl Fn(usize) -> u32) -> u32 {
    value(if x % 2 == 1 { (i + 1).min(n - 1) } else { i.saturating_sub(1) })
}

/// Three quarters of the near and one of the far, of sums with `shift - 2` fraction bits; halves go up and down by turns.
fn between(near: u32, far: u32, x: usize, shift: u32) -> u8 {
    let half = 1 << (shift - 1);
    // Of samples the left one rounds down, of sums of two rows the right one.
    let bias = if (shift == 2) == (x % 2 == 0) { half - 1 } else { half };
    ((3 * near + far + bias) >> shift) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_block_is_constant() {
        let mut block = [0; 64];
        block[0] = 8 * 20;
        assert_eq!(transform(&block), [148; 64]);
        block[0] = -8 * 500;
        assert_eq!(transform(&block), [0; 64]);
    }

    #[test]
    fn the_transform_is_near_the_definition() {
        let block: [i32; 64] = core::array::from_fn(|i| (i as i32 * 37 + 11) % 61 - 30);
        let got = transform(&block);
        let c = |k: usize| if k == 0 { core::f64::consts::FRAC_1_SQRT_2 } else { 1.0 };
        for (at, &got) in got.iter().enumerate() {
            let angle = |x: usize, k: usize| libm::cos((2 * x + 1) as f64 * k as f64 * core::f64::consts::PI / 16.0);
            let term = |(i, &v): (usize, &i32)| {
                c(i / 8) * c(i % 8) * f64::from(v) * angle(at / 8, i / 8) * angle(at % 8, i % 8) / 4.0
            };
            let want = (block.iter().enumerate().map(term).sum::<f64>() + 128.0).clamp(0.0, 255.0);
            assert!((f64::from(got) - want).abs() < 0.52, "{at}: {got} {want}");
        }
    }

    #[test]
    fn upsampling_rounds_by_turns() {
        let row: &[u8] = &[0, 2, 4];
        assert_eq!(upsampled(&[row], 2, 1, 6, 1), [0, 1, 1, 3, 3, 4]);
        assert_eq!(upsampled(&[row], 1, 1, 3, 1), row);
        assert_eq!(upsampled(&[&[0], &[2]], 1, 2, 1, 4), [0, 1, 1, 2]);
        assert_eq!(upsampled(&[&[8, 9]], 2, 1, 4, 1), [8, 8, 9, 9]);
        assert_eq!(upsampled(&[&[4, 8, 8], &[8, 8, 8]], 2, 2, 6, 4)[..6], [4, 5, 7, 8, 8, 8]);
    }
}
