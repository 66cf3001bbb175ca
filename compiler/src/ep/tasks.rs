//! From the typed graph to the planner's: costs of every node on every device, forms of every value at every border.
//!
//! In: a typed graph, a target, the providers, pins. Out: [`Tasks`]. Values and nodes keep their numbers.
//! Invariant: what a device declines has a reason in [`Tasks::declines`].

use super::pin::Pin;
use super::{Candidate, Decline, Fused, Providers, Work, dtype_id, upper};
use crate::error::{CompileError, Stage};
use crate::ir::{Graph, Layout, Type};
use crate::lower::value_bytes;
use crate::ops::{self, view::NodeView};
use crate::plan::graph::{Claim, Form, Node, Source, TaskGraph, Value};
use crate::plan::id::{DeviceId, DtypeId, LayoutId, NodeId, ValueId};
use crate::plan::target::Target;
use crate::profile::Profile;

/// A model as the planner sees it, and why devices declined nodes.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    /// The planner's graph; node and value numbers are those of the typed graph.
    pub graph: TaskGraph,
    /// For each node, for each device, why it does not run there.
    pub declines: Vec<Vec<Option<Decline>>>,
}

impl Tasks {
    /// Puts measured times into the costs on the host.
    pub fn measured(&mut self, profile: &Profile, host: DeviceId) {
        for node in &mut self.graph.nodes {
            if let (Some(ns), Some(cost)) = (profile.of(&node.name), &mut node.cost_ns[host.idx()]) {
                *cost = ns;
            }
        }
    }
}

/// Asks the providers and builds the graph.
pub fn tasks(graph: &Graph, target: &Target, providers: &Providers<'_>, pins: &[Pin]) -> Result<Tasks, CompileError> {
    let plan = |m: String| CompileError::new(Stage::Plan, m);
    let options = |m: String| CompileError::new(Stage::Options, m);
    let devices: Vec<DeviceId> = target.device_ids().collect();
    let eps = devices.iter().map(|&d| providers.of(target, d)).collect::<Result<Vec<_>, _>>().map_err(plan)?;
    let mut out = Tasks::default();
    let mut sources = vec![Source::Constant; graph.values.len()];
    for (source, made) in sources.iter_mut().zip(graph.producers()) {
        *source = if made.is_some() { Source::Node } else { Source::Constant };
    }
    for v in &graph.inputs {
        sources[v.0 as usize] = Source::Input(target.host);
    }
    for (value, source) in graph.values.iter().zip(sources) {
        out.graph.values.push(self::value(value, source, target, &eps));
    }
    for (_, v) in &graph.outputs {
        out.graph.values[v.0 as usize].output = Some(target.host);
    }
    let candidates = candidates(graph, target)?;
    for candidate in &candidates {
        let node = candidate.view.node;
        let asked = devices.iter().zip(&eps).map(|(&device, ep)| ep.claim(&Candidate { device, ..*candidate }));
        let answers: Vec<_> = asked.collect();
        let pin = pins.iter().find(|p| p.matches(&node.name)).map(|p| p.device(target)).transpose().map_err(options)?;
        if let Some(d) = pin
            && let Err(why) = &answers[d.idx()]
        {
            let name = &target.device(d).name;
            return Err(
                plan(format!("pinned to \"{name}\", which cannot run it: {why}")).at_node(&node.name, &node.full_op())
            );
        }
        let captured = node.bodies.values().flat_map(|b| &b.captures).map(|(outer, _)| outer);
        let id = |v: &crate::ir::ValueId| ValueId(v.0);
        let host = answers[target.host.idx()].as_ref();
        out.graph.nodes.push(Node {
            name: node.name.clone(),
            inputs: node.inputs.iter().flatten().chain(captured).map(id).collect(),
            outputs: node.outputs.iter().flatten().map(id).collect(),
            macs: candidate.work.macs,
            cost_ns: answers.iter().map(|a| a.as_ref().ok().map(|o| o.cost_ns)).collect(),
            pin,
            control_flow: !node.bodies.is_empty(),
            splits: host.map_or(1, |o| o.splits),
            rowwise: Vec::new(),
        });
        out.declines.push(answers.into_iter().map(Result::err).collect());
    }
    for (&device, ep) in devices.iter().zip(&eps) {
        let here: Vec<_> = candidates.iter().map(|c| Candidate { device, ..*c }).collect();
        for Fused { nodes, cost_ns } in ep.fused(&here) {
            let nodes = nodes.into_iter().map(NodeId::new).collect();
            out.graph.claims.push(Claim { device, nodes, cost_ns });
        }
    }
    Ok(out)
}

/// Every node with its work; the device is still to be filled in.
pub(crate) fn candidates<'a>(graph: &'a Graph, target: &'a Target) -> Result<Vec<Candidate<'a>>, CompileError> {
    let candidate = |(node_idx, node)| {
        let view = NodeView { graph, node };
        let named = |e: CompileError| CompileError { stage: Stage::Plan, ..e }.at_node(&node.name, &node.full_op());
        let op = ops::find(node).map_err(named)?;
        let macs = upper(&(op.flops)(&view).map_err(named)?) / 2;
        let mut work = Work { macs, fixed: true, ..Work::default() };
        for &v in node.inputs.iter().chain(&node.outputs).flatten() {
            let bytes = value_bytes(view, v).map_or(0, |b| upper(&b));
            work.bytes = work.bytes.saturating_add(bytes);
            if graph.constant(v).is_some() {
                work.weight_bytes = work.weight_bytes.saturating_add(bytes);
            }
            let fixed = |t: &Type| t.tensor().is_some_and(|t| t.const_dims().is_some());
            work.fixed &= graph.value(v).ty.as_ref().is_some_and(fixed);
        }
        Ok(Candidate { view, node_idx, op, target, device: target.host, work })
    };
    graph.nodes.iter().enumerate().map(candidate).collect()
}

fn value(value: &crate::ir::Value, source: Source, target: &Target, eps: &[&dyn super::ExecutionProvider]) -> Value {
    let (name, output) = (value.name.clone(), None);
    let Some(ty) = value.ty.as_ref().and_then(Type::tensor) else {
        let form = Form { layout: LayoutId(0), dtype: DtypeId(0), bytes: 0 };
        return Value { name, elements: 0, forms: vec![form; eps.len()], source, output };
    };
    let form = |ep: &&dyn super::ExecutionProvider| {
        let border = ep.border(ty, value.layout);
        let elements = ty.physical_shape(border.layout).into_iter().product();
        let bytes = upper(&elements).saturating_mul(border.dtype.size_bytes() as u64);
        Form { layout: layout_id(target, border.layout), dtype: dtype_id(target, border.dtype), bytes }
    };
    Value { name, elements: upper(&ty.numel()), forms: eps.iter().map(form).collect(), source, output }
}

fn layout_id(target: &Target, layout: Layout) -> LayoutId {
    let (name, place) = match layout {
        Layout::Plain => ("plain", 0),
        Layout::Blocked16 => ("blocked16", 1),
        Layout::Reserved { .. } => ("reserved", 2),
    };
    target.layout_named(name).unwrap_or_else(|| LayoutId::new(target.layouts.len() + place))
}
