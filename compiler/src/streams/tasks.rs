//! Lowered calls as the planner's tasks: what each costs on the target and which others it needs.
//!
//! A call needs another if one of them writes bytes of a buffer that the other touches, or if it reads an extent that the
//! other finds. A task's result is a token that its readers name; where both calls can be cut and part i of the reader
//! reads only what part i of the writer writes, the token is read row by row.

use super::split;
use crate::ir::{Graph, SymbolSource};
use crate::lower::{BufferKind, Call, CallOperand, Lowered};
use crate::ops;
use crate::plan::cost::kernel_ns;
use crate::plan::graph::Form;
use crate::plan::id::{BufferId, DtypeId, LayoutId, TaskId, ValueId};
use crate::plan::insert::{self, Read, Resource, Task, TaskKind, TaskList};
use crate::plan::target::Target;
use std::collections::{BTreeMap, BTreeSet};

fn upper(o: &CallOperand) -> u64 {
    o.operand.bytes.upper().and_then(|b| u64::try_from(b).ok()).unwrap_or(0)
}

/// The predicted time of every call in nanoseconds: a node's operations are those of its calls that can be cut, or of all.
pub fn costs(graph: &Graph, lowered: &Lowered, target: &Target) -> Vec<u64> {
    let heavy: Vec<bool> = lowered.steps.iter().map(|s| split::n_parts(&*s.call, 2) > 1).collect();
    let mut calls = vec![(0u64, 0u64); graph.nodes.len()];
    for (step, heavy) in lowered.steps.iter().zip(&heavy) {
        if let Some((all, of_heavy)) = calls.get_mut(step.node_idx) {
            *all += 1;
            *of_heavy += u64::from(*heavy);
        }
    }
    let flops = |n: usize| {
        let node = graph.nodes.get(n)?;
        let op = ops::find(node).ok()?;
        let flops = (op.flops)(&ops::view::NodeView { graph, node }).ok()?.upper()?;
        u64::try_from(flops).ok()
    };
    let ns = |(step, heavy): (&crate::lower::Step, &bool)| {
        let operands = step.call.operands();
        let bytes = operands.iter().map(upper).fold(0u64, u64::saturating_add);
        let (all, of_heavy) = calls.get(step.node_idx).copied().unwrap_or((1, 0));
        let sharers = if of_heavy > 0 { of_heavy } else { all };
        let own = if *heavy || of_heavy == 0 { flops(step.node_idx).unwrap_or(0) / sharers.max(1) } else { 0 };
        let dtype = operands.first().and_then(|o| target.dtype_named(&o.dtype.to_string()));
        kernel_ns(target, target.host, dtype.unwrap_or(DtypeId(0)), own / 2, bytes)
    };
    lowered.steps.iter().zip(&heavy).map(ns).collect()
}

/// One access to a buffer's bytes.
struct Access {
    start: u64,
    end: u64,
    step: usize,
    writes: bool,
}

/// For every call the earlier calls it needs.
fn needs(lowered: &Lowered) -> Vec<BTreeSet<usize>> {
    let mut needs = vec![BTreeSet::new(); lowered.steps.len()];
    let mut accesses: Vec<Vec<Access>> = lowered.buffers.iter().map(|_| Vec::new()).collect();
    let mut finders: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, step) in lowered.steps.iter().enumerate() {
        let mut operands = step.call.operands();
        // Reads before writes: a call does not need itself.
        operands.sort_by_key(CallOperand::writes);
        for o in &operands {
            let buffer = o.operand.mem as usize;
            if matches!(lowered.buffers[buffer].kind, BufferKind::Weight(_) | BufferKind::Input(_)) {
                continue;
            }
            let (start, end) = (o.operand.off, o.operand.off.saturating_add(upper(o)));
            let all = &mut accesses[buffer];
            let hit = all.iter().filter(|a| a.start < end && start < a.end && (a.writes || o.writes()));
            needs[i].extend(hit.map(|a| a.step).filter(|&s| s != i));
            if o.writes() {
                // Whoever needs those needs this call.
                all.retain(|a| a.start < start || end < a.end);
            }
            all.push(Access { start, end, step: i, writes: o.writes() });
        }
        step.call.dims(&mut |d| {
            d.symbols(&mut |symbol| {
                if let SymbolSource::Data { slot } = symbol.source {
                    needs[i].extend(finders.get(&slot).into_iter().flatten());
                }
            });
        });
        for slot in step.call.found() {
            finders.entry(slot).or_default().push(i);
        }
    }
    needs
}

/// Parts that are compared when looking for row-by-row readers.
const MAX_ROWWISE: u32 = 8;

/// Whether part i of k of the reader needs only part i of k of the writer, for every k up to `most`.
fn rowwise(writer: &dyn Call, reader: &dyn Call, most: u32) -> bool {
    if most > MAX_ROWWISE {
        return false;
    }
    let exact = |k: u32, i: u32| {
        let (Some(w), Some(r)) = (split::part(writer, i, k), split::part(reader, i, k)) else { return false };
        let (w, r) = (w.operands(), r.operands());
        let mut shared =
            r.iter().filter(|o| w.iter().any(|p| p.operand.mem == o.operand.mem && (p.writes() || o.writes())));
        shared.all(|o| {
            let same = |p: &CallOperand| {
                let (ps, pe) = (p.operand.off, p.operand.off + upper(p));
                p.operand.mem == o.operand.mem && p.writes() && ps <= o.operand.off && o.operand.off + upper(o) <= pe
            };
            !o.writes() && w.iter().any(same) && narrowed(writer, i, k)
        })
    };
    (2..=most).all(|k| (0..k).all(|i| exact(k, i)))
}

/// Whether a part writes bytes of its own: parts that fill one whole result together do not.
fn narrowed(call: &dyn Call, i: u32, k: u32) -> bool {
    let Some(part) = split::part(call, i, k) else { return false };
    let (whole, part) = (call.operands(), part.operands());
    whole.iter().zip(&part).filter(|(w, _)| w.writes()).all(|(w, p)| upper(p) < upper(w))
}

/// The tasks: one for each call.
///
/// `private` says of every buffer whether it is scratch of one call alone: parts of others would share it.
pub(super) fn list(lowered: &Lowered, costs: &[u64], private: &[bool], target: &Target, n_streams: usize) -> TaskList {
    let needs = needs(lowered);
    let most = u32::try_from(n_streams).unwrap_or(u32::MAX);
    let own = |o: &CallOperand| o.name != "scratch" || private[o.operand.mem as usize];
    let parts = |call: &dyn Call| if call.operands().iter().all(own) { split::n_parts(call, most) } else { 1 };
    let splits: Vec<u32> = lowered.steps.iter().map(|s| parts(&*s.call)).collect();
    let device = target.device(target.host);
    let form = Form { layout: LayoutId(0), dtype: DtypeId(0), bytes: 0 };
    let mut list = TaskList::default();
    for (i, step) in lowered.steps.iter().enumerate() {
        let read = |&p: &usize| {
            let most = splits[i].min(splits[p]);
            let rowwise = most > 1 && rowwise(&*lowered.steps[p].call, &*step.call, splits[i].max(splits[p]));
            Read { buffer: BufferId::new(p), latency_ns: 0, rowwise }
        };
        list.tasks.push(Task {
            kind: TaskKind::Launch { nodes: Vec::new(), claim: None },
            on: Resource::Device(target.host),
            cost_ns: costs[i],
            launch_ns: device.launch_ns.min(costs[i]),
            splits: splits[i],
            reads: needs[i].iter().map(read).collect(),
            writes: vec![BufferId::new(i)],
        });
        let (value, writer) = (ValueId::new(i), Some(TaskId::new(i)));
        list.buffers.push(insert::Buffer { value, memory: device.memory, form, writer, output: false });
    }
    list
}
