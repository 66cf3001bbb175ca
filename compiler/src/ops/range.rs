//! Range: an arithmetic progression.
//!
//! <https://onnx.ai/onnx/operators/onnx__Range.html>

use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, found, tensor};
use crate::error::CompileError;
use crate::ir::{Dim, MAX_TENSOR_BYTES};
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, Range, RangeCount, bf16, f16};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "Range", &[11, 27], infer, lower).with_dims(dims)];

const DTYPES: [Dtype; 7] = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16, Dtype::I16, Dtype::I32, Dtype::I64];

/// A constant scalar as `f64`.
fn scalar(cx: &NodeView<'_>, i: usize) -> Result<f64> {
    let missing = || wrong("its value must be known at compile time").at_input(i);
    let t = cx.constant(i).ok_or_else(missing)?;
    let half = || t.data().get(..2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let value = match t.dtype() {
        Dtype::F16 => half().map(|b| f64::from(f16::from_bits(b).to_f32())),
        Dtype::Bf16 => half().map(|b| f64::from(bf16::from_bits(b).to_f32())),
        _ => t.scalar_f64(),
    };
    value.ok_or_else(missing)
}

/// Whether the number of elements is found in the run.
fn is_found(cx: &NodeView<'_>) -> bool {
    let unknown = |i: usize| cx.constant(i).is_none() && cx.dims(i).is_none();
    let step = cx.constant(2).is_none() && cx.dims(2).is_none_or(|d| d.first().is_none_or(|d| d.as_const().is_none()));
    (0..3).any(unknown) || step
}

/// What to do about a number of elements that nothing bounds.
fn unknown(cx: &NodeView<'_>) -> CompileError {
    let name = cx.node.output(0).map_or("", |y| cx.graph.value(y).name.as_str());
    let values = cx.unknown(1);
    CompileError {
        message: format!("{}, or the result's length bounded, as in --dim '{name}.0=0..100'", values.message),
        ..values
    }
}

/// The number of elements.
fn count(cx: &NodeView<'_>) -> Result<Dim> {
    cx.expect_dtype(0, &DTYPES)?;
    for i in 0..3 {
        cx.expect_same_dtype(i, 0)?;
        if cx.ty(i)?.numel().as_const().is_some_and(|n| n != 1) {
            return Err(wrong(format!("expected a scalar, found {}", cx.ty(i)?)).at_input(i));
        }
    }
    if is_found(cx) {
        // Known only at run time: the declared count, checked then, or one within bounds that are given.
        return cx.declared(0, 1).map(|s| s[0].clone()).ok_or_else(|| unknown(cx));
    }
    let zero_step = || wrong("a step of 0").at_input(2);
    if cx.dtype(0)?.is_int() {
        let ints = |i| -> Result<Dim> {
            cx.need_dims(i)?.into_iter().next().ok_or_else(|| wrong("expected a scalar").at_input(i))
        };
        let (start, limit, delta) = (ints(0)?, ints(1)?, ints(2)?);
        let delta = delta.as_const().ok_or_else(|| wrong("the step must be constant").at_input(2))?;
        let (way, step) = match delta {
            0 => return Err(zero_step()),
            1.. => (limit - start, delta),
            _ => (start - limit, delta.saturating_neg()),
        };
        return Ok(way.at_least(&Dim::Const(0)).ceil_div(&Dim::Const(step)));
    }
    let (start, limit, delta) = (scalar(cx, 0)?, scalar(cx, 1)?, scalar(cx, 2)?);
    if delta == 0.0 {
        return Err(zero_step());
    }
    let n = ((limit - start) / delta).ceil();
    if n.is_nan() || n >= MAX_TENSOR_BYTES as f64 {
        return Err(wrong(format!("a range from {start} to {limit} by {delta}")));
    }
    Ok(Dim::Const(n.max(0.0) as i64))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let bounds = if is_found(cx) { cx.declared_bounds(0, 0) } else { None };
    let n = match bounds {
        Some((least, most)) => cx.data_dim("range", least.max(0), Some(most)),
        None => count(cx)?,
    };
    let dtype = cx.dtype(0)?;
    cx.expect_dtype(0, &DTYPES)?;
    for i in 1..3 {
        cx.expect_same_dtype(i, 0)?;
    }
    cx.set(0, tensor(dtype, vec![n]));
    Ok(())
}

fn dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    let n = count(cx).ok()?.as_const().filter(|&n| n <= 64)?;
    let (start, delta) = (cx.dims(0)?.into_iter().next()?, cx.dims(2)?.into_iter().next()?);
    Some((0..n).map(|i| start.clone() + delta.clone() * Dim::Const(i)).collect())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let dtype = cx.dtype(0)?;
    let n = cx.out_ty(0)?.numel();
    if is_found(cx) && n.as_const().is_none() {
        let most = Dim::Const(n.upper().unwrap_or(0));
        let d = RangeCount { start: cx.x(0)?, limit: cx.x(1)?, delta: cx.x(2)?, most, count: found::slot(&n)? };
        cx.call(&[dtype], d)?;
    }
    let d = Range { start: cx.x(0)?, limit: cx.x(1)?, delta: cx.x(2)?, y: cx.y(0)?, n };
    cx.call(&[dtype], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::Tensor;
    use crate::ops::testing::case;

    #[test]
    fn ranges() {
        let i = |v: i64| Tensor::from_i64s(&[], &[v]);
        for (start, limit, delta, want) in [
            (1, 5, 2, vec![1, 3]),
            (1, 6, 2, vec![1, 3, 5]),
            (10, 4, -3, vec![10, 7]),
            (4, 4, 1, vec![]),
            (5, 4, 1, vec![]),
            (i64::MAX - 1, i64::MAX, i64::MAX, vec![i64::MAX - 1]),
        ] {
            let y = case("", "Range", 11).constant(i(start)).constant(i(limit)).constant(i(delta)).run().unwrap();
            assert_eq!(y[0].to_i64s().unwrap(), want);
        }
        assert!(case("", "Range", 11).constant(i(0)).constant(i(1)).constant(i(0)).infer().is_err());
        assert!(case("", "Range", 11).constant(i(0)).constant(i(i64::MAX)).constant(i(1)).infer().is_err());
        let f = |v: f32| Tensor::from_f32s(&[], &[v]);
        let y = case("", "Range", 11).constant(f(0.)).constant(f(1.)).constant(f(0.25)).run().unwrap();
        assert_eq!(y[0].to_f32s().unwrap(), [0., 0.25, 0.5, 0.75]);
        assert!(case("", "Range", 11).constant(f(0.)).constant(f(f32::INFINITY)).constant(f(1.)).infer().is_err());
    }
}
