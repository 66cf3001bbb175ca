//! GridSample and AffineGrid: images read at computed places, and the places.
//!
//! <https://onnx.ai/onnx/operators/onnx__GridSample.html>, <https://onnx.ai/onnx/operators/onnx__AffineGrid.html>

use super::run_time::check_ints;
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, half, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{AffineGrid, Dtype, GridPadding, GridSample, ResizeMode};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "GridSample", &[16, 20, 22], infer, lower).with_flops(flops),
    OpDef::new("", "AffineGrid", &[20], infer_affine, lower_affine),
];

const FLOATS: [Dtype; 4] = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16];

fn mode(cx: &NodeView<'_>) -> Result<ResizeMode> {
    Ok(match cx.text("mode", "linear")? {
        "linear" | "bilinear" => ResizeMode::Linear,
        "nearest" => ResizeMode::Nearest,
        "cubic" | "bicubic" => ResizeMode::Cubic,
        other => return Err(wrong(format!("{other:?} is not supported")).at_attribute("mode")),
    })
}

fn padding(cx: &NodeView<'_>) -> Result<GridPadding> {
    Ok(match cx.text("padding_mode", "zeros")? {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        other => return Err(wrong(format!("{other:?} is not supported")).at_attribute("padding_mode")),
    })
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    mode(cx)?;
    padding(cx)?;
    if cx.dtype(0)?.is_complex() || cx.dtype(0)? == Dtype::Str {
        return Err(wrong(format!("expected numbers, found {}", cx.ty(0)?)).at_input(0));
    }
    cx.expect_dtype(1, &FLOATS)?;
    let (x, grid) = (cx.ty(0)?, cx.ty(1)?);
    let rank = x.rank().saturating_sub(2);
    if !(1..=3).contains(&rank) {
        return Err(wrong(format!("expected one to three spatial axes, found {x}")).at_input(0));
    }
    cx.expect_rank(1, x.rank())?;
    let (batch, last) = (&grid.shape[0], &grid.shape[rank + 1]);
    let differ = |a: &Dim, b: &Dim| a.as_const().is_some() && b.as_const().is_some() && a != b;
    if differ(batch, &x.shape[0]) || differ(last, &Dim::from(rank)) {
        return Err(wrong(format!("grid {grid} for {x}")).at_input(1));
    }
    let shape = x.shape[..2].iter().chain(&grid.shape[1..=rank]).cloned().collect();
    cx.set(0, tensor(x.dtype, shape));
    Ok(())
}

/// One multiplication and addition per tap.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let taps: i64 = match mode(cx)? {
        ResizeMode::Nearest => 1,
        ResizeMode::Linear => 2,
        ResizeMode::Cubic => 4,
    };
    let rank = u32::try_from(cx.rank(0)?.saturating_sub(2)).unwrap_or(0);
    Ok(cx.out_ty(0)?.numel() * Dim::Const(2 * taps.pow(rank.min(3))))
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let (x, grid) = (cx.ty(0)?, cx.ty(1)?);
    let rank = x.rank() - 2;
    // Elements and grid of one float type are read as they are.
    let direct = x.dtype == grid.dtype;
    let dtype = if direct { x.dtype } else { half::joint_dtype(cx, &[0, 1])? };
    let y = if direct { half::Output::exact(cx.y(0)?) } else { half::y_as(cx, 0, dtype)? };
    let d = GridSample {
        x: if direct { cx.x(0)? } else { half::x_as(cx, 0, dtype)? },
        grid: if direct { cx.x(1)? } else { half::x_as(cx, 1, dtype)? },
        y: y.at.clone(),
        batch: x.shape[0].clone(),
        channels: x.shape[1].clone(),
        points: grid.shape[1..=rank].iter().cloned().product(),
        rank: Dim::from(rank),
        dims: std::array::from_fn(|i| (i + rank).checked_sub(3).map_or(Dim::Const(1), |a| x.shape[2 + a].clone())),
        mode: mode(cx)?,
        padding: padding(cx)?,
        align_corners: cx.int("align_corners", 0)? != 0,
    };
    cx.call(&[dtype, if dtype == Dtype::F64 { Dtype::F64 } else { Dtype::F32 }], d)?;
    y.finish(cx)
}

/// Number of spatial axes: two or three, by the maps' shape.
fn affine_rank(cx: &NodeView<'_>) -> Result<usize> {
    cx.expect_dtype(0, &FLOATS)?;
    cx.expect_rank(0, 3)?;
    match &cx.shape(0)?[1..] {
        [Dim::Const(2), Dim::Const(3)] => Ok(2),
        [Dim::Const(3), Dim::Const(4)] => Ok(3),
        [a, b] if a.as_const().is_none() || b.as_const().is_none() => {
            match cx.shape(1)?.first().and_then(Dim::as_const) {
                Some(4) => Ok(2),
                Some(5) => Ok(3),
                _ => Err(wrong("whether there are two or three spatial axes is not known").at_input(0)),
            }
        }
        _ => Err(wrong(format!("expected [N,2,3] or [N,3,4], found {}", cx.ty(0)?)).at_input(0)),
    }
}

fn infer_affine(cx: &mut InferCx<'_>) -> Result<()> {
    let rank = affine_rank(cx)?;
    cx.expect_dtype(1, &[Dtype::I64])?;
    let (dtype, batch) = (cx.dtype(0)?, cx.shape(0)?[0].clone());
    let mut shape = vec![batch];
    match cx.dims(1) {
        Some(size) if size.len() == rank + 2 => shape.extend(size[2..].iter().cloned()),
        Some(size) => return Err(wrong(format!("{} extents for {rank} spatial axes", size.len())).at_input(1)),
        // Known only at run time: the declared extents, checked then.
        None => {
            let declared = cx.declared(0, rank + 2).ok_or_else(|| cx.unknown(1))?;
            shape.extend(declared[1..=rank].iter().cloned());
        }
    }
    if shape.iter().any(|d| d.as_const().is_some_and(|d| d < 0)) {
        return Err(wrong("a negative extent").at_input(1));
    }
    shape.push(Dim::from(rank));
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_affine(cx: &mut LowerCx<'_>) -> Result<()> {
    let rank = affine_rank(cx)?;
    let dtype = cx.dtype(0)?;
    let y = cx.out_shape(0)?;
    if cx.dims(1).is_none() {
        check_ints(cx, 1, 2, &y[1..=rank])?;
    }
    let d = AffineGrid {
        theta: cx.x(0)?,
        y: cx.y(0)?,
        batch: y[0].clone(),
        rank: Dim::from(rank),
        dims: std::array::from_fn(|i| (i + rank).checked_sub(3).map_or(Dim::Const(1), |a| y[1 + a].clone())),
        align_corners: cx.int("align_corners", 0)? != 0,
    };
    cx.call(&[dtype], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn samples() {
        let x = Tensor::from_f32s(&[1, 1, 2, 2], &[1., 2., 3., 4.]);
        let grid = Tensor::from_f32s(&[1, 1, 4, 2], &[-1., -1., 1., -1., 0., 0., -3., 0.]);
        for (mode, padding, want) in [
            ("linear", "zeros", [1., 2., 2.5, 0.]),
            ("linear", "border", [1., 2., 2.5, 2.]),
            ("nearest", "border", [1., 2., 1., 1.]),
            ("linear", "reflection", [1., 2., 2.5, 3.]),
        ] {
            let c = case("", "GridSample", 20).input(x.clone()).input(grid.clone());
            let c = c.attr("mode", Attr::Str(mode.into())).attr("padding_mode", Attr::Str(padding.into()));
            assert_eq!(c.attr("align_corners", Attr::Int(1)).run_f32(), want, "{mode} {padding}");
        }
        // Elements of other types than the grid's.
        let whole = Tensor::from_i32s(&[1, 1, 2, 2], &[1, 2, 3, 1 << 30]);
        let c = case("", "GridSample", 20).input(whole).input(grid.clone()).attr("mode", Attr::Str("nearest".into()));
        let y = c.attr("align_corners", Attr::Int(1)).run().unwrap();
        assert_eq!(y[0].to_i32s().unwrap()[..2], [1, 2]);
        let bad = Tensor::from_f32s(&[1, 1, 4, 1], &[0.; 4]);
        assert!(case("", "GridSample", 20).input(x).input(bad).infer().is_err());
    }

    #[test]
    fn even_grid() {
        let theta = Tensor::from_f32s(&[1, 2, 3], &[1., 0., 0., 0., 1., 0.5]);
        let size = Tensor::from_i64s(&[4], &[1, 1, 1, 2]);
        let c = case("", "AffineGrid", 20).input(theta).constant(size);
        assert_eq!(c.run_f32(), [-0.5, 0.5, 0.5, 0.5]);
        assert_eq!(c.attr("align_corners", Attr::Int(1)).run_f32(), [-1., 0.5, 1., 0.5]);
    }
}
