//! RotaryEmbedding, of ONNX and of `com.microsoft`.
//!
//! <https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html>,
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.RotaryEmbedding>

use super::attention::{Heads, expect_equal};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, half};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, RotaryEmbedding};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "RotaryEmbedding", &[23], infer, lower).with_flops(flops),
    OpDef::new("com.microsoft", "RotaryEmbedding", &[1], infer, lower).with_flops(flops),
];

/// Operand indices: ONNX has x, cos, sin, positions; `com.microsoft` x, positions, cos, sin.
struct Slots {
    cos: usize,
    sin: usize,
    positions: usize,
}

fn slots(cx: &NodeView<'_>) -> Slots {
    if cx.node.domain == "com.microsoft" {
        Slots { positions: 1, cos: 2, sin: 3 }
    } else {
        Slots { cos: 1, sin: 2, positions: 3 }
    }
}

fn heads(cx: &NodeView<'_>) -> Result<Heads> {
    let n = match cx.int("num_heads", 0)? {
        // com.microsoft: from the tables' width.
        0 if cx.node.domain == "com.microsoft" && cx.rank(0)? == 3 => {
            let half = cx.shape(slots(cx).cos)?.last().and_then(Dim::as_const).unwrap_or(0);
            cx.shape(0)?[2].as_const().filter(|_| half > 0).map(|w| w / (2 * half))
        }
        n => Some(n),
    };
    Heads::of(cx.ty(0)?, n).map_err(|e| e.at_input(0))
}

/// How many elements of a head are rotated.
fn rotary_size(cx: &NodeView<'_>, heads: &Heads) -> Result<Dim> {
    let rotary = match cx.int("rotary_embedding_dim", 0)? {
        0 => heads.size.clone(),
        n => Dim::Const(n),
    };
    let too_large = rotary.as_const().zip(heads.size.as_const()).is_some_and(|(r, s)| r > s);
    if rotary.as_const().is_some_and(|r| r < 0 || r % 2 != 0) || too_large {
        return Err(wrong(format!("{rotary} of {} elements cannot be rotated in pairs", heads.size)));
    }
    Ok(rotary)
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    half::expect_float(cx, 0)?;
    let s = slots(cx);
    half::expect_one_kernel(cx, &[s.cos, s.sin])?;
    let heads = heads(cx)?;
    let half_size = rotary_size(cx, &heads)?.floor_div(&Dim::Const(2));
    for i in [s.cos, s.sin] {
        half::expect_float(cx, i)?;
        let ty = cx.ty(i)?;
        let rank = if cx.has(s.positions) { 2 } else { 3 };
        cx.expect_rank(i, rank)?;
        expect_equal("table and rotated elements", &ty.shape[rank - 1], &half_size).map_err(|e| e.at_input(i))?;
        if rank == 3 {
            expect_equal("table and batch", &ty.shape[0], &heads.batch).map_err(|e| e.at_input(i))?;
            expect_equal("table and rows", &ty.shape[1], &heads.rows).map_err(|e| e.at_input(i))?;
        }
    }
    if cx.has(s.positions) {
        cx.expect_dtype(s.positions, &[Dtype::I64])?;
        let n = cx.ty(s.positions)?.numel();
        if !n.is(1) {
            expect_equal("positions and rows", &n, &(heads.batch.clone() * heads.rows.clone()))
                .map_err(|e| e.at_input(s.positions))?;
        }
    }
    cx.same_as_input()
}

fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.ty(0)?.numel() * Dim::Const(3))
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let s = slots(cx);
    let h = heads(cx)?;
    let rotary = rotary_size(cx, &h)?;
    let dtype = half::compute_dtype(cx.dtype(0)?);
    let table = cx.shape(s.cos)?;
    let y = half::y(cx, 0)?;
    let d = RotaryEmbedding {
        x: half::x(cx, 0)?,
        positions: cx.opt(s.positions)?,
        cos: half::x(cx, s.cos)?,
        sin: half::x(cx, s.sin)?,
        y: y.at.clone(),
        table_rows: table[..table.len() - 1].iter().cloned().product(),
        table_batch: h.rows.clone(),
        rotary,
        x_batch: h.batch_stride.clone(),
        x_head: h.head_stride.clone(),
        x_row: h.row_stride.clone(),
        y_batch: h.batch_stride,
        y_head: h.head_stride,
        y_row: h.row_stride,
        batch: h.batch,
        heads: h.heads,
        rows: h.rows,
        head_size: h.size,
        interleaved: cx.int("interleaved", 0)? != 0,
    };
    cx.call(&[dtype, Dtype::I64], d)?;
    y.finish(cx)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn pairs_halves_and_positions() {
        // Rotation by 90° at position 1, by 0° at position 0.
        let cos = Tensor::from_f32s(&[2, 2], &[1., 1., 0., 0.]);
        let sin = Tensor::from_f32s(&[2, 2], &[0., 0., 1., 1.]);
        let x = Tensor::from_f32s(&[1, 2, 4], &[1., 2., 3., 4., 5., 6., 7., 8.]);
        for (interleaved, rotated) in [(0, [-7., -8., 5., 6.]), (1, [-6., 5., -8., 7.])] {
            let positions = Tensor::from_i64s(&[1, 2], &[1, 0]);
            let node = case("", "RotaryEmbedding", 23).input(x.clone()).input(cos.clone()).input(sin.clone());
            let node = node.attr("num_heads", Attr::Int(1)).attr("interleaved", Attr::Int(interleaved));
            let y = node.input(positions).run_f32();
            assert_eq!(y[4..], [5., 6., 7., 8.]);
            // com.microsoft: a single start, positions 0 and 1.
            let node =
                case("com.microsoft", "RotaryEmbedding", 1).input(x.clone()).input(Tensor::from_i64s(&[1], &[0]));
            let node = node.input(cos.clone()).input(sin.clone()).attr("interleaved", Attr::Int(interleaved));
            let y = node.run_f32();
            assert_eq!(y[..4], [1., 2., 3., 4.]);
            assert_eq!(y[4..], rotated);
        }
    }

    #[test]
    fn a_position_outside_the_tables_is_a_fault() {
        let table = Tensor::from_f32s(&[2, 1], &[1., 1.]);
        let x = Tensor::from_f32s(&[1, 1, 1, 2], &[1., 2.]);
        let node = |p| {
            case("", "RotaryEmbedding", 23)
                .input(x.clone())
                .input(table.clone())
                .input(table.clone())
                .input(Tensor::from_i64s(&[1, 1], &[p]))
        };
        assert!(node(1).run().is_ok());
        assert!(node(2).run().is_err());
        assert!(node(-1).run().is_err());
    }
}
