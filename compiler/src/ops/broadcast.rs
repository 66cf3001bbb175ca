//! Operands that broadcast to a result: extents and strides for the kernels, in either layout.
//!
//! In: a node's operands with the shapes they are read by. Out: memory and, per call, joined extents with one stride
//! array per operand (0 where it repeats). In the blocked layout an operand has the result's shape, or one element, or
//! is a constant with one element per channel, which is packed here.
//! Source: <https://onnx.ai/onnx/repo-docs/Broadcasting.html>

use super::strided::row_major;
use super::view::{NodeView, Result, broadcast, wrong};
use crate::ir::{Dim, Layout, ShapeText, Tensor};
use crate::lower::LowerCx;
use kiln_kernels::{Operand, elementwise::BROADCAST_RANK};

/// The two operands' shapes, aligned from the right. Before opset 7 the second one may be placed at an axis.
pub fn pair(cx: &NodeView<'_>) -> Result<[Vec<Dim>; 2]> {
    let (a, mut b) = (cx.shape(0)?.to_vec(), cx.shape(1)?.to_vec());
    if cx.version() >= 7 {
        return Ok([a, b]);
    }
    if cx.int("broadcast", 0)? == 0 {
        if a.len() != b.len()
            || a.iter().zip(&b).any(|(a, b)| a != b && a.as_const().is_some() && b.as_const().is_some())
        {
            return Err(wrong(format!("shapes {} and {} differ without broadcast", ShapeText(&a), ShapeText(&b))));
        }
        return Ok([a, b]);
    }
    if let Some(axis) = cx.opt_int("axis")? {
        let axis = super::view::resolve_axis(axis, a.len().max(1)).map_err(|e| e.at_attribute("axis"))?;
        if axis + b.len() > a.len() {
            return Err(wrong(format!("{} does not fit {} at axis {axis}", ShapeText(&b), ShapeText(&a))));
        }
        b.resize(a.len() - axis, Dim::Const(1));
    }
    let joint = broadcast(&[&a, &b])?;
    if joint.len() != a.len() {
        return Err(wrong(format!("{} is larger than {}", ShapeText(&b), ShapeText(&a))).at_input(1));
    }
    Ok([a, b])
}

/// The extents of result 0 in memory.
pub fn result_extents(cx: &LowerCx<'_>) -> Result<Vec<Dim>> {
    let id = cx.node.output(0).ok_or_else(|| wrong("result is not wanted").at_output(0))?;
    Ok(cx.out_ty(0)?.physical_shape(cx.graph.value(id).layout))
}

/// An operand's memory, and its extents aligned from the right with the result's in memory.
pub fn operand(cx: &mut LowerCx<'_>, i: usize, shape: &[Dim]) -> Result<(Operand<Dim>, Vec<Dim>)> {
    let id = cx.node.output(0).ok_or_else(|| wrong("result is not wanted").at_output(0))?;
    let result = cx.out_shape(0)?;
    cx.expect_broadcast(shape, result)?;
    if cx.graph.value(id).layout == Layout::Plain {
        return Ok((cx.x(i)?, shape.to_vec()));
    }
    if cx.layout(i)? == Layout::Blocked16 {
        return Ok((cx.x(i)?, cx.ty(i)?.physical_shape(Layout::Blocked16)));
    }
    if shape.iter().all(|d| d.is(1)) {
        return Ok((cx.x(i)?, Vec::new()));
    }
    let rank = cx.out_ty(0)?.rank();
    let (packed, blocks) = cx
        .constant(i)
        .and_then(|t| per_channel(t, shape, rank))
        .ok_or_else(|| wrong("neither of the result's shape nor one constant per channel").at_input(i))?;
    let mut extents = vec![Dim::Const(1); rank - 1];
    extents[0] = Dim::from(blocks);
    extents.push(Dim::Const(16));
    Ok((cx.weights(packed), extents))
}

/// The elements of `[C,1,…]` under a result of this rank, padded to whole blocks; and the number of blocks.
fn per_channel(t: &Tensor, shape: &[Dim], rank: usize) -> Option<(Vec<u8>, usize)> {
    let axis = shape.len().checked_sub(rank - 1)?;
    if shape.iter().enumerate().any(|(i, d)| i != axis && !d.is(1)) {
        return None;
    }
    let blocks = t.numel().div_ceil(16);
    let mut data = t.data().to_vec();
    data.resize(blocks * 16 * t.dtype().size_bytes(), 0);
    Some((data, blocks))
}

/// Joined extents, and for each operand its strides.
pub struct Strides<const K: usize> {
    /// Extents.
    pub dims: [Dim; BROADCAST_RANK],
    /// Element strides, 0 where the operand repeats.
    pub of: [[Dim; BROADCAST_RANK]; K],
}

/// How operands of these extents repeat in a contiguous result.
pub fn strides<const K: usize>(result: &[Dim], operands: [&[Dim]; K]) -> Result<Strides<K>> {
    let mut dims = result.to_vec();
    let mut of = operands.map(|extents| over(result, extents));
    let mut i = 0;
    while i < dims.len() {
        let joins = i > 0 && of.iter().all(|s| s[i - 1] == s[i].clone() * dims[i].clone());
        if !dims[i].is(1) && !joins {
            i += 1;
            continue;
        }
        // An extent of 1 goes; a joint one goes into its inner neighbour.
        let gone = if dims[i].is(1) { i } else { i - 1 };
        if gone + 1 == i {
            dims[i] = dims[gone].clone() * dims[i].clone();
        }
        dims.remove(gone);
        of.iter_mut().for_each(|s| {
            s.remove(gone);
        });
    }
    if dims.len() > BROADCAST_RANK {
        return Err(wrong(format!("broadcasting over {} dimensions that do not join", dims.len())));
    }
    let fill = |v: Vec<Dim>, pad: i64| -> [Dim; BROADCAST_RANK] {
        let missing = BROADCAST_RANK - v.len();
        let mut v = v.into_iter();
        std::array::from_fn(|i| if i < missing { Dim::Const(pad) } else { v.next().unwrap_or(Dim::Const(pad)) })
    };
    Ok(Strides { dims: fill(dims, 1), of: of.map(|s| fill(s, 0)) })
}

/// An operand's strides over the result's extents.
fn over(result: &[Dim], extents: &[Dim]) -> Vec<Dim> {
    let first = result.len().saturating_sub(extents.len());
    let own = row_major(extents);
    let stride = |i: usize| {
        let Some(j) = i.checked_sub(first) else { return Dim::Const(0) };
        stride(&own[j], &extents[j], &result[i])
    };
    (0..result.len()).map(stride).collect()
}

/// An axis's stride over a result's axis: its own, or 0 where its only element repeats.
pub(super) fn stride(own: &Dim, extent: &Dim, result: &Dim) -> Dim {
    match extent {
        d if d.is(1) => Dim::Const(0),
        d if d == result || d.as_const().is_some() => own.clone(),
        // Whether it repeats is known at run time.
        d => own.clone() * repeats_not(d),
    }
}

/// 0 for an extent of 1, else 1: what the stride of an operand that may repeat is multiplied by.
fn repeats_not(extent: &Dim) -> Dim {
    let one = Dim::Const(1);
    (extent.at_least(&one) - one.clone()).at_most(&one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(v: &[i64]) -> Vec<Dim> {
        v.iter().map(|&d| Dim::Const(d)).collect()
    }

    #[test]
    fn joins_what_steps_evenly() {
        for (result, a, b, want_dims, want_a, want_b) in [
            (vec![2, 3, 4], vec![2, 3, 4], vec![2, 3, 4], vec![24], vec![1], vec![1]),
            (vec![2, 3, 4], vec![2, 3, 4], vec![4], vec![6, 4], vec![4, 1], vec![0, 1]),
            (vec![2, 3, 4, 5], vec![2, 3, 4, 5], vec![3, 1, 1], vec![2, 3, 20], vec![60, 20, 1], vec![0, 1, 0]),
            (vec![1, 3, 4], vec![1, 3, 4], vec![], vec![12], vec![1], vec![0]),
            (vec![2, 4], vec![2, 1], vec![1, 4], vec![2, 4], vec![1, 0], vec![0, 1]),
            (vec![1, 1], vec![1, 1], vec![1], vec![], vec![], vec![]),
        ] {
            let s = strides(&dims(&result), [&dims(&a), &dims(&b)]).unwrap();
            let tail = |v: &[Dim; 8], pad, want: &[i64]| {
                v[8 - want.len()..] == dims(want)[..] && v[..8 - want.len()].iter().all(|d| d.is(pad))
            };
            assert!(tail(&s.dims, 1, &want_dims), "{result:?} {a:?} {b:?}: {:?}", s.dims);
            assert!(tail(&s.of[0], 0, &want_a) && tail(&s.of[1], 0, &want_b), "{result:?} {a:?} {b:?}: {:?}", s.of);
        }
    }

    /// In the blocked layout: equal shapes, a constant per channel, a value per channel, a scalar.
    #[test]
    fn blocked_operands() {
        use crate::ops::testing::case;
        use crate::{exec, lower};
        use kiln_kernels::isa::Isa;
        let (c, hw) = (32, 6);
        let plain: Vec<f32> = (0..c * hw).map(|i| i as f32).collect();
        let blocked = |v: &[f32], hw: usize| -> Vec<f32> {
            (0..c * hw).map(|i| v[(i / (16 * hw) * 16 + i % 16) * hw + i / 16 % hw]).collect()
        };
        let channels: Vec<f32> = (0..c).map(|i| 1000.0 * i as f32).collect();
        let x = || Tensor::from_f32s(&[1, c, 2, 3], &blocked(&plain, hw));
        let per_channel: Vec<f32> = plain.iter().enumerate().map(|(i, x)| x + channels[i / hw]).collect();
        let doubled: Vec<f32> = plain.iter().map(|x| x + x).collect();
        let shifted: Vec<f32> = plain.iter().map(|x| x + 7.0).collect();
        for (operand, constant, want) in [
            (x(), false, &doubled),
            (Tensor::from_f32s(&[c, 1, 1], &channels), true, &per_channel),
            (Tensor::from_f32s(&[1, c, 1, 1], &channels), true, &per_channel),
            (Tensor::from_f32s(&[1, c, 1, 1], &channels), false, &per_channel),
            (Tensor::from_f32s(&[1], &[7.0]), true, &shifted),
            (Tensor::from_f32s(&[], &[7.0]), false, &shifted),
        ] {
            let case = case("", "Add", 14).input(x());
            let case = if constant { case.constant(operand.clone()) } else { case.input(operand.clone()) };
            let mut graph = case.infer().unwrap();
            for v in &mut graph.values {
                if v.constant.is_none() && v.ty.as_ref().and_then(|t| t.tensor()).is_some_and(|t| t.rank() == 4) {
                    v.layout = Layout::Blocked16;
                }
            }
            let lowered = lower::lower(&graph).unwrap();
            let (first, second) = (x(), operand);
            let inputs: Vec<&[u8]> = if constant { vec![first.data()] } else { vec![first.data(), second.data()] };
            for isa in Isa::supported() {
                let y = exec::run_unplanned(&graph, &lowered, &inputs, isa).unwrap();
                assert_eq!(y[0].to_f32s().unwrap(), blocked(want, hw), "{isa:?}");
            }
        }
        // Not one element per channel.
        let row = case("", "Add", 14).input(x()).constant(Tensor::from_f32s(&[3], &[0.0; 3]));
        let mut graph = row.infer().unwrap();
        graph.values[0].layout = Layout::Blocked16;
        graph.values[2].layout = Layout::Blocked16;
        assert!(lower::lower(&graph).is_err());
    }
}
