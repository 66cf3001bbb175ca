//! ONNX bytes → decoded model: reading, every check of structure, and nothing about operators.
//!
//! In: a model file (and the files of its external data). Out: a [`model::Model`] that keeps the
//! invariants stated there, or every problem that was found. IR versions 3 to 14, opsets 1 to 28.
//!
//! The way: `proto` (protobuf) → `decode` (with `tensor`, `sparse`, `external`, `opset`: pieces) →
//! `function`, `inline` (model-local functions) → `scope` (names, topological order) → `control`
//! (graphs of control flow) → `scan8` (an older form of Scan). Initializers that are also graph
//! inputs are constants: what a caller could override at run time elsewhere is baked in here.
//! Training information is ignored.
//!
//! Nothing here panics, hangs, or takes memory out of proportion to the files.

mod control;
mod decode;
mod external;
mod function;
mod inline;
pub mod model;
mod opset;
pub mod proto;
mod scan8;
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
        .map_err(|io| CompileError::new(Stage::Read, format!("cannot read {}: {io}{}", path.display(), meant(path))))?;
    decode(Bytes::from(bytes), path.parent())
}

/// What may have been meant by a folder: the model in it.
fn meant(path: &Path) -> String {
    let model = path.join("model.onnx");
    if model.is_file() { format!(": did you mean {}?", model.display()) } else { String::new() }
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
    let is_whole = decoder.errors.len() > before_functions
        || inline::inline(&functions, &mut graph, onnx_version, &mut decoder.errors);
    if is_whole {
        scope::order_graph(&mut graph, &mut decoder.errors);
        control::check_control(&mut graph, &mut decoder.errors);
        scan8::rewrite(&mut graph, &mut decoder.errors);
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

#[cfg(test)]
mod tests {
    use super::proto::*;
    use super::testing::*;
    use super::*;
    use model::{Attribute, Dim, Type};
    use std::io::{Seek, SeekFrom, Write};

    fn neg() -> GraphProto {
        graph(&["x"], &["y"], vec![node("Neg", &["x"], &["y"])])
    }

    #[test]
    fn versions() {
        for (imports, ir_version, wanted) in [
            (vec![opset("", 1)], 3, "none"),
            (vec![opset("ai.onnx", MAX_ONNX_OPSET)], 14, "none"),
            (vec![], 8, "opset_import: is missing: no operator has a version"),
            (vec![opset("other", 1)], 8, "node \"y\" (Neg): operator domain \"ai.onnx\" is not in opset_import"),
            (vec![opset("", 29)], 8, "opset_import: opset 29 is newer than 28, the newest that is understood"),
            (vec![opset("", 0)], 8, "opset_import: version 0 of \"ai.onnx\" is not one there is"),
            (vec![opset("", -5)], 8, "opset_import: version -5 of \"ai.onnx\" is not one there is"),
            (vec![opset("", 17), opset("o", -1)], 8, "opset_import: version -1 of \"o\" is not one there is"),
            (vec![opset("", 17)], 2, "ir_version: IR version 2 is outside of 3 to 14"),
            (vec![opset("", 17)], 15, "ir_version: IR version 15 is outside of 3 to 14"),
        ] {
            assert_eq!(problems(&ModelProto { opset_import: imports, ir_version, ..model(neg()) }), wanted);
        }
    }

    #[test]
    fn the_highest_of_two_imports_counts_and_microsofts_need_none() {
        let nodes = vec![node("Neg", &["x"], &["a"]).of("ai.onnx"), node("Gelu", &["a"], &["y"]).of("com.microsoft")];
        let imports = vec![opset("", 17), opset("ai.onnx", 9)];
        let decoded = decoded(&ModelProto { opset_import: imports, ..model(graph(&["x"], &["y"], nodes)) }).unwrap();
        let found: Vec<_> = decoded.model.graph.nodes.iter().map(|n| (n.domain.as_str(), n.version)).collect();
        assert_eq!(found, [("", 17), ("com.microsoft", 1)]);
        assert_eq!(decoded.model.opsets[""], 17);
    }

    #[test]
    fn initializers_that_are_inputs_are_constants() {
        let mut graph = graph(&["w", "x"], &["y", "w"], vec![node("Add", &["x", "w"], &["y"])]);
        graph.initializer = vec![tensor("w", &[2], &[1.0, 2.0])];
        let graph = decoded(&ModelProto { ir_version: 3, ..model(graph) }).unwrap().model.graph;
        assert_eq!(graph.inputs.iter().map(|input| &input.name).collect::<Vec<_>>(), ["x"]);
        assert_eq!(graph.inputs[0].ty, Some(Type::Tensor(kiln_kernels::Dtype::F32, Some(vec![Dim::Known(2)]))));
        assert_eq!(graph.initializers[0].1.bytes().map(|b| b.len()), Some(8));
    }

    #[test]
    fn attributes() {
        let with = |attribute: AttributeProto| {
            problems(&model(graph(&["x"], &["y"], vec![node("Op", &["x"], &["y"]).with(attribute)])))
        };
        let of = |kind: i32| AttributeProto { name: "a".to_owned(), r#type: kind, ..AttributeProto::default() };
        let at = |message: &str| format!("node \"y\" (Op), attribute \"a\": {message}");
        for (attribute, wanted) in [
            (int("a", 0), "none".to_owned()),
            (AttributeProto { i: Some(1), ..of(0) }, "none".to_owned()),
            (of(2), "none".to_owned()),
            (of(7), "none".to_owned()),
            (of(0), at("has neither a type nor a value")),
            (of(99), at("attribute type 99 is not one ONNX defines")),
            (of(4), at("is a TENSOR without a value")),
            (AttributeProto { f: Some(1.0), ..of(2) }, at("is declared INT, but its value is FLOAT")),
            (
                AttributeProto { t: Some(Box::new(tensor("", &[2], &[1.0]))), ..of(4) },
                at("dims [2] need 2 entries of float_data, found 1"),
            ),
            (AttributeProto { tp: Some(Box::default()), ..of(13) }, at("has no type")),
        ] {
            assert_eq!(with(attribute), wanted);
        }
        let twice = node("Op", &["x"], &["y"]).with(int("a", 1)).with(int("a", 2));
        assert_eq!(problems(&model(graph(&["x"], &["y"], vec![twice]))), at("is given twice"));
    }

    #[test]
    fn absent_numbers_are_zero_and_absent_lists_empty() {
        let of = |name: &str, kind| AttributeProto { name: name.to_owned(), r#type: kind, ..AttributeProto::default() };
        let made = node("Op", &["x"], &["y"]).with(of("i", 2)).with(of("is", 7)).with(of("s", 3));
        let graph = decoded(&model(graph(&["x"], &["y"], vec![made]))).unwrap().model.graph;
        let attributes = &graph.nodes[0].attributes;
        assert_eq!(attributes["i"], Attribute::Int(0));
        assert_eq!(attributes["is"], Attribute::Ints(vec![]));
        assert_eq!(attributes["s"], Attribute::Str(Bytes::new()));
    }

    #[test]
    fn types_of_inputs() {
        let mut sequence = value("x", &[]);
        let tensor_type = value("x", &[-1, 3]).r#type.map(Box::new);
        sequence.r#type = Some(TypeProto {
            value: Some(TypeValue::Sequence(Box::new(ElementTypeProto { elem_type: tensor_type }))),
            ..TypeProto::default()
        });
        let with = |input: ValueInfoProto| ModelProto { ..model(GraphProto { input: vec![input], ..neg() }) };
        let decoded = decoded(&with(sequence)).unwrap();
        assert_eq!(
            decoded.model.graph.inputs[0].ty.as_ref().map(Type::to_string),
            Some("sequence(f32[?,3])".to_owned())
        );
        for (input, wanted) in [
            (ValueInfoProto { r#type: None, ..value("x", &[]) }, "graph input \"x\": has no type"),
            (value("x", &[-2]), "graph input \"x\": dim -2 is out of range"),
        ] {
            assert_eq!(problems(&with(input)), wanted);
        }
    }

    #[test]
    fn bytes_that_are_no_model() {
        for (bytes, wanted) in [
            (&b""[..], "not an ONNX model: the file is empty"),
            (b"PK\x03\x04rest", "not an ONNX model: the file is a zip archive"),
            (b"\x3a\x05\x01", "not an ONNX model: malformed protobuf: ModelProto.graph: buffer underflow"),
        ] {
            let errors = decode(bytes, None).map(|_| ()).unwrap_err();
            assert_eq!(errors.to_string(), wanted);
        }
    }

    #[test]
    fn reading_gives_external_data_and_names_the_files() {
        let folder = std::env::temp_dir().join(format!("kiln-onnx-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        std::fs::write(folder.join("sub/w.bin"), [9u8, 9, 9, 9, 0, 0, 128, 63, 0, 0, 0, 64, 7]).unwrap();
        let entry = |key: &str, value: &str| StringStringEntryProto { key: key.to_owned(), value: value.to_owned() };
        let external = |offset: &str| TensorProto {
            float_data: vec![],
            data_location: EXTERNAL,
            external_data: vec![entry("location", "sub/w.bin"), entry("offset", offset)],
            ..tensor("w", &[2], &[])
        };
        let mut with_weights = graph(&["x"], &["y"], vec![node("Add", &["x", "w"], &["y"])]);
        with_weights.initializer = vec![external("4")];
        write(folder.join("m.onnx"), &model(with_weights.clone())).unwrap();
        let decoded = read(folder.join("m.onnx")).unwrap();
        let weights = &decoded.model.graph.initializers[0].1;
        assert_eq!(weights.bytes().map(|b| &b[..]), Some(&[0, 0, 128, 63, 0, 0, 0, 64][..]));
        assert_eq!(decoded.external_files, [folder.join("sub/w.bin")]);

        with_weights.initializer = vec![external("6")];
        write(folder.join("m.onnx"), &model(with_weights.clone())).unwrap();
        let errors = read(folder.join("m.onnx")).map(|_| ()).unwrap_err().to_string();
        assert_eq!(
            errors,
            "initializer \"w\": external data: 8 bytes at offset 6 are not all in \"sub/w.bin\", which has 13"
        );
        let alone = problems(&model(with_weights.clone()));
        assert!(alone.contains("needs the model's folder"), "{alone}");

        // Offsets beyond 4 GiB (in a file with a hole, which takes no room).
        let far = 5_u64 << 30;
        let mut file = std::fs::File::create(folder.join("sub/w.bin")).unwrap();
        file.seek(SeekFrom::Start(far)).unwrap();
        file.write_all(&[0, 0, 128, 63, 0, 0, 0, 64]).unwrap();
        with_weights.initializer = vec![external(&far.to_string())];
        write(folder.join("m.onnx"), &model(with_weights)).unwrap();
        let decoded = read(folder.join("m.onnx")).unwrap();
        assert_eq!(decoded.model.graph.initializers[0].1.bytes().map(|b| b[7]), Some(64));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// A graph that holds `depth` graphs within each other.
    fn nested_ifs(depth: usize) -> GraphProto {
        let innermost = graph(&[], &["r"], vec![node("Neg", &["x"], &["r"])]);
        (0..depth).fold(innermost, |inner, _| {
            let branches = node("If", &["c"], &["r"]).with(body("else_branch", inner.clone()));
            let then_branch = graph(&[], &["r"], vec![node("Neg", &["x"], &["r"])]);
            graph(&[], &["r"], vec![branches.with(body("then_branch", then_branch))])
        })
    }

    #[test]
    fn depth_is_bounded() {
        for (depth, wanted) in [(30, "none"), (60, "not an ONNX model: messages nest more than 100 deep")] {
            let nested = nested_ifs(depth);
            let nested = GraphProto { input: graph(&["x", "c"], &[], vec![]).input, ..nested };
            assert_eq!(problems(&model(nested)), wanted);
        }
        // Functions that call each other from within graphs nest deeper than any file.
        let function_of = |i: usize| {
            let call = node(&format!("F{}", i + 1), &["x", "c"], &["r"]).of("f");
            let branch = |name: &str, node: NodeProto| body(name, graph(&[], &["r"], vec![node]));
            let both = node("If", &["c"], &["y"]).with(branch("then_branch", call));
            let both = both.with(branch("else_branch", node("Neg", &["x"], &["r"])));
            function(&format!("F{i}"), &["x", "c"], &["y"], vec![both])
        };
        for (n_functions, wanted) in [(45, None), (60, Some("nest more than 100 deep"))] {
            let mut functions: Vec<_> = (0..n_functions).map(function_of).collect();
            functions.push(function(
                &format!("F{n_functions}"),
                &["x", "c"],
                &["y"],
                vec![node("Neg", &["x"], &["y"])],
            ));
            let main = graph(&["x", "c"], &["y"], vec![node("F0", &["x", "c"], &["y"]).of("f")]);
            let found = problems(&ModelProto { functions, ..model(main) });
            assert!(found.contains(wanted.unwrap_or("none")), "{found}");
        }
    }

    /// Every feature in one model, as seed for mutations.
    fn rich_model() -> ModelProto {
        let branch = |name: &str| {
            let mut inner = graph(&[], &["r"], vec![node("Add", &["a", "k"], &["r"])]);
            inner.initializer = vec![tensor("k", &[2], &[1.0, 2.0])];
            body(name, inner)
        };
        let mut f = function(
            "F",
            &["a", "c"],
            &["b"],
            vec![
                node("LeakyRelu", &["a"], &["t"]).with(reference("alpha", "slope", 1)),
                node("If", &["c"], &["b"]).with(branch("then_branch")).with(branch("else_branch")),
            ],
        );
        f.attribute_proto = vec![float("slope", 0.5)];
        let nodes = vec![
            node("Add", &["p", "w"], &["y"]).named("last"),
            node("F", &["x", "c"], &["p"]).of("f").with(float("slope", 0.25)),
            node("Constant", &[], &["z"]).with(AttributeProto {
                name: "value".to_owned(),
                t: Some(Box::new(TensorProto {
                    raw_data: Some(Bytes::from_static(&[0x21, 3])),
                    dims: vec![3],
                    data_type: 21,
                    ..TensorProto::default()
                })),
                r#type: 4,
                ..AttributeProto::default()
            }),
        ];
        let mut graph = graph(&["x", "c"], &["y", "z"], nodes);
        graph.initializer = vec![tensor("w", &[2], &[1.0, 2.0])];
        graph.sparse_initializer = vec![SparseTensorProto {
            values: Some(tensor("s", &[1], &[3.0])),
            indices: Some(TensorProto { data_type: 7, dims: vec![1], int64_data: vec![4], ..TensorProto::default() }),
            dims: vec![2, 3],
        }];
        ModelProto { functions: vec![f], ..model(graph) }
    }

    #[test]
    fn mutated_files_never_panic() {
        let seed = encode(&rich_model());
        decode(seed.clone(), None).unwrap();
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as usize % below
        };
        let rounds = std::env::var("KILN_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
        let mut n_decoded = 0;
        for _ in 0..rounds {
            let mut bytes = seed.clone();
            for _ in 0..1 + random(4) {
                let at = random(bytes.len());
                match random(5) {
                    0 => bytes[at] = random(256) as u8,
                    1 => bytes[at] ^= 1 << random(8),
                    2 => drop(bytes.splice(at..at, [random(256) as u8])),
                    3 => drop(bytes.drain(at..(at + 1 + random(8)).min(bytes.len()))),
                    _ => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random(5)],
                }
                if bytes.is_empty() {
                    break;
                }
            }
            match decode(bytes, None) {
                Ok(_) => n_decoded += 1,
                Err(errors) => assert!(!errors.is_empty() && !errors.to_string().is_empty()),
            }
        }
        assert!(n_decoded > rounds / 100, "{n_decoded} of {rounds} decoded");
    }
}
