//! Constant and ConstantOfShape: tensors that the model spells out.
//!
//! <https://onnx.ai/onnx/operators/onnx__Constant.html>, <https://onnx.ai/onnx/operators/onnx__ConstantOfShape.html>

use super::run_time::check_ints;
use super::strided::fill;
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::{Attr, Tensor};
use crate::lower::LowerCx;
use std::sync::Arc;

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "Constant", &[1, 9, 11, 12, 13, 19, 21, 23, 24, 25], infer_constant, lower_constant),
    OpDef::new("", "ConstantOfShape", &[9, 20, 21, 23, 24, 25], infer_of_shape, lower_of_shape),
];

fn infer_constant(cx: &mut InferCx<'_>) -> Result<()> {
    let t = constant_value(cx)?;
    cx.set_constant(0, t);
    Ok(())
}

/// The tensor that exactly one of the attributes holds.
fn constant_value(cx: &NodeView<'_>) -> Result<Arc<Tensor>> {
    let mut values = cx.node.attrs.iter().filter(|(name, _)| name.contains("value"));
    let (Some((name, value)), None) = (values.next(), values.next()) else {
        return Err(wrong("exactly one attribute with the value is expected"));
    };
    let length = |n: usize| vec![n];
    Ok(match (name.as_str(), value) {
        ("value", Attr::Tensor(t)) => return Ok(Arc::clone(t)),
        ("value_int", Attr::Int(v)) => Tensor::from_i64s(&[], &[*v]),
        ("value_ints", Attr::Ints(v)) => Tensor::from_i64s(&length(v.len()), v),
        ("value_float", Attr::Float(v)) => Tensor::from_f32s(&[], &[*v]),
        ("value_floats", Attr::Floats(v)) => Tensor::from_f32s(&length(v.len()), v),
        ("value_string" | "value_strings", _) => return Err(wrong("strings are not supported").at_attribute(name)),
        (_, other) => return Err(wrong(format!("unexpected {}", other.kind())).at_attribute(name)),
    }
    .into())
}

fn lower_constant(_: &mut LowerCx<'_>) -> Result<()> {
    Err(CompileError::new(Stage::Lower, "a constant is folded when types are inferred"))
}

/// The element that ConstantOfShape repeats: `f32` 0 unless given.
fn element(cx: &NodeView<'_>) -> Result<Tensor> {
    match cx.opt_tensor("value")? {
        None => Ok(Tensor::from_f32s(&[], &[0.0])),
        Some(t) if t.numel() == 1 => Ok(t.as_ref().clone()),
        Some(t) => Err(wrong(format!("expected one element, found {t:?}")).at_attribute("value")),
    }
}

fn infer_of_shape(cx: &mut InferCx<'_>) -> Result<()> {
    let dtype = element(cx)?.dtype();
    let shape = match cx.dims(0) {
        Some(d) => d,
        // Known only at run time: the declared extents, checked then.
        None => {
            let rank = cx.shape(0)?.first().and_then(|n| usize::try_from(n.as_const()?).ok());
            rank.and_then(|rank| cx.declared(0, rank)).ok_or_else(|| cx.unknown(0))?
        }
    };
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_of_shape(cx: &mut LowerCx<'_>) -> Result<()> {
    if cx.dims(0).is_none() {
        let planned = cx.out_shape(0)?;
        check_ints(cx, 0, 0, planned)?;
    }
    let t = element(cx)?;
    let y = cx.y(0)?;
    let x = cx.weights(t.data().clone());
    let n = cx.out_ty(0)?.numel();
    fill(cx, t.dtype(), x, y, n)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn every_attribute_folds() {
        for (name, value, dims, bytes) in [
            ("value", Attr::Tensor(Tensor::from_u8s(&[2], &[3, 4]).into()), vec![2], vec![3, 4]),
            ("value_int", Attr::Int(-1), vec![], (-1i64).to_le_bytes().to_vec()),
            ("value_ints", Attr::Ints(vec![7]), vec![1], 7i64.to_le_bytes().to_vec()),
            ("value_float", Attr::Float(1.5), vec![], 1.5f32.to_le_bytes().to_vec()),
            ("value_floats", Attr::Floats(vec![]), vec![0], vec![]),
        ] {
            let c = case("", "Constant", 13).attr(name, value);
            let graph = c.infer().unwrap();
            assert!(graph.nodes.is_empty());
            let t = graph.constant(graph.outputs[0].1).unwrap();
            assert_eq!((t.dims(), &t.data()[..]), (&dims[..], &bytes[..]), "{name}");
        }
        assert!(case("", "Constant", 13).infer().is_err());
    }

    #[test]
    fn constant_of_shape() {
        let shape = Tensor::from_i64s(&[2], &[2, 3]);
        let y = case("", "ConstantOfShape", 9).constant(shape.clone()).run().unwrap();
        assert_eq!(y[0], Tensor::from_f32s(&[2, 3], &[0.0; 6]));
        let one = Attr::Tensor(Tensor::from_u8s(&[1], &[9]).into());
        let y = case("", "ConstantOfShape", 9).constant(shape).attr("value", one).run().unwrap();
        assert_eq!(y[0], Tensor::from_u8s(&[2, 3], &[9; 6]));
        let empty = case("", "ConstantOfShape", 9).constant(Tensor::from_i64s(&[1], &[0])).run().unwrap();
        assert_eq!(empty[0].dims(), &[0]);
        for bad in [-1, i64::MAX] {
            assert!(case("", "ConstantOfShape", 9).constant(Tensor::from_i64s(&[1], &[bad])).infer().is_err());
        }
    }
}
