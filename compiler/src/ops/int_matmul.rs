//! Products of 8-bit integer matrices: MatMulInteger ([`integer`]), QLinearMatMul ([`qlinear`]), and ONNX Runtime's
//! MatMulIntegerToFloat and DynamicQuantizeMatMul ([`to_float`]) and QGemm ([`qgemm`]). Here is what they share: the product's
//! extents, scales and zero points, packing, and the calls that make sums.
//!
//! A zero point or scale is one for all, or one a row of A, one a column of B.

mod integer;
mod qgemm;
mod qlinear;
mod to_float;

use super::OpDef;
use super::broadcast::stride;
use super::strided::row_major;
use super::view::{NodeView, Result, broadcast, wrong};
use crate::ir::{Dim, TensorType};
use crate::lower::LowerCx;
use kiln_kernels::gemm::int8::pack::packed_zero;
use kiln_kernels::gemm::int8::{pack_int8_into, packed_int8_len};
use kiln_kernels::{Activation, Dtype, GemmInt8, IntMatMul, Operand};

use integer::{infer_integer, lower_integer};
use qgemm::{gemm_product, infer_gemm, lower_gemm};
use qlinear::{infer_qlinear, lower_qlinear};
use to_float::{infer_dynamic, infer_to_float, lower_dynamic, lower_to_float};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "MatMulInteger", &[10], infer_integer, lower_integer).with_flops(|cx| flops(cx, 0, 1)),
    OpDef::new("", "QLinearMatMul", &[10, 21], infer_qlinear, lower_qlinear).with_flops(|cx| flops(cx, 0, 3)),
    // With a bias in `i32`, one for each column.
    OpDef::new("kiln", "QLinearMatMul", &[1], infer_qlinear, lower_qlinear).with_flops(|cx| flops(cx, 0, 3)),
    OpDef::new("com.microsoft", "QLinearMatMul", &[1], infer_qlinear, lower_qlinear).with_flops(|cx| flops(cx, 0, 3)),
    OpDef::new("com.microsoft", "QGemm", &[1], infer_gemm, lower_gemm).with_flops(|cx| {
        let (p, ..) = gemm_product(cx)?;
        Ok(Dim::Const(2) * p.m * p.n * p.k)
    }),
    OpDef::new("com.microsoft", "MatMulIntegerToFloat", &[1], infer_to_float, lower_to_float)
        .with_flops(|cx| flops(cx, 0, 1)),
    OpDef::new("com.microsoft", "DynamicQuantizeMatMul", &[1], infer_dynamic, lower_dynamic)
        .with_flops(|cx| flops(cx, 0, 1)),
];

const BYTES: &[Dtype] = &[Dtype::U8, Dtype::I8];

/// Levels of batch that the kernel has.
const LEVELS: usize = 6;

/// A product with both operands as matrices.
struct Product {
    /// Broadcast batch.
    batch: Vec<Dim>,
    m: Dim,
    n: Dim,
    k: Dim,
    /// Extents of the operands, vectors made matrices.
    a: Vec<Dim>,
    b: Vec<Dim>,
    /// Shape of the result.
    shape: Vec<Dim>,
}

impl Product {
    fn of(cx: &NodeView<'_>, a_idx: usize, b_idx: usize) -> Result<Self> {
        let (a_ty, b_ty) = (cx.ty(a_idx)?, cx.ty(b_idx)?);
        if a_ty.rank() == 0 || b_ty.rank() == 0 {
            return Err(wrong(format!("cannot multiply {a_ty} and {b_ty} as matrices")));
        }
        let (mut a, mut b) = (a_ty.shape.clone(), b_ty.shape.clone());
        let (a_vector, b_vector) = (a.len() == 1, b.len() == 1);
        if a_vector {
            a.insert(0, Dim::Const(1));
        }
        if b_vector {
            b.push(Dim::Const(1));
        }
        let (mut k, k_b) = (a[a.len() - 1].clone(), b[b.len() - 2].clone());
        if k != k_b && k.as_const().is_some() && k_b.as_const().is_some() {
            return Err(wrong(format!("inner extents {k} and {k_b} of {a_ty} and {b_ty} differ")));
        }
        if k.as_const().is_none() && k_b.as_const().is_some() {
            k = k_b;
        }
        let batch = broadcast(&[&a[..a.len() - 2], &b[..b.len() - 2]])?;
        let (m, n) = (a[a.len() - 2].clone(), b[b.len() - 1].clone());
        let mut shape = batch.clone();
        if !a_vector {
            shape.push(m.clone());
        }
        if !b_vector {
            shape.push(n.clone());
        }
        Ok(Self { batch, m, n, k, a, b, shape })
    }

    /// Has it checked at run time that the operands' extents fit together.
    fn check(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (a, b) = (&self.a, &self.b);
        cx.expect_equal([(&a[a.len() - 1], &self.k), (&b[b.len() - 2], &self.k)])?;
        cx.expect_broadcast(&a[..a.len() - 2], &self.batch)?;
        cx.expect_broadcast(&b[..b.len() - 2], &self.batch)
    }

    /// Batch strides of an operand whose leading extents are `dims`, matrices of `matrix` elements.
    fn batch_strides(&self, dims: &[Dim], matrix: &Dim) -> Result<[Dim; LEVELS]> {
        let levels = self.batch_extents()?;
        let steps = row_major(dims);
        let own = |level: usize| (level + dims.len()).checked_sub(LEVELS).map(|i| (&dims[i], &steps[i]));
        Ok(std::array::from_fn(|level| match own(level) {
            Some((d, step)) if d == &levels[level] => step.clone() * matrix.clone(),
            Some((d, step)) => stride(step, d, &levels[level]) * matrix.clone(),
            None => Dim::Const(0),
        }))
    }

    fn batch_extents(&self) -> Result<[Dim; LEVELS]> {
        if self.batch.len() > LEVELS {
            return Err(wrong(format!("a batch over {} axes", self.batch.len())));
        }
        Ok(std::array::from_fn(|level| {
            (level + self.batch.len()).checked_sub(LEVELS).map_or(Dim::Const(1), |i| self.batch[i].clone())
        }))
    }
}

/// Which operand a scale or zero point belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    A,
    B,
}

/// How a scale or zero point steps: over rows (A) or columns (B), and over the batch.
struct Steps {
    each: Dim,
    batch: [Dim; LEVELS],
}

/// Checks a scale or zero point's shape: one for all, a vector, or the operand's shape with the inner extent 1.
fn steps(p: &Product, ty: &TensorType, side: Side, i: usize) -> Result<Steps> {
    let none = || std::array::from_fn(|_| Dim::Const(0));
    let n = if side == Side::A { &p.m } else { &p.n };
    let fits = |d: &Dim, n: &Dim| d == n || d.as_const().is_none() || n.as_const().is_none();
    if ty.shape.iter().all(|d| d.is(1)) {
        return Ok(Steps { each: Dim::Const(0), batch: none() });
    }
    let refused = || wrong(format!("{ty} is not one for all nor one for each of {n}")).at_input(i);
    if ty.rank() == 1 {
        return if fits(&ty.shape[0], n) {
            Ok(Steps { each: stride(&Dim::Const(1), &ty.shape[0], n), batch: none() })
        } else {
            Err(refused())
        };
    }
    let (lead, matrix) = ty.shape.split_at(ty.rank() - 2);
    let (one, each) = if side == Side::A { (&matrix[1], &matrix[0]) } else { (&matrix[0], &matrix[1]) };
    if one.as_const().is_some_and(|d| d != 1) || !(each.is(1) || fits(each, n)) || lead.len() > p.batch.len() {
        return Err(refused());
    }
    for (d, b) in lead.iter().rev().zip(p.batch.iter().rev()) {
        if !d.is(1) && !fits(d, b) {
            return Err(refused());
        }
    }
    let batch = p.batch_strides(lead, each)?;
    Ok(Steps { each: stride(&Dim::Const(1), each, n), batch })
}

/// `2·B·M·N·K`
fn flops(cx: &NodeView<'_>, a: usize, b: usize) -> Result<Dim> {
    let p = Product::of(cx, a, b)?;
    Ok(Dim::Const(2) * p.batch.into_iter().product::<Dim>() * p.m * p.n * p.k)
}

/// Checks an optional zero point: its operand's type, a shape that fits.
fn check_zero(cx: &NodeView<'_>, p: &Product, zero: usize, operand: usize, side: Side) -> Result<()> {
    let Some(ty) = cx.opt_ty(zero)? else { return Ok(()) };
    if ty.dtype != cx.dtype(operand)? {
        return Err(wrong(format!("expected {} as input {operand}, found {ty}", cx.dtype(operand)?)).at_input(zero));
    }
    steps(p, ty, side, zero).map(|_| ())
}

fn check_scale(cx: &NodeView<'_>, p: &Product, scale: usize, side: Side) -> Result<()> {
    cx.expect_dtype(scale, &[Dtype::F32, Dtype::F16, Dtype::Bf16])?;
    steps(p, cx.ty(scale)?, side, scale).map(|_| ())
}

/// An operand of the product.
struct Factor {
    at: Operand<Dim>,
    dtype: Dtype,
    zero: Option<(Operand<Dim>, Steps)>,
}

fn factor(cx: &mut LowerCx<'_>, p: &Product, i: usize, zero: usize, side: Side) -> Result<Factor> {
    let zero = match cx.opt_ty(zero)? {
        Some(ty) => Some((cx.x(zero)?, steps(p, ty, side, zero)?)),
        None => None,
    };
    Ok(Factor { at: cx.x(i)?, dtype: cx.dtype(i)?, zero })
}

/// The call that writes the product's sums.
fn sums(cx: &mut LowerCx<'_>, p: &Product, a: Factor, b: Factor, y: Operand<Dim>) -> Result<()> {
    p.check(cx)?;
    let none = || std::array::from_fn(|_| Dim::Const(0));
    let apart = |zero: Option<(Operand<Dim>, Steps)>| match zero {
        Some((at, s)) => (Some(at), s.each, s.batch),
        None => (None, Dim::Const(0), none()),
    };
    let (a_zero, a_zero_row, a_zero_batch) = apart(a.zero);
    let (b_zero, b_zero_column, b_zero_batch) = apart(b.zero);
    let d = IntMatMul {
        a: a.at,
        b: b.at,
        a_zero,
        b_zero,
        y,
        m: p.m.clone(),
        n: p.n.clone(),
        k: p.k.clone(),
        a_zero_row,
        b_zero_column,
        batch: p.batch_extents()?,
        a_batch: p.batch_strides(&p.a[..p.a.len() - 2], &(p.m.clone() * p.k.clone()))?,
        b_batch: p.batch_strides(&p.b[..p.b.len() - 2], &(p.k.clone() * p.n.clone()))?,
        a_zero_batch,
        b_zero_batch,
    };
    cx.call(&[a.dtype, b.dtype, Dtype::I32], d)
}

/// A constant second operand, packed.
struct Packed {
    b: Operand<Dim>,
    sums: Operand<Dim>,
    zero: Option<Operand<Dim>>,
}

/// Packs operand `b`, if it and its zero points allow that: one constant matrix.
fn packed(cx: &mut LowerCx<'_>, b: usize, zero: usize, transposed: bool) -> Result<Option<Packed>> {
    let Some(t) = cx.constant(b) else { return Ok(None) };
    let [rows, columns] = *t.dims() else { return Ok(None) };
    let (k, n) = if transposed { (columns, rows) } else { (rows, columns) };
    let signed = t.dtype() == Dtype::I8;
    let zero = match (cx.has(zero), cx.constant(zero)) {
        (true, None) if signed => Some(cx.x(zero)?),
        (true, None) => return Ok(None),
        (true, Some(z)) => {
            let z: Vec<u8> = z.data().iter().map(|&z| packed_zero(z, signed) as u8).collect();
            if z.iter().all(|&z| z == 0) { None } else { Some(cx.weights(z)) }
        }
        (false, _) if signed => None,
        (false, _) => Some(cx.weights(vec![packed_zero(0, false) as u8])),
    };
    let (mut bytes, mut sums) = (vec![0i8; packed_int8_len(k, n)], vec![0i32; n.next_multiple_of(16)]);
    if !pack_int8_into(&mut bytes, &mut sums, t.data(), [k, n], columns, transposed, signed) {
        return Ok(None);
    }
    let b = cx.weights(bytes.into_iter().map(|v| v as u8).collect::<Vec<_>>());
    let sums = cx.weights(sums.into_iter().flat_map(i32::to_le_bytes).collect::<Vec<_>>());
    Ok(Some(Packed { b, sums, zero }))
}

/// What becomes of the sums.
#[derive(Default)]
struct Scaled {
    bias: Option<Operand<Dim>>,
    a_scale: Option<Operand<Dim>>,
    b_scale: Option<Operand<Dim>>,
    c_scale: Option<Operand<Dim>>,
    c_zero: Option<Operand<Dim>>,
    bias_f32: Option<Operand<Dim>>,
}

/// The call of the tuned kernel: all products of the batch as one.
fn gemm(
    cx: &mut LowerCx<'_>,
    p: &Product,
    (a, a_zero, a_dtype): (Operand<Dim>, Option<Operand<Dim>>, Dtype),
    b: Packed,
    s: Scaled,
    (c, c_dtype): (Operand<Dim>, Dtype),
) -> Result<()> {
    let d = GemmInt8 {
        a,
        b: b.b,
        b_sums: b.sums,
        a_zero,
        b_zero: b.zero,
        bias: s.bias,
        a_scale: s.a_scale,
        b_scale: s.b_scale,
        c_scale: s.c_scale,
        c_zero: s.c_zero,
        bias_f32: s.bias_f32,
        c,
        m: p.batch.iter().cloned().product::<Dim>() * p.m.clone(),
        n: p.n.clone(),
        k: p.k.clone(),
        lda: p.k.clone(),
        ldc: p.n.clone(),
        activation: Activation::None,
        share: [0, 1],
    };
    cx.call(&[a_dtype, c_dtype], d)
}

/// Whether scales or zero points of A at these positions are one for all, or one for each row of a single product.
fn rows_agree(cx: &NodeView<'_>, p: &Product, i: usize) -> Result<bool> {
    let single = p.batch.iter().all(|d| d.is(1));
    Ok(cx.opt_ty(i)?.is_none_or(|ty| ty.numel().is(1) || single))
}

fn is_one(cx: &NodeView<'_>, i: usize) -> Result<bool> {
    Ok(cx.opt_ty(i)?.is_none_or(|ty| ty.numel().is(1)))
}

/// Memory for sums that another call takes up.
fn sums_scratch(cx: &mut LowerCx<'_>, p: &Product) -> Operand<Dim> {
    let numel = p.shape.iter().cloned().product::<Dim>();
    cx.scratch(numel * Dim::Const(4))
}

#[cfg(test)]
mod tests {
    use crate::ir::Tensor;
    use crate::ops::testing::{Case, case};
    use kiln_kernels::Dtype;

    fn bytes(dtype: Dtype, dims: &[usize], values: &[i64]) -> Tensor {
        Tensor::new(dtype, dims.to_vec(), values.iter().map(|&v| v as u8).collect::<Vec<_>>().into()).unwrap()
    }

    fn ramp(n: usize, step: i64, least: i64) -> Vec<i64> {
        (0..n as i64).map(|i| i * step % 256 + least).collect()
    }

    fn least(dtype: Dtype) -> i64 {
        if dtype == Dtype::I8 { -128 } else { 0 }
    }

    #[test]
    fn zero_points_of_every_form_and_sign() {
        let (m, n, k) = (3, 5, 4);
        for ta in [Dtype::U8, Dtype::I8] {
            for tb in [Dtype::U8, Dtype::I8] {
                let (a, b) = (ramp(m * k, 67, least(ta)), ramp(k * n, 91, least(tb)));
                for (az, bz) in [(0, 0), (1, 1), (m, 1), (1, n), (m, n)] {
                    let za: Vec<i64> = (0..az as i64).map(|i| least(ta) + 100 + i).collect();
                    let zb: Vec<i64> = (0..bz as i64).map(|i| least(tb) + 120 + i).collect();
                    let mut c = case("", "MatMulInteger", 10).input(bytes(ta, &[m, k], &a));
                    c = c.input(bytes(tb, &[k, n], &b));
                    if az > 0 {
                        let dims: &[usize] = if az == 1 { &[] } else { &[az] };
                        c = c.input(bytes(ta, dims, &za));
                        let dims = [1, n];
                        c = c.input(bytes(tb, if bz == 1 { &[] } else { &dims }, &zb));
                    }
                    let y = c.run().unwrap()[0].to_i32s().unwrap();
                    let zero = |z: &[i64], i: usize| if z.is_empty() { 0 } else { z[i % z.len()] };
                    for i in 0..m {
                        for j in 0..n {
                            let want: i64 =
                                (0..k).map(|kk| (a[i * k + kk] - zero(&za, i)) * (b[kk * n + j] - zero(&zb, j))).sum();
                            assert_eq!(i64::from(y[i * n + j]), want, "{ta} {tb} {az} {bz}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn vectors_and_broadcast_batches() {
        let (a, b) =
            (bytes(Dtype::U8, &[2, 1, 1, 2], &[1, 2, 3, 4]), bytes(Dtype::I8, &[3, 2, 1], &[1, 1, 2, 2, -1, 0]));
        let y = case("", "MatMulInteger", 10).input(a).input(b).run().unwrap();
        assert_eq!((y[0].dims(), y[0].to_i32s().unwrap()), (&[2, 3, 1, 1][..], vec![3, 6, -1, 7, 14, -3]));
        let (a, b) = (bytes(Dtype::U8, &[2], &[1, 2]), bytes(Dtype::U8, &[2], &[3, 4]));
        let y = case("", "MatMulInteger", 10).input(a).input(b).run().unwrap();
        assert_eq!((y[0].dims(), y[0].to_i32s().unwrap()), (&[][..], vec![11]));
    }

    fn qlinear(scale: f32, zero: i64) -> Case {
        let f = |v: f32| Tensor::from_f32s(&[], &[v]);
        case("", "QLinearMatMul", 10)
            .input(bytes(Dtype::U8, &[1, 3], &[1, 2, 3]))
            .constant(f(scale))
            .constant(bytes(Dtype::U8, &[], &[0]))
            .input(bytes(Dtype::I8, &[3, 4], &[1, 1, 1, 100, 0, 1, -1, 100, 0, 0, 1, 100]))
            .constant(f(1.0))
            .constant(bytes(Dtype::I8, &[], &[0]))
            .constant(f(1.0))
            .constant(bytes(Dtype::U8, &[], &[zero]))
    }

    #[test]
    fn requantises_with_ties_to_even() {
        // Sums 1, 3, 2, 600.
        assert_eq!(qlinear(0.5, 3).run().unwrap()[0].to_u8s().unwrap(), [3, 5, 4, 255]);
        assert_eq!(qlinear(1.5, 0).run().unwrap()[0].to_u8s().unwrap(), [2, 4, 3, 255]);
    }

    #[test]
    fn floats_from_integers() {
        let f = |dims: &[usize], v: &[f32]| Tensor::from_f32s(dims, v);
        let y = case("com.microsoft", "MatMulIntegerToFloat", 1)
            .input(bytes(Dtype::U8, &[2, 2], &[1, 2, 3, 4]))
            .constant(bytes(Dtype::I8, &[2, 2], &[1, -1, 2, 0]))
            .constant(f(&[], &[0.5]))
            .constant(f(&[2], &[1.0, 2.0]))
            .constant(bytes(Dtype::U8, &[], &[1]))
            .absent()
            .constant(f(&[2], &[10.0, 20.0]))
            .run_f32();
        assert_eq!(y, [11.0, 20.0, 14.0, 18.0]);
        let y = case("com.microsoft", "DynamicQuantizeMatMul", 1)
            .input(f(&[1, 2], &[0.0, 255.0]))
            .constant(bytes(Dtype::I8, &[2, 1], &[1, 2]))
            .constant(f(&[], &[1.0]))
            .run_f32();
        assert_eq!(y, [510.0]);
    }

    #[test]
    fn constant_second_operands_take_the_tuned_kernel() {
        let (m, n, k) = (5, 37, 11);
        for ta in [Dtype::U8, Dtype::I8] {
            for tb in [Dtype::U8, Dtype::I8] {
                for zeros in [0usize, 1, 2] {
                    let (a, b) = (ramp(2 * m * k, 67, least(ta)), ramp(k * n, 91, least(tb)));
                    let run = |constant: bool| {
                        let c = case("", "MatMulInteger", 10).input(bytes(ta, &[2, m, k], &a));
                        let b = bytes(tb, &[k, n], &b);
                        let mut c = if constant { c.constant(b) } else { c.input(b) };
                        if zeros > 0 {
                            let zb: Vec<i64> =
                                (0..if zeros == 1 { 1 } else { n as i64 }).map(|i| i - least(tb) / 2).collect();
                            c = c.input(bytes(ta, &[], &[3 + least(ta)])).constant(bytes(tb, &[zb.len()], &zb));
                        }
                        c.run().unwrap()[0].to_i32s().unwrap()
                    };
                    assert_eq!(run(true), run(false), "{ta} {tb} {zeros}");
                }
            }
        }
    }

    #[test]
    fn gemm_with_everything() {
        let f = |v: f32| Tensor::from_f32s(&[], &[v]);
        for (ta, tb) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let (a, b) = ([1, 2, 3, 4, 5, 6], [1, -1, 2, 0, 1, 3]);
            let transposed = |v: &[i64]| -> Vec<i64> { (0..6).map(|i| v[i % 3 * 2 + i / 3]).collect() };
            // A is 2×3, B 3×2.
            let a_t: Vec<i64> = (0..6).map(|i| a[i % 2 * 3 + i / 2]).collect();
            let (a_dims, a) = if ta == 1 { ([3, 2], a_t) } else { ([2, 3], a.to_vec()) };
            let (b_dims, b) = if tb == 1 { ([2, 3], transposed(&b)) } else { ([3, 2], b.to_vec()) };
            let c = case("com.microsoft", "QGemm", 1)
                .input(bytes(Dtype::U8, &a_dims, &a))
                .constant(f(0.5))
                .constant(bytes(Dtype::U8, &[], &[1]))
                .constant(bytes(Dtype::I8, &b_dims, &b))
                .constant(Tensor::from_f32s(&[2], &[1.0, 2.0]))
                .constant(bytes(Dtype::I8, &[], &[0]))
                .constant(Tensor::from_i32s(&[2], &[10, 20]))
                .attr("transA", crate::ir::Attr::Int(ta))
                .attr("transB", crate::ir::Attr::Int(tb))
                .attr("alpha", crate::ir::Attr::Float(2.0));
            // Sums: rows (0, 1, 2) and (3, 4, 5) of A less 1.
            assert_eq!(c.run_f32(), [14.0, 52.0, 26.0, 64.0]);
        }
    }

    #[test]
    fn refuses() {
        let a = || bytes(Dtype::U8, &[2, 3], &[0; 6]);
        let b = || bytes(Dtype::U8, &[3, 2], &[0; 6]);
        let run = |za: Tensor| case("", "MatMulInteger", 10).input(a()).input(b()).constant(za).infer();
        assert!(run(bytes(Dtype::I8, &[], &[0])).is_err());
        assert!(run(bytes(Dtype::U8, &[3], &[0; 3])).is_err());
        assert!(run(bytes(Dtype::U8, &[2], &[0; 2])).is_ok());
        assert!(case("", "MatMulInteger", 10).input(a()).input(a()).infer().is_err());
    }
}
