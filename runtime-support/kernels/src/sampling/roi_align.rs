//! RoiAlign: regions of an image pooled to one size, sampled between pixels.
//!
//! In: `x` as `[batch, channels, h, w]`, regions as (x1, y1, x2, y2). Source: <https://arxiv.org/abs/1703.06870>,
//! <https://onnx.ai/onnx/operators/onnx__RoiAlign.html>

use super::real::{ImageElem, Real};
use crate::movement::{IndexElem, holds};
use crate::resize::Weight;
use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y` as `[n_regions, channels, oh, ow]`; `sampling` samples per bin and axis, 0 for as many as it has pixels.
    pub struct RoiAlign {
        operands { read x: T, read regions: T, read batch_indices: I, write y: T }
        nums { batch, channels, h, w, n_regions, oh, ow, sampling }
        params { scale: f32, half_pixel: bool, max: bool }
    }
    entries {
        roi_align_f32 { T = f32, I = i64 } roi_align_f64 { T = f64, I = i64 } roi_align_f16 { T = f16, I = i64 }
        roi_align_bf16 { T = bf16, I = i64 }
    }
    body = roi_align;
}

/// Most samples per bin and axis: more come only from regions that no image has.
const MAX_SAMPLES: usize = 1 << 12;

/// Where a sample reads along one axis: two positions and the weight of the second. `None` outside the image.
fn between<W: Real>(v: W, extent: usize) -> Option<(usize, usize, W)> {
    // A NaN is in no range.
    if !(v >= W::from_f64(-1.0) && v <= W::of(extent)) {
        return None;
    }
    let v = v.at_least(W::default());
    let low = v.to_usize();
    if low >= extent - 1 {
        return Some((extent - 1, extent - 1, W::default()));
    }
    Some((low, low + 1, v - W::of(low)))
}

fn roi_align<T: ImageElem>(
    _: Isa,
    d: &RoiAlign,
    x: &[T],
    regions: &[T],
    batch_indices: &[i64],
    y: &mut [T],
) -> Result<(), Fault> {
    let RoiAlign { batch, channels, h, w, n_regions, oh, ow, .. } = *d;
    if !holds(x.len(), &[batch, channels, h, w])
        || !holds(regions.len(), &[n_regions, 4])
        || batch_indices.len() < n_regions
        || !holds(y.len(), &[n_regions, channels, oh, ow])
    {
        return Err(Fault::Descriptor);
    }
    if h * w == 0 && n_regions * channels * oh * ow > 0 {
        return Err(Fault::ShapeMismatch);
    }
    let offset = T::W::from_f64(if d.half_pixel { 0.5 } else { 0.0 });
    let scale = T::W::from_f64(f64::from(d.scale));
    let (half, one) = (T::W::from_f64(0.5), T::W::from_f64(1.0));
    for r in 0..n_regions {
        let image = batch_indices[r].position(batch).ok_or(Fault::IndexOutOfRange)?;
        let edge = |k: usize| regions[4 * r + k].load() * scale - offset;
        let (left, top) = (edge(0), edge(1));
        let (mut width, mut height) = (edge(2) - left, edge(3) - top);
        if !d.half_pixel {
            (width, height) = (width.at_least(one), height.at_least(one));
        }
        let bin = [height / T::W::of(oh), width / T::W::of(ow)];
        let samples = bin.map(|b| {
            if d.sampling > 0 { d.sampling } else { (T::W::default() - (T::W::default() - b).floor()).to_usize() }
        });
        if samples.iter().any(|&n| n > MAX_SAMPLES) {
            return Err(Fault::BoundExceeded);
        }
        let [sy, sx] = samples;
        for ph in 0..oh {
            for pw in 0..ow {
                for c in 0..channels {
                    let x = &x[(image * channels + c) * h * w..][..h * w];
                    let (mut sum, mut greatest) = (T::W::default(), None);
                    for iy in 0..sy {
                        let v = top + T::W::of(ph) * bin[0] + (T::W::of(iy) + half) * bin[0] / T::W::of(sy);
                        let vertical = between(v, h);
                        for ix in 0..sx {
                            let u = left + T::W::of(pw) * bin[1] + (T::W::of(ix) + half) * bin[1] / T::W::of(sx);
                            let parts = match (vertical, between(u, w)) {
                                (Some((y0, y1, fy)), Some((x0, x1, fx))) => [
                                    (one - fy) * (one - fx) * x[y0 * w + x0].load(),
                                    (one - fy) * fx * x[y0 * w + x1].load(),
                                    fy * (one - fx) * x[y1 * w + x0].load(),
                                    fy * fx * x[y1 * w + x1].load(),
                                ],
                                _ => [T::W::default(); 4],
                            };
                            let [a, b, e, f] = parts;
                            sum = sum + (a + b + e + f);
                            let most = a.at_least(b).at_least(e).at_least(f);
                            greatest = Some(greatest.map_or(most, |g: T::W| g.at_least(most)));
                        }
                    }
                    let value = if d.max { greatest.unwrap_or_default() } else { sum / T::W::of((sy * sx).max(1)) };
                    y[((r * channels + c) * oh + ph) * ow + pw] = T::store(value);
                }
            }
        }
    }
    Ok(())
}
