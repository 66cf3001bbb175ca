//! Products of 8-bit integer matrices: MatMulInteger, QLinearMatMul, and ONNX Runtime's MatMulIntegerToFloat and
//! DynamicQuantizeMatMul.
//!
//! A zero point or scale is one for all, or one a row of A, one a column of B.
//! <https://onnx.ai/onnx/operators/onnx__MatMulInteger.html>, <https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html>,
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>

use super::broadcast::stride;
use super::quant::{as_f32, const_scale, expect_one_scale, expect_one_zero, limits, precision};
use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, broadcast, may_equal, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::{Dim, TensorType};
use crate::lower::LowerCx;
use kiln_kernels::gemm::int8::pack::packed_zero;
use kiln_kernels::gemm::int8::{pack_int8_into, packed_int8_len};
use kiln_kernels::{
    Activation, DequantizeSums, Dtype, DynamicQuantize, GemmInt8, IntMatMul, Operand, Precision, Requantize,
};

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
    if rows_agree(cx, &p, 2)?
        && let Some(b) = packed(cx, 1, 3, false)?
    {
        let (a, y) = ((cx.x(0)?, cx.opt(2)?, cx.dtype(0)?), cx.y(0)?);
        return gemm(cx, &p, a, b, Scaled::default(), (y, Dtype::I32));
    }
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
            let scalars = zero.numel().is(1) && cx.ty(6)?.numel().is(1);
            if !may_equal(&zero.shape, cx.shape(6)?) && !scalars {
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
    let dtype = cx.out_ty(0)?.dtype;
    let tuned = rows_agree(cx, &p, 2)? && is_one(cx, 1)? && is_one(cx, 6)? && precision(cx.dtype(1)?) == Precision::F32;
    if tuned && let Some(b) = packed(cx, 3, 5, false)? {
        let s = Scaled {
            bias: cx.opt(8)?,
            a_scale: Some(as_f32(cx, 1)?),
            b_scale: Some(as_f32(cx, 4)?),
            c_scale: Some(as_f32(cx, 6)?),
            c_zero: cx.opt(7)?,
            ..Scaled::default()
        };
        let (a, y) = ((cx.x(0)?, cx.opt(2)?, cx.dtype(0)?), cx.y(0)?);
        return gemm(cx, &p, a, b, s, (y, dtype));
    }
    if cx.has(8) {
        return Err(wrong("a bias needs constant weights").at_input(8));
    }
    let (a, b) = (factor(cx, &p, 0, 2, Side::A)?, factor(cx, &p, 3, 5, Side::B)?);
    let x = sums_scratch(cx, &p);
    sums(cx, &p, a, b, x.clone())?;
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

/// The tuned kernel's call that makes floats.
fn gemm_to_float(
    cx: &mut LowerCx<'_>,
    p: &Product,
    a: (Operand<Dim>, Option<Operand<Dim>>, Dtype),
    a_scale: Operand<Dim>,
    b: Packed,
    b_scale: usize,
    bias: usize,
) -> Result<()> {
    let s = Scaled {
        a_scale: Some(a_scale),
        b_scale: Some(as_f32(cx, b_scale)?),
        bias_f32: if cx.has(bias) { Some(as_f32(cx, bias)?) } else { None },
        ..Scaled::default()
    };
    let y = cx.y(0)?;
    gemm(cx, p, a, b, s, (y, Dtype::F32))
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
    if rows_agree(cx, &p, 4)?
        && let Some(b) = packed(cx, 1, 5, false)?
    {
        let a = (cx.x(0)?, cx.opt(4)?, cx.dtype(0)?);
        let a_scale = as_f32(cx, 2)?;
        return gemm_to_float(cx, &p, a, a_scale, b, 3, 6);
    }
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
    let x = cx.x(0)?;
    let a = cx.scratch(cx.ty(0)?.numel());
    let (scale, zero) = (cx.scratch(Dim::Const(4)), cx.scratch(Dim::Const(1)));
    let d = DynamicQuantize { x, y: a.clone(), scale: scale.clone(), zero: zero.clone() };
    cx.call(&[Dtype::F32, Dtype::U8], d)?;
    if let Some(b) = packed(cx, 1, 3, false)? {
        return gemm_to_float(cx, &p, (a, Some(zero), Dtype::U8), scale, b, 2, 4);
    }
    let b = factor(cx, &p, 1, 3, Side::B)?;
    let one = Steps { each: Dim::Const(0), batch: std::array::from_fn(|_| Dim::Const(0)) };
    let a = Factor { at: a, dtype: Dtype::U8, zero: Some((zero, one)) };
    let x = sums_scratch(cx, &p);
    sums(cx, &p, a, b, x.clone())?;
    floats(cx, &p, x, (scale, Dim::Const(0)), 2, 4)
}

/// QGemm's product, and whether A and B are transposed.
fn gemm_product(cx: &NodeView<'_>) -> Result<(Product, bool, bool)> {
    cx.expect_rank(0, 2)?;
    cx.expect_rank(3, 2)?;
    let (ta, tb) = (cx.int("transA", 0)? != 0, cx.int("transB", 0)? != 0);
    let (mut a, mut b) = (cx.shape(0)?.to_vec(), cx.shape(3)?.to_vec());
    if ta {
        a.reverse();
    }
    if tb {
        b.reverse();
    }
    let (m, k, k_b, n) = (a[0].clone(), a[1].clone(), b[0].clone(), b[1].clone());
    if k != k_b && k.as_const().is_some() && k_b.as_const().is_some() {
        return Err(wrong(format!("inner extents {k} and {k_b} differ")));
    }
    let shape = vec![m.clone(), n.clone()];
    Ok((Product { batch: Vec::new(), m, n, k, a, b, shape }, ta, tb))
}

/// A, its scale and zero point, B, its, C in `i32`, the result's scale and zero point.
fn infer_gemm(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    cx.expect_dtype(3, BYTES)?;
    let (p, ..) = gemm_product(cx)?;
    expect_one_scale(cx, 1)?;
    expect_one_zero(cx, 2, 0)?;
    check_scale(cx, &p, 4, Side::B)?;
    check_zero(cx, &p, 5, 3, Side::B)?;
    if let Some(c) = cx.opt_ty(6)? {
        cx.expect_dtype(6, &[Dtype::I32])?;
        let last = c.shape.last();
        if !c.numel().is(1) && (last != Some(&p.n) || c.numel() != p.n) {
            return Err(wrong(format!("expected a value for each of {} columns, found {c}", p.n)).at_input(6));
        }
    }
    if cx.constant(3).is_none() || (cx.has(5) && cx.constant(5).is_none() && cx.dtype(3)? == Dtype::U8) {
        return Err(wrong("must be constant here").at_input(3));
    }
    let dtype = if cx.has(7) {
        expect_one_scale(cx, 7)?;
        match cx.opt_ty(8)? {
            None => cx.dtype(0)?,
            Some(zero) => {
                cx.expect_dtype(8, BYTES)?;
                expect_one_zero(cx, 8, 8)?;
                zero.dtype
            }
        }
    } else {
        Dtype::F32
    };
    cx.set(0, tensor(dtype, p.shape));
    Ok(())
}

fn lower_gemm(cx: &mut LowerCx<'_>) -> Result<()> {
    let (p, ta, tb) = gemm_product(cx)?;
    let mut a = cx.x(0)?;
    let dtype = cx.dtype(0)?;
    if ta {
        let dense = cx.scratch(cx.ty(0)?.numel());
        let copy = StridedCopy {
            dims: p.a.clone(),
            x_start: Dim::Const(0),
            x_strides: vec![Dim::Const(1), p.m.clone()],
            y_start: Dim::Const(0),
            y_strides: row_major(&p.a),
        };
        copy.lower(cx, dtype, a, dense.clone())?;
        a = dense;
    }
    let alpha = cx.float("alpha", 1.0)?;
    let a_scale = if alpha == 1.0 {
        as_f32(cx, 1)?
    } else {
        let scale = alpha * const_scale(cx, 1)?;
        cx.f32_weights(&[scale])
    };
    let bias = match cx.constant(6) {
        Some(c) if c.numel() == 1 => {
            let n = p.n.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
            Some(cx.weights(c.data().repeat(n)))
        }
        _ if cx.opt_ty(6)?.is_some_and(|c| c.numel().is(1) && !p.n.is(1)) => {
            return Err(wrong("one value for all columns must be constant").at_input(6));
        }
        _ => cx.opt(6)?,
    };
    let b = packed(cx, 3, 5, tb)?.ok_or_else(|| wrong("must be constant here").at_input(3))?;
    let c_scale = if cx.has(7) { Some(as_f32(cx, 7)?) } else { None };
    let s = Scaled {
        bias,
        a_scale: Some(a_scale),
        b_scale: Some(as_f32(cx, 4)?),
        c_scale,
        c_zero: cx.opt(8)?,
        bias_f32: None,
    };
    let a = (a, cx.opt(2)?, dtype);
    let y = (cx.y(0)?, cx.out_ty(0)?.dtype);
    gemm(cx, &p, a, b, s, y)
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
