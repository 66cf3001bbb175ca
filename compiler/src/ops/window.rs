//! Sliding windows of convolutions and pools: kernel, strides, dilations, padding, and the extents that come out.
//!
//! The formulas are those of the operator pages (<https://onnx.ai/onnx/operators/onnx__Conv.html>, `onnx__MaxPool.html`).

use super::view::{NodeView, Result, wrong};
use crate::ir::Dim;

/// Greatest kernel extent, stride, dilation or padding that is taken seriously.
const MAX: i64 = 1 << 31;

/// A window over the spatial axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Kernel extents.
    pub kernel: Vec<Dim>,
    /// Steps.
    pub strides: Vec<i64>,
    /// Distances between taps.
    pub dilations: Vec<i64>,
    /// Padding before each axis.
    pub pads_begin: Vec<Dim>,
    /// Padding after each axis.
    pub pads_end: Vec<Dim>,
}

/// What the attribute `auto_pad` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AutoPad {
    /// Explicit padding.
    NotSet,
    /// None at all.
    Valid,
    /// As much as keeps `ceil(in / stride)`, the odd one after.
    SameUpper,
    /// The same, the odd one before.
    SameLower,
}

/// The attribute `auto_pad`.
pub(crate) fn auto_pad(cx: &NodeView<'_>) -> Result<AutoPad> {
    Ok(match cx.text("auto_pad", "NOTSET")? {
        "NOTSET" | "" => AutoPad::NotSet,
        "VALID" => AutoPad::Valid,
        "SAME_UPPER" => AutoPad::SameUpper,
        "SAME_LOWER" => AutoPad::SameLower,
        other => return Err(wrong(format!("unknown value \"{other}\"")).at_attribute("auto_pad")),
    })
}

/// An INTS attribute with one number an axis, all within bounds.
pub(crate) fn per_axis(cx: &NodeView<'_>, name: &str, n: usize, default: i64, min: i64) -> Result<Vec<i64>> {
    let values = match cx.opt_ints(name)? {
        None => return Ok(vec![default; n]),
        Some(v) => v,
    };
    if values.len() != n {
        return Err(wrong(format!("expected {n} values, found {}", values.len())).at_attribute(name));
    }
    if let Some(v) = values.iter().find(|v| !(min..=MAX).contains(v)) {
        return Err(wrong(format!("{v} is not between {min} and {MAX}")).at_attribute(name));
    }
    Ok(values.to_vec())
}

impl Window {
    /// The window of a node over these spatial extents.
    pub(crate) fn of(cx: &NodeView<'_>, spatial: &[Dim], kernel: Vec<Dim>) -> Result<Self> {
        let n = spatial.len();
        let strides = per_axis(cx, "strides", n, 1, 1)?;
        let dilations = per_axis(cx, "dilations", n, 1, 1)?;
        let auto = auto_pad(cx)?;
        let mut pads_begin = vec![Dim::Const(0); n];
        let mut pads_end = pads_begin.clone();
        match auto {
            AutoPad::Valid => {}
            AutoPad::NotSet => {
                let pads = per_axis(cx, "pads", 2 * n, 0, 0)?;
                for i in 0..n {
                    pads_begin[i] = Dim::Const(pads[i]);
                    pads_end[i] = Dim::Const(pads[n + i]);
                }
            }
            AutoPad::SameUpper | AutoPad::SameLower => {
                for i in 0..n {
                    let effective = span(&kernel[i], dilations[i]);
                    let stride = Dim::Const(strides[i]);
                    // With steps of one the padding does not depend on the extent.
                    let total = if strides[i] == 1 && !spatial[i].is(0) {
                        effective - Dim::Const(1)
                    } else {
                        let out = spatial[i].ceil_div(&stride);
                        let needed = (out - Dim::Const(1)) * stride + effective - spatial[i].clone();
                        needed.at_least(&Dim::Const(0))
                    };
                    let small = total.floor_div(&Dim::Const(2));
                    let upper = auto == AutoPad::SameUpper;
                    pads_begin[i] = if upper { small } else { total.clone() - small };
                    pads_end[i] = total - pads_begin[i].clone();
                }
            }
        }
        Ok(Self { kernel, strides, dilations, pads_begin, pads_end })
    }

    /// Extents after the window has passed, which must fit at least once. With `ceil`, a last window may hang over, if it starts
    /// inside the input or the padding before it.
    pub(crate) fn output(&self, spatial: &[Dim], ceil: bool) -> Result<Vec<Dim>> {
        let is_short = |i: &usize| self.room(spatial, *i).as_const().is_some_and(|r| r < 0);
        match (0..spatial.len()).find(is_short) {
            Some(i) => Err(self.no_room(spatial, i)),
            None => Ok(self.windows(spatial, ceil)),
        }
    }

    /// What is left of an axis with its padding beside one window.
    fn room(&self, spatial: &[Dim], i: usize) -> Dim {
        spatial[i].clone() + self.pads_begin[i].clone() + self.pads_end[i].clone()
            - span(&self.kernel[i], self.dilations[i])
    }

    /// The error that a window does not fit an axis.
    pub(crate) fn no_room(&self, spatial: &[Dim], i: usize) -> crate::error::CompileError {
        let (effective, x) = (span(&self.kernel[i], self.dilations[i]), &spatial[i]);
        let (before, after) = (&self.pads_begin[i], &self.pads_end[i]);
        wrong(format!("a window of {effective} does not fit axis {}: {x} with padding {before} and {after}", i + 2))
    }

    /// The number of windows by the operator pages' formula: zero or less where none fits.
    pub(crate) fn windows(&self, spatial: &[Dim], ceil: bool) -> Vec<Dim> {
        let mut out = Vec::with_capacity(spatial.len());
        for (i, x) in spatial.iter().enumerate() {
            let room = self.room(spatial, i);
            let stride = Dim::Const(self.strides[i]);
            let mut n = if ceil { room.ceil_div(&stride) } else { room.floor_div(&stride) } + Dim::Const(1);
            if ceil {
                // Windows that start before the end: ceil((x + pad) / stride).
                n = n.at_most(&(x.clone() + self.pads_begin[i].clone()).ceil_div(&stride));
            }
            out.push(n);
        }
        out
    }

    /// Makes what the last windows reach over the end a part of the padding.
    pub(crate) fn pad_overhang(&mut self, spatial: &[Dim], out: &[Dim]) {
        for (i, (x, n)) in spatial.iter().zip(out).enumerate() {
            let reached =
                (n.clone() - Dim::Const(1)) * Dim::Const(self.strides[i]) + span(&self.kernel[i], self.dilations[i]);
            let beyond = reached - x.clone() - self.pads_begin[i].clone();
            self.pads_end[i] = beyond.at_least(&self.pads_end[i]);
        }
    }

    /// The kernel's extents, leading axes of extent 1 filled in.
    pub(crate) fn kernel3(&self) -> [Dim; 3] {
        three_dims(&self.kernel)
    }

    /// Padding before each axis, leading axes filled in.
    pub(crate) fn pads_begin3(&self) -> [Dim; 3] {
        filled(&self.pads_begin, 0)
    }

    /// Padding after each axis, leading axes filled in.
    pub(crate) fn pads_end3(&self) -> [Dim; 3] {
        filled(&self.pads_end, 0)
    }

    /// Three numbers from one a spatial axis, leading axes of extent 1 filled in.
    pub(crate) fn three(values: &[i64], fill: i64) -> [Dim; 3] {
        std::array::from_fn(|i| {
            (i + values.len()).checked_sub(3).and_then(|j| values.get(j)).map_or(Dim::Const(fill), |&v| Dim::Const(v))
        })
    }
}

/// Three extents from spatial ones, leading axes of extent 1 filled in.
pub(crate) fn three_dims(spatial: &[Dim]) -> [Dim; 3] {
    filled(spatial, 1)
}

fn filled(values: &[Dim], fill: i64) -> [Dim; 3] {
    std::array::from_fn(|i| {
        (i + values.len()).checked_sub(3).and_then(|j| values.get(j)).cloned().unwrap_or(Dim::Const(fill))
    })
}

/// Positions that a kernel's taps reach over.
pub(crate) fn span(kernel: &Dim, dilation: i64) -> Dim {
    (kernel.clone() - Dim::Const(1)) * Dim::Const(dilation) + Dim::Const(1)
}
