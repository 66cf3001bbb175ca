//! Kiln's compiler: from an ONNX file to a Rust module in which everything is decided.
//!
//! The way the data goes, each stage a function from plain data to plain data:
//! ONNX bytes → decoded model ([`onnx`]) → typed graph ([`import`], [`ir`]) → types, folding, fusions ([`passes`], with the
//! operators' rules in [`ops`]) → kernel calls over buffers ([`lower`]) → [`streams`] → offsets ([`memory`]) → [`program`] → proof
//! ([`verify`]) → Rust and weights ([`emit`]).
#![forbid(unsafe_code)]

pub mod artifact;
#[cfg(feature = "cli")]
pub mod cases;
#[cfg(feature = "cli")]
pub mod cli;
mod config;
pub mod cut;
pub mod emit;
pub mod error;
pub mod exec;
pub mod facts;
pub mod import;
pub mod ir;
pub mod lower;
pub mod memory;
pub mod onnx;
pub mod ops;
pub mod passes;
pub mod plan;
pub mod program;
mod prune;
pub mod streams;
pub mod verify;

pub use config::{Config, DimRange};

use emit::WeightsFrom;
use error::CompileErrors;
use import::ImportOptions;
use ir::Graph;
use onnx::Decoded;
use program::{Meta, Program};
use sha2::Digest;
use std::fmt::Write;

/// More streams than this are not supported.
pub const MAX_STREAMS: usize = 64;

/// What shapes a compile.
#[derive(Clone, Debug)]
pub struct Options {
    /// Module name; shown in docs.
    pub name: String,
    /// Sizes of free dimensions.
    pub import: ImportOptions,
    /// Streams of the CPU.
    pub streams: usize,
    /// Where the weights come from.
    pub weights: WeightsFrom,
    /// Whether the module also has a function for each step, for tools that time them.
    pub per_step: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "model".into(),
            import: ImportOptions::default(),
            streams: 1,
            weights: WeightsFrom::Embed,
            per_step: false,
        }
    }
}

impl Options {
    /// The options as one line, the same for equal options.
    pub fn text(&self) -> String {
        let mut text = format!("target = host, streams = {}", self.streams);
        for (name, bound) in &self.import.dims {
            let _ = match bound {
                import::DimBound::Fixed(n) => write!(text, ", {name} = {n}"),
                import::DimBound::Range(a, b) => write!(text, ", {name} = {a}..={b}"),
            };
        }
        for (i, dims) in &self.import.input_dims {
            let _ = write!(text, ", input {i} = {dims:?}");
        }
        for (i, ty) in &self.import.input_types {
            let _ = write!(text, ", input {i} = {ty}");
        }
        for (i, t) in &self.import.input_values {
            let _ = write!(text, ", input {i} only with the value {t:?} it was compiled for");
        }
        if self.weights == WeightsFrom::File {
            text.push_str(", weights = file");
        }
        text
    }
}

/// Whether there is such a target: its name, or the problem in words.
pub fn check_target(target: &str) -> Result<(), String> {
    match target {
        "host" => Ok(()),
        "host+gpu" | "soc-npu" => Err(format!("target \"{target}\" is not supported yet: only \"host\" is")),
        other => Err(format!("there is no target \"{other}\" (target files are not supported yet: use \"host\")")),
    }
}

/// Whether the options make sense by themselves: the problem in words.
pub fn check_options(options: &Options) -> Result<(), String> {
    if !(1..=MAX_STREAMS).contains(&options.streams) {
        return Err(format!("streams = {}: expected 1 to {MAX_STREAMS}", options.streams));
    }
    for (name, bound) in &options.import.dims {
        match bound {
            import::DimBound::Fixed(n) if *n < 0 => return Err(format!("dim {name} = {n}: a size cannot be negative")),
            import::DimBound::Range(a, b) if *a < 0 || a > b => {
                return Err(format!("dim {name} = {a}..={b}: no size lies in this range"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The typed graph after all device-independent passes.
pub fn graph(decoded: &Decoded, options: &Options) -> Result<Graph, CompileErrors> {
    let mut graph = import::import(&decoded.model, &options.import)?;
    passes::infer(&mut graph)?;
    passes::simplify(&mut graph)?;
    Ok(graph)
}

/// The whole pipeline up to the verified program.
pub fn compile(decoded: &Decoded, options: &Options) -> Result<Program, CompileErrors> {
    compile_graph(&graph(decoded, options)?, decoded, options)
}

/// From the typed graph to the verified program.
pub fn compile_graph(graph: &Graph, decoded: &Decoded, options: &Options) -> Result<Program, CompileErrors> {
    let lowered = lower::lower(graph, options.streams)?;
    // Objects are ordered by one stream.
    let n_streams = if lowered.n_objects > 0 { 1 } else { options.streams };
    let (lowered, schedule) = streams::plan(graph, lowered, n_streams)?;
    let expected = verify::expectation(&lowered);
    let arena = memory::plan_on_streams(&lowered, &schedule)?;
    let meta = Meta { name: options.name.clone(), sha256: sha256(&decoded.source), options: options.text() };
    let program = program::assemble(graph, lowered, schedule, arena, meta)?;
    verify::verify(&program, &expected)?;
    Ok(program)
}

/// SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().fold(String::new(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}
