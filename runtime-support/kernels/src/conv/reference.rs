//! The convolution's definition as plain loops: the oracle of the tests.
//!
//! In: `[N, C, D, H, W]` (lower ranks with leading extents of 1), ONNX weights `[OC, C/groups, KD, KH, KW]`. Out:
//! `[N, OC, OD, OH, OW]`. Each output is summed in the order channel, then taps; `f32` without fused operations.

use core::ops::{Add, Mul};

/// Extents of a convolution or pool of up to three spatial dimensions; end padding follows from the output's extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowShape {
    /// Spatial extents of the input.
    pub x: [usize; 3],
    /// Spatial extents of the output.
    pub y: [usize; 3],
    /// Spatial extents of the kernel.
    pub kernel: [usize; 3],
    /// Strides.
    pub strides: [usize; 3],
    /// Dilations.
    pub dilations: [usize; 3],
    /// Padding at the start of each dimension.
    pub pads: [usize; 3],
}

impl WindowShape {
    /// The input position of a tap in one dimension, if it lies in the input.
    #[inline]
    pub fn at(&self, axis: usize, out: usize, tap: usize) -> Option<usize> {
        let i = (out * self.strides[axis] + tap * self.dilations[axis]).checked_sub(self.pads[axis])?;
        (i < self.x[axis]).then_some(i)
    }
}

/// `y[n][o] = bias[o] + Σ w[o][c][k] · x[n][group's c][window's k]`
///
/// Panics where a slice is shorter than its extents say.
pub fn conv_ref<T: Copy + Default + Add<Output = T> + Mul<Output = T>>(
    s: &WindowShape,
    [n, ic, oc, groups]: [usize; 4],
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    y: &mut [T],
) {
    let (icg, ocg) = (ic / groups, oc / groups);
    let [xd, xh, xw] = s.x;
    let [od, oh, ow] = s.y;
    let [kd, kh, kw] = s.kernel;
    for (at, out) in y[..n * oc * od * oh * ow].iter_mut().enumerate() {
        let (image, o) = (at / (oc * od * oh * ow), at / (od * oh * ow) % oc);
        let (z, r, q) = (at / (oh * ow) % od, at / ow % oh, at % ow);
        let mut sum = bias.map_or(T::default(), |b| b[o]);
        for c in 0..icg {
            let plane = (image * ic + o / ocg * icg + c) * xd;
            for tap in 0..kd * kh * kw {
                let (tz, ty, tx) = (tap / (kh * kw), tap / kw % kh, tap % kw);
                if let (Some(i), Some(j), Some(k)) = (s.at(0, z, tz), s.at(1, r, ty), s.at(2, q, tx)) {
                    sum = sum + x[((plane + i) * xh + j) * xw + k] * w[(o * icg + c) * kd * kh * kw + tap];
                }
            }
        }
        *out = sum;
    }
}
