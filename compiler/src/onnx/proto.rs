//! ONNX's protobuf messages, as prost types: bytes in and out, nothing checked.
//!
//! Written by hand from `onnx.proto` (IR version 14) so that neither `protoc` nor a build script is
//! needed; field numbers are that file's. The same types read models and write fixtures. Scalars
//! whose absence means something are `Option`; the others read as their default when absent.
//! `bytes` fields are [`Bytes`]: decoding from `Bytes` shares the file's memory instead of copying.
//! Sharding and device fields (IR 11 and later) carry no meaning for one machine and are skipped.
//!
//! Invariant: prost refuses nesting deeper than 100 messages, so recursion over these types is
//! bounded.
//! Source: <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto> and `onnx-data.proto`.

use bytes::Bytes;
use prost::{Message, Oneof};

/// A key and its value: metadata, external data.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StringStringEntryProto {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// The version of one operator domain that a model or function uses.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OperatorSetIdProto {
    /// The domain; empty or `ai.onnx` for ONNX's own.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A whole model file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Version of the file format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// Operator sets that the graph uses.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Program that wrote the file.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// That program's version.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// Name space of the model.
    #[prost(string, tag = "4")]
    pub domain: String,
    /// Version of the model itself.
    #[prost(int64, tag = "5")]
    pub model_version: i64,
    /// Text for people.
    #[prost(string, tag = "6")]
    pub doc_string: String,
    /// The graph to run.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// Free keys and values.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
    /// Model-local functions.
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

/// A graph: the model's, or one that is an attribute of a control-flow node.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// The nodes, in topological order by the specification.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// The graph's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Constant tensors by name.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// Constant tensors stored as non-zeros.
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
    /// Text for people.
    #[prost(string, tag = "10")]
    pub doc_string: String,
    /// Inputs, in order.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// Outputs, in order.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// Types of values between them, as far as the exporter knew.
    #[prost(message, repeated, tag = "13")]
    pub value_info: Vec<ValueInfoProto>,
    /// Free keys and values.
    #[prost(message, repeated, tag = "16")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// One operator call.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of the operands; an empty one is absent.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of the results; an empty one is not wanted.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// The node's name, for people.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// The operator's domain.
    #[prost(string, tag = "7")]
    pub domain: String,
    /// Which of several functions of that name.
    #[prost(string, tag = "8")]
    pub overload: String,
    /// The attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// Text for people.
    #[prost(string, tag = "6")]
    pub doc_string: String,
    /// Free keys and values.
    #[prost(message, repeated, tag = "9")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// `AttributeProto.AttributeType`: which value field counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum AttributeType {
    /// Not said (files before IR 2).
    Undefined = 0,
    /// `f`.
    Float = 1,
    /// `i`.
    Int = 2,
    /// `s`.
    String = 3,
    /// `t`.
    Tensor = 4,
    /// `g`.
    Graph = 5,
    /// `floats`.
    Floats = 6,
    /// `ints`.
    Ints = 7,
    /// `strings`.
    Strings = 8,
    /// `tensors`.
    Tensors = 9,
    /// `graphs`.
    Graphs = 10,
    /// `sparse_tensor`.
    SparseTensor = 11,
    /// `sparse_tensors`.
    SparseTensors = 12,
    /// `tp`.
    TypeProto = 13,
    /// `type_protos`.
    TypeProtos = 14,
}

/// A named attribute of a node.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// The attribute's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// In a function's body: the function's attribute whose value to take.
    #[prost(string, tag = "21")]
    pub ref_attr_name: String,
    /// Text for people.
    #[prost(string, tag = "13")]
    pub doc_string: String,
    /// An [`AttributeType`].
    #[prost(int32, tag = "20")]
    pub r#type: i32,
    /// A float.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// An integer.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// A string.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub s: Option<Bytes>,
    /// A tensor.
    #[prost(message, optional, boxed, tag = "5")]
    pub t: Option<Box<TensorProto>>,
    /// A graph.
    #[prost(message, optional, boxed, tag = "6")]
    pub g: Option<Box<GraphProto>>,
    /// A sparse tensor.
    #[prost(message, optional, boxed, tag = "22")]
    pub sparse_tensor: Option<Box<SparseTensorProto>>,
    /// A type.
    #[prost(message, optional, boxed, tag = "14")]
    pub tp: Option<Box<TypeProto>>,
    /// Floats.
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub floats: Vec<f32>,
    /// Integers.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// Strings.
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    /// Tensors.
    #[prost(message, repeated, tag = "10")]
    pub tensors: Vec<TensorProto>,
    /// Graphs.
    #[prost(message, repeated, tag = "11")]
    pub graphs: Vec<GraphProto>,
    /// Sparse tensors.
    #[prost(message, repeated, tag = "23")]
    pub sparse_tensors: Vec<SparseTensorProto>,
    /// Types.
    #[prost(message, repeated, tag = "15")]
    pub type_protos: Vec<TypeProto>,
}

/// A value's name and type.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// The value's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
    /// Text for people.
    #[prost(string, tag = "3")]
    pub doc_string: String,
}

/// `TensorProto.DataLocation.EXTERNAL`.
pub const EXTERNAL: i32 = 1;

/// A tensor with its data.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// Extents.
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// `TensorProto.DataType`, see `Dtype::from_onnx`.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Part of a larger tensor; obsolete.
    #[prost(message, optional, tag = "3")]
    pub segment: Option<SegmentProto>,
    /// Elements of FLOAT and COMPLEX64.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Elements of the narrower integers and of the bit patterns of narrow floats.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// Elements of STRING.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<Bytes>,
    /// Elements of INT64.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// The tensor's name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Text for people.
    #[prost(string, tag = "12")]
    pub doc_string: String,
    /// All elements, little endian.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    /// Where the data lies outside this file: location, offset, length.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 0, or [`EXTERNAL`].
    #[prost(int32, tag = "14")]
    pub data_location: i32,
    /// Elements of DOUBLE and COMPLEX128.
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// Elements of UINT64 and UINT32.
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
}

/// `TensorProto.Segment`; obsolete.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SegmentProto {
    /// First element.
    #[prost(int64, tag = "1")]
    pub begin: i64,
    /// One past the last.
    #[prost(int64, tag = "2")]
    pub end: i64,
}

/// A tensor given by its non-zero elements.
#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorProto {
    /// The non-zeros, `[NNZ]`; its name is the tensor's.
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
    /// Their places: `[NNZ]` linear or `[NNZ, rank]`, ascending.
    #[prost(message, optional, tag = "2")]
    pub indices: Option<TensorProto>,
    /// Extents of the dense tensor.
    #[prost(int64, repeated, packed = "false", tag = "3")]
    pub dims: Vec<i64>,
}

/// A list of extents.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TensorShapeProto {
    /// The extents.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// One extent: a number, a name, or neither.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DimensionProto {
    /// The extent.
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub value: Option<DimensionValue>,
    /// What the axis stands for.
    #[prost(string, tag = "3")]
    pub denotation: String,
}

/// `TensorShapeProto.Dimension.value`.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum DimensionValue {
    /// A fixed extent.
    #[prost(int64, tag = "1")]
    DimValue(i64),
    /// A name: equal names are equal extents.
    #[prost(string, tag = "2")]
    DimParam(String),
}

/// A value's type.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TypeProto {
    /// The type.
    #[prost(oneof = "TypeValue", tags = "1, 4, 5, 7, 8, 9")]
    pub value: Option<TypeValue>,
    /// What the value stands for.
    #[prost(string, tag = "6")]
    pub denotation: String,
}

/// `TypeProto.value`.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum TypeValue {
    /// A dense tensor.
    #[prost(message, tag = "1")]
    Tensor(TensorTypeProto),
    /// A list of equal types.
    #[prost(message, tag = "4")]
    Sequence(Box<ElementTypeProto>),
    /// Keys to values.
    #[prost(message, tag = "5")]
    Map(Box<MapTypeProto>),
    /// A type outside ONNX.
    #[prost(message, tag = "7")]
    Opaque(OpaqueTypeProto),
    /// A sparse tensor.
    #[prost(message, tag = "8")]
    SparseTensor(TensorTypeProto),
    /// A value or none.
    #[prost(message, tag = "9")]
    Optional(Box<ElementTypeProto>),
}

/// `TypeProto.Tensor` and `TypeProto.SparseTensor`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TensorTypeProto {
    /// `TensorProto.DataType`.
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// The extents; absent when not even the rank is known.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// `TypeProto.Sequence` and `TypeProto.Optional`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ElementTypeProto {
    /// Type of the elements.
    #[prost(message, optional, boxed, tag = "1")]
    pub elem_type: Option<Box<TypeProto>>,
}

/// `TypeProto.Map`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MapTypeProto {
    /// `TensorProto.DataType` of the keys.
    #[prost(int32, tag = "1")]
    pub key_type: i32,
    /// Type of the values.
    #[prost(message, optional, boxed, tag = "2")]
    pub value_type: Option<Box<TypeProto>>,
}

/// `TypeProto.Opaque`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OpaqueTypeProto {
    /// The type's domain.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The type's name.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// A model-local function.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionProto {
    /// The function's name, used as `op_type`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Names of the inputs, in order.
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    /// Names of the outputs, in order.
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    /// Attributes without a default.
    #[prost(string, repeated, tag = "6")]
    pub attribute: Vec<String>,
    /// Attributes with their default.
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
    /// The body.
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    /// Text for people.
    #[prost(string, tag = "8")]
    pub doc_string: String,
    /// Operator sets that the body uses.
    #[prost(message, repeated, tag = "9")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// The function's domain.
    #[prost(string, tag = "10")]
    pub domain: String,
    /// Tells functions of one name apart.
    #[prost(string, tag = "13")]
    pub overload: String,
    /// Types of values in the body.
    #[prost(message, repeated, tag = "12")]
    pub value_info: Vec<ValueInfoProto>,
    /// Free keys and values.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// A sequence as test data stores it.
#[derive(Clone, PartialEq, Message)]
pub struct SequenceProto {
    /// The value's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// 1 tensor, 2 sparse tensor, 3 sequence, 4 map, 5 optional.
    #[prost(int32, tag = "2")]
    pub elem_type: i32,
    /// Elements of kind 1.
    #[prost(message, repeated, tag = "3")]
    pub tensor_values: Vec<TensorProto>,
    /// Elements of kind 2.
    #[prost(message, repeated, tag = "4")]
    pub sparse_tensor_values: Vec<SparseTensorProto>,
    /// Elements of kind 3.
    #[prost(message, repeated, tag = "5")]
    pub sequence_values: Vec<SequenceProto>,
    /// Elements of kind 4.
    #[prost(message, repeated, tag = "6")]
    pub map_values: Vec<MapProto>,
    /// Elements of kind 5.
    #[prost(message, repeated, tag = "7")]
    pub optional_values: Vec<OptionalProto>,
}

/// A map as test data stores it.
#[derive(Clone, PartialEq, Message)]
pub struct MapProto {
    /// The value's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `TensorProto.DataType` of the keys.
    #[prost(int32, tag = "2")]
    pub key_type: i32,
    /// Integer keys.
    #[prost(int64, repeated, packed = "false", tag = "3")]
    pub keys: Vec<i64>,
    /// String keys.
    #[prost(bytes = "bytes", repeated, tag = "4")]
    pub string_keys: Vec<Bytes>,
    /// The values, as many as keys.
    #[prost(message, optional, boxed, tag = "5")]
    pub values: Option<Box<SequenceProto>>,
}

/// An optional value as test data stores it.
#[derive(Clone, PartialEq, Message)]
pub struct OptionalProto {
    /// The value's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// 0 none, 1 tensor, 2 sparse tensor, 3 sequence, 4 map, 5 optional.
    #[prost(int32, tag = "2")]
    pub elem_type: i32,
    /// A value of kind 1.
    #[prost(message, optional, tag = "3")]
    pub tensor_value: Option<TensorProto>,
    /// A value of kind 2.
    #[prost(message, optional, tag = "4")]
    pub sparse_tensor_value: Option<SparseTensorProto>,
    /// A value of kind 3.
    #[prost(message, optional, boxed, tag = "5")]
    pub sequence_value: Option<Box<SequenceProto>>,
    /// A value of kind 4.
    #[prost(message, optional, boxed, tag = "6")]
    pub map_value: Option<Box<MapProto>>,
    /// A value of kind 5.
    #[prost(message, optional, boxed, tag = "7")]
    pub optional_value: Option<Box<OptionalProto>>,
}
