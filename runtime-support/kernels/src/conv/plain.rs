//! Convolution and its transpose over plain layouts: any rank up to three, any groups, strides, dilations and pads.
//!
//! In: `x` as `[N, C, D, H, W]` (lower ranks with leading extents of 1), weights as ONNX gives them. Out: `y` as
//! `[N, OC, OD, OH, OW]` with `y = activation(conv(x) + bias + residual)`; the residual may be `y`'s memory.
//! `f32` gathers input rows into scratch and sweeps vectors of pixels over them; other types go row by row and take no scratch.
//!
//! Invariant: units write disjoint elements of `y`, and each call writes its scratch before it reads it.

use super::band::copy_phase;
use super::geometry::at_least_1;
use super::sweep::{CHANNELS, Sums, Sweep, VECTORS, sums};
use super::{WindowShape, rows};
use crate::descriptor::part_end;
use crate::simd::LANES;
use crate::{Activation, Elem, Fault, Isa, PartOut, activation, kernel};

kernel! {
    /// Convolution; weights `[OC, C/groups, KD, KH, KW]`. Units `part_begin..part_end` of [`conv_plain_units`].
    /// Types other than `f32` take no activation.
    pub struct ConvPlain {
        operands { read x: T, read weights: T, opt bias: T, write_parts y: T, opt_alias residual: T, opt_write scratch: T }
        nums { n, ic, oc, groups, part_begin, part_end }
        arrays { x_dims: 3, y_dims: 3, kernel: 3, strides: 3, dilations: 3, pads: 3 }
        params { activation: Activation }
    }
    entries { conv_plain_f32 { T = f32 } conv_plain_f64 { T = f64 } conv_plain_i32 { T = i32 } }
    body = conv_plain;
}

kernel! {
    /// Transposed convolution; weights `[C, OC/groups, KD, KH, KW]`; output padding shows in `y_dims`. Units
    /// `part_begin..part_end` of [`conv_transpose_units`]. Types other than `f32` take no activation.
    pub struct ConvTranspose {
        operands { read x: T, read weights: T, opt bias: T, write_parts y: T, opt_alias residual: T, opt_write scratch: T }
        nums { n, ic, oc, groups, part_begin, part_end }
        arrays { x_dims: 3, y_dims: 3, kernel: 3, strides: 3, dilations: 3, pads: 3 }
        params { activation: Activation }
    }
    entries { conv_transpose_f32 { T = f32 } conv_transpose_f64 { T = f64 } conv_transpose_i32 { T = i32 } }
    body = conv_transpose;
}

macro_rules! shapes {
    ($($name:ident)*) => {$(
        impl $name {
            /// Spatial extents.
            pub const fn window(&self) -> WindowShape {
                WindowShape {
                    x: self.x_dims,
                    y: self.y_dims,
                    kernel: self.kernel,
                    strides: self.strides,
                    dilations: self.dilations,
                    pads: self.pads,
                }
            }
        }
    )*};
}
shapes!(ConvPlain ConvTranspose);

/// Element types of plain convolutions.
pub trait ConvElem: Elem {
    /// Runs a checked call.
    #[doc(hidden)]
    fn run(isa: Isa, call: PlainCall<'_, Self>) -> Result<(), Fault>;
}

/// One call, either way.
#[doc(hidden)]
pub struct PlainCall<'a, T> {
    pub(super) transposed: bool,
    pub(super) window: WindowShape,
    pub(super) n: usize,
    pub(super) ic: usize,
    pub(super) oc: usize,
    pub(super) groups: usize,
    pub(super) begin: usize,
    pub(super) end: usize,
    pub(super) activation: Activation,
    pub(super) x: &'a [T],
    pub(super) weights: &'a [T],
    pub(super) bias: Option<&'a [T]>,
    pub(super) y: PartOut<'a, T>,
    pub(super) residual: Option<Option<&'a [T]>>,
    pub(super) scratch: &'a mut [T],
}

macro_rules! bodies {
    ($($name:ident $desc:ident $transposed:literal)*) => {$(
        fn $name<T: ConvElem>(
            isa: Isa,
            d: &$desc,
            x: &[T],
            weights: &[T],
            bias: Option<&[T]>,
            y: PartOut<'_, T>,
            residual: Option<Option<&[T]>>,
            scratch: Option<&mut [T]>,
        ) -> Result<(), Fault> {
            let mut call = PlainCall {
                transposed: $transposed,
                window: d.window(),
                n: d.n,
                ic: d.ic,
                oc: d.oc,
                groups: d.groups,
                begin: d.part_begin,
                end: d.part_end,
                activation: d.activation,
                x,
                weights,
                bias,
                y,
                residual,
                scratch: scratch.unwrap_or_default(),
            };
            call.check()?;
            if call.begin == call.end { Ok(()) } else { T::run(isa, call) }
        }
    )*};
}
bodies!(conv_plain ConvPlain false conv_transpose ConvTranspose true);

impl<T> PlainCall<'_, T> {
    /// Whether extents fit together, do not overflow, and every operand is long enough.
    fn check(&mut self) -> Result<(), Fault> {
        let g = &self.window;
        let bounded = |xs: &[usize]| {
            xs.iter().try_fold(1usize, |a, &v| a.checked_mul(v.checked_add(1)?)).is_some_and(|p| p < 1 << 48)
        };
        let steps = [g.kernel, g.strides, g.dilations].iter().all(|d| d.iter().all(|&v| (1..1 << 32).contains(&v)));
        let channels = self.groups >= 1 && self.ic.is_multiple_of(self.groups) && self.oc.is_multiple_of(self.groups);
        let sane = steps
            && channels
            && g.pads.iter().all(|&v| v < 1 << 32)
            && (0..3).all(|a| bounded(&[g.y[a], g.strides[a]]) && bounded(&[g.kernel[a], g.dilations[a]]))
            && bounded(&[self.ic, self.oc, g.kernel[0], g.kernel[1], g.kernel[2]])
            && bounded(&[self.n, self.ic, g.x[0], g.x[1], g.x[2]])
            && bounded(&[self.n, self.oc, g.y[0], g.y[1], g.y[2]])
            && bounded(&[self.ic, g.kernel[0], g.kernel[1], g.y[2] + g.strides[2] + g.kernel[2] * g.dilations[2]]);
        if !sane {
            return Err(Fault::Descriptor);
        }
        let volume = |d: &[usize; 3]| d.iter().product::<usize>();
        let out = self.n * self.oc * volume(&g.y);
        let units = units(self.transposed, self.n, [self.ic, self.groups], g);
        self.end = part_end(self.end, units);
        let enough = self.x.len() >= self.n * self.ic * volume(&g.x)
            && self.weights.len() >= self.oc * (self.ic / self.groups) * volume(&g.kernel)
            && self.bias.is_none_or(|b| b.len() >= self.oc)
            && self.y.len() >= out
            && self.residual.flatten().is_none_or(|r| r.len() >= out);
        if enough && self.begin <= self.end && self.end <= units { Ok(()) } else { Err(Fault::Descriptor) }
    }
}

/// Rounds down where the dividend is negative.
pub(super) const fn div_floor(a: isize, b: isize) -> isize {
    a.div_euclid(b)
}

/// How a plain convolution is cut into bands of output pixels. In the transpose, "pixels" are those of one phase (output
/// position modulo stride), which are dense.
struct Plan {
    /// Phases of rows and columns that are computed apart.
    phases_y: usize,
    phases_x: usize,
    /// Dense pixels of a full row, and rows of the first (longest) phase.
    row_pixels: usize,
    rows: usize,
    /// Pixels and rows of a band.
    band_cols: usize,
    band_rows: usize,
    /// Column phases kept in scratch, and the leftmost input column relative to a band's first pixel.
    kept_phases: usize,
    base: isize,
    /// Columns from one row of a band to the next.
    pitch: usize,
    /// Elements of one phase of a gathered row.
    phase_len: usize,
    /// Gathered rows.
    gathered: usize,
}

/// Gathered input of a band: fits L2 beside weights.
const GATHERED_FLOATS: usize = 128 << 10;

impl Plan {
    const fn new(transposed: bool, icg: usize, g: &WindowShape) -> Self {
        let [_, oh, ow] = g.y;
        let [kd, kh, kw] = g.kernel;
        let [_, sy, sx] = g.strides;
        let dx = g.dilations[2];
        let (phases_y, phases_x) = if transposed { (sy, sx) } else { (1, 1) };
        let (rows, row_pixels) = (oh.div_ceil(phases_y), ow.div_ceil(phases_x));
        let (kept_phases, base, apron);
        if transposed {
            base = div_floor(g.pads[2] as isize - ((kw - 1) * dx) as isize, sx as isize);
            apron = ((sx - 1 + g.pads[2]) as isize / sx as isize - base) as usize;
            kept_phases = 1;
        } else {
            let span = (kw - 1) * dx;
            base = -(g.pads[2] as isize);
            apron = span / sx;
            kept_phases = if sx < span + 1 { sx } else { span + 1 };
        }
        let gathered = icg * kd * kh;
        let per_row = at_least_1(GATHERED_FLOATS / at_least_1(gathered * kept_phases));
        let most = if per_row < 64 { 64 } else { per_row / 64 * 64 };
        let (mut band_cols, mut band_rows) = (at_least_1(row_pixels), 1);
        if band_cols > most {
            band_cols = most;
        } else {
            // Short rows are joined until the vectors of a tile are full.
            band_rows = at_least_1(VECTORS * LANES / (band_cols + apron));
            if band_rows > rows {
                band_rows = at_least_1(rows);
            }
        }
        let pitch = band_cols + apron;
        let phase_len = band_rows * pitch + LANES + apron;
        Self {
            phases_y,
            phases_x,
            row_pixels,
            rows,
            band_cols,
            band_rows,
            kept_phases,
            base,
            pitch,
            phase_len,
            gathered,
        }
    }

    const fn bands_y(&self) -> usize {
        self.rows.div_ceil(self.band_rows)
    }

    const fn bands_x(&self) -> usize {
        self.row_pixels.div_ceil(self.band_cols)
    }

    const fn scratch_len(&self) -> usize {
        self.gathered * self.kept_phases * self.phase_len
    }

    /// Elements of scratch that are enough for every channel count and extent up to the given ones.
    const fn scratch_bound(transposed: bool, icg: usize, g: &WindowShape) -> usize {
        let widest = Self::new(transposed, icg, g);
        let apron = widest.pitch - widest.band_cols;
        let rows = widest.gathered * widest.kept_phases;
        // A band is one row, cut where the gathered rows are too long (with fewer channels: later), or short rows that
        // together fill a tile's vectors.
        let columns = if widest.row_pixels < 64 { widest.row_pixels } else { 64 };
        let cut = if rows * columns > GATHERED_FLOATS { rows * columns } else { GATHERED_FLOATS };
        let uncut = rows * at_least_1(widest.row_pixels);
        let tile = rows * VECTORS * LANES;
        let band = if cut < uncut { cut } else { uncut };
        (if band > tile { band } else { tile }) + rows * (2 * apron + LANES)
    }
}

/// Units: batch · groups · output depth · row phases · bands.
const fn units(transposed: bool, n: usize, [ic, groups]: [usize; 2], g: &WindowShape) -> usize {
    let plan = Plan::new(transposed, ic / at_least_1(groups), g);
    n * groups * g.y[0] * plan.phases_y * plan.bands_y() * plan.bands_x()
}

/// Units of work of a [`ConvPlain`].
pub const fn conv_plain_units(n: usize, ic: usize, groups: usize, window: &WindowShape) -> usize {
    units(false, n, [ic, groups], window)
}

/// Bytes of scratch that a [`ConvPlain`] of `f32` needs.
pub const fn conv_plain_scratch_bytes(ic: usize, groups: usize, window: &WindowShape) -> usize {
    Plan::new(false, ic / at_least_1(groups), window).scratch_len() * 4
}

/// Bytes of scratch that are enough for a [`ConvPlain`] of `f32` at every batch, channel count and input and output extent
/// up to those given.
pub const fn conv_plain_scratch_bound(ic: usize, groups: usize, most: &WindowShape) -> usize {
    Plan::scratch_bound(false, ic / at_least_1(groups), most) * 4
}

/// The same for a [`ConvTranspose`].
pub const fn conv_transpose_scratch_bound(ic: usize, groups: usize, most: &WindowShape) -> usize {
    Plan::scratch_bound(true, ic / at_least_1(groups), most) * 4
}

/// Units of work of a [`ConvTranspose`].
pub const fn conv_transpose_units(n: usize, ic: usize, groups: usize, window: &WindowShape) -> usize {
    units(true, n, [ic, groups], window)
}

/// Bytes of scratch that a [`ConvTranspose`] of `f32` needs.
pub const fn conv_transpose_scratch_bytes(ic: usize, groups: usize, window: &WindowShape) -> usize {
    Plan::new(true, ic / at_least_1(groups), window).scratch_len() * 4
}

/// One unit's place.
#[derive(Clone, Copy)]
struct Unit {
    image: usize,
    group: usize,
    depth: usize,
    phase: usize,
    row: usize,
    rows: usize,
    col: usize,
    cols: usize,
}

impl Unit {
    fn new<T>(c: &PlainCall<'_, T>, plan: &Plan, unit: usize) -> Self {
        let (rest, band_x) = (unit / plan.bands_x(), unit % plan.bands_x());
        let (rest, band_y) = (rest / plan.bands_y(), rest % plan.bands_y());
        let (rest, phase) = (rest / plan.phases_y, rest % plan.phases_y);
        let (rest, depth) = (rest / c.window.y[0], rest % c.window.y[0]);
        let (row, col) = (band_y * plan.band_rows, band_x * plan.band_cols);
        // Later phases may have one row less.
        let rows = c.window.y[1].saturating_sub(phase).div_ceil(plan.phases_y);
        Self {
            image: rest / c.groups,
            group: rest % c.groups,
            depth,
            phase,
            row,
            rows: plan.band_rows.min(rows.saturating_sub(row)),
            col,
            cols: plan.band_cols.min(plan.row_pixels - col),
        }
    }
}

/// Taps of one dimension that contribute to an output phase, and the input position they read.
pub(super) struct Taps {
    /// First tap, step between taps, number.
    pub(super) first: usize,
    pub(super) step: usize,
    pub(super) count: usize,
    /// Input position of the first tap at dense pixel 0, and what each further tap adds.
    pub(super) at: isize,
    pub(super) advance: isize,
}

impl Taps {
    /// Transposed: taps `k` with `phase + pad − k·dilation` divisible by the stride.
    fn transposed(g: &WindowShape, axis: usize, phase: usize) -> Self {
        Self::of_phase(phase, g.pads[axis], g.kernel[axis], g.strides[axis], g.dilations[axis])
    }

    /// The same from one dimension's extents.
    pub(super) fn of_phase(phase: usize, pad: usize, k: usize, stride: usize, dilation: usize) -> Self {
        let (s, d) = (stride as isize, dilation as isize);
        let origin = (phase + pad) as isize;
        let step = s / gcd(s, d);
        let first = (0..step.min(k as isize)).find(|t| (origin - t * d) % s == 0);
        let Some(first) = first else { return Self { first: 0, step: 1, count: 0, at: 0, advance: 0 } };
        Self {
            first: first as usize,
            step: step as usize,
            count: (k - first as usize).div_ceil(step as usize),
            at: (origin - first * d) / s,
            advance: -(step * d / s),
        }
    }

    /// Every tap of a convolution, from an output position.
    fn direct(g: &WindowShape, axis: usize, out: usize) -> Self {
        let at = (out * g.strides[axis]) as isize - g.pads[axis] as isize;
        Self { first: 0, step: 1, count: g.kernel[axis], at, advance: g.dilations[axis] as isize }
    }
}

const fn gcd(a: isize, b: isize) -> isize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl ConvElem for f32 {
    fn run(isa: Isa, mut c: PlainCall<'_, f32>) -> Result<(), Fault> {
        let plan = Plan::new(c.transposed, c.ic / c.groups, &c.window);
        if c.scratch.len() < plan.scratch_len() {
            return Err(Fault::Descriptor);
        }
        for unit in c.begin..c.end {
            let u = Unit::new(&c, &plan, unit);
            if u.rows == 0 {
                continue;
            }
            let g = c.window;
            let (zs, ys) = if c.transposed {
                let z = Taps::transposed(&g, 0, u.depth % g.strides[0]);
                let y = Taps::transposed(&g, 1, u.phase);
                (Taps { at: z.at + (u.depth / g.strides[0]) as isize, ..z }, Taps { at: y.at + u.row as isize, ..y })
            } else {
                (Taps::direct(&g, 0, u.depth), Taps::direct(&g, 1, u.row))
            };
            gather(&mut c, &plan, &u, &zs, &ys);
            for phase in 0..plan.phases_x {
                sweep_phase(isa, &mut c, &plan, &u, &zs, &ys, phase);
            }
        }
        Ok(())
    }
}

/// Copies the band's input rows to scratch as `[channel][depth tap][height tap][phase][row of the band][pitch]`.
fn gather(c: &mut PlainCall<'_, f32>, plan: &Plan, u: &Unit, zs: &Taps, ys: &Taps) {
    let g = &c.window;
    let [xd, xh, xw] = g.x;
    let icg = c.ic / c.groups;
    let (row_step, stride) = if c.transposed { (1, 1) } else { (g.strides[1], g.strides[2]) };
    let mut gathered = c.scratch.chunks_exact_mut(plan.phase_len);
    for channel in 0..icg {
        let volume = &c.x[(u.image * c.ic + u.group * icg + channel) * xd * xh * xw..][..xd * xh * xw];
        for z in 0..zs.count {
            let i = zs.at + z as isize * zs.advance;
            for y in 0..ys.count {
                for phase in 0..plan.kept_phases {
                    let Some(to) = gathered.next() else { return };
                    for row in 0..u.rows {
                        let j = ys.at + y as isize * ys.advance + (row * row_step) as isize;
                        let to = &mut to[row * plan.pitch..][..plan.pitch];
                        if (0..xd as isize).contains(&i) && (0..xh as isize).contains(&j) {
                            let from = &volume[(i as usize * xh + j as usize) * xw..][..xw];
                            let first = plan.base + (u.col * stride + phase) as isize;
                            copy_phase::<1>(from, to, first.max(0) as usize, (-first).max(0) as usize, stride);
                        } else {
                            to.fill(0.0);
                        }
                    }
                }
            }
        }
    }
}

/// Computes all channels of the group for one column phase of a band.
fn sweep_phase(isa: Isa, c: &mut PlainCall<'_, f32>, plan: &Plan, u: &Unit, zs: &Taps, ys: &Taps, phase: usize) {
    let g = c.window;
    let [_, kh, kw] = g.kernel;
    let taps = g.kernel.iter().product::<usize>();
    let (icg, ocg) = (c.ic / c.groups, c.oc / c.groups);
    let xs = if c.transposed { Taps::transposed(&g, 2, phase) } else { Taps::direct(&g, 2, 0) };
    // Pixels of this phase: the last phases may have one less.
    let cols = g.y[2].saturating_sub(phase).div_ceil(plan.phases_x).saturating_sub(u.col).min(u.cols);
    let (w_channel, w_input, w_first) = if c.transposed {
        (taps, ocg * taps, u.group * icg * ocg * taps)
    } else {
        (icg * taps, taps, u.group * ocg * icg * taps)
    };
    let w_tap = (zs.first * kh + ys.first) * kw + xs.first;
    let sx = g.strides[2];
    let (x_first, x_tap, phase_step, phases, x_wrap) = if c.transposed {
        ((xs.at - plan.base) as usize, xs.advance as usize, 0, 1, 0)
    } else {
        let dx = g.dilations[2];
        let wrap = 1usize.wrapping_sub(sx * plan.phase_len);
        (0, dx % sx * plan.phase_len + dx / sx, dx % sx, sx, wrap)
    };
    // A phase without taps sums nothing, wherever the pointers point.
    let counts = if zs.count * ys.count * xs.count == 0 { [0; 4] } else { [icg, zs.count, ys.count, xs.count] };
    let sweep = Sweep {
        x: c.scratch.as_ptr().wrapping_add(x_first),
        w: c.weights.as_ptr().wrapping_add(w_first + w_tap),
        counts,
        x_row: plan.kept_phases * plan.phase_len,
        x_tap,
        phase_step,
        phases,
        x_wrap,
        w_steps: [w_input, zs.step * kh * kw, ys.step * kw, xs.step],
        w_channel,
    };
    let out = Place {
        // Dense pixel (row, col) of the phase lies at (row·phases_y + phase, col·phases_x + phase).
        first: (u.depth * g.y[1] + u.row * plan.phases_y + u.phase) * g.y[2] + u.col * plan.phases_x + phase,
        row_step: plan.phases_y * g.y[2],
        col_step: plan.phases_x,
        volume: g.y.iter().product(),
        pitch: plan.pitch,
        cols,
        pixels: (u.rows - 1) * plan.pitch + cols,
    };
    if cols == 0 {
        return;
    }
    let mut tile: Sums = [[0.0; VECTORS * LANES]; CHANNELS];
    for o in (0..ocg).step_by(CHANNELS) {
        let channels = CHANNELS.min(ocg - o);
        let channel = u.group * ocg + o;
        let mut start = [0.0; CHANNELS];
        if let Some(bias) = c.bias {
            start[..channels].copy_from_slice(&bias[channel..channel + channels]);
        }
        let sweep = Sweep { w: sweep.w.wrapping_add(o * w_channel), ..sweep };
        for at in (0..out.pixels).step_by(VECTORS * LANES) {
            let n = (out.pixels - at).min(VECTORS * LANES);
            // SAFETY: `Plan` makes gathered rows long enough for whole vectors at every tap of the band's pixels; weights
            // of `channels` channels follow within the operand, whose length `check` compared with the extents.
            unsafe { sums(isa, &sweep, at, channels, n.div_ceil(LANES), &start, &mut tile) };
            for (i, sums) in tile[..channels].iter_mut().enumerate() {
                let volume = (u.image * c.oc + channel + i) * out.volume;
                out.finish(isa, c, volume, at, &mut sums[..n]);
            }
        }
    }
}

/// Where a band's pixels lie in an output volume.
struct Place {
    first: usize,
    row_step: usize,
    col_step: usize,
    volume: usize,
    pitch: usize,
    cols: usize,
    pixels: usize,
}

impl Place {
    /// Adds the residual, applies the activation, stores pixels `at..` of the band.
    fn finish(&self, isa: Isa, c: &mut PlainCall<'_, f32>, volume: usize, at: usize, sums: &mut [f32]) {
        if let Some(residual) = c.residual {
            self.runs(at, sums.len(), |out, i, n| {
                for k in 0..n {
                    let at = volume + out + k * self.col_step;
                    sums[i + k] += match residual {
                        Some(residual) => residual[at],
                        // SAFETY: a pixel of the unit, which is the part's alone.
                        None => unsafe { c.y.own(at..at + 1)[0] },
                    };
                }
            });
        }
        activation::apply(isa, c.activation, sums);
        self.runs(at, sums.len(), |out, i, n| {
            let at = volume + out;
            // SAFETY: pixels of the unit, which are the part's alone; between them may lie those of other phases.
            unsafe {
                if self.col_step == 1 {
                    c.y.own(at..at + n).copy_from_slice(&sums[i..i + n]);
                } else {
                    for k in 0..n {
                        let at = at + k * self.col_step;
                        c.y.own(at..at + 1)[0] = sums[i + k];
                    }
                }
            }
        });
    }

    /// Calls `f(output offset, index, length)` for each run of `at..at + n` that lies in one output row.
    fn runs(&self, at: usize, n: usize, mut f: impl FnMut(usize, usize, usize)) {
        let mut i = 0;
        while i < n {
            let (row, col) = ((at + i) / self.pitch, (at + i) % self.pitch);
            let len = (self.pitch - col).min(n - i);
            let inside = self.cols.saturating_sub(col).min(len);
            if inside > 0 {
                f(self.first + row * self.row_step + col * self.col_step, i, inside);
            }
            i += len;
        }
    }
}

macro_rules! by_rows {
    ($($t:ty)*) => {$(
        impl ConvElem for $t {
            fn run(_: Isa, c: PlainCall<'_, Self>) -> Result<(), Fault> {
                if c.activation != Activation::None {
                    return Err(Fault::Descriptor);
                }
                let plan = Plan::new(c.transposed, c.ic / c.groups, &c.window);
                let PlainCall { begin, end, .. } = c;
                let mut rows = rows::Rows::new(c);
                for unit in begin..end {
                    let u = Unit::new(rows.call(), &plan, unit);
                    for row in 0..u.rows {
                        let row = (u.row + row) * plan.phases_y + u.phase;
                        rows.run(u.image, u.group, u.depth, row, u.col * plan.phases_x, u.cols * plan.phases_x);
                    }
                }
                Ok(())
            }
        }
    )*};
}
by_rows!(f64 i32);

#[cfg(test)]
mod bounds {
    use super::*;

    /// Every channel count and size up to the greatest one finds room.
    #[test]
    fn scratch_bounds_hold_at_every_size() {
        for (k, stride, dilation, pad) in
            [(1, 1, 1, 0), (3, 1, 1, 1), (3, 2, 1, 1), (2, 2, 1, 0), (5, 3, 2, 4), (7, 2, 1, 3)]
        {
            for transposed in [false, true] {
                let at = |h: usize, w: usize| WindowShape {
                    x: [1, h, w],
                    y: [1, h, w],
                    kernel: [1, k, k],
                    strides: [1, stride, stride],
                    dilations: [1, dilation, dilation],
                    pads: [0, pad, pad],
                };
                for (most_c, most_h, most_w) in [(3, 300, 900), (64, 60, 400), (1024, 9, 130)] {
                    let bound = Plan::scratch_bound(transposed, most_c, &at(most_h, most_w));
                    for c in [1, 2, most_c / 3, most_c - 1, most_c] {
                        for (h, w) in (1..=most_h).step_by(5).flat_map(|h| (1..=most_w).map(move |w| (h, w))) {
                            let plan = Plan::new(transposed, c, &at(h, w));
                            assert!(
                                plan.scratch_len() <= bound,
                                "{c} {h} {w} of {most_c} {most_h} {most_w}, {k} {stride}"
                            );
                        }
                    }
                }
            }
        }
    }
}
