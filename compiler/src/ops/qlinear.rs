//! ONNX Runtime's operators on quantised tensors: QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu,
//! QLinearGlobalAveragePool, QLinearConcat.
//!
//! Every tensor goes with one scale and one zero point. What has no kernel here is expanded into dequantisation, the
//! float operator and quantisation (`passes::expand`).
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>

use super::broadcast::{self, strides};
use super::quant::{as_f32, code_table, const_scale, const_zero, expect_one_scale, expect_one_zero, limits};
use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, broadcast as joint_shape, wrong};
use super::{InferCx, LayoutRule, OpDef, flops_per_element, tensor};
use crate::ir::{Dim, Layout};
use crate::lower::LowerCx;
use kiln_kernels::{ByteTable, Dtype, Operand, QBinary, QBinaryOp, QMean};

const MS: &str = "com.microsoft";

pub(super) static OPS: &[OpDef] = &[
    OpDef::new(MS, "QLinearAdd", &[1], infer_binary, |cx| lower_binary(cx, QBinaryOp::Add))
        .with_flops(flops_per_element)
        .with_layout(LayoutRule::Elementwise),
    OpDef::new(MS, "QLinearMul", &[1], infer_binary, |cx| lower_binary(cx, QBinaryOp::Mul))
        .with_flops(flops_per_element)
        .with_layout(LayoutRule::Elementwise),
    OpDef::new(MS, "QLinearSigmoid", &[1], infer_unary, lower_sigmoid).with_layout(LayoutRule::Elementwise),
    OpDef::new(MS, "QLinearLeakyRelu", &[1], infer_unary, lower_leaky_relu).with_layout(LayoutRule::Elementwise),
    OpDef::new(MS, "QLinearGlobalAveragePool", &[1], infer_mean, lower_mean)
        .with_flops(|cx| Ok(cx.ty(0)?.numel()))
        .with_layout(LayoutRule::Channelwise),
    // Any function of one byte, its 256 results as an attribute.
    OpDef::new("kiln", "CodeTable", &[1], infer_table, lower_table).with_layout(LayoutRule::Elementwise),
    OpDef::new(MS, "QLinearConcat", &[1], infer_concat, lower_concat),
];

const BYTES: &[Dtype] = &[Dtype::U8, Dtype::I8];

/// A, its scale and zero point, B, its, the result's.
fn infer_binary(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    cx.expect_same_dtype(3, 0)?;
    for (scale, zero) in [(1, 2), (4, 5), (6, 7)] {
        expect_one_scale(cx, scale)?;
        expect_one_zero(cx, zero, 0)?;
    }
    let shape = joint_shape(&[cx.shape(0)?, cx.shape(3)?])?;
    let dtype = cx.dtype(0)?;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_binary(cx: &mut LowerCx<'_>, op: QBinaryOp) -> Result<()> {
    let (a_shape, b_shape) = (cx.shape(0)?.to_vec(), cx.shape(3)?.to_vec());
    let (a, a_extents) = broadcast::operand(cx, 0, &a_shape)?;
    let (b, b_extents) = broadcast::operand(cx, 3, &b_shape)?;
    let s = strides(&broadcast::result_extents(cx)?, [&a_extents, &b_extents])?;
    let [a_strides, b_strides] = s.of;
    let d = QBinary {
        a,
        b,
        a_scale: as_f32(cx, 1)?,
        b_scale: as_f32(cx, 4)?,
        y_scale: as_f32(cx, 6)?,
        a_zero: cx.opt(2)?,
        b_zero: cx.opt(5)?,
        y_zero: cx.opt(7)?,
        y: cx.y(0)?,
        dims: s.dims,
        a_strides,
        b_strides,
        op,
    };
    let dtype = cx.dtype(0)?;
    cx.call(&[dtype, Dtype::F32], d)
}

/// X, its scale and zero point, the result's.
fn infer_unary(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    for (scale, zero) in [(1, 2), (3, 4)] {
        expect_one_scale(cx, scale)?;
        expect_one_zero(cx, zero, 0)?;
        const_scale(cx, scale)?;
        const_zero(cx, zero)?;
    }
    cx.same_as_input()
}

fn lower_unary(cx: &mut LowerCx<'_>, f: impl Fn(f32) -> f32) -> Result<()> {
    let (x_scale, y_scale) = (const_scale(cx, 1)?, const_scale(cx, 3)?);
    let (x_zero, y_zero) = (const_zero(cx, 2)?, const_zero(cx, 4)?);
    let table = code_table(cx.dtype(0)?, (x_scale, x_zero), (y_scale, y_zero), f);
    let d = ByteTable { x: cx.x(0)?, table: cx.weights(table), y: cx.y(0)? };
    cx.call(&[Dtype::U8], d)
}

fn lower_sigmoid(cx: &mut LowerCx<'_>) -> Result<()> {
    lower_unary(cx, |x| (1.0 / (1.0 + (-f64::from(x)).exp())) as f32)
}

fn lower_leaky_relu(cx: &mut LowerCx<'_>) -> Result<()> {
    let alpha = cx.float("alpha", 0.01)?;
    lower_unary(cx, |x| if x >= 0.0 { x } else { x * alpha })
}

fn infer_table(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    let table = cx.opt_tensor("table")?.filter(|t| t.dims() == [256] && BYTES.contains(&t.dtype()));
    let dtype = table.ok_or_else(|| wrong("expected 256 codes").at_attribute("table"))?.dtype();
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_table(cx: &mut LowerCx<'_>) -> Result<()> {
    let table = cx.opt_tensor("table")?.ok_or_else(|| wrong("expected 256 codes").at_attribute("table"))?;
    let d = ByteTable { x: cx.x(0)?, table: cx.weights(table.data().clone()), y: cx.y(0)? };
    cx.call(&[Dtype::U8], d)
}

/// `[outer, n, inner]` of the tensor whose middle is averaged.
fn mean_extents(cx: &NodeView<'_>) -> Result<[Dim; 3]> {
    let shape = cx.shape(0)?;
    let product = |dims: &[Dim]| dims.iter().cloned().product::<Dim>();
    Ok(if cx.int("channels_last", 0)? == 0 {
        [product(&shape[..2]), product(&shape[2..]), Dim::Const(1)]
    } else {
        [shape[0].clone(), product(&shape[1..shape.len() - 1]), shape[shape.len() - 1].clone()]
    })
}

fn infer_mean(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, BYTES)?;
    for (scale, zero) in [(1, 2), (3, 4)] {
        expect_one_scale(cx, scale)?;
        expect_one_zero(cx, zero, 0)?;
    }
    let x = cx.ty(0)?;
    if x.rank() < 3 {
        return Err(wrong(format!("expected rank 3 or more, found {x}")).at_input(0));
    }
    let last = cx.int("channels_last", 0)? != 0;
    let kept = if last { x.rank() - 1 } else { 1 };
    let shape = x.shape.iter().enumerate();
    let shape = shape.map(|(i, d)| if i == 0 || i == kept { d.clone() } else { Dim::Const(1) }).collect();
    let dtype = x.dtype;
    if mean_extents(cx)?[1].is(0) {
        return Err(wrong("the mean of nothing").at_input(0));
    }
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_mean(cx: &mut LowerCx<'_>) -> Result<()> {
    let [mut outer, n, mut inner] = mean_extents(cx)?;
    if cx.layout(0)? == Layout::Blocked16 {
        let shape = cx.shape(0)?;
        outer = shape[0].clone() * shape[1].ceil_div(&Dim::Const(16));
        inner = Dim::Const(16);
    }
    let dtype = cx.dtype(0)?;
    let (lo, hi) = limits(dtype).ok_or_else(|| wrong(format!("{dtype} is not quantised")))?;
    let d = QMean {
        x: cx.x(0)?,
        x_scale: as_f32(cx, 1)?,
        y_scale: as_f32(cx, 3)?,
        x_zero: cx.opt(2)?,
        y_zero: cx.opt(4)?,
        y: cx.y(0)?,
        outer,
        n,
        inner,
        lo,
        hi,
    };
    cx.call(&[dtype, Dtype::F32], d)
}

/// The result's scale and zero point, then X, its scale and zero point of each part.
fn infer_concat(cx: &mut InferCx<'_>) -> Result<()> {
    if cx.n_inputs() < 5 || cx.n_inputs() % 3 != 2 {
        return Err(wrong(format!("{} operands are no result and parts with scale and zero point", cx.n_inputs())));
    }
    let first = cx.ty(2)?;
    cx.expect_dtype(2, BYTES)?;
    expect_one_scale(cx, 0)?;
    expect_one_zero(cx, 1, 2)?;
    let axis = cx.axis("axis", 1, first.rank())?;
    let mut shape = first.shape.clone();
    for i in (2..cx.n_inputs()).step_by(3) {
        let x = cx.ty(i)?;
        cx.expect_same_dtype(i, 2)?;
        expect_one_scale(cx, i + 1)?;
        expect_one_zero(cx, i + 2, 2)?;
        const_scale(cx, i + 1)?;
        const_zero(cx, i + 2)?;
        cx.expect_rank(i, shape.len())?;
        if i == 2 {
            continue;
        }
        for (a, (d, e)) in shape.iter_mut().zip(&x.shape).enumerate() {
            if a == axis {
                *d = d.clone() + e.clone();
            } else if d.as_const().is_some() && e.as_const().is_some() && d != e {
                return Err(wrong(format!("{x} differs from {first} in axis {a}")).at_input(i));
            }
        }
    }
    const_scale(cx, 0)?;
    const_zero(cx, 1)?;
    let dtype = first.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_concat(cx: &mut LowerCx<'_>) -> Result<()> {
    let axis = cx.axis("axis", 1, cx.rank(2)?)?;
    let dtype = cx.dtype(2)?;
    let to = (const_scale(cx, 0)?, const_zero(cx, 1)?);
    let y_strides = row_major(cx.out_shape(0)?);
    let y = cx.y(0)?;
    let mut at = Dim::Const(0);
    for i in (2..cx.n_inputs()).step_by(3) {
        let ty = cx.ty(i)?;
        let from = (const_scale(cx, i + 1)?, const_zero(cx, i + 2)?);
        let x: Operand<Dim> = cx.x(i)?;
        let x = if from == to {
            x
        } else {
            let table = cx.weights(code_table(dtype, from, to, |v| v));
            let part = cx.scratch(ty.numel());
            cx.call(&[Dtype::U8], ByteTable { x, table, y: part.clone() })?;
            part
        };
        let copy = StridedCopy {
            dims: ty.shape.clone(),
            x_start: Dim::Const(0),
            x_strides: row_major(&ty.shape),
            y_start: at.clone() * y_strides[axis].clone(),
            y_strides: y_strides.clone(),
        };
        copy.lower(cx, dtype, x, y.clone())?;
        at = at + ty.shape[axis].clone();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::{Case, case};
    use kiln_kernels::Dtype;

    fn bytes(dtype: Dtype, dims: &[usize], values: &[i64]) -> Tensor {
        Tensor::new(dtype, dims.to_vec(), values.iter().map(|&v| v as u8).collect::<Vec<_>>().into()).unwrap()
    }

    fn with(c: Case, scale: f32, zero: i64) -> Case {
        c.constant(Tensor::from_f32s(&[], &[scale])).constant(bytes(Dtype::U8, &[], &[zero]))
    }

    #[test]
    fn adds_and_multiplies_with_broadcast() {
        for (op, want) in
            [("QLinearAdd", [100, 105, 110, 106, 111, 116]), ("QLinearMul", [100, 100, 100, 100, 105, 110])]
        {
            let c = case("com.microsoft", op, 1).input(bytes(Dtype::U8, &[2, 1], &[10, 11]));
            let c = with(c, 0.6, 10).input(bytes(Dtype::U8, &[3], &[20, 21, 22]));
            let y = with(with(c, 0.5, 20), 0.1, 100).run().unwrap();
            let want: Vec<i64> = if op == "QLinearMul" { vec![100, 100, 100, 100, 103, 106] } else { want.to_vec() };
            assert_eq!((y[0].dims(), y[0].to_ints().unwrap()), (&[2, 3][..], want));
        }
    }

    #[test]
    fn tables() {
        let c = case("com.microsoft", "QLinearLeakyRelu", 1).input(bytes(Dtype::U8, &[3], &[0, 100, 110]));
        let y = with(with(c, 1.0, 100), 1.0, 50).attr("alpha", Attr::Float(0.5)).run().unwrap();
        assert_eq!(y[0].to_ints().unwrap(), [0, 50, 60]);
        let c = case("com.microsoft", "QLinearSigmoid", 1).input(bytes(Dtype::U8, &[3], &[0, 100, 255]));
        let y = with(with(c, 1.0, 100), 1.0 / 256.0, 0).run().unwrap();
        assert_eq!(y[0].to_ints().unwrap(), [0, 128, 255]);
    }

    #[test]
    fn means_in_both_layouts() {
        let x = bytes(Dtype::U8, &[1, 2, 1, 3], &[10, 20, 30, 1, 2, 4]);
        let c = with(with(case("com.microsoft", "QLinearGlobalAveragePool", 1).input(x), 0.5, 10), 0.5, 3);
        let y = c.run().unwrap();
        assert_eq!((y[0].dims(), y[0].to_ints().unwrap()), (&[1, 2, 1, 1][..], vec![13, 0]));
        let x = bytes(Dtype::U8, &[1, 1, 3, 2], &[10, 1, 20, 2, 30, 4]);
        let c = with(with(case("com.microsoft", "QLinearGlobalAveragePool", 1).input(x), 0.5, 10), 0.5, 3);
        let y = c.attr("channels_last", Attr::Int(1)).run().unwrap();
        assert_eq!((y[0].dims(), y[0].to_ints().unwrap()), (&[1, 1, 1, 2][..], vec![13, 0]));
    }

    #[test]
    fn joins_with_one_scale() {
        let c = with(case("com.microsoft", "QLinearConcat", 1), 0.5, 10);
        let c = with(c.input(bytes(Dtype::U8, &[1, 2], &[10, 12])), 0.5, 10);
        let c = with(c.input(bytes(Dtype::U8, &[1, 1], &[3])), 1.0, 0);
        let y = c.attr("axis", Attr::Int(1)).run().unwrap();
        assert_eq!((y[0].dims(), y[0].to_ints().unwrap()), (&[1, 3][..], vec![10, 12, 16]));
    }
}
