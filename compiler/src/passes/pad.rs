//! Pad with zeros into the convolution behind it.
//!
//! Only non-negative amounts on spatial axes, mode constant with value zero, and explicit padding at the convolution.
//! (Not into pools: their padding never wins or is not counted.)

use super::rewrite::{Uses, scalar};
use crate::ir::{Attr, Graph, Node, ValueId};
use crate::ops::view::NodeView;

/// Moves the padding.
pub(super) fn into_conv(graph: &mut Graph) {
    let uses = Uses::of(graph);
    for i in 0..graph.nodes.len() {
        if !graph.nodes[i].is("Conv") {
            continue;
        }
        let Some(v) = graph.nodes[i].input(0) else { continue };
        let Some(p) = uses.producer(v) else { continue };
        let Some((x, begin, end)) = zero_pad(graph, &graph.nodes[p]) else { continue };
        let view = NodeView { graph, node: &graph.nodes[i] };
        let n = begin.len();
        let explicit = view.text("auto_pad", "NOTSET").is_ok_and(|t| t == "NOTSET" || t.is_empty());
        let Ok(old) = view.opt_ints("pads") else { continue };
        let old = old.map_or_else(|| vec![0; 2 * n], <[i64]>::to_vec);
        if !explicit || old.len() != 2 * n {
            continue;
        }
        let pads = (0..2 * n).map(|a| old[a] + if a < n { begin[a] } else { end[a - n] }).collect();
        let node = &mut graph.nodes[i];
        node.inputs[0] = Some(x);
        node.attrs.insert("pads".into(), Attr::Ints(pads));
    }
}

/// A Pad node's operand and its spatial padding, if it pads with zeros there only.
fn zero_pad(graph: &Graph, node: &Node) -> Option<(ValueId, Vec<i64>, Vec<i64>)> {
    if !node.is("Pad") {
        return None;
    }
    let view = NodeView { graph, node };
    let x = node.input(0)?;
    let rank = view.rank(0).ok()?;
    if rank < 3 || view.text("mode", "constant").ok()? != "constant" {
        return None;
    }
    let (amounts, value) = if node.version < 11 {
        let pads = view.opt_ints("pads").ok()?.or(view.opt_ints("paddings").ok()?)?;
        (pads.to_vec(), f64::from(view.float("value", 0.0).ok()?))
    } else {
        let value = if view.has(2) { scalar(graph, node.input(2))? } else { 0.0 };
        (view.const_ints(1)?, value)
    };
    let axes: Vec<usize> = match view.has(3) {
        true => crate::ops::view::resolve_axes(&view.const_ints(3)?, rank).ok()?,
        false => (0..rank).collect(),
    };
    if value != 0.0 || amounts.len() != 2 * axes.len() || amounts.iter().any(|&a| a < 0) {
        return None;
    }
    let (mut begin, mut end) = (vec![0; rank], vec![0; rank]);
    for (i, &a) in axes.iter().enumerate() {
        begin[a] = amounts[i];
        end[a] = amounts[i + axes.len()];
    }
    if begin[..2].iter().chain(&end[..2]).any(|&a| a != 0) {
        return None;
    }
    Some((x, begin[2..].to_vec(), end[2..].to_vec()))
}
