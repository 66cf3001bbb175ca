//! GatherElements, ScatterElements (once Scatter) and ScatterND.
//!
//! <https://onnx.ai/onnx/operators/onnx__ScatterElements.html>, <https://onnx.ai/onnx/operators/onnx__ScatterND.html>

use super::index::{as_i64, check_constant, last8};
use super::strided::row_major;
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Dtype, GatherElements, ScatterElements, ScatterNd, Update};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "GatherElements", &[11, 13], infer_gather, lower_gather),
    OpDef::new("", "Scatter", &[9, 11], infer_elements, lower_elements),
    OpDef::new("", "ScatterElements", &[11, 13, 16, 18], infer_elements, lower_elements),
    OpDef::new("", "ScatterND", &[11, 13, 16, 18], infer_nd, lower_nd),
];

/// Operand 0 and indices of its rank, no longer than it in any axis but one.
fn elements_axis(cx: &NodeView<'_>) -> Result<usize> {
    cx.expect_dtype(1, &[Dtype::I32, Dtype::I64])?;
    let (x, indices) = (cx.ty(0)?, cx.ty(1)?);
    cx.expect_rank(1, x.rank())?;
    let axis = cx.axis("axis", 0, x.rank())?;
    for (a, (d, n)) in x.shape.iter().zip(&indices.shape).enumerate() {
        if let (true, Some(d), Some(n)) = (a != axis, d.as_const(), n.as_const())
            && n > d
        {
            return Err(wrong(format!("{indices} is longer than {x} in axis {a}")).at_input(1));
        }
    }
    check_constant(cx, 1, &x.shape[axis..=axis])?;
    Ok(axis)
}

/// Extents of the indices, and strides of operand 0 with 0 on the axis.
fn elements_lines(cx: &NodeView<'_>, axis: usize) -> Result<([Dim; 8], [Dim; 8])> {
    let mut strides = row_major(cx.shape(0)?);
    strides[axis] = Dim::Const(0);
    last8(cx.shape(1)?, 1)
        .zip(last8(&strides, 0))
        .ok_or_else(|| CompileError::new(Stage::Lower, format!("rank {}, the kernel takes 8", strides.len())))
}

fn infer_gather(cx: &mut InferCx<'_>) -> Result<()> {
    elements_axis(cx)?;
    let (dtype, shape) = (cx.dtype(0)?, cx.shape(1)?.to_vec());
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_gather(cx: &mut LowerCx<'_>) -> Result<()> {
    let axis = elements_axis(&cx.view())?;
    let (dims, strides) = elements_lines(&cx.view(), axis)?;
    let shape = cx.shape(0)?;
    let d = GatherElements {
        x: cx.x(0)?,
        indices: cx.x(1)?,
        y: cx.y(0)?,
        extent: shape[axis].clone(),
        step: row_major(shape)[axis].clone(),
        dims,
        strides,
    };
    cx.call(&[width_of(cx.dtype(0)?)?, cx.dtype(1)?], d)
}

fn reduction(cx: &NodeView<'_>) -> Result<Update> {
    let how = match cx.text("reduction", "none")? {
        "none" => Update::Replace,
        "add" => Update::Add,
        "mul" => Update::Mul,
        "min" => Update::Min,
        "max" => Update::Max,
        other => return Err(wrong(format!("{other:?} is not supported")).at_attribute("reduction")),
    };
    Ok(how)
}

/// The element type that the kernels are keyed by.
fn kernel_dtype(cx: &NodeView<'_>, how: Update) -> Result<Dtype> {
    match (cx.dtype(0)?, how) {
        (d, Update::Replace) => width_of(d),
        // On 0 and 1 a product or a minimum is "and", a maximum "or".
        (Dtype::Bool, Update::Min | Update::Mul | Update::Max) => Ok(Dtype::U8),
        (d, _) => Ok(d),
    }
}

fn infer_elements(cx: &mut InferCx<'_>) -> Result<()> {
    elements_axis(cx)?;
    reduction(cx)?;
    cx.expect_same_dtype(2, 0)?;
    let (indices, updates) = (cx.ty(1)?, cx.ty(2)?);
    let differ = |(a, b): (&Dim, &Dim)| a.as_const().is_some() && b.as_const().is_some() && a != b;
    if updates.rank() != indices.rank() || updates.shape.iter().zip(&indices.shape).any(differ) {
        return Err(wrong(format!("{updates} for indices {indices}")).at_input(2));
    }
    cx.same_as_input()
}

fn lower_elements(cx: &mut LowerCx<'_>) -> Result<()> {
    let axis = elements_axis(&cx.view())?;
    let (dims, strides) = elements_lines(&cx.view(), axis)?;
    let how = reduction(&cx.view())?;
    let shape = cx.shape(0)?;
    let indices = as_i64(cx, 1)?;
    let d = ScatterElements {
        x: cx.x(0)?,
        indices,
        updates: cx.x(2)?,
        y: cx.y(0)?,
        extent: shape[axis].clone(),
        step: row_major(shape)[axis].clone(),
        dims,
        strides,
        how,
    };
    cx.call(&[kernel_dtype(&cx.view(), how)?, Dtype::I64], d)
}

/// Length of the index tuples.
fn tuple_len(cx: &NodeView<'_>) -> Result<usize> {
    cx.expect_dtype(1, &[Dtype::I64])?;
    let indices = cx.ty(1)?;
    let k = indices.shape.last().and_then(|k| usize::try_from(k.as_const()?).ok());
    let k = k.ok_or_else(|| wrong(format!("expected index tuples of constant length, found {indices}")).at_input(1))?;
    if k > cx.rank(0)? {
        return Err(wrong(format!("index tuples of {k} for {}", cx.ty(0)?)).at_input(1));
    }
    check_constant(cx, 1, &cx.shape(0)?[..k])?;
    Ok(k)
}

fn infer_nd(cx: &mut InferCx<'_>) -> Result<()> {
    let k = tuple_len(cx)?;
    reduction(cx)?;
    cx.expect_same_dtype(2, 0)?;
    let (x, indices, updates) = (cx.ty(0)?, cx.ty(1)?, cx.ty(2)?);
    let want: Vec<Dim> = indices.shape[..indices.rank() - 1].iter().chain(&x.shape[k..]).cloned().collect();
    let differ = |(a, b): (&Dim, &Dim)| a.as_const().is_some() && b.as_const().is_some() && a != b;
    if updates.rank() != want.len() || updates.shape.iter().zip(&want).any(differ) {
        return Err(wrong(format!("expected {}, found {updates}", crate::ir::ShapeText(&want))).at_input(2));
    }
    cx.same_as_input()
}

fn lower_nd(cx: &mut LowerCx<'_>) -> Result<()> {
    let k = tuple_len(&cx.view())?;
    let how = reduction(&cx.view())?;
    let (x, indices) = (cx.ty(0)?, cx.ty(1)?);
    if k > 8 {
        return Err(CompileError::new(Stage::Lower, format!("index tuples of {k}, the kernel takes 8")));
    }
    let d = ScatterNd {
        x: cx.x(0)?,
        indices: cx.x(1)?,
        updates: cx.x(2)?,
        y: cx.y(0)?,
        n: indices.shape[..indices.rank() - 1].iter().cloned().product(),
        k: Dim::from(k),
        inner: x.shape[k..].iter().cloned().product(),
        dims: std::array::from_fn(|i| if i < k { x.shape[i].clone() } else { Dim::Const(1) }),
        how,
    };
    cx.call(&[kernel_dtype(&cx.view(), how)?, Dtype::I64], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn elements() {
        let x = Tensor::from_f32s(&[2, 2], &[1., 2., 3., 4.]);
        let i = Tensor::from_i32s(&[2, 2], &[0, 0, -1, 0]);
        let y = case("", "GatherElements", 13).input(x.clone()).input(i.clone()).attr("axis", Attr::Int(1));
        assert_eq!(y.run_f32(), [1., 1., 4., 3.]);
        let u = Tensor::from_f32s(&[2, 2], &[10., 20., 30., 40.]);
        for (how, want) in [
            ("none", [20., 2., 40., 30.]),
            ("add", [31., 2., 43., 34.]),
            ("mul", [200., 2., 120., 120.]),
            ("max", [20., 2., 40., 30.]),
            ("min", [1., 2., 3., 4.]),
        ] {
            let c = case("", "ScatterElements", 18).input(x.clone()).input(i.clone()).input(u.clone());
            let c = c.attr("axis", Attr::Int(-1)).attr("reduction", Attr::Str(how.into()));
            assert_eq!(c.run_f32(), want, "{how}");
        }
        let bad = Tensor::from_i64s(&[1, 1], &[2]);
        let one = Tensor::from_f32s(&[1, 1], &[0.]);
        for c in [
            case("", "GatherElements", 13).input(x.clone()).input(bad.clone()),
            case("", "Scatter", 9).input(x.clone()).input(bad).input(one),
        ] {
            assert!(c.run().unwrap_err().to_string().contains("out of range"));
        }
        let long = Tensor::from_i64s(&[1, 3], &[0; 3]);
        assert!(case("", "GatherElements", 13).input(x).input(long).infer().is_err());
    }

    #[test]
    fn tuples() {
        let x = Tensor::from_i32s(&[2, 2], &[1, 2, 3, 4]);
        let i = Tensor::from_i64s(&[2, 1], &[1, -1]);
        let u = Tensor::from_i32s(&[2, 2], &[10, 20, 30, 40]);
        for (how, want) in [("none", [1, 2, 30, 40]), ("add", [1, 2, 43, 64]), ("max", [1, 2, 30, 40])] {
            let c = case("", "ScatterND", 18).input(x.clone()).input(i.clone()).input(u.clone());
            let y = c.attr("reduction", Attr::Str(how.into())).run().unwrap();
            assert_eq!(y[0].to_i32s().unwrap(), want, "{how}");
        }
        let bad = Tensor::from_i64s(&[2, 1], &[2, 0]);
        assert!(case("", "ScatterND", 18).input(x.clone()).input(bad).input(u).run().is_err());
        let short = Tensor::from_i32s(&[1, 2], &[0, 0]);
        assert!(case("", "ScatterND", 18).input(x).input(i).input(short).infer().is_err());
    }
}
