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
#[derive(Clone)]
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

    /// Adds the copy's calls: one, or, over more dimensions than the kernel has, one per index of the surplus ones.
    pub fn lower(mut self, cx: &mut LowerCx<'_>, dtype: Dtype, x: Operand<Dim>, y: Operand<Dim>) -> Result<()> {
        self.merge();
        if self.dims.iter().any(|d| d.is(0)) {
            return Ok(());
        }
        self.unroll(cx, width_of(dtype)?, &x, &y, MAX_CALLS)
    }

    fn unroll(
        mut self,
        cx: &mut LowerCx<'_>,
        width: Dtype,
        x: &Operand<Dim>,
        y: &Operand<Dim>,
        n_calls: i64,
    ) -> Result<()> {
        let Some(missing) = MAX_RANK.checked_sub(self.dims.len()) else {
            let smallest = (0..self.dims.len()).filter_map(|i| Some((self.dims[i].as_const()?, i))).min();
            let Some((n, i)) = smallest.filter(|(n, _)| *n <= n_calls) else {
                return Err(wrong(format!("a strided copy over {} dimensions", self.dims.len())));
            };
            let (xs, ys) = (self.x_strides[i].clone(), self.y_strides[i].clone());
            self.remove(i);
            for k in 0..n {
                let part = Self {
                    x_start: self.x_start.clone() + xs.clone() * Dim::Const(k),
                    y_start: self.y_start.clone() + ys.clone() * Dim::Const(k),
                    ..self.clone()
                };
                part.unroll(cx, width, x, y, n_calls / n)?;
            }
            return Ok(());
        };
        let fill = |v: Vec<Dim>, pad: i64| -> [Dim; MAX_RANK] {
            let mut v = v.into_iter();
            std::array::from_fn(|i| if i < missing { Dim::Const(pad) } else { v.next().unwrap_or(Dim::Const(pad)) })
        };
        let d = CopyNd {
            x: x.clone(),
            y: y.clone(),
            x_start: self.x_start,
            y_start: self.y_start,
            dims: fill(self.dims, 1),
            x_strides: fill(self.x_strides, 0),
            y_strides: fill(self.y_strides, 0),
        };
        cx.call(&[width], d)
    }
}

/// Calls that one strided copy may become.
const MAX_CALLS: i64 = 1024;

/// Writes the first element of `x` to the first `n` elements of `y`.
pub fn fill(cx: &mut LowerCx<'_>, dtype: Dtype, x: Operand<Dim>, y: Operand<Dim>, n: Dim) -> Result<()> {
    let copy = StridedCopy {
        dims: vec![n],
        x_start: Dim::Const(0),
        x_strides: vec![Dim::Const(0)],
        y_start: Dim::Const(0),
        y_strides: vec![Dim::Const(1)],
    };
    copy.lower(cx, dtype, x, y)
}

/// Evenly spaced elements of a row-major tensor.
pub struct Window {
    /// The tensor's extents.
    pub shape: Vec<Dim>,
    /// First position per axis.
    pub starts: Vec<Dim>,
    /// Distance of positions per axis; may be negative.
    pub steps: Vec<i64>,
    /// Number of positions per axis.
    pub dims: Vec<Dim>,
}

impl Window {
    /// All of a tensor.
    pub fn whole(shape: &[Dim]) -> Self {
        let n = shape.len();
        Self { shape: shape.to_vec(), starts: vec![Dim::Const(0); n], steps: vec![1; n], dims: shape.to_vec() }
    }

    /// Makes a result the window of an operand: a view where its elements lie side by side, else a copy.
    pub fn lower(self, cx: &mut LowerCx<'_>, input_idx: usize, output_idx: usize) -> Result<()> {
        let ty = cx.ty(input_idx)?;
        let y_strides = row_major(&self.dims);
        if self.dims.iter().any(|d| d.is(0)) {
            cx.y(output_idx)?;
            return Ok(());
        }
        let strides = row_major(&self.shape);
        let x_start: Dim = self.starts.iter().zip(&strides).map(|(a, s)| a.clone() * s.clone()).sum();
        let x_strides: Vec<Dim> = self.steps.iter().zip(strides).map(|(&k, s)| Dim::Const(k) * s).collect();
        let side_by_side = (0..self.dims.len()).all(|i| self.dims[i].is(1) || x_strides[i] == y_strides[i]);
        if side_by_side && let Some(at) = x_start.as_const().and_then(|at| u64::try_from(at).ok()) {
            return cx.view_at(output_idx, input_idx, at * ty.dtype.size_bytes() as u64);
        }
        let copy = StridedCopy { x_start, x_strides, y_start: Dim::Const(0), y_strides, dims: self.dims };
        let (x, y) = (cx.x(input_idx)?, cx.y(output_idx)?);
        copy.lower(cx, ty.dtype, x, y)
    }
}
