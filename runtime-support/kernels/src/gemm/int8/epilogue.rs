//! From sums of u8×i8 products to C: zero points, bias, then i32 as they are, f32 scaled, or 8 bits rounded and saturated.
//!
//! In: a tile of raw sums. Out: its rows of C. Rounding is to nearest, ties to even, as ONNX's QuantizeLinear has it.

use super::{Int8Operands, Int8Params};
use crate::activation::Activation;
use crate::gemm::pack::PANEL;
use crate::simd::{F32x16, LANES};
use crate::simd_fn;
use core::ops::Range;

/// How sums become f32 or 8 bits; C of i32 uses none of it.
#[derive(Clone, Copy, Debug)]
pub struct Scaling<'a> {
    /// A's scale.
    pub a_scale: f32,
    /// B's scale: one, or one for each column.
    pub b_scale: &'a [f32],
    /// C's scale. The factor of a column is `a_scale · b_scale / c_scale`, rounded in this order.
    pub c_scale: f32,
    /// Added to f32, for each column; or empty.
    pub bias: &'a [f32],
    /// Applied to the f32.
    pub activation: Activation,
    /// Added after rounding to 8 bits.
    pub c_zero: i32,
}

impl Scaling<'_> {
    /// For C of i32.
    pub const NONE: Scaling<'static> =
        Scaling { a_scale: 1.0, b_scale: &[1.0], c_scale: 1.0, bias: &[], activation: Activation::None, c_zero: 0 };

    pub(super) fn fits(&self, n: usize) -> bool {
        (self.b_scale.len() == 1 || self.b_scale.len() >= n) && (self.bias.is_empty() || self.bias.len() >= n)
    }
}

/// Element types of C.
pub trait Quantized: Copy + 'static {
    /// Whether sums are scaled; if not, they are C.
    const SCALED: bool;
    /// As a zero point.
    fn zero(self) -> i32;
    /// From an exact sum.
    fn from_sum(sum: i32) -> Self;
    /// From a scaled value; `rounded` is it as the nearest integer (`i32::MIN` if beyond i32).
    fn from_scaled(value: f32, rounded: i32, zero: i32) -> Self;
}

impl Quantized for i32 {
    const SCALED: bool = false;
    #[inline(always)]
    fn zero(self) -> i32 {
        self
    }
    #[inline(always)]
    fn from_sum(sum: i32) -> Self {
        sum
    }
    #[inline(always)]
    fn from_scaled(_: f32, rounded: i32, _: i32) -> Self {
        rounded
    }
}

impl Quantized for f32 {
    const SCALED: bool = true;
    #[inline(always)]
    fn zero(self) -> i32 {
        0
    }
    #[inline(always)]
    fn from_sum(sum: i32) -> Self {
        sum as Self
    }
    #[inline(always)]
    fn from_scaled(value: f32, _: i32, _: i32) -> Self {
        value
    }
}

macro_rules! eight_bits {
    ($($type:ty),*) => {$(
        impl Quantized for $type {
            const SCALED: bool = true;
            #[inline(always)]
            fn zero(self) -> i32 {
                self.into()
            }
            #[inline(always)]
            fn from_sum(sum: i32) -> Self {
                sum.clamp(Self::MIN.into(), Self::MAX.into()) as Self
            }
            #[inline(always)]
            fn from_scaled(_: f32, rounded: i32, zero: i32) -> Self {
                // `rounded` was limited to ±2^20 before it was converted.
                (rounded + zero).clamp(Self::MIN.into(), Self::MAX.into()) as Self
            }
        }
    )*};
}
eight_bits!(u8, i8);

/// Everything that is the same for all tiles.
pub(super) struct Epilogue<'a> {
    o: &'a Int8Operands<'a>,
    s: &'a Scaling<'a>,
    k: usize,
    lda: usize,
    a_signed: bool,
}

impl<'a> Epilogue<'a> {
    pub(super) fn new(p: &Int8Params, o: &'a Int8Operands<'a>, s: &'a Scaling<'a>) -> Self {
        Self { o, s, k: p.k, lda: p.lda, a_signed: p.a_signed }
    }

    /// The zero point of a row of A as u8: of i8 it is 128 more.
    #[inline(always)]
    fn a_zero(&self, row: usize) -> i32 {
        let byte = match self.o.a_zero {
            [] => 0,
            [one] => *one,
            all => all[row],
        };
        if self.a_signed { i32::from(byte as i8) + 128 } else { i32::from(byte) }
    }

    /// The zero point of a column of packed B.
    #[inline(always)]
    fn b_zero(&self, column: usize) -> i32 {
        match self.o.b_zero {
            [] => 0,
            [one] => i32::from(*one),
            all => i32::from(all[column]),
        }
    }

    /// The sum of a row of A as u8.
    #[inline(always)]
    fn a_sum(&self, row: usize) -> i32 {
        let flip = if self.a_signed { 0x80 } else { 0 };
        let row = &self.o.a[row * self.lda..][..self.k];
        row.iter().fold(0i32, |sum, &x| sum.wrapping_add(i32::from(x ^ flip)))
    }
}

simd_fn! {
    /// Writes the rows of C of a tile from its sums (rows of `columns` rounded up to 16).
    ///
    /// # Safety
    /// `c` is valid for writes of the tile's rows, `ldc` apart. The operands have the lengths of the parameters.
    pub(super) unsafe fn finish<S>[C: Quantized][C](
        s, e: &Epilogue<'_>, sums: &[i32], first_row: usize, columns: Range<usize>, c: *mut C, ldc: usize
    ) {
        let width = columns.len().next_multiple_of(PANEL);
        for from in (0..columns.len()).step_by(PANEL) {
            let n = PANEL.min(columns.len() - from);
            let column = columns.start + from;
            // What is the same for all rows: Σb − k·zb and the bias.
            let lane = |f: &dyn Fn(usize) -> i32| -> [i32; PANEL] {
                core::array::from_fn(|i| if i < n { f(column + i) } else { 0 })
            };
            let b_zero = lane(&|j| e.b_zero(j));
            let b_sum = lane(&|j| e.o.b_sums[j].wrapping_sub((e.k as i32).wrapping_mul(e.b_zero(j))));
            let bias = lane(&|j| e.o.bias.get(j).copied().unwrap_or(0));
            let any_b_zero = b_zero != [0; PANEL];
            let unscaled = s.splat(e.s.a_scale) * match e.s.b_scale {
                [one] => s.splat(*one),
                all => s.load_slice(&all[..column + n], column),
            };
            let scale = unscaled / s.splat(e.s.c_scale);
            let bias_f32 = s.load_slice(&e.s.bias[..e.s.bias.len().min(column + n)], column);
            for (i, row) in sums.chunks_exact(width).enumerate() {
                let a_zero = e.a_zero(first_row + i);
                let a_sum = if any_b_zero { e.a_sum(first_row + i) } else { 0 };
                let mut exact = [0i32; PANEL];
                for j in 0..PANEL {
                    exact[j] = row[from + j]
                        .wrapping_add(bias[j])
                        .wrapping_sub(a_zero.wrapping_mul(b_sum[j]))
                        .wrapping_sub(a_sum.wrapping_mul(b_zero[j]));
                }
                // SAFETY: `n` columns of this row of C are the caller's.
                let out = unsafe { core::slice::from_raw_parts_mut(c.add(i * ldc + from), n) };
                if !C::SCALED {
                    for j in 0..n {
                        out[j] = C::from_sum(exact[j]);
                    }
                    continue;
                }
                let value = s.array(exact.map(|x| x as f32)) * scale + bias_f32;
                let value = e.s.activation.vector(s, value);
                let limit = s.splat(1_048_576.0);
                let rounded = (-limit).max(limit.min(value)).to_i32();
                let value = value.to_array();
                if n == LANES {
                    for j in 0..LANES {
                        out[j] = C::from_scaled(value[j], rounded[j], e.s.c_zero);
                    }
                } else {
                    for j in 0..n {
                        out[j] = C::from_scaled(value[j], rounded[j], e.s.c_zero);
                    }
                }
            }
        }
    }
}

const _: () = assert!(LANES == PANEL);
