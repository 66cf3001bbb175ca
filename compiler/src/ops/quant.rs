//! What the quantised operators share: scales as `f32`, zero points, their arrangement, memory types.

use super::binary::memory_type;
use super::view::{NodeView, Result, resolve_axis, wrong};
use super::{half, strided::row_major};
use crate::ir::{Dim, Layout, Tensor};
use crate::lower::LowerCx;
use kiln_kernels::{Cast, Decode, Dtype, Operand, Precision, SmallFloat, bf16, f16};

/// Least and greatest value of an integer type of at most 16 bits.
pub fn limits(dtype: Dtype) -> Option<(i32, i32)> {
    let bits = u32::try_from(dtype.bits()).ok().filter(|_| dtype.is_int() && dtype.bits() <= 16)?;
    Some(if dtype.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) })
}

/// The precision that a scale's type stands for.
pub fn precision(dtype: Dtype) -> Precision {
    match dtype {
        Dtype::F16 => Precision::F16,
        Dtype::Bf16 => Precision::Bf16,
        _ => Precision::F32,
    }
}

/// The elements of a constant float tensor as `f32`s.
pub fn const_f32s(t: &Tensor) -> Option<Vec<f32>> {
    let halves = |f: fn(u16) -> f32| t.data().chunks_exact(2).map(|c| f(u16::from_le_bytes([c[0], c[1]]))).collect();
    Some(match t.dtype() {
        Dtype::F32 => t.to_f32s()?,
        Dtype::F16 => halves(|b| f16::from_bits(b).to_f32()),
        Dtype::Bf16 => halves(|b| bf16::from_bits(b).to_f32()),
        Dtype::I32 => t.to_i32s()?.into_iter().map(|v| v as f32).collect(),
        other => {
            let format = SmallFloat::of(other)?;
            t.data().iter().map(|&b| format.decode(b)).collect()
        }
    })
}

/// A constant of a float type from `f32`s, each rounded once; `None` for other types.
pub fn float_tensor(dtype: Dtype, dims: &[usize], values: &[f32]) -> Option<Tensor> {
    let bits: fn(f32) -> u16 = match dtype {
        Dtype::F32 => return Some(Tensor::from_f32s(dims, values)),
        Dtype::F16 => |v| f16::from_f32(v).to_bits(),
        Dtype::Bf16 => |v| bf16::from_f32(v).to_bits(),
        _ => return None,
    };
    let data: Vec<u8> = values.iter().flat_map(|&v| bits(v).to_le_bytes()).collect();
    Tensor::new(dtype, dims.to_vec(), data.into())
}

/// A scale operand, or one that takes part in such arithmetic, as `f32`.
pub fn as_f32(cx: &mut LowerCx<'_>, i: usize) -> Result<Operand<Dim>> {
    let ty = cx.ty(i)?;
    if ty.dtype == Dtype::F32 {
        return cx.x(i);
    }
    if let Some(values) = cx.constant(i).and_then(|t| const_f32s(t)) {
        return Ok(cx.f32_weights(&values));
    }
    if half::is_half(ty.dtype) {
        return half::x(cx, i);
    }
    let (x, n) = (cx.x(i)?, ty.numel());
    let y = cx.scratch(n.clone() * Dim::Const(4));
    if let Some(format) = SmallFloat::of(ty.dtype) {
        cx.call(&[Dtype::U8, Dtype::F32], Decode { x, y: y.clone(), n, format })?;
    } else {
        cx.call(&[memory_type(ty.dtype), Dtype::F32], Cast { x, y: y.clone(), n })?;
    }
    Ok(y)
}

/// A scale that must be one constant.
pub fn const_scale(cx: &NodeView<'_>, i: usize) -> Result<f32> {
    let t = cx.constant(i).ok_or_else(|| wrong("the scale must be constant here").at_input(i))?;
    match const_f32s(t).as_deref() {
        Some([scale]) => Ok(*scale),
        _ => Err(wrong(format!("expected one scale, found {t:?}")).at_input(i)),
    }
}

/// A zero point that must be one constant; absent, it is 0.
pub fn const_zero(cx: &NodeView<'_>, i: usize) -> Result<i32> {
    if !cx.has(i) {
        return Ok(0);
    }
    let t = cx.constant(i).ok_or_else(|| wrong("the zero point must be constant here").at_input(i))?;
    match t.to_ints().as_deref() {
        Some([zero]) => Ok(i32::try_from(*zero).unwrap_or(0)),
        _ => Err(wrong(format!("expected one zero point, found {t:?}")).at_input(i)),
    }
}

/// Refuses a scale that is not one `f32`.
pub fn expect_one_scale(cx: &NodeView<'_>, i: usize) -> Result<()> {
    cx.expect_dtype(i, &[Dtype::F32, Dtype::F16, Dtype::Bf16])?;
    if cx.ty(i)?.numel().is(1) {
        return Ok(());
    }
    Err(wrong(format!("expected one scale, found {}", cx.ty(i)?)).at_input(i))
}

/// Refuses a zero point, if one is given, that is not one element of operand `of`'s type.
pub fn expect_one_zero(cx: &NodeView<'_>, i: usize, of: usize) -> Result<()> {
    let Some(ty) = cx.opt_ty(i)? else { return Ok(()) };
    if ty.numel().is(1) && ty.dtype == cx.dtype(of)? {
        return Ok(());
    }
    Err(wrong(format!("expected one zero point of {}, found {ty}", cx.dtype(of)?)).at_input(i))
}

/// A function of quantised values as a table over the bytes of their codes.
pub fn code_table(dtype: Dtype, x: (f32, i32), y: (f32, i32), f: impl Fn(f32) -> f32) -> Vec<u8> {
    let (lo, hi) = limits(dtype).unwrap_or((0, 255));
    (0..=255u8)
        .map(|byte| {
            let code = if dtype.is_signed() { i32::from(byte as i8) } else { i32::from(byte) };
            let q = (f((code - x.1) as f32 * x.0) / y.0).round_ties_even();
            let q = q.max((lo - y.1) as f32).min((hi - y.1) as f32) as i32 + y.1;
            q as u8
        })
        .collect()
}

/// How scales and zero points belong to the elements of a tensor seen as `[outer, n, inner]`.
pub struct Arrangement {
    /// `[outer, n, inner]`.
    pub dims: [Dim; 3],
    /// Elements along `n` that share a scale.
    pub block: Dim,
    /// Strides of the scales over outer positions, blocks, inner positions.
    pub strides: [Dim; 3],
}

impl Arrangement {
    /// The same over operand 0's elements in memory: of a blocked tensor, which has one scale, all of them.
    pub fn physical(mut self, cx: &NodeView<'_>) -> Result<Self> {
        if cx.layout(0)? != Layout::Plain {
            self.dims[2] = cx.ty(0)?.physical_shape(cx.layout(0)?).into_iter().product();
        }
        Ok(self)
    }

    /// Of operand 0, with scales in operand `scale` and, where given, zero points in operand `zero`.
    pub fn of(cx: &NodeView<'_>, scale: usize, zero: usize) -> Result<Self> {
        let (x, s) = (cx.ty(0)?, cx.ty(scale)?);
        if let Some(z) = cx.opt_ty(zero)?
            && !(z.shape == s.shape || (z.numel().is(1) && s.numel().is(1)))
        {
            let known = z.const_dims().is_some() && s.const_dims().is_some();
            if known || z.rank() != s.rank() {
                return Err(wrong(format!("expected the scale's shape, {s}, found {z}")).at_input(zero));
            }
        }
        let one = || Dim::Const(1);
        let none = || Dim::Const(0);
        let block = cx.int("block_size", 0)?;
        if block < 0 {
            return Err(wrong("must not be negative").at_attribute("block_size"));
        }
        if s.rank() == 0 || (s.rank() == 1 && s.shape[0].is(1)) {
            return Ok(Self { dims: [one(), one(), x.numel()], block: one(), strides: [none(), none(), none()] });
        }
        // A vector is quantised along its only axis, whatever the default says.
        let axis = if x.rank() == 1 && !cx.has_attr("axis") { 0 } else { cx.int("axis", 1)? };
        let axis = resolve_axis(axis, x.rank()).map_err(|e| e.at_attribute("axis"))?;
        let outer: Dim = x.shape[..axis].iter().cloned().product();
        let inner: Dim = x.shape[axis + 1..].iter().cloned().product();
        let n = x.shape[axis].clone();
        let fits = |a: &Dim, b: &Dim| a == b || a.as_const().is_none() || b.as_const().is_none();
        if block == 0 {
            if s.rank() != 1 || !fits(&s.shape[0], &n) {
                return Err(wrong(format!("expected a scale for each of {n} positions, found {s}")).at_input(scale));
            }
            if inner.is(1) {
                return Ok(Self { dims: [outer, one(), n], block: one(), strides: [none(), none(), one()] });
            }
            return Ok(Self { dims: [outer, n, inner], block: one(), strides: [none(), one(), none()] });
        }
        let block = Dim::Const(block);
        let mut expected = x.shape.clone();
        expected[axis] = n.ceil_div(&block);
        if s.rank() != x.rank() || !s.shape.iter().zip(&expected).all(|(a, b)| fits(a, b)) {
            let expected = crate::ir::ShapeText(&expected);
            return Err(wrong(format!("expected scales of shape {expected}, found {s}")).at_input(scale));
        }
        let step = row_major(&expected);
        let outer_stride = if axis == 0 { none() } else { step[axis - 1].clone() };
        Ok(Self { dims: [outer, n, inner], block, strides: [outer_stride, step[axis].clone(), one()] })
    }
}
