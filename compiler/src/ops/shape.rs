//! Shape and Size: a value's extents as a tensor.
//!
//! <https://onnx.ai/onnx/operators/onnx__Shape.html>, <https://onnx.ai/onnx/operators/onnx__Size.html>

use super::view::{NodeView, Result};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, Operand, StoreInts};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "Shape", &[1, 13, 15, 19, 21, 23, 24, 25], infer_shape, lower).with_dims(shape_dims),
    OpDef::new("", "Size", &[1, 13, 19, 21, 23, 24, 25], infer_size, lower).with_dims(size_dims),
];

/// The axes from `start` to `end`, both clamped, negative ones counting from the end.
fn selected<'a>(cx: &NodeView<'a>) -> Result<&'a [Dim]> {
    let shape = cx.shape(0)?;
    let rank = i64::try_from(shape.len()).unwrap_or(i64::MAX);
    let clamp = |a: i64| usize::try_from((if a < 0 { a.saturating_add(rank) } else { a }).clamp(0, rank)).unwrap_or(0);
    let start = clamp(cx.int("start", 0)?);
    let end = clamp(cx.opt_int("end")?.unwrap_or(rank));
    Ok(shape.get(start..end).unwrap_or_default())
}

fn infer_shape(cx: &mut InferCx<'_>) -> Result<()> {
    let n = selected(cx)?.len();
    cx.set(0, tensor(Dtype::I64, vec![Dim::from(n)]));
    Ok(())
}

fn shape_dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    selected(cx).ok().map(<[Dim]>::to_vec)
}

fn infer_size(cx: &mut InferCx<'_>) -> Result<()> {
    cx.ty(0)?;
    cx.set(0, tensor(Dtype::I64, Vec::new()));
    Ok(())
}

fn size_dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    Some(vec![cx.ty(0).ok()?.numel()])
}

/// Only what depends on symbols gets here; the rest is constant.
fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let values = if cx.node.op == "Size" { vec![cx.ty(0)?.numel()] } else { selected(cx)?.to_vec() };
    store_ints(cx, &values)
}

/// Writes these integers as result 0.
pub(super) fn store_ints(cx: &mut LowerCx<'_>, values: &[Dim]) -> Result<()> {
    let y = cx.y(0)?;
    let dtype = cx.out_ty(0)?.dtype;
    for (i, part) in values.chunks(8).enumerate() {
        let off = y.off + (i * 8 * dtype.size_bytes()) as u64;
        let d = StoreInts {
            y: Operand::at(y.mem, off, Dim::from(part.len() * dtype.size_bytes())),
            n: Dim::from(part.len()),
            values: std::array::from_fn(|i| part.get(i).cloned().unwrap_or(Dim::Const(0))),
        };
        cx.call(&[dtype], d)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn shapes() {
        for (start, end, want) in [
            (None, None, vec![2, 3, 4]),
            (Some(1), None, vec![3, 4]),
            (Some(-1), None, vec![4]),
            (None, Some(-1), vec![2, 3]),
            (Some(-9), Some(9), vec![2, 3, 4]),
            (Some(2), Some(1), vec![]),
            (Some(i64::MIN), Some(i64::MAX), vec![2, 3, 4]),
        ] {
            let mut c = case("", "Shape", 15).input(Tensor::from_u8s(&[2, 3, 4], &[0; 24]));
            if let Some(v) = start {
                c = c.attr("start", Attr::Int(v));
            }
            if let Some(v) = end {
                c = c.attr("end", Attr::Int(v));
            }
            assert_eq!(c.run().unwrap()[0].to_i64s().unwrap(), want);
        }
        let y = case("", "Size", 13).input(Tensor::from_u8s(&[2, 0], &[])).run().unwrap();
        assert_eq!(y[0], Tensor::from_i64s(&[], &[0]));
    }
}
