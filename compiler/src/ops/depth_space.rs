//! DepthToSpace and SpaceToDepth: blocks of pixels moved into channels and back, each one strided copy.
//!
//! <https://onnx.ai/onnx/operators/onnx__DepthToSpace.html>

use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "DepthToSpace", &[1, 11, 13, 28], infer_to_space, lower_to_space),
    OpDef::new("", "SpaceToDepth", &[1, 13, 28], infer_to_depth, lower_to_depth),
];

fn block(cx: &NodeView<'_>) -> Result<Dim> {
    cx.expect_rank(0, 4)?;
    match cx.opt_int("blocksize")? {
        Some(b @ 1..=0xffff) => Ok(Dim::Const(b)),
        Some(b) => Err(wrong(format!("a block of {b}")).at_attribute("blocksize")),
        None => Err(wrong("attribute blocksize is missing")),
    }
}

/// A quotient that must be exact.
fn exact(d: &Dim, b: &Dim) -> Result<Dim> {
    if d.as_const().zip(b.as_const()).is_some_and(|(d, b)| d % b != 0) {
        return Err(wrong(format!("an extent of {d} in blocks of {b}")));
    }
    Ok(d.floor_div(b))
}

/// `DCR`: the block's position is the outer part of the channel; `CRD`: the inner part.
fn depth_first(cx: &NodeView<'_>) -> Result<bool> {
    match cx.text("mode", "DCR")? {
        "DCR" => Ok(true),
        "CRD" => Ok(false),
        other => Err(wrong(format!("{other:?} is not supported")).at_attribute("mode")),
    }
}

fn infer_to_space(cx: &mut InferCx<'_>) -> Result<()> {
    let b = block(cx)?;
    depth_first(cx)?;
    let x = cx.ty(0)?;
    let [n, c, h, w] = &x.shape[..] else { return Err(wrong("expected rank 4")) };
    let depth = exact(c, &(b.clone() * b.clone()))?;
    cx.set(0, tensor(x.dtype, vec![n.clone(), depth, h.clone() * b.clone(), w.clone() * b]));
    Ok(())
}

fn infer_to_depth(cx: &mut InferCx<'_>) -> Result<()> {
    let b = block(cx)?;
    depth_first(cx)?;
    let x = cx.ty(0)?;
    let [n, c, h, w] = &x.shape[..] else { return Err(wrong("expected rank 4")) };
    let depth = c.clone() * b.clone() * b.clone();
    cx.set(0, tensor(x.dtype, vec![n.clone(), depth, exact(h, &b)?, exact(w, &b)?]));
    Ok(())
}

/// Reads `dims` in row-major order of `from` (a permutation of them) and writes them in order.
fn permute(cx: &mut LowerCx<'_>, dims: [Dim; 6], from: [usize; 6]) -> Result<()> {
    let read = row_major(&from.map(|a| dims[a].clone()));
    let mut x_strides = vec![Dim::Const(0); 6];
    for (stride, a) in read.into_iter().zip(from) {
        x_strides[a] = stride;
    }
    let y_strides = row_major(&dims);
    let copy = StridedCopy { x_start: Dim::Const(0), x_strides, y_start: Dim::Const(0), y_strides, dims: dims.into() };
    let dtype = cx.dtype(0)?;
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    copy.lower(cx, dtype, x, y)
}

fn lower_to_space(cx: &mut LowerCx<'_>) -> Result<()> {
    let b = block(cx)?;
    let (x, y) = (cx.shape(0)?, cx.out_shape(0)?);
    // The result as [n, c, h, bh, w, bw].
    let dims = [y[0].clone(), y[1].clone(), x[2].clone(), b.clone(), x[3].clone(), b];
    permute(cx, dims, if depth_first(cx)? { [0, 3, 5, 1, 2, 4] } else { [0, 1, 3, 5, 2, 4] })
}

fn lower_to_depth(cx: &mut LowerCx<'_>) -> Result<()> {
    let b = block(cx)?;
    let (x, y) = (cx.shape(0)?, cx.out_shape(0)?);
    if depth_first(cx)? {
        // The result as [n, bh, bw, c, h, w].
        let dims = [y[0].clone(), b.clone(), b, x[1].clone(), y[2].clone(), y[3].clone()];
        permute(cx, dims, [0, 3, 4, 1, 5, 2])
    } else {
        // The result as [n, c, bh, bw, h, w].
        let dims = [y[0].clone(), x[1].clone(), b.clone(), b, y[2].clone(), y[3].clone()];
        permute(cx, dims, [0, 1, 4, 2, 5, 3])
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn there_and_back() {
        let values: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let x = Tensor::from_f32s(&[1, 8, 1, 2], &values);
        for (mode, row) in [("DCR", [0., 4., 1., 5.]), ("CRD", [0., 2., 1., 3.])] {
            let c = case("", "DepthToSpace", 13).input(x.clone()).attr("blocksize", Attr::Int(2));
            let y = c.attr("mode", Attr::Str(mode.into())).run().unwrap();
            assert_eq!((y[0].dims(), &y[0].to_f32s().unwrap()[..4]), (&[1, 2, 2, 4][..], &row[..]), "{mode}");
            let back = case("", "SpaceToDepth", 28).input(y[0].clone()).attr("blocksize", Attr::Int(2));
            assert_eq!(back.attr("mode", Attr::Str(mode.into())).run().unwrap()[0], x);
        }
        for b in [0, 3, i64::MIN] {
            assert!(case("", "DepthToSpace", 13).input(x.clone()).attr("blocksize", Attr::Int(b)).infer().is_err());
        }
    }
}
