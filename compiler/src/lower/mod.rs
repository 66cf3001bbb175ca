//! From the graph to kernel calls over buffers: every node's `lower` in order.
//!
//! Out: steps (calls) in a topological order, buffers with sizes, weights packed, the places of inputs and outputs.
//! Invariant: an operand's `mem` is a buffer index here; planning turns it into a region and an offset.

pub mod call;
pub mod control;
mod cx;
mod objects;
pub mod state;

pub use call::{Call, CallOperand, FieldText};
pub use cx::{LowerCx, value_bytes, width_of};
pub use objects::{Slot, found_slots, greatest, object_dims};

use crate::error::{CompileError, CompileErrors, Stage};
use crate::ir::{Dim, Graph, Symbol, SymbolSource, Type, ValueId};
use crate::ops::{self, OpDef, view::NodeView};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What a buffer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// A value that kernels make.
    Activation,
    /// Used inside one node only.
    Scratch,
    /// Constant bytes.
    Weight(Bytes),
    /// A graph input, read from the caller's memory.
    Input(usize),
    /// Where a result lies that is a graph input of the next run: by position in the list of states.
    State(usize),
    /// What the run before left in the memory of such a state, where the state is kept in place.
    Held(usize),
    /// A part of another buffer, or scratch, in the memory of a device.
    OnDevice,
    /// In a body of a control-flow node: memory of the graph around it, by position in the body's list.
    Outer(usize),
}

/// A piece of memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// The value's name, or what it is for.
    pub name: String,
    /// Size in bytes.
    pub bytes: Dim,
    /// What it is.
    pub kind: BufferKind,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Buffer index.
    pub buffer: u32,
    /// Byte offset in it.
    pub off: u64,
}

/// One kernel call of one node.
#[derive(Debug)]
pub struct Step {
    /// The call.
    pub call: Box<dyn Call>,
    /// Index of the node in the graph.
    pub node_idx: usize,
}

/// A lowered graph.
#[derive(Debug, Default)]
pub struct Lowered {
    /// Calls in order.
    pub steps: Vec<Step>,
    /// Buffers.
    pub buffers: Vec<Buffer>,
    /// For every value of the graph, where it lies.
    pub places: Vec<Option<Place>>,
    /// Where each graph output lies.
    pub outputs: Vec<Place>,
    /// Number of extents that kernels find at run time.
    pub n_slots: usize,
    /// How the bodies of control flow are planned; without it there can be none.
    pub(crate) plan_body: Option<control::PlanBody>,
    /// Number of objects, those of bodies among them.
    pub n_objects: usize,
    /// How many of these exist outside: the graph inputs', or in a body those of the graph around it.
    pub outer_objects: usize,
    /// For every value of the graph that is an object, its slot.
    pub object_places: Vec<Option<usize>>,
    /// By position, the slots of the graph outputs that are objects.
    pub output_objects: std::collections::BTreeMap<usize, usize>,
    by_content: HashMap<Bytes, u32>,
}

impl Lowered {
    /// The same calls over the same buffers again.
    pub fn copy(&self) -> Lowered {
        Lowered {
            steps: self.steps.iter().map(|s| Step { call: s.call.boxed(), node_idx: s.node_idx }).collect(),
            buffers: self.buffers.clone(),
            by_content: self.by_content.clone(),
            ..self.copy_frame()
        }
    }

    /// The same graph with other calls, over the same buffers and perhaps more.
    pub fn with_steps(&self, steps: Vec<Step>, buffers: Vec<Buffer>) -> Self {
        Self { steps, buffers, by_content: HashMap::new(), ..self.copy_frame() }
    }

    /// Everything but the calls and the memory they work on.
    fn copy_frame(&self) -> Self {
        Self {
            places: self.places.clone(),
            outputs: self.outputs.clone(),
            n_slots: self.n_slots,
            plan_body: self.plan_body,
            n_objects: self.n_objects,
            outer_objects: self.outer_objects,
            object_places: self.object_places.clone(),
            output_objects: self.output_objects.clone(),
            ..Self::default()
        }
    }

    pub(crate) fn add_buffer(&mut self, buffer: Buffer) -> u32 {
        self.buffers.push(buffer);
        u32::try_from(self.buffers.len() - 1).expect("invariant: fewer than 2^32 buffers")
    }

    pub(crate) fn add_weight(&mut self, data: Bytes, name: &str) -> u32 {
        if let Some(&b) = self.by_content.get(&data) {
            return b;
        }
        let kind = BufferKind::Weight(data.clone());
        let b = self.add_buffer(Buffer { name: name.to_owned(), bytes: Dim::from(data.len()), kind });
        self.by_content.insert(data, b);
        b
    }
}

/// Lowers a whole graph without control flow. All nodes' errors are collected.
pub fn lower(graph: &Graph) -> Result<Lowered, CompileErrors> {
    lower_by(graph, &[], None, &|_, op, cx| (op.lower)(cx))
}

/// Lowers a whole graph, with control flow and with outputs that are inputs of the next run.
pub fn lower_whole(
    graph: &Graph,
    states: &[state::StatePair],
    plan_body: control::PlanBody,
) -> Result<Lowered, CompileErrors> {
    lower_by(graph, states, Some(plan_body), &|_, op, cx| (op.lower)(cx))
}

/// How a node is lowered: its position, its operator's row, and what to lower into.
pub type Rule<'r> = dyn Fn(usize, &OpDef, &mut LowerCx<'_>) -> Result<(), CompileError> + 'r;

/// As [`lower_whole`], each node by a rule that need not be its operator's own (the nodes of bodies by their own).
pub fn lower_by(
    graph: &Graph,
    states: &[state::StatePair],
    plan_body: Option<control::PlanBody>,
    rule: &Rule<'_>,
) -> Result<Lowered, CompileErrors> {
    let n_values = graph.values.len();
    let mut out = Lowered {
        places: vec![None; n_values],
        object_places: vec![None; n_values],
        n_slots: graph.n_slots,
        plan_body,
        ..Lowered::default()
    };
    let mut errors = CompileErrors::default();
    for (i, &v) in graph.inputs.iter().enumerate() {
        let name = graph.value(v).name.clone();
        if graph.value(v).ty.as_ref().is_some_and(Type::is_object) {
            out.object_places[v.0 as usize] = Some(out.new_object().slot);
            out.outer_objects = out.n_objects;
            // Regions are numbered as inputs are: an object's is empty.
            out.add_buffer(Buffer { name, bytes: Dim::Const(0), kind: BufferKind::Input(i) });
            continue;
        }
        if let Some(k) = states.iter().position(|s| s.input_idx == i && s.held.is_some()) {
            state::hold(graph, &mut out, states, k)?;
            continue;
        }
        match graph.tensor_type(v) {
            Ok(ty) => {
                let buffer = out.add_buffer(Buffer { name, bytes: ty.bytes(), kind: BufferKind::Input(i) });
                out.places[v.0 as usize] = Some(Place { buffer, off: 0 });
            }
            Err(e) => errors.push(CompileError { stage: Stage::Lower, ..e }.at(format!("graph input \"{name}\""))),
        }
    }
    for node_idx in 0..graph.nodes.len() {
        if let Err(e) = lower_node_by(graph, node_idx, &mut out, rule) {
            errors.push(e);
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    place_outputs(graph, &mut out, states)?;
    state::bind(graph, &mut out, states)?;
    drop_dead_steps(&mut out);
    Ok(out)
}

/// Drops calls that write only what nobody reads: arithmetic on shapes, of which the plan holds the results already.
pub(crate) fn drop_dead_steps(out: &mut Lowered) {
    let mut read: Vec<bool> =
        out.buffers.iter().map(|b| matches!(b.kind, BufferKind::Outer(_) | BufferKind::State(_))).collect();
    for place in &out.outputs {
        read[place.buffer as usize] = true;
    }
    let mut live = vec![true; out.steps.len()];
    for (step, live) in out.steps.iter().zip(&mut live).rev() {
        let operands = step.call.operands();
        let mut written = operands.iter().filter(|o| o.writes()).peekable();
        // A call that writes nothing is a check, one that finds extents is needed for them.
        *live =
            written.peek().is_none() || !step.call.found().is_empty() || written.any(|o| read[o.operand.mem as usize]);
        if *live {
            for o in &operands {
                read[o.operand.mem as usize] = true;
            }
        }
    }
    let mut live = live.into_iter();
    out.steps.retain(|_| live.next().unwrap_or(true));
}

/// One node's calls alone: every operand that is not constant gets a buffer of its own.
pub fn isolated(graph: &Graph, node_idx: usize, rule: &Rule<'_>) -> Result<Lowered, CompileError> {
    let mut out = Lowered { places: vec![None; graph.values.len()], ..Lowered::default() };
    let node = &graph.nodes[node_idx];
    for &v in node.inputs.iter().flatten() {
        if graph.constant(v).is_none() && out.places[v.0 as usize].is_none() {
            let name = graph.value(v).name.clone();
            let bytes = value_bytes(NodeView { graph, node }, v)?;
            let buffer = out.add_buffer(Buffer { name, bytes, kind: BufferKind::Activation });
            out.places[v.0 as usize] = Some(Place { buffer, off: 0 });
        }
    }
    lower_node_by(graph, node_idx, &mut out, rule)?;
    Ok(out)
}

pub(crate) fn lower_node(graph: &Graph, node_idx: usize, out: &mut Lowered) -> Result<(), CompileError> {
    lower_node_by(graph, node_idx, out, &|_, op, cx| (op.lower)(cx))
}

fn lower_node_by(graph: &Graph, node_idx: usize, out: &mut Lowered, rule: &Rule<'_>) -> Result<(), CompileError> {
    let node = &graph.nodes[node_idx];
    let named = |e: CompileError| CompileError { stage: Stage::Lower, ..e }.at_node(&node.name, &node.full_op());
    let op = ops::find(node).map_err(named)?;
    let view = NodeView { graph, node };
    let mut cx = LowerCx::new(view, node_idx, out);
    expect_extents(&mut cx).map_err(named)?;
    rule(node_idx, op, &mut cx).map_err(named)
}

/// Has it checked at run time that no extent of a result is negative, as far as bounds do not tell.
fn expect_extents(cx: &mut LowerCx<'_>) -> Result<(), CompileError> {
    for i in 0..cx.n_outputs() {
        let Ok(ty) = cx.out_ty(i) else { continue };
        let before = known_before(cx);
        for d in ty.shape.iter().filter(|d| d.lower() < 0) {
            let mut known = true;
            d.symbols(&mut |s| known &= before.contains(s) || matches!(s.source, SymbolSource::Input { .. }));
            if known {
                cx.expect_equal([(d, &d.at_least(&Dim::Const(0)))])?;
            }
        }
    }
    Ok(())
}

/// The symbols in the types and elements of a node's operands.
fn known_before(cx: &LowerCx<'_>) -> HashSet<Arc<Symbol>> {
    let mut known = HashSet::new();
    for v in cx.node.inputs.iter().flatten() {
        let value = cx.graph.value(*v);
        let shape = cx.graph.tensor_type(*v).map_or(&[][..], |t| &t.shape);
        shape.iter().chain(value.dims.iter().flatten()).for_each(|d| d.symbols(&mut |s| known.extend([s.clone()])));
    }
    known
}

/// Outputs lie in memory that the module owns: an output that is a graph input or a constant is copied at the end.
fn place_outputs(graph: &Graph, out: &mut Lowered, states: &[state::StatePair]) -> Result<(), CompileErrors> {
    let mut copies: HashMap<ValueId, Place> = HashMap::new();
    for (i, (name, v)) in graph.outputs.iter().enumerate() {
        let value = graph.value(*v);
        if value.ty.as_ref().is_some_and(Type::is_object) {
            place_object(graph, name, *v, out)?;
            continue;
        }
        let ty = graph.tensor_type(*v).map_err(|e| e.at(format!("graph output \"{name}\"")))?;
        if out.places[v.0 as usize].is_none()
            && let Some(t) = &value.constant
        {
            let buffer = out.add_weight(t.data().clone(), name);
            out.places[v.0 as usize] = Some(Place { buffer, off: 0 });
        }
        let Some(place) = out.places[v.0 as usize] else {
            return Err(CompileError::new(Stage::Lower, "nothing makes it")
                .at(format!("graph output \"{name}\""))
                .into());
        };
        // A view whose bounds allow more than its memory holds gets memory for all that they allow.
        let (from, bytes) = (&out.buffers[place.buffer as usize], ty.bytes());
        let room = from.bytes.clone() - Dim::Const(i64::try_from(place.off).unwrap_or(i64::MAX));
        let inside = room.upper().is_none_or(|room| bytes.upper().is_some_and(|b| b <= room));
        // A state's memory is that of its own output only: a view of it is copied.
        let owned = match from.kind {
            BufferKind::Activation | BufferKind::Scratch => true,
            BufferKind::State(k) => states.get(k).is_some_and(|s| s.output_idx == i),
            _ => false,
        };
        if owned && inside {
            out.outputs.push(place);
            continue;
        }
        if let Some(&copy) = copies.get(v) {
            out.outputs.push(copy);
            continue;
        }
        let buffer = out.add_buffer(Buffer { name: name.clone(), bytes: bytes.clone(), kind: BufferKind::Activation });
        let bytes = if inside { bytes } else { bytes.at_most(&room) };
        let from = kiln_kernels::Operand::at(place.buffer, place.off, bytes.clone());
        let call = copy_bytes(from, kiln_kernels::Operand::at(buffer, 0, bytes))?;
        out.steps.push(Step { call, node_idx: usize::MAX });
        let copy = Place { buffer, off: 0 };
        copies.insert(*v, copy);
        out.outputs.push(copy);
    }
    Ok(())
}

/// An output that is an object lies in a slot of the model's own. Its place in the arena is empty.
fn place_object(graph: &Graph, name: &str, v: ValueId, out: &mut Lowered) -> Result<(), CompileErrors> {
    let x = out.object_of(graph, v, usize::MAX).map_err(|e| e.at(format!("graph output \"{name}\"")))?;
    let mut slot = x.slot;
    if slot < out.outer_objects {
        let y = out.new_object();
        out.steps.push(Step { call: call::call(&[], kiln_kernels::CopyObject { x, y })?, node_idx: usize::MAX });
        slot = y.slot;
    }
    let buffer = out.add_buffer(Buffer { name: name.to_owned(), bytes: Dim::Const(0), kind: BufferKind::Activation });
    out.outputs.push(Place { buffer, off: 0 });
    out.output_objects.insert(out.outputs.len() - 1, slot);
    Ok(())
}

/// A copy of whole operands of one length.
pub(crate) fn copy_bytes(
    x: kiln_kernels::Operand<Dim>,
    y: kiln_kernels::Operand<Dim>,
) -> Result<Box<dyn Call>, CompileError> {
    let bytes = x.bytes.clone();
    let dims = std::array::from_fn(|i| if i == 7 { bytes.clone() } else { Dim::Const(1) });
    let strides: [Dim; 8] = std::array::from_fn(|i| Dim::Const(i64::from(i == 7)));
    let (x_start, y_start) = (Dim::Const(0), Dim::Const(0));
    let copy = kiln_kernels::CopyNd { x, y, x_start, y_start, dims, x_strides: strides.clone(), y_strides: strides };
    call::call(&[kiln_kernels::Dtype::U8], copy)
}
