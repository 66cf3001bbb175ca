//! The program: everything that was decided, as plain data. Emission reads only this.
//!
//! Regions: 0 is the arena, 1 the weights, from 2 on the graph inputs in order; behind them the memory of a device, if
//! there is one.
//! Invariant: operands are baked (region, offset); the plan verifier has accepted it before anything is emitted.

use crate::ep::npu::plan::DevicePlan;
use crate::ep::place::Summary;
use crate::error::{CompileError, CompileErrors, Stage};
use crate::ir::{Dim, Graph, Layout, Symbol, SymbolSource, TensorType, Type};
use crate::lower::state::StatePair;
use crate::lower::{BufferKind, Call, Lowered};
use crate::memory::ArenaPlan;
use crate::schedule::Schedule;
use bytes::Bytes;
use kiln_kernels::{ALIGN, Reserved};
use std::sync::Arc;

/// Region of the arena.
pub const ARENA: u32 = 0;
/// Region of the weights.
pub const WEIGHTS: u32 = 1;
/// Region of the first graph input.
pub const INPUTS: u32 = 2;

/// A graph input or output.
#[derive(Clone, Debug)]
pub struct Port {
    /// The ONNX name.
    pub name: String,
    /// Element type and shape.
    pub ty: TensorType,
    /// For an output: byte offset in the arena.
    pub off: u64,
    /// Where it is no tensor of numbers; `ty` is an empty tensor then, and its region or place is empty.
    pub object: Option<ObjectPort>,
}

/// A graph input or output in a slot of an object.
#[derive(Clone, Debug)]
pub struct ObjectPort {
    /// The slot.
    pub slot: usize,
    /// Its type.
    pub ty: Type,
}

impl Port {
    /// Its type as text.
    pub fn ty_text(&self) -> String {
        self.object.as_ref().map_or_else(|| self.ty.to_string(), |o| o.ty.to_string())
    }
}

/// A port of the type of a value, and the slot if it is an object.
fn port(graph: &Graph, name: &str, v: crate::ir::ValueId, off: u64, slot: Option<usize>) -> Result<Port, CompileError> {
    let ty = graph.value(v).ty.clone().filter(Type::is_object);
    Ok(match (ty, slot) {
        (Some(ty), Some(slot)) => {
            let empty = TensorType::fixed(kiln_kernels::Dtype::U8, &[0]);
            Port { name: name.to_owned(), ty: empty, off, object: Some(ObjectPort { slot, ty }) }
        }
        _ => Port { name: name.to_owned(), ty: graph.tensor_type(v)?.clone(), off, object: None },
    })
}

/// A call with its place in the model.
#[derive(Clone, Debug)]
pub struct PlannedStep {
    /// The kernel call, operands baked.
    pub call: Box<dyn Call>,
    /// The node's name.
    pub node: String,
    /// Operator and types of the node, for the comment beside the call.
    pub note: String,
    /// Floating-point operations: the node's, shared evenly by its steps.
    pub flops: u64,
}

/// One constant in the weights region.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Byte offset.
    pub off: u64,
    /// Its bytes.
    pub data: Bytes,
}

/// An output that is an input of the next run: two pieces of memory that change places after each run, or one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Index of the output.
    pub output_idx: usize,
    /// Index of the input.
    pub input_idx: usize,
    /// Size of each piece in bytes, a multiple of [`ALIGN`].
    pub bytes: u64,
    /// Where input and output are one piece, kept in place: how the tensor lies in it.
    pub held: Option<Layout>,
}

impl State {
    /// Bytes of its memory.
    pub fn memory_bytes(&self) -> u64 {
        if self.held.is_some() { self.bytes } else { 2 * self.bytes }
    }

    /// The room between the tensor's rows, if it has any.
    pub fn reserved(&self) -> Option<Reserved> {
        match self.held {
            Some(Layout::Reserved { axis, rows }) => Some(Reserved { axis: axis.into(), rows: rows as usize }),
            _ => None,
        }
    }
}

/// An extent known only at run time, and where a run keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The symbol.
    pub symbol: Arc<Symbol>,
    /// Index among the run's extents.
    pub slot: usize,
}

/// A compiled model.
#[derive(Clone, Debug)]
pub struct Program {
    /// Module name.
    pub name: String,
    /// SHA-256 of the model file, hexadecimal.
    pub sha256: String,
    /// The options that shaped it, as text.
    pub options: String,
    /// Graph inputs.
    pub inputs: Vec<Port>,
    /// Graph outputs.
    pub outputs: Vec<Port>,
    /// The extents known only at run time: those that kernels find keep their slots, those of inputs follow.
    pub extents: Vec<Extent>,
    /// Number of slots.
    pub n_slots: usize,
    /// Number of objects, the inputs first.
    pub n_objects: usize,
    /// Steps in one order that fits the schedule.
    pub steps: Vec<PlannedStep>,
    /// Which stream runs which step, and where streams wait for each other.
    pub schedule: Schedule,
    /// Outputs that are inputs of the next run.
    pub states: Vec<State>,
    /// Constants.
    pub weights: Vec<Weight>,
    /// Size of the weights region.
    pub weight_bytes: u64,
    /// The arena's plan.
    pub arena: ArenaPlan,
    /// The device beside the CPU, if any step runs there.
    pub device: Option<DevicePlan>,
    /// Which device runs what, where the target has several.
    pub placement: Option<Summary>,
    /// Floating-point operations of one run.
    pub flops: i64,
    /// The same model on fewer streams in less memory, each in less than the one before, with the same weights: what
    /// `Model::with_budget` may choose.
    pub narrow: Vec<Program>,
}

impl Program {
    /// The weights region's bytes, in pieces: constants and the padding between them.
    pub fn weights_blob(&self) -> Vec<u8> {
        let mut blob = vec![0u8; usize::try_from(self.weight_bytes).unwrap_or(0)];
        for w in &self.weights {
            let at = usize::try_from(w.off).unwrap_or(0);
            blob[at..at + w.data.len()].copy_from_slice(&w.data);
        }
        blob
    }

    /// Bytes that a model takes beside its weights: the arena and, behind it, the states.
    pub fn memory_bytes(&self) -> u64 {
        let states: u64 = self.states.iter().map(State::memory_bytes).sum();
        if states == 0 { self.arena.bytes } else { self.arena.bytes.next_multiple_of(ALIGN as u64) + states }
    }

    /// How many objects are inputs: those of the first slots.
    pub fn n_given(&self) -> usize {
        self.inputs.iter().filter(|p| p.object.is_some()).count()
    }

    /// The slot of a symbol.
    pub fn slot(&self, symbol: &Symbol) -> Option<usize> {
        self.extents.iter().find(|e| *e.symbol == *symbol).map(|e| e.slot)
    }

    /// Sizes of the regions in bytes.
    pub fn region_bytes(&self) -> Vec<Dim> {
        let fixed = |b: u64| Dim::Const(i64::try_from(b).unwrap_or(i64::MAX));
        let mut all = vec![fixed(self.arena.bytes), fixed(self.weight_bytes)];
        all.extend(self.inputs.iter().map(|p| p.ty.bytes()));
        all.extend(self.states.iter().map(|s| fixed(s.bytes)));
        all.extend(self.device.iter().map(|d| fixed(d.capacity_bytes)));
        all
    }

    /// The region of the device's memory.
    pub fn device_region(&self) -> Option<u32> {
        self.device.as_ref().map(|_| INPUTS + self.inputs.len() as u32)
    }
}

/// What names a program.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Module name.
    pub name: String,
    /// SHA-256 of the model file.
    pub sha256: String,
    /// Options as text.
    pub options: String,
}

/// Bakes the plan into the calls.
pub fn assemble(
    graph: &Graph,
    lowered: Lowered,
    schedule: Schedule,
    arena: ArenaPlan,
    states: &[StatePair],
    meta: Meta,
) -> Result<Program, CompileErrors> {
    assemble_on(graph, lowered, schedule, arena, None, states, meta)
}

/// As [`assemble`], with a device beside the CPU.
pub fn assemble_on(
    graph: &Graph,
    lowered: Lowered,
    schedule: Schedule,
    arena: ArenaPlan,
    device: Option<DevicePlan>,
    states: &[StatePair],
    meta: Meta,
) -> Result<Program, CompileErrors> {
    let (weight_offsets, weights, weight_bytes) = place_weights(&lowered);
    let mut inputs = Vec::new();
    for &v in &graph.inputs {
        inputs.push(port(graph, &graph.value(v).name, v, 0, lowered.object_places[v.0 as usize])?);
    }
    let mut outputs = Vec::new();
    for (i, ((name, v), place)) in graph.outputs.iter().zip(&lowered.outputs).enumerate() {
        if let Some(&slot) = lowered.output_objects.get(&i) {
            outputs.push(port(graph, name, *v, 0, Some(slot))?);
            continue;
        }
        let state = matches!(lowered.buffers[place.buffer as usize].kind, BufferKind::State(_));
        let base = if state { Some(0) } else { arena.offsets[place.buffer as usize] };
        let base = base.ok_or_else(|| CompileError::new(Stage::Plan, format!("output \"{name}\" has no memory")))?;
        outputs.push(port(graph, name, *v, base + place.off, None)?);
    }
    let mut flops = 0i64;
    let mut notes = Vec::with_capacity(graph.nodes.len());
    let mut node_flops = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let view = crate::ops::view::NodeView { graph, node };
        let op = crate::ops::find(node)?;
        let of_node = (op.flops)(&view)?.upper().unwrap_or(0);
        flops = flops.saturating_add(of_node);
        node_flops.push(u64::try_from(of_node).unwrap_or(0));
        notes.push(graph.note(node));
    }
    let mut n_calls = vec![0u64; graph.nodes.len()];
    for step in &lowered.steps {
        if let Some(n) = n_calls.get_mut(step.node_idx) {
            *n += 1;
        }
    }
    let mut steps = Vec::with_capacity(lowered.steps.len());
    let sram = device.as_ref().map(|d| d.sram.offsets.as_slice());
    for step in &lowered.steps {
        let call = baked(step.call.clone(), &lowered, &arena, &weight_offsets, (inputs.len(), sram))?;
        let i = step.node_idx;
        let (node, note, flops) = match graph.nodes.get(i) {
            Some(n) => (n.name.clone(), notes[i].clone(), node_flops[i] / n_calls[i].max(1)),
            None => ("outputs".to_owned(), "copy to an output".to_owned(), 0),
        };
        steps.push(PlannedStep { call, node, note, flops });
    }
    let Meta { name, sha256, options } = meta;
    let (extents, n_slots) = place_extents(&inputs, &outputs, &steps);
    let states = states.iter().map(|s| state(s, graph)).collect::<Result<_, _>>()?;
    Ok(Program {
        extents,
        n_slots,
        n_objects: lowered.n_objects,
        name,
        sha256,
        options,
        inputs,
        outputs,
        steps,
        schedule,
        states,
        weights,
        weight_bytes,
        arena,
        device,
        placement: None,
        flops,
        narrow: Vec::new(),
    })
}

/// A body of a control-flow node as a program of its own, for its proof: the buffers around it are its inputs.
pub fn assemble_body(lowered: &Lowered, arena: ArenaPlan) -> Result<Program, CompileErrors> {
    let (weight_offsets, weights, weight_bytes) = place_weights(lowered);
    let mut inputs = Vec::new();
    for buffer in &lowered.buffers {
        let BufferKind::Outer(i) = buffer.kind else { continue };
        let ty = TensorType::new(kiln_kernels::Dtype::U8, vec![buffer.bytes.clone()]);
        inputs.push((i, Port { name: buffer.name.clone(), ty, off: 0, object: None }));
    }
    inputs.sort_by_key(|(i, _)| *i);
    let mut steps = Vec::with_capacity(lowered.steps.len());
    for step in &lowered.steps {
        let call = baked(step.call.clone(), lowered, &arena, &weight_offsets, (0, None))?;
        steps.push(PlannedStep { call, node: String::new(), note: String::new(), flops: 0 });
    }
    Ok(Program {
        name: String::new(),
        sha256: String::new(),
        options: String::new(),
        inputs: inputs.into_iter().map(|(_, p)| p).collect(),
        outputs: Vec::new(),
        extents: Vec::new(),
        n_slots: 0,
        n_objects: lowered.n_objects,
        schedule: Schedule::one(&vec![0; steps.len()]),
        states: Vec::new(),
        steps,
        weights,
        weight_bytes,
        arena,
        device: None,
        placement: None,
        flops: 0,
        narrow: Vec::new(),
    })
}

/// How large a state's memory is: it holds what comes in and what goes out.
fn state(pair: &StatePair, graph: &Graph) -> Result<State, CompileError> {
    let StatePair { output_idx, input_idx, held } = *pair;
    Ok(State { output_idx, input_idx, bytes: pair.bytes(graph)?.next_multiple_of(ALIGN as u64), held })
}

/// The call with its operands' regions and offsets. The memory of a device is the region behind the inputs; `device` are the
/// number of those and the offsets in it.
fn baked(
    mut call: Box<dyn Call>,
    lowered: &Lowered,
    arena: &ArenaPlan,
    weight_offsets: &[u64],
    (n_inputs, device): (usize, Option<&[Option<u64>]>),
) -> Result<Box<dyn Call>, CompileError> {
    let mut missing = false;
    call.relocate(&mut |o| {
        let b = o.mem as usize;
        let (mem, base) = match &lowered.buffers[b].kind {
            BufferKind::Weight(_) => (WEIGHTS, Some(weight_offsets[b])),
            BufferKind::Input(i) | BufferKind::Outer(i) => (INPUTS + *i as u32, Some(0)),
            BufferKind::State(k) | BufferKind::Held(k) => (INPUTS + (n_inputs + k) as u32, Some(0)),
            BufferKind::Activation | BufferKind::Scratch => (ARENA, arena.offsets[b]),
            BufferKind::OnDevice => (INPUTS + n_inputs as u32, device.and_then(|offsets| offsets[b])),
        };
        missing |= base.is_none();
        o.mem = mem;
        o.off += base.unwrap_or(0);
    });
    if missing {
        return Err(CompileError::new(Stage::Plan, "a buffer in use has no place"));
    }
    Ok(call)
}

/// Slots for every symbol in use.
fn place_extents(inputs: &[Port], outputs: &[Port], steps: &[PlannedStep]) -> (Vec<Extent>, usize) {
    let mut symbols = std::collections::BTreeSet::new();
    let mut see = |d: &Dim| d.symbols(&mut |s| symbols.extend([s.clone()]));
    inputs.iter().chain(outputs).flat_map(|p| &p.ty.shape).for_each(&mut see);
    steps.iter().for_each(|s| s.call.dims(&mut see));
    let found = steps.iter().flat_map(|s| s.call.found()).max().map_or(0, |last| last + 1);
    let of_data = |s: &Symbol| match s.source {
        SymbolSource::Data { slot } => Some(slot),
        SymbolSource::Input { .. } | SymbolSource::Element => None,
    };
    let mut n_slots = symbols.iter().filter_map(|s| of_data(s)).max().map_or(0, |last| last + 1).max(found);
    let mut extents = Vec::with_capacity(symbols.len());
    for symbol in symbols {
        let slot = of_data(&symbol).unwrap_or_else(|| {
            n_slots += 1;
            n_slots - 1
        });
        extents.push(Extent { symbol, slot });
    }
    (extents, n_slots)
}

/// Offsets of the constants in use, in the order in which the steps read them.
fn place_weights(lowered: &Lowered) -> (Vec<u64>, Vec<Weight>, u64) {
    let mut offsets = vec![u64::MAX; lowered.buffers.len()];
    let mut weights = Vec::new();
    let mut end = 0u64;
    for step in &lowered.steps {
        let inner = step.call.control().map(|c| c.inner_operands()).unwrap_or_default();
        for o in step.call.operands().into_iter().chain(inner) {
            let b = o.operand.mem as usize;
            if let BufferKind::Weight(data) = &lowered.buffers[b].kind
                && offsets[b] == u64::MAX
            {
                offsets[b] = end;
                weights.push(Weight { off: end, data: data.clone() });
                end = (end + data.len() as u64).next_multiple_of(ALIGN as u64);
            }
        }
    }
    (offsets, weights, end)
}
