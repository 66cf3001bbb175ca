//! ONNX bytes → decoded model: reading, every check of structure, and nothing about operators.
//!
//! In: a model file (and the files of its external data). Out: a [`model::Model`] that keeps the
//! invariants stated there, or every problem that was found. IR versions 3 to 14, opsets 1 to 28.
//!
//! The way: `proto` (protobuf) → `decode` (with `tensor`, `sparse`, `external`, `opset`: pieces) →
//! `function` (model-local functions inlined) → `scope` (names, topological order) → `control`
//! (graphs of control flow). Initializers that are also graph inputs are constants: what a caller
//! could override at run time elsewhere is baked in here. Training information is ignored.
//!
//! Nothing here panics, hangs, or takes memory out of proportion to the files.

mod control;
mod decode;
mod external;
mod function;
pub mod model;
mod opset;
pub mod proto;
mod scope;
mod sparse;
mod tensor;
#[cfg(test)]
mod testing;
mod value;
mod wire;
mod write;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;

pub use model::Model;
pub use opset::MAX_ONNX_OPSET;
pub use value::{Value, read_optional, read_sequence, read_tensor, read_value};
pub use write::{encode, write};

use crate::error::{CompileError, CompileErrors, Stage};
use decode::{Decoder, Place, error, normal_domain};
use external::ExternalFiles;
use function::{Functions, check_no_references};
use model::ONNX_DOMAIN;
use opset::Opsets;
use proto::ModelProto;
use sparse::DenseBudget;

/// Versions of the file format that are understood.
pub const IR_VERSIONS: std::ops::RangeInclusive<i64> = 3..=14;

/// A decoded model and what it was decoded from.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// The model.
    pub model: Model,
    /// The bytes of the model file (its tensors share them).
    pub source: Bytes,
    /// Files of external data that were read: a change in one asks for a rebuild.
    pub external_files: Vec<PathBuf>,
}

/// Reads and decodes a model file; external data lies beside it.
pub fn read(path: impl AsRef<Path>) -> Result<Decoded, CompileErrors> {
    let path = path.as_ref();
    let bytes = std::fs::read(path)
        .map_err(|io| CompileError::new(Stage::Read, format!("cannot read {}: {io}", path.display())))?;
    decode(Bytes::from(bytes), path.parent())
}

/// Decodes a model from memory. External data is looked for in `folder`; without one it is an error.
pub fn decode(source: impl Into<Bytes>, folder: Option<&Path>) -> Result<Decoded, CompileErrors> {
    let source = source.into();
    let proto = parse(&source)?;
    let mut decoder = Decoder {
        files: ExternalFiles::new(folder),
        dense: DenseBudget::for_file(source.len()),
        callable: proto.functions.iter().map(|f| (normal_domain(f.domain.clone()), f.name.clone())).collect(),
        errors: CompileErrors::default(),
    };
    let model = decode_model(proto, &mut decoder);
    let Decoder { files, errors, .. } = decoder;
    match model {
        Some(model) => errors.or_ok(Decoded { model, source, external_files: files.into_paths() }),
        None => Err(errors),
    }
}

/// Parses a model, or says in words what the bytes are instead.
fn parse(source: &Bytes) -> Result<ModelProto, CompileError> {
    let fault = |why: String| CompileError::new(Stage::Decode, format!("not an ONNX model: {why}"));
    if source.is_empty() {
        return Err(fault("the file is empty".to_owned()));
    }
    if source.starts_with(b"PK\x03\x04") {
        return Err(fault("the file is a zip archive".to_owned()));
    }
    wire::check(source).map_err(fault)?;
    ModelProto::decode(source.clone()).map_err(|e| fault(decode_fault(&e)))
}

/// prost's message without its own introduction.
fn decode_fault(e: &prost::DecodeError) -> String {
    e.to_string().replace("failed to decode Protobuf message: ", "malformed protobuf: ")
}

fn decode_model(proto: ModelProto, decoder: &mut Decoder) -> Option<Model> {
    if !IR_VERSIONS.contains(&proto.ir_version) {
        let (low, high) = (IR_VERSIONS.start(), IR_VERSIONS.end());
        let message = format!("IR version {} is outside of {low} to {high}", proto.ir_version);
        decoder.errors.push(error(message).at("ir_version"));
    }
    let opsets = Opsets::decode(proto.opset_import, &mut decoder.errors);
    if opsets.is_empty() {
        decoder.errors.push(error("is missing: no operator has a version").at("opset_import"));
    }
    let Some(graph) = proto.graph else {
        decoder.errors.push(error("the model has no graph"));
        return None;
    };
    let onnx_version = opsets.version_of(ONNX_DOMAIN).unwrap_or(1);
    let mut graph = decoder.graph(graph, &opsets, Place::Main);
    check_no_references(&graph, &mut decoder.errors);
    let before_functions = decoder.errors.len();
    let functions = proto.functions.into_iter().map(|function| decoder.function(function)).collect();
    let functions = Functions::check(functions, &mut decoder.errors);
    let is_whole =
        decoder.errors.len() > before_functions || functions.inline(&mut graph, onnx_version, &mut decoder.errors);
    if is_whole {
        scope::order_graph(&mut graph, &mut decoder.errors);
        control::check_control(&mut graph, &mut decoder.errors);
    }
    Some(Model {
        ir_version: proto.ir_version,
        opsets: opsets.into_versions(),
        producer: (proto.producer_name, proto.producer_version),
        domain: proto.domain,
        model_version: proto.model_version,
        doc: proto.doc_string,
        metadata: proto.metadata_props.into_iter().map(|entry| (entry.key, entry.value)).collect(),
        graph,
    })
}
