//! Operators that exporters spell in primitives: SiLU, HardSwish, GELU (both spellings), LayerNormalization.
//!
//! A spelling is replaced only where its inner results have no other reader.

use super::rewrite::{Uses, either, is_scalar, node_like, scalar};
use crate::ir::{Attr, Graph, Node, ValueId};
use kiln_kernels::Dtype;

/// Replaces every spelling found.
pub(super) fn recognise(graph: &mut Graph) {
    let uses = Uses::of(graph);
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        let found = silu(graph, &uses, node)
            .or_else(|| hard_swish(graph, &uses, node))
            .or_else(|| gelu(graph, &uses, node))
            .or_else(|| gelu_tanh(graph, &uses, node))
            .or_else(|| layer_norm(graph, &uses, node));
        if let Some(new) = found {
            graph.nodes[i] = new;
        }
    }
}

fn is_f32(graph: &Graph, v: ValueId) -> bool {
    graph.tensor_type(v).is_ok_and(|t| t.dtype == Dtype::F32)
}

/// The node that makes a value, if it is this operator and nobody else reads the value.
fn made_by<'g>(graph: &'g Graph, uses: &Uses, v: ValueId, op: &str) -> Option<&'g Node> {
    let node = &graph.nodes[uses.producer(v)?];
    (node.is(op) && uses.is_single(v) && is_f32(graph, v)).then_some(node)
}

/// `x · sigmoid(x)`
fn silu(graph: &Graph, uses: &Uses, node: &Node) -> Option<Node> {
    if !node.is("Mul") {
        return None;
    }
    let (s, x) = either(node, |v| made_by(graph, uses, v, "Sigmoid").is_some())?;
    (made_by(graph, uses, s, "Sigmoid")?.input(0)? == x).then(|| node_like(node, "", "Swish", 24, vec![Some(x)]))
}

/// `x · hardsigmoid(x)` with slope 1/6, and `x · clip(x + 3, 0, 6) / 6`
fn hard_swish(graph: &Graph, uses: &Uses, node: &Node) -> Option<Node> {
    let new = |x: ValueId| Some(node_like(node, "", "HardSwish", 14, vec![Some(x)]));
    if node.is("Mul") {
        if let Some((s, x)) = either(node, |v| made_by(graph, uses, v, "HardSigmoid").is_some()) {
            let h = made_by(graph, uses, s, "HardSigmoid")?;
            let alpha = match h.attrs.get("alpha") {
                Some(Attr::Float(a)) => f64::from(*a),
                _ => 0.2,
            };
            let beta = match h.attrs.get("beta") {
                Some(Attr::Float(b)) => f64::from(*b),
                _ => 0.5,
            };
            let exact = (alpha - 1.0 / 6.0).abs() < 1e-6 && beta == 0.5;
            return if h.input(0)? == x && exact { new(x) } else { None };
        }
        // x · (clip / 6)
        let (d, x) = either(node, |v| made_by(graph, uses, v, "Div").is_some())?;
        let div = made_by(graph, uses, d, "Div")?;
        return if is_scalar(graph, div.input(1), 6.0) && shifted_clip(graph, uses, div.input(0)?)? == x {
            new(x)
        } else {
            None
        };
    }
    if node.is("Div") && is_scalar(graph, node.input(1), 6.0) {
        let mul = made_by(graph, uses, node.input(0)?, "Mul")?;
        let (c, x) = either(mul, |v| shifted_clip(graph, uses, v).is_some())?;
        return if shifted_clip(graph, uses, c)? == x { new(x) } else { None };
    }
    None
}

/// The x of `clip(x + 3, 0, 6)`.
fn shifted_clip(graph: &Graph, uses: &Uses, v: ValueId) -> Option<ValueId> {
    let clip = made_by(graph, uses, v, "Clip")?;
    let kiln_kernels::Activation::Clip { lo, hi } = super::rewrite::activation_of(graph, clip)? else { return None };
    if lo != 0.0 || hi != 6.0 {
        return None;
    }
    let add = made_by(graph, uses, clip.input(0)?, "Add")?;
    let (_, x) = either(add, |v| is_scalar(graph, Some(v), 3.0))?;
    Some(x)
}

/// Peels constant factors off a product: (product of the constants, the other operand).
fn scaled(graph: &Graph, uses: &Uses, v: ValueId) -> (f64, ValueId) {
    let Some(mul) = made_by(graph, uses, v, "Mul") else { return (1.0, v) };
    match either(mul, |v| scalar(graph, Some(v)).is_some()) {
        Some((c, x)) => {
            let (inner, x) = scaled(graph, uses, x);
            (scalar(graph, Some(c)).unwrap_or(1.0) * inner, x)
        }
        None => (1.0, v),
    }
}

/// A product of nothing but constants and x: (product of the constants, how often x stands in it).
fn power_of(graph: &Graph, uses: &Uses, v: ValueId, x: ValueId) -> Option<(f64, u32)> {
    if v == x {
        return Some((1.0, 1));
    }
    if let Some(c) = scalar(graph, Some(v)) {
        return Some((c, 0));
    }
    let mul = made_by(graph, uses, v, "Mul")?;
    let (a, b) = (power_of(graph, uses, mul.input(0)?, x)?, power_of(graph, uses, mul.input(1)?, x)?);
    Some((a.0 * b.0, a.1 + b.1))
}

/// `x · 0.5 · (1 + erf(x / √2))`, the factors in any order.
fn gelu(graph: &Graph, uses: &Uses, node: &Node) -> Option<Node> {
    let (x, tail) = half_product(graph, uses, node)?;
    let add = made_by(graph, uses, tail, "Add")?;
    let (_, erf) = either(add, |v| is_scalar(graph, Some(v), 1.0))?;
    let erf = made_by(graph, uses, erf, "Erf")?;
    let arg = erf.input(0)?;
    let matches = if let Some(div) = made_by(graph, uses, arg, "Div") {
        div.input(0)? == x && is_scalar(graph, div.input(1), std::f64::consts::SQRT_2)
    } else {
        let mul = made_by(graph, uses, arg, "Mul")?;
        let (_, inner) = either(mul, |v| is_scalar(graph, Some(v), std::f64::consts::FRAC_1_SQRT_2))?;
        inner == x
    };
    matches.then(|| node_like(node, "", "Gelu", 20, vec![Some(x)]))
}

/// `x · 0.5 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`
fn gelu_tanh(graph: &Graph, uses: &Uses, node: &Node) -> Option<Node> {
    let (x, tail) = half_product(graph, uses, node)?;
    let add = made_by(graph, uses, tail, "Add")?;
    let (_, tanh) = either(add, |v| is_scalar(graph, Some(v), 1.0))?;
    let tanh = made_by(graph, uses, tanh, "Tanh")?;
    let (c, sum) = scaled(graph, uses, tanh.input(0)?);
    if (c - (2.0 / std::f64::consts::PI).sqrt()).abs() > 1e-4 {
        return None;
    }
    let sum = made_by(graph, uses, sum, "Add")?;
    let (cubic, _) = either(sum, |v| v != x).filter(|(_, other)| *other == x)?;
    let (c, cube) = scaled(graph, uses, cubic);
    let is_cube =
        made_by(graph, uses, cube, "Pow").is_some_and(|p| p.input(0) == Some(x) && is_scalar(graph, p.input(1), 3.0));
    // Or a product of x three times and the constant, in any order.
    let c = if is_cube { Some(c) } else { power_of(graph, uses, cubic, x).filter(|p| p.1 == 3).map(|p| p.0) };
    if c.is_none_or(|c| (c - 0.044715).abs() > 1e-5) {
        return None;
    }
    let mut new = node_like(node, "", "Gelu", 20, vec![Some(x)]);
    new.attrs.insert("approximate".into(), Attr::Str(b"tanh".to_vec()));
    Some(new)
}

/// A product of x, 0.5 and one more factor, whose order exporters choose: (x, the other factor).
fn half_product(graph: &Graph, uses: &Uses, node: &Node) -> Option<(ValueId, ValueId)> {
    if !node.is("Mul") {
        return None;
    }
    let tail_like = |v: ValueId| made_by(graph, uses, v, "Add").is_some();
    // 0.5 · (x · tail)
    if let Some((_, p)) = either(node, |v| is_scalar(graph, Some(v), 0.5)) {
        let inner = made_by(graph, uses, p, "Mul")?;
        let (tail, x) = either(inner, tail_like)?;
        return Some((x, tail));
    }
    // (0.5 · x) · tail, or x · (0.5 · tail)
    for (half, other) in [(node.input(0)?, node.input(1)?), (node.input(1)?, node.input(0)?)] {
        let Some(mul) = made_by(graph, uses, half, "Mul") else { continue };
        let Some((_, inner)) = either(mul, |v| is_scalar(graph, Some(v), 0.5)) else { continue };
        if tail_like(other) {
            return Some((inner, other));
        }
        if tail_like(inner) {
            return Some((other, inner));
        }
    }
    None
}

/// `(x - mean) / sqrt(var + eps) · gamma + beta` over the last axis, as PyTorch's and TensorFlow's exporters write it.
fn layer_norm(graph: &Graph, uses: &Uses, node: &Node) -> Option<Node> {
    if !node.is("Add") {
        return None;
    }
    let (beta, scaled) = either(node, |v| graph.constant(v).is_some())?;
    let mul = made_by(graph, uses, scaled, "Mul")?;
    let (gamma, normal) = either(mul, |v| graph.constant(v).is_some())?;
    let div = made_by(graph, uses, normal, "Div")?;
    let centred = div.input(0)?;
    let sub = &graph.nodes[uses.producer(centred)?];
    if !sub.is("Sub") || uses.count(centred) > 3 {
        return None;
    }
    let x = sub.input(0)?;
    let mean = made_by(graph, uses, sub.input(1)?, "ReduceMean")?;
    let root = made_by(graph, uses, div.input(1)?, "Sqrt")?;
    let sum = made_by(graph, uses, root.input(0)?, "Add")?;
    let (epsilon, var) = either(sum, |v| scalar(graph, Some(v)).is_some())?;
    let var = made_by(graph, uses, var, "ReduceMean")?;
    let square = &graph.nodes[uses.producer(var.input(0)?)?];
    let of_centred = |v: Option<ValueId>| {
        v == Some(centred)
            // Some exporters subtract twice.
            || v.and_then(|v| uses.producer(v)).is_some_and(|i| {
                let s = &graph.nodes[i];
                s.is("Sub") && s.input(0) == Some(x) && s.input(1) == sub.input(1)
            })
    };
    let squared = (square.is("Pow") && of_centred(square.input(0)) && is_scalar(graph, square.input(1), 2.0))
        || (square.is("Mul") && of_centred(square.input(0)) && of_centred(square.input(1)));
    let rank = graph.tensor_type(x).ok()?.rank();
    let last = |n: &Node| {
        let view = crate::ops::view::NodeView { graph, node: n };
        let axes = view.opt_ints("axes").ok().flatten().map(<[i64]>::to_vec).or_else(|| view.const_ints(1));
        let keep = view.int("keepdims", 1).is_ok_and(|k| k != 0);
        keep && axes.is_some_and(|a| a == [-1] || a == [rank as i64 - 1])
    };
    let vector = |v: ValueId| {
        let n = graph.tensor_type(x).ok().and_then(|t| t.shape.last().cloned());
        graph.tensor_type(v).is_ok_and(|t| t.rank() == 1 && Some(&t.shape[0]) == n.as_ref())
    };
    if mean.input(0) != Some(x)
        || !squared
        || !last(mean)
        || !last(var)
        || !vector(gamma)
        || !vector(beta)
        || !is_f32(graph, x)
    {
        return None;
    }
    let epsilon = scalar(graph, Some(epsilon))?;
    let mut new = node_like(node, "", "LayerNormalization", 17, vec![Some(x), Some(gamma), Some(beta)]);
    new.attrs.insert("epsilon".into(), Attr::Float(epsilon as f32));
    new.attrs.insert("axis".into(), Attr::Int(-1));
    Some(new)
}
