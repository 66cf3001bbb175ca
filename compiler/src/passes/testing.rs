//! For tests of passes: a graph under construction, and its results before and after rewriting.

use crate::ir::{Attr, Graph, Node, Tensor, TensorType, Type, Value, ValueId};
use crate::{exec, lower, passes};
use kiln_kernels::{Dtype, isa::Isa};

/// A graph under construction.
#[derive(Default)]
pub struct Build(pub Graph);

impl Build {
    pub fn input(&mut self, dtype: Dtype, dims: &[usize]) -> ValueId {
        let ty: Type = TensorType::fixed(dtype, dims).into();
        let name = format!("x{}", self.0.inputs.len());
        let v = self.0.add_value(Value { name, ty: Some(ty), ..Value::default() });
        self.0.inputs.push(v);
        v
    }

    pub fn f32s(&mut self, dims: &[usize], values: &[f32]) -> ValueId {
        self.0.add_constant("constant", Tensor::from_f32s(dims, values))
    }

    pub fn node(&mut self, op: &str, inputs: &[ValueId], attrs: &[(&str, Attr)]) -> ValueId {
        let name = format!("n{}", self.0.nodes.len());
        let y = self.0.add_value(Value { name: name.clone(), ..Value::default() });
        self.0.nodes.push(Node {
            name,
            domain: String::new(),
            op: op.into(),
            version: 17,
            attrs: attrs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
            inputs: inputs.iter().map(|&v| Some(v)).collect(),
            outputs: vec![Some(y)],
            bodies: Default::default(),
        });
        y
    }

    /// The operators that all passes leave of the graph with result `y`, whose results on `data` agree with the graph's own.
    pub fn operators(mut self, y: ValueId, data: &[Tensor]) -> Vec<String> {
        self.0.outputs.push(("y".into(), y));
        passes::infer(&mut self.0).unwrap_or_else(|e| panic!("{e}"));
        let mut fused = self.0.clone();
        passes::simplify(&mut fused).unwrap_or_else(|e| panic!("{e}"));
        passes::fuse_attention(&mut fused);
        let inputs: Vec<&[u8]> = data.iter().map(|t| &t.data()[..]).collect();
        let run = |g: &Graph| {
            let lowered = lower::lower(g).unwrap_or_else(|e| panic!("{e}"));
            exec::run_unplanned(g, &lowered, &inputs, Isa::detect()).unwrap()[0].to_f32s().unwrap()
        };
        let (got, want) = (run(&fused), run(&self.0));
        assert_eq!(got.len(), want.len());
        for (a, b) in got.iter().zip(&want) {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0) || a.is_nan() && b.is_nan(), "{a}, expected {b}");
        }
        fused.nodes.iter().map(Node::full_op).collect()
    }
}

/// Values between -1.4 and 1.4.
pub fn ramp(dims: &[usize], step: usize) -> Tensor {
    let n = dims.iter().product::<usize>();
    Tensor::from_f32s(dims, &(0..n).map(|i| ((i * step) % 29) as f32 * 0.1 - 1.4).collect::<Vec<_>>())
}
