//! From sums of u8×i8 products to C: zero points, bias, then i32 as they are, f32 scaled, or 8 bits rounded and saturated.
//!
//! In: a tile of raw sums. Out: its rows of C. Rounding is to nearest, ties to even, as ONNX's QuantizeLinear has it.

use super::{Int8Operands, Int8Params};
use crate::activation::{self, Activation};
use crate::gemm::pack::PANEL;
use crate::simd::{F32x16, I32x16, LANES, Simd};
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
    /// 16 exact sums, as C where C is not scaled.
    fn from_sums<S: Simd>(s: S, sums: S::I32) -> [Self; LANES];
    /// 16 scaled values.
    fn from_scaled<S: Simd>(s: S, values: S::F32, zero: i32) -> [Self; LANES];
}

impl Quantized for i32 {
    const SCALED: bool = false;
    #[inline(always)]
    fn zero(self) -> i32 {
        self
    }
    #[inline(always)]
    fn from_sums<S: Simd>(_: S, sums: S::I32) -> [Self; LANES] {
        sums.to_array()
    }
    #[inline(always)]
    fn from_scaled<S: Simd>(s: S, values: S::F32, _: i32) -> [Self; LANES] {
        s.to_i32(values).to_array()
    }
}

impl Quantized for f32 {
    const SCALED: bool = true;
    #[inline(always)]
    fn zero(self) -> i32 {
        0
    }
    #[inline(always)]
    fn from_sums<S: Simd>(_: S, sums: S::I32) -> [Self; LANES] {
        sums.to_f32().to_array()
    }
    #[inline(always)]
    fn from_scaled<S: Simd>(_: S, values: S::F32, _: i32) -> [Self; LANES] {
        values.to_array()
    }
}

macro_rules! eight_bits {
    ($($type:ident $saturate:ident),*) => {$(
        impl Quantized for $type {
            const SCALED: bool = true;
            #[inline(always)]
            fn zero(self) -> i32 {
                self.into()
            }
            #[inline(always)]
            fn from_sums<S: Simd>(_: S, sums: S::I32) -> [Self; LANES] {
                sums.$saturate()
            }
            #[inline(always)]
            fn from_scaled<S: Simd>(s: S, values: S::F32, zero: i32) -> [Self; LANES] {
                // Far beyond 8 bits, so that neither the conversion nor the sum overflows.
                let limit = s.splat(1_048_576.0);
                (s.to_i32((-limit).max(limit.min(values))) + s.splat_i32(zero)).$saturate()
            }
        }
    )*};
}
eight_bits!(u8 to_u8, i8 to_i8);

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
            let column_i32 = |all: &[i32]| {
                let rest = all.get(column..).unwrap_or_default();
                if rest.is_empty() {
                    return s.splat_i32(0); // never a masked load from nowhere: it is slow
                }
                // SAFETY: at most the slice's remaining lanes are read.
                unsafe { s.load_i32_n(rest.as_ptr(), n.min(rest.len())) }
            };
            // What is the same for all rows: Σb − k·zb and the bias.
            let b_zero = match e.o.b_zero {
                [] => s.splat_i32(0),
                [one] => s.splat_i32(i32::from(*one)),
                all => s.array_i32(core::array::from_fn(|i| if i < n { i32::from(all[column + i]) } else { 0 })),
            };
            let b_sum = column_i32(e.o.b_sums) - s.splat_i32(e.k as i32) * b_zero;
            let bias = column_i32(e.o.bias);
            let any_b_zero = e.o.b_zero.iter().any(|&zero| zero != 0);
            let b_scale = match e.s.b_scale {
                [one] => s.splat(*one),
                all => s.load_slice(&all[..column + n], column),
            };
            let scale = s.splat(e.s.a_scale) * b_scale / s.splat(e.s.c_scale);
            let bias_f32 = s.load_slice(&e.s.bias[..e.s.bias.len().min(column + n)], column);
            // With one zero point of A and none of B, rows differ in nothing: the plain case has a loop of its own.
            let plain = e.o.a_zero.len() <= 1 && !any_b_zero;
            let same = if plain { bias - s.splat_i32(e.a_zero(0)) * b_sum } else { bias };
            let (low, high) = e.s.activation.as_clamp().unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
            let (low, high) = (s.splat(low), s.splat(high));
            let curved = e.s.activation.as_clamp().is_none();
            let n_rows = sums.len() / width;
            for i in 0..n_rows {
                // SAFETY: the row has 16 sums here.
                let mut sum = unsafe { s.load_i32(sums.as_ptr().add(i * width + from)) } + same;
                if !plain {
                    sum = sum - s.splat_i32(e.a_zero(first_row + i)) * b_sum;
                    if any_b_zero {
                        sum = sum - s.splat_i32(e.a_sum(first_row + i)) * b_zero;
                    }
                }
                let values = if C::SCALED {
                    let mut value = high.min(low.max(sum.to_f32() * scale + bias_f32));
                    if curved {
                        let mut lanes = value.to_array();
                        activation::apply(S::ISA, e.s.activation, &mut lanes);
                        value = s.array(lanes);
                    }
                    C::from_scaled(s, value, e.s.c_zero)
                } else {
                    C::from_sums(s, sum)
                };
                // SAFETY: `n` columns of this row of C are the caller's.
                unsafe {
                    let c = c.add(i * ldc + from);
                    if n == PANEL {
                        c.cast::<[C; PANEL]>().write_unaligned(values);
                    } else {
                        core::ptr::copy_nonoverlapping(values.as_ptr(), c, n);
                    }
                }
            }
        }
    }
}

const _: () = assert!(LANES == PANEL);
