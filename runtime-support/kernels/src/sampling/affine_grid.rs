//! AffineGrid: the places that affine maps send an even grid to.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__AffineGrid.html>

use crate::movement::holds;
use crate::resize::sample::Sample;
use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y[n, d, h, w, r] = Σ_k theta[n, r, k] · (x, y, (z), 1)[k]`, the position of (d, h, w) between -1 and 1. `dims` has
    /// extent 1 in front for two dimensions.
    pub struct AffineGrid {
        operands { read theta: T, write y: T }
        nums { batch, rank }
        arrays { dims: 3 }
        params { align_corners: bool }
    }
    entries {
        affine_grid_f32 { T = f32 } affine_grid_f64 { T = f64 } affine_grid_f16 { T = f16 } affine_grid_bf16 { T = bf16 }
    }
    body = affine_grid;
}

/// Elements as f64.
trait Wide: Copy {
    fn wide(self) -> f64;
    fn narrow(v: f64) -> Self;
}

macro_rules! wide {
    ($($t:ty = $w:ty),*) => { $(impl Wide for $t {
        fn wide(self) -> f64 {
            let v: $w = self.load();
            v.into()
        }
        fn narrow(v: f64) -> Self {
            <Self as Sample<$w>>::store(v as $w)
        }
    })* };
}
wide!(f32 = f32, f64 = f64, f16 = f32, bf16 = f32);

fn affine_grid<T: Wide>(_: Isa, d: &AffineGrid, theta: &[T], y: &mut [T]) -> Result<(), Fault> {
    let AffineGrid { batch, rank, dims: [depth, height, width], .. } = *d;
    if !(rank == 2 || rank == 3)
        || !holds(theta.len(), &[batch, rank, rank + 1])
        || !holds(y.len(), &[batch, depth, height, width, rank])
    {
        return Err(Fault::Descriptor);
    }
    let position = |i: usize, n: usize| {
        if !d.align_corners {
            (2 * i + 1) as f64 / n as f64 - 1.0
        } else if n > 1 {
            2.0 * i as f64 / (n - 1) as f64 - 1.0
        } else {
            0.0
        }
    };
    let mut at = 0;
    for n in 0..batch {
        let theta = &theta[n * rank * (rank + 1)..][..rank * (rank + 1)];
        for z in 0..depth {
            for row in 0..height {
                for col in 0..width {
                    let place = [position(col, width), position(row, height), position(z, depth)];
                    for theta in theta.chunks_exact(rank + 1) {
                        let sum = theta.iter().zip(&place[..rank]).map(|(t, p)| t.wide() * p).sum::<f64>();
                        y[at] = T::narrow(sum + theta[rank].wide());
                        at += 1;
                    }
                }
            }
        }
    }
    Ok(())
}
