//! The typed graph: values and nodes in topological order, addressed by small ids.
//!
//! Invariant: a value has one producer (a node, a graph input, or a constant); nodes stand in an order in which every
//! operand is made before it is read; ids are never reused within a graph.

use super::{Attr, Dim, Layout, Tensor, TensorType, Type};
use crate::error::{CompileError, Stage};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A value of a graph. Display is its text form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// What is known of a value.
#[derive(Clone, Debug, Default)]
pub struct Value {
    /// The ONNX name.
    pub name: String,
    /// Its type, once inferred.
    pub ty: Option<Type>,
    /// How its elements lie in memory.
    pub layout: Layout,
    /// Its elements, if constant.
    pub constant: Option<Arc<Tensor>>,
    /// The elements of a small integer tensor as expressions over symbols (shape arithmetic).
    pub dims: Option<Vec<Dim>>,
    /// The elements of a sequence, where they are known one by one.
    pub elements: Option<Vec<ValueId>>,
}

/// An operator applied to values.
#[derive(Clone, Debug)]
pub struct Node {
    /// The ONNX node's name, or one made from its first output.
    pub name: String,
    /// Operator domain: `""` for ai.onnx, `"kiln"` for operators that passes introduce.
    pub domain: String,
    /// Operator name.
    pub op: String,
    /// Opset version of the domain.
    pub version: i64,
    /// Attributes by name.
    pub attrs: BTreeMap<String, Attr>,
    /// Operands; `None` where absent.
    pub inputs: Vec<Option<ValueId>>,
    /// Results; `None` where not wanted.
    pub outputs: Vec<Option<ValueId>>,
    /// Subgraphs by attribute name (If, Loop, Scan). Their captured values are listed in `captures`.
    pub bodies: BTreeMap<String, Box<Graph>>,
}

impl Node {
    /// Whether it is this operator of the default domain.
    pub fn is(&self, op: &str) -> bool {
        self.domain.is_empty() && self.op == op
    }

    /// Whether it is this operator of Kiln's own domain.
    pub fn is_kiln(&self, op: &str) -> bool {
        self.domain == "kiln" && self.op == op
    }

    /// The operator's name with its domain, where that is not the default one.
    pub fn full_op(&self) -> String {
        if self.domain.is_empty() { self.op.clone() } else { format!("{}.{}", self.domain, self.op) }
    }

    /// The operand at this position, if present.
    pub fn input(&self, i: usize) -> Option<ValueId> {
        self.inputs.get(i).copied().flatten()
    }

    /// The result at this position, if wanted.
    pub fn output(&self, i: usize) -> Option<ValueId> {
        self.outputs.get(i).copied().flatten()
    }
}

/// A graph, or a body of a control-flow node.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The model's name for it.
    pub name: String,
    /// All values.
    pub values: Vec<Value>,
    /// Nodes in topological order.
    pub nodes: Vec<Node>,
    /// Graph inputs that the caller gives.
    pub inputs: Vec<ValueId>,
    /// Graph outputs: the name in the model and the value.
    pub outputs: Vec<(String, ValueId)>,
    /// Number of extents that kernels find at run time, in the bodies too.
    pub n_slots: usize,
    /// For a body: (value of the enclosing graph, value in this graph).
    pub captures: Vec<(ValueId, ValueId)>,
}

impl Graph {
    /// Adds a value.
    pub fn add_value(&mut self, value: Value) -> ValueId {
        let id = ValueId(u32::try_from(self.values.len()).expect("invariant: fewer than 2^32 values"));
        self.values.push(value);
        id
    }

    /// Adds a constant.
    pub fn add_constant(&mut self, name: impl Into<String>, tensor: Tensor) -> ValueId {
        let ty = TensorType::fixed(tensor.dtype(), tensor.dims());
        self.add_value(Value {
            name: name.into(),
            ty: Some(ty.into()),
            constant: Some(Arc::new(tensor)),
            ..Value::default()
        })
    }

    /// Adds a typed value that a node will make.
    pub fn add_typed(&mut self, name: impl Into<String>, ty: impl Into<Type>, layout: Layout) -> ValueId {
        self.add_value(Value { name: name.into(), ty: Some(ty.into()), layout, ..Value::default() })
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// A value, to change.
    pub fn value_mut(&mut self, id: ValueId) -> &mut Value {
        &mut self.values[id.0 as usize]
    }

    /// A value's tensor type, an error before it is inferred or where it is no tensor.
    pub fn tensor_type(&self, id: ValueId) -> Result<&TensorType, CompileError> {
        let v = self.value(id);
        match &v.ty {
            Some(Type::Tensor(t)) => Ok(t),
            Some(other) => Err(CompileError::new(Stage::Infer, format!("expected a tensor, found {other}"))),
            None => Err(CompileError::new(Stage::Infer, format!("the type of \"{}\" is not known", v.name))),
        }
    }

    /// Operator and types of a node, for the comment beside its calls.
    pub fn note(&self, node: &Node) -> String {
        let ty = |v: &Option<ValueId>| match v {
            Some(v) => self.value(*v).ty.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string),
            None => "_".to_owned(),
        };
        let list = |vs: &[Option<ValueId>]| vs.iter().map(ty).collect::<Vec<_>>().join(", ");
        format!("{} {} -> {}", node.full_op(), list(&node.inputs), list(&node.outputs))
    }

    /// A value's constant, if it is one.
    pub fn constant(&self, id: ValueId) -> Option<&Arc<Tensor>> {
        self.value(id).constant.as_ref()
    }

    /// For every value, how many node operands, body captures and graph outputs read it.
    pub fn use_counts(&self) -> Vec<u32> {
        let mut counts = vec![0u32; self.values.len()];
        for node in &self.nodes {
            for v in node.inputs.iter().flatten() {
                counts[v.0 as usize] += 1;
            }
            for (outer, _) in node.bodies.values().flat_map(|b| &b.captures) {
                counts[outer.0 as usize] += 1;
            }
        }
        for (_, v) in &self.outputs {
            counts[v.0 as usize] += 1;
        }
        counts
    }

    /// For every value, the index of the node that makes it.
    pub fn producers(&self) -> Vec<Option<usize>> {
        let mut producers = vec![None; self.values.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            for v in node.outputs.iter().flatten() {
                producers[v.0 as usize] = Some(i);
            }
        }
        producers
    }

    /// Replaces every use of each key by its value (followed to the end of chains).
    pub fn substitute(&mut self, map: &BTreeMap<ValueId, ValueId>) {
        if map.is_empty() {
            return;
        }
        let last = |mut v: ValueId| {
            while let Some(&next) = map.get(&v) {
                v = next;
            }
            v
        };
        for node in &mut self.nodes {
            for v in node.inputs.iter_mut().flatten() {
                *v = last(*v);
            }
            for (outer, _) in node.bodies.values_mut().flat_map(|b| &mut b.captures) {
                *outer = last(*outer);
            }
        }
        for (_, v) in &mut self.outputs {
            *v = last(*v);
        }
    }
}
