//! Gather: entries of an axis chosen by indices. Constant indices that step evenly are slices.
//!
//! <https://onnx.ai/onnx/operators/onnx__Gather.html>

use super::strided::Window;
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Dtype, Gather};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "Gather", &[1, 11, 13], infer, lower).with_dims(dims)];

fn axis(cx: &NodeView<'_>) -> Result<usize> {
    cx.axis("axis", 0, cx.rank(0)?)
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(1, &[Dtype::I32, Dtype::I64])?;
    let (x, indices) = (cx.ty(0)?, cx.ty(1)?);
    let axis = axis(cx)?;
    if let (Some(v), Some(n)) = (cx.const_ints(1), x.shape[axis].as_const())
        && let Some(bad) = v.iter().find(|&&i| i < -n || i >= n)
    {
        return Err(wrong(format!("index {bad} in an axis of {n}")).at_input(1));
    }
    let mut shape = x.shape.clone();
    shape.splice(axis..=axis, indices.shape.iter().cloned());
    cx.set(0, tensor(x.dtype, shape));
    Ok(())
}

fn dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    let all = cx.dims(0)?;
    if cx.rank(0).ok()? != 1 {
        return None;
    }
    let n = i64::try_from(all.len()).ok()?;
    let at = |i: i64| all.get(usize::try_from(if i < 0 { i.checked_add(n)? } else { i }).ok()?).cloned();
    cx.const_ints(1)?.into_iter().map(at).collect()
}

/// Constant indices that step evenly through an axis, as (first, step).
fn even_steps(cx: &NodeView<'_>, extent: &Dim) -> Option<(i64, i64)> {
    let n = extent.as_const()?;
    let at: Vec<i64> = cx.const_ints(1)?.into_iter().map(|i| if i < 0 { i.saturating_add(n) } else { i }).collect();
    let (&first, rest) = at.split_first()?;
    let step = rest.first().map_or(1, |r| r - first);
    at.windows(2).all(|w| w[1] - w[0] == step).then_some((first, step))
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let (x, indices) = (cx.ty(0)?, cx.ty(1)?);
    let axis = axis(cx)?;
    if let Some((first, step)) = even_steps(cx, &x.shape[axis]) {
        let mut window = Window::whole(&x.shape);
        window.starts[axis] = Dim::Const(first);
        window.steps[axis] = step;
        window.dims[axis] = indices.numel();
        return window.lower(cx, 0, 0);
    }
    let d = Gather {
        x: cx.x(0)?,
        indices: cx.x(1)?,
        y: cx.y(0)?,
        outer: x.shape[..axis].iter().cloned().product(),
        axis: x.shape[axis].clone(),
        n: indices.numel(),
        inner: x.shape[axis + 1..].iter().cloned().product(),
    };
    cx.call(&[width_of(x.dtype)?, indices.dtype], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn gathers() {
        let x = Tensor::from_f32s(&[3, 2], &[1., 2., 3., 4., 5., 6.]);
        for (axis, shape, indices, dims, values) in [
            (0, vec![2, 1], vec![2, 0], vec![2, 1, 2], vec![5., 6., 1., 2.]),
            (1, vec![3], vec![1, -1, -2], vec![3, 3], vec![2., 2., 1., 4., 4., 3., 6., 6., 5.]),
            (0, vec![], vec![-1], vec![2], vec![5., 6.]),
            (-1, vec![], vec![0], vec![3], vec![1., 3., 5.]),
            (0, vec![3], vec![2, 1, 0], vec![3, 2], vec![5., 6., 3., 4., 1., 2.]),
            (0, vec![2], vec![1, 1], vec![2, 2], vec![3., 4., 3., 4.]),
            (0, vec![0], vec![], vec![0, 2], vec![]),
        ] {
            let indices = Tensor::from_i64s(&shape, &indices);
            for constant in [false, true] {
                let c = case("", "Gather", 13).input(x.clone()).attr("axis", Attr::Int(axis));
                let c = if constant { c.constant(indices.clone()) } else { c.input(indices.clone()) };
                assert_eq!(c.run().unwrap()[0], Tensor::from_f32s(&dims, &values));
            }
        }
        let bad = Tensor::from_i32s(&[1], &[3]);
        assert!(case("", "Gather", 13).input(x.clone()).constant(bad.clone()).infer().is_err());
        let e = case("", "Gather", 13).input(x).input(bad).run().unwrap_err();
        assert!(e.to_string().contains("out of range"), "{e}");
    }
}
