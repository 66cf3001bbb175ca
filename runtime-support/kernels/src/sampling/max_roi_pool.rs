//! MaxRoiPool: the maxima of a region's bins, in whole pixels.
//!
//! Source: <https://arxiv.org/abs/1504.08083>, <https://onnx.ai/onnx/operators/onnx__MaxRoiPool.html>

use super::real::{ImageElem, Real};
use crate::movement::holds;
use crate::resize::Weight;
use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y` as `[n_regions, channels, oh, ow]`, regions as (batch, x1, y1, x2, y2); an empty bin is 0.
    pub struct MaxRoiPool {
        operands { read x: T, read regions: T, write y: T }
        nums { batch, channels, h, w, n_regions, oh, ow }
        params { scale: f32 }
    }
    entries {
        max_roi_pool_f32 { T = f32, W = f32 } max_roi_pool_f64 { T = f64, W = f64 }
        max_roi_pool_f16 { T = f16, W = f32 } max_roi_pool_bf16 { T = bf16, W = f32 }
    }
    body = max_roi_pool;
}

/// Half away from zero.
fn round<W: Real>(v: W) -> i64 {
    let half = W::from_f64(0.5);
    if v < W::default() { (v - half).to_i64() } else { (v + half).to_i64() }
}

fn max_roi_pool<T: ImageElem>(_: Isa, d: &MaxRoiPool, x: &[T], regions: &[T], y: &mut [T]) -> Result<(), Fault> {
    let MaxRoiPool { batch, channels, h, w, n_regions, oh, ow, .. } = *d;
    if !holds(x.len(), &[batch, channels, h, w])
        || !holds(regions.len(), &[n_regions, 5])
        || !holds(y.len(), &[n_regions, channels, oh, ow])
    {
        return Err(Fault::Descriptor);
    }
    let scale = T::W::from_f64(f64::from(d.scale));
    // The pixels of bin `i` of `n` in a region, cut to the image.
    let bin = |start: i64, end: i64, i: usize, n: usize, extent: usize| {
        let size = T::W::from_f64(end.saturating_sub(start).saturating_add(1).max(1) as f64) / T::W::of(n);
        let low = (T::W::of(i) * size).floor().to_i64();
        let high = (T::W::default() - (T::W::default() - T::W::of(i + 1) * size).floor()).to_i64();
        let cut = |v: i64| v.saturating_add(start).clamp(0, extent as i64) as usize;
        cut(low)..cut(high)
    };
    for (r, region) in regions.chunks_exact(5).take(n_regions).enumerate() {
        let image = region[0].load();
        if !(image >= T::W::default() && image < T::W::of(batch)) {
            return Err(Fault::IndexOutOfRange);
        }
        let image = image.to_usize();
        let [x1, y1, x2, y2] = [1, 2, 3, 4].map(|k| round(region[k].load() * scale));
        for c in 0..channels {
            let x = &x[(image * channels + c) * h * w..][..h * w];
            for ph in 0..oh {
                for pw in 0..ow {
                    let mut most = None;
                    for row in bin(y1, y2, ph, oh, h) {
                        for col in bin(x1, x2, pw, ow, w) {
                            let v = x[row * w + col].load();
                            most = Some(most.map_or(v, |m: T::W| m.at_least(v)));
                        }
                    }
                    y[((r * channels + c) * oh + ph) * ow + pw] = T::store(most.unwrap_or_default());
                }
            }
        }
    }
    Ok(())
}
