//! `kiln.Append`: a cache and new rows behind its own along `axis`, in place where the cache is a state that is kept so; and
//! `kiln.Compact`: such a cache without the room between its rows. The pass `caches` makes both.

use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Append, Dtype, Operand};

use super::attention::Heads;

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("kiln", "Append", &[1], infer, lower),
    OpDef::new("kiln", "Compact", &[1], |cx| cx.same_as_input(), lower_compact),
];

/// Rows to append: where they are, and how they lie.
pub(super) struct Rows<'h> {
    pub x: Operand<Dim>,
    pub heads: &'h Heads,
}

/// Adds the call that makes `y` of a cache (its memory, its rows, elements from line to line) and of new rows.
pub(super) fn grow(
    cx: &mut LowerCx<'_>,
    dtype: Dtype,
    (past, past_rows, past_pitch): (Operand<Dim>, Dim, Dim),
    new: Rows<'_>,
    (y, y_pitch): (Operand<Dim>, Dim),
) -> Result<()> {
    let (past, y) = cx.held(Some(past), y);
    let past = past.ok_or_else(|| wrong("no cache"))?;
    let Rows { x, heads } = new;
    let d = Append {
        past,
        x,
        y,
        lines: heads.batch.clone() * heads.heads.clone(),
        inner: heads.heads.clone(),
        past_rows,
        rows: heads.rows.clone(),
        size: heads.size.clone(),
        past_pitch,
        y_pitch,
        x_outer: heads.batch_stride.clone(),
        x_inner: heads.head_stride.clone(),
        x_row: heads.row_stride.clone(),
    };
    cx.call(&[width_of(dtype)?], d)
}

fn axis(cx: &NodeView<'_>) -> Result<usize> {
    cx.axis("axis", 0, cx.rank(0)?)
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_same_dtype(1, 0)?;
    cx.expect_rank(1, cx.rank(0)?)?;
    let axis = axis(cx)?;
    let (past, new) = (cx.ty(0)?, cx.ty(1)?);
    let mut shape = past.shape.clone();
    shape[axis] = shape[axis].clone() + new.shape[axis].clone();
    cx.set(0, tensor(past.dtype, shape));
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let axis = axis(cx)?;
    let (past, new, y) = (cx.shape(0)?, cx.shape(1)?, cx.out_shape(0)?);
    let others = (0..y.len()).filter(|&a| a != axis);
    cx.expect_equal(others.flat_map(|a| [(&past[a], &y[a]), (&new[a], &y[a])]))?;
    let product = |dims: &[Dim]| dims.iter().cloned().product::<Dim>();
    let pitch = |physical: Vec<Dim>| product(&physical[axis..]);
    let heads = Heads::apart(product(&new[..axis]), Dim::Const(1), new[axis].clone(), product(&new[axis + 1..]));
    let (past_pitch, y_pitch) = (pitch(cx.physical(0)?), pitch(cx.out_physical(0)?));
    let (x, at, past_rows) = (cx.x(1)?, cx.y(0)?, past[axis].clone());
    let past = (cx.x(0)?, past_rows, past_pitch);
    grow(cx, cx.dtype(0)?, past, Rows { x, heads: &heads }, (at, y_pitch))
}

fn lower_compact(cx: &mut LowerCx<'_>) -> Result<()> {
    let (dims, dtype) = (cx.shape(0)?.to_vec(), cx.dtype(0)?);
    let copy = StridedCopy {
        x_start: Dim::Const(0),
        x_strides: row_major(&cx.physical(0)?),
        y_start: Dim::Const(0),
        y_strides: row_major(&dims),
        dims,
    };
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    copy.lower(cx, dtype, x, y)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn appends_along_any_axis() {
        let past = Tensor::from_u8s(&[2, 2, 1], &[1, 2, 3, 4]);
        for (axis, dims, want) in [
            (0, [1, 2, 1], vec![1, 2, 3, 4, 10, 20]),
            (1, [2, 1, 1], vec![1, 2, 10, 3, 4, 20]),
            (2, [2, 2, 1], vec![1, 10, 2, 20, 3, 30, 4, 40]),
        ] {
            let n: usize = dims.iter().product();
            let new = Tensor::from_u8s(&dims, &[10, 20, 30, 40][..n]);
            let c = case("kiln", "Append", 1).input(past.clone()).input(new).attr("axis", Attr::Int(axis));
            assert_eq!(c.run().unwrap()[0].to_u8s().unwrap(), want);
        }
    }
}
