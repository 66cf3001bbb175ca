//! What the rewriting passes share: who makes a value, who reads it, and how a node is replaced.

use crate::ir::{Attr, Graph, Node, Tensor, Value, ValueId};
use kiln_kernels::Activation;

/// Producers and readers of every value, as the graph stood when the pass began.
pub(super) struct Uses {
    producer: Vec<Option<usize>>,
    count: Vec<u32>,
}

impl Uses {
    pub(super) fn of(graph: &Graph) -> Self {
        Self { producer: graph.producers(), count: graph.use_counts() }
    }

    /// The node that makes a value.
    pub(super) fn producer(&self, v: ValueId) -> Option<usize> {
        self.producer.get(v.0 as usize).copied().flatten()
    }

    /// Whether exactly one operand, capture or output reads it.
    pub(super) fn is_single(&self, v: ValueId) -> bool {
        self.count.get(v.0 as usize) == Some(&1)
    }

    /// How often it is read.
    pub(super) fn count(&self, v: ValueId) -> u32 {
        self.count.get(v.0 as usize).copied().unwrap_or(0)
    }
}

/// The single element of a constant, as `f64`.
pub(super) fn scalar(graph: &Graph, v: Option<ValueId>) -> Option<f64> {
    graph.constant(v?)?.scalar_f64()
}

/// Whether a constant is one element within a relative 1e-4 of this value.
pub(super) fn is_scalar(graph: &Graph, v: Option<ValueId>, value: f64) -> bool {
    scalar(graph, v).is_some_and(|s| (s - value).abs() <= 1e-4 * value.abs())
}

/// Of a node with two operands in either order: (the one that `test` accepts, the other).
pub(super) fn either(node: &Node, test: impl Fn(ValueId) -> bool) -> Option<(ValueId, ValueId)> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    if test(a) {
        Some((a, b))
    } else if test(b) {
        Some((b, a))
    } else {
        None
    }
}

/// The activation that a node is, if it is one over its first operand.
pub(super) fn activation_of(graph: &Graph, node: &Node) -> Option<Activation> {
    if !node.domain.is_empty() {
        return None;
    }
    let float = |name: &str, default: f32| match node.attrs.get(name) {
        None => Some(default),
        Some(Attr::Float(v)) => Some(*v),
        Some(_) => None,
    };
    Some(match node.op.as_str() {
        "Relu" => Activation::Relu,
        "Sigmoid" => Activation::Sigmoid,
        "Tanh" => Activation::Tanh,
        "HardSwish" => Activation::HardSwish,
        "LeakyRelu" => Activation::LeakyRelu { alpha: float("alpha", 0.01)? },
        "HardSigmoid" => Activation::HardSigmoid { alpha: float("alpha", 0.2)?, beta: float("beta", 0.5)? },
        "Swish" if float("alpha", 1.0)? == 1.0 => Activation::Silu,
        "Gelu" => match node.attrs.get("approximate") {
            None => Activation::Gelu,
            Some(Attr::Str(s)) if s == b"none" => Activation::Gelu,
            Some(Attr::Str(s)) if s == b"tanh" => Activation::GeluTanh,
            Some(_) => return None,
        },
        "Clip" => {
            let bound = |name: &str, i: usize, default: f32| -> Option<f32> {
                if node.version < 11 {
                    return float(name, default);
                }
                match node.input(i) {
                    None => Some(default),
                    Some(v) => graph.constant(v)?.to_f32s().filter(|v| v.len() == 1).map(|v| v[0]),
                }
            };
            Activation::Clip { lo: bound("min", 1, f32::MIN)?, hi: bound("max", 2, f32::MAX)? }
        }
        _ => return None,
    })
}

/// A node of one operator over some operands, in place of `like`: its name and results.
pub(super) fn node_like(like: &Node, domain: &str, op: &str, version: i64, inputs: Vec<Option<ValueId>>) -> Node {
    beside(like, (domain, op, version), Vec::new(), inputs, vec![like.output(0)])
}

/// A node that does a part of another's work, under its name.
pub(super) fn beside(
    node: &Node,
    (domain, op, version): (&str, &str, i64),
    attrs: Vec<(&str, Attr)>,
    inputs: Vec<Option<ValueId>>,
    outputs: Vec<Option<ValueId>>,
) -> Node {
    Node {
        name: node.name.clone(),
        domain: domain.into(),
        op: op.into(),
        version,
        attrs: attrs.into_iter().map(|(name, a)| (name.to_owned(), a)).collect(),
        inputs,
        outputs,
        bodies: Default::default(),
    }
}

/// A value between the parts of a node's work.
pub(super) fn fresh(graph: &mut Graph, node: &Node, what: &str) -> ValueId {
    graph.add_value(Value { name: format!("{} {what}", node.name), ..Value::default() })
}

/// The elements of a constant `f32` tensor.
pub(super) fn f32s(graph: &Graph, v: Option<ValueId>) -> Option<Vec<f32>> {
    graph.constant(v?)?.to_f32s()
}

/// Adds a constant `f32` tensor.
pub(super) fn constant(graph: &mut Graph, name: &str, dims: &[usize], values: &[f32]) -> ValueId {
    graph.add_constant(name, Tensor::from_f32s(dims, values))
}
