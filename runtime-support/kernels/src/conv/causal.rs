//! CausalConvWithState: a depthwise convolution over time that sees only the past, with the last inputs carried on.
//!
//! In: `x` as `[rows, length]` (a row is one channel of one batch entry), weights `[channels, taps]`, the row's last
//! `taps - 1` inputs. Out: `y` like `x`, and the state of the next call. A state written over the old one is moved in place.
//! Source: <https://onnx.ai/onnx/operators/onnx__CausalConvWithState.html>

use crate::movement::holds;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[r, t] = bias[c] + Σ_j w[c, j] · past_and_x[r, t + j]`, `c = r mod channels`; `present` are the last `taps - 1` of
    /// past and x. An absent past is zero.
    pub struct CausalConv {
        operands { read x: T, read w: T, opt bias: T, opt_alias past: T, write present: T, write y: T }
        nums { batch, channels, length, taps }
    }
    entries { causal_conv_f32 { T = f32 } }
    body = causal_conv;
}

fn causal_conv(
    _: Isa,
    d: &CausalConv,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    past: Option<Option<&[f32]>>,
    present: &mut [f32],
    y: &mut [f32],
) -> Result<(), Fault> {
    let CausalConv { batch, channels, length, taps, .. } = *d;
    let n_state = taps.checked_sub(1).ok_or(Fault::Descriptor)?;
    let ok = holds(x.len(), &[batch, channels, length])
        && x.len() == y.len()
        && holds(w.len(), &[channels, taps])
        && bias.is_none_or(|b| b.len() == channels)
        && holds(present.len(), &[batch, channels, n_state])
        && past.flatten().is_none_or(|p| p.len() == present.len());
    if !ok {
        return Err(Fault::Descriptor);
    }
    for row in 0..batch * channels {
        let c = row % channels;
        let (x, y) = (&x[row * length..][..length], &mut y[row * length..][..length]);
        let state = &mut present[row * n_state..][..n_state];
        match past {
            None => state.fill(0.0),
            Some(None) => {}
            Some(Some(past)) => state.copy_from_slice(&past[row * n_state..][..n_state]),
        }
        y.fill(bias.map_or(0.0, |b| b[c]));
        for (j, &w) in w[c * taps..][..taps].iter().enumerate() {
            // The tap reads `n_state - j` elements of the state before it reads x.
            let n_old = (n_state - j).min(length);
            let (old, new) = y.split_at_mut(n_old);
            old.iter_mut().zip(&state[j..]).for_each(|(y, s)| *y += w * s);
            new.iter_mut().zip(x).for_each(|(y, x)| *y += w * x);
        }
        let kept = n_state.saturating_sub(length);
        state.copy_within(n_state - kept.., 0);
        state[kept..].copy_from_slice(&x[length - (n_state - kept)..]);
    }
    Ok(())
}
