//! Where: elements of two operands by a condition.
//!
//! <https://onnx.ai/onnx/operators/onnx__Where.html>

use super::broadcast::{operand, result_extents, strides};
use super::view::{NodeView, Result, broadcast, wrong};
use super::{InferCx, LayoutRule, OpDef, flops_per_element, tensor};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Dtype, Select};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "Where", &[9, 16], infer, lower)
    .with_dims(dims)
    .with_flops(flops_per_element)
    .with_layout(LayoutRule::Elementwise)];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::Bool])?;
    cx.expect_same_dtype(2, 1)?;
    let dtype = cx.dtype(1)?;
    if dtype == Dtype::Str {
        return Err(wrong("strings are not supported").at_input(1));
    }
    let shape = broadcast(&[cx.shape(0)?, cx.shape(1)?, cx.shape(2)?])?;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let dtype = cx.dtype(1)?;
    let shapes = [cx.shape(0)?.to_vec(), cx.shape(1)?.to_vec(), cx.shape(2)?.to_vec()];
    let (c, mut c_extents) = operand(cx, 0, &shapes[0])?;
    let (a, mut a_extents) = operand(cx, 1, &shapes[1])?;
    let (b, mut b_extents) = operand(cx, 2, &shapes[2])?;
    let mut whole = result_extents(cx)?;
    // Elements of 16 bytes are moved as two halves under one condition.
    let width = if dtype == Dtype::C128 {
        c_extents.push(Dim::Const(1));
        for extents in [&mut a_extents, &mut b_extents, &mut whole] {
            extents.push(Dim::Const(2));
        }
        Dtype::U64
    } else {
        width_of(dtype)?
    };
    let s = strides(&whole, [&c_extents, &a_extents, &b_extents])?;
    let [c_strides, a_strides, b_strides] = s.of;
    let y = cx.y(0)?;
    cx.call(&[width, Dtype::U8], Select { c, a, b, y, dims: s.dims, c_strides, a_strides, b_strides })
}

/// Chosen by a condition that is an expression.
fn dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    if (0..3).any(|i| cx.rank(i).map_or(true, |r| r > 1)) || (0..3).all(|i| cx.constant(i).is_some()) {
        return None;
    }
    let (c, a, b) = (cx.dims(0)?, cx.dims(1)?, cx.dims(2)?);
    let n = [&c, &a, &b].iter().map(|v| v.len()).find(|&n| n != 1).unwrap_or(1);
    let at = |v: &[Dim], i: usize| if v.len() == 1 { v.first().cloned() } else { v.get(i).cloned() };
    let choose = |i| {
        let (c, a, b) = (at(&c, i)?, at(&a, i)?, at(&b, i)?);
        Some(match c.as_const() {
            Some(0) => b,
            Some(_) => a,
            None if a == b => a,
            // Truth values are 0 and 1.
            None => c.clone() * a + (Dim::Const(1) - c) * b,
        })
    };
    (0..n).map(choose).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Tensor;
    use crate::ops::testing::case;

    #[test]
    fn selects() {
        let c = Tensor::new(Dtype::Bool, vec![2, 1], vec![1u8, 0].into()).unwrap();
        let a = Tensor::from_f32s(&[2], &[1., 2.]);
        let b = Tensor::from_f32s(&[], &[9.]);
        let y = case("", "Where", 16).input(c.clone()).input(a.clone()).input(b).run().unwrap();
        assert_eq!(y[0], Tensor::from_f32s(&[2, 2], &[1., 2., 9., 9.]));
        let wide = |v: f64| {
            let data: Vec<u8> = [v, v + 1.0].iter().flat_map(|x| x.to_le_bytes()).collect();
            Tensor::new(Dtype::C128, vec![1], data.into()).unwrap()
        };
        let y = case("", "Where", 16).input(c.clone()).input(wide(1.0)).input(wide(5.0)).run().unwrap();
        assert_eq!(y[0].dims(), &[2, 1]);
        assert_eq!(y[0].data()[..16], wide(1.0).data()[..]);
        assert_eq!(y[0].data()[16..], wide(5.0).data()[..]);
        assert!(case("", "Where", 16).input(c).input(a).input(Tensor::from_i64s(&[1], &[1])).infer().is_err());
    }
}
