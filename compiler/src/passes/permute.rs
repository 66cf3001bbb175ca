//! Transposes into the products beside them, as strides of operands or result; and chains of transposes into one.

use super::rewrite::Uses;
use crate::ir::{Attr, Graph, Node, ValueId};
use crate::ops::view::NodeView;
use kiln_kernels::Dtype;

fn perm_of(graph: &Graph, node: &Node) -> Option<Vec<usize>> {
    if !node.is("Transpose") {
        return None;
    }
    crate::ops::transpose::permutation(&NodeView { graph, node }).ok()
}

fn ints(perm: &[usize]) -> Attr {
    Attr::Ints(perm.iter().map(|&a| a as i64).collect())
}

/// Two transposes in a row become one; one that undoes another leaves the value itself.
pub(super) fn merge_chains(graph: &mut Graph) {
    let uses = Uses::of(graph);
    let mut same = std::collections::BTreeMap::new();
    for i in 0..graph.nodes.len() {
        let Some(second) = perm_of(graph, &graph.nodes[i]) else { continue };
        let Some(x) = graph.nodes[i].input(0) else { continue };
        let Some(first_idx) = uses.producer(x) else { continue };
        let first = &graph.nodes[first_idx];
        let Some(first_perm) = perm_of(graph, first) else { continue };
        let perm: Vec<usize> = second.iter().map(|&a| first_perm[a]).collect();
        let source = first.input(0);
        if perm.is_sorted() {
            if let (Some(y), Some(x)) = (graph.nodes[i].output(0), source) {
                same.insert(y, x);
            }
            continue;
        }
        graph.nodes[i].inputs[0] = source;
        graph.nodes[i].attrs.insert("perm".into(), ints(&perm));
    }
    graph.substitute(&same);
}

/// Moves transposes before and behind products into their strides.
pub(super) fn into_products(graph: &mut Graph) {
    let uses = Uses::of(graph);
    for i in 0..graph.nodes.len() {
        for (slot, attr) in [(0, "perm_a"), (1, "perm_b")] {
            operand(graph, &uses, i, slot, attr);
        }
    }
    let uses = Uses::of(graph);
    for i in 0..graph.nodes.len() {
        result(graph, &uses, i);
    }
}

fn is_product(graph: &Graph, node: &Node) -> bool {
    let f32_result = node.output(0).is_some_and(|v| graph.tensor_type(v).is_ok_and(|t| t.dtype == Dtype::F32));
    (node.is("MatMul") || node.is_kiln("MatMul")) && f32_result
}

fn into_kiln(node: &mut Node) {
    if node.domain.is_empty() {
        node.domain = "kiln".into();
        node.version = 1;
    }
}

fn operand(graph: &mut Graph, uses: &Uses, i: usize, slot: usize, attr: &str) {
    let node = &graph.nodes[i];
    if !is_product(graph, node) || node.attrs.contains_key(attr) {
        return;
    }
    let Some(v) = node.input(slot) else { return };
    let Some(t) = uses.producer(v).map(|p| &graph.nodes[p]) else { return };
    let Some(perm) = perm_of(graph, t) else { return };
    let Some(x) = t.input(0) else { return };
    let last = perm.len().wrapping_sub(1);
    if perm.len() < 2 {
        return;
    }
    // The kernel reads rows of A, and rows or columns of B, with unit steps.
    let direct = perm[last] == last || (slot == 1 && perm[last - 1] == last);
    if !direct || graph.constant(x).is_some() {
        return;
    }
    let node = &mut graph.nodes[i];
    into_kiln(node);
    node.inputs[slot] = Some(x);
    node.attrs.insert(attr.into(), ints(&perm));
}

fn result(graph: &mut Graph, uses: &Uses, i: usize) {
    let node = &graph.nodes[i];
    let Some(perm) = perm_of(graph, node) else { return };
    let Some(v) = node.input(0) else { return };
    let Some(p) = uses.producer(v) else { return };
    let product = &graph.nodes[p];
    let fits = is_product(graph, product)
        && uses.is_single(v)
        && product.input(3).is_none()
        && !product.attrs.contains_key("perm_y")
        && perm.last().is_some_and(|&a| a + 1 == perm.len())
        && !is_vector_product(graph, product);
    if !fits {
        return;
    }
    let y: Option<ValueId> = node.output(0);
    let product = &mut graph.nodes[p];
    into_kiln(product);
    product.attrs.insert("perm_y".into(), ints(&perm));
    product.outputs = vec![y];
    graph.nodes[i].outputs = vec![None];
}

fn is_vector_product(graph: &Graph, node: &Node) -> bool {
    (0..2).any(|s| node.input(s).is_some_and(|v| graph.tensor_type(v).is_ok_and(|t| t.rank() < 2)))
}
