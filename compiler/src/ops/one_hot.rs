//! OneHot.
//!
//! <https://onnx.ai/onnx/operators/onnx__OneHot.html>

use super::index::as_i64;
use super::view::{NodeView, Result, may_equal, resolve_axis, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Dtype, OneHot};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "OneHot", &[9, 11, 28], infer, lower)];

fn axis(cx: &NodeView<'_>) -> Result<usize> {
    resolve_axis(cx.int("axis", -1)?, cx.rank(0)? + 1).map_err(|e| e.at_attribute("axis"))
}

/// The depth where it is known: an integer, or a float that is one.
fn depth(cx: &NodeView<'_>) -> Result<Option<Dim>> {
    if cx.ty(1)?.numel().as_const().is_some_and(|n| n != 1) {
        return Err(wrong(format!("expected one element, found {}", cx.ty(1)?)).at_input(1));
    }
    if let Some(d) = cx.dims(1) {
        return Ok(d.into_iter().next());
    }
    Ok(cx.constant(1).and_then(|t| t.scalar_f64()).map(|v| Dim::Const(v as i64)))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    for i in 0..2 {
        let found = cx.dtype(i)?;
        if !found.is_int() && !matches!(found, Dtype::F32 | Dtype::F64 | Dtype::F16 | Dtype::Bf16) {
            return Err(wrong(format!("expected numbers, found {}", cx.ty(i)?)).at_input(i));
        }
    }
    let values = cx.ty(2)?;
    if !may_equal(&values.shape, &[Dim::Const(2)]) {
        return Err(wrong(format!("expected [off, on], found {values}")).at_input(2));
    }
    let axis = axis(cx)?;
    let depth = match depth(cx)? {
        Some(d) => d,
        // Known only at run time: the declared extent, checked then.
        None => cx.declared(0, cx.rank(0)? + 1).map(|s| s[axis].clone()).ok_or_else(|| cx.unknown(1))?,
    };
    if depth.as_const().is_some_and(|d| d < 0) {
        return Err(wrong(format!("a depth of {depth}")).at_input(1));
    }
    let mut shape = cx.shape(0)?.to_vec();
    shape.insert(axis, depth);
    let dtype = values.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let axis = axis(cx)?;
    let stated = if depth(cx)?.is_none() { Some(as_i64(cx, 1)?) } else { None };
    let shape = cx.shape(0)?;
    cx.expect_equal([(&cx.shape(2)?[0], &Dim::Const(2))])?;
    let indices = as_i64(cx, 0)?;
    let d = OneHot {
        indices,
        values: cx.x(2)?,
        stated,
        y: cx.y(0)?,
        outer: shape[..axis].iter().cloned().product(),
        depth: cx.out_shape(0)?[axis].clone(),
        inner: shape[axis..].iter().cloned().product(),
    };
    cx.call(&[Dtype::I64, width_of(cx.dtype(2)?)?], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn rows() {
        let values = Tensor::from_f32s(&[2], &[-1., 1.]);
        for indices in [Tensor::from_i64s(&[3], &[0, -1, 7]), Tensor::from_f32s(&[3], &[0., -1., 7.])] {
            let c = case("", "OneHot", 11).input(indices).constant(Tensor::from_i64s(&[], &[3])).input(values.clone());
            assert_eq!(c.run_f32(), [1., -1., -1., -1., -1., 1., -1., -1., -1.]);
            let y = c.attr("axis", Attr::Int(0)).run_f32();
            assert_eq!(y, [1., -1., -1., -1., -1., -1., -1., 1., -1.]);
        }
        let i = Tensor::from_i64s(&[1], &[0]);
        let c = case("", "OneHot", 11).input(i.clone()).constant(Tensor::from_i64s(&[], &[-3])).input(values.clone());
        assert!(c.infer().is_err());
        assert!(case("", "OneHot", 11).input(i.clone()).input(i).input(values).infer().is_err());
    }
}
