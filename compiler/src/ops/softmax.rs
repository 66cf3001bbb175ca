//! Softmax, LogSoftmax, Hardmax.
//!
//! <https://onnx.ai/onnx/operators/onnx__Softmax.html>

use super::view::{NodeView, Result, resolve_axis};
use super::{InferCx, OpDef, half};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Hardmax, Softmax};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "Softmax", &[1, 11, 13], infer, |cx| lower_softmax(cx, false)).with_flops(flops),
    OpDef::new("", "LogSoftmax", &[1, 11, 13], infer, |cx| lower_softmax(cx, true)).with_flops(flops),
    OpDef::new("", "Hardmax", &[1, 11, 13], infer, lower_hardmax),
];

/// `[outer, n, inner]`: one axis since opset 13, before it everything from the axis on.
fn lines(cx: &NodeView<'_>) -> Result<[Dim; 3]> {
    let shape = cx.shape(0)?;
    let rank = shape.len();
    let product = |s: &[Dim]| s.iter().cloned().product::<Dim>();
    if cx.version() >= 13 {
        let axis = cx.int("axis", -1)?;
        if rank == 0 && matches!(axis, 0 | -1) {
            return Ok([Dim::Const(1), Dim::Const(1), Dim::Const(1)]);
        }
        let axis = resolve_axis(axis, rank).map_err(|e| e.at_attribute("axis"))?;
        return Ok([product(&shape[..axis]), shape[axis].clone(), product(&shape[axis + 1..])]);
    }
    let axis = cx.int("axis", 1)?;
    let at_end = usize::try_from(axis).is_ok_and(|a| a == rank);
    let axis = if at_end { rank } else { resolve_axis(axis, rank).map_err(|e| e.at_attribute("axis"))? };
    Ok([product(&shape[..axis]), product(&shape[axis..]), Dim::Const(1)])
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    lines(cx)?;
    cx.same_as_input()
}

/// Greatest, difference, exponential, sum, quotient.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.ty(0)?.numel() * Dim::Const(5))
}

fn lower_softmax(cx: &mut LowerCx<'_>, log: bool) -> Result<()> {
    let [outer, n, inner] = lines(cx)?;
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    let dtype = cx.dtype(0)?;
    cx.call(&[dtype], Softmax { x, y, outer, n, inner, log })
}

fn lower_hardmax(cx: &mut LowerCx<'_>) -> Result<()> {
    let [outer, n, inner] = lines(cx)?;
    let (x, y) = (half::x(cx, 0)?, half::y(cx, 0)?);
    let dtype = half::compute_dtype(cx.dtype(0)?);
    cx.call(&[dtype], Hardmax { x, y: y.at.clone(), outer, n, inner })?;
    y.finish(cx)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn reference(x: &[f32], dims: [usize; 3], log: bool) -> Vec<f32> {
        let [outer, n, inner] = dims;
        let mut y = vec![0.0; x.len()];
        for o in 0..outer {
            for i in 0..inner {
                let at = |j: usize| (o * n + j) * inner + i;
                let max = (0..n).map(|j| f64::from(x[at(j)])).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = (0..n).map(|j| (f64::from(x[at(j)]) - max).exp()).sum();
                for j in 0..n {
                    let v = f64::from(x[at(j)]) - max;
                    y[at(j)] = if log { v - sum.ln() } else { v.exp() / sum } as f32;
                }
            }
        }
        y
    }

    #[test]
    fn every_axis_in_both_meanings() {
        let dims = [3usize, 37, 21];
        let values: Vec<f32> = (0..3 * 37 * 21).map(|i| ((i * 37) % 101) as f32 * 0.3 - 15.0).collect();
        let x = Tensor::from_f32s(&dims, &values);
        for (op, log) in [("Softmax", false), ("LogSoftmax", true)] {
            for (version, axis, as_lines) in [
                (13, 0, [1, 3, 777]),
                (13, 1, [3, 37, 21]),
                (13, -1, [111, 21, 1]),
                (11, 1, [3, 777, 1]),
                (1, 0, [1, 2331, 1]),
                (11, -1, [111, 21, 1]),
            ] {
                for x in
                    [x.clone(), Tensor::from_f64s(&dims, &values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>())]
                {
                    let y = case("", op, version).input(x).attr("axis", Attr::Int(axis)).run().unwrap();
                    let y: Vec<f32> = y[0]
                        .to_f32s()
                        .unwrap_or_else(|| y[0].to_f64s().unwrap().into_iter().map(|v| v as f32).collect());
                    for (g, w) in y.iter().zip(reference(&values, as_lines, log)) {
                        assert!((g - w).abs() <= 2e-6 * w.abs() + 1e-7, "{op}-{version} axis {axis}: {g} {w}");
                    }
                }
            }
        }
    }

    #[test]
    fn large_values_do_not_overflow() {
        let y = case("", "Softmax", 13).input(Tensor::from_f32s(&[1, 3], &[1e4, 1e4, -1e4])).run_f32();
        assert_eq!(y, [0.5, 0.5, 0.0]);
    }

    #[test]
    fn hardmax_takes_the_first() {
        let x = Tensor::from_f32s(&[2, 3], &[1., 3., 3., 2., 1., 0.]);
        assert_eq!(case("", "Hardmax", 13).input(x.clone()).run_f32(), [0., 1., 0., 1., 0., 0.]);
        let y = case("", "Hardmax", 13).input(x.clone()).attr("axis", Attr::Int(0)).run_f32();
        assert_eq!(y, [0., 1., 1., 1., 0., 0.]);
        assert_eq!(case("", "Hardmax", 1).input(x).attr("axis", Attr::Int(0)).run_f32(), [0., 1., 0., 0., 0., 0.]);
    }
}
