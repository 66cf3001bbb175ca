//! Products of integers that have no kernel of their own: QGemm whose B is no constant or whose C is no row, as MatMulInteger,
//! sum, scale and quantisation; MatMulInteger16 as a product of 32-bit integers.

use super::{add, constant, int, plain, whole_numbers};
use crate::ir::{Attr, Graph, Node, Tensor, Type, ValueId};
use crate::ops::quant::const_f32s;
use kiln_kernels::Dtype;
use std::collections::BTreeMap;

fn none() -> BTreeMap<String, Attr> {
    BTreeMap::new()
}

/// Sums of products of 16-bit integers lie in 32 bits, and wrap there.
pub(super) fn matmul_16(graph: &mut Graph, node: &Node) -> Option<()> {
    let to = || BTreeMap::from([("to".to_owned(), Attr::Int(6))]);
    let a = add(graph, node, "Cast", 13, to(), vec![Some(node.input(0)?)]);
    let b = add(graph, node, "Cast", 13, to(), vec![Some(node.input(1)?)]);
    let (name, outputs) = (node.name.clone(), node.outputs.clone());
    graph.nodes.push(plain(name, "MatMul", 13, none(), vec![Some(a), Some(b)], outputs));
    Some(())
}

fn dtype_of(graph: &Graph, v: Option<ValueId>) -> Option<Dtype> {
    match &graph.value(v?).ty {
        Some(Type::Tensor(t)) => Some(t.dtype),
        _ => None,
    }
}

/// Whether the tuned kernel takes it: constant weights, one value of C for each column.
fn is_tuned(graph: &Graph, node: &Node) -> bool {
    let transposed = int(node, "transB", 0) != 0;
    let Some(b) = node.input(3).and_then(|b| graph.constant(b)) else { return false };
    let n = match (b.dims(), transposed) {
        (&[n, _], true) | (&[_, n], false) => n as i64,
        _ => return false,
    };
    let row = |c: ValueId| match (graph.constant(c), &graph.value(c).ty) {
        (Some(c), _) if c.numel() == 1 => true,
        (_, Some(Type::Tensor(t))) => t.numel().is(n) && t.shape.last().is_some_and(|d| d.is(n)),
        _ => false,
    };
    let alpha = matches!(node.attrs.get("alpha"), None | Some(Attr::Float(1.0)));
    (constant(graph, node, &[5]) || b.dtype() == Dtype::I8)
        && (alpha || constant(graph, node, &[1]))
        && node.input(6).is_none_or(row)
}

/// A, its scale and zero point, B, its, C in `i32`, the result's scale and zero point.
pub(super) fn q_gemm(graph: &mut Graph, node: &Node) -> Option<()> {
    if is_tuned(graph, node) {
        return None;
    }
    let mut sides = [node.input(0)?, node.input(3)?];
    for (side, name) in sides.iter_mut().zip(["transA", "transB"]) {
        if int(node, name, 0) != 0 {
            let perm = BTreeMap::from([("perm".to_owned(), Attr::Ints(vec![1, 0]))]);
            *side = add(graph, node, "Transpose", 13, perm, vec![Some(*side)]);
        }
    }
    let inputs = vec![Some(sides[0]), Some(sides[1]), node.input(2), node.input(5)];
    let mut sums = add(graph, node, "MatMulInteger", 10, none(), inputs);
    if let Some(c) = node.input(6) {
        sums = add(graph, node, "Add", 14, none(), vec![Some(sums), Some(c)]);
    }
    let to = BTreeMap::from([("to".to_owned(), Attr::Int(1))]);
    let sums = add(graph, node, "Cast", 13, to, vec![Some(sums)]);
    let factor = factor(graph, node)?;
    let product = vec![Some(sums), Some(factor)];
    if node.input(7).is_none() {
        let (name, outputs) = (node.name.clone(), node.outputs.clone());
        graph.nodes.push(plain(name, "Mul", 14, none(), product, outputs));
        return Some(());
    }
    let y = add(graph, node, "Mul", 14, none(), product);
    let signed = dtype_of(graph, node.input(0)) == Some(Dtype::I8);
    let zero = match node.input(8) {
        None if signed => Tensor::new(Dtype::I8, vec![], vec![0].into()),
        _ => None,
    };
    let zero = zero.map(|z| graph.add_constant(format!("{}/zero", node.name), z)).or(node.input(8));
    whole_numbers(graph, node, y, zero)
}

/// What sums are multiplied by, in ONNX Runtime's order: alpha, A's scale, B's, by the result's.
fn factor(graph: &mut Graph, node: &Node) -> Option<ValueId> {
    let alpha = match node.attrs.get("alpha") {
        None => 1.0,
        Some(Attr::Float(v)) => *v,
        Some(_) => return None,
    };
    let scale = |graph: &Graph, i: usize| node.input(i).and_then(|v| graph.constant(v)).and_then(|t| const_f32s(t));
    let y = if node.input(7).is_some() { scale(graph, 7) } else { Some(vec![1.0]) };
    if let (Some([a]), Some(b), Some([y])) = (scale(graph, 1).as_deref(), scale(graph, 4), y.as_deref()) {
        let all: Vec<f32> = b.iter().map(|b| alpha * a * b / y).collect();
        let dims = if all.len() == 1 { vec![] } else { vec![all.len()] };
        return Some(graph.add_constant(format!("{}/factor", node.name), Tensor::from_f32s(&dims, &all)));
    }
    let alpha = graph.add_constant(format!("{}/alpha", node.name), Tensor::from_f32s(&[], &[alpha]));
    let mut all = add(graph, node, "Mul", 14, none(), vec![Some(alpha), Some(node.input(1)?)]);
    all = add(graph, node, "Mul", 14, none(), vec![Some(all), Some(node.input(4)?)]);
    if let Some(y) = node.input(7) {
        all = add(graph, node, "Div", 14, none(), vec![Some(all), Some(y)]);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;
    use kiln_kernels::Dtype;

    #[test]
    fn products_of_16_bits() {
        let i16s = |dims: &[usize], v: &[i16]| {
            let data: Vec<u8> = v.iter().flat_map(|v| v.to_le_bytes()).collect();
            Tensor::new(Dtype::I16, dims.to_vec(), data.into()).unwrap()
        };
        let c = case("com.microsoft", "MatMulInteger16", 1).input(i16s(&[1, 2], &[300, -2]));
        let y = c.input(i16s(&[2, 1], &[1000, 7])).run().unwrap();
        assert_eq!((y[0].dims(), y[0].to_i32s().unwrap()), (&[1, 1][..], vec![299_986]));
    }

    /// With B at run time, C of every form, with and without a result's scale.
    #[test]
    fn gemm_of_codes() {
        let f = |v: f32| Tensor::from_f32s(&[], &[v]);
        let u8s = |dims: &[usize], v: &[u8]| Tensor::from_u8s(dims, v);
        for (dims, c) in
            [(&[2, 1][..], vec![100, -100]), (&[2, 2], vec![1, 2, 3, 4]), (&[], vec![7]), (&[1, 2], vec![5, -5])]
        {
            for quantised in [false, true] {
                let mut n = case("com.microsoft", "QGemm", 1)
                    .input(u8s(&[2, 2], &[1, 2, 3, 4]))
                    .constant(f(0.5))
                    .constant(u8s(&[], &[1]))
                    .input(u8s(&[2, 2], &[10, 20, 30, 40]))
                    .constant(f(0.25))
                    .constant(u8s(&[], &[5]))
                    .input(Tensor::from_i32s(dims, &c))
                    .attr("transB", Attr::Int(1))
                    .attr("alpha", Attr::Float(2.0));
                if quantised {
                    n = n.constant(f(0.5)).constant(u8s(&[], &[100]));
                }
                let c = |i: usize, j: usize| match dims {
                    [2, 1] => c[i],
                    [2, 2] => c[2 * i + j],
                    [1, 2] => c[j],
                    _ => c[0],
                };
                let (a, b) = ([[0, 1], [2, 3]], [[5, 15], [25, 35]]);
                let sums = (0..4).map(|at| (at / 2, at % 2));
                let want = sums.map(|(i, j)| (a[i][0] * b[j][0] + a[i][1] * b[j][1] + c(i, j)) as f32 * 0.25);
                let got = n.run().unwrap();
                if quantised {
                    let want: Vec<i64> =
                        want.map(|v| i64::from((v / 0.5).round_ties_even() as i32 + 100).clamp(0, 255)).collect();
                    assert_eq!(got[0].to_ints().unwrap(), want, "{dims:?}");
                } else {
                    assert_eq!(got[0].to_f32s().unwrap(), want.collect::<Vec<_>>(), "{dims:?}");
                }
            }
        }
    }
}
