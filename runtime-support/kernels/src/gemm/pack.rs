//! B in panels of 16 columns: `[N/16][K][16]`, zeros after column N.
//!
//! In: B as K rows of N or as N rows of K, any row stride. Out: a panel's 16 columns of one row of B are one cache line and
//! follow each other in order of k, so a microkernel reads B as streams. Every instruction set reads the same panels.

use crate::isa::Isa;

/// Columns of a panel.
pub const PANEL: usize = 16;

/// Elements of a packed K×N matrix; `usize::MAX` where that does not fit.
pub const fn packed_len(k: usize, n: usize) -> usize {
    match n.checked_next_multiple_of(PANEL) {
        Some(columns) => columns.saturating_mul(k),
        None => usize::MAX,
    }
}

/// Packs K×N (or, `transposed`, N×K) with rows `stride` apart into `packed`, whose first [`packed_len`] elements it writes.
///
/// Returns whether both slices were long enough; if not, nothing is written.
pub fn pack_b_into(packed: &mut [f32], b: &[f32], k: usize, n: usize, stride: usize, transposed: bool) -> bool {
    let isa = Isa::Scalar; // offline: the plain loops are quick enough and cross-compile
    let (rows, columns) = if transposed { (n, k) } else { (k, n) };
    if rows == 0 || columns == 0 {
        return true;
    }
    let Some(needed) = (rows - 1).checked_mul(stride).and_then(|x| x.checked_add(columns)) else {
        return false;
    };
    let (Some(packed), true) = (packed.get_mut(..packed_len(k, n)), needed <= b.len()) else {
        return false;
    };
    for (panel, out) in packed.chunks_exact_mut(PANEL * k).enumerate() {
        let from = panel * PANEL;
        let width = PANEL.min(n - from);
        if transposed {
            pack_panel_transposed(isa, out, &b[from * stride..], k, width, stride);
        } else {
            pack_panel(out, &b[from..], width, stride);
        }
    }
    true
}

/// One panel from rows of B that start at its first column.
pub(super) fn pack_panel(out: &mut [f32], b: &[f32], width: usize, stride: usize) {
    let (lines, _) = out.as_chunks_mut::<PANEL>();
    for (k, line) in lines.iter_mut().enumerate() {
        let row = &b[k * stride..][..width];
        if let Ok(full) = <&[f32; PANEL]>::try_from(row) {
            *line = *full;
        } else {
            line[..width].copy_from_slice(row);
            line[width..].fill(0.0);
        }
    }
}

/// One panel from rows of Bᵀ, of which the first is the panel's first column.
pub(crate) fn pack_panel_transposed(isa: Isa, out: &mut [f32], b: &[f32], k: usize, width: usize, stride: usize) {
    /// Steps of k at a time: a block of B stays in L1 however large the stride.
    const BLOCK: usize = 8;
    let (lines, _) = out.as_chunks_mut::<PANEL>();
    let lines = &mut lines[..k];
    #[cfg(target_arch = "x86_64")]
    let whole = width == PANEL && matches!(isa, Isa::Avx2 | Isa::Avx512) && b.len() >= (PANEL - 1) * stride + k;
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    for (block, lines) in lines.chunks_mut(BLOCK).enumerate() {
        let from = block * BLOCK;
        #[cfg(target_arch = "x86_64")]
        if whole && lines.len() == BLOCK {
            let out = lines.as_flattened_mut().as_mut_ptr();
            for column in [0, 8] {
                // SAFETY: the set has AVX2; 16 rows of B have `from + 8 <= k` elements each; `lines` has 8 of 16.
                unsafe {
                    let b = b.as_ptr().add(column * stride + from);
                    crate::simd::avx2::transpose8(out.add(column), PANEL, b, stride);
                }
            }
            continue;
        }
        for column in 0..PANEL {
            if column < width {
                let row = &b[column * stride + from..][..lines.len()];
                for (line, &x) in lines.iter_mut().zip(row) {
                    line[column] = x;
                }
            } else {
                lines.iter_mut().for_each(|line| line[column] = 0.0);
            }
        }
    }
}

/// Packs a dense K×N (or, `transposed`, N×K) matrix. A `b` that is too short counts as zeros after its end.
#[cfg(feature = "alloc")]
pub fn pack_b(b: &[f32], k: usize, n: usize, transposed: bool) -> alloc::vec::Vec<f32> {
    let mut packed = alloc::vec![0.0; packed_len(k, n)];
    let stride = if transposed { k } else { n };
    if !pack_b_into(&mut packed, b, k, n, stride, transposed) {
        let mut whole = b.to_vec();
        whole.resize(k * n, 0.0);
        pack_b_into(&mut packed, &whole, k, n, stride, transposed);
    }
    packed
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn panels_hold_every_element_and_zeros() {
        for (k, n, gap) in [(1, 1, 0), (3, 16, 0), (5, 17, 2), (40, 33, 1), (16, 48, 0), (0, 4, 0), (4, 0, 0)] {
            for transposed in [false, true] {
                let (rows, columns) = if transposed { (n, k) } else { (k, n) };
                let stride = columns + gap;
                let b: Vec<f32> = (0..(rows * stride)).map(|i| 1.0 + i as f32).collect();
                let mut packed = std::vec![-1.0; packed_len(k, n) + 3];
                assert!(pack_b_into(&mut packed, &b, k, n, stride, transposed));
                for (i, &got) in packed[..packed_len(k, n)].iter().enumerate() {
                    let (panel, row, column) = (i / (PANEL * k), i / PANEL % k, i % PANEL);
                    let column = panel * PANEL + column;
                    let at = if transposed { column * stride + row } else { row * stride + column };
                    assert_eq!(got, if column < n { b[at] } else { 0.0 }, "{k}x{n} {transposed} at {i}");
                }
                assert_eq!(packed[packed_len(k, n)..], [-1.0; 3]);
            }
        }
    }

    #[test]
    fn transposing_is_the_same_on_every_set() {
        for isa in Isa::supported() {
            for (k, width, stride) in [(1, 16, 1), (8, 16, 8), (19, 16, 23), (64, 16, 768), (17, 5, 17), (0, 16, 3)] {
                let b: Vec<f32> = (0..15 * stride + k).map(|i| 1.0 + i as f32).collect();
                let (mut got, mut want) = (std::vec![0.5; PANEL * k], std::vec![0.5; PANEL * k]);
                pack_panel_transposed(isa, &mut got, &b, k, width, stride);
                pack_panel_transposed(Isa::Scalar, &mut want, &b, k, width, stride);
                assert_eq!(got, want, "{isa:?} {k} {width} {stride}");
            }
        }
    }

    #[test]
    fn short_slices_are_refused() {
        let mut packed = [7.0; 32];
        assert!(!pack_b_into(&mut packed, &[1.0; 3], 2, 2, 2, false));
        assert!(!pack_b_into(&mut packed[..31], &[1.0; 4], 2, 2, 2, false));
        assert!(!pack_b_into(&mut packed, &[1.0; 4], 2, 2, usize::MAX, false));
        assert_eq!(packed, [7.0; 32]);
    }
}
