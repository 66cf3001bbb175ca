//! The descriptors of matrix products: `Gemm` for f32, `GemmInt8` for 8-bit integers, `MatMul` for the types without tuned
//! kernels.
//!
//! In: checked operands as slices. Out: the share of C that the descriptor names. What the extents mean is in
//! [`GemmParams`]; lengths are checked against them here, so a wrong descriptor is a fault and never touches memory.

use super::f32::{Residual, product_f32_units};
use super::generic::{Numeric, matmul_generic};
use super::int8::{Int8Operands, Int8Params, Quantized, Scaling, product_int8_units};
use super::params::{BLayout, GemmParams};
use crate::{Activation, Fault, Isa, PartOut, kernel};

kernel! {
    /// `c = activation(a · b + bias + residual)` over two levels of batch; the fields are those of [`GemmParams`].
    ///
    /// `c` is `update`: of several streams each writes its share. `scratch` has [`GemmParams::scratch_len`] elements, for
    /// each stream its own; it may be absent where that is 0.
    pub struct Gemm {
        operands { read a: T, read b: T, opt bias: T, opt_alias residual: T, update_parts c: T, opt_write scratch: T }
        nums { m, n, k, lda, ldb, ldc, ld_residual }
        arrays { batch: 2, a_batch: 2, b_batch: 2, c_batch: 2, residual_batch: 2 }
        params {
            b_layout: BLayout, activation: Activation,
            /// `[i, n]`: the i-th of n equal shares of the work.
            share: [u32; 2]
        }
    }
    entries { gemm_f32 { T = f32 } }
    body = gemm;
}

impl Gemm {
    /// The problem without its operands.
    pub const fn problem(&self) -> GemmParams {
        GemmParams {
            m: self.m,
            n: self.n,
            k: self.k,
            lda: self.lda,
            ldb: self.ldb,
            ldc: self.ldc,
            ld_residual: self.ld_residual,
            panel_rows: 0,
            b_layout: self.b_layout,
            batch: self.batch,
            a_batch: self.a_batch,
            b_batch: self.b_batch,
            c_batch: self.c_batch,
            residual_batch: self.residual_batch,
            activation: self.activation,
        }
    }
}

fn gemm(
    isa: Isa,
    d: &Gemm,
    a: &[f32],
    b: &[f32],
    bias: Option<&[f32]>,
    residual: Option<Option<&[f32]>>,
    mut c: PartOut<'_, f32>,
    scratch: Option<&mut [f32]>,
) -> Result<(), Fault> {
    let p = d.problem();
    let [i, n] = d.share;
    if i >= n {
        return Err(Fault::Descriptor);
    }
    let residual = match residual {
        None => Residual::None,
        Some(None) => Residual::Output,
        Some(Some(r)) => Residual::Of(r),
    };
    let units = p.share(i as usize, n as usize);
    let c = c.as_mut_slice_ptr();
    // SAFETY: the units of this share, whose elements of `c` are this part's alone.
    let ok = unsafe { product_f32_units(isa, &p, units, a, b, bias, residual, c, scratch.unwrap_or_default()) };
    if ok { Ok(()) } else { Err(Fault::Descriptor) }
}

kernel! {
    /// `c = a · b` for rows of `a`, `b`, `c` that are `lda`, `ldb`, `ldc` apart, over two levels of batch.
    pub struct MatMul {
        operands { read a: T, read b: T, write c: T }
        nums { m, n, k, lda, ldb, ldc }
        arrays { batch: 2, a_batch: 2, b_batch: 2, c_batch: 2 }
    }
    entries {
        matmul_f64 { T = f64 } matmul_i32 { T = i32 } matmul_i64 { T = i64 } matmul_u32 { T = u32 } matmul_u64 { T = u64 }
    }
    body = matmul;
}

fn matmul<T: Numeric>(_: Isa, d: &MatMul, a: &[T], b: &[T], c: &mut [T]) -> Result<(), Fault> {
    for i0 in 0..d.batch[0] {
        for i1 in 0..d.batch[1] {
            let at = |s: [usize; 2]| i0.checked_mul(s[0])?.checked_add(i1.checked_mul(s[1])?);
            let (Some(a_at), Some(b_at), Some(c_at)) = (at(d.a_batch), at(d.b_batch), at(d.c_batch)) else {
                return Err(Fault::Descriptor);
            };
            let (a, b) = (a.get(a_at..).unwrap_or_default(), b.get(b_at..).unwrap_or_default());
            let c = c.get_mut(c_at..).unwrap_or_default();
            if !matmul_generic([d.m, d.n, d.k], [d.lda, d.ldb, d.ldc], a, b, c) {
                return Err(Fault::Descriptor);
            }
        }
    }
    Ok(())
}

kernel! {
    /// `c = a · b` of 8-bit integers, exact in i32; the operands and scales are those of [`int8`](super::int8).
    ///
    /// `c` is `update`: of several streams each writes its share. Scales that are absent count as 1, zero points as 0.
    pub struct GemmInt8 {
        operands {
            read a: A, read b: i8, read b_sums: i32, opt a_zero: A, opt b_zero: i8, opt bias: i32,
            opt a_scale: f32, opt b_scale: f32, opt c_scale: f32, opt c_zero: C, opt bias_f32: f32, update_parts c: C
        }
        nums { m, n, k, lda, ldc }
        params {
            activation: Activation,
            /// `[i, n]`: the i-th of n equal shares of the work.
            share: [u32; 2]
        }
    }
    entries {
        gemm_u8_i32 { A = u8, C = i32 } gemm_i8_i32 { A = i8, C = i32 }
        gemm_u8_f32 { A = u8, C = f32 } gemm_i8_f32 { A = i8, C = f32 }
        gemm_u8_u8 { A = u8, C = u8 } gemm_i8_u8 { A = i8, C = u8 }
        gemm_u8_i8 { A = u8, C = i8 } gemm_i8_i8 { A = i8, C = i8 }
    }
    body = gemm_int8;
}

/// The types of A.
trait Byte: Copy {
    const SIGNED: bool;
    fn bytes(x: &[Self]) -> &[u8];
}

impl Byte for u8 {
    const SIGNED: bool = false;
    fn bytes(x: &[Self]) -> &[u8] {
        x
    }
}

impl Byte for i8 {
    const SIGNED: bool = true;
    fn bytes(x: &[Self]) -> &[u8] {
        // SAFETY: i8 and u8 have the same size and no invalid bit patterns.
        unsafe { core::slice::from_raw_parts(x.as_ptr().cast(), x.len()) }
    }
}

fn gemm_int8<A: Byte, C: Quantized>(
    isa: Isa,
    d: &GemmInt8,
    a: &[A],
    b: &[i8],
    b_sums: &[i32],
    a_zero: Option<&[A]>,
    b_zero: Option<&[i8]>,
    bias: Option<&[i32]>,
    a_scale: Option<&[f32]>,
    b_scale: Option<&[f32]>,
    c_scale: Option<&[f32]>,
    c_zero: Option<&[C]>,
    bias_f32: Option<&[f32]>,
    mut c: PartOut<'_, C>,
) -> Result<(), Fault> {
    let p = Int8Params { m: d.m, n: d.n, k: d.k, lda: d.lda, ldc: d.ldc, a_signed: A::SIGNED };
    let operands = Int8Operands {
        a: A::bytes(a),
        b,
        b_sums,
        a_zero: a_zero.map_or(&[], A::bytes),
        b_zero: b_zero.unwrap_or_default(),
        bias: bias.unwrap_or_default(),
    };
    let one = |scale: Option<&[f32]>| scale.and_then(|s| s.first().copied()).unwrap_or(1.0);
    let scaling = Scaling {
        a_scale: one(a_scale),
        b_scale: b_scale.unwrap_or(&[1.0]),
        c_scale: one(c_scale),
        bias: bias_f32.unwrap_or_default(),
        activation: d.activation,
        c_zero: c_zero.and_then(|z| z.first()).map_or(0, |z| z.zero()),
    };
    let [i, n] = d.share;
    if i >= n {
        return Err(Fault::Descriptor);
    }
    let units = p.share(i as usize, n as usize);
    // SAFETY: the units of this share, whose elements of `c` are this part's alone.
    let ok = unsafe { product_int8_units(isa, &p, units, &operands, &scaling, c.as_mut_slice_ptr()) };
    if ok { Ok(()) } else { Err(Fault::Descriptor) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cx, Operand, Region, RunState};

    fn bytes(x: &mut [f32]) -> &mut [u8] {
        // SAFETY: f32 has no padding and every byte pattern is valid.
        unsafe { core::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), size_of_val(x)) }
    }

    #[test]
    fn a_descriptor_runs_in_shares_and_in_place() {
        let mut memory = [0.0f32; 64];
        // a is 2×3, b is 3×20 of ones, c is 2×20 and its own residual.
        memory[..6].copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let mut out = [10.0f32; 40];
        let mut b = [1.0f32; 60];
        let mut scratch = [0.0f32; 48];
        let state = RunState::new();
        let regions = [
            Region::write(bytes(&mut memory)),
            Region::write(bytes(&mut b)),
            Region::write(bytes(&mut out)),
            Region::write(bytes(&mut scratch)),
        ];
        let cx = Cx::new(&regions, Isa::detect(), &state, &[]);
        let mut d = Gemm {
            a: Operand::at(0, 0, 24),
            b: Operand::at(1, 0, 240),
            bias: None,
            residual: Some(Operand::at(2, 0, 160)),
            c: Operand::at(2, 0, 160),
            scratch: Some(Operand::at(3, 0, 192)),
            m: 2,
            n: 20,
            k: 3,
            lda: 3,
            ldb: 20,
            ldc: 20,
            ld_residual: 20,
            batch: [1, 1],
            a_batch: [0, 0],
            b_batch: [0, 0],
            c_batch: [0, 0],
            residual_batch: [0, 0],
            b_layout: BLayout::Rows,
            activation: Activation::None,
            share: [0, 2],
        };
        gemm_f32(&cx, &d);
        d.share = [1, 2];
        gemm_f32(&cx, &d);
        assert_eq!(state.fault(), None);
        d.k = 4;
        gemm_f32(&cx, &d);
        assert_eq!(state.fault(), Some((0, Fault::Descriptor)));
        assert_eq!(out[..20], [16.0; 20]);
        assert_eq!(out[20..], [25.0; 20]);
    }
}
