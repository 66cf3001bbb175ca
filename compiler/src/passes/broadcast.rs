//! Expansions into readers that broadcast by themselves: the larger copy is never made.

use super::rewrite::Uses;
use crate::ir::{Graph, Node, TensorType, ValueId};

/// Element by element, with operands that broadcast against each other.
fn broadcasts(node: &Node) -> bool {
    const OPS: [&str; 19] = [
        "Add",
        "And",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Max",
        "Mean",
        "Min",
        "Mod",
        "Mul",
        "Or",
        "Pow",
        "Sub",
        "Sum",
        "Where",
        "Xor",
    ];
    node.domain.is_empty() && OPS.contains(&node.op.as_str())
}

/// Lets such readers have what was expanded, where another operand gives the result its extents.
pub(super) fn into_readers(graph: &mut Graph) {
    let uses = Uses::of(graph);
    let fixed = |graph: &Graph, v: ValueId| graph.tensor_type(v).ok().filter(|t| t.const_dims().is_some()).cloned();
    for i in 0..graph.nodes.len() {
        if !broadcasts(&graph.nodes[i]) {
            continue;
        }
        let Some(y) = graph.nodes[i].output(0).and_then(|y| fixed(graph, y)) else { continue };
        for slot in 0..graph.nodes[i].inputs.len() {
            let node = &graph.nodes[i];
            let source = |v: ValueId| {
                let expand = uses.producer(v).map(|p| &graph.nodes[p]).filter(|n| n.is("Expand"))?;
                expand.input(0)
            };
            let Some(x) = node.input(slot).and_then(source) else { continue };
            let whole = |t: TensorType| t.shape == y.shape;
            let others = (0..node.inputs.len()).filter(|&s| s != slot).filter_map(|s| node.input(s));
            if fixed(graph, x).is_some() && others.filter_map(|v| fixed(graph, v)).any(whole) {
                graph.nodes[i].inputs[slot] = Some(x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Build;
    use crate::ir::Tensor;
    use kiln_kernels::Dtype;

    #[test]
    fn an_expansion_goes_into_its_reader_where_the_result_keeps_its_extents() {
        let built = |other_is_expanded: bool| {
            let mut b = Build::default();
            let (x, scale) = (b.input(Dtype::F32, &[2, 3]), b.input(Dtype::F32, &[2, 1]));
            let shape = b.0.add_constant("shape", Tensor::from_i64s(&[2], &[2, 3]));
            let expanded = b.node("Expand", &[scale, shape], &[]);
            let y = b.node("Div", &[if other_is_expanded { expanded } else { x }, expanded], &[]);
            let data = [(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..]), (&[2, 1], &[2.0, 4.0])];
            b.operators(y, &data.map(|(dims, values)| Tensor::from_f32s(dims, values)))
        };
        assert_eq!(built(false), ["Div"]);
        // The other operand gives the extents only as long as it is expanded itself.
        assert_eq!(built(true), ["Expand", "Div"]);
    }
}
