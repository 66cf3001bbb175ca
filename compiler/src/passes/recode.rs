//! Signed activations as unsigned ones: codes and zero points 128 higher, bits flipped.
//!
//! In: the graph after the quantised patterns were fused. Out: every activation of `i8` whose maker and readers know its
//! zero point is `u8`, with the same values. The dot products of x86 take one unsigned operand: activations that are
//! unsigned in memory are read in place.

use crate::ir::{Attr, Graph, Node, Tensor, Type, ValueId};
use kiln_kernels::Dtype;
use std::collections::HashSet;
use std::sync::Arc;

/// One quantised operand or result of a node: the position of its zero point, if the node has one.
struct Place {
    value: ValueId,
    /// Position of the zero point among the operands, and of its scale.
    zero: Option<(usize, usize)>,
}

/// What a node does with codes.
struct Role {
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    /// All of its activations must have one type.
    alike: bool,
}

/// Which operands and results of a node are activations in codes; `None` where the node takes codes as plain numbers.
fn role(node: &Node) -> Option<Role> {
    let input =
        |i: usize, zero: usize, scale: usize| node.input(i).map(|value| Place { value, zero: Some((zero, scale)) });
    let output = |zero: usize, scale: usize| node.output(0).map(|value| Place { value, zero: Some((zero, scale)) });
    let role = |inputs: Vec<Option<Place>>, outputs: Vec<Option<Place>>, alike| {
        Some(Role {
            inputs: inputs.into_iter().flatten().collect(),
            outputs: outputs.into_iter().flatten().collect(),
            alike,
        })
    };
    match (node.domain.as_str(), node.op.as_str()) {
        ("", "QuantizeLinear") => role(vec![], vec![output(2, 1)], false),
        ("", "DequantizeLinear") => role(vec![input(0, 2, 1)], vec![], false),
        ("" | "kiln", "QLinearConv" | "QLinearMatMul") => role(vec![input(0, 2, 1)], vec![output(7, 6)], false),
        ("com.microsoft", "QGemm") => {
            role(vec![input(0, 2, 1)], if node.input(7).is_some() { vec![output(8, 7)] } else { vec![] }, false)
        }
        ("com.microsoft", "MatMulIntegerToFloat") => role(vec![input(0, 4, 2)], vec![], false),
        ("com.microsoft", "QLinearAdd" | "QLinearMul") => {
            role(vec![input(0, 2, 1), input(3, 5, 4)], vec![output(7, 6)], true)
        }
        ("com.microsoft", "QLinearGlobalAveragePool") => role(vec![input(0, 2, 1)], vec![output(4, 3)], true),
        ("com.microsoft", "QLinearConcat") => {
            let parts = (2..node.inputs.len()).step_by(3).map(|i| input(i, i + 2, i + 1)).collect();
            role(parts, vec![output(1, 0)], true)
        }
        ("kiln", "CodeTable") => {
            let plain = |v: Option<ValueId>| v.map(|value| Place { value, zero: None });
            role(vec![plain(node.input(0))], vec![plain(node.output(0))], false)
        }
        // Order and place of codes do not depend on where they start.
        (
            "",
            "MaxPool" | "Reshape" | "Flatten" | "Transpose" | "Squeeze" | "Unsqueeze" | "Identity" | "Slice" | "Gather"
            | "Expand" | "Tile" | "DepthToSpace" | "SpaceToDepth",
        ) => {
            let plain = |v: Option<ValueId>| v.map(|value| Place { value, zero: None });
            role(vec![plain(node.input(0))], vec![plain(node.output(0))], true)
        }
        _ => None,
    }
}

/// Recodes what can be.
pub(super) fn to_unsigned(graph: &mut Graph) {
    let roles: Vec<Option<Role>> = graph.nodes.iter().map(role).collect();
    let recoded = candidates(graph, &roles);
    if recoded.is_empty() {
        return;
    }
    for (i, role) in roles.iter().enumerate() {
        let Some(role) = role else { continue };
        let reads = role.inputs.iter().any(|p| recoded.contains(&p.value));
        let makes = role.outputs.iter().any(|p| recoded.contains(&p.value));
        for place in role.inputs.iter().chain(&role.outputs).filter(|p| recoded.contains(&p.value)) {
            if let Some((zero, scale)) = place.zero {
                shift_zero(graph, i, zero, scale);
            }
        }
        let node = &mut graph.nodes[i];
        if node.op == "CodeTable" {
            shift_table(node, reads, makes);
        }
        if makes {
            node.attrs.remove("output_dtype");
            for name in ["least", "greatest"] {
                if let Some(Attr::Int(v)) = node.attrs.get_mut(name) {
                    *v += 128;
                }
            }
        }
    }
    for &v in &recoded {
        if let Some(Type::Tensor(t)) = &mut graph.value_mut(v).ty {
            t.dtype = Dtype::U8;
        }
    }
}

/// The activations that everyone who touches them can take as `u8`.
fn candidates(graph: &Graph, roles: &[Option<Role>]) -> HashSet<ValueId> {
    let signed = |v: ValueId| graph.tensor_type(v).is_ok_and(|t| t.dtype == Dtype::I8);
    let mut set: HashSet<ValueId> = roles
        .iter()
        .flatten()
        .flat_map(|r| r.outputs.iter().map(|p| p.value))
        .filter(|&v| signed(v) && graph.constant(v).is_none())
        .collect();
    for (_, v) in &graph.outputs {
        set.remove(v);
    }
    for (node, role) in graph.nodes.iter().zip(roles) {
        let known: Vec<ValueId> =
            role.iter().flat_map(|r| r.inputs.iter().chain(&r.outputs)).map(|p| p.value).collect();
        for v in node.inputs.iter().chain(&node.outputs).flatten() {
            let times = node.inputs.iter().chain(&node.outputs).flatten().filter(|&w| w == v).count();
            if times != known.iter().filter(|&k| k == v).count() {
                set.remove(v);
            }
        }
        for (outer, _) in node.bodies.values().flat_map(|b| &b.captures) {
            set.remove(outer);
        }
        for place in role.iter().flat_map(|r| r.inputs.iter().chain(&r.outputs)) {
            if place.zero.is_some_and(|(zero, scale)| !one_constant(graph, node, zero, scale)) {
                set.remove(&place.value);
            }
        }
    }
    // Those that must be alike fall together.
    loop {
        let before = set.len();
        for role in roles.iter().flatten().filter(|r| r.alike) {
            let all: Vec<ValueId> = role.inputs.iter().chain(&role.outputs).map(|p| p.value).collect();
            if !all.iter().all(|v| set.contains(v)) {
                all.iter().for_each(|v| {
                    set.remove(v);
                });
            }
        }
        if set.len() == before {
            return set;
        }
    }
}

/// Whether a zero point is one constant, or absent beside one scale.
fn one_constant(graph: &Graph, node: &Node, zero: usize, scale: usize) -> bool {
    let one = |v: ValueId| graph.constant(v).is_some_and(|t| t.numel() == 1);
    node.input(scale).is_some_and(one) && node.input(zero).is_none_or(one)
}

/// Raises the zero point of a node by 128.
fn shift_zero(graph: &mut Graph, node: usize, zero: usize, scale: usize) {
    let old = graph.nodes[node].input(zero).and_then(|v| graph.constant(v)).cloned();
    let byte = old.as_ref().and_then(|t| t.data().first().copied()).unwrap_or(0) ^ 0x80;
    let dims = match &old {
        Some(t) => t.dims().to_vec(),
        None => {
            let scale = graph.nodes[node].input(scale).and_then(|v| graph.constant(v));
            scale.map_or_else(Vec::new, |t| t.dims().to_vec())
        }
    };
    let Some(tensor) = Tensor::new(Dtype::U8, dims, vec![byte].into()) else { return };
    let name = format!("{}/zero{zero}", graph.nodes[node].name);
    let id = graph.add_constant(name, tensor);
    let inputs = &mut graph.nodes[node].inputs;
    if inputs.len() <= zero {
        inputs.resize(zero + 1, None);
    }
    inputs[zero] = Some(id);
}

/// A table over flipped codes, of flipped codes.
fn shift_table(node: &mut Node, reads: bool, makes: bool) {
    let Some(Attr::Tensor(table)) = node.attrs.get("table") else { return };
    let entry = |i: usize| table.data()[if reads { i ^ 0x80 } else { i }] ^ if makes { 0x80 } else { 0 };
    let bytes: Vec<u8> = (0..table.data().len()).map(entry).collect();
    let dtype = if makes { Dtype::U8 } else { table.dtype() };
    if let Some(new) = Tensor::new(dtype, table.dims().to_vec(), bytes.into()) {
        node.attrs.insert("table".into(), Attr::Tensor(Arc::new(new)));
    }
}
