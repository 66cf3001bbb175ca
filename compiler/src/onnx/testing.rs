//! Models built in code, for the tests of this folder.

use super::model::Graph;
use super::proto::*;
use super::{Decoded, decode, encode};
use crate::error::CompileErrors;

pub(super) const F32: i32 = 1;

pub(super) fn node(op_type: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let strings = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    NodeProto { op_type: op_type.to_owned(), input: strings(inputs), output: strings(outputs), ..NodeProto::default() }
}

impl NodeProto {
    pub(super) fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    pub(super) fn of(mut self, domain: &str) -> Self {
        self.domain = domain.to_owned();
        self
    }

    pub(super) fn with(mut self, attribute: AttributeProto) -> Self {
        self.attribute.push(attribute);
        self
    }
}

pub(super) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.to_owned(), i: Some(value), r#type: 2, ..AttributeProto::default() }
}

pub(super) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { name: name.to_owned(), ints: values.to_vec(), r#type: 7, ..AttributeProto::default() }
}

pub(super) fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { name: name.to_owned(), f: Some(value), r#type: 1, ..AttributeProto::default() }
}

pub(super) fn reference(name: &str, refers_to: &str, kind: i32) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        ref_attr_name: refers_to.to_owned(),
        r#type: kind,
        ..AttributeProto::default()
    }
}

pub(super) fn body(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto { name: name.to_owned(), g: Some(Box::new(graph)), r#type: 5, ..AttributeProto::default() }
}

pub(super) fn value(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dim = dims
        .iter()
        .map(|d| DimensionProto { value: Some(DimensionValue::DimValue(*d)), denotation: String::new() })
        .collect();
    let tensor = TensorTypeProto { elem_type: F32, shape: Some(TensorShapeProto { dim }) };
    let ty = TypeProto { value: Some(TypeValue::Tensor(tensor)), denotation: String::new() };
    ValueInfoProto { name: name.to_owned(), r#type: Some(ty), doc_string: String::new() }
}

/// The same with elements of another type.
pub(super) fn typed(value: ValueInfoProto, elem_type: i32) -> ValueInfoProto {
    let mut value = value;
    if let Some(TypeProto { value: Some(TypeValue::Tensor(t)), .. }) = &mut value.r#type {
        t.elem_type = elem_type;
    }
    value
}

/// A graph over `f32[2]` values.
pub(super) fn graph(inputs: &[&str], outputs: &[&str], nodes: Vec<NodeProto>) -> GraphProto {
    GraphProto {
        name: "g".to_owned(),
        input: inputs.iter().map(|name| value(name, &[2])).collect(),
        output: outputs.iter().map(|name| value(name, &[2])).collect(),
        node: nodes,
        ..GraphProto::default()
    }
}

pub(super) fn tensor(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: dims.to_vec(),
        data_type: F32,
        float_data: values.to_vec(),
        ..TensorProto::default()
    }
}

pub(super) fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: domain.to_owned(), version }
}

pub(super) fn model(graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: 10,
        opset_import: vec![opset("", 18), opset("f", 1)],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

pub(super) fn function(name: &str, inputs: &[&str], outputs: &[&str], nodes: Vec<NodeProto>) -> FunctionProto {
    let strings = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    FunctionProto {
        name: name.to_owned(),
        domain: "f".to_owned(),
        input: strings(inputs),
        output: strings(outputs),
        node: nodes,
        opset_import: vec![opset("", 17)],
        ..FunctionProto::default()
    }
}

pub(super) fn decoded(model: &ModelProto) -> Result<Decoded, CompileErrors> {
    decode(encode(model), None)
}

/// The one problem of a model, or all of them.
pub(super) fn problems(model: &ModelProto) -> String {
    decoded(model).map_or_else(|errors| errors.to_string(), |_| "none".to_owned())
}

/// A graph as text, one node a line: `outputs = op@version(inputs) attributes`.
pub(super) fn text(graph: &Graph) -> String {
    fn lines(graph: &Graph, indent: usize, out: &mut String) {
        for node in &graph.nodes {
            let (inputs, outputs) = (node.inputs.join(" "), node.outputs.join(" "));
            out.push_str(&format!("{:indent$}{outputs} = {}@{}({inputs})", "", node.op_type, node.version));
            for (name, value) in node.attributes.iter().filter(|(_, value)| value.graphs().is_empty()) {
                out.push_str(&format!(" {name}={value:?}"));
            }
            out.push('\n');
            for (name, inner) in node.subgraphs() {
                let names =
                    |values: &[super::model::ValueInfo]| values.iter().map(|v| v.name.clone()).collect::<Vec<_>>();
                let (inputs, outputs) = (names(&inner.inputs).join(" "), names(&inner.outputs).join(" "));
                out.push_str(&format!("{:indent$}  {name}({inputs}) -> {outputs}\n", ""));
                lines(inner, indent + 4, out);
            }
        }
    }
    let mut out = String::new();
    lines(graph, 0, &mut out);
    out
}
