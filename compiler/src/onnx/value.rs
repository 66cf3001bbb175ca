//! Test data: tensors, sequences and optional values in files of their own.
//!
//! In: the bytes of a `.pb` file of ONNX's test layout. The bytes do not say which message they are;
//! the model's input or output type does. Out: a [`Value`].
//! Source: `onnx-data.proto`.

use bytes::Bytes;

use super::decode::error;
use super::decode_fault;
use super::external::ExternalFiles;
use super::model::{Tensor, Type};
use super::proto::{MapProto, OptionalProto, SequenceProto, SparseTensorProto, TensorProto};
use super::sparse::{DenseBudget, decode_sparse};
use super::tensor::decode_tensor;
use crate::error::{CompileError, CompileErrors};

/// A value at the model's border.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A tensor (sparse ones are made dense).
    Tensor(Tensor),
    /// A list.
    Sequence(Vec<Value>),
    /// A value or none.
    Optional(Option<Box<Value>>),
    /// Keys and values.
    Map(Vec<(MapKey, Value)>),
}

/// A key of a map.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MapKey {
    /// An integer of any width.
    Int(i64),
    /// A string.
    Str(Bytes),
}

/// Decodes a `TensorProto`; the name it carries comes with it.
pub fn read_tensor(bytes: impl Into<Bytes>) -> Result<(String, Tensor), CompileErrors> {
    let bytes = bytes.into();
    let mut proto: TensorProto = parse(&bytes, "a tensor")?;
    let name = std::mem::take(&mut proto.name);
    Ok((name, decode_tensor(proto, &mut ExternalFiles::new(None))?))
}

/// Decodes a `SequenceProto`.
pub fn read_sequence(bytes: impl Into<Bytes>) -> Result<(String, Value), CompileErrors> {
    let bytes = bytes.into();
    let mut proto: SequenceProto = parse(&bytes, "a sequence")?;
    let name = std::mem::take(&mut proto.name);
    Ok((name, ValueDecoder::new(bytes.len()).sequence(proto)?))
}

/// Decodes an `OptionalProto`.
pub fn read_optional(bytes: impl Into<Bytes>) -> Result<(String, Value), CompileErrors> {
    let bytes = bytes.into();
    let mut proto: OptionalProto = parse(&bytes, "an optional value")?;
    let name = std::mem::take(&mut proto.name);
    Ok((name, ValueDecoder::new(bytes.len()).optional(proto)?))
}

/// Decodes the message that a value of type `ty` is stored as.
pub fn read_value(bytes: impl Into<Bytes>, ty: &Type) -> Result<(String, Value), CompileErrors> {
    match ty {
        Type::Tensor(..) => read_tensor(bytes).map(|(name, tensor)| (name, Value::Tensor(tensor))),
        Type::Sequence(_) => read_sequence(bytes),
        Type::Optional(_) => read_optional(bytes),
        Type::SparseTensor(..) => {
            let bytes = bytes.into();
            let proto: SparseTensorProto = parse(&bytes, "a sparse tensor")?;
            let name = proto.values.as_ref().map(|values| values.name.clone()).unwrap_or_default();
            Ok((name, ValueDecoder::new(bytes.len()).sparse(proto)?))
        }
        Type::Map(..) => {
            let bytes = bytes.into();
            let mut proto: MapProto = parse(&bytes, "a map")?;
            let name = std::mem::take(&mut proto.name);
            Ok((name, ValueDecoder::new(bytes.len()).map(proto)?))
        }
        Type::Opaque(..) => Err(error(format!("a value of type {ty} cannot be read")).into()),
    }
}

/// A message; nothing at all is one whose fields all have their default.
fn parse<M: prost::Message + Default>(bytes: &Bytes, what: &str) -> Result<M, CompileError> {
    M::decode(bytes.clone()).map_err(|e| error(format!("not {what}: {}", decode_fault(&e))))
}

struct ValueDecoder {
    files: ExternalFiles,
    dense: DenseBudget,
}

impl ValueDecoder {
    fn new(file_bytes: usize) -> Self {
        ValueDecoder { files: ExternalFiles::new(None), dense: DenseBudget::for_file(file_bytes) }
    }

    fn tensor(&mut self, proto: TensorProto) -> Result<Value, CompileError> {
        decode_tensor(proto, &mut self.files).map(Value::Tensor)
    }

    fn sparse(&mut self, proto: SparseTensorProto) -> Result<Value, CompileError> {
        decode_sparse(proto, &mut self.files, &mut self.dense).map(Value::Tensor)
    }

    fn sequence(&mut self, proto: SequenceProto) -> Result<Value, CompileError> {
        let filled = [
            (1, proto.tensor_values.len()),
            (2, proto.sparse_tensor_values.len()),
            (3, proto.sequence_values.len()),
            (4, proto.map_values.len()),
            (5, proto.optional_values.len()),
        ];
        if filled.iter().any(|(kind, len)| *len > 0 && *kind != proto.elem_type) {
            return Err(error(format!("sequence of element kind {} has elements of another", proto.elem_type)));
        }
        let elements: Result<Vec<Value>, CompileError> = match proto.elem_type {
            0 | 1 => proto.tensor_values.into_iter().map(|tensor| self.tensor(tensor)).collect(),
            2 => proto.sparse_tensor_values.into_iter().map(|tensor| self.sparse(tensor)).collect(),
            3 => proto.sequence_values.into_iter().map(|sequence| self.sequence(sequence)).collect(),
            4 => proto.map_values.into_iter().map(|map| self.map(map)).collect(),
            5 => proto.optional_values.into_iter().map(|optional| self.optional(optional)).collect(),
            kind => Err(error(format!("sequence element kind {kind} is not one ONNX defines"))),
        };
        elements.map(Value::Sequence)
    }

    fn optional(&mut self, proto: OptionalProto) -> Result<Value, CompileError> {
        let value = match proto.elem_type {
            0 => None,
            1 => proto.tensor_value.map(|tensor| self.tensor(tensor)),
            2 => proto.sparse_tensor_value.map(|tensor| self.sparse(tensor)),
            3 => proto.sequence_value.map(|sequence| self.sequence(*sequence)),
            4 => proto.map_value.map(|map| self.map(*map)),
            5 => proto.optional_value.map(|optional| self.optional(*optional)),
            kind => {
                return Err(error(format!("optional element kind {kind} is not one ONNX defines")));
            }
        };
        Ok(Value::Optional(value.transpose()?.map(Box::new)))
    }

    fn map(&mut self, proto: MapProto) -> Result<Value, CompileError> {
        let keys: Vec<MapKey> = match (proto.keys.is_empty(), proto.string_keys.is_empty()) {
            (false, false) => return Err(error("map has keys of two kinds")),
            (_, true) => proto.keys.into_iter().map(MapKey::Int).collect(),
            (true, false) => proto.string_keys.into_iter().map(MapKey::Str).collect(),
        };
        let values = match proto.values.map(|values| self.sequence(*values)).transpose()? {
            Some(Value::Sequence(values)) => values,
            _ => Vec::new(),
        };
        if keys.len() != values.len() {
            return Err(error(format!("map has {} keys and {} values", keys.len(), values.len())));
        }
        Ok(Value::Map(keys.into_iter().zip(values).collect()))
    }
}
