//! Strided copy between two views: Transpose, Slice, Expand, Concat, Split, Tile, Pad's inner part, depth/space moves.
//!
//! In: `x` and signed element strides per dimension (0 repeats, negative reverses) from a start offset; `y` likewise.
//! Out: the elements of `y` that the view covers; others keep their bytes (so `y` is an `update` operand).
//! Invariant: dimensions are outermost first, unused ones have extent 1.

use crate::{Fault, Isa, kernel};

/// Most dimensions a strided view can have.
pub const MAX_RANK: usize = 8;

kernel! {
    /// `y[y_start + Σ i·y_strides] = x[x_start + Σ i·x_strides]` over all `i < dims`. Strides are in elements, two's complement.
    pub struct CopyNd {
        operands { read x: T, update y: T }
        nums { x_start, y_start }
        arrays { dims: 8, x_strides: 8, y_strides: 8 }
    }
    entries { copy_nd_b8 { T = u8 } copy_nd_b16 { T = u16 } copy_nd_b32 { T = u32 } copy_nd_b64 { T = u64 } }
    body = copy_nd;
}

fn copy_nd<T: Copy>(_: Isa, d: &CopyNd, x: &[T], y: &mut [T]) -> Result<(), Fault> {
    if d.dims.contains(&0) {
        return Ok(());
    }
    if !covers(x.len(), d.x_start, &d.dims, &d.x_strides) || !covers(y.len(), d.y_start, &d.dims, &d.y_strides) {
        return Err(Fault::Descriptor);
    }
    let (n, xs, ys) = (d.dims[7], d.x_strides[7], d.y_strides[7]);
    let mut idx = [0usize; 7];
    let (mut xo, mut yo) = (d.x_start, d.y_start);
    loop {
        if xs == 1 && ys == 1 {
            y[yo..yo + n].copy_from_slice(&x[xo..xo + n]);
        } else if xs == 0 && ys == 1 {
            y[yo..yo + n].fill(x[xo]);
        } else {
            for i in 0..n {
                y[yo.wrapping_add(i.wrapping_mul(ys))] = x[xo.wrapping_add(i.wrapping_mul(xs))];
            }
        }
        let mut axis = 7;
        loop {
            if axis == 0 {
                return Ok(());
            }
            axis -= 1;
            idx[axis] += 1;
            xo = xo.wrapping_add(d.x_strides[axis]);
            yo = yo.wrapping_add(d.y_strides[axis]);
            if idx[axis] < d.dims[axis] {
                break;
            }
            xo = xo.wrapping_sub(d.x_strides[axis].wrapping_mul(idx[axis]));
            yo = yo.wrapping_sub(d.y_strides[axis].wrapping_mul(idx[axis]));
            idx[axis] = 0;
        }
    }
}

/// Whether every element the view reaches lies in a slice of `len` elements.
fn covers(len: usize, start: usize, dims: &[usize; MAX_RANK], strides: &[usize; MAX_RANK]) -> bool {
    let (mut low, mut high) = (start as i128, start as i128);
    for (&n, &s) in dims.iter().zip(strides) {
        let reach = (n as i128 - 1) * i128::from(s as isize as i64);
        if reach < 0 { low += reach } else { high += reach }
    }
    low >= 0 && high < len as i128
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cx, Operand, Region, RunState};

    #[test]
    fn transposes_and_reverses() {
        let x = [1u8, 2, 3, 4, 5, 6];
        let mut y = [0u8; 6];
        let state = RunState::new();
        let regions = [Region::read(&x), Region::write(&mut y)];
        let cx = Cx::new(&regions, Isa::Scalar, &state, &[]);
        let d = CopyNd {
            x: Operand::at(0, 0, 6),
            y: Operand::at(1, 0, 6),
            x_start: 2,
            y_start: 0,
            dims: [1, 1, 1, 1, 1, 1, 3, 2],
            x_strides: [0, 0, 0, 0, 0, 0, 1usize.wrapping_neg(), 3],
            y_strides: [0, 0, 0, 0, 0, 0, 2, 1],
        };
        copy_nd_b8(&cx, &d);
        assert_eq!(state.fault(), None);
        assert_eq!(y, [3, 6, 2, 5, 1, 4]);
    }
}
