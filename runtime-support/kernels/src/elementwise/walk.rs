//! A walk over the rows of operands with broadcast strides.
//!
//! In: extents (outermost first, unused ones 1) and for each operand element strides, 0 where it repeats. Out: the
//! operands' offsets of one row after another, in row-major order. The row itself is left to the caller.
//! Invariant: after [`checked_numel`] accepted an operand, every offset of the walk lies inside it.

/// Dimensions of a broadcast operation, after neighbours that step evenly were joined.
pub const BROADCAST_RANK: usize = 8;

/// The extents.
pub type Extents = [usize; BROADCAST_RANK];

/// The number of elements, if an operand of each length holds every element that its strides reach.
pub fn checked_numel(dims: &Extents, operands: &[(usize, &Extents)]) -> Option<usize> {
    let numel = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    if numel == 0 {
        return Some(0);
    }
    for (len, strides) in operands {
        let mut last = 0usize;
        for (&n, &s) in dims.iter().zip(*strides) {
            last = last.checked_add((n - 1).checked_mul(s)?)?;
        }
        if last >= *len {
            return None;
        }
    }
    Some(numel)
}

/// Offsets of `K` operands, advanced over the outer `OUTER` dimensions.
pub struct Walk<'d, const K: usize, const OUTER: usize> {
    dims: &'d Extents,
    strides: [&'d Extents; K],
    idx: [usize; OUTER],
    /// Where the current row starts in each operand.
    pub at: [usize; K],
}

impl<'d, const K: usize, const OUTER: usize> Walk<'d, K, OUTER> {
    /// At the first row. No extent may be zero.
    #[inline(always)]
    pub fn new(dims: &'d Extents, strides: [&'d Extents; K]) -> Self {
        Self { dims, strides, idx: [0; OUTER], at: [0; K] }
    }

    /// To the next row; false after the last one.
    #[inline(always)]
    pub fn advance(&mut self) -> bool {
        let mut axis = OUTER;
        while axis > 0 {
            axis -= 1;
            self.idx[axis] += 1;
            let wrapped = self.idx[axis] == self.dims[axis];
            for k in 0..K {
                let stride = self.strides[k][axis];
                self.at[k] = if wrapped {
                    self.at[k].wrapping_sub(stride.wrapping_mul(self.dims[axis] - 1))
                } else {
                    self.at[k].wrapping_add(stride)
                };
            }
            if !wrapped {
                return true;
            }
            self.idx[axis] = 0;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    #[test]
    fn row_major_order() {
        let dims = [1, 1, 1, 1, 1, 2, 3, 4];
        let (a, b) = ([0, 0, 0, 0, 0, 12, 4, 1], [0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(checked_numel(&dims, &[(24, &a), (3, &b)]), Some(24));
        assert_eq!(checked_numel(&dims, &[(24, &a), (2, &b)]), None);
        assert_eq!(checked_numel(&[usize::MAX; 8], &[]), None);
        assert_eq!(checked_numel(&[0; 8], &[(0, &a)]), Some(0));
        let mut walk: Walk<'_, 2, 7> = Walk::new(&dims, [&a, &b]);
        let mut rows = Vec::new();
        loop {
            rows.push(walk.at);
            if !walk.advance() {
                break;
            }
        }
        assert_eq!(rows, [[0, 0], [4, 1], [8, 2], [12, 0], [16, 1], [20, 2]]);
    }
}
