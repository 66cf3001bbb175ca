//! DeformConv: a convolution whose taps are moved by offsets, as columns and a matrix product.
//!
//! Operands: X `[N, C, spatial…]`, W `[M, C/group, kernel…]`, offsets `[N, groups·taps·axes, out…]`, B `[M]`, mask
//! `[N, groups·taps, out…]`. One to three spatial axes.
//! <https://onnx.ai/onnx/operators/onnx__DeformConv.html>

use super::attention::expect_equal;
use super::binary::arithmetic;
use super::conv::{ConvGeometry, geometry};
use super::matmul::gemm_scratch;
use super::view::{NodeView, Result, wrong};
use super::window::{Window, three_dims};
use super::{InferCx, OpDef, half, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Activation, BLayout, BinaryOp, DeformColumns, Dtype, Gemm, MatMul, Operand};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "DeformConv", &[19, 22], infer, lower).with_flops(flops)];

/// Extents that the node's operands must agree on.
struct Deform {
    conv: ConvGeometry,
    offset_groups: i64,
    taps: i64,
}

fn deform(cx: &NodeView<'_>) -> Result<Deform> {
    let conv = geometry(cx, 0, 1)?;
    let offset_groups = cx.int("offset_group", 1)?;
    let channels = cx.shape(0)?[1].as_const();
    if offset_groups < 1 || channels.is_some_and(|c| c % offset_groups != 0) {
        return Err(wrong(format!("{offset_groups} groups of {}", cx.ty(0)?)).at_attribute("offset_group"));
    }
    let taps = conv.window.kernel.iter().cloned().product::<Dim>().as_const();
    let taps = taps.ok_or_else(|| wrong("the kernel's extents must be constant").at_input(1))?;
    Ok(Deform { conv, offset_groups, taps })
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    for i in 1..5 {
        if i < 3 || cx.has(i) {
            cx.expect_same_dtype(i, 0)?;
        }
    }
    let d = deform(cx)?;
    let (x, w) = (cx.ty(0)?, cx.ty(1)?);
    let axes = x.rank() - 2;
    if axes > 3 {
        return Err(wrong(format!("expected one to three spatial axes, found {x}")).at_input(0));
    }
    let rows = d.taps.saturating_mul(d.offset_groups);
    for (i, rows) in [(2, rows.saturating_mul(axes as i64)), (4, rows)] {
        let Some(ty) = cx.opt_ty(i)? else { continue };
        cx.expect_rank(i, axes + 2)?;
        expect_equal("batch", &ty.shape[0], &x.shape[0]).map_err(|e| e.at_input(i))?;
        expect_equal("rows for every tap", &ty.shape[1], &Dim::Const(rows)).map_err(|e| e.at_input(i))?;
        for (a, b) in ty.shape[2..].iter().zip(&d.conv.out) {
            expect_equal("result", a, b).map_err(|e| e.at_input(i))?;
        }
    }
    if let Some(b) = cx.opt_ty(3)? {
        cx.expect_rank(3, 1)?;
        expect_equal("bias and output channels", &b.shape[0], &w.shape[0]).map_err(|e| e.at_input(3))?;
    }
    let mut shape = vec![x.shape[0].clone(), w.shape[0].clone()];
    shape.extend(d.conv.out);
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

/// The product's, and one multiplication and addition for each of the elements around a tap.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let x = cx.ty(0)?;
    let per_output: Dim = cx.shape(1)?[1..].iter().cloned().product();
    let y = cx.out_ty(0)?;
    let columns: Dim = cx.shape(1)?[2..].iter().chain(&y.shape[2..]).cloned().product();
    let samples = x.shape[0].clone() * x.shape[1].clone() * columns * Dim::Const(2 << (x.rank() - 2));
    Ok(Dim::Const(2) * per_output * y.numel() + samples)
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let (x_ty, w_ty, y_ty) = (view.ty(0)?, view.ty(1)?, view.out_ty(0)?);
    let d = deform(&view)?;
    let dtype = half::compute_dtype(x_ty.dtype);
    let window = &d.conv.window;
    let (batch, channels, taps) = (x_ty.shape[0].clone(), x_ty.shape[1].clone(), Dim::Const(d.taps));
    let points: Dim = y_ty.shape[2..].iter().cloned().product();
    let n_columns = batch.clone() * channels.clone() * taps.clone() * points.clone();
    let columns = cx.scratch(n_columns * Dim::from(dtype.size_bytes()));
    let sample = DeformColumns {
        x: half::x(cx, 0)?,
        offset: half::x(cx, 2)?,
        mask: half::opt(cx, 4)?,
        columns: columns.clone(),
        batch: batch.clone(),
        channels,
        offset_groups: Dim::Const(d.offset_groups),
        rank: Dim::from(x_ty.rank() - 2),
        x_dims: three_dims(&x_ty.shape[2..]),
        y_dims: three_dims(&y_ty.shape[2..]),
        kernel: window.kernel3(),
        strides: Window::three(&window.strides, 1),
        dilations: Window::three(&window.dilations, 1),
        pads: window.pads_begin3(),
    };
    cx.call(&[dtype], sample)?;
    let k = w_ty.shape[1].clone() * taps;
    let m = w_ty.shape[0].floor_div(&Dim::Const(d.conv.groups));
    let y = half::y(cx, 0)?;
    let product = Product { m, n: points, k, batch: [batch, Dim::Const(d.conv.groups)] };
    let weights = half::x(cx, 1)?;
    product.lower(cx, dtype, weights, columns, y.at.clone())?;
    if let Some(bias) = half::opt(cx, 3)? {
        let mut extents = vec![w_ty.shape[0].clone()];
        extents.resize(y_ty.rank() - 1, Dim::Const(1));
        arithmetic(cx, BinaryOp::Add, dtype, (y.at.clone(), &y_ty.shape), (bias, &extents), y.at.clone())?;
    }
    y.finish(cx)
}

/// `[groups, m, k] · [batch, groups, k, n]`.
struct Product {
    m: Dim,
    n: Dim,
    k: Dim,
    batch: [Dim; 2],
}

impl Product {
    fn lower(
        self,
        cx: &mut LowerCx<'_>,
        dtype: Dtype,
        a: Operand<Dim>,
        b: Operand<Dim>,
        c: Operand<Dim>,
    ) -> Result<()> {
        let Self { m, n, k, batch } = self;
        let groups = batch[1].clone();
        let levels =
            |each: Dim, shared: bool| [if shared { Dim::Const(0) } else { each.clone() * groups.clone() }, each];
        let a_batch = levels(m.clone() * k.clone(), true);
        let b_batch = levels(k.clone() * n.clone(), false);
        let c_batch = levels(m.clone() * n.clone(), false);
        let (lda, ldb, ldc) = (k.clone(), n.clone(), n.clone());
        if dtype != Dtype::F32 {
            let d = MatMul { a, b, c, m, n, k, lda, ldb, ldc, batch, a_batch, b_batch, c_batch };
            return cx.call(&[dtype], d);
        }
        let mut d = Gemm {
            a,
            b,
            bias: None,
            residual: None,
            c,
            scratch: None,
            m,
            n,
            k,
            lda,
            ldb,
            ldc,
            ld_residual: Dim::Const(0),
            batch,
            a_batch,
            b_batch,
            c_batch,
            residual_batch: [Dim::Const(0), Dim::Const(0)],
            b_layout: BLayout::Rows,
            activation: Activation::None,
            share: [0, 1],
        };
        d.scratch = gemm_scratch(cx, &d);
        cx.call(&[dtype], d)
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn ramp(dims: &[usize], step: usize) -> Tensor {
        let n = dims.iter().product::<usize>();
        Tensor::from_f32s(dims, &(0..n).map(|i| (i * step % 7) as f32 - 3.0).collect::<Vec<_>>())
    }

    #[test]
    fn without_offsets_it_is_a_convolution() {
        // Two groups, padding, steps: offsets of zero and a mask of ones change nothing.
        let (x, w, b) = (ramp(&[2, 4, 5, 4], 3), ramp(&[2, 2, 3, 2], 5), ramp(&[2], 2));
        let with = |c: crate::ops::testing::Case| {
            c.attr("group", Attr::Int(2))
                .attr("pads", Attr::Ints(vec![1, 0, 1, 1]))
                .attr("strides", Attr::Ints(vec![2, 1]))
        };
        let want = with(case("", "Conv", 11).input(x.clone()).input(w.clone()).input(b.clone())).run_f32();
        let zeros = Tensor::from_f32s(&[2, 24, 3, 4], &[0.0; 2 * 24 * 12]);
        let ones = Tensor::from_f32s(&[2, 12, 3, 4], &[1.0; 2 * 12 * 12]);
        let c = case("", "DeformConv", 19).input(x).input(w).input(zeros).input(b).input(ones);
        let y = with(c.attr("offset_group", Attr::Int(2))).run_f32();
        assert!(y.len() == want.len() && y.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-4), "{y:?} {want:?}");
    }

    #[test]
    fn reads_between_elements_and_outside() {
        // One tap, one axis: x at -0.5 (half outside), 1.25, and past the end.
        let x = Tensor::from_f32s(&[1, 1, 3], &[2.0, 4.0, 8.0]);
        let w = Tensor::from_f32s(&[1, 1, 1], &[1.0]);
        let offset = Tensor::from_f32s(&[1, 1, 3], &[-0.5, 0.25, 1.0]);
        let c = case("", "DeformConv", 22).input(x.clone()).input(w.clone()).input(offset);
        assert_eq!(c.run_f32(), [1.0, 5.0, 0.0]);
        let bad = Tensor::from_f32s(&[1, 2, 3], &[0.0; 6]);
        assert!(case("", "DeformConv", 22).input(x).input(w).input(bad).infer().is_err());
    }
}
