//! Pooling: maximum, average and Lp norm over windows, on blocked and plain layouts, and over whole images.
mod blocked;
mod plain;
mod root;
#[cfg(all(test, feature = "alloc"))]
mod tests;

pub use blocked::*;
pub use plain::*;

crate::param_enum! {
    /// What a pool computes of its window.
    pub enum PoolKind {
        /// The greatest value; padding never wins.
        Max,
        /// The sum by the number of taps in the image.
        Average,
        /// The sum by the number of taps in the padded image (a window of ceil mode may reach beyond it).
        AverageWithPads,
        /// (Σ|x|^p)^(1/p)
        Lp,
    }
}

/// Taps `first..last` of `taps` whose position `start + t·dilation` lies in `low..high`.
#[inline(always)]
fn valid_taps(start: usize, taps: usize, dilation: usize, low: usize, high: usize) -> (usize, usize) {
    let first = low.saturating_sub(start).div_ceil(dilation).min(taps);
    let last = high.saturating_sub(start).div_ceil(dilation).clamp(first, taps);
    (first, last)
}
