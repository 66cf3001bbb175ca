//! DFT along an axis, and STFT of frames.
//!
//! In: real (one element) or complex (two) signals. Out: spectra, whole or up to the middle; inverse ones divided by the
//! length.

use super::fft::Fft;
use crate::real::Real;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `x` is `[outer, n_in, inner, x_parts]`, `y` `[outer, n_out, inner, y_parts]`; the transform has length `n`: shorter
    /// signals are filled up with zeros, longer ones cut. With `half_in`, `x` is the first half of a symmetric spectrum.
    pub struct Dft {
        operands { read x: T, write y: T, write scratch: F }
        nums { outer, n_in, inner, n, n_out, x_parts, y_parts }
        params { inverse: bool, half_in: bool }
    }
    entries { dft_f32 { T = f32, F = f64 } dft_f64 { T = f64, F = f64 } }
    body = dft;
}

fn dft<T: Real>(_: Isa, d: &Dft, x: &[T], y: &mut [T], scratch: &mut [f64]) -> Result<(), Fault> {
    let len = |n: usize, parts: usize| [n, d.inner, parts].iter().try_fold(d.outer, |l, &d| l.checked_mul(d));
    let parts_ok = [d.x_parts, d.y_parts].iter().all(|p| (1..=2).contains(p));
    if len(d.n_in, d.x_parts) != Some(x.len()) || len(d.n_out, d.y_parts) != Some(y.len()) || !parts_ok || d.n_out > d.n
    {
        return Err(Fault::Descriptor);
    }
    if y.is_empty() {
        return Ok(());
    }
    let mut fft = Fft::new(d.n, scratch).ok_or(Fault::Descriptor)?;
    let scale = if d.inverse { 1.0 / d.n as f64 } else { 1.0 };
    for o in 0..d.outer {
        for i in 0..d.inner {
            let at = |k: usize| ((o * d.n_in + k) * d.inner + i) * d.x_parts;
            let part = |k: usize, p: usize| if k < d.n_in && p < d.x_parts { x[at(k) + p].get() } else { 0.0 };
            for k in 0..d.n {
                let mirrored = d.half_in && k > d.n / 2;
                let from = if mirrored { d.n - k } else { k };
                let (re, im) = (part(from, 0), part(from, 1));
                // The ends of half a spectrum are real.
                let real = d.half_in && (from == 0 || 2 * from == d.n);
                fft.re[k] = re;
                fft.im[k] = if real {
                    0.0
                } else if mirrored {
                    -im
                } else {
                    im
                };
            }
            // Complex signals are transformed in their own precision where their length allows, real ones in f64.
            let round = |x: f64| T::put(x).get();
            if d.x_parts == 1 || d.half_in || !fft.run_rounded(d.inverse, round) {
                fft.run(d.inverse);
            }
            for k in 0..d.n_out {
                let to = ((o * d.n_out + k) * d.inner + i) * d.y_parts;
                y[to] = T::put(fft.re[k] * scale);
                if d.y_parts == 2 {
                    y[to + 1] = T::put(fft.im[k] * scale);
                }
            }
        }
    }
    Ok(())
}

kernel! {
    /// `x` is `[batch, len, parts]`, `y` `[batch, frames, n_out, 2]`: the transform of `n` elements from each multiple of
    /// `step` on, times the window.
    pub struct Stft {
        operands { read x: T, opt window: T, write y: T, write scratch: F }
        nums { batch, len, parts, frames, step, n, n_out }
    }
    entries { stft_f32 { T = f32, F = f64 } stft_f64 { T = f64, F = f64 } }
    body = stft;
}

fn stft<T: Real>(
    _: Isa,
    d: &Stft,
    x: &[T],
    window: Option<&[T]>,
    y: &mut [T],
    scratch: &mut [f64],
) -> Result<(), Fault> {
    let x_len = d.batch.checked_mul(d.len).and_then(|n| n.checked_mul(d.parts));
    let y_len = [d.frames, d.n_out, 2].iter().try_fold(d.batch, |l, &d| l.checked_mul(d));
    let last = d.frames.saturating_sub(1).checked_mul(d.step).and_then(|l| l.checked_add(d.n));
    if x_len != Some(x.len())
        || y_len != Some(y.len())
        || !(1..=2).contains(&d.parts)
        || (d.frames > 0 && last.is_none_or(|l| l > d.len))
        || d.n_out > d.n
        || window.is_some_and(|w| w.len() > d.n)
    {
        return Err(Fault::Descriptor);
    }
    if y.is_empty() {
        return Ok(());
    }
    let mut fft = Fft::new(d.n, scratch).ok_or(Fault::Descriptor)?;
    for (frame, y) in y.chunks_exact_mut(2 * d.n_out).enumerate() {
        let (b, f) = (frame / d.frames, frame % d.frames);
        let x = &x[(b * d.len + f * d.step) * d.parts..][..d.n * d.parts];
        for k in 0..d.n {
            let w = window.map_or(1.0, |w| w.get(k).map_or(0.0, |w| w.get()));
            fft.re[k] = x[k * d.parts].get() * w;
            fft.im[k] = if d.parts == 2 { x[k * 2 + 1].get() * w } else { 0.0 };
        }
        fft.run(false);
        for (k, y) in y.chunks_exact_mut(2).enumerate() {
            (y[0], y[1]) = (T::put(fft.re[k]), T::put(fft.im[k]));
        }
    }
    Ok(())
}
