//! The decoded model: plain data that the graph builder reads. No protobuf, no function, no file.
//!
//! What [`super::decode`] returns keeps these invariants:
//! - every graph's nodes stand in topological order (captures of its nodes' subgraphs counted),
//!   in the file's own order where that already was one;
//! - every name that is read is made before: by an input, an initializer or a node of the same
//!   graph, or of a graph around it; each name is made once per graph (an inner graph may shadow an
//!   outer name; the innermost counts);
//! - `Graph::inputs` holds no name that is an initializer: those are constants;
//! - domains are written `""` for ONNX's own, never `ai.onnx`; model-local functions are inlined;
//! - If, Loop, Scan and SequenceMap have their graphs, with as many inputs and outputs as the node
//!   asks for (a node that lists fewer outputs than its graph makes is filled up with `""`);
//! - a tensor's data has exactly the bytes of its dims, in the layout that `kiln_kernels::dtype` states.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use kiln_kernels::Dtype;

/// ONNX's own operator domain.
pub const ONNX_DOMAIN: &str = "";

/// A model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Version of the file format.
    pub ir_version: i64,
    /// Version of each imported operator domain.
    pub opsets: BTreeMap<String, i64>,
    /// Program that wrote the file, and its version.
    pub producer: (String, String),
    /// Name space of the model.
    pub domain: String,
    /// Version of the model itself.
    pub model_version: i64,
    /// Text for people.
    pub doc: String,
    /// Free keys and values.
    pub metadata: BTreeMap<String, String>,
    /// The graph to run.
    pub graph: Graph,
}

#[cfg(test)]
impl Model {
    /// A model of this graph, with nothing else said.
    pub(crate) fn of(graph: Graph) -> Self {
        Self {
            ir_version: 8,
            opsets: BTreeMap::from([(ONNX_DOMAIN.to_owned(), 17)]),
            producer: Default::default(),
            domain: String::new(),
            model_version: 0,
            doc: String::new(),
            metadata: BTreeMap::new(),
            graph,
        }
    }
}

/// A graph: the model's, or one that is an attribute of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The graph's name.
    pub name: String,
    /// Text for people.
    pub doc: String,
    /// Inputs in order, those that are initializers left out.
    pub inputs: Vec<ValueInfo>,
    /// Outputs in order; one name may stand twice, and may be an input or an initializer.
    pub outputs: Vec<ValueInfo>,
    /// Types of values between, as far as the exporter knew. Hints: they may be wrong.
    pub value_infos: Vec<ValueInfo>,
    /// Constants by name, in the file's order.
    pub initializers: Vec<(String, Tensor)>,
    /// The nodes in topological order.
    pub nodes: Vec<Node>,
}

/// A value's name and type.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueInfo {
    /// The value's name.
    pub name: String,
    /// Its type; always known for the model's inputs, else as far as the file states one.
    pub ty: Option<Type>,
    /// Text for people.
    pub doc: String,
}

/// A value's type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// A dense tensor; no dims when not even the rank is known.
    Tensor(Dtype, Option<Vec<Dim>>),
    /// A sparse tensor.
    SparseTensor(Dtype, Option<Vec<Dim>>),
    /// A list of values of one type.
    Sequence(Box<Type>),
    /// A value or none.
    Optional(Box<Type>),
    /// Keys of an element type to values.
    Map(Dtype, Box<Type>),
    /// A type that ONNX does not define: domain and name.
    Opaque(String, String),
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(dtype, dims) => write_tensor_type(f, *dtype, dims),
            Type::SparseTensor(dtype, dims) => {
                f.write_str("sparse ")?;
                write_tensor_type(f, *dtype, dims)
            }
            Type::Sequence(element) => write!(f, "sequence({element})"),
            Type::Optional(element) => write!(f, "optional({element})"),
            Type::Map(key, value) => write!(f, "map({key}, {value})"),
            Type::Opaque(domain, name) => write!(f, "opaque({domain}, {name})"),
        }
    }
}

fn write_tensor_type(f: &mut fmt::Formatter<'_>, dtype: Dtype, dims: &Option<Vec<Dim>>) -> fmt::Result {
    write!(f, "{dtype}")?;
    let Some(dims) = dims else {
        return f.write_str("[..]");
    };
    f.write_str("[")?;
    for (i, dim) in dims.iter().enumerate() {
        write!(f, "{}{dim}", if i > 0 { "," } else { "" })?;
    }
    f.write_str("]")
}

/// One extent as the file states it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A fixed extent.
    Known(usize),
    /// A name: equal names are equal extents.
    Symbol(String),
    /// Not stated (also written -1 in some files).
    Unknown,
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(extent) => write!(f, "{extent}"),
            Dim::Symbol(name) => f.write_str(name),
            Dim::Unknown => f.write_str("?"),
        }
    }
}

/// One operator call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// The node's name; may be empty, need not be unique.
    pub name: String,
    /// The operator's domain, `""` for ONNX's own.
    pub domain: String,
    /// The operator.
    pub op_type: String,
    /// Which of several operators of that name.
    pub overload: String,
    /// Version of the domain that the node was written for: the model's import, or that of the
    /// function it was inlined from.
    pub version: i64,
    /// Names of the operands; `""` is absent.
    pub inputs: Vec<String>,
    /// Names of the results; `""` is not wanted.
    pub outputs: Vec<String>,
    /// The attributes by name.
    pub attributes: BTreeMap<String, Attribute>,
    /// Text for people.
    pub doc: String,
    /// Attributes of a function's body that are the function's own; empty once inlined.
    pub(crate) attribute_refs: Vec<AttributeRef>,
}

impl Node {
    /// What to call the node in a message: its name, else its first output's, else its operator.
    pub fn label(&self) -> &str {
        if !self.name.is_empty() {
            return &self.name;
        }
        self.outputs.iter().find(|name| !name.is_empty()).unwrap_or(&self.op_type)
    }

    /// Name of operand `input_idx`, if it is given.
    pub fn input(&self, input_idx: usize) -> Option<&str> {
        self.inputs.get(input_idx).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The graphs among the attributes, each with its attribute's name.
    pub fn subgraphs(&self) -> impl Iterator<Item = (&str, &Graph)> {
        self.attributes
            .iter()
            .flat_map(|(name, attribute)| attribute.graphs().iter().map(move |graph| (name.as_str(), graph)))
    }

    /// The same, to change.
    pub(super) fn subgraphs_mut(&mut self) -> impl Iterator<Item = (&str, &mut Graph)> {
        self.attributes
            .iter_mut()
            .flat_map(|(name, attribute)| attribute.graphs_mut().iter_mut().map(move |graph| (name.as_str(), graph)))
    }
}

/// `name` of a node in a function's body takes the value of the function's attribute `refers_to`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttributeRef {
    pub(super) name: String,
    pub(super) refers_to: String,
    /// The kind that the file states, if it does; as [`Attribute::kind`].
    pub(super) kind: Option<&'static str>,
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// FLOAT.
    Float(f32),
    /// INT.
    Int(i64),
    /// STRING; UTF-8 by convention only.
    Str(Bytes),
    /// TENSOR.
    Tensor(Tensor),
    /// SPARSE_TENSOR, made dense.
    SparseTensor(Tensor),
    /// GRAPH.
    Graph(Box<Graph>),
    /// TYPE_PROTO.
    Type(Type),
    /// FLOATS.
    Floats(Vec<f32>),
    /// INTS.
    Ints(Vec<i64>),
    /// STRINGS.
    Strings(Vec<Bytes>),
    /// TENSORS.
    Tensors(Vec<Tensor>),
    /// SPARSE_TENSORS, made dense.
    SparseTensors(Vec<Tensor>),
    /// GRAPHS.
    Graphs(Vec<Graph>),
    /// TYPE_PROTOS.
    Types(Vec<Type>),
}

impl Attribute {
    /// ONNX's word for the kind of value.
    pub fn kind(&self) -> &'static str {
        match self {
            Attribute::Float(_) => "FLOAT",
            Attribute::Int(_) => "INT",
            Attribute::Str(_) => "STRING",
            Attribute::Tensor(_) => "TENSOR",
            Attribute::SparseTensor(_) => "SPARSE_TENSOR",
            Attribute::Graph(_) => "GRAPH",
            Attribute::Type(_) => "TYPE_PROTO",
            Attribute::Floats(_) => "FLOATS",
            Attribute::Ints(_) => "INTS",
            Attribute::Strings(_) => "STRINGS",
            Attribute::Tensors(_) => "TENSORS",
            Attribute::SparseTensors(_) => "SPARSE_TENSORS",
            Attribute::Graphs(_) => "GRAPHS",
            Attribute::Types(_) => "TYPE_PROTOS",
        }
    }

    /// The graphs it holds: none, one, or a list.
    pub fn graphs(&self) -> &[Graph] {
        match self {
            Attribute::Graph(graph) => std::slice::from_ref(graph),
            Attribute::Graphs(graphs) => graphs,
            _ => &[],
        }
    }

    pub(super) fn graphs_mut(&mut self) -> &mut [Graph] {
        match self {
            Attribute::Graph(graph) => std::slice::from_mut(graph),
            Attribute::Graphs(graphs) => graphs,
            _ => &mut [],
        }
    }
}

/// A constant tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Element type.
    pub dtype: Dtype,
    /// Extents; none for a scalar.
    pub dims: Vec<usize>,
    /// The elements in row-major order.
    pub data: TensorData,
}

impl Tensor {
    /// Number of elements. (Invariant: the product was checked when the tensor was made.)
    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// The elements as bytes, little endian, in kiln's layout; `None` for strings. The slice may
    /// lie at any address: read numbers with `from_le_bytes`.
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.data {
            TensorData::Bytes(bytes) => Some(bytes),
            TensorData::Strings(_) => None,
        }
    }

    /// The elements of an i64 or i32 tensor.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        let bytes = self.bytes()?;
        match self.dtype {
            Dtype::I64 => Some(bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect()),
            Dtype::I32 => Some(bytes.as_chunks::<4>().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect()),
            _ => None,
        }
    }
}

/// The elements of a tensor. Cloning shares them.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorData {
    /// Fixed-size elements in kiln's layout.
    Bytes(Bytes),
    /// Strings.
    Strings(Arc<Vec<Bytes>>),
}
