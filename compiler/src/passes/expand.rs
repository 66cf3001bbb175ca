//! Contrib operators that have no kernel of their own, as the operators they are defined by.
//!
//! In: the imported graph, before inference. Out: QLinearAveragePool, QLinearSoftmax, QLinearReduceMean, QLinearWhere and
//! those whose scales are found at run time as DequantizeLinear, the float operator, QuantizeLinear; MatMulNBits and
//! DynamicQuantizeLSTM over their weights as floats; FusedGemm as Gemm and activation; NhwcConv between transpositions, Pad and
//! ConvTransposeWithDynamicPads as ONNX's own.
//! Source: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>

use crate::ir::{Attr, Graph, Node, Tensor, Type, Value, ValueId};
use crate::ops::quant::{const_f32s, float_tensor};
use kiln_kernels::Dtype;
use std::collections::BTreeMap;

/// The `com.microsoft` operators that are expanded (some only where they have no kernel).
pub const EXPANDED: &[&str] = &[
    "ConvTransposeWithDynamicPads",
    "DynamicQuantizeLSTM",
    "FusedGemm",
    "MatMulNBits",
    "NhwcConv",
    "NhwcFusedConv",
    "Pad",
    "QLinearAveragePool",
    "QLinearConcat",
    "QLinearLeakyRelu",
    "QLinearReduceMean",
    "QLinearSigmoid",
    "QLinearSoftmax",
    "QLinearWhere",
];

/// Expands every such node. What does not fit its definition is left for inference to refuse.
pub(super) fn expand(graph: &mut Graph) {
    if !graph.nodes.iter().any(|n| n.domain == "com.microsoft") {
        return;
    }
    let nodes = std::mem::take(&mut graph.nodes);
    for node in nodes {
        let ours = node.domain == "com.microsoft" && EXPANDED.contains(&node.op.as_str());
        let done = ours && expand_node(graph, &node).is_some();
        if !done {
            graph.nodes.push(node);
        }
    }
}

fn expand_node(graph: &mut Graph, node: &Node) -> Option<()> {
    match node.op.as_str() {
        "QLinearAveragePool" if int(node, "channels_last", 0) == 0 => {
            let keep = ["auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"];
            unary(graph, node, "AveragePool", 19, attrs(node, &keep))
        }
        "QLinearSoftmax" => unary(graph, node, "Softmax", int(node, "opset", 13), attrs(node, &["axis"])),
        "QLinearReduceMean" => unary(graph, node, "ReduceMean", 13, attrs(node, &["axes", "keepdims"])),
        "QLinearSigmoid" if !constant(graph, node, &[1, 2, 3, 4]) => unary(graph, node, "Sigmoid", 13, BTreeMap::new()),
        "QLinearLeakyRelu" if !constant(graph, node, &[1, 2, 3, 4]) => {
            unary(graph, node, "LeakyRelu", 16, attrs(node, &["alpha"]))
        }
        "QLinearWhere" => {
            let x = dequantized(graph, node, 1)?;
            let y = dequantized(graph, node, 4)?;
            let z = add(graph, node, "Where", 16, BTreeMap::new(), vec![node.input(0), Some(x), Some(y)]);
            quantize(graph, node, z, 7)
        }
        "QLinearConcat" if !all_constant(graph, node) => {
            let parts: Option<Vec<_>> =
                (2..node.inputs.len()).step_by(3).map(|i| dequantized(graph, node, i).map(Some)).collect();
            let y = add(graph, node, "Concat", 13, attrs(node, &["axis"]), parts?);
            quantize(graph, node, y, 0)
        }
        "QLinearAveragePool" => average_pool_last(graph, node),
        "FusedGemm" => fused_gemm(graph, node),
        "NhwcConv" => nhwc_conv(graph, node, ("", "Conv", 11)),
        "NhwcFusedConv" => nhwc_conv(graph, node, ("com.microsoft", "FusedConv", 1)),
        "Pad" => {
            let attrs = attrs(node, &["mode"]);
            graph.nodes.push(Node { domain: String::new(), version: 13, attrs, ..node.clone() });
            Some(())
        }
        "ConvTransposeWithDynamicPads" => conv_transpose(graph, node),
        "MatMulNBits" => matmul_n_bits(graph, node),
        "DynamicQuantizeLSTM" => lstm(graph, node),
        _ => None,
    }
}

fn int(node: &Node, name: &str, default: i64) -> i64 {
    match node.attrs.get(name) {
        Some(Attr::Int(v)) => *v,
        _ => default,
    }
}

fn attrs(node: &Node, names: &[&str]) -> BTreeMap<String, Attr> {
    node.attrs.iter().filter(|(k, _)| names.contains(&k.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn constant(graph: &Graph, node: &Node, inputs: &[usize]) -> bool {
    inputs.iter().all(|&i| node.input(i).is_none_or(|v| graph.constant(v).is_some()))
}

/// Whether all scales and zero points of a QLinearConcat are constant.
fn all_constant(graph: &Graph, node: &Node) -> bool {
    (0..node.inputs.len()).filter(|i| *i < 2 || i % 3 != 2).all(|i| constant(graph, node, &[i]))
}

/// Adds a node with one result; its name tells where it comes from.
fn add(
    graph: &mut Graph,
    origin: &Node,
    op: &str,
    version: i64,
    attrs: BTreeMap<String, Attr>,
    inputs: Vec<Option<ValueId>>,
) -> ValueId {
    let name = format!("{}/{op}{}", origin.name, graph.nodes.len());
    let y = graph.add_value(Value { name: name.clone(), ..Value::default() });
    graph.nodes.push(plain(name, op, version, attrs, inputs, vec![Some(y)]));
    y
}

fn plain(
    name: String,
    op: &str,
    version: i64,
    attrs: BTreeMap<String, Attr>,
    inputs: Vec<Option<ValueId>>,
    outputs: Vec<Option<ValueId>>,
) -> Node {
    Node { name, domain: String::new(), op: op.into(), version, attrs, inputs, outputs, bodies: BTreeMap::new() }
}

/// Operand `i` with the scale and zero point that follow it, as floats.
fn dequantized(graph: &mut Graph, node: &Node, i: usize) -> Option<ValueId> {
    let inputs = vec![Some(node.input(i)?), Some(node.input(i + 1)?), node.input(i + 2)];
    Some(add(graph, node, "DequantizeLinear", 13, BTreeMap::new(), inputs))
}

/// Makes the node's result of floats, with the scale in operand `scale` and the zero point after it.
fn quantize(graph: &mut Graph, node: &Node, x: ValueId, scale: usize) -> Option<()> {
    let inputs = vec![Some(x), Some(node.input(scale)?), node.input(scale + 1)];
    let outputs = node.outputs.clone();
    graph.nodes.push(plain(node.name.clone(), "QuantizeLinear", 13, BTreeMap::new(), inputs, outputs));
    Some(())
}

/// X, its scale and zero point, the result's.
fn unary(graph: &mut Graph, node: &Node, op: &str, version: i64, attrs: BTreeMap<String, Attr>) -> Option<()> {
    node.input(3)?;
    let x = dequantized(graph, node, 0)?;
    let y = add(graph, node, op, version, attrs, vec![Some(x)]);
    quantize(graph, node, y, 3)
}

/// The permutation that moves the channels of a tensor of this rank from the end to the front, or back.
fn channels(rank: usize, to_front: bool) -> BTreeMap<String, Attr> {
    let rank = rank as i64;
    let mut perm: Vec<i64> = (0..rank).collect();
    if to_front {
        perm[1..].rotate_right(1);
    } else {
        perm[1..].rotate_left(1);
    }
    [("perm".to_owned(), Attr::Ints(perm))].into()
}

/// An average over codes with channels at the end.
fn average_pool_last(graph: &mut Graph, node: &Node) -> Option<()> {
    node.input(3)?;
    let Some(Attr::Ints(kernel)) = node.attrs.get("kernel_shape") else { return None };
    let rank = kernel.len() + 2;
    let keep = ["auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"];
    let x = dequantized(graph, node, 0)?;
    let x = add(graph, node, "Transpose", 13, channels(rank, true), vec![Some(x)]);
    let y = add(graph, node, "AveragePool", 19, attrs(node, &keep), vec![Some(x)]);
    let y = add(graph, node, "Transpose", 13, channels(rank, false), vec![Some(y)]);
    quantize(graph, node, y, 3)
}

/// A convolution whose X, result and added Z have their channels at the end; the weights are as Conv's.
fn nhwc_conv(graph: &mut Graph, node: &Node, (domain, op, version): (&str, &str, i64)) -> Option<()> {
    let Some(Type::Tensor(w)) = &graph.value(node.input(1)?).ty else { return None };
    let rank = w.rank();
    if rank < 3 {
        return None;
    }
    let mut inputs = node.inputs.clone();
    for i in [0, 3] {
        let Some(v) = node.input(i) else { continue };
        inputs[i] = Some(add(graph, node, "Transpose", 13, channels(rank, true), vec![Some(v)]));
    }
    let y = add(graph, node, op, version, node.attrs.clone(), inputs);
    if let Some(conv) = graph.nodes.last_mut() {
        conv.domain = domain.into();
    }
    let (name, outputs) = (node.name.clone(), node.outputs.clone());
    graph.nodes.push(plain(name, "Transpose", 13, channels(rank, false), vec![Some(y)], outputs));
    Some(())
}

/// The activations that FusedGemm may have; their attributes are prefixed.
const ACTIVATIONS: &[&str] =
    &["Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"];

/// A Gemm, and the activation behind it, which a later pass may fuse again.
fn fused_gemm(graph: &mut Graph, node: &Node) -> Option<()> {
    let own = attrs(node, &["alpha", "beta", "transA", "transB"]);
    let op = match node.attrs.get("activation") {
        None => "",
        Some(Attr::Str(op)) => std::str::from_utf8(op).ok()?,
        Some(_) => return None,
    };
    if op.is_empty() {
        graph.nodes.push(plain(node.name.clone(), "Gemm", 13, own, node.inputs.clone(), node.outputs.clone()));
        return Some(());
    }
    if !ACTIVATIONS.contains(&op) {
        return None;
    }
    let prefixed = |(k, v): (&String, &Attr)| Some((k.strip_prefix("activation_")?.to_owned(), v.clone()));
    let of_activation = node.attrs.iter().filter_map(prefixed).collect();
    let y = add(graph, node, "Gemm", 13, own, node.inputs.clone());
    graph.nodes.push(plain(node.name.clone(), op, 14, of_activation, vec![Some(y)], node.outputs.clone()));
    Some(())
}

/// X, W, pads, bias: a ConvTranspose, if the pads are constant.
fn conv_transpose(graph: &mut Graph, node: &Node) -> Option<()> {
    let mut attrs = attrs(node, &["auto_pad", "dilations", "group", "kernel_shape", "output_padding", "strides"]);
    if let Some(pads) = node.input(2) {
        attrs.insert("pads".into(), Attr::Ints(graph.constant(pads)?.to_ints()?));
    }
    let inputs = vec![node.input(0), node.input(1), node.input(3)];
    graph.nodes.push(plain(node.name.clone(), "ConvTranspose", 11, attrs, inputs, node.outputs.clone()));
    Some(())
}

/// A, B as `[N, blocks, bytes]` of packed codes (the first in the low bits), scales and zero points of the blocks, group
/// indices (not supported), bias.
fn matmul_n_bits(graph: &mut Graph, node: &Node) -> Option<()> {
    let size = |name: &str| usize::try_from(int(node, name, 0)).ok();
    let (k, n, block) = (size("K")?, size("N")?, size("block_size")?);
    let bits = usize::try_from(int(node, "bits", 4)).ok()?;
    if node.input(4).is_some() || !matches!(bits, 2 | 4 | 8) || block < 16 || k == 0 || n == 0 || k > 1 << 24 {
        return None;
    }
    let blocks = k.div_ceil(block);
    let codes = graph.constant(node.input(1)?)?.data().clone();
    let scales_tensor = graph.constant(node.input(2)?)?.clone();
    let scales = const_f32s(&scales_tensor)?;
    let per_block = (block * bits).div_ceil(8);
    if codes.len() != n.checked_mul(blocks)?.checked_mul(per_block)? || scales.len() != n * blocks {
        return None;
    }
    let code = |bytes: &[u8], i: usize| bytes[i * bits / 8] >> (i * bits % 8) & (0xffu8 >> (8 - bits));
    let middle = (1u32 << (bits - 1)) as f32;
    let zeros: Vec<f32> = match node.input(3) {
        None => vec![middle; n * blocks],
        Some(z) => {
            let z = graph.constant(z)?.clone();
            if z.dtype() == Dtype::U8 {
                let row = (blocks * bits).div_ceil(8);
                if z.data().len() != n * row {
                    return None;
                }
                (0..n * blocks).map(|i| f32::from(code(&z.data()[i / blocks * row..], i % blocks))).collect()
            } else {
                const_f32s(&z).filter(|z| z.len() == n * blocks)?
            }
        }
    };
    let mut w = vec![0.0f32; k * n];
    for column in 0..n {
        for row in 0..k {
            let at = column * blocks + row / block;
            let value = f32::from(code(&codes[at * per_block..], row % block));
            w[row * n + column] = (value - zeros[at]) * scales[at];
        }
    }
    let w = graph.add_constant(format!("{}/weights", node.name), float_tensor(scales_tensor.dtype(), &[k, n], &w)?);
    let (bias, y) = (node.input(5), node.outputs.clone());
    let inputs = vec![Some(node.input(0)?), Some(w)];
    if let Some(bias) = bias {
        let product = add(graph, node, "MatMul", 13, BTreeMap::new(), inputs);
        graph.nodes.push(plain(node.name.clone(), "Add", 14, BTreeMap::new(), vec![Some(product), Some(bias)], y));
    } else {
        graph.nodes.push(plain(node.name.clone(), "MatMul", 13, BTreeMap::new(), inputs, y));
    }
    Some(())
}

/// X, W `[directions, input, gates]`, R `[directions, hidden, gates]` in 8 bits, B, lengths, initial h and c, P, and scale
/// and zero point of W and R. The weights become floats; X and h are not quantised on the way, so results are nearer to
/// the float network's than ONNX Runtime's.
fn lstm(graph: &mut Graph, node: &Node) -> Option<()> {
    let w = gates(graph, node, 1, 8)?;
    let r = gates(graph, node, 2, 10)?;
    let mut inputs = vec![Some(node.input(0)?), Some(w), Some(r)];
    inputs.extend((3..8).map(|i| node.input(i)));
    let keep =
        ["activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget"];
    let attrs = attrs(node, &keep);
    graph.nodes.push(plain(node.name.clone(), "LSTM", 14, attrs, inputs, node.outputs.clone()));
    Some(())
}

/// Weights `[directions, rows, gates]` of codes as floats `[directions, gates, rows]`.
fn gates(graph: &mut Graph, node: &Node, i: usize, scale: usize) -> Option<ValueId> {
    let w = graph.constant(node.input(i)?)?.clone();
    let [directions, rows, gates] = *w.dims() else { return None };
    let codes = w.to_ints()?;
    let scales = const_f32s(graph.constant(node.input(scale)?)?.as_ref())?;
    let zeros = match node.input(scale + 1) {
        None => vec![0; scales.len()],
        Some(z) => graph.constant(z)?.to_ints()?,
    };
    if zeros.len() != scales.len()
        || scales.is_empty()
        || (scales.len() != directions && scales.len() != directions * gates)
    {
        return None;
    }
    let each = scales.len() / directions;
    let mut out = vec![0.0f32; codes.len()];
    for (at, code) in codes.iter().enumerate() {
        let (d, row, gate) = (at / (rows * gates), at / gates % rows, at % gates);
        let s = d * each + if each > 1 { gate } else { 0 };
        out[(d * gates + gate) * rows + row] = (code - zeros[s]) as f32 * scales[s];
    }
    let tensor = Tensor::from_f32s(&[directions, gates, rows], &out);
    Some(graph.add_constant(format!("{}/weights{i}", node.name), tensor))
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn u8s(dims: &[usize], values: &[u8]) -> Tensor {
        Tensor::from_u8s(dims, values)
    }

    #[test]
    fn averages_and_softmax_of_codes() {
        let scale = |v: f32| Tensor::from_f32s(&[], &[v]);
        let y = case("com.microsoft", "QLinearAveragePool", 1)
            .input(u8s(&[1, 1, 2, 2], &[10, 20, 30, 44]))
            .constant(scale(0.5))
            .constant(u8s(&[], &[10]))
            .constant(scale(0.25))
            .constant(u8s(&[], &[3]))
            .attr("kernel_shape", Attr::Ints(vec![2, 2]))
            .run()
            .unwrap();
        assert_eq!((y[0].dims(), y[0].to_u8s().unwrap()), (&[1, 1, 1, 1][..], vec![35]));
        let y = case("com.microsoft", "QLinearSoftmax", 1)
            .input(u8s(&[1, 2], &[128, 128]))
            .constant(scale(0.5))
            .constant(u8s(&[], &[0]))
            .constant(scale(1.0 / 256.0))
            .constant(u8s(&[], &[0]))
            .attr("axis", Attr::Int(-1))
            .attr("opset", Attr::Int(13))
            .run()
            .unwrap();
        assert_eq!(y[0].to_u8s().unwrap(), [128, 128]);
    }

    /// K of 20 in blocks of 16: the last one is short.
    #[test]
    fn packed_weights() {
        let x: Vec<f32> = (0..20).map(|i| i as f32 - 7.0).collect();
        let codes: Vec<u8> = (0..2 * 2 * 8).map(|i| (i * 37 + 11) as u8).collect();
        let scales = [0.5, 0.25, 2.0, 1.0];
        for (zeros, bias) in [(None, None), (Some([0x3au8, 0xc1]), Some([1.0f32, -2.0]))] {
            let mut c = case("com.microsoft", "MatMulNBits", 1)
                .input(Tensor::from_f32s(&[1, 20], &x))
                .constant(u8s(&[2, 2, 8], &codes))
                .constant(Tensor::from_f32s(&[4], &scales));
            c = match zeros {
                None => c,
                Some(z) => c.constant(u8s(&[2, 1], &z)).absent().constant(Tensor::from_f32s(&[2], &bias.unwrap())),
            };
            for (name, v) in [("K", 20), ("N", 2), ("bits", 4), ("block_size", 16)] {
                c = c.attr(name, Attr::Int(v));
            }
            let got = c.run_f32();
            for column in 0..2 {
                let want: f32 = (0..20)
                    .map(|k| {
                        let block = column * 2 + k / 16;
                        let byte = codes[block * 8 + k % 16 / 2];
                        let code = if k % 2 == 0 { byte & 15 } else { byte >> 4 };
                        let zero = zeros.map_or(8, |z| if k / 16 == 0 { z[column] & 15 } else { z[column] >> 4 });
                        x[k] * (f32::from(code) - f32::from(zero)) * scales[block]
                    })
                    .sum::<f32>()
                    + bias.map_or(0.0, |b| b[column]);
                assert!((got[column] - want).abs() < 1e-3, "{} {want}", got[column]);
            }
        }
    }

    #[test]
    fn channels_at_the_end() {
        // X as [1, 1, 3, 2]: two channels of three columns; one output channel that adds them with weights 1 and 10.
        let x = Tensor::from_f32s(&[1, 1, 3, 2], &[1., 4., 2., 5., 3., 6.]);
        let w = Tensor::from_f32s(&[1, 2, 1, 1], &[1., 10.]);
        let y = case("com.microsoft", "NhwcConv", 1).input(x.clone()).constant(w.clone()).run().unwrap();
        assert_eq!((y[0].dims(), y[0].to_f32s().unwrap()), (&[1, 1, 3, 1][..], vec![41., 52., 63.]));
        let z = Tensor::from_f32s(&[1, 1, 3, 1], &[-50., -52., 0.]);
        let c = case("com.microsoft", "NhwcFusedConv", 1).input(x).constant(w).absent().input(z);
        assert_eq!(c.attr("activation", Attr::Str("Relu".into())).run_f32(), [0., 0., 63.]);
        let scale = |v: f32| Tensor::from_f32s(&[], &[v]);
        let y = case("com.microsoft", "QLinearAveragePool", 1)
            .input(u8s(&[1, 2, 1, 2], &[10, 0, 30, 8]))
            .constant(scale(1.0))
            .constant(u8s(&[], &[0]))
            .constant(scale(1.0))
            .constant(u8s(&[], &[0]))
            .attr("kernel_shape", Attr::Ints(vec![2, 1]))
            .attr("channels_last", Attr::Int(1))
            .run()
            .unwrap();
        assert_eq!((y[0].dims(), y[0].to_u8s().unwrap()), (&[1, 1, 1, 2][..], vec![20, 4]));
    }

    #[test]
    fn product_and_activation() {
        let c = case("com.microsoft", "FusedGemm", 1)
            .input(Tensor::from_f32s(&[1, 2], &[1., 2.]))
            .input(Tensor::from_f32s(&[2, 2], &[1., -10., 2., 3.]))
            .input(Tensor::from_f32s(&[1, 2], &[1., 1.]))
            .attr("alpha", Attr::Float(0.5))
            .attr("activation", Attr::Str("LeakyRelu".into()))
            .attr("activation_alpha", Attr::Float(0.25));
        assert_eq!(c.run_f32(), [3.5, -0.25]);
        assert!(c.attr("activation", Attr::Str("Sine".into())).infer().is_err());
    }

    #[test]
    fn pads_as_operands() {
        let x = Tensor::from_f32s(&[1, 2], &[1., 2.]);
        let c = case("com.microsoft", "Pad", 1).input(x).constant(Tensor::from_i64s(&[1, 4], &[0, 1, 0, 2]));
        let y = c.constant(Tensor::from_f32s(&[], &[9.])).run().unwrap();
        assert_eq!((y[0].dims(), y[0].to_f32s().unwrap()), (&[1, 5][..], vec![9., 1., 2., 9., 9.]));
        let x = || Tensor::from_f32s(&[1, 1, 2], &[1., 2.]);
        let w = || Tensor::from_f32s(&[1, 1, 3], &[1., 10., 100.]);
        let pads = Tensor::from_i64s(&[2], &[1, 0]);
        let c = case("com.microsoft", "ConvTransposeWithDynamicPads", 1).input(x()).constant(w()).constant(pads);
        assert_eq!(c.run_f32(), [12., 120., 200.]);
        let c = case("com.microsoft", "ConvTransposeWithDynamicPads", 1).input(x()).constant(w());
        assert!(c.input(Tensor::from_i64s(&[2], &[1, 0])).infer().is_err());
    }

    #[test]
    fn group_indices_are_refused() {
        let c = case("com.microsoft", "MatMulNBits", 1)
            .input(Tensor::from_f32s(&[1, 16], &[0.0; 16]))
            .constant(u8s(&[1, 1, 8], &[0; 8]))
            .constant(Tensor::from_f32s(&[1], &[1.0]))
            .absent()
            .constant(Tensor::from_i32s(&[16], &[0; 16]))
            .attr("K", Attr::Int(16))
            .attr("N", Attr::Int(1))
            .attr("block_size", Attr::Int(16));
        assert!(c.infer().is_err());
    }

    #[test]
    fn quantised_lstm_equals_the_float_one() {
        let codes: Vec<u8> = (0..2 * 4).map(|i| (i * 29) as u8).collect();
        let scale = |v: f32| Tensor::from_f32s(&[1], &[v]);
        let zero = || u8s(&[1], &[100]);
        let x = Tensor::from_f32s(&[3, 1, 2], &[0.1, -0.2, 0.3, 0.4, -0.5, 0.6]);
        let mut c = case("com.microsoft", "DynamicQuantizeLSTM", 1)
            .input(x.clone())
            .constant(u8s(&[1, 2, 4], &codes))
            .constant(u8s(&[1, 1, 4], &codes[..4]));
        for _ in 3..8 {
            c = c.absent();
        }
        c = c.constant(scale(0.01)).constant(zero()).constant(scale(0.02)).constant(zero());
        let got = c.attr("hidden_size", Attr::Int(1)).run_f32();
        let float = |v: u8, s: f32| (f32::from(v) - 100.0) * s;
        let w: Vec<f32> = (0..8).map(|i| float(codes[i % 2 * 4 + i / 2], 0.01)).collect();
        let r: Vec<f32> = codes[..4].iter().map(|&v| float(v, 0.02)).collect();
        let want = case("", "LSTM", 14)
            .input(x)
            .constant(Tensor::from_f32s(&[1, 4, 2], &w))
            .constant(Tensor::from_f32s(&[1, 4, 1], &r))
            .attr("hidden_size", Attr::Int(1))
            .run_f32();
        assert_eq!(got, want);
    }
}
