//! Convolution of 8-bit integers of any signs with zero points, exact in `i32`: the general form over plain layouts.
//!
//! Padding holds the input's zero point, so it adds nothing. Sums wrap.
//! <https://onnx.ai/onnx/operators/onnx__ConvInteger.html>

use super::Quantised;
use crate::conv::WindowShape;
use crate::{Fault, Isa, kernel, simd_fn};

kernel! {
    /// `x` is `[N, C, D, H, W]`, weights `[OC, C/groups, KD, KH, KW]`; `w_zero` is one, or one an output channel
    /// (`w_zero_channel` 1); the bias is added to the sums.
    pub struct IntConv {
        operands { read x: X, read weights: W, opt x_zero: X, opt w_zero: W, opt bias: Y, write y: Y }
        nums { n, ic, oc, groups, w_zero_channel }
        arrays { x_dims: 3, y_dims: 3, kernel: 3, strides: 3, dilations: 3, pads: 3 }
    }
    entries {
        int_conv_u8_u8 { X = u8, W = u8, Y = i32 } int_conv_u8_i8 { X = u8, W = i8, Y = i32 }
        int_conv_i8_u8 { X = i8, W = u8, Y = i32 } int_conv_i8_i8 { X = i8, W = i8, Y = i32 }
    }
    body = int_conv;
}

fn int_conv<X: Quantised, W: Quantised>(
    isa: Isa,
    d: &IntConv,
    x: &[X],
    weights: &[W],
    x_zero: Option<&[X]>,
    w_zero: Option<&[W]>,
    bias: Option<&[i32]>,
    y: &mut [i32],
) -> Result<(), Fault> {
    let volume = |lead: usize, dims: &[usize; 3]| dims.iter().try_fold(lead, |p, &v| p.checked_mul(v));
    let steps = [d.kernel, d.strides, d.dilations].iter().all(|a| a.iter().all(|&v| (1..1 << 32).contains(&v)));
    let extents = [d.x_dims, d.y_dims, d.pads].iter().all(|a| a.iter().all(|&v| v < 1 << 32));
    let channels = d.groups >= 1 && d.ic.is_multiple_of(d.groups) && d.oc.is_multiple_of(d.groups);
    if !steps || !extents || !channels || d.w_zero_channel > 1 {
        return Err(Fault::Descriptor);
    }
    let icg = d.ic / d.groups;
    let lens = [
        d.n.checked_mul(d.ic).and_then(|c| volume(c, &d.x_dims)),
        d.oc.checked_mul(icg).and_then(|c| volume(c, &d.kernel)),
        d.n.checked_mul(d.oc).and_then(|c| volume(c, &d.y_dims)),
    ];
    let [Some(x_len), Some(w_len), Some(y_len)] = lens else { return Err(Fault::Descriptor) };
    let zeros = if d.w_zero_channel == 1 { d.oc } else { 1 };
    let enough = x.len() == x_len
        && weights.len() == w_len
        && y.len() == y_len
        && x_zero.is_none_or(|z| !z.is_empty())
        && w_zero.is_none_or(|z| z.len() >= zeros)
        && bias.is_none_or(|b| b.len() >= d.oc);
    if !enough {
        return Err(Fault::Descriptor);
    }
    let window = WindowShape {
        x: d.x_dims,
        y: d.y_dims,
        kernel: d.kernel,
        strides: d.strides,
        dilations: d.dilations,
        pads: d.pads,
    };
    let call = Call {
        window,
        icg,
        x_zero: x_zero.map_or(0, |z| z[0].wide()),
        plane: d.x_dims[0] * d.x_dims[1] * d.x_dims[2],
        taps: d.kernel[0] * d.kernel[1] * d.kernel[2],
    };
    if y_len == 0 {
        return Ok(());
    }
    for (at, y) in y.chunks_exact_mut(y_len / (d.n * d.oc)).enumerate() {
        let (image, channel) = (at / d.oc, at % d.oc);
        let first = image * d.ic + channel / (d.oc / d.groups) * icg;
        let w = &weights[channel * icg * call.taps..][..icg * call.taps];
        let w_zero = w_zero.map_or(0, |z| z[channel * d.w_zero_channel].wide());
        y.fill(bias.map_or(0, |b| b[channel]));
        channel_sums(isa, &call, &x[first * call.plane..][..icg * call.plane], w, w_zero, y);
    }
    Ok(())
}

/// What all output channels share.
struct Call {
    window: WindowShape,
    icg: usize,
    x_zero: i32,
    plane: usize,
    taps: usize,
}

simd_fn! {
    /// Adds the products of one output channel.
    fn channel_sums<S>[X: Quantised, W: Quantised][X, W](
        _s, call: &Call, x: &[X], w: &[W], w_zero: i32, y: &mut [i32],
    ) {
        let g = &call.window;
        let [_, oh, ow] = g.y;
        for (row, y) in y.chunks_exact_mut(ow).enumerate() {
            let (depth, row) = (row / oh, row % oh);
            for c in 0..call.icg {
                for tap in 0..call.taps {
                    let (tz, rest) = (tap / (g.kernel[1] * g.kernel[2]), tap % (g.kernel[1] * g.kernel[2]));
                    let (ty, tx) = (rest / g.kernel[2], rest % g.kernel[2]);
                    let (Some(z), Some(r)) = (g.at(0, depth, tz), g.at(1, row, ty)) else { continue };
                    let from = c * call.plane + (z * g.x[1] + r) * g.x[2];
                    let w = w[c * call.taps + tap].wide() - w_zero;
                    let at = [g.strides[2], g.pads[2], tx * g.dilations[2]];
                    accumulate(&x[from..from + g.x[2]], call.x_zero, w, at, y);
                }
            }
        }
    }
}

/// `y[q] += w · (x[q·stride + tap − pad] − zero)` where that lies in `x`.
#[inline(always)]
fn accumulate<X: Quantised>(x: &[X], zero: i32, w: i32, [stride, pad, tap]: [usize; 3], y: &mut [i32]) {
    let first = pad.saturating_sub(tap).div_ceil(stride);
    let last = (x.len() + pad).saturating_sub(tap).div_ceil(stride).min(y.len());
    if first >= last {
        return;
    }
    let x = &x[first * stride + tap - pad..];
    let y = &mut y[first..last];
    if stride == 1 {
        for (y, x) in y.iter_mut().zip(x) {
            *y = y.wrapping_add(w.wrapping_mul(x.wide() - zero));
        }
    } else {
        for (y, x) in y.iter_mut().zip(x.iter().step_by(stride)) {
            *y = y.wrapping_add(w.wrapping_mul(x.wide() - zero));
        }
    }
}
