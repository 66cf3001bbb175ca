//! Bias, residual and activation into the convolution or product before them.
//!
//! In order bias, residual, activation, as the kernels apply them. Only where the product has no other reader.

use super::rewrite::{Uses, activation_of, constant, either, f32s};
use crate::ir::{Attr, Graph, Node, ValueId};
use crate::ops::conv::blocked_form;
use crate::ops::view::NodeView;
use kiln_kernels::{Activation, Dtype};

/// Fuses what it finds, in three sweeps.
pub(super) fn fuse(graph: &mut Graph) {
    gemm_to_matmul(graph);
    sweep(graph, bias);
    sweep(graph, residual);
    sweep(graph, activation);
}

/// One fusion: given the product's index and the node behind it, the fused node (it takes the place of that node).
type Fusion = fn(&mut Graph, &Uses, usize, usize) -> Option<Node>;

fn sweep(graph: &mut Graph, fusion: Fusion) {
    loop {
        let uses = Uses::of(graph);
        let mut gone = vec![false; graph.nodes.len()];
        let mut changed = false;
        for i in 0..graph.nodes.len() {
            for slot in 0..graph.nodes[i].inputs.len() {
                let Some(v) = graph.nodes[i].input(slot) else { continue };
                let Some(p) = uses.producer(v) else { continue };
                let usable = !gone[p] && !gone[i] && uses.is_single(v) && is_product(&graph.nodes[p]);
                if !usable || graph.nodes[p].output(0) != Some(v) || !has_f32(graph, v) {
                    continue;
                }
                if let Some(node) = fusion(graph, &uses, p, i) {
                    graph.nodes[i] = node;
                    gone[p] = true;
                    changed = true;
                    break;
                }
            }
        }
        if !changed {
            return;
        }
        let mut gone = gone.into_iter();
        graph.nodes.retain(|_| !gone.next().unwrap_or(false));
    }
}

fn is_product(node: &Node) -> bool {
    ["Conv", "ConvTranspose", "MatMul"].iter().any(|op| node.is(op) || node.is_kiln(op))
}

fn has_f32(graph: &Graph, v: ValueId) -> bool {
    graph.tensor_type(v).is_ok_and(|t| t.dtype == Dtype::F32)
}

/// The fused form of a product, with room for all operands.
fn fused(node: &Node) -> Node {
    let mut node = node.clone();
    node.domain = "kiln".into();
    node.version = 1;
    if node.inputs.len() < 4 {
        node.inputs.resize(4, None);
    }
    node
}

/// A Gemm with unit alpha and beta is a product, its transposes permutations, its C a bias (or an addition).
fn gemm_to_matmul(graph: &mut Graph) {
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        if !node.is("Gemm") {
            continue;
        }
        let view = NodeView { graph, node };
        let unit = |name: &str| view.float(name, 1.0).is_ok_and(|v| v == 1.0);
        let Ok(ty) = view.out_ty(0) else { continue };
        let n = ty.shape[1].clone();
        let row = view
            .opt_ty(2)
            .is_ok_and(|c| c.is_none_or(|c| c.rank() >= 1 && c.shape[c.rank() - 1] == n && c.numel() == n));
        if ty.dtype != Dtype::F32 || !unit("alpha") || !(unit("beta") || node.input(2).is_none()) || !row {
            continue;
        }
        let trans = |name: &str| view.int(name, 0).is_ok_and(|v| v != 0);
        let (ta, tb) = (trans("transA"), trans("transB"));
        let mut new = fused(node);
        new.op = "MatMul".into();
        new.attrs.clear();
        for (yes, name) in [(ta, "perm_a"), (tb, "perm_b")] {
            if yes {
                new.attrs.insert(name.into(), Attr::Ints(vec![1, 0]));
            }
        }
        graph.nodes[i] = new;
    }
}

/// Add of a vector over the last axis (products), or of one constant a channel (convolutions; see also `affine`).
fn bias(graph: &mut Graph, _: &Uses, product: usize, at: usize) -> Option<Node> {
    let node = &graph.nodes[at];
    let p = &graph.nodes[product];
    if !node.is("Add") || p.op != "MatMul" || p.input(2).is_some() || p.input(3).is_some() {
        return None;
    }
    if (NodeView { graph, node: p }).activation() != Activation::None || p.attrs.contains_key("perm_y") {
        return None;
    }
    let y = p.output(0)?;
    let (_, c) = either(node, |v| v == y)?;
    let (ty, out) = (graph.tensor_type(c).ok()?, graph.tensor_type(node.output(0)?).ok()?);
    let (n, y_ty) = (out.shape.last()?.clone(), graph.tensor_type(y).ok()?);
    if ty.rank() == 0 || ty.shape.last() != Some(&n) || ty.numel() != n || y_ty.shape != out.shape || !has_f32(graph, c)
    {
        return None;
    }
    // The bias must exist where the product stands: the product moves to the addition's place, so it does.
    let mut new = fused(p);
    new.inputs[2] = Some(c);
    new.outputs = vec![node.output(0)];
    Some(new)
}

/// Add of a tensor of the result's own shape.
fn residual(graph: &mut Graph, _: &Uses, product: usize, at: usize) -> Option<Node> {
    let node = &graph.nodes[at];
    let p = &graph.nodes[product];
    let view = NodeView { graph, node: p };
    let possible = node.is("Add") && p.op != "ConvTranspose" && p.input(3).is_none() && !p.attrs.contains_key("perm_y");
    if !possible || view.activation() != Activation::None {
        return None;
    }
    if p.op == "Conv" && blocked_form(&view).is_none() && view.rank(0).ok()? > 5 {
        return None;
    }
    let y = p.output(0)?;
    let (_, z) = either(node, |v| v == y)?;
    let same = graph.tensor_type(z).ok()?.shape == graph.tensor_type(y).ok()?.shape;
    if !same || z == y || graph.constant(z).is_some() || !has_f32(graph, z) {
        return None;
    }
    let mut new = fused(p);
    new.inputs[3] = Some(z);
    new.outputs = vec![node.output(0)];
    Some(new)
}

fn activation(graph: &mut Graph, _: &Uses, product: usize, at: usize) -> Option<Node> {
    let node = &graph.nodes[at];
    let activation = activation_of(graph, node)?;
    let p = &graph.nodes[product];
    if (NodeView { graph, node: p }).activation() != Activation::None || node.input(0) != p.output(0) {
        return None;
    }
    let mut new = fused(p);
    if new.op == "ConvTranspose" {
        new.inputs.truncate(3);
    }
    new.attrs.insert("activation".into(), Attr::Activation(activation));
    new.outputs = vec![node.output(0)];
    Some(new)
}

/// Where a product has a constant scalar factor behind or before it and constant weights, the factor goes into the weights.
pub(super) fn fold_scales(graph: &mut Graph) {
    loop {
        let uses = Uses::of(graph);
        let found = (0..graph.nodes.len()).find_map(|i| scale_target(graph, &uses, i));
        let Some((at, product, factor)) = found else { return };
        let p = &graph.nodes[product];
        let name = p.name.clone();
        let (w, b) = (p.input(1), p.input(2));
        let scaled = |values: Vec<f32>| values.into_iter().map(|v| (f64::from(v) * factor) as f32).collect::<Vec<_>>();
        let Some((dims, weights)) = w.and_then(|w| graph.constant(w)).map(|t| (t.dims().to_vec(), t.to_f32s())) else {
            return;
        };
        let Some(weights) = weights else { return };
        let new_w = constant(graph, &format!("{name} weights"), &dims, &scaled(weights));
        let new_b = match b {
            None => None,
            b => {
                let Some(values) = f32s(graph, b) else { return };
                let len = values.len();
                Some(constant(graph, &format!("{name} bias"), &[len], &scaled(values)))
            }
        };
        let y = graph.nodes[at].output(0);
        let p = &mut graph.nodes[product];
        p.inputs[1] = Some(new_w);
        if new_b.is_some() {
            p.inputs[2] = new_b;
        }
        p.outputs = vec![y];
        graph.nodes.remove(at);
    }
}

/// A Mul or Div by a constant behind a product with constant weights and bias: (its index, the product's, the factor).
fn scale_target(graph: &Graph, uses: &Uses, at: usize) -> Option<(usize, usize, f64)> {
    let node = &graph.nodes[at];
    let (x, factor) = if node.is("Mul") {
        let (c, x) = either(node, |v| super::rewrite::scalar(graph, Some(v)).is_some())?;
        (x, super::rewrite::scalar(graph, Some(c))?)
    } else if node.is("Div") {
        (node.input(0)?, 1.0 / super::rewrite::scalar(graph, node.input(1))?)
    } else {
        return None;
    };
    let out = graph.tensor_type(node.output(0)?).ok()?;
    let product = uses.producer(x)?;
    let p = &graph.nodes[product];
    let plain = (p.is("MatMul") || p.is_kiln("MatMul")) && p.input(3).is_none();
    let view = NodeView { graph, node: p };
    let constant = |i: usize| p.input(i).is_none_or(|v| graph.constant(v).is_some());
    let weights = p.input(1).is_some_and(|v| graph.constant(v).is_some());
    let fits = plain
        && uses.is_single(x)
        && has_f32(graph, x)
        && weights
        && constant(2)
        && view.activation() == Activation::None
        && graph.tensor_type(x).ok()?.shape == out.shape
        && factor.is_finite();
    fits.then_some((at, product, factor))
}
