//! Offline packing of convolution weights into blocks of 16 output channels, zero-padded.

use super::ConvShape;
use super::plain::Taps;
use super::winograd::{FAR, NEAR};
use alloc::vec;
use alloc::vec::Vec;

/// ONNX weights `[OC, IC/groups, kh·kw]` as `[OC/16][IC/16][kh·kw][16 ic][16 oc]`, blocks counted within each group.
/// `None` where the lengths do not fit together.
pub fn pack_conv_weights(w: &[f32], oc: usize, ic_per_group: usize, taps: usize, groups: usize) -> Option<Vec<f32>> {
    pack(w, oc, ic_per_group, taps, groups, 16)
}

/// Joins groups of a grouped convolution until input and output channels of a group are multiples of 16, by zeros between
/// them: the weights then fit [`pack_conv_weights`] with fewer groups. Out: weights and the number of groups; `None` where
/// no such number exists, or where the lengths do not fit together. A value that is not finite then reaches the groups it is joined with.
pub fn join_groups(w: &[f32], oc: usize, ic_per_group: usize, taps: usize, groups: usize) -> Option<(Vec<f32>, usize)> {
    if groups == 0 || !oc.is_multiple_of(groups) || w.len() != oc.checked_mul(ic_per_group)?.checked_mul(taps)? {
        return None;
    }
    let oc_per_group = oc / groups;
    let whole = |joined: usize| {
        groups.is_multiple_of(joined)
            && (ic_per_group * joined).is_multiple_of(16)
            && (oc_per_group * joined).is_multiple_of(16)
    };
    let joined = (1..=16).find(|&j| whole(j))?;
    let mut wide = vec![0.0; w.len().checked_mul(joined)?];
    let row = ic_per_group * taps;
    for o in 0..oc {
        let at = (o * joined + o / oc_per_group % joined) * row;
        wide[at..at + row].copy_from_slice(&w[o * row..(o + 1) * row]);
    }
    Some((wide, groups / joined))
}

/// ONNX weights `[OC, IC, kh·kw]` as `[OC/16][IC][kh·kw][16 oc]`, for a first layer on plain input.
/// `None` where the lengths do not fit together.
pub fn pack_conv_first_weights(w: &[f32], oc: usize, ic: usize, taps: usize) -> Option<Vec<f32>> {
    pack(w, oc, ic, taps, 1, 1)
}

/// Transposed ONNX weights `[IC, OC/groups, kh, kw]` as, for each output phase (row, then column, modulo the stride),
/// `[OC/16][IC/16][taps of the phase][16 ic][16 oc]`. `None` where the lengths do not fit together.
pub fn pack_conv_transpose_weights(w: &[f32], shape: &ConvShape) -> Option<Vec<f32>> {
    let &ConvShape { ic, oc, kh, kw, sy, sx, dy, dx, pt, pl, groups, .. } = shape;
    let taps = kh.checked_mul(kw)?;
    if groups == 0 || !ic.is_multiple_of(groups) || !oc.is_multiple_of(groups) {
        return None;
    }
    let (icg, ocg) = (ic / groups, oc / groups);
    if w.len() != ic.checked_mul(ocg)?.checked_mul(taps)? {
        return None;
    }
    let mut packed = Vec::new();
    for (py, px) in (0..sy).flat_map(|py| (0..sx).map(move |px| (py, px))) {
        let (ys, xs) = (Taps::of_phase(py, pt, kh, sy, dy), Taps::of_phase(px, pl, kw, sx, dx));
        let mut part = Vec::new();
        for o in 0..oc {
            for i in 0..icg {
                let from = ((o / ocg * icg + i) * ocg + o % ocg) * taps;
                for (a, b) in (0..ys.count).flat_map(|a| (0..xs.count).map(move |b| (a, b))) {
                    part.push(w[from + (ys.first + a * ys.step) * kw + xs.first + b * xs.step]);
                }
            }
        }
        packed.extend(pack(&part, oc, icg, ys.count * xs.count, groups, 16)?);
    }
    Some(packed)
}

/// ONNX weights `[OC, IC, 3, 3]` as Winograd's `U = G·g·Gᵀ` for tiles of 2 or 4 output pixels a side:
/// `[positions][OC/16][IC/16][16 ic][16 oc]` with 16 or 36 positions. `None` where the lengths do not fit together, or for another tile.
pub fn pack_winograd_weights(w: &[f32], oc: usize, ic: usize, tile: usize) -> Option<Vec<f32>> {
    if w.len() != oc.checked_mul(ic)?.checked_mul(9)? {
        return None;
    }
    // G, by the finite points: a row is 1, x, x² over the product of the distances from the other points; the last is that of infinity.
    let points: &[f64] = match tile {
        2 => &[0.0, 1.0, -1.0],
        4 => &[0.0, NEAR, -NEAR, FAR, -FAR],
        _ => return None,
    };
    let rows = points.iter().enumerate().map(|(i, x)| {
        let scale: f64 = points.iter().enumerate().filter(|p| p.0 != i).map(|p| x - p.1).product();
        // F(2, 3) has this sign in its other transform.
        let scale = if tile == 2 && i == 0 { -scale } else { scale };
        [1.0 / scale, x / scale, x * x / scale]
    });
    let rows: Vec<[f64; 3]> = rows.chain([[0.0, 0.0, 1.0]]).collect();
    let times = |row: &[f64; 3], g: [f64; 3]| row.iter().zip(g).map(|(a, b)| a * b).sum::<f64>();
    let mut positions = vec![vec![0.0; oc * ic]; rows.len() * rows.len()];
    for (at, g) in w.chunks_exact(9).enumerate() {
        for (i, down) in rows.iter().enumerate() {
            let line = [0, 1, 2].map(|j| times(down, [0, 1, 2].map(|i| f64::from(g[i * 3 + j]))));
            for (j, across) in rows.iter().enumerate() {
                positions[i * rows.len() + j][at] = times(across, line) as f32;
            }
        }
    }
    let mut packed = Vec::new();
    for u in &positions {
        packed.extend(pack(u, oc, ic, 1, 1, 16)?);
    }
    Some(packed)
}

/// Depthwise ONNX weights `[C, 1, kh·kw]` as `[C/16][kh·kw][16]`. `None` where the lengths do not fit together.
pub fn pack_depthwise_weights(w: &[f32], channels: usize, taps: usize) -> Option<Vec<f32>> {
    if w.len() != channels.checked_mul(taps)? {
        return None;
    }
    let mut packed = vec![0.0; channels.div_ceil(16).checked_mul(16)?.checked_mul(taps)?];
    for c in 0..channels {
        for t in 0..taps {
            packed[(c / 16 * taps + t) * 16 + c % 16] = w[c * taps + t];
        }
    }
    Some(packed)
}

/// A bias padded with zeros to whole blocks.
pub fn pack_bias(bias: &[f32]) -> Vec<f32> {
    let mut packed = bias.to_vec();
    packed.resize(bias.len().next_multiple_of(16), 0.0);
    packed
}

fn pack(w: &[f32], oc: usize, icg: usize, taps: usize, groups: usize, lane: usize) -> Option<Vec<f32>> {
    if groups == 0 || !oc.is_multiple_of(groups) || w.len() != oc.checked_mul(icg)?.checked_mul(taps)? {
        return None;
    }
    let ocg = oc / groups;
    let (oc_blocks, ic_blocks) = (ocg.div_ceil(16), icg.div_ceil(lane));
    let block = taps.checked_mul(lane * 16)?;
    let len = groups.checked_mul(oc_blocks)?.checked_mul(ic_blocks)?.checked_mul(block)?;
    let mut packed = vec![0.0; len];
    for o in 0..oc {
        let (g, o_in) = (o / ocg, o % ocg);
        for i in 0..icg {
            let at = ((g * oc_blocks + o_in / 16) * ic_blocks + i / lane) * block + i % lane * 16 + o_in % 16;
            for t in 0..taps {
                packed[at + t * lane * 16] = w[(o * icg + i) * taps + t];
            }
        }
    }
    Some(packed)
}
