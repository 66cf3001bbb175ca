//! The device's part of a program: from a placement to pieces, streams and a plan of the device's memory.
//!
//! In: lowered calls, the typed graph, each node's device. Out: calls and streams as the rest of the pipeline takes them,
//! and a [`DevicePlan`]. Where the memory solver finds no place for all buffers, less is kept and loaded early, until it
//! does: the number of tries is fixed.

use super::expand::{Expanded, Lane, OnDevice, expand};
use super::fit::{Pad, fit};
use super::schedule::schedule;
use super::{SimulatedNpu, compute_ns};
use crate::ep::ExecutionProvider;
use crate::ep::tasks::candidates;
use crate::error::{CompileError, Stage};
use crate::ir::Graph;
use crate::lower::Lowered;
use crate::memory::{self, ArenaPlan};
use crate::plan::id::DeviceId;
use crate::plan::target::Target;
use crate::schedule::Schedule;
use crate::streams;

/// A DMA engine: bytes a second, start of a transfer, cost of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Bytes a second.
    pub bytes_per_s: u64,
    /// Start of a transfer.
    pub latency_ns: u64,
    /// What a value's change of devices costs beyond that.
    pub handshake_ns: u64,
}

/// What a program knows of its device.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    /// Its name in the target.
    pub name: String,
    /// Size of its memory.
    pub capacity_bytes: u64,
    /// The plan of its memory.
    pub sram: ArenaPlan,
    /// The loading engine.
    pub load: Engine,
    /// The storing engine, where it is one of its own.
    pub store: Option<Engine>,
    /// The engine that runs each step.
    pub lanes: Vec<Lane>,
    /// The device's time of each step; 0 for the host's.
    pub ns: Vec<u64>,
    /// Whether a step's transfer takes a handshake.
    pub handshake: Vec<bool>,
}

/// The device of a target that this provider serves, if there is one.
pub fn device(target: &Target) -> Option<DeviceId> {
    target.device_ids().find(|&d| target.device(d).ep == SimulatedNpu.name())
}

/// How many thousandths of the memory residents and early loads may fill, try after try.
const FILLS: [u64; 6] = [950, 850, 700, 550, 400, 0];

/// Plans. `nodes` says for each node whether it runs on the device.
pub fn plan(
    graph: &Graph,
    lowered: Lowered,
    target: &Target,
    device: DeviceId,
    nodes: &[bool],
) -> Result<(Lowered, Schedule, DevicePlan), CompileError> {
    let error = |m: String| CompileError::new(Stage::Plan, m);
    let pad = Pad::of(target, device).ok_or_else(|| error("the NPU has no memory that the host can fill".into()))?;
    let on = calls_on_device(graph, &lowered, target, device, nodes, &pad)?;
    let engine = |from, to| {
        let link = target.link(from, to).ok_or_else(|| error("the NPU has no link to the host".into()))?;
        let latency_ns = link.dma.map_or(0, |d| target.dmas[d.idx()].latency_ns);
        let bytes_per_s = link.copy_bytes_per_s.unwrap_or(u64::MAX);
        Ok::<_, CompileError>(Engine { bytes_per_s, latency_ns, handshake_ns: link.handshake_ns })
    };
    let (load, store) = (engine(target.host, device)?, engine(device, target.host)?);
    let mut last = error("no plan of the device's memory".into());
    for fill in FILLS {
        let expanded = expand(lowered.copy(), &on, &pad, fill)?;
        let costs = streams::costs(graph, &expanded.lowered, target);
        let schedule = schedule(&expanded, &|i| costs[i], load.handshake_ns);
        match memory::plan_device(&expanded.lowered, &schedule, pad.capacity_bytes, pad.alignment_bytes) {
            Err(e) => last = e,
            Ok(sram) => {
                let Expanded { lowered, lanes, ns, handshake, .. } = expanded;
                let name = target.device(device).name.clone();
                let store = (!pad.one_engine).then_some(store);
                let capacity_bytes = pad.capacity_bytes;
                let plan = DevicePlan { name, capacity_bytes, sram, load, store, lanes, ns, handshake };
                return Ok((lowered, schedule, plan));
            }
        }
    }
    Err(last)
}

/// For each call whether and how it runs on the device.
fn calls_on_device(
    graph: &Graph,
    lowered: &Lowered,
    target: &Target,
    device: DeviceId,
    nodes: &[bool],
    pad: &Pad,
) -> Result<Vec<Option<OnDevice>>, CompileError> {
    let candidates = candidates(graph, target)?;
    let mut n_calls = vec![0u64; graph.nodes.len()];
    for step in &lowered.steps {
        if let Some(n) = n_calls.get_mut(step.node_idx) {
            *n += 1;
        }
    }
    let on = |step: &crate::lower::Step| {
        if !nodes.get(step.node_idx).copied().unwrap_or(false) {
            return Ok(None);
        }
        let candidate = crate::ep::Candidate { device, ..candidates[step.node_idx] };
        let compute_ns = compute_ns(&candidate) / n_calls[step.node_idx].max(1);
        let node = &graph.nodes[step.node_idx];
        let fit = fit(&*step.call, &lowered.buffers, pad, compute_ns);
        let fit = fit.map_err(|why| CompileError::new(Stage::Plan, why).at_node(&node.name, &node.full_op()))?;
        Ok(Some(OnDevice { fit, compute_ns }))
    };
    lowered.steps.iter().map(on).collect()
}
