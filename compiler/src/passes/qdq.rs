//! Integer operators out of DequantizeLinear → operator → QuantizeLinear.
//!
//! In: the typed graph, before constant weights are dequantised. Out: convolutions, products, sums, means, concatenations,
//! unary functions and movements whose operands and result are quantised work on the codes. What does not fit stays in
//! floats. Only per-tensor scales of results and activations, constant ones; weights also per output channel.
//!
//! Numerics: as ONNX Runtime's own fusion, code by code (`ops::int_conv`, `ops::int_matmul`, `ops::qlinear`).

use super::rewrite::{Uses, activation_of, node_like};
use crate::ir::{Attr, Dim, Graph, Node, Tensor, Value, ValueId};
use crate::ops::quant::{const_f32s, limits};
use crate::ops::view::NodeView;
use kiln_kernels::{Activation, Dtype};
use std::sync::Arc;

const MS: &str = "com.microsoft";

/// Fuses every pattern found.
pub fn fuse_qdq(graph: &mut Graph) {
    if !graph.nodes.iter().any(|n| n.is("DequantizeLinear")) {
        return;
    }
    let uses = Uses::of(graph);
    let mut added = Vec::new();
    for i in 0..graph.nodes.len() {
        let found = if graph.nodes[i].is("QuantizeLinear") {
            quantized(graph, &uses, i)
        } else if graph.nodes[i].is("MatMul") || graph.nodes[i].is("Gemm") {
            float_product(graph, &uses, i).map(|(node, bias)| {
                added.extend(bias.map(|b| (i + 1, b)));
                node
            })
        } else {
            None
        };
        if let Some(node) = found {
            graph.nodes[i] = node;
        }
    }
    for (at, node) in added.into_iter().rev() {
        graph.nodes.insert(at, node);
    }
}

/// Codes with their scale and zero point.
#[derive(Clone, Copy, PartialEq)]
struct Codes {
    x: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
    dtype: Dtype,
}

impl Codes {
    /// What DequantizeLinear makes this value of.
    fn behind<'g>(graph: &'g Graph, uses: &Uses, v: ValueId) -> Option<(Self, &'g Node)> {
        let node = &graph.nodes[uses.producer(v)?];
        if !node.is("DequantizeLinear") || int(node, "block_size", 0) != 0 {
            return None;
        }
        Some((Self::of(graph, node, node.input(0)?)?, node))
    }

    /// The scale and zero point of a (de)quantisation, which must be constant; `x` are the codes.
    fn of(graph: &Graph, node: &Node, x: ValueId) -> Option<Self> {
        let scale = node.input(1)?;
        let is_f32 = graph.tensor_type(scale).ok()?.dtype == Dtype::F32 && graph.constant(scale).is_some();
        let zero = node.input(2);
        let constant = zero.is_none_or(|z| graph.constant(z).is_some());
        (is_f32 && constant).then_some(Self { x, scale, zero, dtype: graph.tensor_type(x).ok()?.dtype })
    }

    /// An activation: 8-bit codes with one scale.
    fn activation(graph: &Graph, uses: &Uses, v: ValueId) -> Option<Self> {
        let (codes, _) = Self::behind(graph, uses, v)?;
        codes.is_activation(graph).then_some(codes)
    }

    fn is_activation(&self, graph: &Graph) -> bool {
        matches!(self.dtype, Dtype::U8 | Dtype::I8) && self.number(graph).is_some()
    }

    /// The one scale and zero point.
    fn number(&self, graph: &Graph) -> Option<(f32, i32)> {
        let scale = graph.constant(self.scale)?;
        let zero = match self.zero {
            None => 0,
            Some(z) => *graph.constant(z)?.to_ints()?.first()?,
        };
        let one = self.zero.is_none_or(|z| graph.constant(z).is_some_and(|z| z.numel() == 1));
        match const_f32s(scale)?.as_slice() {
            [scale] if one => Some((*scale, i32::try_from(zero).ok()?)),
            _ => None,
        }
    }

    /// Whether both stand for the same values.
    fn same(&self, other: &Self, graph: &Graph) -> bool {
        self.dtype == other.dtype && self.number(graph).is_some() && self.number(graph) == other.number(graph)
    }

    /// The zero point as a constant of its own, if it is not given.
    fn zero_or_new(&self, graph: &mut Graph, name: &str) -> Option<ValueId> {
        if self.zero.is_some() {
            return self.zero;
        }
        let zero = Tensor::new(self.dtype, Vec::new(), vec![0].into())?;
        Some(graph.add_constant(format!("{name}/zero"), zero))
    }

    /// Codes, scale, zero point as operands.
    fn operands(&self) -> [Option<ValueId>; 3] {
        [Some(self.x), Some(self.scale), self.zero]
    }
}

fn int(node: &Node, name: &str, default: i64) -> i64 {
    match node.attrs.get(name) {
        Some(Attr::Int(v)) => *v,
        _ => default,
    }
}

/// The integer form of what ends in this QuantizeLinear.
fn quantized(graph: &mut Graph, uses: &Uses, at: usize) -> Option<Node> {
    let q = graph.nodes[at].clone();
    let codes = q.output(0)?;
    let y = Codes::of(graph, &q, codes)?;
    if !y.is_activation(graph) {
        return None;
    }
    let v = q.input(0)?;
    let node = graph.nodes[uses.producer(v)?].clone();
    if node.output(0) != Some(v) {
        return None;
    }
    if node.is("DequantizeLinear") {
        return table(graph, uses, &q, v, None, &y);
    }
    if !uses.is_single(v) {
        return None;
    }
    let mut fused = match node.op.as_str() {
        _ if !node.domain.is_empty() => None,
        "Conv" => conv(graph, uses, &node, &y, None),
        "MatMul" | "Gemm" => product(graph, uses, &node, Some(&y)),
        "Add" | "Mul" => biased_product(graph, uses, &node, &y).or_else(|| binary(graph, uses, &node, &y)),
        "GlobalAveragePool" => mean(graph, uses, &node, &y),
        "Concat" => concat(graph, uses, &node, &y),
        "MaxPool" if node.output(1).is_none() => moved(graph, uses, &node, &y),
        "Reshape" | "Flatten" | "Transpose" | "Squeeze" | "Unsqueeze" | "Identity" | "Slice" | "Gather" | "Expand"
        | "Tile" | "DepthToSpace" | "SpaceToDepth" => moved(graph, uses, &node, &y),
        _ => activated(graph, uses, &node, &y),
    };
    if fused.is_none() && UNARY.contains(&node.op.as_str()) && node.domain.is_empty() {
        fused = table(graph, uses, &q, node.input(0)?, Some(&node), &y);
    }
    let mut fused = fused?;
    fused.name.clone_from(&node.name);
    fused.outputs = q.outputs;
    Some(fused)
}

/// Element-wise functions of one operand: their quantised form is a table.
const UNARY: [&str; 20] = [
    "Relu",
    "Clip",
    "Sigmoid",
    "Tanh",
    "LeakyRelu",
    "HardSigmoid",
    "HardSwish",
    "Swish",
    "Elu",
    "Selu",
    "Celu",
    "Mish",
    "Gelu",
    "Erf",
    "Exp",
    "Sqrt",
    "Abs",
    "Neg",
    "Softplus",
    "ThresholdedRelu",
];

/// A function of the codes in `v` as a table of 256, evaluated by the operator's own kernel; without one, the codes'
/// values under another scale.
fn table(graph: &mut Graph, uses: &Uses, q: &Node, v: ValueId, f: Option<&Node>, y: &Codes) -> Option<Node> {
    let x = Codes::activation(graph, uses, v)?;
    let shape = graph.tensor_type(x.x).ok()?.shape.clone();
    if x.dtype.size_bytes() != 1 || graph.tensor_type(y.x).ok()?.shape != shape {
        return None;
    }
    if f.is_none() && x.same(y, graph) {
        let identity = node_like(q, "", "Identity", 16, vec![Some(x.x)]);
        return Some(identity);
    }
    let (x_scale, x_zero) = x.number(graph)?;
    let (y_scale, y_zero) = y.number(graph)?;
    let code = |byte: u8| if x.dtype == Dtype::I8 { i32::from(byte as i8) } else { i32::from(byte) };
    let mut values: Vec<f32> = (0..=255u8).map(|b| (code(b) - x_zero) as f32 * x_scale).collect();
    if let Some(f) = f {
        let others = f.inputs.iter().skip(1).flatten().all(|&i| graph.constant(i).is_some());
        if !others {
            return None;
        }
        let mut alone = f.clone();
        let input = graph.add_constant(format!("{}/values", f.name), Tensor::from_f32s(&[256], &values));
        let output = graph.add_typed(
            format!("{}/table", f.name),
            crate::ir::TensorType::fixed(Dtype::F32, &[256]),
            crate::ir::Layout::Plain,
        );
        alone.inputs[0] = Some(input);
        alone.outputs = vec![Some(output)];
        values = super::infer::evaluate(graph, &alone).ok()?.first()?.to_f32s()?;
    }
    let (lo, hi) = limits(y.dtype)?;
    let bytes: Vec<u8> = values
        .iter()
        .map(|v| {
            let q = (v / y_scale).round_ties_even();
            (q.max((lo - y_zero) as f32).min((hi - y_zero) as f32) as i32 + y_zero) as u8
        })
        .collect();
    let table = Tensor::new(y.dtype, vec![256], bytes.into())?;
    let mut fused = node_like(q, "kiln", "CodeTable", 1, vec![Some(x.x)]);
    fused.attrs.insert("table".into(), Attr::Tensor(Arc::new(table)));
    Some(fused)
}

/// Relu or Clip between an operator and the quantisation: as limits of the codes.
fn activated(graph: &mut Graph, uses: &Uses, act: &Node, y: &Codes) -> Option<Node> {
    let (scale, zero) = y.number(graph)?;
    let (lo, hi) = limits(y.dtype)?;
    let code = |v: f32| ((v / scale).round_ties_even().clamp(-65536.0, 65536.0) as i32 + zero).clamp(lo, hi);
    let bounds = match activation_of(graph, act)? {
        Activation::Relu => (zero.clamp(lo, hi), hi),
        Activation::Clip { lo, hi } => (code(lo), code(hi)),
        _ => return None,
    };
    let v = act.input(0)?;
    let inner = graph.nodes[uses.producer(v)?].clone();
    if !uses.is_single(v) || inner.output(0) != Some(v) || !inner.domain.is_empty() {
        return None;
    }
    match inner.op.as_str() {
        "Conv" => conv(graph, uses, &inner, y, Some(bounds)),
        // Saturation does it already.
        "Add" | "Mul" if bounds == (lo, hi) => {
            biased_product(graph, uses, &inner, y).or_else(|| binary(graph, uses, &inner, y))
        }
        "MatMul" | "Gemm" if bounds == (lo, hi) => product(graph, uses, &inner, Some(y)),
        _ => None,
    }
}

/// Constant 8-bit weights, one scale or one for each position of `axis` of these extents.
fn weights(graph: &Graph, uses: &Uses, v: ValueId, axis: usize) -> Option<Codes> {
    let (w, node) = Codes::behind(graph, uses, v)?;
    let ty = graph.tensor_type(w.x).ok()?;
    if !matches!(w.dtype, Dtype::U8 | Dtype::I8) || graph.constant(w.x).is_none() {
        return None;
    }
    let scales = graph.constant(w.scale)?;
    if scales.numel() != 1 {
        let rank = i64::try_from(ty.rank()).ok()?;
        let given = int(node, "axis", 1);
        let given = if given < 0 { given + rank } else { given };
        let fits = usize::try_from(given) == Ok(axis) && ty.shape.get(axis) == Some(&Dim::from(scales.numel()));
        if !fits || scales.dims().len() != 1 {
            return None;
        }
    }
    Some(w)
}

/// A bias as `i32` in units of the product of the scales: codes of these units, or floats rounded to them where that is no more
/// than 1/64 of a code of `y`, or, without `y`, nothing.
fn bias(
    graph: &mut Graph,
    uses: &Uses,
    v: ValueId,
    [x, w]: [&Codes; 2],
    channels: usize,
    y: Option<&Codes>,
) -> Option<ValueId> {
    let most = match y {
        Some(y) => Some(f64::from(y.number(graph)?.0.abs()) / 64.0),
        None => None,
    };
    let (x_scale, _) = x.number(graph)?;
    let units: Vec<f32> = const_f32s(graph.constant(w.scale)?)?.iter().map(|s| s * x_scale).collect();
    let unit = |i: usize| units[if units.len() == 1 { 0 } else { i }];
    let floats = match Codes::behind(graph, uses, v) {
        Some((b, _)) => {
            let codes = graph.constant(b.x)?.clone();
            let scales = const_f32s(graph.constant(b.scale)?)?;
            let zeros = b.zero.map_or(Some(Vec::new()), |z| graph.constant(z)?.to_ints())?;
            let scale = |i: usize| scales[if scales.len() == 1 { 0 } else { i }];
            if scales.len() != 1 && scales.len() != channels || codes.numel() != channels {
                return None;
            }
            let same = (0..channels).all(|i| (scale(i) - unit(i)).abs() <= 1e-5 * unit(i).abs());
            if codes.dtype() == Dtype::I32 && same && zeros.iter().all(|&z| z == 0) && codes.dims().len() == 1 {
                return Some(b.x);
            }
            let zero = |i: usize| match zeros.len() {
                0 => Some(0),
                1 => zeros.first().copied(),
                _ => zeros.get(i).copied(),
            };
            let ints = codes.to_ints()?;
            (0..channels).map(|i| Some((ints[i] - zero(i)?) as f32 * scale(i))).collect::<Option<Vec<_>>>()?
        }
        None => const_f32s(graph.constant(v)?).filter(|b| b.len() == channels)?,
    };
    let ints: Option<Vec<i32>> = floats
        .iter()
        .enumerate()
        .map(|(i, b)| {
            let unit = f64::from(unit(i));
            let q = (f64::from(*b) / unit).round_ties_even();
            let lost = (q * unit - f64::from(*b)).abs();
            (q.abs() < f64::from(1 << 30) && lost <= most.unwrap_or(1e-4 * unit.abs())).then_some(q as i32)
        })
        .collect();
    let name = format!("{}/bias", graph.value(v).name);
    Some(graph.add_constant(name, Tensor::from_i32s(&[channels], &ints?)))
}

fn conv(graph: &mut Graph, uses: &Uses, node: &Node, y: &Codes, bounds: Option<(i32, i32)>) -> Option<Node> {
    let x = Codes::activation(graph, uses, node.input(0)?)?;
    let w = weights(graph, uses, node.input(1)?, 0)?;
    let channels = *graph.constant(w.x)?.dims().first()?;
    let bias = match node.input(2) {
        None => None,
        Some(b) => Some(bias(graph, uses, b, [&x, &w], channels, Some(y))?),
    };
    let y_zero = y.zero_or_new(graph, &node.name)?;
    let mut inputs = x.operands().to_vec();
    inputs.extend(w.operands());
    inputs.extend([Some(y.scale), Some(y_zero), bias]);
    let mut fused = node_like(node, "kiln", "QLinearConv", 1, inputs);
    fused.attrs.clone_from(&node.attrs);
    if let Some((least, greatest)) = bounds {
        fused.attrs.insert("least".into(), Attr::Int(least.into()));
        fused.attrs.insert("greatest".into(), Attr::Int(greatest.into()));
    }
    Some(fused)
}

/// A product with constant weights; without `y`, its result is floats.
fn product(graph: &mut Graph, uses: &Uses, node: &Node, y: Option<&Codes>) -> Option<Node> {
    let x = Codes::activation(graph, uses, node.input(0)?)?;
    let gemm = node.op == "Gemm";
    let transposed = gemm && int(node, "transB", 0) != 0;
    let w = weights(graph, uses, node.input(1)?, usize::from(!transposed))?;
    let [rows, columns] = *graph.constant(w.x)?.dims() else { return None };
    let n = if transposed { rows } else { columns };
    if !gemm {
        return matmul(graph, node, &x, &w, None, y);
    }
    let view = NodeView { graph, node };
    let unit = |name: &str| view.float(name, 1.0).is_ok_and(|v| v == 1.0);
    if !unit("alpha") || (node.input(2).is_some() && !unit("beta")) {
        return None;
    }
    let c = match node.input(2) {
        None => None,
        Some(c) => Some(bias(graph, uses, c, [&x, &w], n, y)?),
    };
    let mut inputs = x.operands().to_vec();
    inputs.extend(w.operands());
    inputs.push(c);
    if let Some(y) = y {
        let zero = y.zero_or_new(graph, &node.name)?;
        inputs.extend([Some(y.scale), Some(zero)]);
    }
    let mut fused = node_like(node, MS, "QGemm", 1, inputs);
    for name in ["transA", "transB"] {
        if let Some(v) = node.attrs.get(name) {
            fused.attrs.insert(name.into(), v.clone());
        }
    }
    Some(fused)
}

fn matmul(
    graph: &mut Graph,
    node: &Node,
    x: &Codes,
    w: &Codes,
    bias: Option<ValueId>,
    y: Option<&Codes>,
) -> Option<Node> {
    let Some(y) = y else {
        let inputs = vec![Some(x.x), Some(w.x), Some(x.scale), Some(w.scale), x.zero, w.zero];
        return Some(node_like(node, MS, "MatMulIntegerToFloat", 1, inputs));
    };
    let zero = y.zero_or_new(graph, &node.name)?;
    let mut inputs = x.operands().to_vec();
    inputs.extend(w.operands());
    inputs.extend([Some(y.scale), Some(zero), bias]);
    Some(node_like(node, "kiln", "QLinearMatMul", 1, inputs))
}

/// MatMul and a bias for each column.
fn biased_product(graph: &mut Graph, uses: &Uses, add: &Node, y: &Codes) -> Option<Node> {
    if add.op != "Add" {
        return None;
    }
    for (v, b) in [(add.input(0)?, add.input(1)?), (add.input(1)?, add.input(0)?)] {
        let Some(p) = uses.producer(v) else { continue };
        let node = graph.nodes[p].clone();
        if !node.is("MatMul") || !uses.is_single(v) {
            continue;
        }
        let Some(x) = Codes::activation(graph, uses, node.input(0)?) else { continue };
        let Some(w) = weights(graph, uses, node.input(1)?, 1) else { continue };
        let [_, n] = *graph.constant(w.x)?.dims() else { continue };
        let b_ty = graph.tensor_type(b).ok()?;
        if b_ty.rank() == 0 || !b_ty.shape[b_ty.rank() - 1].is(n as i64) {
            continue;
        }
        let Some(bias) = bias(graph, uses, b, [&x, &w], n, Some(y)) else { continue };
        return matmul(graph, &node, &x, &w, Some(bias), Some(y));
    }
    None
}

/// A product of codes that stays in floats: nothing quantises its result. With it the addition of a bias that is no whole number of
/// the product's units.
fn float_product(graph: &mut Graph, uses: &Uses, at: usize) -> Option<(Node, Option<Node>)> {
    let node = graph.nodes[at].clone();
    let v = node.output(0)?;
    // A quantisation further on takes the product with it, if anything does.
    let readers = |v: ValueId| graph.nodes.iter().filter(move |n| n.inputs.contains(&Some(v)));
    let quantises = |v: ValueId| readers(v).any(|n| n.is("QuantizeLinear"));
    let between = |n: &Node| ["Add", "Relu", "Clip"].iter().any(|op| n.is(op)) && n.output(0).is_some_and(quantises);
    if quantises(v) || readers(v).any(between) {
        return None;
    }
    if let Some(mut fused) = product(graph, uses, &node, None) {
        fused.outputs = node.outputs;
        return Some((fused, None));
    }
    let c = node.input(2)?;
    if !(NodeView { graph, node: &node }).float("beta", 1.0).is_ok_and(|b| b == 1.0) {
        return None;
    }
    let mut bare = node.clone();
    bare.inputs.truncate(2);
    let mut fused = product(graph, uses, &bare, None)?;
    let sums = graph.add_value(Value { name: format!("{}/product", node.name), ..graph.value(v).clone() });
    fused.outputs = vec![Some(sums)];
    let mut add = node_like(&node, "", "Add", 14, vec![Some(sums), Some(c)]);
    add.outputs = node.outputs;
    Some((fused, Some(add)))
}

fn binary(graph: &mut Graph, uses: &Uses, node: &Node, y: &Codes) -> Option<Node> {
    let a = Codes::activation(graph, uses, node.input(0)?)?;
    let b = Codes::activation(graph, uses, node.input(1)?)?;
    if a.dtype != y.dtype || b.dtype != y.dtype {
        return None;
    }
    let mut inputs = a.operands().to_vec();
    inputs.extend(b.operands());
    inputs.extend([Some(y.scale), y.zero]);
    Some(node_like(node, MS, if node.op == "Add" { "QLinearAdd" } else { "QLinearMul" }, 1, inputs))
}

fn mean(graph: &mut Graph, uses: &Uses, node: &Node, y: &Codes) -> Option<Node> {
    let x = Codes::activation(graph, uses, node.input(0)?)?;
    if x.dtype != y.dtype || graph.tensor_type(x.x).ok()?.rank() < 3 {
        return None;
    }
    let mut inputs = x.operands().to_vec();
    inputs.extend([Some(y.scale), y.zero]);
    Some(node_like(node, MS, "QLinearGlobalAveragePool", 1, inputs))
}

fn concat(graph: &mut Graph, uses: &Uses, node: &Node, y: &Codes) -> Option<Node> {
    let parts: Option<Vec<Codes>> =
        node.inputs.iter().map(|v| Codes::activation(graph, uses, (*v)?).filter(|c| c.dtype == y.dtype)).collect();
    let mut inputs = vec![Some(y.scale), y.zero];
    for part in parts? {
        inputs.extend(part.operands());
    }
    let mut fused = node_like(node, MS, "QLinearConcat", 1, inputs);
    fused.attrs.clone_from(&node.attrs);
    Some(fused)
}

/// A movement, or a maximum, under one scale: the same operator on the codes.
fn moved(graph: &mut Graph, uses: &Uses, node: &Node, y: &Codes) -> Option<Node> {
    let x = Codes::activation(graph, uses, node.input(0)?)?;
    if !x.same(y, graph) || (node.op == "MaxPool" && node.version < 12 && x.dtype.size_bytes() != 1) {
        return None;
    }
    let mut fused = node.clone();
    fused.inputs[0] = Some(x.x);
    Some(fused)
}

#[cfg(test)]
mod tests {
    use super::fuse_qdq;
    use crate::ir::{Attr, Graph, Layout, Node, Tensor, TensorType, Type, Value, ValueId};
    use crate::{exec, lower, passes};
    use kiln_kernels::{Dtype, isa::Isa};

    /// A graph under construction: codes in, codes out.
    struct Build(Graph, Dtype);

    impl Build {
        fn new(dtype: Dtype) -> Self {
            Self(Graph::default(), dtype)
        }

        /// A zero point of the activations' type.
        fn zero(&self, unsigned: i64) -> Option<(Dtype, i64)> {
            Some((self.1, if self.1 == Dtype::I8 { unsigned - 128 } else { unsigned }))
        }

        fn input(&mut self, dims: &[usize]) -> ValueId {
            let ty: Type = TensorType::fixed(self.1, dims).into();
            let v =
                self.0.add_value(Value { name: format!("x{}", self.0.inputs.len()), ty: Some(ty), ..Value::default() });
            self.0.inputs.push(v);
            v
        }

        fn node(&mut self, op: &str, inputs: Vec<ValueId>, attrs: &[(&str, Attr)]) -> ValueId {
            let name = format!("n{}", self.0.nodes.len());
            let y = self.0.add_value(Value { name: name.clone(), ..Value::default() });
            let attrs = attrs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
            let inputs = inputs.into_iter().map(Some).collect();
            let node = Node {
                name,
                domain: String::new(),
                op: op.into(),
                version: 17,
                attrs,
                inputs,
                outputs: vec![Some(y)],
                bodies: Default::default(),
            };
            self.0.nodes.push(node);
            y
        }

        fn numbers(&mut self, scale: &[f32], zero: Option<(Dtype, i64)>) -> [ValueId; 2] {
            let dims: &[usize] = if scale.len() == 1 { &[] } else { &[scale.len()] };
            let s = self.0.add_constant("scale", Tensor::from_f32s(dims, scale));
            let (dtype, zero) = zero.unwrap_or((Dtype::U8, 0));
            let bytes = (zero as i32).to_le_bytes()[..dtype.size_bytes()].repeat(scale.len());
            let z = self.0.add_constant("zero", Tensor::new(dtype, dims.to_vec(), bytes.into()).unwrap());
            [s, z]
        }

        fn dq(&mut self, x: ValueId, scale: f32, zero: i64) -> ValueId {
            let [s, z] = self.numbers(&[scale], self.zero(zero));
            self.node("DequantizeLinear", vec![x, s, z], &[])
        }

        fn quantized(&mut self, x: ValueId, scale: f32, zero: i64) -> ValueId {
            let [s, z] = self.numbers(&[scale], self.zero(zero));
            self.node("QuantizeLinear", vec![x, s, z], &[])
        }

        fn q(&mut self, x: ValueId, scale: f32, zero: i64) {
            let y = self.quantized(x, scale, zero);
            self.0.outputs.push(("y".into(), y));
        }

        fn weights(&mut self, dtype: Dtype, dims: &[usize], scale: &[f32], axis: i64) -> ValueId {
            let n: usize = dims.iter().product();
            let data: Vec<u8> = match dtype {
                Dtype::I32 => (0..n as i32).flat_map(|i| (i * 100 - 300).to_le_bytes()).collect(),
                _ => (0..n).map(|i| (i * 89 + 7) as u8).collect(),
            };
            let x = self.0.add_constant("codes", Tensor::new(dtype, dims.to_vec(), data.into()).unwrap());
            let [s, z] = self.numbers(scale, Some((dtype, 0)));
            self.node("DequantizeLinear", vec![x, s, z], &[("axis", Attr::Int(axis))])
        }

        /// Fused and not, on the same codes: the operators left, and the greatest difference of the results.
        fn compare(self) -> (Vec<String>, i64) {
            let mut fused = self.0;
            passes::infer(&mut fused).map_err(|e| e.0[0].to_string()).unwrap();
            let plain = fused.clone();
            fuse_qdq(&mut fused);
            crate::passes::dead::remove_dead(&mut fused);
            crate::passes::recode::to_unsigned(&mut fused);
            let run = |g: &Graph| {
                let lowered = lower::lower(g).map_err(|e| e.0[0].to_string()).unwrap();
                let inputs: Vec<Vec<u8>> = g
                    .inputs
                    .iter()
                    .map(|&v| {
                        let n = g.tensor_type(v).unwrap().bytes().as_const().unwrap();
                        (0..n).map(|i| (i * 131 % 256) as u8).collect()
                    })
                    .collect();
                let inputs: Vec<&[u8]> = inputs.iter().map(|i| &i[..]).collect();
                exec::run_unplanned(g, &lowered, &inputs, Isa::detect()).unwrap()
            };
            let (a, b) = (run(&fused), run(&plain));
            let mut worst = 0;
            for (a, b) in a.iter().zip(&b) {
                match (a.to_ints(), b.to_ints()) {
                    (Some(a), Some(b)) => {
                        worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(worst, i64::max);
                    }
                    _ => {
                        let (a, b) = (a.to_f32s().unwrap(), b.to_f32s().unwrap());
                        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs().max(1.0)));
                    }
                }
            }
            assert!(fused.values.iter().all(|v| v.layout == Layout::Plain));
            (fused.nodes.iter().map(|n| n.op.clone()).collect(), worst)
        }
    }

    fn convolution_with_bias_and_clamp(t: Dtype) {
        for act in [None, Some("Relu"), Some("Clip")] {
            let mut g = Build::new(t);
            let x = g.input(&[1, 4, 5, 5]);
            let x = g.dq(x, 0.02, 120);
            let scales = [0.01f32, 0.02, 0.015];
            let w = g.weights(Dtype::I8, &[3, 4, 3, 3], &scales, 0);
            let b = g.weights(Dtype::I32, &[3], &scales.map(|s| s * 0.02), 0);
            let mut y = g.node("Conv", vec![x, w, b], &[("pads", Attr::Ints(vec![1; 4]))]);
            match act {
                Some("Clip") => {
                    let lo = g.0.add_constant("lo", Tensor::from_f32s(&[], &[-0.5]));
                    let hi = g.0.add_constant("hi", Tensor::from_f32s(&[], &[1.5]));
                    y = g.node("Clip", vec![y, lo, hi], &[]);
                }
                Some(op) => y = g.node(op, vec![y], &[]),
                None => {}
            }
            g.q(y, 0.03, 100);
            let (ops, worst) = g.compare();
            assert_eq!(ops, ["QLinearConv"]);
            assert!(worst <= 1, "{act:?}: {worst}");
        }
    }

    fn products(t: Dtype) {
        for (op, biased, quantised, want) in [
            ("MatMul", false, true, "QLinearMatMul"),
            ("MatMul", true, true, "QLinearMatMul"),
            ("MatMul", false, false, "MatMulIntegerToFloat"),
            ("Gemm", true, true, "QGemm"),
            ("Gemm", true, false, "QGemm"),
        ] {
            let mut g = Build::new(t);
            let x = g.input(&[3, 10]);
            let x = g.dq(x, 0.02, 7);
            let w = g.weights(Dtype::I8, &[10, 6], &[0.01, 0.02, 0.03, 0.01, 0.02, 0.04], 1);
            let mut y = if op == "Gemm" {
                let unit = [0.01f32, 0.02, 0.03, 0.01, 0.02, 0.04].map(|s| s * 0.02);
                let b = g.weights(Dtype::I32, &[6], &unit, 0);
                g.node("Gemm", vec![x, w, b], &[])
            } else {
                g.node("MatMul", vec![x, w], &[])
            };
            if biased && op == "MatMul" {
                let b = g.0.add_constant("b", Tensor::from_f32s(&[6], &[0.5, -0.25, 0.1, 2.0, -1.0, 0.0]));
                y = g.node("Add", vec![b, y], &[]);
            }
            if quantised {
                g.q(y, 0.05, 128);
            } else {
                g.0.outputs.push(("y".into(), y));
            }
            let (ops, worst) = g.compare();
            assert_eq!(ops, [want]);
            assert!(worst <= 1, "{op}: {worst}");
        }
    }

    /// Units of the products so coarse that a bias rounded to them would be seen in the result: it stays a float.
    fn coarse_units(t: Dtype) {
        for (op, quantised, want) in [
            ("Gemm", false, &["QGemm", "Add"][..]),
            ("Gemm", true, &["DequantizeLinear", "DequantizeLinear", "Gemm", "QuantizeLinear"]),
            ("MatMul", true, &["DequantizeLinear", "DequantizeLinear", "MatMul", "Add", "QuantizeLinear"]),
            ("Conv", true, &["DequantizeLinear", "DequantizeLinear", "Conv", "QuantizeLinear"]),
        ] {
            let mut g = Build::new(t);
            let x = g.input(if op == "Conv" { &[1, 4, 1, 1] } else { &[1, 4] });
            let x = g.dq(x, 1.0, 128);
            let w = g.weights(Dtype::I8, if op == "Conv" { &[2, 4, 1, 1] } else { &[4, 2] }, &[1.0], 0);
            let b = g.0.add_constant("b", Tensor::from_f32s(&[2], &[0.4, 0.3]));
            let y = match op {
                "MatMul" => {
                    let y = g.node(op, vec![x, w], &[]);
                    g.node("Add", vec![y, b], &[])
                }
                _ => g.node(op, vec![x, w, b], &[]),
            };
            if quantised {
                g.q(y, 0.1, 128);
            } else {
                g.0.outputs.push(("y".into(), y));
            }
            let (ops, worst) = g.compare();
            assert_eq!((ops.iter().map(String::as_str).collect::<Vec<_>>(), worst), (want.to_vec(), 0), "{op}");
        }
    }

    fn two_operands_means_and_joins(t: Dtype) {
        for (op, want) in [("Add", "QLinearAdd"), ("Mul", "QLinearMul"), ("Concat", "QLinearConcat")] {
            let mut g = Build::new(t);
            let (a, b) = (g.input(&[2, 3, 4]), g.input(&[2, 3, 4]));
            let (a, b) = (g.dq(a, 0.02, 10), g.dq(b, 0.03, 100));
            let attrs: &[(&str, Attr)] = if op == "Concat" { &[("axis", Attr::Int(1))] } else { &[] };
            let y = g.node(op, vec![a, b], attrs);
            g.q(y, 0.04, 90);
            let (ops, worst) = g.compare();
            assert_eq!(ops, [want]);
            assert!(worst <= 1);
        }
        let mut g = Build::new(t);
        let x = g.input(&[2, 3, 4, 4]);
        let x = g.dq(x, 0.02, 10);
        let y = g.node("GlobalAveragePool", vec![x], &[]);
        g.q(y, 0.015, 3);
        let (ops, worst) = g.compare();
        assert_eq!((ops, worst <= 1), (vec!["QLinearGlobalAveragePool".to_owned()], true));
    }

    fn tables_and_movements(t: Dtype) {
        for op in ["Sigmoid", "HardSwish", "Tanh", "Relu"] {
            let mut g = Build::new(t);
            let x = g.input(&[300]);
            let x = g.dq(x, 0.05, 128);
            let y = g.node(op, vec![x], &[]);
            g.q(y, 0.01, 100);
            let (ops, worst) = g.compare();
            assert_eq!(ops, ["CodeTable"]);
            assert!(worst <= 1, "{op}");
        }
        for (scale, want) in [(0.05, vec!["Transpose"]), (0.1, vec!["DequantizeLinear", "Transpose", "QuantizeLinear"])]
        {
            let mut g = Build::new(t);
            let x = g.input(&[2, 3]);
            let x = g.dq(x, 0.05, 128);
            let y = g.node("Transpose", vec![x], &[]);
            g.q(y, scale, 128);
            assert_eq!(g.compare(), (want.into_iter().map(String::from).collect(), 0));
        }
    }

    fn other_readers_keep_floats(t: Dtype) {
        let mut g = Build::new(t);
        let x = g.input(&[2, 3]);
        let x = g.dq(x, 0.05, 128);
        let y = g.node("Add", vec![x, x], &[]);
        g.q(y, 0.1, 128);
        g.0.outputs.push(("f".into(), y));
        assert_eq!(g.compare().0, ["DequantizeLinear", "Add", "QuantizeLinear"]);
    }

    /// Values between the operators become unsigned.
    fn a_chain(t: Dtype) {
        let mut g = Build::new(t);
        let x = g.input(&[1, 3, 6, 6]);
        let x = g.dq(x, 0.02, 120);
        let w = g.weights(Dtype::I8, &[3, 3, 1, 1], &[0.01], 0);
        let y = g.node("Conv", vec![x, w], &[]);
        let y = g.node("Relu", vec![y], &[]);
        let y = g.quantized(y, 0.01, 30);
        let y = g.dq(y, 0.01, 30);
        let z = g.node(
            "MaxPool",
            vec![y],
            &[("kernel_shape", Attr::Ints(vec![2, 2])), ("strides", Attr::Ints(vec![2, 2]))],
        );
        let z = g.quantized(z, 0.01, 30);
        let z = g.dq(z, 0.01, 30);
        let u = g.node("Sigmoid", vec![z], &[]);
        let u = g.quantized(u, 1.0 / 256.0, 0);
        let u = g.dq(u, 1.0 / 256.0, 0);
        let v = g.node("Mul", vec![u, z], &[]);
        let v = g.quantized(v, 0.02, 10);
        let v = g.dq(v, 0.02, 10);
        let m = g.node("GlobalAveragePool", vec![v], &[]);
        g.q(m, 0.02, 20);
        let (ops, worst) = g.compare();
        assert_eq!(ops, ["QLinearConv", "MaxPool", "CodeTable", "QLinearMul", "QLinearGlobalAveragePool"]);
        assert!(worst <= 2, "{worst}");
    }

    #[test]
    fn unsigned_and_signed() {
        for t in [Dtype::U8, Dtype::I8] {
            convolution_with_bias_and_clamp(t);
            products(t);
            coarse_units(t);
            two_operands_means_and_joins(t);
            tables_and_movements(t);
            other_readers_keep_floats(t);
            a_chain(t);
        }
    }
}
