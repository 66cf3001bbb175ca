//! `kiln.Attention`: softmax(scale · Q·Kᵀ + mask)·V as the pass `attention` finds it spelled in primitives.
//!
//! Operands: Q, K, V, each of rank 3 or 4, and a mask that broadcasts to the scores. `perm_q`, `perm_k` and `perm_v` bring
//! an operand's axes to batch…, rows, elements; `perm_y` is applied to batch…, rows, elements of the result. Elements of a
//! row are contiguous in all of them.

use super::attention::{Heads, attend, bias_of};
use super::strided::row_major;
use super::view::{NodeView, Result, resolve_axes, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::{Dim, TensorType};
use crate::lower::LowerCx;
use kiln_kernels::{Attention, Dtype};

pub(super) static OPS: &[OpDef] = &[OpDef::new("kiln", "Attention", &[1], infer, lower).with_flops(flops)];

fn perm(cx: &NodeView<'_>, name: &str, rank: usize) -> Result<Vec<usize>> {
    match cx.opt_ints(name)? {
        None => Ok((0..rank).collect()),
        Some(p) if p.len() == rank && p.last().is_some_and(|&a| a + 1 == rank as i64 || a == -1) => {
            resolve_axes(p, rank)
        }
        Some(_) => Err(wrong("does not fit the operand").at_attribute(name)),
    }
}

/// An operand's heads: the axes before the last two are batch and heads, of rank 3 there is one head.
fn heads(cx: &NodeView<'_>, i: usize, name: &str) -> Result<Heads> {
    let ty = cx.ty(i)?;
    let strides = row_major(&ty.physical_shape(cx.layout(i)?));
    heads_of(&ty.shape, &strides, &perm(cx, name, ty.rank())?).map_err(|e| e.at_input(i))
}

/// The heads of a tensor of this shape and these strides whose axes, so permuted, are batch, heads, rows and elements.
fn heads_of(shape: &[Dim], strides: &[Dim], perm: &[usize]) -> Result<Heads> {
    let axis = |i: usize| (shape[perm[i]].clone(), strides[perm[i]].clone());
    let (first, second) = match shape.len() {
        3 => (axis(0), (Dim::Const(1), Dim::Const(0))),
        4 => (axis(0), axis(1)),
        _ => return Err(wrong("expected rank 3 or 4")),
    };
    let ((rows, row_stride), (size, _)) = (axis(shape.len() - 2), axis(shape.len() - 1));
    let ((batch, batch_stride), (heads, head_stride)) = (first, second);
    Ok(Heads { batch, heads, rows, size, batch_stride, head_stride, row_stride })
}

/// The result's extents before `perm_y`.
fn result(cx: &NodeView<'_>) -> Result<Vec<Dim>> {
    let (q, v) = (heads(cx, 0, "perm_q")?, heads(cx, 2, "perm_v")?);
    let mut shape = vec![q.batch, q.heads, q.rows, v.size];
    if cx.rank(0)? == 3 {
        shape.remove(1);
    }
    Ok(shape)
}

fn stored(cx: &NodeView<'_>) -> Result<(TensorType, Vec<usize>)> {
    let shape = result(cx)?;
    let perm = perm(cx, "perm_y", shape.len())?;
    Ok((TensorType { dtype: Dtype::F32, shape: perm.iter().map(|&a| shape[a].clone()).collect() }, perm))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    for i in 0..3 {
        cx.expect_dtype(i, &[Dtype::F32])?;
        cx.expect_rank(i, cx.rank(0)?)?;
    }
    let (y, _) = stored(cx)?;
    cx.set(0, tensor(y.dtype, y.shape));
    Ok(())
}

/// Two products, and the softmax between them.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let (q, k, v) = (heads(cx, 0, "perm_q")?, heads(cx, 1, "perm_k")?, heads(cx, 2, "perm_v")?);
    let scores = q.batch * q.heads * q.rows * k.rows;
    Ok(scores * (q.size * Dim::Const(2) + v.size * Dim::Const(2) + Dim::Const(5)))
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let (q, k, v) = (heads(cx, 0, "perm_q")?, heads(cx, 1, "perm_k")?, heads(cx, 2, "perm_v")?);
    let same = [(&k.rows, &v.rows), (&q.size, &k.size), (&q.batch, &k.batch), (&q.batch, &v.batch)];
    cx.expect_equal(same)?;
    cx.expect_equal([(&q.heads, &k.heads), (&q.heads, &v.heads)])?;
    let (ty, perm) = stored(cx)?;
    // Where the permutation has put each axis.
    let mut inverse = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(at, &axis)| inverse[axis] = at);
    let y = heads_of(&ty.shape, &row_major(&ty.shape), &inverse)?;
    let mut bias = bias_of(cx, 3, Dtype::F32, f32::NEG_INFINITY)?;
    if let (Some(b), 3) = (&mut bias, ty.shape.len()) {
        // The mask's axes are those of the scores: its second is a batch.
        b.strides = [b.strides[1].clone(), Dim::Const(0), b.strides[2].clone()];
    }
    let at = [cx.x(0)?, cx.x(1)?, cx.x(2)?, cx.y(0)?];
    let [q_at, k_at, v_at, y_at] = at;
    let call = attend(cx, Dtype::F32, [(q_at, &q), (k_at, &k), (v_at, &v), (y_at, &y)], bias);
    let scale = cx.float("scale", 1.0)?;
    let unseen_nan = cx.int("unseen_nan", 1)? != 0;
    cx.call(&[Dtype::F32, Dtype::I64], Attention { scale, unseen_nan, nan_zero: !unseen_nan, ..call })
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn ramp(dims: &[usize], step: usize) -> Tensor {
        let n = dims.iter().product::<usize>();
        Tensor::from_f32s(dims, &(0..n).map(|i| ((i * step) % 29) as f32 * 0.1 - 1.4).collect::<Vec<_>>())
    }

    /// By the definition: operands as the permutations leave them, `[batch, rows, size]`.
    fn expected(q: &[f32], k: &[f32], v: &[f32], mask: &[f32], [b, l, n, d, e]: [usize; 5], scale: f64) -> Vec<f32> {
        let mut y = Vec::new();
        for b in 0..b {
            for i in 0..l {
                let score = |j: usize| {
                    let dot: f64 =
                        (0..d).map(|c| f64::from(q[(b * l + i) * d + c]) * f64::from(k[(b * n + j) * d + c])).sum();
                    (dot * scale + f64::from(mask[i * n + j])).exp()
                };
                let sum: f64 = (0..n).map(score).sum();
                for c in 0..e {
                    let value: f64 = (0..n).map(|j| score(j) * f64::from(v[(b * n + j) * e + c])).sum();
                    y.push((value / sum) as f32);
                }
            }
        }
        y
    }

    fn near(a: &[f32], b: &[f32]) {
        assert_eq!(a.len(), b.len());
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0) || a.is_nan() && b.is_nan(), "{a} {b}");
        }
    }

    #[test]
    fn axes_of_every_operand_may_lie_anywhere() {
        // One batch entry: swapping its axis with the heads' does not move elements, so the definition reads them directly.
        for (l, n) in [(1, 5), (7, 9), (70, 300), (4, 1)] {
            let (h, d, e) = (3, 8, 20);
            let (q, k, v) = (ramp(&[1, l, h, d], 7), ramp(&[1, h, n, d], 5), ramp(&[h, n, 1, e], 11));
            let mask = ramp(&[1, 1, l, n], 13);
            let y = case("kiln", "Attention", 1)
                .input(q.clone())
                .input(k.clone())
                .input(v.clone())
                .input(mask.clone())
                .attr("perm_q", Attr::Ints(vec![0, 2, 1, 3]))
                .attr("perm_v", Attr::Ints(vec![2, 0, 1, 3]))
                .attr("perm_y", Attr::Ints(vec![0, 2, 1, 3]))
                .attr("scale", Attr::Float(0.25))
                .run_f32();
            let (q, k, v, mask) =
                (q.to_f32s().unwrap(), k.to_f32s().unwrap(), v.to_f32s().unwrap(), mask.to_f32s().unwrap());
            for head in 0..h {
                let q: Vec<f32> = (0..l).flat_map(|i| q[(i * h + head) * d..][..d].to_vec()).collect();
                let (k, v) = (&k[head * n * d..][..n * d], &v[head * n * e..][..n * e]);
                let got: Vec<f32> = (0..l).flat_map(|i| y[(i * h + head) * e..][..e].to_vec()).collect();
                near(&got, &expected(&q, k, v, &mask, [1, l, n, d, e], 0.25));
            }
        }
    }

    #[test]
    fn rank_three_is_a_batch_of_heads() {
        let (b, l, n, d) = (2, 6, 21, 16);
        let (q, k, v, mask) = (ramp(&[b, l, d], 7), ramp(&[b, n, d], 5), ramp(&[b, n, d], 3), ramp(&[l, n], 13));
        let operands = [&q, &k, &v, &mask].map(|t| t.to_f32s().unwrap());
        let y = case("kiln", "Attention", 1).input(q).input(k).input(v).input(mask).run_f32();
        near(&y, &expected(&operands[0], &operands[1], &operands[2], &operands[3], [b, l, n, d, d], 1.0));
    }

    #[test]
    fn a_query_that_sees_nothing_gives_nan_or_zeros() {
        for (attr, n_queries) in [(0, 2), (1, 2), (0, 40), (1, 40)] {
            let mut mask = vec![0.0; n_queries * 4];
            mask[..4].fill(f32::NEG_INFINITY);
            let x = ramp(&[1, n_queries, 8], 7);
            let y = case("kiln", "Attention", 1)
                .input(x)
                .input(ramp(&[1, 4, 8], 5))
                .input(ramp(&[1, 4, 8], 3))
                .input(Tensor::from_f32s(&[n_queries, 4], &mask))
                .attr("unseen_nan", Attr::Int(attr))
                .run_f32();
            assert!(y[..8].iter().all(|v| if attr == 1 { v.is_nan() } else { *v == 0.0 }), "{y:?}");
            assert!(y[8..].iter().all(|v| v.is_finite()));
        }
    }

    /// Masks as exporters write them: the least f32, over the first keys of long rows, or over all keys.
    #[test]
    fn huge_finite_scores_keep_their_order() {
        let (n, d) = (600, 8);
        for (hidden, bias) in [(590, f32::MIN), (590, -1e10), (n, f32::MIN), (n, -1e12), (n, 1e12), (0, 0.0)] {
            for l in [1, 40] {
                let mut mask = vec![0.0; l * n];
                mask.chunks_exact_mut(n).for_each(|row| row[..hidden].fill(bias));
                let (q, k, v) = (ramp(&[1, l, d], 7), ramp(&[1, n, d], 5), ramp(&[1, n, d], 3));
                let y = case("kiln", "Attention", 1)
                    .input(q.clone())
                    .input(k.clone())
                    .input(v.clone())
                    .input(Tensor::from_f32s(&[l, n], &mask))
                    .run_f32();
                // Scores vanish beside such a bias: what is left is the mean over those with the greatest.
                let [q, k, v] = [q, k, v].map(|t| t.to_f32s().unwrap());
                let from = if hidden < n { hidden } else { 0 };
                let zeros = vec![0.0; l * (n - from)];
                let flat = hidden == n;
                let k: Vec<f32> = k[from * d..].iter().map(|v| if flat { 0.0 } else { *v }).collect();
                near(&y, &expected(&q, &k, &v[from * d..], &zeros, [1, l, n - from, d, d], 1.0));
            }
        }
    }

    #[test]
    fn no_keys_give_zeros_and_nan_becomes_zero_where_asked() {
        for l in [1, 40] {
            let of = |keys: usize, first: f32, unseen_nan: i64| {
                let mut q = ramp(&[1, l, 8], 7).to_f32s().unwrap();
                q[0] += first;
                case("kiln", "Attention", 1)
                    .input(Tensor::from_f32s(&[1, l, 8], &q))
                    .input(ramp(&[1, keys, 8], 5))
                    .input(ramp(&[1, keys, 8], 3))
                    .attr("unseen_nan", Attr::Int(unseen_nan))
                    .run_f32()
            };
            assert!(of(0, 0.0, 1).iter().all(|v| *v == 0.0));
            for first in [f32::NAN, f32::INFINITY] {
                assert!(of(300, first, 1)[..8].iter().all(|v| v.is_nan()));
                assert!(of(300, first, 0)[..8].iter().all(|v| *v == 0.0));
            }
            assert_eq!(of(300, 0.0, 1), of(300, 0.0, 0));
        }
    }

    #[test]
    fn refuses() {
        let node = |perm: Vec<i64>| {
            case("kiln", "Attention", 1)
                .input(ramp(&[1, 2, 8], 1))
                .input(ramp(&[1, 2, 8], 1))
                .input(ramp(&[1, 2, 8], 1))
                .attr("perm_q", Attr::Ints(perm))
        };
        assert!(node(vec![0, 1, 2]).infer().is_ok());
        assert!(node(vec![0, 2, 1]).infer().is_err());
        assert!(node(vec![0, 1]).infer().is_err());
        assert!(
            case("kiln", "Attention", 1)
                .input(ramp(&[2, 8], 1))
                .input(ramp(&[2, 8], 1))
                .input(ramp(&[2, 8], 1))
                .infer()
                .is_err()
        );
    }
}
