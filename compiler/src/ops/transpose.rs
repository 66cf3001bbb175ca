//! Transpose.
//!
//! <https://onnx.ai/onnx/operators/onnx__Transpose.html>

use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, resolve_axes, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;

pub(super) static OPS: &[OpDef] =
    &[OpDef::new("", "Transpose", &[1, 13, 21, 23, 24, 25], infer, lower).with_dims(dims)];

/// The permutation: given, or the reverse.
pub fn permutation(cx: &NodeView<'_>) -> Result<Vec<usize>> {
    let rank = cx.rank(0)?;
    match cx.opt_ints("perm")? {
        None => Ok((0..rank).rev().collect()),
        Some(p) if p.len() == rank => resolve_axes(p, rank).map_err(|e| e.at_attribute("perm")),
        Some(p) => Err(wrong(format!("{} axes for {}", p.len(), cx.ty(0)?)).at_attribute("perm")),
    }
}

/// Small integer tensors keep what is known of their elements.
fn dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    let (all, shape, perm) = (cx.dims(0)?, cx.ty(0).ok()?.const_dims()?, permutation(cx).ok()?);
    let mut strides = vec![1usize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].checked_mul(shape[i])?;
    }
    let mut places = vec![0usize];
    for a in perm {
        places =
            places.iter().flat_map(|p| (0..shape[a]).map(move |i| (p, i))).map(|(p, i)| p + i * strides[a]).collect();
    }
    places.into_iter().map(|at| all.get(at).cloned()).collect()
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let shape = permutation(cx)?.into_iter().map(|a| x.shape[a].clone()).collect();
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let perm = permutation(cx)?;
    let ty = cx.ty(0)?;
    // Axes of extent 1 do not move anything.
    let moved = perm.iter().filter(|&&a| !ty.shape[a].is(1)).collect::<Vec<_>>();
    if moved.is_sorted() {
        return cx.view_of(0, 0);
    }
    let strides = row_major(&ty.shape);
    let dims: Vec<Dim> = perm.iter().map(|&a| ty.shape[a].clone()).collect();
    let copy = StridedCopy {
        x_start: Dim::Const(0),
        x_strides: perm.iter().map(|&a| strides[a].clone()).collect(),
        y_start: Dim::Const(0),
        y_strides: row_major(&dims),
        dims,
    };
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    copy.lower(cx, ty.dtype, x, y)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn permutes() {
        let x = Tensor::from_f32s(&[2, 3, 1], &[1., 2., 3., 4., 5., 6.]);
        for (perm, dims, values) in [
            (vec![1, 0, 2], vec![3, 2, 1], [1., 4., 2., 5., 3., 6.]),
            (vec![0, 2, 1], vec![2, 1, 3], [1., 2., 3., 4., 5., 6.]),
        ] {
            let y = case("", "Transpose", 13).input(x.clone()).attr("perm", Attr::Ints(perm)).run().unwrap();
            assert_eq!((y[0].dims(), y[0].to_f32s().unwrap()), (&dims[..], values.to_vec()));
        }
        assert!(case("", "Transpose", 13).input(x).attr("perm", Attr::Ints(vec![0, 0, 1])).infer().is_err());
    }
}
