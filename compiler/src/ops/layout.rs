//! Conversions between the plain and the blocked layout: nodes that the layout pass inserts.

use super::view::Result;
use super::{InferCx, OpDef};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{BytesFromBlocked16, BytesToBlocked16, Dtype, FromBlocked16, ToBlocked16};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("kiln", "ToBlocked", &[1], infer, lower_to),
    OpDef::new("kiln", "FromBlocked", &[1], infer, lower_from),
];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.same_as_input()
}

/// Whether both layouts are the same bytes: whole blocks of single pixels.
pub(crate) fn is_free(shape: &[Dim]) -> bool {
    shape[1].as_const().is_some_and(|c| c % 16 == 0) && shape[2..].iter().all(|d| d.is(1))
}

fn extents(shape: &[Dim]) -> [Dim; 3] {
    [shape[0].clone(), shape[1].clone(), shape[2..].iter().cloned().product()]
}

fn lower_to(cx: &mut LowerCx<'_>) -> Result<()> {
    let shape = cx.shape(0)?;
    if is_free(shape) {
        return cx.view_of(0, 0);
    }
    let [n, c, spatial] = extents(shape);
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    let (part_begin, part_end) = (Dim::Const(0), n.clone() * c.ceil_div(&Dim::Const(16)));
    if cx.dtype(0)?.size_bytes() == 1 {
        return cx.call(&[Dtype::U8], BytesToBlocked16 { x, y, n, c, spatial, part_begin, part_end });
    }
    cx.call(&[Dtype::F32], ToBlocked16 { x, y, n, c, spatial, part_begin, part_end })
}

fn lower_from(cx: &mut LowerCx<'_>) -> Result<()> {
    let shape = cx.shape(0)?;
    if is_free(shape) {
        return cx.view_of(0, 0);
    }
    let [n, c, spatial] = extents(shape);
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    let (part_begin, part_end) = (Dim::Const(0), n.clone() * c.ceil_div(&Dim::Const(16)));
    if cx.dtype(0)?.size_bytes() == 1 {
        return cx.call(&[Dtype::U8], BytesFromBlocked16 { x, y, n, c, spatial, part_begin, part_end });
    }
    cx.call(&[Dtype::F32], FromBlocked16 { x, y, n, c, spatial, part_begin, part_end })
}
