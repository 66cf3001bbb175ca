//! FlexAttention as the operators it is defined by, its modifiers' graphs in between.
//!
//! In: the imported graph, before inference. Out: scores = (Q·√scale)·(K·√scale)ᵀ in the softmax's type, `score_mod`, Softmax,
//! `prob_mod`, times V. Heads of Q that share one of K and V are rows of one product: no K or V is repeated.
//! Source: <https://onnx.ai/onnx/operators/onnx_aionnxpreview_FlexAttention.html>

use crate::ir::{Attr, Dim, Graph, Node, Tensor, Type, Value, ValueId};
use kiln_kernels::Dtype;
use std::collections::BTreeMap;

/// The opset whose forms of the operators are used.
const OPSET: i64 = 21;

/// Expands every such node. What does not fit its definition is left for inference to refuse.
pub(super) fn expand(graph: &mut Graph) {
    let is_flex = |n: &Node| n.domain == "ai.onnx.preview" && n.op == "FlexAttention";
    if !graph.nodes.iter().any(is_flex) {
        return;
    }
    for node in std::mem::take(&mut graph.nodes) {
        if !(is_flex(&node) && expand_node(graph, &node).is_some()) {
            graph.nodes.push(node);
        }
    }
}

/// Adds nodes whose names tell where they come from.
struct Builder<'a> {
    graph: &'a mut Graph,
    origin: &'a str,
}

impl Builder<'_> {
    fn add(&mut self, op: &str, attrs: &[(&str, Attr)], inputs: &[ValueId]) -> ValueId {
        let name = format!("{}/{op}{}", self.origin, self.graph.nodes.len());
        let y = self.graph.add_value(Value { name: name.clone(), ..Value::default() });
        self.graph.nodes.push(Node {
            name,
            domain: String::new(),
            op: op.into(),
            version: OPSET,
            attrs: attrs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(y)],
            bodies: BTreeMap::new(),
        });
        y
    }

    fn ints(&mut self, values: &[i64]) -> ValueId {
        self.graph.add_constant(format!("{}/ints", self.origin), Tensor::from_i64s(&[values.len()], values))
    }

    /// Extents `from..to` of a tensor.
    fn extents(&mut self, x: ValueId, from: i64, to: i64) -> ValueId {
        self.add("Shape", &[("start", Attr::Int(from)), ("end", Attr::Int(to))], &[x])
    }

    /// `x` with the first two extents of `of`, as many rows as that makes, and its own last extent.
    fn grouped(&mut self, x: ValueId, of: ValueId) -> ValueId {
        let (outer, rest, last) = (self.extents(of, 0, 2), self.ints(&[-1]), self.extents(x, 3, 4));
        let shape = self.add("Concat", &[("axis", Attr::Int(0))], &[outer, rest, last]);
        self.add("Reshape", &[], &[x, shape])
    }

    /// `x` with the first three extents of `of`.
    fn apart(&mut self, x: ValueId, of: ValueId) -> ValueId {
        let (outer, rest) = (self.extents(of, 0, 3), self.ints(&[-1]));
        let shape = self.add("Concat", &[("axis", Attr::Int(0))], &[outer, rest]);
        self.add("Reshape", &[], &[x, shape])
    }

    /// The nodes of a body of one input and one output, applied to `x`.
    fn inline(&mut self, body: &Graph, x: ValueId) -> Option<ValueId> {
        let ([input], [(_, output)]) = (&body.inputs[..], &body.outputs[..]) else { return None };
        let mut map: Vec<Option<ValueId>> = vec![None; body.values.len()];
        map[input.0 as usize] = Some(x);
        for (outer, inner) in &body.captures {
            map[inner.0 as usize] = Some(*outer);
        }
        for (slot, value) in map.iter_mut().zip(&body.values) {
            if slot.is_none() {
                *slot = Some(
                    self.graph.add_value(Value { name: format!("{}/{}", self.origin, value.name), ..value.clone() }),
                );
            }
        }
        let outer = |v: ValueId| map.get(v.0 as usize).copied().flatten();
        for node in &body.nodes {
            let mut node = node.clone();
            node.name = format!("{}/{}", self.origin, node.name);
            for v in node.inputs.iter_mut().chain(&mut node.outputs) {
                *v = match *v {
                    Some(v) => Some(outer(v)?),
                    None => None,
                };
            }
            for b in node.bodies.values_mut() {
                for (from, _) in &mut b.captures {
                    *from = outer(*from)?;
                }
            }
            self.graph.nodes.push(node);
        }
        outer(*output)
    }
}

fn expand_node(graph: &mut Graph, node: &Node) -> Option<()> {
    let (q, k, v) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let y = node.output(0)?;
    if node.bodies.values().any(|b| b.inputs.len() != 1 || b.outputs.len() != 1) {
        return None;
    }
    let known = |v: ValueId| match &graph.value(v).ty {
        Some(Type::Tensor(t)) => Some(t.clone()),
        _ => None,
    };
    let dtype = known(q).map(|t| t.dtype);
    let size = known(q).and_then(|t| t.shape.last().and_then(Dim::as_const));
    let softmax_type = match node.attrs.get("softmax_precision") {
        Some(Attr::Int(n)) => Dtype::from_onnx(i32::try_from(*n).ok()?)?,
        _ if dtype == Some(Dtype::F64) => Dtype::F64,
        _ => Dtype::F32,
    };
    let origin = node.name.clone();
    let b = &mut Builder { graph, origin: &origin };
    // √scale, in Q's type.
    let root = match (node.attrs.get("scale"), size) {
        (Some(Attr::Float(s)), _) => b.graph.add_constant("scale", Tensor::from_f32s(&[], &[s.sqrt()])),
        (None, Some(size)) => {
            let scale = (1.0 / (size as f64).sqrt()) as f32;
            b.graph.add_constant("scale", Tensor::from_f32s(&[], &[scale.sqrt()]))
        }
        _ => {
            let size = b.extents(q, 3, 4);
            let size = b.add("Cast", &[("to", Attr::Int(1))], &[size]);
            let root = b.add("Sqrt", &[], &[size]);
            let root = b.add("Sqrt", &[], &[root]);
            b.add("Reciprocal", &[], &[root])
        }
    };
    let root = b.add("CastLike", &[], &[root, q]);
    let (scaled_q, scaled_k) = (b.add("Mul", &[], &[q, root]), b.add("Mul", &[], &[k, root]));
    let k_t = b.add("Transpose", &[("perm", Attr::Ints(vec![0, 1, 3, 2]))], &[scaled_k]);
    let rows = b.grouped(scaled_q, k);
    let scores = b.add("MatMul", &[], &[rows, k_t]);
    let scores = b.apart(scores, q);
    let to = ("to", Attr::Int(i64::from(softmax_type.to_onnx())));
    let mut scores = b.add("Cast", std::slice::from_ref(&to), &[scores]);
    if let Some(body) = node.bodies.get("score_mod") {
        scores = b.inline(body, scores)?;
    }
    let mut probs = b.add("Softmax", &[("axis", Attr::Int(-1))], &[scores]);
    if let Some(body) = node.bodies.get("prob_mod") {
        probs = b.inline(body, probs)?;
    }
    let wide_v = b.add("Cast", &[to], &[v]);
    let rows = b.grouped(probs, v);
    let sums = b.add("MatMul", &[], &[rows, wide_v]);
    let sums = b.apart(sums, q);
    let last = b.add("CastLike", &[], &[sums, v]);
    // The last node makes the operator's own result.
    let made = b.graph.nodes.last_mut()?;
    debug_assert_eq!(made.outputs, [Some(last)]);
    made.outputs = vec![Some(y)];
    made.name = origin.clone();
    Some(())
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn equals_attention_without_modifiers() {
        let ramp = |dims: &[usize], step: usize| {
            let n: usize = dims.iter().product();
            Tensor::from_f32s(dims, &(0..n).map(|i| ((i * step) % 13) as f32 * 0.1 - 0.6).collect::<Vec<_>>())
        };
        let (q, k, v) = (ramp(&[2, 4, 3, 8], 5), ramp(&[2, 2, 5, 8], 7), ramp(&[2, 2, 5, 6], 3));
        let node = |domain: &str, op: &str, version| {
            let c = case(domain, op, version).input(q.clone()).input(k.clone()).input(v.clone());
            c.attr("scale", Attr::Float(0.7)).run_f32()
        };
        let (flex, plain) = (node("ai.onnx.preview", "FlexAttention", 1), node("", "Attention", 23));
        assert!(flex.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-5), "{flex:?} {plain:?}");
    }
}
