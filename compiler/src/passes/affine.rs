//! Per-channel scales and shifts into the convolution before them: BatchNormalization, Mul and Add with constants.
//!
//! Only where the convolution's result has no other reader and its weights are constant. Computed in f64, rounded once.

use super::rewrite::{Uses, constant, either, f32s};
use crate::ir::{Attr, Graph, Node, ValueId};
use crate::ops::view::NodeView;
use kiln_kernels::Dtype;

/// `y = scale·x + shift`, one pair a channel.
struct Affine {
    scale: Vec<f64>,
    shift: Vec<f64>,
}

/// Folds until nothing changes.
pub(super) fn fold_into_conv(graph: &mut Graph) {
    while fold_once(graph) {}
}

fn fold_once(graph: &mut Graph) -> bool {
    let uses = Uses::of(graph);
    let mut changed = false;
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        let Some((x, affine)) = affine_of(graph, node) else { continue };
        let Some(conv_idx) = uses.producer(x) else { continue };
        let conv = &graph.nodes[conv_idx];
        if !(conv.is("Conv") || conv.is("ConvTranspose")) || !uses.is_single(x) || conv.output(0) != Some(x) {
            continue;
        }
        let Some((weights, bias)) = folded(graph, conv, &affine) else { continue };
        let y = node.output(0);
        let name = conv.name.clone();
        let dims = weights.0;
        let w = constant(graph, &format!("{name} weights"), &dims, &weights.1);
        let b = constant(graph, &format!("{name} bias"), &[bias.len()], &bias);
        let conv = &mut graph.nodes[conv_idx];
        conv.inputs.truncate(2);
        conv.inputs[1] = Some(w);
        conv.inputs.push(Some(b));
        conv.outputs = vec![y];
        // The folded node makes nothing any more.
        graph.nodes[i].outputs = vec![None];
        changed = true;
        break;
    }
    if changed {
        graph.nodes.retain(|n| n.outputs.iter().any(Option::is_some));
    }
    changed
}

fn channels(graph: &Graph, v: ValueId) -> Option<usize> {
    let ty = graph.tensor_type(v).ok()?;
    if ty.dtype != Dtype::F32 || ty.rank() < 3 {
        return None;
    }
    usize::try_from(ty.shape[1].as_const()?).ok()
}

fn affine_of(graph: &Graph, node: &Node) -> Option<(ValueId, Affine)> {
    if node.is("BatchNormalization") {
        let x = node.input(0)?;
        let c = channels(graph, x)?;
        let training = match node.attrs.get("training_mode") {
            Some(Attr::Int(v)) => *v != 0,
            _ => false,
        };
        if training || node.version < 7 || node.outputs.iter().skip(1).any(Option::is_some) {
            return None;
        }
        let epsilon = match node.attrs.get("epsilon") {
            None => 1e-5,
            Some(Attr::Float(e)) => f64::from(*e),
            Some(_) => return None,
        };
        if node.version < 9 && matches!(node.attrs.get("spatial"), Some(Attr::Int(0))) {
            return None;
        }
        let part = |i: usize| f32s(graph, node.input(i)).filter(|v| v.len() == c);
        let (gamma, beta, mean, var) = (part(1)?, part(2)?, part(3)?, part(4)?);
        let scale: Vec<f64> =
            gamma.iter().zip(&var).map(|(g, v)| f64::from(*g) / (f64::from(*v) + epsilon).sqrt()).collect();
        let shift = (0..c).map(|i| f64::from(beta[i]) - f64::from(mean[i]) * scale[i]).collect();
        return Some((x, Affine { scale, shift }));
    }
    let (mul, add) = (node.is("Mul"), node.is("Add"));
    if !mul && !add || node.version < 7 {
        return None;
    }
    let (c_id, x) = either(node, |v| graph.constant(v).is_some())?;
    let c = channels(graph, x)?;
    let rank = graph.tensor_type(x).ok()?.rank();
    let t = graph.constant(c_id)?;
    let per_channel = t.dims().iter().enumerate().all(|(i, d)| *d == 1 || i + rank == t.dims().len() + 1);
    if t.dims().len() > rank || !per_channel {
        return None;
    }
    let values = t.to_f32s().filter(|v| v.len() == c || v.len() == 1)?;
    let value = |i: usize| f64::from(values[if values.len() == 1 { 0 } else { i }]);
    let all = |f: &dyn Fn(usize) -> f64| (0..c).map(f).collect();
    Some((
        x,
        if mul {
            Affine { scale: all(&value), shift: vec![0.0; c] }
        } else {
            Affine { scale: vec![1.0; c], shift: all(&value) }
        },
    ))
}

/// Weights (dims and elements) and bias with the affine map folded in.
fn folded(graph: &Graph, conv: &Node, affine: &Affine) -> Option<((Vec<usize>, Vec<f32>), Vec<f32>)> {
    let w = graph.constant(conv.input(1)?)?;
    let mut weights = w.to_f32s()?;
    let dims = w.dims().to_vec();
    let m = affine.scale.len();
    let bias = match conv.input(2) {
        None => vec![0.0; m],
        b => f32s(graph, b).filter(|b| b.len() == m)?,
    };
    let transposed = conv.is("ConvTranspose");
    let taps: usize = dims[2..].iter().product();
    if transposed {
        let groups = NodeView { graph, node: conv }.int("group", 1).ok().and_then(|g| usize::try_from(g).ok())?;
        let (ic, ocg) = (dims[0], dims[1]);
        if groups == 0 || ic % groups != 0 || ocg * groups != m {
            return None;
        }
        for i in 0..ic {
            for o in 0..ocg {
                let channel = i / (ic / groups) * ocg + o;
                for w in &mut weights[(i * ocg + o) * taps..][..taps] {
                    *w = (f64::from(*w) * affine.scale[channel]) as f32;
                }
            }
        }
    } else {
        if dims[0] != m {
            return None;
        }
        let each = dims[1] * taps;
        for (o, row) in weights.chunks_mut(each.max(1)).enumerate().take(m) {
            for w in row {
                *w = (f64::from(*w) * affine.scale[o]) as f32;
            }
        }
    }
    let bias = (0..m).map(|i| (f64::from(bias[i]) * affine.scale[i] + affine.shift[i]) as f32).collect();
    Some(((dims, weights), bias))
}
