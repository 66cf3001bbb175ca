//! Pow: a base to the power of an exponent, perhaps of another type; both broadcast. The result has the base's type.
//!
//! Operands of one type go to the kernel as they are, integers of both kinds as the base's, and mixed ones through f64,
//! as NumPy computes them. Constant exponents of one element that are small powers or a root have calls of their own.
//! <https://onnx.ai/onnx/operators/onnx__Pow.html>

use super::binary::{NUMBERS, arithmetic};
use super::broadcast::{self, operand, result_extents};
use super::cast::convert_plain;
use super::unary::{FLOATS, Function, apply};
use super::view::{NodeView, Result, broadcast as joint_shape};
use super::{InferCx, LayoutRule, OpDef, flops_per_element, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{BinaryOp, Dtype, UnaryOp};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "Pow", &[1, 7, 12, 13, 15], infer, lower)
    .with_flops(flops_per_element)
    .with_layout(LayoutRule::Elementwise)];

const BASES: &[Dtype] = &[Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16, Dtype::I32, Dtype::I64];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BASES)?;
    cx.expect_dtype(1, NUMBERS)?;
    let [a, b] = broadcast::pair(cx)?;
    let shape = joint_shape(&[&a, &b])?;
    let dtype = cx.dtype(0)?;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

/// The function of the base alone that a constant exponent makes.
fn function(cx: &NodeView<'_>) -> Option<UnaryOp> {
    if !FLOATS.contains(&cx.dtype(0).ok()?) || cx.ty(0).ok()?.shape != cx.out_ty(0).ok()?.shape {
        return None;
    }
    match cx.constant(1)?.scalar_f64()? {
        2.0 => Some(UnaryOp::Square),
        3.0 => Some(UnaryOp::Cube),
        -1.0 => Some(UnaryOp::Reciprocal),
        _ => None,
    }
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let (base, exponent) = (cx.dtype(0)?, cx.dtype(1)?);
    if let Some(op) = function(cx) {
        let (x, y) = (cx.x(0)?, cx.y(0)?);
        return apply(cx, Function::Plain(op), base, 0.0, 0.0, x, y);
    }
    let [a_shape, b_shape] = broadcast::pair(cx)?;
    let (mut a, a_extents) = operand(cx, 0, &a_shape)?;
    let (mut b, b_extents) = operand(cx, 1, &b_shape)?;
    let y = cx.y(0)?;
    // A 64-bit unsigned exponent beyond i64 would turn negative; such powers are 0, 1 or wrapped anyway.
    let common = if base == exponent {
        base
    } else if base.is_int() && exponent.is_int() {
        Dtype::I64
    } else {
        Dtype::F64
    };
    let bytes = |n: &Dim| n.clone() * Dim::from(common.size_bytes());
    for (operand, extents, dtype) in [(&mut a, &a_extents, base), (&mut b, &b_extents, exponent)] {
        let same_bits = dtype.is_int() && common.is_int() && dtype.size_bytes() == common.size_bytes();
        if dtype != common && !same_bits {
            let n: Dim = extents.iter().cloned().product();
            let wide = cx.scratch(bytes(&n));
            convert_plain(cx, (dtype, operand.clone()), (common, wide.clone()), &n)?;
            *operand = wide;
        }
    }
    if base == common {
        return arithmetic(cx, BinaryOp::Pow, common, (a, &a_extents), (b, &b_extents), y);
    }
    let n: Dim = result_extents(cx)?.into_iter().product();
    let wide = cx.scratch(bytes(&n));
    arithmetic(cx, BinaryOp::Pow, common, (a, &a_extents), (b, &b_extents), wide.clone())?;
    convert_plain(cx, (common, wide), (base, y), &n)
}

#[cfg(test)]
mod tests {
    use crate::ir::Tensor;
    use crate::ops::testing::case;
    use kiln_kernels::Dtype;

    #[test]
    fn types_mix() {
        let f = |v: &[f32]| Tensor::from_f32s(&[v.len()], v);
        let i = |v: &[i64]| Tensor::from_i64s(&[v.len()], v);
        let run =
            |a: &Tensor, b: &Tensor| case("", "Pow", 15).input(a.clone()).input(b.clone()).run().unwrap().remove(0);
        assert_eq!(run(&f(&[2.0, 3.0]), &f(&[3.0, 2.0])), f(&[8.0, 9.0]));
        assert_eq!(run(&f(&[2.0, 3.0]), &i(&[2])), f(&[4.0, 9.0]));
        assert_eq!(run(&i(&[2, 3]), &f(&[3.0, 0.5])), i(&[8, 1]));
        assert_eq!(run(&i(&[2, -3]), &Tensor::from_i32s(&[2], &[10, 3])), i(&[1024, -27]));
        assert_eq!(run(&Tensor::from_i32s(&[1], &[3]), &i(&[21])), Tensor::from_i32s(&[1], &[1_870_418_611]));
        let half = Tensor::new(Dtype::F16, vec![1], 0x4000u16.to_le_bytes().to_vec().into()).unwrap();
        assert_eq!(run(&half, &f(&[3.0])).data()[..], 0x4800u16.to_le_bytes());
        for (e, want) in [(2.0, 9.0), (3.0, 27.0), (-1.0, 1.0 / 3.0), (0.5, 3f32.sqrt())] {
            let y = case("", "Pow", 15).input(f(&[3.0])).constant(Tensor::from_f32s(&[], &[e])).run_f32();
            assert!((y[0] - want).abs() < 1e-6);
        }
    }
}
