//! Expand and Tile: repeated elements, by copies with strides of zero.
//!
//! <https://onnx.ai/onnx/operators/onnx__Expand.html>, <https://onnx.ai/onnx/operators/onnx__Tile.html>

use super::run_time::{check_either, check_ints};
use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, broadcast, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "Expand", &[8, 13], infer_expand, lower_expand).with_dims(expand_dims),
    OpDef::new("", "Tile", &[1, 6, 13], infer_tile, lower_tile).with_dims(tile_dims),
];

fn infer_expand(cx: &mut InferCx<'_>) -> Result<()> {
    let wanted = match cx.dims(1) {
        Some(d) => d,
        // Known only at run time: the declared extents, checked then.
        None => {
            let n = cx.shape(1)?.first().and_then(|n| usize::try_from(n.as_const()?).ok());
            n.and_then(|n| cx.declared(0, n.max(cx.rank(0).ok()?))).ok_or_else(|| cx.unknown(1))?
        }
    };
    if wanted.iter().any(|d| d.as_const().is_some_and(|d| d < 0)) {
        return Err(wrong("a negative extent").at_input(1));
    }
    let shape = broadcast(&[cx.shape(0)?, &wanted])?;
    let dtype = cx.dtype(0)?;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn expand_dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    let x = cx.dims(0)?;
    let n = match &cx.dims(1)?[..] {
        [] => 1,
        [n] => usize::try_from(n.as_const()?).ok()?,
        _ => return None,
    };
    match (x.len(), n) {
        (_, 1) => Some(x),
        (1, n) if n <= SMALL => Some(vec![x[0].clone(); n]),
        (m, n) if m == n => Some(x),
        _ => None,
    }
}

/// Shape arithmetic has no longer vectors.
const SMALL: usize = 64;

fn lower_expand(cx: &mut LowerCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let dims = cx.out_shape(0)?.to_vec();
    if cx.dims(1).is_none() {
        check_shape(cx)?;
    }
    cx.expect_broadcast(&x.shape, &dims)?;
    if let Some(wanted) = cx.dims(1) {
        cx.expect_broadcast(&wanted, &dims)?;
    }
    if x.numel() == cx.out_ty(0)?.numel() {
        return cx.view_of(0, 0);
    }
    let first = dims.len() - x.rank();
    let strides = row_major(&x.shape);
    let x_strides = (0..dims.len())
        .map(|i| match i.checked_sub(first) {
            Some(j) => super::broadcast::stride(&strides[j], &x.shape[j], &dims[i]),
            None => Dim::Const(0),
        })
        .collect();
    let dtype = x.dtype;
    let copy =
        StridedCopy { x_start: Dim::Const(0), x_strides, y_start: Dim::Const(0), y_strides: row_major(&dims), dims };
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    copy.lower(cx, dtype, x, y)
}

/// Checks a shape known only at run time: where the operand has the planned extent already, it may say 1.
fn check_shape(cx: &mut LowerCx<'_>) -> Result<()> {
    let (x, y) = (cx.shape(0)?, cx.out_shape(0)?);
    let n = cx.shape(1)?.first().and_then(|n| usize::try_from(n.as_const()?).ok()).unwrap_or(0);
    let planned = &y[y.len() - n.min(y.len())..];
    let other: Vec<Dim> = (y.len() - planned.len()..y.len())
        .map(|i| match (i + x.len()).checked_sub(y.len()) {
            Some(j) if x[j] == y[i] => Dim::Const(1),
            _ => y[i].clone(),
        })
        .collect();
    check_either(cx, 1, 0, planned, &other)
}

/// How often each axis repeats. Opset 1 repeats one axis, given by two scalars.
fn repeats(cx: &NodeView<'_>) -> Result<Vec<Dim>> {
    let rank = cx.rank(0)?;
    let given = match cx.dims(1) {
        Some(d) => d,
        // Known only at run time: what the declared extents come to, checked then.
        None if cx.version() >= 6 => {
            let declared = cx.declared(0, rank).ok_or_else(|| cx.unknown(1))?;
            let times = |(d, e): (&Dim, &Dim)| match (d.as_const()?, e.as_const()?) {
                (d, e) if d > 0 && e % d == 0 => Some(Dim::Const(e / d)),
                _ => None,
            };
            cx.shape(0)?.iter().zip(&declared).map(times).collect::<Option<_>>().ok_or_else(|| cx.unknown(1))?
        }
        None => return Err(cx.unknown(1)),
    };
    let repeats = if cx.version() < 6 {
        let axis = cx.need_ints(2)?;
        let ([n], [axis]) = (&given[..], &axis[..]) else {
            return Err(wrong("tiles and axis must be scalars").at_input(1));
        };
        let mut all = vec![Dim::Const(1); rank];
        all[super::view::resolve_axis(*axis, rank).map_err(|e| e.at_input(2))?] = n.clone();
        all
    } else {
        given
    };
    if repeats.len() != rank {
        return Err(wrong(format!("{} repeats for {}", repeats.len(), cx.ty(0)?)).at_input(1));
    }
    if repeats.iter().any(|d| d.as_const().is_some_and(|d| d < 0)) {
        return Err(wrong("a negative number of repeats").at_input(1));
    }
    Ok(repeats)
}

fn infer_tile(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let shape = x.shape.iter().zip(repeats(cx)?).map(|(d, r)| d.clone() * r).collect();
    cx.set(0, tensor(x.dtype, shape));
    Ok(())
}

fn tile_dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    let x = cx.dims(0)?;
    let n = match &repeats(cx).ok()?[..] {
        [n] => usize::try_from(n.as_const()?).ok()?,
        _ => return None,
    };
    (n.checked_mul(x.len())? <= SMALL).then(|| x.iter().cycle().take(n * x.len()).cloned().collect())
}

fn lower_tile(cx: &mut LowerCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    let repeats = repeats(cx)?;
    if cx.dims(1).is_none() {
        check_ints(cx, 1, 0, &repeats)?;
    }
    if repeats.iter().all(|r| r.is(1)) {
        return cx.view_of(0, 0);
    }
    // Each axis becomes two: the repeats, which read the same, and the axis itself.
    let pairs = || repeats.iter().zip(&x.shape);
    let dims: Vec<Dim> = pairs().flat_map(|(r, d)| [r.clone(), d.clone()]).collect();
    let x_strides = row_major(&x.shape).into_iter().flat_map(|s| [Dim::Const(0), s]).collect();
    let copy =
        StridedCopy { x_start: Dim::Const(0), x_strides, y_start: Dim::Const(0), y_strides: row_major(&dims), dims };
    let dtype = x.dtype;
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    copy.lower(cx, dtype, x, y)
}

#[cfg(test)]
mod tests {
    use crate::ir::Tensor;
    use crate::ops::testing::case;

    fn ints(v: &[i64]) -> Tensor {
        Tensor::from_i64s(&[v.len()], v)
    }

    #[test]
    fn expands() {
        let x = Tensor::from_f32s(&[2, 1], &[1., 2.]);
        for (shape, dims, values) in [
            (vec![1, 3], vec![2, 3], vec![1., 1., 1., 2., 2., 2.]),
            (vec![2, 1, 1], vec![2, 2, 1], vec![1., 2., 1., 2.]),
            (vec![], vec![2, 1], vec![1., 2.]),
            (vec![0], vec![2, 0], vec![]),
        ] {
            let y = case("", "Expand", 13).input(x.clone()).constant(ints(&shape)).run().unwrap();
            assert_eq!(y[0], Tensor::from_f32s(&dims, &values));
        }
        for bad in [vec![3, 1], vec![-1], vec![1 << 40, 1 << 40, 1]] {
            assert!(case("", "Expand", 13).input(x.clone()).constant(ints(&bad)).infer().is_err());
        }
    }

    #[test]
    fn tiles() {
        let x = Tensor::from_u8s(&[1, 2], &[1, 2]);
        let y = case("", "Tile", 13).input(x.clone()).constant(ints(&[2, 2])).run().unwrap();
        assert_eq!(y[0], Tensor::from_u8s(&[2, 4], &[1, 2, 1, 2, 1, 2, 1, 2]));
        let y = case("", "Tile", 1).input(x.clone()).constant(ints(&[2])).constant(ints(&[1])).run().unwrap();
        assert_eq!(y[0], Tensor::from_u8s(&[1, 4], &[1, 2, 1, 2]));
        let y = case("", "Tile", 6).input(x.clone()).constant(ints(&[0, 1])).run().unwrap();
        assert_eq!(y[0].dims(), &[0, 2]);
        assert!(case("", "Tile", 13).input(x).constant(ints(&[2])).infer().is_err());
        let deep = Tensor::from_u8s(&[2, 2, 2, 2, 2], &(0..32).collect::<Vec<_>>());
        let y = case("", "Tile", 13).input(deep).constant(ints(&[2, 2, 2, 2, 2])).run().unwrap();
        assert_eq!(&y[0].data()[..8], &[0, 1, 0, 1, 2, 3, 2, 3]);
    }
}
