//! Pools over windows and over whole images: MaxPool, AveragePool, LpPool, GlobalMaxPool, GlobalAveragePool, GlobalLpPool.
//!
//! <https://onnx.ai/onnx/operators/onnx__MaxPool.html>, `onnx__AveragePool.html`, `onnx__LpPool.html`

use super::view::{NodeView, Result, wrong};
use super::window::{Window, three_dims};
use super::{InferCx, LayoutRule, OpDef, half, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Layout};
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, GlobalPoolBlocked, MaxPoolIndices, Pool, PoolBlocked, PoolKind, QMaxPool};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "MaxPool", &[1, 8, 10, 11, 12, 22], infer, lower)
        .with_flops(flops)
        .with_layout(LayoutRule::Channelwise),
    OpDef::new("", "AveragePool", &[1, 7, 10, 11, 19, 22], infer, lower)
        .with_flops(flops)
        .with_layout(LayoutRule::Channelwise),
    OpDef::new("", "LpPool", &[1, 2, 11, 18, 22], infer, lower).with_flops(flops).with_layout(LayoutRule::Channelwise),
    // An average by the whole window, also where it hangs over the end.
    OpDef::new("kiln", "AveragePool", &[1], infer, lower).with_flops(flops).with_layout(LayoutRule::Channelwise),
    OpDef::new("", "GlobalMaxPool", &[1, 22], infer_global, lower_global)
        .with_flops(flops_global)
        .with_layout(LayoutRule::Channelwise),
    OpDef::new("", "GlobalAveragePool", &[1, 22], infer_global, lower_global)
        .with_flops(flops_global)
        .with_layout(LayoutRule::Channelwise),
    OpDef::new("", "GlobalLpPool", &[1, 2, 22], infer_global, lower_global)
        .with_flops(flops_global)
        .with_layout(LayoutRule::Channelwise),
];

fn kind(cx: &NodeView<'_>) -> Result<(PoolKind, u32)> {
    let p = || -> Result<u32> {
        // Opset 1 had a float here.
        let p = if cx.version() < 2 { f64::from(cx.float("p", 2.0)?) } else { cx.int("p", 2)? as f64 };
        if p.fract() == 0.0 && (1.0..=1e6).contains(&p) {
            Ok(p as u32)
        } else {
            Err(wrong("out of range").at_attribute("p"))
        }
    };
    Ok(match cx.node.op.as_str() {
        "AveragePool" if cx.int("count_include_pad", 0)? != 0 => (PoolKind::AverageWithPads, 0),
        "AveragePool" | "GlobalAveragePool" => (PoolKind::Average, 0),
        "LpPool" | "GlobalLpPool" => (PoolKind::Lp, p()?),
        _ => (PoolKind::Max, 0),
    })
}

fn window(cx: &NodeView<'_>) -> Result<(Window, Vec<Dim>)> {
    let x = cx.ty(0)?;
    if x.rank() < 3 {
        return Err(wrong(format!("expected rank 3 or more, found {x}")).at_input(0));
    }
    let kernel = cx.opt_ints("kernel_shape")?.ok_or_else(|| wrong("attribute kernel_shape is missing"))?;
    if kernel.len() != x.rank() - 2 || kernel.iter().any(|k| !(1..=1 << 31).contains(k)) {
        return Err(wrong(format!("extents {kernel:?} for {x}")).at_attribute("kernel_shape"));
    }
    let kernel = kernel.iter().map(|&k| Dim::Const(k)).collect();
    let mut window = Window::of(cx, &x.shape[2..], kernel)?;
    let out = window.windows(&x.shape[2..], cx.int("ceil_mode", 0)? != 0);
    if let Some(i) = out.iter().position(|n| n.as_const().is_some_and(|n| n < 0)) {
        return Err(window.no_room(&x.shape[2..], i));
    }
    if cx.node.is_kiln("AveragePool") {
        window.pad_overhang(&x.shape[2..], &out);
    }
    Ok((window, out))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let max = cx.node.op == "MaxPool";
    let floats = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16];
    let with_ints = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16, Dtype::I8, Dtype::U8];
    cx.expect_dtype(0, if max { &with_ints } else { &floats })?;
    kind(cx)?;
    let (_, out) = window(cx)?;
    let x = cx.ty(0)?;
    let mut shape = x.shape[..2].to_vec();
    // A window that does not fit is nowhere: no results. One that is larger by a step and more is refused, here or when run.
    shape.extend(out.iter().map(|n| n.at_least(&Dim::Const(0))));
    let dtype = x.dtype;
    if max {
        cx.set(1, tensor(Dtype::I64, shape.clone()));
    }
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn infer_global(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    kind(cx)?;
    let x = cx.ty(0)?;
    if x.rank() < 2 {
        return Err(wrong(format!("expected rank 2 or more, found {x}")).at_input(0));
    }
    let shape = x.shape.iter().enumerate().map(|(i, d)| if i < 2 { d.clone() } else { Dim::Const(1) }).collect();
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

/// `N·C·out·kernel`
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let (window, _) = window(cx)?;
    Ok(cx.out_ty(0)?.numel() * window.kernel.iter().cloned().product::<Dim>())
}

fn flops_global(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.ty(0)?.numel())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let (x_ty, y_ty) = (view.ty(0)?, view.out_ty(0).or_else(|_| view.out_ty(1))?);
    let (kind, p) = kind(&view)?;
    let (window, out) = window(&view)?;
    cx.expect_equal(out.iter().zip(&y_ty.shape[2..]))?;
    if y_ty.numel().is(0) {
        for i in (0..2).filter(|i| view.wants(*i)) {
            cx.y(i)?;
        }
        return Ok(());
    }
    if view.layout(0)? == Layout::Blocked16 {
        return lower_blocked(cx, &window, kind, p);
    }
    if x_ty.rank() > 5 {
        return Err(CompileError::new(Stage::Lower, format!("no kernel for {} spatial axes", x_ty.rank() - 2)));
    }
    let planes = x_ty.shape[0].clone() * x_ty.shape[1].clone();
    let y_dims = three_dims(&y_ty.shape[2..]);
    let units = planes.clone() * y_dims[0].clone() * y_dims[1].clone();
    let dtype = half::compute_dtype(x_ty.dtype);
    let x = half::x(cx, 0)?;
    let (x_dims, kernel) = (three_dims(&x_ty.shape[2..]), window.kernel3());
    let (strides, dilations) = (Window::three(&window.strides, 1), Window::three(&window.dilations, 1));
    let (pads_begin, pads_end) = (window.pads_begin3(), window.pads_end3());
    let (part_begin, part_end) = (Dim::Const(0), units);
    if view.wants(1) {
        let indices = cx.y(1)?;
        let y = if view.wants(0) { Some(half::y(cx, 0)?) } else { None };
        let at = match &y {
            Some(y) => y.at.clone(),
            None => cx.scratch(y_ty.numel() * Dim::from(dtype.size_bytes())),
        };
        let column_major = view.int("storage_order", 0)? != 0;
        let (planes, y) = (planes, (y, at));
        cx.call(
            &[dtype, Dtype::I64],
            MaxPoolIndices {
                x,
                y: y.1,
                indices,
                planes,
                part_begin,
                part_end,
                x_dims,
                y_dims,
                kernel,
                strides,
                dilations,
                pads_begin,
                column_major,
            },
        )?;
        return match y.0 {
            Some(y) => y.finish(cx),
            None => Ok(()),
        };
    }
    let y = half::y(cx, 0)?;
    cx.call(
        &[dtype],
        Pool {
            x,
            y: y.at.clone(),
            planes,
            part_begin,
            part_end,
            x_dims,
            y_dims,
            kernel,
            strides,
            dilations,
            pads_begin,
            pads_end,
            kind,
            p,
        },
    )?;
    y.finish(cx)
}

fn lower_blocked(cx: &mut LowerCx<'_>, window: &Window, kind: PoolKind, p: u32) -> Result<()> {
    let (x_ty, y_ty) = (cx.ty(0)?, cx.out_ty(0)?);
    if !matches!(x_ty.rank(), 3 | 4) || cx.wants(1) {
        return Err(CompileError::new(Stage::Lower, "no blocked kernel for this pool"));
    }
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    let [_, h, w] = three_dims(&x_ty.shape[2..]);
    let [_, oh, ow] = three_dims(&y_ty.shape[2..]);
    let two = |[_, a, b]: [Dim; 3]| (a, b);
    let steps = |v: &[i64]| two(Window::three(v, 1));
    let ((kh, kw), (sy, sx), (dy, dx)) = (two(window.kernel3()), steps(&window.strides), steps(&window.dilations));
    let ((pt, pl), (pb, pr)) = (two(window.pads_begin3()), two(window.pads_end3()));
    let (n, c) = (x_ty.shape[0].clone(), x_ty.shape[1].clone());
    let units = n.clone() * c.ceil_div(&Dim::Const(16)) * oh.clone();
    if let (PoolKind::Max, Some((least, _))) = (kind, super::quant::limits(x_ty.dtype)) {
        let (part_begin, part_end) = (Dim::Const(0), units);
        let d = QMaxPool { x, y, n, c, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, part_begin, part_end, least };
        return cx.call(&[x_ty.dtype], d);
    }
    let (part_begin, part_end) = (Dim::Const(0), units);
    cx.call(
        &[Dtype::F32],
        PoolBlocked { x, y, n, c, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, pb, pr, part_begin, part_end, kind, p },
    )
}

fn lower_global(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let x_ty = view.ty(0)?;
    let (kind, p) = kind(&view)?;
    let (n, c) = (x_ty.shape[0].clone(), x_ty.shape[1].clone());
    let spatial: Dim = x_ty.shape[2..].iter().cloned().product();
    if view.layout(0)? == Layout::Blocked16 {
        let (x, y) = (cx.x(0)?, cx.y(0)?);
        let units = n.clone() * c.ceil_div(&Dim::Const(16));
        let (part_begin, part_end) = (Dim::Const(0), units);
        return cx.call(&[Dtype::F32], GlobalPoolBlocked { x, y, n, c, spatial, part_begin, part_end, kind, p });
    }
    // One window over everything.
    let one = || [Dim::Const(1), Dim::Const(1), Dim::Const(1)];
    let none = || [Dim::Const(0), Dim::Const(0), Dim::Const(0)];
    let row = [Dim::Const(1), Dim::Const(1), spatial];
    let dtype = half::compute_dtype(x_ty.dtype);
    let x = half::x(cx, 0)?;
    let y = half::y(cx, 0)?;
    let planes = n * c;
    cx.call(
        &[dtype],
        Pool {
            x,
            y: y.at.clone(),
            planes: planes.clone(),
            part_begin: Dim::Const(0),
            part_end: planes,
            x_dims: row.clone(),
            y_dims: one(),
            kernel: row,
            strides: one(),
            dilations: one(),
            pads_begin: none(),
            pads_end: none(),
            kind,
            p,
        },
    )?;
    y.finish(cx)
}
