//! Kernels that sample images at computed places: GridSample, AffineGrid, DeformConv, RoiAlign, MaxRoiPool; Col2Im and
//! MaxUnpool, which put samples back.

mod affine_grid;
mod col2im;
mod deform;
mod grid_sample;
mod max_roi_pool;
mod max_unpool;
mod real;
mod roi_align;

pub use affine_grid::*;
pub use col2im::*;
pub use deform::*;
pub use grid_sample::*;
pub use max_roi_pool::*;
pub use max_unpool::*;
pub use roi_align::*;
