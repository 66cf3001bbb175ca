//! 8-bit B in panels of 16 columns: `[N/16][K/4][16][4]`, zeros after column N and after row K, and the sums of its columns.
//!
//! In: bytes of K rows of N, or of N rows of K, signed or not. Out: i8 (unsigned bytes less 128): the 64 bytes of four
//! steps of k are one `vpdpbusd` operand.

use crate::gemm::pack::PANEL;

/// Bytes of a packed K×N matrix; `usize::MAX` where that does not fit.
pub const fn packed_int8_len(k: usize, n: usize) -> usize {
    match (n.checked_next_multiple_of(PANEL), k.checked_next_multiple_of(4)) {
        (Some(columns), Some(rows)) => columns.saturating_mul(rows),
        _ => usize::MAX,
    }
}

/// A zero point of B as it counts for packed B: of unsigned B, where none is given, it is `packed_zero(0, false)`.
pub const fn packed_zero(zero: u8, signed: bool) -> i8 {
    (if signed { zero } else { zero ^ 0x80 }) as i8
}

/// Packs K×N (or, `transposed`, N×K) bytes with rows `stride` apart; `signed` says that they are i8.
///
/// Writes [`packed_int8_len`] bytes of `packed` and N rounded up to 16 of `sums`. Returns whether all slices were long
/// enough; if not, nothing is written.
pub fn pack_int8_into(
    packed: &mut [i8],
    sums: &mut [i32],
    b: &[u8],
    [k, n]: [usize; 2],
    stride: usize,
    transposed: bool,
    signed: bool,
) -> bool {
    let (rows, columns) = if transposed { (n, k) } else { (k, n) };
    let needed = match rows.checked_sub(1) {
        Some(last) if columns > 0 => last.checked_mul(stride).and_then(|x| x.checked_add(columns)),
        _ => Some(0),
    };
    let n_panels = n.div_ceil(PANEL);
    let (Some(needed), Some(packed)) = (needed, packed.get_mut(..packed_int8_len(k, n))) else { return false };
    if needed > b.len() || sums.len() < n_panels.saturating_mul(PANEL) {
        return false;
    }
    let k4 = k.div_ceil(4);
    packed.fill(0);
    sums[..n_panels * PANEL].fill(0);
    for column in 0..n {
        let (panel, lane) = (column / PANEL, column % PANEL);
        let out = &mut packed[panel * PANEL * 4 * k4..][..PANEL * 4 * k4];
        for row in 0..k {
            let at = if transposed { column * stride + row } else { row * stride + column };
            let value = packed_zero(b[at], signed);
            out[row / 4 * 4 * PANEL + lane * 4 + row % 4] = value;
            sums[column] += i32::from(value);
        }
    }
    true
}
