//! TensorScatter: rows written into a cache.
//!
//! <https://onnx.ai/onnx/operators/onnx__TensorScatter.html>

use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Dtype, TensorScatter};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "TensorScatter", &[24], infer, lower)];

fn circular(cx: &NodeView<'_>) -> Result<bool> {
    match cx.text("mode", "linear")? {
        "linear" => Ok(false),
        "circular" => Ok(true),
        other => Err(wrong(format!("{other:?} is not supported")).at_attribute("mode")),
    }
}

fn axis(cx: &NodeView<'_>) -> Result<usize> {
    match cx.axis("axis", -2, cx.rank(0)?)? {
        0 => Err(wrong("the batch axis").at_attribute("axis")),
        a => Ok(a),
    }
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    circular(cx)?;
    let axis = axis(cx)?;
    cx.expect_same_dtype(1, 0)?;
    let (past, update) = (cx.ty(0)?, cx.ty(1)?);
    cx.expect_rank(1, past.rank())?;
    for (a, (p, u)) in past.shape.iter().zip(&update.shape).enumerate() {
        let fits = p.as_const().zip(u.as_const()).is_none_or(|(p, u)| if a == axis { u <= p } else { u == p });
        if !fits {
            return Err(wrong(format!("{update} for {past} in axis {a}")).at_input(1));
        }
    }
    if cx.has(2) {
        cx.expect_dtype(2, &[Dtype::I64])?;
        cx.expect_rank(2, 1)?;
    }
    cx.same_as_input()
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let axis = axis(cx)?;
    let (past, update) = (cx.ty(0)?, cx.ty(1)?);
    let product = |dims: &[Dim]| dims.iter().cloned().product::<Dim>();
    let d = TensorScatter {
        past: cx.x(0)?,
        update: cx.x(1)?,
        write_indices: cx.opt(2)?,
        y: cx.y(0)?,
        batch: past.shape[0].clone(),
        outer: product(&past.shape[1..axis]),
        length: past.shape[axis].clone(),
        rows: update.shape[axis].clone(),
        inner: product(&past.shape[axis + 1..]),
        circular: circular(cx)?,
    };
    cx.call(&[width_of(past.dtype)?, Dtype::I64], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn writes() {
        let past = Tensor::from_u8s(&[2, 3, 1], &[1, 2, 3, 4, 5, 6]);
        let update = Tensor::from_u8s(&[2, 2, 1], &[10, 20, 30, 40]);
        for (mode, at, want) in [
            ("linear", [0, 1], Some([10, 20, 3, 4, 30, 40])),
            ("linear", [0, 2], None),
            ("circular", [2, 1], Some([20, 2, 10, 4, 30, 40])),
        ] {
            let c = case("", "TensorScatter", 24).input(past.clone()).input(update.clone());
            let c = c.input(Tensor::from_i64s(&[2], &at)).attr("mode", Attr::Str(mode.into()));
            let y = c.run().ok().map(|y| y[0].to_u8s().unwrap());
            assert_eq!(y, want.map(|w| w.to_vec()), "{mode}");
        }
    }
}
