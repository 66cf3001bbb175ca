//! Attention that exporters spell in primitives, after transposes have gone into the products' strides:
//! product, scale, mask, softmax, product become one `kiln.Attention`.
//!
//! Spellings: a scalar factor on the scores or none; a mask added or none; casts to the type there is; zeros for queries
//! that see nothing (`Where(IsNaN(p), 0, p)`). Only where no inner result has another reader.

use super::dead::remove_dead;
use super::rewrite::{Uses, either, scalar};
use crate::ir::{Attr, Dim, Graph, Node, ValueId};
use crate::ops::view::NodeView;
use kiln_kernels::{Activation, Dtype};

/// Replaces every spelling found, in subgraphs too.
pub fn fuse_attention(graph: &mut Graph) {
    let uses = Uses::of(graph);
    for i in 0..graph.nodes.len() {
        if let Some(new) = attention(graph, &uses, &graph.nodes[i]) {
            graph.nodes[i] = new;
        }
    }
    remove_dead(graph);
    for body in graph.nodes.iter_mut().flat_map(|n| n.bodies.values_mut()) {
        fuse_attention(body);
    }
}

/// A product of two computed f32 operands and nothing else, and its permutation of an operand.
fn product<'g>(graph: &'g Graph, node: &'g Node, keeps_order: bool) -> Option<NodeView<'g>> {
    let view = NodeView { graph, node };
    let plain = (node.is("MatMul") || node.is_kiln("MatMul"))
        && node.input(2).is_none()
        && node.input(3).is_none()
        && view.activation() == Activation::None
        && !(keeps_order && node.attrs.contains_key("perm_y"));
    let (a, b) = (view.ty(0).ok()?, view.ty(1).ok()?);
    let fits = a.dtype == Dtype::F32 && a.rank() == b.rank() && matches!(a.rank(), 3 | 4);
    (plain && fits).then_some(view)
}

fn permutation(view: &NodeView<'_>, name: &str) -> Option<Vec<usize>> {
    match view.opt_ints(name).ok()? {
        None => Some((0..view.rank(0).ok()?).collect()),
        Some(p) => p.iter().map(|&a| usize::try_from(a).ok()).collect(),
    }
}

fn permuted(shape: &[Dim], perm: &[usize]) -> Vec<Dim> {
    perm.iter().map(|&a| shape[a].clone()).collect()
}

/// The producer of a value that nobody else reads; casts that change nothing are passed over.
fn made_by<'g>(graph: &'g Graph, uses: &Uses, v: ValueId) -> Option<(ValueId, &'g Node)> {
    let node = &graph.nodes[uses.producer(v).filter(|_| uses.is_single(v))?];
    let x = node.input(0);
    match x {
        Some(x) if node.is("Cast") && graph.tensor_type(x).ok()?.dtype == graph.tensor_type(v).ok()?.dtype => {
            made_by(graph, uses, x)
        }
        _ => Some((v, node)),
    }
}

/// The softmax that makes the probabilities, and whether NaN in them stays (else it becomes zero), as for a query that sees nothing.
fn softmax<'g>(graph: &'g Graph, uses: &Uses, v: ValueId) -> Option<(&'g Node, bool)> {
    let (_, node) = made_by(graph, uses, v)?;
    let (softmax, unseen_nan) = if node.is("Where") {
        let (condition, p) = (node.input(0)?, node.input(2)?);
        let is_nan = &graph.nodes[uses.producer(condition).filter(|_| uses.is_single(condition))?];
        let zeros = is_nan.is("IsNaN") && is_nan.input(0) == Some(p) && uses.count(p) == 2;
        if !zeros || scalar(graph, node.input(1)) != Some(0.0) {
            return None;
        }
        (&graph.nodes[uses.producer(p)?], false)
    } else {
        (node, true)
    };
    let view = NodeView { graph, node: softmax };
    if !softmax.is("Softmax") {
        return None;
    }
    let rank = view.rank(0).ok()?;
    let axis = view.axis("axis", if softmax.version < 13 { 1 } else { -1 }, rank).ok()?;
    (axis + 1 == rank).then_some((softmax, unseen_nan))
}

fn attention(graph: &Graph, uses: &Uses, node: &Node) -> Option<Node> {
    let weighted = product(graph, node, false)?;
    if node.attrs.contains_key("perm_a") {
        return None;
    }
    let (softmax, unseen_nan) = softmax(graph, uses, node.input(0)?)?;
    let (mut at, mut scores) = made_by(graph, uses, softmax.input(0)?)?;
    let shape = &graph.tensor_type(at).ok()?.shape;
    let rank = shape.len();
    let mut mask = None;
    if scores.is("Add") {
        let (made, m) = either(scores, |v| made_by(graph, uses, v).is_some_and(|(_, n)| is_scores(n)))?;
        let ty = graph.tensor_type(m).ok()?;
        // Every axis is the scores' own or broadcast, that of the keys is the scores' own.
        let fits = ty.dtype == Dtype::F32
            && (1..=rank).contains(&ty.rank())
            && ty.shape.last() == shape.last()
            && ty.shape.iter().rev().zip(shape.iter().rev()).all(|(m, s)| m == s || m.is(1));
        if !fits {
            return None;
        }
        mask = Some(m);
        (at, scores) = made_by(graph, uses, made)?;
    }
    let mut scale = 1.0;
    if let Some((x, factor)) = scaled(graph, scores) {
        scale = factor;
        (at, scores) = made_by(graph, uses, x)?;
    }
    let products = product(graph, scores, true)?;
    if &graph.tensor_type(at).ok()?.shape != shape || !scale.is_finite() {
        return None;
    }
    let (perm_q, mut perm_k) = (permutation(&products, "perm_a")?, permutation(&products, "perm_b")?);
    let perm_v = permutation(&weighted, "perm_b")?;
    perm_k.swap(rank - 2, rank - 1);
    let contiguous = |perm: &[usize]| perm.len() == rank && perm[rank - 1] == rank - 1;
    if ![&perm_q, &perm_k, &perm_v].into_iter().all(|p| contiguous(p)) {
        return None;
    }
    let q = permuted(products.shape(0).ok()?, &perm_q);
    let k = permuted(products.shape(1).ok()?, &perm_k);
    let v = permuted(weighted.shape(1).ok()?, &perm_v);
    // No operand is broadcast, and everybody agrees on the numbers of keys and elements.
    if q[..rank - 2] != k[..rank - 2] || k[..rank - 1] != v[..rank - 1] || q[rank - 1] != k[rank - 1] {
        return None;
    }
    let ints = |perm: &[usize]| Attr::Ints(perm.iter().map(|&a| a as i64).collect());
    let mut new = Node {
        domain: "kiln".into(),
        op: "Attention".into(),
        version: 1,
        inputs: vec![products.node.input(0), products.node.input(1), node.input(1), mask],
        ..node.clone()
    };
    new.attrs.retain(|name, _| name == "perm_y");
    let attrs = [("perm_q", ints(&perm_q)), ("perm_k", ints(&perm_k)), ("perm_v", ints(&perm_v))];
    new.attrs.extend(attrs.map(|(name, a)| (name.to_owned(), a)));
    new.attrs.insert("scale".into(), Attr::Float(scale as f32));
    new.attrs.insert("unseen_nan".into(), Attr::Int(i64::from(unseen_nan)));
    Some(new)
}

/// Whether a node may make scores before the mask.
fn is_scores(node: &Node) -> bool {
    node.is("MatMul") || node.is_kiln("MatMul") || node.is("Mul") || node.is("Div")
}

/// The operand of a product or quotient with a constant scalar, and the factor.
fn scaled(graph: &Graph, node: &Node) -> Option<(ValueId, f64)> {
    if node.is("Mul") {
        let (c, x) = either(node, |v| scalar(graph, Some(v)).is_some())?;
        Some((x, scalar(graph, Some(c))?))
    } else if node.is("Div") {
        Some((node.input(0)?, 1.0 / scalar(graph, node.input(1))?))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::passes::testing::{Build, ramp};
    use kiln_kernels::Dtype;

    /// As PyTorch's exporter writes it: heads side by side, moved apart by transposes.
    fn heads(mask: bool, divide: bool, nan_to_zero: bool, read_twice: bool) -> Vec<String> {
        let mut g = Build::default();
        let perm = |p: [i64; 4]| [("perm", Attr::Ints(p.to_vec()))];
        let dims = [2, 9, 3, 8];
        let x = [0; 3].map(|_| g.input(Dtype::F32, &dims));
        let q = g.node("Transpose", &[x[0]], &perm([0, 2, 1, 3]));
        let k = g.node("Transpose", &[x[1]], &perm([0, 2, 3, 1]));
        let v = g.node("Transpose", &[x[2]], &perm([0, 2, 1, 3]));
        let mut s = g.node("MatMul", &[q, k], &[]);
        let c = g.f32s(&[], &[if divide { 2.5 } else { 0.4 }]);
        s = g.node(if divide { "Div" } else { "Mul" }, &[s, c], &[]);
        let mut data = vec![ramp(&dims, 7), ramp(&dims, 5), ramp(&dims, 11)];
        if mask {
            let m = g.input(Dtype::F32, &[2, 1, 9, 9]);
            s = g.node("Add", &[s, m], &[]);
            // A query that sees nothing, and one that sees a part.
            let mut values = ramp(&[2, 1, 9, 9], 13).to_f32s().unwrap();
            values[..9].fill(f32::NEG_INFINITY);
            values[9..13].fill(f32::NEG_INFINITY);
            data.push(Tensor::from_f32s(&[2, 1, 9, 9], &values));
        }
        let mut p = g.node("Softmax", &[s], &[("axis", Attr::Int(-1))]);
        if nan_to_zero {
            let (is_nan, zero) = (g.node("IsNaN", &[p], &[]), g.f32s(&[], &[0.0]));
            p = g.node("Where", &[is_nan, zero, p], &[]);
        }
        let mut y = g.node("MatMul", &[p, v], &[]);
        if read_twice {
            let sum = g.node("ReduceSum", &[p], &[]);
            y = g.node("Add", &[y, sum], &[]);
        }
        let y = g.node("Transpose", &[y], &perm([0, 2, 1, 3]));
        g.operators(y, &data)
    }

    #[test]
    fn spellings_become_one_node() {
        for (mask, divide, nan_to_zero) in [(false, false, false), (true, true, false), (true, false, true)] {
            assert_eq!(heads(mask, divide, nan_to_zero, false), ["kiln.Attention"]);
        }
    }

    #[test]
    fn probabilities_with_another_reader_stay() {
        assert!(heads(false, false, false, true).iter().any(|op| op == "Softmax"));
    }

    #[test]
    fn a_mask_over_few_keys_or_a_softmax_over_queries_stays() {
        for axis in [-1, -2] {
            let mut g = Build::default();
            let [q, k, v] = [0; 3].map(|_| g.input(Dtype::F32, &[2, 5, 8]));
            let k = g.node("Transpose", &[k], &[("perm", Attr::Ints(vec![0, 2, 1]))]);
            let mut s = g.node("MatMul", &[q, k], &[]);
            if axis == -1 {
                let column = g.input(Dtype::F32, &[5, 1]);
                s = g.node("Add", &[s, column], &[]);
            }
            let p = g.node("Softmax", &[s], &[("axis", Attr::Int(axis))]);
            let y = g.node("MatMul", &[p, v], &[]);
            let data = [ramp(&[2, 5, 8], 7), ramp(&[2, 5, 8], 5), ramp(&[2, 5, 8], 3), ramp(&[5, 1], 3)];
            let n = g.0.inputs.len();
            assert!(g.operators(y, &data[..n]).iter().any(|op| op == "Softmax"));
        }
    }
}
