//! The device's part of a program: from a placement to pieces, streams and a plan of the device's memory.
//!
//! In: lowered calls, the typed graph, each node's device. Out: calls and streams as the rest of the pipeline takes them,
//! and a [`DevicePlan`]. Where the memory solver finds no place for all buffers, less is kept and loaded early, until it
//! does: the number of tries is fixed. Cascades ([`super::cascade`]) are taken where the whole plan ends earlier with them.

use super::cascade::{Cascade, cascades};
use super::expand::{Expanded, Lane, OnDevice, expand};
use super::fit::{Pad, fit};
use super::schedule::schedule;
use super::{SimulatedNpu, compute_ns};
use crate::ep::ExecutionProvider;
use crate::ep::tasks::candidates;
use crate::error::{CompileError, Stage};
use crate::ir::Graph;
use crate::lower::{Lowered, Step};
use crate::memory::{self, ArenaPlan};
use crate::plan::id::DeviceId;
use crate::plan::target::Target;
use crate::profile::Profile;
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
    /// Operators that run strip by strip together.
    pub cascades: Vec<CascadeFacts>,
}

/// A cascade, as it is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CascadeFacts {
    /// The nodes, in order.
    pub nodes: Vec<String>,
    /// Strips.
    pub n_strips: usize,
    /// Rows of the last result in a strip.
    pub rows: u64,
    /// Buffers for what comes from outside and goes there.
    pub n_buffers: usize,
}

/// The device of a target that this provider serves, if there is one.
pub fn device(target: &Target) -> Option<DeviceId> {
    target.device_ids().find(|&d| target.device(d).ep == SimulatedNpu.name())
}

/// How many thousandths of the memory residents and early loads may fill, try after try.
const FILLS: [u64; 6] = [950, 850, 700, 550, 400, 0];

/// Plans. `nodes` says for each node whether it runs on the device; `measured` are times of nodes on the host.
pub fn plan(
    graph: &Graph,
    lowered: Lowered,
    target: &Target,
    device: DeviceId,
    nodes: &[bool],
    measured: &Profile,
) -> Result<(Lowered, Schedule, DevicePlan), CompileError> {
    plan_with(graph, lowered, target, device, nodes, (measured, true))
}

/// The same, with cascades or without any.
pub(super) fn plan_with(
    graph: &Graph,
    lowered: Lowered,
    target: &Target,
    device: DeviceId,
    nodes: &[bool],
    (measured, cascades): (&Profile, bool),
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
    let planner = Planner {
        graph,
        lowered: &lowered,
        target,
        on: &on,
        pad: &pad,
        measured,
        handshake_ns: [load.handshake_ns, store.handshake_ns],
    };
    let mut best = planner.planned(&[]);
    let mut groups = Vec::new();
    for found in if cascades { planner.groups()? } else { Vec::new() } {
        if let Ok(with) = planner.planned(&found)
            && best.as_ref().map_or(true, |b| with.1.predicted_ns < b.1.predicted_ns)
        {
            (best, groups) = (Ok(with), found);
        }
    }
    let (Expanded { lowered: pieces, lanes, ns, handshake, .. }, schedule, sram) = best?;
    let plan = DevicePlan {
        name: target.device(device).name.clone(),
        capacity_bytes: pad.capacity_bytes,
        sram,
        load,
        store: (!pad.one_engine).then_some(store),
        lanes,
        ns,
        handshake,
        cascades: groups.iter().map(|c| facts(graph, &lowered, c)).collect(),
    };
    Ok((pieces, schedule, plan))
}

fn facts(graph: &Graph, lowered: &Lowered, group: &Cascade) -> CascadeFacts {
    let members = &lowered.steps[group.first..group.first + group.n];
    let mut nodes: Vec<String> = members.iter().map(|s| graph.nodes[s.node_idx].name.clone()).collect();
    nodes.dedup();
    CascadeFacts { nodes, n_strips: group.strips().len(), rows: group.rows, n_buffers: group.n_buffers }
}

/// Groups that are left out one by one to see whether the plan ends earlier, at most.
const MAX_TRIES: usize = 8;

/// Everything that one way to plan and another have in common.
struct Planner<'a> {
    graph: &'a Graph,
    lowered: &'a Lowered,
    target: &'a Target,
    on: &'a [Option<OnDevice>],
    pad: &'a Pad,
    measured: &'a Profile,
    handshake_ns: [u64; 2],
}

impl Planner<'_> {
    fn scheduled(&self, groups: &[Cascade], fill: u64) -> Result<(Expanded, Schedule), CompileError> {
        let expanded = expand(self.lowered.copy(), self.on, groups, self.pad, fill)?;
        let mut costs = streams::costs(self.graph, &expanded.lowered, self.target);
        // Only the host's nodes can have been measured on the host.
        let name = |(step, lane): (&Step, &Lane)| match lane {
            Lane::Host => self.graph.nodes.get(step.node_idx).map_or("", |n| n.name.as_str()),
            _ => "",
        };
        let names: Vec<&str> = expanded.lowered.steps.iter().zip(&expanded.lanes).map(name).collect();
        self.measured.put(&names, &mut costs);
        let schedule = schedule(&expanded, &|i| costs[i], self.handshake_ns);
        Ok((expanded, schedule))
    }

    /// The plan with these cascades: the first for which the memory has room.
    fn planned(&self, groups: &[Cascade]) -> Result<(Expanded, Schedule, ArenaPlan), CompileError> {
        let mut last = CompileError::new(Stage::Plan, "no plan of the device's memory");
        for fill in FILLS {
            let (expanded, schedule) = self.scheduled(groups, fill)?;
            match memory::plan_device(&expanded.lowered, &schedule, self.pad.capacity_bytes, self.pad.alignment_bytes) {
                Err(e) => last = e,
                Ok(sram) => return Ok((expanded, schedule, sram)),
            }
        }
        Err(last)
    }

    /// Cascades to try: those that are faster by themselves, without those that make the whole slower; for all of the
    /// memory and, where that leaves too little room to its plan, for less of it.
    fn groups(&self) -> Result<Vec<Vec<Cascade>>, CompileError> {
        let mut all: Vec<Vec<Cascade>> = Vec::new();
        for permille in [1000, 800] {
            let capacity_bytes = self.pad.capacity_bytes.saturating_mul(permille) / 1000;
            let mut groups = cascades(self.lowered, self.on, &Pad { capacity_bytes, ..*self.pad });
            if groups.is_empty() || all.contains(&groups) {
                continue;
            }
            let end_ns = |groups: &[Cascade]| Ok::<_, CompileError>(self.scheduled(groups, FILLS[0])?.1.predicted_ns);
            let mut end = end_ns(&groups)?;
            for _ in 0..MAX_TRIES.min(groups.len()) {
                // The first comes to the end of the row, or goes.
                let first = groups.remove(0);
                let without = end_ns(&groups)?;
                if without <= end {
                    end = without;
                } else {
                    groups.push(first);
                }
            }
            groups.sort_by_key(|c| c.first);
            if !groups.is_empty() {
                all.push(groups);
            }
        }
        Ok(all)
    }
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
    let on = |step: &Step| {
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
