//! MaxUnpool and Col2Im: samples put back to where they were taken from.
//!
//! <https://onnx.ai/onnx/operators/onnx__MaxUnpool.html>, <https://onnx.ai/onnx/operators/onnx__Col2Im.html>

use super::run_time::check_ints;
use super::strided::{StridedCopy, fill, row_major};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, flops_per_element, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Col2Im, Dtype, MaxUnpool};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "MaxUnpool", &[9, 11, 22], infer_unpool, lower_unpool),
    OpDef::new("", "Col2Im", &[18], infer_col2im, lower_col2im).with_flops(flops_per_element),
];

/// An attribute with one number per axis.
fn per_axis(cx: &NodeView<'_>, name: &str, n: usize, default: i64, least: i64) -> Result<Vec<i64>> {
    match cx.opt_ints(name)? {
        None => Ok(vec![default; n]),
        Some(v) if v.len() == n && v.iter().all(|x| (least..=1 << 31).contains(x)) => Ok(v.to_vec()),
        Some(v) => Err(wrong(format!("expected {n} numbers of at least {least}, found {v:?}")).at_attribute(name)),
    }
}

/// The extents that the pooling's operand had.
fn unpooled(cx: &NodeView<'_>) -> Result<Vec<Dim>> {
    let x = cx.ty(0)?;
    let Some(n) = x.rank().checked_sub(2).filter(|&n| n > 0) else {
        return Err(wrong(format!("expected spatial axes, found {x}")).at_input(0));
    };
    if !cx.has_attr("kernel_shape") {
        return Err(wrong("attribute kernel_shape is missing"));
    }
    let kernel = per_axis(cx, "kernel_shape", n, 1, 1)?;
    let strides = per_axis(cx, "strides", n, 1, 1)?;
    let pads = per_axis(cx, "pads", 2 * n, 0, 0)?;
    let spatial = (0..n).map(|i| {
        let d = x.shape[2 + i].clone();
        (d - Dim::Const(1)) * Dim::Const(strides[i]) + Dim::Const(kernel[i] - pads[i] - pads[n + i])
    });
    Ok(x.shape[..2].iter().cloned().chain(spatial).collect())
}

fn infer_unpool(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(1, &[Dtype::I64])?;
    let (x, indices) = (cx.ty(0)?, cx.ty(1)?);
    if x.shape != indices.shape && x.const_dims().is_some() && indices.const_dims().is_some() {
        return Err(wrong(format!("indices {indices} for {x}")).at_input(1));
    }
    let unpooled = unpooled(cx)?;
    let shape = match cx.has(2) {
        false => unpooled.clone(),
        true => match cx.dims(2) {
            Some(d) => d,
            None => cx.declared(0, x.rank()).ok_or_else(|| cx.unknown(2))?,
        },
    };
    let smaller = |(a, b): (&Dim, &Dim)| a.as_const().zip(b.as_const()).is_some_and(|(a, b)| a < b);
    if shape.len() != unpooled.len() || shape.iter().zip(&unpooled).any(smaller) {
        return Err(wrong("the output shape does not hold the unpooled one").at_input(2));
    }
    cx.set(0, tensor(x.dtype, shape));
    Ok(())
}

fn lower_unpool(cx: &mut LowerCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let unpooled = unpooled(cx)?;
    let shape = cx.out_shape(0)?.to_vec();
    if cx.has(2) && cx.dims(2).is_none() {
        check_ints(cx, 2, 0, &shape)?;
    }
    let len: Dim = unpooled.iter().cloned().product();
    let y = cx.y(0)?;
    let whole = unpooled == shape;
    let target = if whole { y.clone() } else { cx.scratch(len.clone() * Dim::from(x.dtype.size_bytes())) };
    let d = MaxUnpool { x: cx.x(0)?, indices: cx.x(1)?, y: target.clone(), n: x.numel(), len };
    cx.call(&[width_of(x.dtype)?, Dtype::I64], d)?;
    if whole {
        return Ok(());
    }
    let zero = cx.weights(vec![0; x.dtype.size_bytes()]);
    fill(cx, x.dtype, zero, y.clone(), shape.iter().cloned().product())?;
    let copy = StridedCopy {
        x_start: Dim::Const(0),
        x_strides: row_major(&unpooled),
        y_start: Dim::Const(0),
        y_strides: row_major(&shape),
        dims: unpooled,
    };
    copy.lower(cx, x.dtype, target, y)
}

/// A Col2Im's attributes, per spatial axis.
struct Steps {
    strides: Vec<i64>,
    dilations: Vec<i64>,
    pads: Vec<i64>,
}

fn steps(cx: &NodeView<'_>, n: usize) -> Result<Steps> {
    let strides = per_axis(cx, "strides", n, 1, 1)?;
    let dilations = per_axis(cx, "dilations", n, 1, 1)?;
    let pads = per_axis(cx, "pads", 2 * n, 0, 0)?;
    Ok(Steps { strides, dilations, pads })
}

/// How many columns blocks of this shape give.
fn columns(image: &[Dim], block: &[Dim], s: &Steps) -> Dim {
    let n = image.len();
    (0..n)
        .map(|i| {
            let reach = (block[i].clone() - Dim::Const(1)) * Dim::Const(s.dilations[i]) + Dim::Const(1);
            let room = image[i].clone() + Dim::Const(s.pads[i] + s.pads[n + i]) - reach;
            room.floor_div(&Dim::Const(s.strides[i])) + Dim::Const(1)
        })
        .product()
}

fn infer_col2im(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_rank(0, 3)?;
    let x = cx.ty(0)?;
    let rank = cx.shape(1)?.first().and_then(|n| usize::try_from(n.as_const()?).ok());
    let rank = rank.filter(|n| (1..=4).contains(n)).ok_or_else(|| wrong("expected up to 4 extents").at_input(1))?;
    let steps = steps(cx, rank)?;
    // What is known only at run time comes from the declared extents, and is checked then.
    let declared = || cx.declared(0, rank + 2);
    let image = match cx.dims(1) {
        Some(d) => d,
        None => declared().map(|d| d[2..].to_vec()).ok_or_else(|| cx.unknown(1))?,
    };
    if image.iter().any(|d| d.as_const().is_some_and(|d| d < 1)) {
        return Err(wrong("expected positive extents").at_input(1));
    }
    let channels = match cx.dims(2) {
        Some(block) => {
            if block.len() != rank || block.iter().any(|d| d.as_const().is_some_and(|d| d < 1)) {
                return Err(wrong(format!("expected {rank} positive extents")).at_input(2));
            }
            let places: Dim = block.iter().cloned().product();
            if x.shape[1].as_const().zip(places.as_const()).is_some_and(|(c, p)| c % p != 0) {
                return Err(wrong(format!("{} rows of {x} in blocks of {places}", x.shape[1])).at_input(0));
            }
            let columns = columns(&image, &block, &steps);
            if columns.as_const().zip(x.shape[2].as_const()).is_some_and(|(a, b)| a != b) {
                return Err(wrong(format!("{x} has {} columns, the geometry {columns}", x.shape[2])).at_input(0));
            }
            x.shape[1].floor_div(&places)
        }
        None => declared().map(|d| d[1].clone()).ok_or_else(|| cx.unknown(2))?,
    };
    if channels.is(0) && !x.shape[1].is(0) {
        return Err(wrong("no channels").at_input(2));
    }
    let shape = [x.shape[0].clone(), channels].into_iter().chain(image).collect();
    cx.set(0, tensor(x.dtype, shape));
    Ok(())
}

fn lower_col2im(cx: &mut LowerCx<'_>) -> Result<()> {
    let (x, y) = (cx.ty(0)?, cx.out_shape(0)?);
    let image = &y[2..];
    let rank = image.len();
    if cx.dims(1).is_none() {
        check_ints(cx, 1, 0, image)?;
    }
    let steps = steps(cx, rank)?;
    let missing =
        4usize.checked_sub(rank).ok_or_else(|| CompileError::new(Stage::Lower, "more than four spatial axes"))?;
    let dims = |v: &[Dim]| std::array::from_fn(|i| i.checked_sub(missing).map_or(Dim::Const(1), |i| v[i].clone()));
    let ints = |v: &[i64], pad| std::array::from_fn(|i| Dim::Const(i.checked_sub(missing).map_or(pad, |i| v[i])));
    let block = cx.dims(2);
    let d = Col2Im {
        x: cx.x(0)?,
        stated: if block.is_none() { Some(cx.x(2)?) } else { None },
        y: cx.y(0)?,
        n: y[0].clone() * y[1].clone(),
        places: x.shape[1].floor_div(&y[1]),
        columns: x.shape[2].clone(),
        rank: Dim::from(rank),
        image: dims(image),
        block: block.map_or(std::array::from_fn(|_| Dim::Const(1)), |b| dims(&b)),
        strides: ints(&steps.strides, 1),
        dilations: ints(&steps.dilations, 1),
        before: ints(&steps.pads[..rank], 0),
        after: ints(&steps.pads[rank..], 0),
    };
    cx.call(&[x.dtype, Dtype::I64], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn unpools() {
        let x = Tensor::from_f32s(&[1, 1, 1, 2], &[5., 6.]);
        let i = Tensor::from_i64s(&[1, 1, 1, 2], &[1, 6]);
        let c = case("", "MaxUnpool", 11).input(x).input(i).attr("kernel_shape", Attr::Ints(vec![2, 2]));
        let c = c.attr("strides", Attr::Ints(vec![2, 2]));
        assert_eq!(c.run_f32(), [0., 5., 0., 0., 0., 0., 6., 0.]);
        let larger = c.constant(Tensor::from_i64s(&[4], &[1, 1, 2, 5]));
        assert_eq!(larger.run_f32(), [0., 5., 0., 0., 0., 0., 0., 6., 0., 0.]);
    }

    #[test]
    fn folds_blocks() {
        let x = Tensor::from_f32s(&[1, 4, 2], &[1., 2., 3., 4., 5., 6., 7., 8.]);
        let c = case("", "Col2Im", 18).input(x).constant(Tensor::from_i64s(&[2], &[2, 3]));
        let y = c.constant(Tensor::from_i64s(&[2], &[2, 2])).run().unwrap();
        assert_eq!(y[0], Tensor::from_f32s(&[1, 1, 2, 3], &[1., 5., 4., 5., 13., 8.]));
    }
}
