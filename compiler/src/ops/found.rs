//! Operators whose result's extent depends on elements: NonZero, Compress, Unique, NonMaxSuppression.
//!
//! The extent is a symbol between derived bounds that the kernel gives its value. Where the operands are constant the
//! result folds, and the symbol with it.
//!
//! <https://onnx.ai/onnx/operators/onnx__NonZero.html>, <https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html>

use super::arg::ORDERED;
use super::index::last8;
use super::view::{NodeView, Result, resolve_axis, wrong};
use super::{InferCx, OpDef, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, SymbolSource};
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Compress, Dtype, NO_SLOT, NonMaxSuppression, NonZero, Operand, Unique};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "NonZero", &[9, 13], infer_nonzero, lower_nonzero),
    OpDef::new("", "Compress", &[9, 11, 28], infer_compress, lower_compress),
    OpDef::new("", "Unique", &[11, 28], infer_unique, lower_unique),
    OpDef::new("", "NonMaxSuppression", &[10, 11], infer_nms, lower_nms),
];

/// The slot of an extent that a kernel finds.
pub(super) fn slot(dim: &Dim) -> Result<usize> {
    let mut slots = Vec::new();
    dim.symbols(&mut |s| {
        if let SymbolSource::Data { slot } = s.source {
            slots.push(slot);
        }
    });
    slots
        .first()
        .copied()
        .ok_or_else(|| CompileError::new(Stage::Lower, format!("extent {dim} is not found at run time")))
}

/// Memory for a result of as many elements as it can have; its own extents are known only after the call.
fn bounded(cx: &mut LowerCx<'_>, i: usize, dtype: Dtype, most: Dim) -> Result<Operand<Dim>> {
    let bytes = most * Dim::from(dtype.size_bytes());
    let place = if cx.wants(i) { cx.y(i)? } else { cx.scratch(bytes.clone()) };
    Ok(Operand { bytes, ..place })
}

fn infer_nonzero(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let (rank, most) = (x.rank(), x.numel().upper());
    let count = cx.data_dim("nonzero", 0, most);
    cx.set(0, tensor(Dtype::I64, vec![Dim::from(rank), count]));
    Ok(())
}

fn lower_nonzero(cx: &mut LowerCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let dims = last8(&x.shape, 1)
        .ok_or_else(|| CompileError::new(Stage::Lower, format!("rank {}, the kernel takes 8", x.rank())))?;
    let d = NonZero {
        x: cx.x(0)?,
        y: bounded(cx, 0, Dtype::I64, x.numel() * Dim::from(x.rank()))?,
        rank: Dim::from(x.rank()),
        dims,
        float: x.dtype.is_float(),
        count: slot(&cx.out_shape(0)?[1])?,
    };
    cx.call(&[width_of(x.dtype)?, Dtype::I64], d)
}

/// The axis of Compress or Unique; without one the operand is taken as flat.
fn axis(cx: &NodeView<'_>) -> Result<Option<usize>> {
    match cx.opt_int("axis")? {
        None => Ok(None),
        Some(a) => resolve_axis(a, cx.rank(0)?).map(Some).map_err(|e| e.at_attribute("axis")),
    }
}

/// Operand 0 as `[outer, axis, inner]`.
fn sides(cx: &NodeView<'_>) -> Result<[Dim; 3]> {
    let x = cx.ty(0)?;
    Ok(match axis(cx)? {
        None => [Dim::Const(1), x.numel(), Dim::Const(1)],
        Some(a) => {
            [x.shape[..a].iter().cloned().product(), x.shape[a].clone(), x.shape[a + 1..].iter().cloned().product()]
        }
    })
}

/// Operand 0's extents with another one on the axis, or that one alone.
fn with_extent(cx: &NodeView<'_>, count: Dim) -> Result<Vec<Dim>> {
    Ok(match axis(cx)? {
        None => vec![count],
        Some(a) => {
            let mut shape = cx.shape(0)?.to_vec();
            shape[a] = count;
            shape
        }
    })
}

/// The extent of the result's axis.
fn found_extent(cx: &NodeView<'_>, i: usize) -> Result<Dim> {
    let shape = cx.out_shape(i)?;
    shape.get(axis(cx)?.unwrap_or(0)).cloned().ok_or_else(|| CompileError::new(Stage::Lower, "a result of rank 0"))
}

fn infer_compress(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(1, &[Dtype::Bool])?;
    cx.expect_rank(1, 1)?;
    let [_, n, _] = sides(cx)?;
    let most = match (n.upper(), cx.shape(1)?[0].upper()) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let count = cx.data_dim("compressed", 0, most);
    let (dtype, shape) = (cx.dtype(0)?, with_extent(cx, count)?);
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_compress(cx: &mut LowerCx<'_>) -> Result<()> {
    let [outer, axis, inner] = sides(cx)?;
    let dtype = cx.dtype(0)?;
    let n_conditions = cx.shape(1)?[0].clone();
    let most = outer.clone() * axis.at_most(&n_conditions) * inner.clone();
    let d = Compress {
        x: cx.x(0)?,
        condition: cx.x(1)?,
        y: bounded(cx, 0, dtype, most)?,
        outer,
        axis,
        inner,
        n_conditions,
        count: slot(&found_extent(cx, 0)?)?,
    };
    cx.call(&[width_of(dtype)?, Dtype::U8], d)
}

/// What Unique compares elements as: bools are bytes.
fn ordered(dtype: Dtype) -> Dtype {
    if dtype == Dtype::Bool { Dtype::U8 } else { dtype }
}

fn infer_unique(cx: &mut InferCx<'_>) -> Result<()> {
    let dtype = cx.dtype(0)?;
    if !ORDERED.contains(&ordered(dtype)) {
        return Err(wrong(format!("no order of {dtype}")).at_input(0));
    }
    let [_, n, _] = sides(cx)?;
    let least = i64::from(n.lower() > 0);
    let count = cx.data_dim("unique", least, n.upper());
    let shape = with_extent(cx, count.clone())?;
    cx.set(0, tensor(dtype, shape));
    cx.set(1, tensor(Dtype::I64, vec![count.clone()]));
    cx.set(2, tensor(Dtype::I64, vec![n]));
    cx.set(3, tensor(Dtype::I64, vec![count]));
    Ok(())
}

fn lower_unique(cx: &mut LowerCx<'_>) -> Result<()> {
    let [outer, n, inner] = sides(cx)?;
    let dtype = cx.dtype(0)?;
    let extent = match (cx.wants(0), cx.wants(1), cx.wants(3)) {
        (true, ..) => slot(&found_extent(cx, 0)?)?,
        (_, true, _) => slot(&cx.out_shape(1)?[0])?,
        (.., true) => slot(&cx.out_shape(3)?[0])?,
        // Nobody reads the extent.
        _ => NO_SLOT,
    };
    let d = Unique {
        x: cx.x(0)?,
        y: bounded(cx, 0, dtype, outer.clone() * n.clone() * inner.clone())?,
        first: bounded(cx, 1, Dtype::I64, n.clone())?,
        inverse: bounded(cx, 2, Dtype::I64, n.clone())?,
        counts: bounded(cx, 3, Dtype::I64, n.clone())?,
        scratch: cx.scratch(n.clone() * Dim::Const(12)),
        outer,
        n,
        inner,
        sorted: cx.int("sorted", 1)? != 0,
        count: extent,
    };
    cx.call(&[ordered(dtype), Dtype::I64, Dtype::U32], d)
}

/// Batches, classes and boxes of a NonMaxSuppression.
fn nms_extents(cx: &NodeView<'_>) -> Result<[Dim; 3]> {
    for i in [0, 1] {
        cx.expect_dtype(i, &[Dtype::F32])?;
        cx.expect_rank(i, 3)?;
    }
    let (boxes, scores) = (cx.shape(0)?, cx.shape(1)?);
    let differ = |a: &Dim, b: &Dim| a.as_const().is_some() && b.as_const().is_some() && a != b;
    if differ(&boxes[0], &scores[0]) || differ(&boxes[1], &scores[2]) || differ(&boxes[2], &Dim::Const(4)) {
        return Err(wrong(format!("boxes {} and scores {} do not fit", cx.ty(0)?, cx.ty(1)?)));
    }
    Ok([scores[0].clone(), scores[1].clone(), boxes[1].clone()])
}

/// The most rows that can be selected.
fn nms_bound(cx: &NodeView<'_>) -> Result<Dim> {
    let [batches, classes, n] = nms_extents(cx)?;
    let per_class = match cx.const_ints(2).as_deref() {
        Some([k]) => n.at_most(&Dim::Const((*k).max(0))),
        _ if cx.has(2) => n,
        _ => Dim::Const(0),
    };
    Ok(batches * classes * per_class)
}

fn infer_nms(cx: &mut InferCx<'_>) -> Result<()> {
    for (i, dtype) in [(2, Dtype::I64), (3, Dtype::F32), (4, Dtype::F32)] {
        if cx.has(i) {
            cx.expect_dtype(i, &[dtype])?;
        }
    }
    if !matches!(cx.int("center_point_box", 0)?, 0 | 1) {
        return Err(wrong("expected 0 or 1").at_attribute("center_point_box"));
    }
    let most = nms_bound(cx)?.upper();
    let count = cx.data_dim("selected", 0, most);
    cx.set(0, tensor(Dtype::I64, vec![count, Dim::Const(3)]));
    Ok(())
}

fn lower_nms(cx: &mut LowerCx<'_>) -> Result<()> {
    let [batches, classes, n] = nms_extents(cx)?;
    let most = nms_bound(cx)? * Dim::Const(3);
    let d = NonMaxSuppression {
        boxes: cx.x(0)?,
        scores: cx.x(1)?,
        max_per_class: cx.opt(2)?,
        iou_threshold: cx.opt(3)?,
        score_threshold: cx.opt(4)?,
        y: bounded(cx, 0, Dtype::I64, most)?,
        order: cx.scratch(n.clone() * Dim::Const(4)),
        batches,
        classes,
        n,
        centered: cx.int("center_point_box", 0)? != 0,
        count: slot(&cx.out_shape(0)?[0])?,
    };
    cx.call(&[Dtype::F32, Dtype::I64, Dtype::U32], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn nonzero() {
        let x = Tensor::from_f32s(&[2, 3], &[0., 1., -0., f32::NAN, 0., 2.]);
        let want = Tensor::from_i64s(&[2, 3], &[0, 1, 1, 1, 0, 2]);
        let run_time = case("", "NonZero", 13).input(x.clone());
        assert_eq!(run_time.run().unwrap()[0], want);
        let folded = case("", "NonZero", 13).constant(x).infer().unwrap();
        assert!(folded.nodes.is_empty());
        assert_eq!(**folded.constant(folded.outputs[0].1).unwrap(), want);
        let scalar = case("", "NonZero", 13).input(Tensor::from_u8s(&[], &[3])).run().unwrap();
        assert_eq!(scalar[0].dims(), &[0, 1]);
    }

    #[test]
    fn compress() {
        let x = Tensor::from_i64s(&[3, 2], &[1, 2, 3, 4, 5, 6]);
        let bools = |v: &[u8]| Tensor::new(kiln_kernels::Dtype::Bool, vec![v.len()], v.to_vec().into()).unwrap();
        for (axis, condition, dims, want) in [
            (Some(0), vec![0, 1, 1], vec![2, 2], vec![3, 4, 5, 6]),
            (Some(-1), vec![0, 1], vec![3, 1], vec![2, 4, 6]),
            (None, vec![0, 1, 0, 0, 1], vec![2], vec![2, 5]),
            (Some(0), vec![0, 0], vec![0, 2], vec![]),
        ] {
            let mut c = case("", "Compress", 11).input(x.clone()).input(bools(&condition));
            if let Some(a) = axis {
                c = c.attr("axis", Attr::Int(a));
            }
            assert_eq!(c.run().unwrap()[0], Tensor::from_i64s(&dims, &want));
        }
    }

    #[test]
    fn unique() {
        let x = Tensor::from_f32s(&[6], &[2., 1., 1., 3., 4., 3.]);
        for (sorted, want) in [
            (1, [vec![1, 2, 3, 4], vec![1, 0, 3, 4], vec![1, 0, 0, 2, 3, 2], vec![2, 1, 2, 1]]),
            (0, [vec![2, 1, 3, 4], vec![0, 1, 3, 4], vec![0, 1, 1, 2, 3, 2], vec![1, 2, 2, 1]]),
        ] {
            let c = case("", "Unique", 11).input(x.clone()).attr("sorted", Attr::Int(sorted)).outputs(4);
            let y = c.run().unwrap();
            let values: Vec<i64> = y[0].to_f32s().unwrap().iter().map(|v| *v as i64).collect();
            assert_eq!(values, want[0]);
            for i in 1..4 {
                assert_eq!(y[i].to_i64s().unwrap(), want[i], "{sorted} {i}");
            }
        }
        let x = Tensor::from_i32s(&[3, 2], &[1, 0, 1, 0, 0, 5]);
        let y = case("", "Unique", 11).input(x).attr("axis", Attr::Int(0)).outputs(1).run().unwrap();
        assert_eq!(y[0], Tensor::from_i32s(&[2, 2], &[0, 5, 1, 0]));
    }

    #[test]
    fn suppression() {
        let boxes = [0., 0., 1., 1., 0., 0.1, 1., 1.1, 0., 10., 1., 11.];
        let c = case("", "NonMaxSuppression", 11).input(Tensor::from_f32s(&[1, 3, 4], &boxes));
        let c = c.input(Tensor::from_f32s(&[1, 1, 3], &[0.8, 0.9, 0.1]));
        let y = c.constant(Tensor::from_i64s(&[1], &[3])).constant(Tensor::from_f32s(&[1], &[0.5])).run().unwrap();
        assert_eq!(y[0], Tensor::from_i64s(&[2, 3], &[0, 0, 1, 0, 0, 2]));
    }
}
