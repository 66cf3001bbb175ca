//! DeformConv's columns: the elements under every tap of every output position, read at offset places.
//!
//! In: `x` as `[batch, channels, dims…]`, offsets as `[batch, offset_groups, taps, rank, points]`, a mask as
//! `[batch, offset_groups, taps, points]`. Out: columns as `[batch, channels, taps, points]`, ready for a matrix product.
//! Elements outside the image are zero; between elements it is linear in every axis.
//! Source: <https://onnx.ai/onnx/operators/onnx__DeformConv.html>

use super::real::Real;
use crate::movement::holds;
use crate::{Fault, Isa, kernel};

kernel! {
    /// Axes in front of the last `rank` have extent 1.
    pub struct DeformColumns {
        operands { read x: T, read offset: T, opt mask: T, write columns: T }
        nums { batch, channels, offset_groups, rank }
        arrays { x_dims: 3, y_dims: 3, kernel: 3, strides: 3, dilations: 3, pads: 3 }
    }
    entries { deform_columns_f32 { T = f32 } deform_columns_f64 { T = f64 } }
    body = deform_columns;
}

/// The elements around a place with their weights; the first `n` count.
struct Taps<T> {
    at: [usize; 8],
    weight: [T; 8],
    n: usize,
}

/// The up to `2^3` elements of an image around a place.
fn taps<T: Real>(place: [T; 3], dims: [usize; 3]) -> Taps<T> {
    let mut taps = Taps { at: [0; 8], weight: [T::from_f64(1.0); 8], n: 1 };
    for (axis, &extent) in dims.iter().enumerate() {
        let low = place[axis].floor();
        let fraction = place[axis] - low;
        let low = low.to_i64();
        let mut next = Taps { at: [0; 8], weight: [T::default(); 8], n: 0 };
        for (at, w) in [(low, T::from_f64(1.0) - fraction), (low.saturating_add(1), fraction)] {
            let inside = usize::try_from(at).is_ok_and(|at| at < extent);
            if !inside || w == T::default() {
                continue;
            }
            for i in 0..taps.n {
                next.at[next.n] = taps.at[i] * extent + at as usize;
                next.weight[next.n] = taps.weight[i] * w;
                next.n += 1;
            }
        }
        taps = next;
    }
    taps
}

/// Where a tap lies for an output position, before its offset: in the image without padding.
fn rest<T: Real>(d: &DeformColumns, out: usize, tap: usize, axis: usize) -> T {
    let at = out.wrapping_mul(d.strides[axis]).wrapping_add(tap.wrapping_mul(d.dilations[axis]));
    T::of(at) - T::of(d.pads[axis])
}

/// An index of three axes from a flat one.
fn index(flat: usize, dims: [usize; 3]) -> [usize; 3] {
    [flat / dims[2] / dims[1], flat / dims[2] % dims[1], flat % dims[2]]
}

fn deform_columns<T: Real>(
    _: Isa,
    d: &DeformColumns,
    x: &[T],
    offset: &[T],
    mask: Option<&[T]>,
    columns: &mut [T],
) -> Result<(), Fault> {
    let DeformColumns { batch, channels, offset_groups, rank, x_dims, y_dims, kernel, .. } = *d;
    let [[x1, x2, x3], [y1, y2, y3], [k1, k2, k3]] = [x_dims, y_dims, kernel];
    let ok = (1..=3).contains(&rank)
        && offset_groups > 0
        && channels % offset_groups == 0
        && holds(x.len(), &[batch, channels, x1, x2, x3])
        && holds(offset.len(), &[batch, offset_groups, k1, k2, k3, rank, y1, y2, y3])
        && mask.is_none_or(|m| holds(m.len(), &[batch, offset_groups, k1, k2, k3, y1, y2, y3]))
        && holds(columns.len(), &[batch, channels, k1, k2, k3, y1, y2, y3]);
    if !ok {
        return Err(Fault::Descriptor);
    }
    let (plane, points, n_taps) = (x1 * x2 * x3, y1 * y2 * y3, k1 * k2 * k3);
    let share = channels / offset_groups;
    for group in 0..batch * offset_groups {
        for tap in 0..n_taps {
            let tap_at = index(tap, kernel);
            let row = group * n_taps + tap;
            for point in 0..points {
                let out = index(point, y_dims);
                let mut place = [T::default(); 3];
                for a in 3 - rank..3 {
                    let own = offset[(row * rank + a + rank - 3) * points + point];
                    place[a] = rest::<T>(d, out[a], tap_at[a], a) + own;
                }
                let near = taps(place, x_dims);
                let scale = mask.map_or(T::from_f64(1.0), |m| m[row * points + point]);
                for channel in group * share..(group + 1) * share {
                    let x = &x[channel * plane..][..plane];
                    let mut sum = T::default();
                    for (&at, &w) in near.at[..near.n].iter().zip(&near.weight) {
                        sum = sum + x[at] * w;
                    }
                    columns[(channel * n_taps + tap) * points + point] = sum * scale;
                }
            }
        }
    }
    Ok(())
}
