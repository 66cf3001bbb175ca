//! F(4×4, 3×3): tiles of 6×6 input pixels and 4×4 output pixels, by the points 0, ±2/3, ±3/2 and ∞.
//!
//! The usual points 0, ±1, ±2 make errors that are four to nine times those of direct summation; these make about twice as large ones
//! (measured by the test `winograd_rounds_little`). Choice of points: B. Barabasz et al., Error Analysis and Improving the
//! Accuracy of Winograd Convolution for Deep Neural Networks, arXiv 1803.10986.

use super::super::geometry::ConvShape;
use super::{CHUNK, Output, Plan};
use crate::simd::{F32x16, Simd};
use crate::simd_fn;

/// The smaller point; the larger one is its inverse.
pub(in super::super) const NEAR: f64 = 2.0 / 3.0;
/// The larger point.
pub(in super::super) const FAR: f64 = 3.0 / 2.0;
const A: f32 = NEAR as f32;
const B: f32 = FAR as f32;
const A2: f32 = (NEAR * NEAR) as f32;
const B2: f32 = (FAR * FAR) as f32;
const SUM: f32 = (NEAR * NEAR + FAR * FAR) as f32;

simd_fn! {
    /// `V[k][block][tile] = (Bᵀ·d·B)[k]` for rows `row..row + rows` of tiles.
    ///
    /// # Safety
    /// `x` is valid for one image, `v` for a band.
    pub(super) unsafe fn transform_input<S>(s, g: &ConvShape, plan: &Plan, row: usize, rows: usize, x: *const f32, v: *mut f32) {
        let position = plan.position(plan.ic_blocks);
        for block in 0..plan.ic_blocks {
            let x = x.wrapping_add(block * g.h * g.w * 16);
            for r in 0..rows {
                let out = v.wrapping_add((block * plan.tiles() + r * plan.cols) * 16);
                // Rows and columns outside the image, in two's complement.
                let top = ((row + r) * 4).wrapping_sub(g.pt);
                let whole_rows = top < g.h && top + 6 <= g.h;
                for t in 0..plan.cols {
                    let left = (4 * t).wrapping_sub(g.pl);
                    // SAFETY: the caller's promise; what lies outside the image is zero.
                    unsafe {
                        let mut columns = [[s.zero(); 6]; 6];
                        if whole_rows && left < g.w && left + 6 <= g.w {
                            let x = x.add((top * g.w + left) * 16);
                            for (j, column) in columns.iter_mut().enumerate() {
                                for (i, d) in column.iter_mut().enumerate() {
                                    *d = s.load(x.add((i * g.w + j) * 16));
                                }
                                *column = down(s, *column);
                            }
                        } else {
                            for (j, column) in columns.iter_mut().enumerate() {
                                for (i, d) in column.iter_mut().enumerate() {
                                    let (row, col) = (top.wrapping_add(i), left.wrapping_add(j));
                                    if row < g.h && col < g.w {
                                        *d = s.load(x.add((row * g.w + col) * 16));
                                    }
                                }
                                *column = down(s, *column);
                            }
                        }
                        let out = out.add(t * 16);
                        for i in 0..6 {
                            let line = down(s, [columns[0][i], columns[1][i], columns[2][i], columns[3][i], columns[4][i], columns[5][i]]);
                            for (j, v) in line.into_iter().enumerate() {
                                v.store(out.add((i * 6 + j) * position));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// `Bᵀ` times six numbers.
#[inline(always)]
fn down<S: Simd>(s: S, d: [S::F32; 6]) -> [S::F32; 6] {
    let (sum, a2, b2) = (s.splat(SUM), s.splat(A2), s.splat(B2));
    let (even, odd) = (b2.fnma(d[2], d[4]), s.splat(A) * b2.fnma(d[1], d[3]));
    let (even_far, odd_far) = (a2.fnma(d[2], d[4]), s.splat(B) * a2.fnma(d[1], d[3]));
    [
        sum.fnma(d[2], d[0] + d[4]),
        even + odd,
        even - odd,
        even_far + odd_far,
        even_far - odd_far,
        sum.fnma(d[3], d[1] + d[5]),
    ]
}

/// `Aᵀ` times six numbers.
#[inline(always)]
fn up<S: Simd>(s: S, m: [S::F32; 6]) -> [S::F32; 4] {
    let (near, far) = (m[1] + m[2], m[3] + m[4]);
    let (near_odd, far_odd) = (s.splat(A) * (m[1] - m[2]), s.splat(B) * (m[3] - m[4]));
    let (a2, b2) = (s.splat(A2), s.splat(B2));
    [m[0] + (near + far), near_odd + far_odd, a2.fma(near, b2 * far), m[5] + a2.fma(near_odd, b2 * far_odd)]
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
            let y_row = (row + r) * 4;
            for t in 0..plan.cols {
                let m = out.m.wrapping_add((block * plan.tiles() + r * plan.cols + t) * 16);
                let mut columns = [[s.zero(); 4]; 6];
                for (j, column) in columns.iter_mut().enumerate() {
                    let mut d = [s.zero(); 6];
                    for (i, d) in d.iter_mut().enumerate() {
                        // SAFETY: the caller's promise.
                        *d = unsafe { s.load(m.add((i * 6 + j) * position)) };
                    }
                    *column = up(s, d);
                }
                for i in 0..4.min(g.oh - y_row) {
                    let line = up(s, [columns[0][i], columns[1][i], columns[2][i], columns[3][i], columns[4][i], columns[5][i]]);
                    for (j, v) in line.into_iter().enumerate() {
                        let col = t * 4 + j;
                        if col >= g.ow {
                            break;
                        }
                        let at = ((plane * g.oh + y_row + i) * g.ow + col) * 16;
                        // SAFETY: the pixel lies in the output.
                        unsafe { out.put(s, &finish, at, v) };
                    }
                }
            }
        }
    }
}
