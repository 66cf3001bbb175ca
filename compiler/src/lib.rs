//! Kiln's compiler: from an ONNX file to a Rust module in which everything is decided.
//!
//! The way the data goes, each stage a function from plain data to plain data:
//! ONNX bytes → decoded model ([`onnx`]) → typed graph ([`import`], [`ir`]) → types, folding, fusions ([`passes`], with the
//! operators' rules in [`ops`]) → kernel calls over buffers ([`lower`]) → [`streams`] → offsets ([`memory`]) → [`program`] → proof
//! ([`verify`]) → Rust and weights ([`emit`]).
#![forbid(unsafe_code)]

mod archive;
pub mod artifact;
pub mod bodies;
mod budget;
#[cfg(feature = "cli")]
pub mod cases;
#[cfg(feature = "cli")]
pub mod cli;
mod config;
pub mod cut;
pub mod emit;
pub mod ep;
pub mod error;
pub mod exec;
pub mod facts;
pub mod import;
pub mod ir;
mod json;
pub mod lower;
pub mod machine;
pub mod memory;
mod names;
pub mod onnx;
pub mod ops;
pub mod passes;
pub mod plan;
pub mod profile;
pub mod program;
mod prune;
pub mod schedule;
pub mod streams;
pub mod verify;

pub use config::{Config, DimRange};
pub use emit::WeightsFrom;
pub use memory::Arenas;

use ep::Providers;
use ep::npu::plan::DevicePlan;
use ep::pin::Pin;
use ep::place::{Summary, Wish};
use error::{CompileError, CompileErrors, Stage};
use import::ImportOptions;
use ir::Graph;
use lower::Lowered;
use machine::Machine;
use onnx::Decoded;
use profile::Profile;
use program::{Meta, Program};
use schedule::Schedule;
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
    /// What to compile for.
    pub machine: Machine,
    /// How nodes are placed on its devices.
    pub wish: Wish,
    /// Nodes that must run on a device.
    pub pins: Vec<Pin>,
    /// Streams of the CPU.
    pub streams: usize,
    /// Where the weights come from.
    pub weights: WeightsFrom,
    /// Outputs that are inputs of the next run: patterns of an output's and an input's name, with at most one `*` each.
    pub states: Vec<(String, String)>,
    /// Bytes that the model may take beside its weights. The module then also holds schedules on fewer streams, where they
    /// need less, for `Model::with_budget`.
    pub budget_bytes: Option<u64>,
    /// How the arena is laid out.
    pub arenas: Arenas,
    /// Measured times of nodes.
    pub profile: Option<Profile>,
    /// Whether the module also has a function for each step, for tools that time them.
    pub per_step: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "model".into(),
            import: ImportOptions::default(),
            machine: Machine::default(),
            wish: Wish::default(),
            pins: Vec::new(),
            streams: 1,
            weights: WeightsFrom::Embed,
            states: Vec::new(),
            budget_bytes: None,
            arenas: Arenas::Shared,
            profile: None,
            per_step: false,
        }
    }
}

impl Options {
    /// The options as one line, the same for equal options.
    pub fn text(&self) -> String {
        let mut text = format!("target = {}, streams = {}", self.machine.text, self.streams);
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
        for (output, input) in &self.states {
            let _ = write!(text, ", state {output} = {input}");
        }
        if self.wish.policy != Wish::default().policy {
            let _ = write!(text, ", placement = {:?}", self.wish.policy);
        }
        for pin in &self.pins {
            let _ = write!(text, ", pin {}", pin.text());
        }
        if let Some(saved) = &self.wish.saved {
            let _ = write!(text, ", placement from a file ({})", &sha256(saved.as_bytes())[..12]);
        }
        if let Some(bytes) = self.budget_bytes {
            let _ = write!(text, ", budget = {bytes}");
        }
        if self.arenas == Arenas::Branch {
            text.push_str(", arenas = branch");
        }
        if let Some(profile) = &self.profile {
            let _ = write!(text, ", times from a file ({})", profile.digest());
        }
        if self.weights == WeightsFrom::File {
            text.push_str(", weights = file");
        }
        text
    }
}

/// Whether there is such a target: its name or file, or the problem in words.
pub fn check_target(target: &str) -> Result<(), String> {
    Machine::named(target).map(|_| ()).map_err(|e| e.to_string())
}

/// Whether the options make sense by themselves: the problem in words.
pub fn check_options(options: &Options) -> Result<(), String> {
    if !(1..=MAX_STREAMS).contains(&options.streams) {
        return Err(format!("streams = {}: expected 1 to {MAX_STREAMS}", options.streams));
    }
    for (name, bound) in &options.import.dims {
        // Values of inputs may be negative: they count from the end.
        let element = name.ends_with(']');
        match bound {
            import::DimBound::Range(a, b) if element && a > b => {
                return Err(format!("dim {name} = {a}..={b}: no value lies in this range"));
            }
            _ if element => {}
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
    // A device may run the products that the fused operator would take from it.
    if options.machine.target.n_devices() == 1 {
        passes::fuse_attention(&mut graph);
    }
    Ok(graph)
}

/// The whole pipeline up to the verified program.
pub fn compile(decoded: &Decoded, options: &Options) -> Result<Program, CompileErrors> {
    compile_graph(&graph(decoded, options)?, decoded, options)
}

/// From the typed graph to the verified program.
pub fn compile_graph(graph: &Graph, decoded: &Decoded, options: &Options) -> Result<Program, CompileErrors> {
    ep::pin::check(&options.pins, graph, decoded, &options.machine.target)?;
    let sha256 = sha256(&decoded.source);
    program_of(graph, options, Meta { name: options.name.clone(), sha256, options: options.text() })
}

/// The same for a graph that need not come from a file.
pub fn program_of(graph: &Graph, options: &Options, meta: Meta) -> Result<Program, CompileErrors> {
    program_with(graph, options, meta, &Providers::default())
}

/// The same with further execution providers.
pub fn program_with(
    graph: &Graph,
    options: &Options,
    meta: Meta,
    providers: &Providers<'_>,
) -> Result<Program, CompileErrors> {
    let (program, _) = planned(graph, options, meta.clone(), providers)?;
    let Some(bytes) = options.budget_bytes else { return Ok(program) };
    let several = program.schedule.streams.len() > 1 && program.device.is_none();
    let mut narrow = Vec::new();
    for streams in budget::narrower(if several { options.streams } else { 1 }) {
        narrow.push(planned(graph, &Options { streams, ..options.clone() }, meta.clone(), providers)?);
    }
    Ok(budget::within(program, narrow, bytes, !options.per_step)?)
}

/// A verified program, and what it was verified against.
fn planned(
    graph: &Graph,
    options: &Options,
    meta: Meta,
    providers: &Providers<'_>,
) -> Result<(Program, verify::Expectation), CompileErrors> {
    let mut states = lower::state::pairs(graph, &options.states)?;
    let mut kept = None;
    if !states.is_empty() && options.machine.target.n_devices() == 1 {
        passes::keep_in_place(kept.insert(graph.clone()), &mut states)?;
    }
    let graph = kept.as_ref().unwrap_or(graph);
    let (lowered, schedule, device, placement) = distribute(graph, options, &states, providers)?;
    let expected = verify::expectation(&lowered);
    let arena = match options.arenas {
        Arenas::Shared => memory::plan_on_streams(&lowered, &schedule)?,
        Arenas::Branch => memory::plan_by_branch(&lowered, &schedule)?,
    };
    let program = program::assemble_on(graph, lowered, schedule, arena, device, &states, meta)?;
    let program = Program { placement, ..program };
    verify::verify(&program, &expected)?;
    Ok((program, expected))
}

/// Calls, streams, the device's part and the placement.
type Distributed = (Lowered, Schedule, Option<DevicePlan>, Option<Summary>);

/// Which device and stream does what: by placement where the target has devices beside the CPU, each node lowered by the
/// provider of its device.
fn distribute(
    graph: &Graph,
    options: &Options,
    states: &[lower::state::StatePair],
    providers: &Providers<'_>,
) -> Result<Distributed, CompileErrors> {
    let target = options.machine.target.as_ref().clone().with_host_streams(options.streams);
    let measured = options.profile.clone().unwrap_or_default();
    if target.n_devices() == 1 {
        let lowered = lower::lower_whole(graph, states, bodies::plan)?;
        // Objects are ordered by one stream.
        let target = if lowered.n_objects > 0 { target.with_host_streams(1) } else { target };
        let (lowered, schedule) = streams::plan_with(graph, lowered, &target, &measured)?;
        return Ok((lowered, schedule, None, None));
    }
    let mut tasks = ep::tasks::tasks(graph, &target, providers, &options.pins)?;
    tasks.measured(&measured, target.host);
    let decided = ep::place::place(&tasks, &target, &options.wish)?;
    let summary = Some(ep::place::summary(&tasks, &target, &decided));
    let devices = &decided.placed.placement.device;
    let eps = devices.iter().map(|d| providers.of(&target, *d)).collect::<Result<Vec<_>, _>>();
    let eps = eps.map_err(|e| CompileError::new(Stage::Plan, e))?;
    let lowered = lower::lower_by(graph, states, Some(bodies::plan), &|node, op, cx| eps[node].lower(op, cx))?;
    if lowered.n_objects > 0 {
        let message = "strings, sequences and optional values are not supported on a target of several devices yet";
        return Err(CompileError::new(Stage::Plan, message).into());
    }
    match ep::npu::plan::device(&target) {
        Some(npu) if devices.contains(&npu) => {
            if !states.is_empty() {
                let message = "outputs that are inputs of the next run are not supported on a target with a device yet";
                return Err(CompileError::new(Stage::Plan, message).into());
            }
            let nodes: Vec<bool> = devices.iter().map(|d| *d == npu).collect();
            let (lowered, schedule, plan) = ep::npu::plan::plan(graph, lowered, &target, npu, &nodes, &measured)?;
            Ok((lowered, schedule, Some(plan), summary))
        }
        _ => {
            let (lowered, schedule) = streams::plan_with(graph, lowered, &target, &measured)?;
            Ok((lowered, schedule, None, summary))
        }
    }
}

/// SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().fold(String::new(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}
