//! For the operators' tests: one node, inferred and run in the compiler on every instruction set.

use super::view::Result;
use crate::ir::{Attr, Graph, Node, Tensor, Value};
use crate::{exec, lower, ops, passes};
use kiln_kernels::isa::Isa;

/// A node to test: `case("", "Relu", 14).input(tensor).attr("axis", Attr::Int(1)).run()`.
pub(crate) struct Case {
    node: Node,
    inputs: Vec<Option<Tensor>>,
    constant: Vec<bool>,
    n_outputs: usize,
}

/// A test of this operator in this opset version.
pub(crate) fn case(domain: &str, op: &str, version: i64) -> Case {
    let node = Node {
        name: "n".into(),
        domain: domain.into(),
        op: op.into(),
        version,
        attrs: Default::default(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        bodies: Default::default(),
    };
    Case { node, inputs: Vec::new(), constant: Vec::new(), n_outputs: 1 }
}

impl Case {
    /// Adds an operand given at run time.
    pub(crate) fn input(mut self, t: Tensor) -> Self {
        self.inputs.push(Some(t));
        self.constant.push(false);
        self
    }

    /// Adds a constant operand.
    pub(crate) fn constant(mut self, t: Tensor) -> Self {
        self.inputs.push(Some(t));
        self.constant.push(true);
        self
    }

    /// Adds an absent operand.
    pub(crate) fn absent(mut self) -> Self {
        self.inputs.push(None);
        self.constant.push(false);
        self
    }

    /// Sets an attribute.
    pub(crate) fn attr(mut self, name: &str, value: Attr) -> Self {
        self.node.attrs.insert(name.into(), value);
        self
    }

    /// Sets the number of results.
    pub(crate) fn outputs(mut self, n: usize) -> Self {
        self.n_outputs = n;
        self
    }

    /// The graph: run-time operands are graph inputs, results are graph outputs.
    pub(crate) fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        let mut node = self.node.clone();
        for (i, (t, constant)) in self.inputs.iter().zip(&self.constant).enumerate() {
            let Some(t) = t else {
                node.inputs.push(None);
                continue;
            };
            let id = if *constant {
                graph.add_constant(format!("x{i}"), t.clone())
            } else {
                let ty = crate::ir::TensorType::fixed(t.dtype(), t.dims());
                let id = graph.add_value(Value { name: format!("x{i}"), ty: Some(ty.into()), ..Value::default() });
                graph.inputs.push(id);
                id
            };
            node.inputs.push(Some(id));
        }
        for i in 0..self.n_outputs {
            let id = graph.add_value(Value { name: format!("y{i}"), ..Value::default() });
            node.outputs.push(Some(id));
            graph.outputs.push((format!("y{i}"), id));
        }
        graph.nodes.push(node);
        graph
    }

    /// Infers only.
    pub(crate) fn infer(&self) -> Result<Graph> {
        let mut graph = self.graph();
        passes::infer(&mut graph).map_err(|e| e.0.into_iter().next().expect("an error"))?;
        Ok(graph)
    }

    /// Infers, lowers and runs on every instruction set; results must not differ by more than `tolerance` (relative or
    /// absolute, floats; others exactly) between them. Returns the widest set's results.
    pub(crate) fn run_within(&self, tolerance: f64) -> Result<Vec<Tensor>> {
        let graph = self.infer()?;
        let lowered = lower::lower(&graph).map_err(|e| e.0.into_iter().next().expect("an error"))?;
        let inputs: Vec<&[u8]> = self
            .inputs
            .iter()
            .zip(&self.constant)
            .filter(|(_, c)| !**c)
            .flat_map(|(t, _)| t)
            .map(|t| &t.data()[..])
            .collect();
        let mut last: Option<Vec<Tensor>> = None;
        for isa in Isa::supported() {
            let results = exec::run_unplanned(&graph, &lowered, &inputs, isa)?;
            if let Some(last) = &last {
                for (a, b) in last.iter().zip(&results) {
                    assert!(close(a, b, tolerance), "{} differs between instruction sets: {a:?} {b:?}", isa.name());
                }
            }
            last = Some(results);
        }
        Ok(last.expect("at least the scalar set"))
    }

    /// As [`Case::run_within`], with 1e-5.
    pub(crate) fn run(&self) -> Result<Vec<Tensor>> {
        self.run_within(1e-5)
    }

    /// The first result as `f32`s.
    pub(crate) fn run_f32(&self) -> Vec<f32> {
        self.run().expect("runs")[0].to_f32s().expect("f32")
    }
}

fn close(a: &Tensor, b: &Tensor, tolerance: f64) -> bool {
    if a.dtype() != b.dtype() || a.dims() != b.dims() {
        return false;
    }
    let near = |x: f64, y: f64| {
        x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * x.abs().max(y.abs()).max(1.0)
    };
    match (a.to_f32s(), b.to_f32s()) {
        (Some(x), Some(y)) => x.iter().zip(&y).all(|(&x, &y)| near(f64::from(x), f64::from(y))),
        _ => match (a.to_f64s(), b.to_f64s()) {
            (Some(x), Some(y)) => x.iter().zip(&y).all(|(&x, &y)| near(x, y)),
            _ => a.data() == b.data(),
        },
    }
}

/// Every operator of the table, for tests over all of them.
#[test]
fn table_is_consistent() {
    let all = ops::all();
    for pair in all.windows(2) {
        assert_ne!((pair[0].domain, pair[0].name), (pair[1].domain, pair[1].name), "listed twice");
    }
    for op in all {
        assert!(op.since.is_sorted() && !op.since.is_empty(), "{}: since", op.name);
    }
}
