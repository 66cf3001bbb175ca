//! Strided views for movement operators: strides, padding to the copy kernel's rank, merging of dimensions.

use super::view::{Result, wrong};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{CopyNd, Dtype, MAX_RANK, Operand};

/// Row-major strides in elements.
pub fn row_major(shape: &[Dim]) -> Vec<Dim> {
    let mut strides = vec![Dim::Const(1); shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].clone() * shape[i].clone();
    }
    strides
}

/// A copy between two strided views of the same extents.
pub struct StridedCopy {
    /// Extents.
    pub dims: Vec<Dim>,
    /// First element read.
    pub x_start: Dim,
    /// Strides of the reads, in elements; may be zero or negative.
    pub x_strides: Vec<Dim>,
    /// First element written.
    pub y_start: Dim,
    /// Strides of the writes.
    pub y_strides: Vec<Dim>,
}

impl StridedCopy {
    /// Joins neighbouring dimensions that both sides step through evenly, and drops extents of 1.
    fn merge(&mut self) {
        let mut i = 0;
        while i < self.dims.len() {
            if self.dims[i].is(1) {
                self.remove(i);
            } else if i > 0
                && self.x_strides[i - 1] == self.x_strides[i].clone() * self.dims[i].clone()
                && self.y_strides[i - 1] == self.y_strides[i].clone() * self.dims[i].clone()
            {
                self.dims[i] = self.dims[i - 1].clone() * self.dims[i].clone();
                self.remove(i - 1);
            } else {
                i += 1;
            }
        }
    }

    fn remove(&mut self, i: usize) {
        self.dims.remove(i);
        self.x_strides.remove(i);
        self.y_strides.remove(i);
    }

    /// Adds the copy's call.
    pub fn lower(mut self, cx: &mut LowerCx<'_>, dtype: Dtype, x: Operand<Dim>, y: Operand<Dim>) -> Result<()> {
        self.merge();
        let missing = MAX_RANK
            .checked_sub(self.dims.len())
            .ok_or_else(|| wrong(format!("a strided copy over {} dimensions", self.dims.len())))?;
        let fill = |v: Vec<Dim>, pad: i64| -> [Dim; MAX_RANK] {
            let mut v = v.into_iter();
            std::array::from_fn(|i| if i < missing { Dim::Const(pad) } else { v.next().unwrap_or(Dim::Const(pad)) })
        };
        let d = CopyNd {
            x,
            y,
            x_start: self.x_start,
            y_start: self.y_start,
            dims: fill(self.dims, 1),
            x_strides: fill(self.x_strides, 0),
            y_strides: fill(self.y_strides, 0),
        };
        cx.call(&[width_of(dtype)?], d)
    }
}
