//! Clip: to between two bounds, each of one element, either perhaps absent.
//!
//! NaN stays NaN; a lower bound above the upper one gives the upper one.
//! <https://onnx.ai/onnx/operators/onnx__Clip.html>

use super::blocks::{Wide, map_blocks};
use crate::simd::{F32x16, LANES};
use crate::{Fault, Isa, bf16, f16, kernel, simd_fn};

kernel! {
    /// `y = min(max(x, lo), hi)`
    pub struct Clip {
        operands { alias x: T, opt lo: T, opt hi: T, write y: T }
        nums { n }
    }
    entries {
        clip_f32 { T = f32 } clip_f64 { T = f64 } clip_f16 { T = f16 } clip_bf16 { T = bf16 }
        clip_i8 { T = i8 } clip_i16 { T = i16 } clip_i32 { T = i32 } clip_i64 { T = i64 }
        clip_u8 { T = u8 } clip_u16 { T = u16 } clip_u32 { T = u32 } clip_u64 { T = u64 }
    }
    body = clip;
}

/// A type with a way to clip.
trait Limits: Wide {
    /// Clips all elements; an absent bound is none.
    fn clip(_: Isa, x: Option<&[Self]>, lo: Option<Self>, hi: Option<Self>, y: &mut [Self]) {
        let (lo, hi) = (lo.map(Self::widen), hi.map(Self::widen));
        map_blocks(x, y, |block| {
            // Comparisons with NaN are false: it passes.
            if let Some(lo) = lo {
                block.iter_mut().for_each(|v| *v = if *v < lo { lo } else { *v });
            }
            if let Some(hi) = hi {
                block.iter_mut().for_each(|v| *v = if *v > hi { hi } else { *v });
            }
        });
    }
}

macro_rules! by_blocks {
    ($($t:ty),*) => { $(impl Limits for $t {})* };
}
by_blocks!(f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64);

impl Limits for f32 {
    fn clip(isa: Isa, x: Option<&[f32]>, lo: Option<f32>, hi: Option<f32>, y: &mut [f32]) {
        let (n, out) = (y.len(), y.as_mut_ptr());
        let x = x.map_or(out.cast_const(), <[f32]>::as_ptr);
        // SAFETY: both have `n` elements; in place each vector is read before it is overwritten.
        unsafe { clip_f32s(isa, x, lo.unwrap_or(f32::NEG_INFINITY), hi.unwrap_or(f32::INFINITY), out, n) }
    }
}

simd_fn! {
    /// # Safety
    /// `x` is valid for reads and `y` for writes of `n` f32; they are one or do not overlap.
    unsafe fn clip_f32s<S>(s, x: *const f32, lo: f32, hi: f32, y: *mut f32, n: usize) {
        let (lo, hi) = (s.splat(lo), s.splat(hi));
        let whole = n / LANES * LANES;
        // SAFETY: indices stay below `n`.
        unsafe {
            for i in (0..whole).step_by(LANES) {
                hi.min(lo.max(s.load(x.add(i)))).store(y.add(i));
            }
            if whole < n {
                hi.min(lo.max(s.load_n(x.add(whole), n - whole))).store_n(y.add(whole), n - whole);
            }
        }
    }
}

fn clip<T: Limits>(
    isa: Isa,
    d: &Clip,
    x: Option<&[T]>,
    lo: Option<&[T]>,
    hi: Option<&[T]>,
    y: &mut [T],
) -> Result<(), Fault> {
    let bound = |b: Option<&[T]>| b.map(|b| b.first().copied().ok_or(Fault::Descriptor)).transpose();
    if y.len() != d.n || x.is_some_and(|x| x.len() != d.n) {
        return Err(Fault::Descriptor);
    }
    T::clip(isa, x, bound(lo)?, bound(hi)?, y);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_and_nan() {
        let at = || crate::Operand::at(0, 0, 0);
        let d = Clip { x: at(), lo: None, hi: None, y: at(), n: 19 };
        let mut x = [0.0f32; 19];
        for (i, x) in x.iter_mut().enumerate() {
            *x = i as f32 - 9.0;
        }
        x[3] = f32::NAN;
        for isa in Isa::supported() {
            for (lo, hi) in [(None, None), (Some(-2.0f32), None), (None, Some(2.0f32)), (Some(3.0), Some(-1.0))] {
                let want = x.map(|x| {
                    let x = lo.map_or(x, |lo| if x < lo { lo } else { x });
                    hi.map_or(x, |hi| if x > hi { hi } else { x })
                });
                let (lo, hi) = (lo.map(|v| [v]), hi.map(|v| [v]));
                let mut y = x;
                clip(isa, &d, None, lo.as_ref().map(|v| &v[..]), hi.as_ref().map(|v| &v[..]), &mut y).unwrap();
                assert!(y[3].is_nan());
                assert_eq!(y[4..], want[4..]);
            }
        }
        let mut y = [0i8; 2];
        let d = Clip { n: 2, ..d };
        clip(Isa::Scalar, &d, Some(&[-100, 100]), Some(&[-5]), Some(&[7]), &mut y).unwrap();
        assert_eq!(y, [-5, 7]);
        assert!(clip(Isa::Scalar, &d, Some(&[1]), None, None, &mut y).is_err());
    }
}
