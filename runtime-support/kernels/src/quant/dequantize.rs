//! Integers to floats: `y = (x − zero) · scale`.
//!
//! <https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html>

use super::scales::Scales;
use crate::{Elem, Fault, Isa, kernel, simd_fn};

kernel! {
    /// `x` is `[outer, n, inner]`; scales as in [`Quantize`](super::Quantize).
    pub struct Dequantize {
        operands { read x: Q, read scale: F, opt zero: Q, write y: F }
        nums { outer, n, inner, block, s_outer, s_n, s_inner }
    }
    entries {
        dequantize_u8_f32 { Q = u8, F = f32 } dequantize_i8_f32 { Q = i8, F = f32 }
        dequantize_u16_f32 { Q = u16, F = f32 } dequantize_i16_f32 { Q = i16, F = f32 }
        dequantize_i32_f32 { Q = i32, F = f32 } dequantize_f32_f32 { Q = f32, F = f32 }
    }
    body = dequantize;
}

/// What a tensor is dequantised from.
trait Code: Elem {
    /// `self − zero`.
    fn less(self, zero: Self) -> f32;
}

macro_rules! codes {
    ($($t:ty),*) => { $(impl Code for $t {
        #[inline(always)]
        fn less(self, zero: Self) -> f32 {
            (i32::from(self).wrapping_sub(i32::from(zero))) as f32
        }
    })* };
}
codes!(u8, i8, u16, i16, i32);

/// The values of small floats.
impl Code for f32 {
    #[inline(always)]
    fn less(self, zero: Self) -> f32 {
        self - zero
    }
}

fn dequantize<Q: Code>(
    isa: Isa,
    d: &Dequantize,
    x: &[Q],
    scale: &[f32],
    zero: Option<&[Q]>,
    y: &mut [f32],
) -> Result<(), Fault> {
    let scales = Scales { dims: [d.outer, d.n, d.inner], block: d.block, strides: [d.s_outer, d.s_n, d.s_inner] };
    let scales = scales.checked(x.len(), y.len(), scale.len(), zero.map(<[_]>::len))?;
    scales.runs(|r| {
        let (from, to) = (&x[r.at..r.at + r.len], &mut y[r.at..r.at + r.len]);
        if r.each {
            let scale = &scale[r.scale..r.scale + r.len];
            match zero {
                None => dequantize_each(isa, from, scale, to),
                Some(zero) => dequantize_each_from(isa, from, scale, &zero[r.scale..r.scale + r.len], to),
            }
        } else {
            dequantize_run(isa, from, scale[r.scale], zero.map_or(Q::default(), |z| z[r.scale]), to);
        }
    });
    Ok(())
}

simd_fn! {
    fn dequantize_run<S>[Q: Code][Q](_s, x: &[Q], scale: f32, zero: Q, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x.less(zero) * scale;
        }
    }
}

simd_fn! {
    fn dequantize_each<S>[Q: Code][Q](_s, x: &[Q], scale: &[f32], y: &mut [f32]) {
        for ((y, &x), &scale) in y.iter_mut().zip(x).zip(scale) {
            *y = x.less(Q::default()) * scale;
        }
    }
}

simd_fn! {
    fn dequantize_each_from<S>[Q: Code][Q](_s, x: &[Q], scale: &[f32], zero: &[Q], y: &mut [f32]) {
        for (((y, &x), &scale), &zero) in y.iter_mut().zip(x).zip(scale).zip(zero) {
            *y = x.less(zero) * scale;
        }
    }
}
