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

/// All of a Col2Im's geometry, per spatial axis.
struct Blocks {
    image: Vec<Dim>,
    block: Vec<Dim>,
    cols: Vec<Dim>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    pads: Vec<i64>,
}

fn blocks(cx: &NodeView<'_>, image: Vec<Dim>, block: Vec<Dim>) -> Result<Blocks> {
    let n = image.len();
    if block.len() != n || n == 0 || n > 4 {
        return Err(wrong(format!("{n} image extents and {} block extents, expected up to 4", block.len())));
    }
    let strides = per_axis(cx, "strides", n, 1, 1)?;
    let dilations = per_axis(cx, "dilations", n, 1, 1)?;
    let pads = per_axis(cx, "pads", 2 * n, 0, 0)?;
    let cols = (0..n)
        .map(|i| {
            let reach = (block[i].clone() - Dim::Const(1)) * Dim::Const(dilations[i]) + Dim::Const(1);
            let room = image[i].clone() + Dim::Const(pads[i] + pads[n + i]) - reach;
            room.floor_div(&Dim::Const(strides[i])) + Dim::Const(1)
        })
        .collect();
    Ok(Blocks { image, block, cols, strides, dilations, pads })
}

fn infer_col2im(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_rank(0, 3)?;
    let x = cx.ty(0)?;
    let block = cx.need_dims(2)?;
    let image = match cx.dims(1) {
        Some(d) => d,
        None => cx.declared(0, block.len() + 2).map(|d| d[2..].to_vec()).ok_or_else(|| cx.unknown(1))?,
    };
    let b = blocks(cx, image, block)?;
    if b.image.iter().chain(&b.block).any(|d| d.as_const().is_some_and(|d| d < 1)) {
        return Err(wrong("expected positive extents"));
    }
    let places: Dim = b.block.iter().cloned().product();
    let columns: Dim = b.cols.iter().cloned().product();
    let known = |d: &Dim| d.as_const();
    if let (Some(c), Some(p)) = (known(&x.shape[1]), known(&places))
        && c % p != 0
    {
        return Err(wrong(format!("{c} rows of {x} in blocks of {p}")).at_input(0));
    }
    if known(&columns).zip(known(&x.shape[2])).is_some_and(|(a, b)| a != b) {
        return Err(wrong(format!("{x} has {} columns, the geometry {columns}", x.shape[2])).at_input(0));
    }
    let shape = [x.shape[0].clone(), x.shape[1].floor_div(&places)].into_iter().chain(b.image).collect();
    cx.set(0, tensor(x.dtype, shape));
    Ok(())
}

fn lower_col2im(cx: &mut LowerCx<'_>) -> Result<()> {
    let dtype = cx.dtype(0)?;
    let y = cx.out_shape(0)?;
    if cx.dims(1).is_none() {
        check_ints(cx, 1, 0, &y[2..])?;
    }
    let b = blocks(cx, y[2..].to_vec(), cx.need_dims(2)?)?;
    let missing = 4usize
        .checked_sub(b.image.len())
        .ok_or_else(|| CompileError::new(Stage::Lower, "more than four spatial axes"))?;
    let dims = |v: &[Dim]| std::array::from_fn(|i| i.checked_sub(missing).map_or(Dim::Const(1), |i| v[i].clone()));
    let ints = |v: &[i64], pad| std::array::from_fn(|i| Dim::Const(i.checked_sub(missing).map_or(pad, |i| v[i])));
    let d = Col2Im {
        x: cx.x(0)?,
        y: cx.y(0)?,
        n: y[0].clone() * y[1].clone(),
        image: dims(&b.image),
        block: dims(&b.block),
        cols: dims(&b.cols),
        strides: ints(&b.strides, 1),
        dilations: ints(&b.dilations, 1),
        pads: ints(&b.pads, 0),
    };
    cx.call(&[dtype], d)
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
