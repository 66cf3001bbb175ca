//! GridSample: an image read at the places a grid names, in up to three spatial dimensions.
//!
//! In: `x` as `[batch, channels, dims…]`, the grid as `[batch, points, rank]`, its coordinates in reverse order of the axes
//! and -1 to 1 along each. Out: `y` as `[batch, channels, points]`.
//! Source: <https://onnx.ai/onnx/operators/onnx__GridSample.html>

use super::real::{ImageElem, Real};
use crate::movement::holds;
use crate::resize::Weight;
use crate::{Fault, Isa, ResizeMode, bf16, f16, kernel, param_enum};

param_enum! {
    /// What lies outside the image.
    pub enum GridPadding {
        /// Zero.
        Zeros,
        /// The nearest element of the border.
        Border,
        /// The image, reflected at its border.
        Reflection,
    }
}

kernel! {
    /// `y[n, c, p]` = `x[n, c]` at `grid[n, p]`. Axes in front of the last `rank` have extent 1.
    pub struct GridSample {
        operands { read x: T, read grid: T, write y: T }
        nums { batch, channels, points, rank }
        arrays { dims: 3 }
        params { mode: ResizeMode, padding: GridPadding, align_corners: bool }
    }
    entries {
        grid_sample_f32 { T = f32, W = f32 } grid_sample_f64 { T = f64, W = f64 }
        grid_sample_f16 { T = f16, W = f32 } grid_sample_bf16 { T = bf16, W = f32 }
    }
    body = grid_sample;
}

/// Taps of one axis: positions and weights; the first `n` count.
struct Taps<W> {
    at: [usize; 4],
    weight: [W; 4],
    n: usize,
}

/// How one axis is read.
struct Axis {
    extent: usize,
    padding: GridPadding,
    align_corners: bool,
}

impl Axis {
    /// The borders at which coordinates reflect.
    fn borders<W: Real>(&self) -> [W; 2] {
        let half = W::from_f64(if self.align_corners { 0.0 } else { 0.5 });
        [W::default() - half, W::of(self.extent) - W::from_f64(1.0) + half]
    }

    fn reflect<W: Real>(&self, v: W) -> W {
        let [low, high] = self.borders::<W>();
        let range = high - low;
        if !(range > W::default()) {
            return low;
        }
        let (distance, below) = if v < low { (low - v, true) } else { (v - high, false) };
        if !(distance > W::default()) {
            return v;
        }
        let n = (distance / range).floor();
        let rest = distance - n * range;
        let even = n.to_i64() % 2 == 0;
        if even == below { low + rest } else { high - rest }
    }

    /// A whole position inside the axis; `None` where there is nothing.
    fn position<W: Real>(&self, at: i64) -> Option<usize> {
        let last = self.extent as i64 - 1;
        match self.padding {
            GridPadding::Zeros => (0..=last).contains(&at).then_some(at as usize),
            GridPadding::Border => Some(at.clamp(0, last) as usize),
            GridPadding::Reflection if (0..=last).contains(&at) => Some(at as usize),
            GridPadding::Reflection => Some(self.reflect(W::from_f64(at as f64)).to_i64().clamp(0, last) as usize),
        }
    }

    /// The taps for a grid coordinate.
    fn taps<W: Real>(&self, coordinate: W, mode: ResizeMode) -> Taps<W> {
        let (one, two, n) = (W::from_f64(1.0), W::from_f64(2.0), W::of(self.extent));
        let mut v = if self.align_corners {
            (coordinate + one) / two * (n - one)
        } else {
            ((coordinate + one) * n - one) / two
        };
        if mode == ResizeMode::Nearest {
            v = v.rint();
        }
        let [low, high] = self.borders::<W>();
        if v < low || v > high {
            match self.padding {
                GridPadding::Zeros => {}
                GridPadding::Border => v = v.at_least(W::default()).at_most(n - one),
                GridPadding::Reflection => v = self.reflect(v),
            }
        }
        let first = v.floor();
        let f = v - first;
        let first = first.to_i64();
        let (offset, count, weights) = match mode {
            ResizeMode::Nearest => (0, 1, [one; 4]),
            ResizeMode::Linear => (0, 2, [one - f, f, one, one]),
            ResizeMode::Cubic => (-1, 4, cubic(f)),
        };
        let mut taps = Taps { at: [0; 4], weight: [W::default(); 4], n: 0 };
        let first = if mode == ResizeMode::Nearest { v.to_i64() } else { first };
        for (k, &w) in (offset..).zip(&weights[..count]) {
            if let Some(at) = self.position::<W>(first.saturating_add(k)) {
                (taps.at[taps.n], taps.weight[taps.n]) = (at, w);
                taps.n += 1;
            }
        }
        taps
    }
}

/// Keys' weights with a = -0.75 at a fraction.
fn cubic<W: Real>(f: W) -> [W; 4] {
    let c = W::from_f64;
    let a = c(-0.75);
    let far = |x: W| ((a * x - c(5.0) * a) * x + c(8.0) * a) * x - c(4.0) * a;
    let near = |x: W| ((a + c(2.0)) * x - (a + c(3.0))) * x * x + c(1.0);
    [far(f + c(1.0)), near(f), near(c(1.0) - f), far(c(2.0) - f)]
}

fn grid_sample<T: ImageElem>(_: Isa, d: &GridSample, x: &[T], grid: &[T], y: &mut [T]) -> Result<(), Fault> {
    let GridSample { batch, channels, points, rank, dims, .. } = *d;
    let [depth, height, width] = dims;
    if rank == 0
        || rank > 3
        || !holds(x.len(), &[batch, channels, depth, height, width])
        || !holds(grid.len(), &[batch, points, rank])
        || !holds(y.len(), &[batch, channels, points])
    {
        return Err(Fault::Descriptor);
    }
    if batch * channels * points == 0 {
        return Ok(());
    }
    if dims.contains(&0) {
        return Err(Fault::ShapeMismatch);
    }
    let axis = |a: usize| Axis { extent: dims[a], padding: d.padding, align_corners: d.align_corners };
    let plane = depth * height * width;
    for n in 0..batch {
        for p in 0..points {
            let place = &grid[(n * points + p) * rank..][..rank];
            // Axes in front of the image's own read their only element.
            let mut taps = [0; 3].map(|_| Taps { at: [0; 4], weight: [T::W::from_f64(1.0); 4], n: 1 });
            for (k, coordinate) in place.iter().enumerate() {
                taps[2 - k] = axis(2 - k).taps(coordinate.load(), d.mode);
            }
            let (mut at, mut weight, mut count) = ([0usize; 64], [T::W::default(); 64], 0);
            let [a, b, c] = &taps;
            for i in 0..a.n {
                for j in 0..b.n {
                    for k in 0..c.n {
                        at[count] = (a.at[i] * height + b.at[j]) * width + c.at[k];
                        weight[count] = a.weight[i] * b.weight[j] * c.weight[k];
                        count += 1;
                    }
                }
            }
            for channel in n * channels..(n + 1) * channels {
                let x = &x[channel * plane..(channel + 1) * plane];
                let mut sum = T::W::default();
                for (&at, &w) in at[..count].iter().zip(&weight[..count]) {
                    sum = sum + x[at].load() * w;
                }
                y[channel * points + p] = T::store(sum);
            }
        }
    }
    Ok(())
}
