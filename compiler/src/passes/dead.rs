//! Dead and duplicate nodes.

use crate::ir::{Attr, Graph, ValueId};
use crate::ops::{read_ints, view::NodeView};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Removes nodes of which no result is read; results that nobody reads become absent where the operator has others.
pub fn remove_dead(graph: &mut Graph) {
    let mut live: HashSet<ValueId> = graph.outputs.iter().map(|(_, v)| *v).collect();
    let mut kept = Vec::with_capacity(graph.nodes.len());
    for mut node in std::mem::take(&mut graph.nodes).into_iter().rev() {
        // A check of what the user said of a value stays, whether what it finds is wanted or not.
        let checks = node.is_kiln("Expect") || read_ints::is_promised(&node);
        if !checks && !node.outputs.iter().flatten().any(|v| live.contains(v)) {
            continue;
        }
        for output in node.outputs.iter_mut().filter(|_| !checks) {
            if output.is_some_and(|v| !live.contains(&v)) {
                *output = None;
            }
        }
        live.extend(node.inputs.iter().flatten());
        live.extend(node.bodies.values().flat_map(|b| b.captures.iter().map(|(outer, _)| *outer)));
        kept.push(node);
    }
    kept.reverse();
    graph.nodes = kept;
}

/// Takes nodes away that change nothing: expansions, casts and reshapes to what their operand is, slices of all of it,
/// joins of one tensor.
pub(super) fn bypass(graph: &mut Graph) {
    let outputs: HashSet<ValueId> = graph.outputs.iter().map(|(_, v)| *v).collect();
    let mut same = BTreeMap::new();
    for node in &graph.nodes {
        let (Some(x), Some(y)) = (node.input(0), node.output(0)) else { continue };
        let keeps = match node.op.as_str() {
            "Expand" | "Reshape" | "Cast" | "Identity" => true,
            "Concat" => node.inputs.len() == 1,
            "Slice" => crate::ops::slice::steps_forward(&NodeView { graph, node }),
            _ => false,
        };
        let types = (graph.tensor_type(x), graph.tensor_type(y));
        if node.domain.is_empty() && keeps && !outputs.contains(&y) && matches!(types, (Ok(x), Ok(y)) if x == y) {
            // What a bypassed node read may be bypassed itself.
            same.insert(y, *same.get(&x).unwrap_or(&x));
        }
    }
    graph.substitute(&same);
}

/// Equal for nodes that compute the same from the same operands.
pub(super) fn key(node: &crate::ir::Node) -> String {
    let wanted: Vec<bool> = node.outputs.iter().map(Option::is_some).collect();
    format!(
        "{} {} {:?} {:?} {wanted:?}",
        node.full_op(),
        node.version,
        node.inputs,
        node.attrs.iter().map(|(k, a)| format!("{k}={a:?}")).collect::<Vec<_>>()
    )
}

/// Merges nodes that compute the same from the same operands.
pub fn merge_equal(graph: &mut Graph) {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut same: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let nodes = std::mem::take(&mut graph.nodes);
    let mut kept: Vec<crate::ir::Node> = Vec::with_capacity(nodes.len());
    for mut node in nodes {
        for v in node.inputs.iter_mut().flatten() {
            if let Some(first) = same.get(v) {
                *v = *first;
            }
        }
        let pure = node.bodies.is_empty() && crate::ops::find(&node).is_ok_and(|op| op.pure);
        let large = node.attrs.values().any(|a| matches!(a, Attr::Tensor(_) | Attr::Tensors(_)));
        if pure && !large {
            let key = key(&node);
            let same_types = |first: &usize| {
                let pairs = node.outputs.iter().zip(&kept[*first].outputs);
                pairs.into_iter().all(|(a, b)| a.zip(*b).is_none_or(|(a, b)| graph.value(a).ty == graph.value(b).ty))
            };
            // Results with extents of their own have readers whose types name them.
            if let Some(&first) = seen.get(&key).filter(|first| same_types(first)) {
                for (mine, theirs) in node.outputs.iter().zip(kept[first].outputs.clone()) {
                    if let (Some(mine), Some(theirs)) = (mine, theirs) {
                        same.insert(*mine, theirs);
                    }
                }
                continue;
            }
            seen.insert(key, kept.len());
        }
        kept.push(node);
    }
    graph.nodes = kept;
    graph.substitute(&same);
}
