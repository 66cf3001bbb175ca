//! Contrib operators that have no kernel of their own, as the operators they are defined by.
//!
//! In: the imported graph, before inference. Out: QLinearAveragePool, QLinearSoftmax, QLinearReduceMean, QLinearWhere and
//! those whose scales are found at run time as DequantizeLinear, the float operator, QuantizeLinear; MatMulNBits and
//! DynamicQuantizeLSTM over their weights as floats; FusedGemm as Gemm and activation; NhwcConv between transpositions, Pad and
//! ConvTransposeWithDynamicPads as ONNX's own.
//! Source: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>

mod n_bits;
mod products;

use crate::ir::{Attr, Graph, Node, Tensor, Type, Value, ValueId};
use crate::ops::quant::const_f32s;
use std::collections::BTreeMap;

/// The `com.microsoft` operators that are expanded (some only where they have no kernel).
pub const EXPANDED: &[&str] = &[
    "ConvTransposeWithDynamicPads",
    "DynamicQuantizeLSTM",
    "FusedGemm",
    "MatMulInteger16",
    "MatMulNBits",
    "NhwcConv",
    "NhwcFusedConv",
    "Pad",
    "QGemm",
    "QLinearAveragePool",
    "QLinearConcat",
    "QLinearConv",
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
        "QLinearSoftmax" => softmax(graph, node),
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
        "QLinearAveragePool" => average_pool(graph, node),
        "QLinearConv" => qlinear_conv(graph, node),
        "QGemm" => products::q_gemm(graph, node),
        "MatMulInteger16" => products::matmul_16(graph, node),
        "FusedGemm" => fused_gemm(graph, node),
        "NhwcConv" => nhwc_conv(graph, node, ("", "Conv", 11)),
        "NhwcFusedConv" => nhwc_conv(graph, node, ("com.microsoft", "FusedConv", 1)),
        "Pad" => {
            let attrs = attrs(node, &["mode"]);
            graph.nodes.push(Node { domain: String::new(), version: 13, attrs, ..node.clone() });
            Some(())
        }
        "ConvTransposeWithDynamicPads" => conv_transpose(graph, node),
        "MatMulNBits" => n_bits::matmul(graph, node),
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

/// An average over codes. What hangs over the end counts as padding does: ONNX Runtime divides by all of the window.
fn average_pool(graph: &mut Graph, node: &Node) -> Option<()> {
    node.input(3)?;
    let Some(Attr::Ints(kernel)) = node.attrs.get("kernel_shape") else { return None };
    let last = (int(node, "channels_last", 0) != 0).then_some(kernel.len() + 2);
    let keep = ["auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"];
    let mut x = dequantized(graph, node, 0)?;
    if let Some(rank) = last {
        x = add(graph, node, "Transpose", 13, channels(rank, true), vec![Some(x)]);
    }
    let whole = int(node, "count_include_pad", 0) != 0 && int(node, "ceil_mode", 0) != 0;
    let mut y = add(graph, node, "AveragePool", if whole { 1 } else { 19 }, attrs(node, &keep), vec![Some(x)]);
    if whole && let Some(pool) = graph.nodes.last_mut() {
        pool.domain = "kiln".into();
    }
    if let Some(rank) = last {
        y = add(graph, node, "Transpose", 13, channels(rank, false), vec![Some(y)]);
    }
    quantize(graph, node, y, 3)
}

/// A softmax over codes. ONNX Runtime multiplies by the whole number below 1 / scale, so this does.
fn softmax(graph: &mut Graph, node: &Node) -> Option<()> {
    let opset = int(node, "opset", 13);
    let mut own = attrs(node, &["axis"]);
    own.entry("axis".into()).or_insert(Attr::Int(if opset < 13 { 1 } else { -1 }));
    let x = dequantized(graph, node, 0)?;
    let y = add(graph, node, "Softmax", opset, own, vec![Some(x)]);
    let steps = add(graph, node, "Reciprocal", 13, BTreeMap::new(), vec![Some(node.input(3)?)]);
    let steps = add(graph, node, "Floor", 13, BTreeMap::new(), vec![Some(steps)]);
    let y = add(graph, node, "Mul", 14, BTreeMap::new(), vec![Some(y), Some(steps)]);
    whole_numbers(graph, node, y, node.input(4))
}

/// Makes the node's result of floats in steps of 1, with this zero point.
fn whole_numbers(graph: &mut Graph, node: &Node, x: ValueId, zero: Option<ValueId>) -> Option<()> {
    let one = graph.add_constant(format!("{}/one", node.name), Tensor::from_f32s(&[], &[1.0]));
    let inputs = vec![Some(x), Some(one), zero];
    let (name, outputs) = (node.name.clone(), node.outputs.clone());
    graph.nodes.push(plain(name, "QuantizeLinear", 13, BTreeMap::new(), inputs, outputs));
    Some(())
}

/// ONNX's QLinearConv, where the channels are last between transpositions; its weights are as Conv's.
fn qlinear_conv(graph: &mut Graph, node: &Node) -> Option<()> {
    let mut own = node.attrs.clone();
    own.remove("channels_last");
    if int(node, "channels_last", 0) == 0 {
        let (name, inputs, outputs) = (node.name.clone(), node.inputs.clone(), node.outputs.clone());
        graph.nodes.push(plain(name, "QLinearConv", 10, own, inputs, outputs));
        return Some(());
    }
    let Some(Type::Tensor(w)) = &graph.value(node.input(3)?).ty else { return None };
    let rank = Some(w.rank()).filter(|r| *r >= 3)?;
    let mut inputs = node.inputs.clone();
    inputs[0] = Some(add(graph, node, "Transpose", 13, channels(rank, true), vec![Some(node.input(0)?)]));
    let y = add(graph, node, "QLinearConv", 10, own, inputs);
    let (name, outputs) = (node.name.clone(), node.outputs.clone());
    graph.nodes.push(plain(name, "Transpose", 13, channels(rank, false), vec![Some(y)], outputs));
    Some(())
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
