//! Products with one-hot rows, as exporters from JAX write embeddings, become the rows themselves.
//!
//! `activation(Cast(Equal(index, 0..depth)) · W + bias)` with constant W and bias is a row of a table made offline, or, for
//! an index outside of the depth, the bias alone: one more row of the table.

use super::rewrite::{Uses, beside, constant, either, f32s};
use crate::ir::{Attr, Graph, Layout, Node, Tensor, TensorType, ValueId};
use crate::ops::view::NodeView;
use kiln_kernels::Dtype;

/// Replaces every such product.
pub(super) fn into_gathers(graph: &mut Graph) {
    let uses = Uses::of(graph);
    let found: Vec<_> =
        (0..graph.nodes.len()).filter_map(|i| Some((i, rows(graph, &uses, &graph.nodes[i])?))).collect();
    for (i, rows) in found.into_iter().rev() {
        let nodes = gather(graph, i, rows);
        graph.nodes.splice(i..=i, nodes);
    }
}

/// What a product reads.
struct Rows {
    /// `[…, 1]`
    index: ValueId,
    /// The table's rows, of `width` elements, one more than there are indices.
    table: Vec<f32>,
    width: usize,
}

fn rows(graph: &Graph, uses: &Uses, node: &Node) -> Option<Rows> {
    let view = NodeView { graph, node };
    let permuted = ["perm_a", "perm_b", "perm_y"].iter().any(|name| node.attrs.contains_key(*name));
    if !(node.is("MatMul") || node.is_kiln("MatMul")) || permuted || node.input(3).is_some() {
        return None;
    }
    let one_hot = node.input(0).filter(|&v| uses.is_single(v))?;
    let cast = &graph.nodes[uses.producer(one_hot)?];
    if !cast.is("Cast") || view.dtype(0).ok()? != Dtype::F32 {
        return None;
    }
    let equal = &graph.nodes[uses.producer(cast.input(0)?)?];
    if !equal.is("Equal") {
        return None;
    }
    let weights = graph.constant(node.input(1)?)?;
    let (numbers, index) = either(equal, |v| graph.constant(v).is_some())?;
    let &[depth, width] = weights.dims() else { return None };
    let numbers = graph.constant(numbers)?;
    let counts = numbers.dims().last() == Some(&depth)
        && numbers.to_ints().is_some_and(|n| n.iter().copied().eq(0..depth as i64));
    let (ty, out) = (graph.tensor_type(index).ok()?, view.out_ty(0).ok()?);
    let before = ty.rank().checked_sub(1)?;
    let fits = matches!(ty.dtype, Dtype::I32 | Dtype::I64)
        && out.rank() == ty.rank()
        && ty.shape[before].is(1)
        && ty.shape[..before] == out.shape[..before];
    if !counts || !fits {
        return None;
    }
    let bias = match node.input(2) {
        None => vec![0.0; width],
        bias => f32s(graph, bias).filter(|b| b.len() == width)?,
    };
    let activation = view.activation();
    let mut table = weights.to_f32s()?;
    table.resize((depth + 1) * width, 0.0);
    for row in table.chunks_exact_mut(width.max(1)) {
        row.iter_mut().zip(&bias).for_each(|(x, b)| *x = activation.scalar(*x + b));
    }
    Some(Rows { index, table, width })
}

/// The nodes in place of product `i`: the index without its last axis, within the table, and the rows there.
fn gather(graph: &mut Graph, i: usize, Rows { index, table, width }: Rows) -> Vec<Node> {
    let like = graph.nodes[i].clone();
    let n_rows = table.len() / width.max(1);
    let table = constant(graph, &format!("{} rows", like.name), &[n_rows, width], &table);
    let axes = graph.add_constant("last axis", Tensor::from_i64s(&[1], &[-1]));
    let mut ty = graph.tensor_type(index).cloned().unwrap_or(TensorType { dtype: Dtype::I64, shape: Vec::new() });
    ty.shape.pop();
    let bound = |graph: &mut Graph, v: i64| {
        let t = if ty.dtype == Dtype::I32 { Tensor::from_i32s(&[], &[v as i32]) } else { Tensor::from_i64s(&[], &[v]) };
        graph.add_constant("bound", t)
    };
    // The row behind the last index is also the one before the first: indices below 0 count from the end.
    let (low, high) = (bound(graph, -1), bound(graph, n_rows as i64 - 1));
    let mut value = |what: &str| graph.add_typed(format!("{} {what}", like.name), ty.clone(), Layout::default());
    let (flat, within) = (value("index"), value("index within"));
    let node = |op: &str, attrs, inputs: Vec<ValueId>, output| {
        beside(&like, ("", op, 13), attrs, inputs.into_iter().map(Some).collect(), vec![output])
    };
    vec![
        node("Squeeze", vec![], vec![index, axes], Some(flat)),
        node("Clip", vec![], vec![flat, low, high], Some(within)),
        node("Gather", vec![("axis", Attr::Int(0))], vec![table, within], like.output(0)),
    ]
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::passes::testing::{Build, ramp};
    use kiln_kernels::Dtype;

    fn product(numbers: &[i64], activation: bool) -> Vec<String> {
        let mut g = Build::default();
        let x = g.input(Dtype::I64, &[2, 6, 1]);
        let all = g.0.add_constant("numbers", Tensor::from_i64s(&[1, 1, 4], numbers));
        let equal = g.node("Equal", &[x, all], &[]);
        let rows = g.node("Cast", &[equal], &[("to", Attr::Int(1))]);
        let w = g.f32s(&[4, 5], &ramp(&[4, 5], 7).to_f32s().unwrap());
        let bias = g.f32s(&[5], &ramp(&[5], 3).to_f32s().unwrap());
        let y = g.node("MatMul", &[rows, w], &[]);
        let mut y = g.node("Add", &[y, bias], &[]);
        if activation {
            y = g.node("Sigmoid", &[y], &[]);
        }
        // Indices below, within and beyond the table.
        g.operators(y, &[Tensor::from_i64s(&[2, 6, 1], &[0, 1, 3, 2, -1, 4, 3, -7, 1 << 40, 0, 0, 2])])
    }

    #[test]
    fn products_become_rows_of_a_table() {
        for activation in [false, true] {
            assert_eq!(product(&[0, 1, 2, 3], activation), ["Squeeze", "Clip", "Gather"]);
        }
    }

    #[test]
    fn other_numbers_stay() {
        assert!(product(&[0, 1, 3, 2], false).iter().any(|op| op == "kiln.MatMul"));
    }
}
