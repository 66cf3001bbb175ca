//! Tables of one resized axis: for every output position its source positions and their weights.
//!
//! Positions are clamped to the axis; -1 in the first place says that the output is the extrapolation value. A weight of
//! zero never points at an element that another tap of the same output does not read, so that infinities do not spread.

use crate::{Fault, Isa, kernel, param_enum};

param_enum! {
    /// How values between positions are found.
    pub enum ResizeMode {
        /// The nearest position's value.
        Nearest,
        /// Linearly.
        Linear,
        /// By Keys' cubic convolution.
        Cubic,
    }
}

param_enum! {
    /// How positions of the output map to the input (`coordinate_transformation_mode`).
    pub enum Coordinates {
        /// `(x + ½) / scale - ½`
        HalfPixel,
        /// As `HalfPixel`, centres kept where the output was cut to whole positions.
        HalfPixelSymmetric,
        /// As `HalfPixel`, 0 for outputs of one position.
        PytorchHalfPixel,
        /// First to first, last to last.
        AlignCorners,
        /// The same over the resized axis's whole length, as the operator's text says; since opset 19 its data take the
        /// length before it is rounded down.
        AlignCornersWhole,
        /// `x / scale`
        Asymmetric,
        /// First and last position of a region given in parts of the axis.
        TfCropAndResize,
    }
}

param_enum! {
    /// Which neighbour is the nearest.
    pub enum NearestRounding {
        /// The lower one of two as near.
        PreferFloor,
        /// The upper one of two as near.
        PreferCeil,
        /// The lower one.
        Floor,
        /// The upper one.
        Ceil,
    }
}

/// What a table depends on beside the sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResizeRule {
    /// Interpolation.
    pub mode: ResizeMode,
    /// Coordinates.
    pub coordinates: Coordinates,
    /// Rounding of `Nearest`.
    pub rounding: NearestRounding,
    /// Keys' `a` of `Cubic`.
    pub cubic_a: f64,
    /// Whether positions outside the axis weigh nothing, rather than repeat its end.
    pub exclude_outside: bool,
    /// Whether the filter is stretched when sizes shrink.
    pub antialias: bool,
    /// Output size per input size; 0 takes it from the sizes.
    pub scale: f64,
}

kernel! {
    /// The table of one axis: `n_in` to `n_out` positions, `taps` entries each (the last ones may weigh nothing). `scales[at]` replaces the rule's scale (and
    /// must give `n_out`); the region is `roi[at] .. roi[at + n_roi]`.
    pub struct ResizeTable {
        operands { opt scales: S, opt roi: S, write index: I, write weight: W }
        nums { n_in, n_out, taps, at, n_roi }
        params {
            mode: ResizeMode, coordinates: Coordinates, rounding: NearestRounding, cubic_a: f64, exclude_outside: bool,
            antialias: bool, scale: f64
        }
    }
    entries { resize_table_f32 { W = f32, S = f32, I = i32 } resize_table_f64 { W = f64, S = f32, I = i32 } }
    body = resize_table_kernel;
}

/// A weight of a table.
pub trait Weight: Copy {
    /// Rounded.
    fn from_f64(v: f64) -> Self;
}

impl Weight for f32 {
    fn from_f64(v: f64) -> Self {
        v as f32
    }
}

impl Weight for f64 {
    fn from_f64(v: f64) -> Self {
        v
    }
}

fn resize_table_kernel<W: Weight>(
    _: Isa,
    d: &ResizeTable,
    scales: Option<&[f32]>,
    roi: Option<&[f32]>,
    index: &mut [i32],
    weight: &mut [W],
) -> Result<(), Fault> {
    let mut rule = ResizeRule {
        mode: d.mode,
        coordinates: d.coordinates,
        rounding: d.rounding,
        cubic_a: d.cubic_a,
        exclude_outside: d.exclude_outside,
        antialias: d.antialias,
        scale: d.scale,
    };
    if let Some(scales) = scales {
        let scale = *scales.get(d.at).ok_or(Fault::Descriptor)?;
        if scaled_size(d.n_in, scale) != Some(d.n_out) {
            return Err(Fault::ShapeMismatch);
        }
        rule.scale = f64::from(scale);
    }
    let region = match roi {
        None => [0.0, 1.0],
        Some(roi) => {
            let end = d.at.checked_add(d.n_roi).and_then(|i| roi.get(i)).ok_or(Fault::Descriptor)?;
            [f64::from(*roi.get(d.at).ok_or(Fault::Descriptor)?), f64::from(*end)]
        }
    };
    resize_table(&rule, d.n_in, d.n_out, d.taps, region, index, weight)
}

/// The output size of an axis: the product rounded down, in f32 as shape inference has it.
pub fn scaled_size(n_in: usize, scale: f32) -> Option<usize> {
    let n = n_in as f32 * scale;
    (n >= 0.0 && n < (1u64 << 40) as f32).then_some(n as usize)
}

/// Entries per output position.
pub fn resize_taps(mode: ResizeMode, antialias: bool, scale: f64) -> Option<usize> {
    let reach = match mode {
        ResizeMode::Nearest => return Some(1),
        ResizeMode::Linear => 1.0,
        ResizeMode::Cubic => 2.0,
    };
    let scale = if antialias && scale < 1.0 { scale } else { 1.0 };
    let taps = 2.0 - 2.0 * (floor(-reach / scale) + 1.0);
    (1.0..1e6).contains(&taps).then_some(taps as usize)
}

/// The greatest integer not above, for values far inside `i64`.
fn floor(x: f64) -> f64 {
    let t = x as i64 as f64;
    if t > x { t - 1.0 } else { t }
}

/// Fills `index[..n_out·taps]` and, unless the mode is nearest, `weight[..n_out·taps]`.
pub fn resize_table<W: Weight>(
    rule: &ResizeRule,
    n_in: usize,
    n_out: usize,
    taps: usize,
    region: [f64; 2],
    index: &mut [i32],
    weight: &mut [W],
) -> Result<(), Fault> {
    if n_out == 0 {
        return Ok(());
    }
    if n_in == 0 || i32::try_from(n_in).is_err() {
        return Err(Fault::ShapeMismatch);
    }
    let scale = if rule.scale > 0.0 { rule.scale } else { n_out as f64 / n_in as f64 };
    let len = n_out.checked_mul(taps).ok_or(Fault::Descriptor)?;
    let index = index.get_mut(..len).ok_or(Fault::Descriptor)?;
    if rule.mode == ResizeMode::Nearest {
        for (x, at) in index.chunks_exact_mut(taps.max(1)).enumerate() {
            let (v, outside) = source(rule.coordinates, scale, n_in, n_out, region, x);
            at[0] = if outside { -1 } else { nearest(rule.rounding, v, n_in) };
        }
        return Ok(());
    }
    let used = resize_taps(rule.mode, rule.antialias, scale).filter(|&n| n <= taps).ok_or(Fault::ShapeMismatch)?;
    let weight = weight.get_mut(..len).ok_or(Fault::Descriptor)?;
    let rows = index.chunks_exact_mut(taps).zip(weight.chunks_exact_mut(taps));
    for (x, (index, weight)) in rows.enumerate() {
        let (v, outside) = source(rule.coordinates, scale, n_in, n_out, region, x);
        let ((index, spare), (weight, light)) = (index.split_at_mut(used), weight.split_at_mut(used));
        weigh(rule, scale, v, n_in, index, weight);
        spare.fill(index[0]);
        light.fill(W::from_f64(0.0));
        if outside {
            index[0] = -1;
        }
    }
    Ok(())
}

/// Where an output position lies on the input axis, and whether that is outside the region's axis.
fn source(c: Coordinates, scale: f64, n_in: usize, n_out: usize, region: [f64; 2], x: usize) -> (f64, bool) {
    let (x, last, width) = (x as f64, n_in as f64 - 1.0, scale * n_in as f64);
    let half = (x + 0.5) / scale - 0.5;
    let v = match c {
        Coordinates::HalfPixel => half,
        Coordinates::HalfPixelSymmetric => n_in as f64 / 2.0 * (1.0 - n_out as f64 / width) + half,
        Coordinates::PytorchHalfPixel => {
            if n_out > 1 {
                half
            } else {
                0.0
            }
        }
        Coordinates::AlignCorners => {
            if width == 1.0 {
                0.0
            } else {
                x * last / (width - 1.0)
            }
        }
        Coordinates::AlignCornersWhole if n_out == 1 => 0.0,
        Coordinates::AlignCornersWhole => x * last / (n_out as f64 - 1.0),
        Coordinates::Asymmetric => x / scale,
        Coordinates::TfCropAndResize => {
            let [start, end] = region;
            let offset =
                if width == 1.0 { (end - start) * last / 2.0 } else { x * (end - start) * last / (width - 1.0) };
            let v = offset + start * last;
            return (v, !(0.0..=last).contains(&v));
        }
    };
    (v, false)
}

fn nearest(rounding: NearestRounding, v: f64, n_in: usize) -> i32 {
    let low = floor(v);
    let up = match rounding {
        NearestRounding::PreferFloor => v - low > 0.5,
        NearestRounding::PreferCeil => v - low >= 0.5,
        NearestRounding::Floor => false,
        NearestRounding::Ceil => v > low,
    };
    clamp(low as i64 + i64::from(up), n_in)
}

fn clamp(at: i64, n_in: usize) -> i32 {
    at.clamp(0, n_in as i64 - 1) as i32
}

/// One output's positions and weights.
fn weigh<W: Weight>(rule: &ResizeRule, scale: f64, v: f64, n_in: usize, index: &mut [i32], weight: &mut [W]) {
    let taps = index.len() as i64;
    let low = floor(v);
    let first = low as i64 - taps / 2 + 1;
    let stretch = if rule.antialias && scale < 1.0 { scale } else { 1.0 };
    let at = |t: i64| {
        let outside = first + t < 0 || first + t >= n_in as i64;
        if rule.exclude_outside && outside { 0.0 } else { filter(rule, ((first + t) as f64 - v) * stretch) }
    };
    let sum: f64 = (0..taps).map(at).sum();
    let sum = if (rule.antialias || rule.exclude_outside) && sum != 0.0 { sum } else { 1.0 };
    for (t, (index, weight)) in (0..).zip(index.iter_mut().zip(weight)) {
        let w = at(t) / sum;
        // `low` itself always weighs something unless the value lies at its upper neighbour.
        *index = clamp(if w == 0.0 { low as i64 } else { first + t }, n_in);
        *weight = W::from_f64(w);
    }
}

/// The filter at a distance.
fn filter(rule: &ResizeRule, x: f64) -> f64 {
    let x = x.abs();
    if rule.mode == ResizeMode::Linear {
        return (1.0 - x).max(0.0);
    }
    let a = rule.cubic_a;
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}
