//! F(2×2, 3×3): tiles of 4×4 input pixels and 2×2 output pixels. Source: Lavin and Gray, section 4.1.

use super::super::geometry::ConvShape;
use super::{CHUNK, Output, Plan};
use crate::simd::{F32x16, Simd};
use crate::simd_fn;

simd_fn! {
    /// `V[k][block][tile] = (Bᵀ·d·B)[k]` for rows `row..row + rows` of tiles.
    ///
    /// # Safety
    /// `x` is valid for one image, `v` for a band.
    pub(super) unsafe fn transform_input<S>(s, g: &ConvShape, plan: &Plan, row: usize, rows: usize, x: *const f32, v: *mut f32) {
        let position = plan.position(plan.ic_blocks);
        for block in 0..plan.ic_blocks {
            for r in 0..rows {
                let x = x.wrapping_add(block * g.h * g.w * 16);
                let out = v.wrapping_add((block * plan.tiles() + r * plan.cols) * 16);
                // Rows outside the image, in two's complement.
                let top = ((row + r) * 2).wrapping_sub(g.pt);
                // SAFETY: the caller's promise; what lies outside the image reads `ZERO`.
                unsafe {
                    // The two columns that the next tile shares, transformed downwards.
                    let mut left = [column(s, g, x, top, 0usize.wrapping_sub(g.pl)), column(s, g, x, top, 1usize.wrapping_sub(g.pl))];
                    for t in 0..plan.cols {
                        let at = (2 * t).wrapping_sub(g.pl);
                        let right = [column(s, g, x, top, at.wrapping_add(2)), column(s, g, x, top, at.wrapping_add(3))];
                        let out = out.add(t * 16);
                        for i in 0..4 {
                            let k = i * 4;
                            (left[0][i] - right[0][i]).store(out.add(k * position));
                            (left[1][i] + right[0][i]).store(out.add((k + 1) * position));
                            (right[0][i] - left[1][i]).store(out.add((k + 2) * position));
                            (left[1][i] - right[1][i]).store(out.add((k + 3) * position));
                        }
                        left = right;
                    }
                }
            }
        }
    }
}

/// `Bᵀ` times four pixels below each other, from row `top` of column `col`; outside the image they are zero.
///
/// # Safety
/// `x` is valid for a plane of the image.
#[inline(always)]
unsafe fn column<S: Simd>(s: S, g: &ConvShape, x: *const f32, top: usize, col: usize) -> [S::F32; 4] {
    let mut d = [s.zero(); 4];
    for i in 0..4 {
        let row = top.wrapping_add(i);
        if row < g.h && col < g.w {
            // SAFETY: the pixel lies in the image.
            d[i] = unsafe { s.load(x.add((row * g.w + col) * 16)) };
        }
    }
    [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
}

simd_fn! {
    /// `y = Aᵀ·M·A + bias + residual`, clamped, for rows `row..row + rows` of tiles of one output block.
    ///
    /// # Safety
    /// `out` is valid for a band of products and the whole output.
    pub(super) unsafe fn transform_output<S>(
        s, g: &ConvShape, plan: &Plan, row: usize, rows: usize, out: &Output, block: usize, channel: usize, plane: usize,
    ) {
        let position = plan.position(CHUNK);
        // SAFETY: the caller's promise.
        let finish = unsafe { out.finish(s, channel) };
        for r in 0..rows {
            for t in 0..plan.cols {
                let m = out.m.wrapping_add((block * plan.tiles() + r * plan.cols + t) * 16);
                let (mut upper, mut lower) = ([s.zero(); 4], [s.zero(); 4]);
                for j in 0..4 {
                    // SAFETY: the caller's promise.
                    let [a, b, c, d] = unsafe {
                        [
                            s.load(m.add(j * position)),
                            s.load(m.add((4 + j) * position)),
                            s.load(m.add((8 + j) * position)),
                            s.load(m.add((12 + j) * position)),
                        ]
                    };
                    upper[j] = a + b + c;
                    lower[j] = b - c - d;
                }
                for (i, v) in [upper, lower].into_iter().enumerate() {
                    let y_row = (row + r) * 2 + i;
                    if y_row >= g.oh {
                        continue;
                    }
                    let pixels = [v[0] + v[1] + v[2], v[1] - v[2] - v[3]];
                    for (j, v) in pixels.into_iter().enumerate() {
                        let col = t * 2 + j;
                        if col >= g.ow {
                            continue;
                        }
                        let at = ((plane * g.oh + y_row) * g.ow + col) * 16;
                        // SAFETY: the pixel lies in the output.
                        unsafe { out.put(s, &finish, at, v) };
                    }
                }
            }
        }
    }
}
