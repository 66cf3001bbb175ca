//! GatherND: slices chosen by index tuples.
//!
//! <https://onnx.ai/onnx/operators/onnx__GatherND.html>

use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Dtype, GatherNd};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "GatherND", &[11, 12, 13], infer, lower)];

/// Number of batch axes and length of the tuples.
fn batch_and_tuple(cx: &NodeView<'_>) -> Result<(usize, usize)> {
    cx.expect_dtype(1, &[Dtype::I64])?;
    let (x, indices) = (cx.ty(0)?, cx.ty(1)?);
    let batch = usize::try_from(cx.int("batch_dims", 0)?).map_err(|_| wrong("negative").at_attribute("batch_dims"))?;
    let Some((k, outer)) = indices.shape.split_last() else {
        return Err(wrong(format!("expected at least rank 1, found {indices}")).at_input(1));
    };
    let k = k.as_const().and_then(|k| usize::try_from(k).ok());
    let k = k.ok_or_else(|| wrong("the length of index tuples must be constant").at_input(1))?;
    if batch > outer.len() || batch.checked_add(k).is_none_or(|n| n > x.rank()) {
        return Err(wrong(format!("{batch} batch axes and index tuples of {k} for {x}")));
    }
    for (a, (d, e)) in x.shape[..batch].iter().zip(outer).enumerate() {
        if d.as_const().is_some() && e.as_const().is_some() && d != e {
            return Err(wrong(format!("batch axis {a} of {x} and {indices} differs")));
        }
    }
    Ok((batch, k))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let (batch, k) = batch_and_tuple(cx)?;
    let (x, indices) = (cx.ty(0)?, cx.ty(1)?);
    super::index::check_constant(cx, 1, &x.shape[batch..batch + k])?;
    let (_, outer) = indices.shape.split_last().unwrap_or((&Dim::Const(0), &[]));
    let shape = outer.iter().chain(&x.shape[batch + k..]).cloned().collect();
    cx.set(0, tensor(x.dtype, shape));
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let (batch, k) = batch_and_tuple(cx)?;
    let (x, indices) = (cx.ty(0)?, cx.ty(1)?);
    let axes = &x.shape[batch..batch + k];
    if k > 8 {
        return Err(CompileError::new(Stage::Lower, format!("index tuples of {k}, the kernel takes 8")));
    }
    let outer = indices.rank() - 1;
    let d = GatherNd {
        x: cx.x(0)?,
        indices: cx.x(1)?,
        y: cx.y(0)?,
        batch: x.shape[..batch].iter().cloned().product(),
        n: indices.shape[batch..outer].iter().cloned().product(),
        k: Dim::from(k),
        inner: x.shape[batch + k..].iter().cloned().product(),
        dims: std::array::from_fn(|i| axes.get(i).cloned().unwrap_or(Dim::Const(1))),
    };
    cx.call(&[width_of(x.dtype)?, Dtype::I64], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn gathers() {
        let x = Tensor::from_i32s(&[2, 2, 2], &[0, 1, 2, 3, 4, 5, 6, 7]);
        for (batch, shape, indices, dims, values) in [
            (0, vec![2, 2], vec![0, 1, 1, 0], vec![2, 2], vec![2, 3, 4, 5]),
            (0, vec![1, 3], vec![-1, 0, 1], vec![1], vec![5]),
            (1, vec![2, 1], vec![1, 0], vec![2, 2], vec![2, 3, 4, 5]),
            (0, vec![2, 0], vec![], vec![2, 2, 2, 2], vec![0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7]),
        ] {
            let c = case("", "GatherND", 12).input(x.clone()).input(Tensor::from_i64s(&shape, &indices));
            let y = c.attr("batch_dims", Attr::Int(batch)).run().unwrap();
            assert_eq!(y[0], Tensor::from_i32s(&dims, &values));
        }
        let bad = case("", "GatherND", 12).input(x.clone()).input(Tensor::from_i64s(&[1, 1], &[2]));
        assert!(bad.run().unwrap_err().to_string().contains("out of range"));
        let bad = case("", "GatherND", 12).input(x).input(Tensor::from_i64s(&[1, 4], &[0; 4]));
        assert!(bad.infer().is_err());
    }
}
