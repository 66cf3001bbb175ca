//! Which scale belongs to which element: per tensor, per axis, or per block along an axis.
//!
//! In: a tensor seen as `[outer, n, inner]`, a block length along `n`, and strides of the scales. Out: runs of elements
//! that lie side by side, with one scale for all or one each.
//! Invariant: the runs cover each element once; [`Scales::checked`] accepted the lengths of all operands before.

use crate::half::{bf16, f16};
use crate::{Fault, param_enum};

param_enum! {
    /// The precision in which a value meets its scale.
    pub enum Precision {
        /// `f32`.
        F32,
        /// IEEE 754 binary16: operands and result are rounded to it.
        F16,
        /// bfloat16: operands and result are rounded to it.
        Bf16,
    }
}

impl Precision {
    /// Rounds to the precision.
    #[inline(always)]
    pub fn round(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::F16 => f16::from_f32(x).to_f32(),
            Self::Bf16 => bf16::from_f32(x).to_f32(),
        }
    }
}

/// The scales' arrangement.
#[derive(Clone, Copy)]
pub struct Scales {
    /// Extents of the tensor.
    pub dims: [usize; 3],
    /// Elements along the middle axis that share a scale.
    pub block: usize,
    /// Strides of the scales over outer positions, blocks, and inner positions (there 0 or 1).
    pub strides: [usize; 3],
}

/// Elements side by side.
pub struct Run {
    /// First element.
    pub at: usize,
    /// Number of elements.
    pub len: usize,
    /// Index of the first one's scale.
    pub scale: usize,
    /// Whether each element has a scale of its own, the next one.
    pub each: bool,
}

impl Scales {
    /// Refuses operands of other lengths than the extents say.
    pub fn checked(self, x: usize, y: usize, scales: usize, zeros: Option<usize>) -> Result<Self, Fault> {
        let [outer, n, inner] = self.dims;
        let numel = outer.checked_mul(n).and_then(|v| v.checked_mul(inner)).ok_or(Fault::Descriptor)?;
        if x != numel || y != numel || self.block == 0 || self.strides[2] > 1 {
            return Err(Fault::Descriptor);
        }
        if numel == 0 {
            return Ok(self);
        }
        let reach = [outer, n.div_ceil(self.block), inner].into_iter().zip(self.strides);
        let last = reach.map(|(d, s)| (d - 1).checked_mul(s)).try_fold(0usize, |sum, v| sum.checked_add(v?));
        if last.is_some_and(|last| last < scales && zeros.is_none_or(|z| last < z)) {
            Ok(self)
        } else {
            Err(Fault::Descriptor)
        }
    }

    /// Visits all runs.
    #[inline(always)]
    pub fn runs(&self, mut f: impl FnMut(Run)) {
        let [outer, n, inner] = self.dims;
        if inner == 0 {
            return;
        }
        let each = self.strides[2] == 1 && inner > 1;
        for o in 0..outer {
            for (block, first) in (0..n).step_by(self.block).enumerate() {
                let len = self.block.min(n - first);
                let scale = o * self.strides[0] + block * self.strides[1];
                let at = (o * n + first) * inner;
                if each {
                    (0..len).for_each(|j| f(Run { at: at + j * inner, len: inner, scale, each }));
                } else {
                    f(Run { at, len: len * inner, scale, each });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn scale_of_each(s: Scales) -> Vec<usize> {
        let numel = s.dims.iter().product();
        let mut out = std::vec![usize::MAX; numel];
        s.runs(|r| {
            for i in 0..r.len {
                assert_eq!(out[r.at + i], usize::MAX);
                out[r.at + i] = r.scale + usize::from(r.each) * i;
            }
        });
        out
    }

    #[test]
    fn arrangements() {
        let per_tensor = Scales { dims: [1, 1, 4], block: 1, strides: [0; 3] };
        assert_eq!(scale_of_each(per_tensor), [0; 4]);
        let per_axis = Scales { dims: [2, 2, 2], block: 1, strides: [0, 1, 0] };
        assert_eq!(scale_of_each(per_axis), [0, 0, 1, 1, 0, 0, 1, 1]);
        let last_axis = Scales { dims: [2, 1, 3], block: 1, strides: [0, 0, 1] };
        assert_eq!(scale_of_each(last_axis), [0, 1, 2, 0, 1, 2]);
        let blocks = Scales { dims: [1, 3, 2], block: 2, strides: [4, 2, 1] };
        assert_eq!(scale_of_each(blocks), [0, 1, 0, 1, 2, 3]);
        let blocks_last = Scales { dims: [2, 3, 1], block: 2, strides: [2, 1, 1] };
        assert_eq!(scale_of_each(blocks_last), [0, 0, 1, 2, 2, 3]);
        assert!(blocks.checked(6, 6, 4, Some(4)).is_ok());
        assert!(blocks.checked(6, 6, 3, None).is_err());
        assert!(blocks.checked(6, 6, 4, Some(3)).is_err());
        assert!(Scales { block: 0, ..blocks }.checked(6, 6, 4, None).is_err());
    }
}
