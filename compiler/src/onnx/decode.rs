//! Protobuf messages to the decoded model, piece by piece; every problem is collected.
//!
//! In: messages, by value, so that names move instead of being copied. Out: [`Graph`]s, [`Node`]s,
//! [`Attribute`]s, [`Type`]s, [`Function`]s: each piece is valid by itself (types, tensors,
//! attribute kinds, versions); how the pieces fit together is the business of `function`, `scope`
//! and `control`.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use kiln_kernels::Dtype;

use super::external::ExternalFiles;
use super::function::Function;
use super::model::{Attribute, AttributeRef, Dim, Graph, Node, ONNX_DOMAIN, Tensor, TensorData, Type, ValueInfo};
use super::opset::Opsets;
use super::proto::{
    AttributeProto, AttributeType, DimensionValue, FunctionProto, GraphProto, NodeProto, SparseTensorProto,
    TensorProto, TensorShapeProto, TypeProto, TypeValue, ValueInfoProto,
};
use super::sparse::{DenseBudget, decode_sparse};
use super::tensor::{decode_dtype, decode_tensor};
use crate::error::{CompileError, CompileErrors, Quoted, Stage};

/// What decoding needs beside the message, and the problems it found.
pub(super) struct Decoder {
    pub(super) files: ExternalFiles,
    pub(super) dense: DenseBudget,
    /// (domain, name) of the model-local functions: calls need no imported version.
    pub(super) callable: HashSet<(String, String)>,
    pub(super) errors: CompileErrors,
}

/// Which graph is being decoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The model's own: inputs must have types.
    Main,
    /// A node's: types may be left to inference.
    Nested,
}

pub(super) fn error(message: impl Into<String>) -> CompileError {
    CompileError::new(Stage::Decode, message)
}

impl Decoder {
    fn keep<T>(&mut self, result: Result<T, CompileError>, place: impl Fn(CompileError) -> CompileError) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) => {
                self.errors.push(place(e));
                None
            }
        }
    }

    /// Decodes a graph and the graphs in it.
    pub(super) fn graph(&mut self, proto: GraphProto, opsets: &Opsets, place: Place) -> Graph {
        let initializers = self.initializers(proto.initializer, proto.sparse_initializer);
        let constants: HashMap<&str, Option<Dtype>> =
            initializers.iter().map(|(name, tensor)| (name.as_str(), tensor.as_ref().map(|t| t.dtype))).collect();
        let inputs = self.graph_inputs(proto.input, &constants, place);
        let outputs = proto.output.into_iter().map(value_hint).collect();
        let value_infos = proto.value_info.into_iter().map(value_hint).collect();
        let mut nodes = Vec::with_capacity(proto.node.len());
        for node in proto.node {
            nodes.push(self.node(node, opsets));
        }
        // A broken one keeps its name, so that its readers are not reported as well.
        let broken = || Tensor { dtype: Dtype::U8, dims: vec![0], data: TensorData::Bytes(Bytes::new()) };
        let initializers =
            initializers.into_iter().map(|(name, tensor)| (name, tensor.unwrap_or_else(broken))).collect();
        Graph { name: proto.name, doc: proto.doc_string, inputs, outputs, value_infos, initializers, nodes }
    }

    fn initializers(
        &mut self,
        dense: Vec<TensorProto>,
        sparse: Vec<SparseTensorProto>,
    ) -> Vec<(String, Option<Tensor>)> {
        let mut out = Vec::with_capacity(dense.len() + sparse.len());
        for mut tensor in dense {
            let name = std::mem::take(&mut tensor.name);
            let decoded = decode_tensor(tensor, &mut self.files);
            let tensor = self.keep(decoded, |e| e.at(format!("initializer {}", Quoted(&name))));
            out.push((name, tensor));
        }
        for mut tensor in sparse {
            let name = tensor.values.as_mut().map(|values| std::mem::take(&mut values.name)).unwrap_or_default();
            let decoded = decode_sparse(tensor, &mut self.files, &mut self.dense);
            let tensor = self.keep(decoded, |e| e.at(format!("sparse initializer {}", Quoted(&name))));
            out.push((name, tensor));
        }
        out
    }

    /// The inputs that are not constants. Initializers that are inputs as well (every one in IR 3)
    /// are baked in; their stated element type must agree.
    fn graph_inputs(
        &mut self,
        protos: Vec<ValueInfoProto>,
        constants: &HashMap<&str, Option<Dtype>>,
        place: Place,
    ) -> Vec<ValueInfo> {
        let mut inputs = Vec::new();
        for proto in protos {
            let at = |e: CompileError| e.at(format!("graph input {}", Quoted(&proto.name)));
            let constant = constants.get(proto.name.as_str());
            let required = place == Place::Main && constant.is_none();
            let ty = match (&proto.r#type, required) {
                (Some(ty), true) => self.keep(decode_type(ty), at),
                (None, true) => self.keep(Err(error("has no type")), at),
                (ty, false) => ty.as_ref().and_then(|ty| decode_type(ty).ok()),
            };
            match (constant, &ty) {
                (Some(Some(found)), Some(Type::Tensor(dtype, _))) if dtype != found => {
                    let message = format!("is declared {dtype}, its initializer is {found}");
                    self.errors.push(at(error(message)));
                }
                (Some(_), _) => {}
                (None, _) => inputs.push(ValueInfo { name: proto.name, ty, doc: proto.doc_string }),
            }
        }
        inputs
    }

    /// Decodes a node and the graphs in it.
    pub(super) fn node(&mut self, proto: NodeProto, opsets: &Opsets) -> Node {
        let mut node = Node {
            name: proto.name,
            domain: normal_domain(proto.domain),
            op_type: proto.op_type,
            overload: proto.overload,
            version: 0,
            inputs: proto.input,
            outputs: proto.output,
            attributes: BTreeMap::new(),
            doc: proto.doc_string,
            attribute_refs: Vec::new(),
        };
        let before = self.errors.len();
        if node.op_type.is_empty() {
            self.errors.push(error("has no operator"));
        }
        match opsets.version_of(&node.domain) {
            Some(version) => node.version = version,
            None if self.callable.contains(&(node.domain.clone(), node.op_type.clone())) => {}
            None => self.errors.extend(opsets.not_imported(&node.domain)),
        }
        let mut seen = HashSet::new();
        for attribute in proto.attribute {
            let is_new = seen.insert(attribute.name.clone());
            self.add_attribute(&mut node, attribute, is_new, opsets);
        }
        for e in &mut self.errors.0[before..] {
            e.place_at_node(node.label(), &node.op_type);
        }
        node
    }

    fn add_attribute(&mut self, node: &mut Node, mut proto: AttributeProto, is_new: bool, opsets: &Opsets) {
        let name = std::mem::take(&mut proto.name);
        let before = self.errors.len();
        if name.is_empty() {
            self.errors.push(error("an attribute has no name"));
        } else if !is_new {
            self.errors.push(error("is given twice"));
        }
        if !proto.ref_attr_name.is_empty() {
            let kind = attribute_type(proto.r#type).ok().flatten().map(kind_name);
            node.attribute_refs.push(AttributeRef { name: name.clone(), refers_to: proto.ref_attr_name, kind });
        } else if let Some(value) = self.attribute_value(proto, opsets) {
            node.attributes.insert(name.clone(), value);
        }
        for e in &mut self.errors.0[before..] {
            // What lies in a graph of this attribute keeps its own place.
            if e.node.is_none() {
                let inner = e.operand.take();
                let place = format!("attribute {}", Quoted(&name));
                e.operand = Some(inner.map_or(place.clone(), |inner| format!("{place}, {inner}")));
            }
        }
    }

    /// The value of an attribute; problems are recorded.
    pub(super) fn attribute_value(&mut self, proto: AttributeProto, opsets: &Opsets) -> Option<Attribute> {
        let kind = match kind_of(&proto) {
            Ok(kind) => kind,
            Err(e) => {
                self.errors.push(e);
                return None;
            }
        };
        let here = |e| e;
        Some(match kind {
            AttributeType::Undefined => return None,
            AttributeType::Float => Attribute::Float(proto.f.unwrap_or_default()),
            AttributeType::Int => Attribute::Int(proto.i.unwrap_or_default()),
            AttributeType::String => Attribute::Str(proto.s.unwrap_or_default()),
            AttributeType::Tensor => {
                let decoded = decode_tensor(*proto.t.unwrap_or_default(), &mut self.files);
                Attribute::Tensor(self.keep(decoded, here)?)
            }
            AttributeType::SparseTensor => {
                let sparse = *proto.sparse_tensor.unwrap_or_default();
                let decoded = decode_sparse(sparse, &mut self.files, &mut self.dense);
                Attribute::SparseTensor(self.keep(decoded, here)?)
            }
            AttributeType::Graph => {
                Attribute::Graph(Box::new(self.graph(*proto.g.unwrap_or_default(), opsets, Place::Nested)))
            }
            AttributeType::TypeProto => Attribute::Type(self.keep(decode_type(&proto.tp.unwrap_or_default()), here)?),
            AttributeType::Floats => Attribute::Floats(proto.floats),
            AttributeType::Ints => Attribute::Ints(proto.ints),
            AttributeType::Strings => Attribute::Strings(proto.strings),
            AttributeType::Tensors => {
                let decoded = proto.tensors.into_iter().map(|t| decode_tensor(t, &mut self.files)).collect();
                Attribute::Tensors(self.keep(decoded, here)?)
            }
            AttributeType::SparseTensors => {
                let sparse = proto.sparse_tensors.into_iter();
                let decoded = sparse.map(|t| decode_sparse(t, &mut self.files, &mut self.dense)).collect();
                Attribute::SparseTensors(self.keep(decoded, here)?)
            }
            AttributeType::Graphs => Attribute::Graphs(
                proto.graphs.into_iter().map(|graph| self.graph(graph, opsets, Place::Nested)).collect(),
            ),
            AttributeType::TypeProtos => {
                let decoded = proto.type_protos.iter().map(decode_type).collect();
                Attribute::Types(self.keep(decoded, here)?)
            }
        })
    }

    /// Decodes a model-local function.
    pub(super) fn function(&mut self, proto: FunctionProto) -> Function {
        let before = self.errors.len();
        let title = Function::title(&normal_domain(proto.domain.clone()), &proto.name, &proto.overload);
        let opsets = Opsets::decode(proto.opset_import, &mut self.errors);
        if opsets.is_empty() && proto.node.iter().any(|node| normal_domain(node.domain.clone()).is_empty()) {
            self.errors.push(error("opset_import is missing: no operator has a version"));
        }
        if proto.name.is_empty() {
            self.errors.push(error("has no name"));
        }
        let mut defaults = BTreeMap::new();
        for mut attribute in proto.attribute_proto {
            let name = std::mem::take(&mut attribute.name);
            if let Some(value) = self.attribute_value(attribute, &opsets) {
                if !value.graphs().is_empty() {
                    self.errors.push(error("a graph cannot be a default value").at_attribute(&name));
                }
                if defaults.insert(name.clone(), value).is_some() {
                    self.errors.push(error("is given twice").at_attribute(&name));
                }
            }
        }
        let mut seen = HashSet::new();
        for name in proto.attribute.iter().filter(|name| !seen.insert(name.as_str())) {
            self.errors.push(error("is given twice").at_attribute(name));
        }
        let nodes = proto.node.into_iter().map(|node| self.node(node, &opsets)).collect();
        for e in &mut self.errors.0[before..] {
            in_function(e, &title);
        }
        Function {
            title,
            domain: normal_domain(proto.domain),
            name: proto.name,
            overload: proto.overload,
            inputs: proto.input,
            outputs: proto.output,
            defaults,
            nodes,
            opset: opsets.version_of(ONNX_DOMAIN),
        }
    }
}

/// Adds to a problem that it lies in a function's body.
pub(super) fn in_function(e: &mut CompileError, title: &str) {
    if e.node.is_none() && e.operand.is_none() {
        e.operand = Some(format!("function {}", Quoted(title)));
    } else {
        e.message.push_str(&format!(" (in function {})", Quoted(title)));
    }
}

/// ONNX's own domain has two spellings.
pub(super) fn normal_domain(domain: String) -> String {
    if domain == "ai.onnx" { String::new() } else { domain }
}

/// A type that is only a hint: what cannot be understood is left out.
fn value_hint(proto: ValueInfoProto) -> ValueInfo {
    let ty = proto.r#type.as_ref().and_then(|ty| decode_type(ty).ok());
    ValueInfo { name: proto.name, ty, doc: proto.doc_string }
}

/// Decodes a type.
pub(super) fn decode_type(proto: &TypeProto) -> Result<Type, CompileError> {
    let element = |element: &Option<Box<TypeProto>>| match element {
        Some(element) => decode_type(element).map(Box::new),
        None => Err(error("type has no element type")),
    };
    Ok(match &proto.value {
        None => return Err(error("has no type")),
        Some(TypeValue::Tensor(tensor)) => {
            Type::Tensor(decode_dtype(tensor.elem_type)?, decode_shape(tensor.shape.as_ref())?)
        }
        Some(TypeValue::SparseTensor(tensor)) => {
            Type::SparseTensor(decode_dtype(tensor.elem_type)?, decode_shape(tensor.shape.as_ref())?)
        }
        Some(TypeValue::Sequence(sequence)) => Type::Sequence(element(&sequence.elem_type)?),
        Some(TypeValue::Optional(optional)) => Type::Optional(element(&optional.elem_type)?),
        Some(TypeValue::Map(map)) => Type::Map(decode_dtype(map.key_type)?, element(&map.value_type)?),
        Some(TypeValue::Opaque(opaque)) => Type::Opaque(opaque.domain.clone(), opaque.name.clone()),
    })
}

fn decode_shape(shape: Option<&TensorShapeProto>) -> Result<Option<Vec<Dim>>, CompileError> {
    let Some(shape) = shape else { return Ok(None) };
    let mut dims = Vec::with_capacity(shape.dim.len());
    for dim in &shape.dim {
        dims.push(match &dim.value {
            None | Some(DimensionValue::DimValue(-1)) => Dim::Unknown,
            Some(DimensionValue::DimParam(name)) if name.is_empty() => Dim::Unknown,
            Some(DimensionValue::DimParam(name)) => Dim::Symbol(name.clone()),
            Some(DimensionValue::DimValue(extent)) => match usize::try_from(*extent) {
                Ok(extent) => Dim::Known(extent),
                Err(_) => return Err(error(format!("dim {extent} is out of range"))),
            },
        });
    }
    Ok(Some(dims))
}

fn attribute_type(number: i32) -> Result<Option<AttributeType>, CompileError> {
    match AttributeType::try_from(number) {
        Ok(AttributeType::Undefined) => Ok(None),
        Ok(kind) => Ok(Some(kind)),
        Err(_) => Err(error(format!("attribute type {number} is not one ONNX defines"))),
    }
}

/// The kind that an attribute states; where it states none, the one field that is set. A stated
/// kind whose field is empty while another is set is an error.
fn kind_of(proto: &AttributeProto) -> Result<AttributeType, CompileError> {
    let set: Vec<AttributeType> = [
        (proto.f.is_some(), AttributeType::Float),
        (proto.i.is_some(), AttributeType::Int),
        (proto.s.is_some(), AttributeType::String),
        (proto.t.is_some(), AttributeType::Tensor),
        (proto.g.is_some(), AttributeType::Graph),
        (proto.sparse_tensor.is_some(), AttributeType::SparseTensor),
        (proto.tp.is_some(), AttributeType::TypeProto),
        (!proto.floats.is_empty(), AttributeType::Floats),
        (!proto.ints.is_empty(), AttributeType::Ints),
        (!proto.strings.is_empty(), AttributeType::Strings),
        (!proto.tensors.is_empty(), AttributeType::Tensors),
        (!proto.graphs.is_empty(), AttributeType::Graphs),
        (!proto.sparse_tensors.is_empty(), AttributeType::SparseTensors),
        (!proto.type_protos.is_empty(), AttributeType::TypeProtos),
    ]
    .into_iter()
    .filter_map(|(is_set, kind)| is_set.then_some(kind))
    .collect();
    match (attribute_type(proto.r#type)?, &set[..]) {
        (None, [kind]) => Ok(*kind),
        (None, []) => Err(error("has neither a type nor a value")),
        (None, _) => Err(error("has no type and more than one value")),
        (Some(kind), []) if is_message(kind) => Err(error(format!("is a {} without a value", kind_name(kind)))),
        (Some(kind), []) => Ok(kind),
        (Some(kind), set) if set.contains(&kind) => Ok(kind),
        (Some(kind), set) => {
            Err(error(format!("is declared {}, but its value is {}", kind_name(kind), kind_name(set[0]))))
        }
    }
}

/// A kind whose absent value means nothing (an absent number is 0, an absent list is empty).
fn is_message(kind: AttributeType) -> bool {
    matches!(
        kind,
        AttributeType::Tensor | AttributeType::Graph | AttributeType::SparseTensor | AttributeType::TypeProto
    )
}

fn kind_name(kind: AttributeType) -> &'static str {
    match kind {
        AttributeType::Undefined => "UNDEFINED",
        AttributeType::Float => "FLOAT",
        AttributeType::Int => "INT",
        AttributeType::String => "STRING",
        AttributeType::Tensor => "TENSOR",
        AttributeType::Graph => "GRAPH",
        AttributeType::Floats => "FLOATS",
        AttributeType::Ints => "INTS",
        AttributeType::Strings => "STRINGS",
        AttributeType::Tensors => "TENSORS",
        AttributeType::Graphs => "GRAPHS",
        AttributeType::SparseTensor => "SPARSE_TENSOR",
        AttributeType::SparseTensors => "SPARSE_TENSORS",
        AttributeType::TypeProto => "TYPE_PROTO",
        AttributeType::TypeProtos => "TYPE_PROTOS",
    }
}
