//! `com.microsoft`: MultiHeadAttention, Attention, GroupQueryAttention, EmbedLayerNormalization.
//!
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>

mod embed;
mod fused;
mod group_query;
mod multi_head;

use super::attention::{Bias, Heads, bias_of, expect_equal};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{AttentionMask, Dtype, KeyLengths, MaskBias, Operand};

const MS: &str = "com.microsoft";

pub(super) static OPS: &[OpDef] = &[
    OpDef::new(MS, "MultiHeadAttention", &[1], multi_head::infer, multi_head::lower).with_flops(flops),
    OpDef::new(MS, "Attention", &[1], fused::infer, fused::lower).with_flops(flops),
    OpDef::new(MS, "GroupQueryAttention", &[1], group_query::infer, group_query::lower).with_flops(flops),
    OpDef::new(MS, "EmbedLayerNormalization", &[1], embed::infer, embed::lower).with_flops(embed::flops),
];

/// By the result and the keys of the first present, where there is one: products of every query with every key.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let y = cx.out_ty(0)?;
    let keys = match cx.node.output(1).and_then(|v| cx.graph.tensor_type(v).ok()) {
        Some(t) if t.rank() >= 2 => t.shape[t.rank() - 2].clone(),
        _ => y.shape.get(1).cloned().unwrap_or(Dim::Const(1)),
    };
    Ok(y.numel() * keys * Dim::Const(4))
}

fn num_heads(cx: &NodeView<'_>, name: &str) -> Result<i64> {
    match cx.opt_int(name)? {
        Some(n) if n > 0 => Ok(n),
        Some(n) => Err(wrong(format!("{n} heads")).at_attribute(name)),
        None => Err(wrong("is missing").at_attribute(name)),
    }
}

fn expect_f32_or_half(cx: &NodeView<'_>, i: usize) -> Result<()> {
    cx.expect_dtype(i, &[Dtype::F32, Dtype::F16, Dtype::Bf16])
}

/// What queries may see of the keys, as the kernel takes it.
struct Seen {
    /// Added to scores.
    bias: Option<Bias>,
    /// Valid keys of each batch entry.
    lens: Option<Operand<Dim>>,
    /// Whether keys behind a query's position are left out.
    causal: bool,
}

/// Below this, a filter value takes a key out of the softmax for any scores of a network.
const FILTERED: f32 = -1000.0;

/// A mask operand and a bias operand, for these queries and `total` keys of which `past` are of a cache. The mask is
/// `[batch]` ends, `[2 batch]` ends and starts, `[3 batch + 2]` with ends first, or flags: `[batch, keys]`,
/// `[batch, queries, keys]`, `[batch, 1, most, most]`. ONNX Runtime lowers what is masked by a filter value; it leaves the
/// last query all keys even with `unidirectional`. Where the kernel's own intervals say the same, nothing is added.
fn seen(
    cx: &mut LowerCx<'_>,
    [mask, bias]: [usize; 2],
    q: &Heads,
    [past, total]: [&Dim; 2],
    exact: bool,
) -> Result<Seen> {
    let masked = cx.float("mask_filter_value", -10000.0)?;
    let causal = cx.int("unidirectional", 0)? != 0;
    let own = bias_of(cx, bias, Dtype::F32, f32::NEG_INFINITY)?;
    let at_end = *total == past.clone() + q.rows.clone();
    let Some(ty) = cx.opt_ty(mask)? else {
        if causal && (!at_end || exact) {
            return mask_bias(cx, None, own, q, [past, total], masked);
        }
        return Ok(Seen { bias: own, lens: None, causal });
    };
    cx.expect_dtype(mask, &[Dtype::I32])?;
    if !matches!(ty.rank(), 1..=4) {
        return Err(wrong(format!("a mask {ty}")).at_input(mask));
    }
    let plain = (!causal || at_end) && !exact && own.is_none();
    let three = q.batch.clone() * Dim::Const(3) + Dim::Const(2);
    if ty.rank() == 1 && plain && masked <= FILTERED && (ty.shape[0] == q.batch || ty.shape[0] == three) {
        let x = cx.x(mask)?;
        let bytes = q.batch.clone() * Dim::Const(4);
        let lens = cx.scratch(bytes.clone());
        let ends = Operand::at(x.mem, x.off, bytes);
        cx.call(&[Dtype::I32], KeyLengths { x: ends, y: lens.clone() })?;
        return Ok(Seen { bias: None, lens: Some(lens), causal });
    }
    if plain && matches!(ty.rank(), 2 | 3) {
        expect_equal("keys and mask", total, &ty.shape[ty.rank() - 1]).map_err(|e| e.at_input(mask))?;
        let x = cx.x(mask)?;
        let y = cx.scratch(ty.numel() * Dim::Const(4));
        cx.call(&[Dtype::I32, Dtype::F32], MaskBias { x, y: y.clone(), masked })?;
        let [batch, row] = flag_strides(&ty.shape);
        let bias = Bias { at: y, strides: [batch, Dim::Const(0), row], keys: ty.shape[ty.rank() - 1].clone() };
        return Ok(Seen { bias: Some(bias), lens: None, causal });
    }
    mask_bias(cx, Some(mask), own, q, [past, total], masked)
}

/// From batch entry to batch entry, and from query to query of flags.
fn flag_strides(shape: &[Dim]) -> [Dim; 2] {
    let keys = shape[shape.len() - 1].clone();
    let rows = if shape.len() == 2 { Dim::Const(1) } else { shape[shape.len() - 2].clone() };
    let zero = || Dim::Const(0);
    let batch = if shape[0].is(1) { zero() } else { rows * keys.clone() };
    [batch, if shape.len() == 2 { zero() } else { keys }]
}

/// All of it written out as what is added to scores.
fn mask_bias(
    cx: &mut LowerCx<'_>,
    mask: Option<usize>,
    bias: Option<Bias>,
    q: &Heads,
    [past, total]: [&Dim; 2],
    masked: f32,
) -> Result<Seen> {
    let zero = || Dim::Const(0);
    let (mut x, mut lengths, mut x_start, mut strides) = (None, false, zero(), [zero(), zero()]);
    if let Some(mask) = mask {
        let ty = cx.ty(mask)?;
        x = Some(cx.x(mask)?);
        lengths = ty.rank() == 1;
        if ty.rank() > 1 {
            strides = flag_strides(&ty.shape);
        }
        if ty.rank() == 4 {
            x_start = past.clone() * ty.shape[3].clone();
        }
    }
    if let Some(b) = &bias {
        expect_equal("keys of the bias", &b.keys, total)?;
        cx.expect_equal([(&b.keys, total)])?;
    }
    let by_head = bias.as_ref().is_some_and(|b| !b.strides[1].is(0));
    let heads = if by_head { q.heads.clone() } else { Dim::Const(1) };
    let rows = q.rows.clone();
    let one_batch = heads.clone() * rows.clone() * total.clone();
    let y = cx.scratch(q.batch.clone() * one_batch.clone() * Dim::Const(4));
    let (bias, [bias_batch, bias_head, bias_row]) = match bias {
        Some(b) => (Some(b.at), b.strides),
        None => (None, [zero(), zero(), zero()]),
    };
    let [x_batch, x_row] = strides;
    let d = AttentionMask {
        x,
        bias,
        y: y.clone(),
        batch: q.batch.clone(),
        heads,
        rows: rows.clone(),
        keys: total.clone(),
        past: past.clone(),
        x_start,
        x_batch,
        x_row,
        bias_batch,
        bias_head,
        bias_row,
        masked,
        lengths,
        causal: cx.int("unidirectional", 0)? != 0,
    };
    cx.call(&[Dtype::I32, Dtype::F32], d)?;
    let head = if by_head { rows * total.clone() } else { zero() };
    Ok(Seen {
        bias: Some(Bias { at: y, strides: [one_batch, head, total.clone()], keys: total.clone() }),
        lens: None,
        causal: false,
    })
}

/// Results `first` and `first + 1`: the keys and values with their past.
fn set_presents(cx: &mut InferCx<'_>, first: usize, dtype: Dtype, k: Vec<Dim>, v: Vec<Dim>) {
    cx.set(first, super::tensor(dtype, k));
    cx.set(first + 1, super::tensor(dtype, v));
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::{Case, case};

    fn ramp(dims: &[usize], step: usize) -> Tensor {
        let n: usize = dims.iter().product();
        Tensor::from_f32s(dims, &(0..n).map(|i| ((i * step) % 29) as f32 * 0.1 - 1.4).collect::<Vec<_>>())
    }

    /// ONNX's own operator over heads that lie together.
    fn onnx(q: &Tensor, k: &Tensor, v: &Tensor, heads: [i64; 2]) -> Case {
        let c = case("", "Attention", 23).input(q.clone()).input(k.clone()).input(v.clone());
        c.attr("q_num_heads", Attr::Int(heads[0])).attr("kv_num_heads", Attr::Int(heads[1]))
    }

    fn near(a: &[f32], b: &[f32]) {
        assert_eq!(a.len(), b.len());
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5 * b.abs().max(1.0)), "{a:?} {b:?}");
    }

    #[test]
    fn multi_head_lengths_and_packed_operands() {
        let (q, k, v) = (ramp(&[2, 5, 8], 7), ramp(&[2, 3, 8], 5), ramp(&[2, 3, 8], 11));
        let node = |k: &Tensor, v: &Tensor| {
            let c = case("com.microsoft", "MultiHeadAttention", 1).input(q.clone()).input(k.clone()).input(v.clone());
            c.attr("num_heads", Attr::Int(2))
        };
        near(&node(&k, &v).run_f32(), &onnx(&q, &k, &v, [2, 2]).run_f32());
        // One valid key: its value is the result.
        let y = node(&k, &v).absent().input(Tensor::from_i32s(&[2], &[1, 1])).run_f32();
        near(&y[..8], &v.to_f32s().unwrap()[..8]);
        // K and V side by side in every head.
        let (kv, vv) = (k.to_f32s().unwrap(), v.to_f32s().unwrap());
        let packed: Vec<f32> = (0..2 * 3 * 2).flat_map(|h| [&kv[h * 4..][..4], &vv[h * 4..][..4]].concat()).collect();
        let c = case("com.microsoft", "MultiHeadAttention", 1).input(q.clone());
        let c = c.input(Tensor::from_f32s(&[2, 3, 2, 2, 4], &packed)).attr("num_heads", Attr::Int(2));
        near(&c.run_f32(), &node(&k, &v).run_f32());
    }

    #[test]
    fn lengths_with_offsets_behind_them_are_lengths() {
        let x = ramp(&[2, 3, 4], 7);
        let node = |mask: &[i32]| {
            let c = case("com.microsoft", "Attention", 1).input(x.clone()).constant(ramp(&[4, 12], 5));
            let c = c.constant(ramp(&[12], 3)).input(Tensor::from_i32s(&[mask.len()], mask));
            c.attr("num_heads", Attr::Int(2)).run_f32()
        };
        near(&node(&[2, 3, 0, 2, 5, 0, 2, 5]), &node(&[2, 3]));
        assert!(node(&[2, 3]).iter().zip(&node(&[3, 3])).any(|(a, b)| (a - b).abs() > 1e-3));
    }

    /// One head by definition; `bias(b, i, j)` is added to scores.
    fn by_definition(q: &Tensor, k: &Tensor, v: &Tensor, bias: &dyn Fn(usize, usize, usize) -> f32) -> Vec<f32> {
        let (&[batch, rows, size], &[_, keys, _]) = (q.dims(), k.dims()) else { panic!("rank 3") };
        let [q, k, v] = [q, k, v].map(|t| t.to_f32s().unwrap());
        let mut out = Vec::new();
        for (b, i) in (0..batch).flat_map(|b| (0..rows).map(move |i| (b, i))) {
            let key = |j: usize| (b * keys + j) * size;
            let dot = |j: usize| (0..size).map(|c| q[(b * rows + i) * size + c] * k[key(j) + c]).sum::<f32>();
            let scores: Vec<f32> = (0..keys).map(|j| dot(j) / (size as f32).sqrt() + bias(b, i, j)).collect();
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let all: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f32 = all.iter().sum();
            out.extend((0..size).map(|c| all.iter().enumerate().map(|(j, p)| p / sum * v[key(j) + c]).sum::<f32>()));
        }
        out
    }

    /// Every form of mask, with and without a bias, causal or not, on keys that are as many as queries or more.
    #[test]
    fn masks_are_onnx_runtimes() {
        for keys in [4, 6] {
            let (q, k, v) = (ramp(&[2, 4, 8], 7), ramp(&[2, keys, 8], 5), ramp(&[2, keys, 8], 11));
            let bias = ramp(&[1, 1, 4, keys], 3);
            let flags: Vec<i32> = (0..2 * 4 * keys).map(|i| i32::from(i * 5 % 7 > 2)).collect();
            let masks: [(&[usize], Vec<i32>); 6] = [
                (&[0], vec![]),
                (&[2], vec![3, 0]),
                (&[4], vec![3, 4, 1, 2]),
                (&[8], vec![3, 2, 0, 4, 8, 0, 3, 5]),
                (&[2, keys], flags[..2 * keys].to_vec()),
                (&[2, 4, keys], flags.clone()),
            ];
            for (dims, mask) in &masks {
                for (causal, with_bias, filter) in
                    [(0, false, -2.0), (1, false, -10000.0), (0, false, -10000.0), (1, true, -2.0), (0, true, -10000.0)]
                {
                    let hidden = |b: usize, i: usize, j: usize| match dims {
                        [0] => false,
                        [4] => j >= mask[b] as usize || j < mask[2 + b] as usize,
                        [_] => j >= mask[b] as usize,
                        [_, _] => mask[b * keys + j] == 0,
                        _ => mask[(b * 4 + i) * keys + j] == 0,
                    };
                    let extra = bias.to_f32s().unwrap();
                    let want = by_definition(&q, &k, &v, &|b, i, j| {
                        let behind = causal == 1 && i < 3 && j > i;
                        let masked = if hidden(b, i, j) { filter } else { 0.0 };
                        let all = if behind { f32::MIN } else { masked };
                        all + if with_bias { extra[i * keys + j] } else { 0.0 }
                    });
                    let c = case("com.microsoft", "MultiHeadAttention", 1).input(q.clone()).input(k.clone());
                    let c = c.input(v.clone()).attr("num_heads", Attr::Int(1)).absent();
                    let c = if dims == &[0] { c.absent() } else { c.input(Tensor::from_i32s(dims, mask)) };
                    let c = if with_bias { c.input(bias.clone()) } else { c };
                    let c = c.attr("unidirectional", Attr::Int(causal)).attr("mask_filter_value", Attr::Float(filter));
                    let got = c.run_f32();
                    let near = got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 2e-3 * w.abs().max(1.0));
                    assert!(near, "{dims:?} of {keys} keys, causal {causal}, {filter}: {got:?} {want:?}");
                }
            }
        }
    }

    #[test]
    fn a_score_of_no_key_takes_its_share() {
        let (q, k, v) = (ramp(&[1, 6, 8], 7), ramp(&[1, 6, 8], 5), ramp(&[1, 6, 8], 11));
        let node = |smooth: i64, sink: Option<f32>| {
            let c = case("com.microsoft", "GroupQueryAttention", 1).input(q.clone()).input(k.clone()).input(v.clone());
            let c = c.absent().absent().input(Tensor::from_i32s(&[1], &[5])).constant(Tensor::from_i32s(&[1], &[6]));
            let c = c.attr("num_heads", Attr::Int(1)).attr("kv_num_heads", Attr::Int(1));
            let c = c.attr("smooth_softmax", Attr::Int(smooth)).outputs(3);
            let c = c.absent().absent().absent().absent();
            let c = if let Some(s) = sink { c.input(Tensor::from_f32s(&[1], &[s])) } else { c.absent() };
            c.run().unwrap()[0].to_f32s().unwrap()
        };
        // The first query sees one key alone.
        let (k, v) = (k.to_f32s().unwrap(), v.to_f32s().unwrap());
        let score = q.to_f32s().unwrap()[..8].iter().zip(&k).map(|(q, k)| q * k).sum::<f32>() / 8f32.sqrt();
        for (got, sink) in [(node(1, None), 0.0), (node(0, Some(0.7)), 0.7), (node(0, None), f32::NEG_INFINITY)] {
            let share = score.exp() / (score.exp() + sink.exp());
            near(&got[..8], &v[..8].iter().map(|v| v * share).collect::<Vec<_>>());
        }
    }

    /// Prompts of other lengths than the longest: what is behind a prompt's end changes none of its rows.
    #[test]
    fn prompts_padded_on_the_right() {
        let node = |tail: f32, positions: Option<[i64; 8]>| {
            let fill = |t: Tensor| {
                let width = t.dims()[2];
                let mut values = t.to_f32s().unwrap();
                // The second prompt has two rows.
                values[6 * width..].fill(tail);
                Tensor::from_f32s(&[2, 4, width], &values)
            };
            let (q, k, v) = (fill(ramp(&[2, 4, 8], 7)), fill(ramp(&[2, 4, 4], 5)), fill(ramp(&[2, 4, 4], 11)));
            let past = || Tensor::from_f32s(&[2, 1, 5, 4], &[3.0; 40]);
            let c =
                case("com.microsoft", "GroupQueryAttention", 1).input(q).input(k).input(v).input(past()).input(past());
            let c = c.input(Tensor::from_i32s(&[2], &[3, 1])).constant(Tensor::from_i32s(&[1], &[4]));
            let c = c.constant(ramp(&[16, 2], 3)).constant(ramp(&[16, 2], 13)).attr("do_rotary", Attr::Int(1));
            let c = c.attr("num_heads", Attr::Int(2)).attr("kv_num_heads", Attr::Int(1)).outputs(3);
            let c = if let Some(p) = positions { c.input(Tensor::from_i64s(&[2, 4], &p)) } else { c };
            c.run().unwrap()
        };
        let (a, b) = (node(0.5, None), node(-7.0, None));
        assert_eq!(a[0].to_f32s().unwrap()[..6 * 8], b[0].to_f32s().unwrap()[..6 * 8]);
        assert_eq!(a[1].dims(), [2, 1, 5, 4]);
        // Of positions a prompt takes the first and counts on.
        let given = node(0.5, Some([0, 9, 9, 9, 7, 7, 7, 7]));
        assert_eq!(given[0].to_f32s().unwrap(), a[0].to_f32s().unwrap());
    }

    #[test]
    fn fused_projection() {
        let x = ramp(&[1, 3, 4], 7);
        // Q, K and V all are the input.
        let mut w = vec![0.0; 4 * 12];
        (0..4).for_each(|i| (0..3).for_each(|p| w[i * 12 + p * 4 + i] = 1.0));
        let node = |constant: bool| {
            let c = case("com.microsoft", "Attention", 1).input(x.clone()).attr("num_heads", Attr::Int(2));
            let w = Tensor::from_f32s(&[4, 12], &w);
            let c = if constant { c.constant(w) } else { c.input(w) };
            c.input(Tensor::from_f32s(&[12], &[0.0; 12])).run_f32()
        };
        let want = onnx(&x, &x, &x, [2, 2]).run_f32();
        near(&node(true), &want);
        near(&node(false), &want);
    }

    #[test]
    fn group_query_appends_to_its_cache() {
        let (q, k, v) = (ramp(&[1, 2, 8], 7), ramp(&[1, 2, 4], 5), ramp(&[1, 2, 4], 11));
        let (pk, pv) = (ramp(&[1, 1, 3, 4], 3), ramp(&[1, 1, 3, 4], 13));
        let node = |past: &[usize], total: i32| {
            let grow = |t: &Tensor| {
                let mut values = t.to_f32s().unwrap();
                values.resize(past.iter().product(), 9.0);
                Tensor::from_f32s(past, &values)
            };
            let c = case("com.microsoft", "GroupQueryAttention", 1).input(q.clone()).input(k.clone()).input(v.clone());
            c.input(grow(&pk))
                .input(grow(&pv))
                .input(Tensor::from_i32s(&[1], &[total - 1]))
                .constant(Tensor::from_i32s(&[1], &[total]))
                .attr("num_heads", Attr::Int(2))
                .attr("kv_num_heads", Attr::Int(1))
                .outputs(3)
                .run()
        };
        let want = onnx(&q, &k, &v, [2, 1]).absent().input(pk.clone()).input(pv.clone());
        let want = want.attr("is_causal", Attr::Int(1)).run_f32();
        // The past as it is, and in a longer buffer.
        for rows in [3, 7] {
            let y = node(&[1, 1, rows, 4], 5).unwrap();
            near(&y[0].to_f32s().unwrap(), &want);
            assert_eq!(y[1].dims(), [1, 1, rows.max(5), 4]);
            let keys = y[1].to_f32s().unwrap();
            assert_eq!(keys[..12], pk.to_f32s().unwrap()[..]);
            assert_eq!(keys[12..20], k.to_f32s().unwrap()[..]);
        }
        // Fewer rows in all than new ones.
        assert!(node(&[1, 1, 3, 4], 1).is_err());
    }

    #[test]
    fn embeddings_are_summed_and_normalised() {
        let c = case("com.microsoft", "EmbedLayerNormalization", 1)
            .input(Tensor::from_i32s(&[1, 2], &[1, 0]))
            .absent()
            .input(Tensor::from_f32s(&[2, 2], &[1., 2., 3., 4.]))
            .input(Tensor::from_f32s(&[2, 2], &[0., 1., 0., 5.]))
            .absent()
            .input(Tensor::from_f32s(&[2], &[1., 1.]))
            .input(Tensor::from_f32s(&[2], &[0., 0.]))
            .input(Tensor::from_i32s(&[1, 2], &[1, 0]))
            .outputs(3);
        let y = c.run().unwrap();
        near(&y[0].to_f32s().unwrap(), &[-1., 1., -1., 1.]);
        assert_eq!(y[1].to_i32s().unwrap(), [1]);
        assert_eq!(y[2].to_f32s().unwrap(), [3., 5., 1., 7.]);
    }
}
