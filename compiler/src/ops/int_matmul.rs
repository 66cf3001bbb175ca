//! Products of 8-bit integer matrices: MatMulInteger, QLinearMatMul, and ONNX Runtime's MatMulIntegerToFloat and
//! DynamicQuantizeMatMul.
//!
//! A zero point or scale is one for all, or one a row of A, one a column of B.
//! <https://onnx.ai/onnx/operators/onnx__MatMulInteger.html>, <https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html>,
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>

use super::quant::{as_f32, limits, precision};
use super::strided::row_major;
use super::view::{NodeView, Result, broadcast, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::{Dim, TensorType};
use crate::lower::LowerCx;
use kiln_kernels::{DequantizeSums, Dtype, DynamicQuantize, IntMatMul, Operand, Requantize};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "MatMulInteger", &[10], infer_integer, lower_integer).with_flops(|cx| flops(cx, 0, 1)),
    OpDef::new("", "QLinearMatMul", &[10, 21], infer_qlinear, lower_qlinear).with_flops(|cx| flops(cx, 0, 3)),
    OpDef::new("com.microsoft", "MatMulInteger16", &[1], infer_unsupported_16, lower_integer),
    OpDef::new("com.microsoft", "QLinearMatMul", &[1], infer_qlinear, lower_qlinear).with_flops(|cx| flops(cx, 0, 3)),
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
        let (k, k_b) = (a[a.len() - 1].clone(), b[b.len() - 2].clone());
        if k != k_b && k.as_const().is_some() && k_b.as_const().is_some() {
            return Err(wrong(format!("inner extents {k} and {k_b} of {a_ty} and {b_ty} differ")));
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

    /// Batch strides of an operand whose leading extents are `dims`, matrices of `matrix` elements.
    fn batch_strides(&self, dims: &[Dim], matrix: &Dim) -> Result<[Dim; LEVELS]> {
        let levels = self.batch_extents()?;
        let steps = row_major(dims);
        let own = |level: usize| (level + dims.len()).checked_sub(LEVELS).map(|i| (&dims[i], &steps[i]));
        Ok(std::array::from_fn(|level| match own(level) {
            Some((d, step)) if !d.is(1) || levels[level].is(1) => step.clone() * matrix.clone(),
            _ => Dim::Const(0),
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
        return if fits(&ty.shape[0], n) { Ok(Steps { each: Dim::Const(1), batch: none() }) } else { Err(refused()) };
    }
    let (lead, matrix) = ty.shape.split_at(ty.rank() - 2);
    let (one, each) = if side == Side::A { (&matrix[1], &matrix[0]) } else { (&matrix[0], &matrix[1]) };
    if !one.is(1) || !(each.is(1) || fits(each, n)) || lead.len() > p.batch.len() {
        return Err(refused());
    }
    for (d, b) in lead.iter().rev().zip(p.batch.iter().rev()) {
        if !d.is(1) && !fits(d, b) {
            return Err(refused());
        }
    }
    let batch = p.batch_strides(lead, each)?;
    Ok(Steps { each: Dim::Const(i64::from(!each.is(1))), batch })
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

/// Memory for sums that another call takes up.
fn sums_scratch(cx: &mut LowerCx<'_>, p: &Product) -> Operand<Dim> {
    let numel = p.shape.iter().cloned().product::<Dim>();
    cx.scratch(numel * Dim::Const(4))
}

fn infer_unsupported_16(_: &mut InferCx<'_>) -> Result<()> {
    Err(wrong("products of 16-bit integers are not supported"))
}

fn infer_integer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    cx.expect_dtype(1, BYTES)?;
    let p = Product::of(cx, 0, 1)?;
    check_zero(cx, &p, 2, 0, Side::A)?;
    check_zero(cx, &p, 3, 1, Side::B)?;
    cx.set(0, tensor(Dtype::I32, p.shape));
    Ok(())
}

fn lower_integer(cx: &mut LowerCx<'_>) -> Result<()> {
    let p = Product::of(cx, 0, 1)?;
    let (a, b) = (factor(cx, &p, 0, 2, Side::A)?, factor(cx, &p, 1, 3, Side::B)?);
    let y = cx.y(0)?;
    sums(cx, &p, a, b, y)
}

fn infer_qlinear(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    cx.expect_dtype(3, BYTES)?;
    let p = Product::of(cx, 0, 3)?;
    check_scale(cx, &p, 1, Side::A)?;
    check_zero(cx, &p, 2, 0, Side::A)?;
    check_scale(cx, &p, 4, Side::B)?;
    check_zero(cx, &p, 5, 3, Side::B)?;
    check_scale(cx, &p, 6, Side::A)?;
    let dtype = match cx.opt_ty(7)? {
        None => cx.dtype(0)?,
        Some(zero) => {
            cx.expect_dtype(7, BYTES)?;
            if zero.shape != cx.ty(6)?.shape && !(zero.numel().is(1) && cx.ty(6)?.numel().is(1)) {
                return Err(wrong(format!("expected the scale's shape, {}, found {zero}", cx.ty(6)?)).at_input(7));
            }
            zero.dtype
        }
    };
    cx.set(0, tensor(dtype, p.shape));
    Ok(())
}

/// Strides of a scale over `[batch, m, n]`.
fn scale_strides(cx: &NodeView<'_>, p: &Product, i: usize, side: Side) -> Result<[Dim; 3]> {
    let ty = cx.ty(i)?;
    let s = steps(p, ty, side, i)?;
    let batch = if ty.rank() > 2 && s.batch.iter().any(|b| !b.is(0)) {
        let lead: Dim = ty.shape[..ty.rank() - 2].iter().cloned().product();
        if lead != p.batch.iter().cloned().product::<Dim>() {
            return Err(wrong("scales that repeat over a part of the batch are not supported").at_input(i));
        }
        ty.shape[ty.rank() - 2].clone() * ty.shape[ty.rank() - 1].clone()
    } else {
        Dim::Const(0)
    };
    Ok(match side {
        Side::A => [batch, s.each, Dim::Const(0)],
        Side::B => [batch, Dim::Const(0), s.each],
    })
}

fn lower_qlinear(cx: &mut LowerCx<'_>) -> Result<()> {
    let p = Product::of(cx, 0, 3)?;
    let (a, b) = (factor(cx, &p, 0, 2, Side::A)?, factor(cx, &p, 3, 5, Side::B)?);
    let x = sums_scratch(cx, &p);
    sums(cx, &p, a, b, x.clone())?;
    let dtype = cx.out_ty(0)?.dtype;
    let (lo, hi) = limits(dtype).ok_or_else(|| wrong(format!("cannot quantise to {dtype}")))?;
    let d = Requantize {
        x,
        a_scale: as_f32(cx, 1)?,
        b_scale: as_f32(cx, 4)?,
        y_scale: as_f32(cx, 6)?,
        y_zero: cx.opt(7)?,
        y: cx.y(0)?,
        dims: [p.batch.iter().cloned().product(), p.m.clone(), p.n.clone()],
        a_strides: scale_strides(cx, &p, 1, Side::A)?,
        b_strides: scale_strides(cx, &p, 4, Side::B)?,
        y_strides: scale_strides(cx, &p, 6, Side::A)?,
        lo,
        hi,
        precision: precision(cx.dtype(1)?),
    };
    cx.call(&[Dtype::I32, Dtype::F32, dtype], d)
}

/// Checks scale, zero point and bias of a product that becomes a float: scales and bias one for all or one a column.
fn infer_float(cx: &mut InferCx<'_>, p: Product, b_scale: usize, bias: usize) -> Result<()> {
    check_scale(cx, &p, b_scale, Side::B)?;
    if let Some(ty) = cx.opt_ty(bias)?
        && (ty.rank() != 1 || (ty.shape[0] != p.n && ty.shape[0].as_const().is_some() && p.n.as_const().is_some()))
    {
        return Err(wrong(format!("expected a vector of {}, found {ty}", p.n)).at_input(bias));
    }
    cx.set(0, tensor(Dtype::F32, p.shape));
    Ok(())
}

/// The call that makes floats of sums.
fn floats(
    cx: &mut LowerCx<'_>,
    p: &Product,
    x: Operand<Dim>,
    a_scale: (Operand<Dim>, Dim),
    b_scale: usize,
    bias: usize,
) -> Result<()> {
    let b_steps = steps(p, cx.ty(b_scale)?, Side::B, b_scale)?;
    if b_steps.batch.iter().any(|b| !b.is(0)) {
        return Err(wrong("a scale for each product of a batch is not supported").at_input(b_scale));
    }
    let d = DequantizeSums {
        x,
        a_scale: a_scale.0,
        b_scale: as_f32(cx, b_scale)?,
        bias: if cx.has(bias) { Some(as_f32(cx, bias)?) } else { None },
        y: cx.y(0)?,
        rows: p.batch.iter().cloned().product::<Dim>() * p.m.clone(),
        n: p.n.clone(),
        a_row: a_scale.1,
        b_column: b_steps.each,
    };
    cx.call(&[Dtype::I32, Dtype::F32], d)
}

fn infer_to_float(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    cx.expect_dtype(1, BYTES)?;
    let p = Product::of(cx, 0, 1)?;
    cx.expect_dtype(2, &[Dtype::F32])?;
    if !cx.ty(2)?.numel().is(1) {
        return Err(wrong(format!("expected one scale, found {}", cx.ty(2)?)).at_input(2));
    }
    check_zero(cx, &p, 4, 0, Side::A)?;
    check_zero(cx, &p, 5, 1, Side::B)?;
    infer_float(cx, p, 3, 6)
}

fn lower_to_float(cx: &mut LowerCx<'_>) -> Result<()> {
    let p = Product::of(cx, 0, 1)?;
    let (a, b) = (factor(cx, &p, 0, 4, Side::A)?, factor(cx, &p, 1, 5, Side::B)?);
    let x = sums_scratch(cx, &p);
    sums(cx, &p, a, b, x.clone())?;
    let a_scale = (as_f32(cx, 2)?, Dim::Const(0));
    floats(cx, &p, x, a_scale, 3, 6)
}

fn infer_dynamic(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::F32])?;
    cx.expect_dtype(1, BYTES)?;
    let p = Product::of(cx, 0, 1)?;
    check_zero(cx, &p, 3, 1, Side::B)?;
    infer_float(cx, p, 2, 4)
}

fn lower_dynamic(cx: &mut LowerCx<'_>) -> Result<()> {
    let p = Product::of(cx, 0, 1)?;
    let b = factor(cx, &p, 1, 3, Side::B)?;
    let x = cx.x(0)?;
    let a = cx.scratch(cx.ty(0)?.numel());
    let (scale, zero) = (cx.scratch(Dim::Const(4)), cx.scratch(Dim::Const(1)));
    let d = DynamicQuantize { x, y: a.clone(), scale: scale.clone(), zero: zero.clone() };
    cx.call(&[Dtype::F32, Dtype::U8], d)?;
    let one = Steps { each: Dim::Const(0), batch: std::array::from_fn(|_| Dim::Const(0)) };
    let a = Factor { at: a, dtype: Dtype::U8, zero: Some((zero, one)) };
    let x = sums_scratch(cx, &p);
    sums(cx, &p, a, b, x.clone())?;
    floats(cx, &p, x, (scale, Dim::Const(0)), 2, 4)
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
