//! Buffers that share memory by design: an element-wise kernel writes over an operand that nobody reads any more.
//!
//! In: lowered steps. Out: for every buffer the buffer it lives in (its group's first member), and the group's lifetime.
//! Invariant: never in place over an input, a constant, a value read later, or one that the same call reads otherwise.

use crate::lower::{BufferKind, Call, CallOperand, FieldText, Lowered};
use kiln_kernels::Role;

/// Groups of buffers that are one piece of memory.
pub(super) struct Groups {
    parent: Vec<u32>,
    /// First step that touches the group; `usize::MAX` where none does.
    pub first: Vec<usize>,
    /// Last step that touches the group.
    pub last: Vec<usize>,
}

impl Groups {
    /// The group's representative.
    pub(super) fn of(&self, mut buffer: u32) -> u32 {
        while self.parent[buffer as usize] != buffer {
            buffer = self.parent[buffer as usize];
        }
        buffer
    }
}

/// Finds which written operands may take the memory of an operand that dies there.
pub(super) fn groups(lowered: &Lowered) -> Groups {
    let n = lowered.buffers.len();
    let mut g = Groups { parent: (0..n as u32).collect(), first: vec![usize::MAX; n], last: vec![0; n] };
    let operands: Vec<_> = lowered.steps.iter().map(|s| s.call.operands()).collect();
    for (step, ops) in operands.iter().enumerate() {
        for o in ops {
            let b = o.operand.mem as usize;
            g.first[b] = g.first[b].min(step);
            g.last[b] = g.last[b].max(step);
        }
    }
    for place in &lowered.outputs {
        g.last[place.buffer as usize] = usize::MAX;
    }
    for (step, ops) in operands.iter().enumerate() {
        let Some(write) = ops.iter().find(|o| o.writes()) else { continue };
        let y = write.operand.mem;
        let whole =
            |mem: u32, off: u64, bytes: &crate::ir::Dim| off == 0 && *bytes == lowered.buffers[mem as usize].bytes;
        if write.role != Role::Write
            || g.first[y as usize] != step
            || g.of(y) != y
            || !whole(y, write.operand.off, &write.operand.bytes)
        {
            continue;
        }
        let candidate = ops.iter().filter(|o| o.role == Role::Alias).find(|o| {
            let x = o.operand.mem;
            let group = g.of(x);
            let kind_ok = matches!(lowered.buffers[group as usize].kind, BufferKind::Activation | BufferKind::Scratch);
            let dies = g.last[group as usize] == step;
            let same_size = whole(x, o.operand.off, &o.operand.bytes) && o.operand.bytes == write.operand.bytes;
            // Another operand in the same group must be the very same memory, and allowed to be.
            let alone = ops.iter().all(|p| {
                let same_group = g.of(p.operand.mem) == group;
                !same_group || (p.role == Role::Alias && p.operand == o.operand)
            });
            kind_ok && dies && same_size && alone && group != y
        });
        if let Some(o) = candidate {
            let group = g.of(o.operand.mem);
            g.parent[y as usize] = group;
            g.last[group as usize] = g.last[y as usize];
        }
    }
    g
}

/// The same for several streams. `before` says of two steps whether the first surely ends before the second begins.
///
/// A result may take an operand's memory if everybody else who touches the operand is surely done before any of the calls
/// that write the result begins. Parts of one call count as one: each writes over the bytes that it reads.
pub(super) fn groups_on_streams(lowered: &Lowered, before: &dyn Fn(usize, usize) -> bool) -> StreamGroups {
    let n = lowered.buffers.len();
    let operands: Vec<_> = lowered.steps.iter().map(|s| s.call.operands()).collect();
    let mut g = StreamGroups { parent: (0..n as u32).collect(), steps: vec![Vec::new(); n], output: vec![false; n] };
    for (step, ops) in operands.iter().enumerate() {
        for o in ops {
            let steps = &mut g.steps[o.operand.mem as usize];
            if steps.last() != Some(&step) {
                steps.push(step);
            }
        }
    }
    for place in &lowered.outputs {
        g.output[place.buffer as usize] = true;
    }
    for step in 0..operands.len() {
        let Some(write) = operands[step].iter().find(|o| o.writes()) else { continue };
        let y = write.operand.mem;
        if g.of(y) != y || g.steps[y as usize].first() != Some(&step) {
            continue;
        }
        let makers = makers(lowered, &operands, &g.steps[y as usize], y);
        let candidate = operands[step].iter().filter(|o| o.role == Role::Alias).map(|o| o.operand.mem).find(|&x| {
            let group = g.of(x);
            let same_size = lowered.buffers[x as usize].bytes == lowered.buffers[y as usize].bytes
                && lowered.buffers[group as usize].bytes == lowered.buffers[y as usize].bytes;
            let kind_ok = matches!(lowered.buffers[group as usize].kind, BufferKind::Activation | BufferKind::Scratch);
            let over = || makers.iter().all(|&m| writes_over(&operands[m], y, x, &|b| g.of(b) == group));
            let others = || g.steps[group as usize].iter().filter(|s| !makers.contains(s));
            let done = || others().all(|&s| makers.iter().all(|&m| before(s, m)));
            kind_ok && same_size && group != y && !g.output[group as usize] && !makers.is_empty() && over() && done()
        });
        if let Some(x) = candidate {
            let group = g.of(x);
            g.parent[y as usize] = group;
            let steps = std::mem::take(&mut g.steps[y as usize]);
            g.steps[group as usize].extend(steps);
            g.steps[group as usize].sort_unstable();
            g.steps[group as usize].dedup();
            g.output[group as usize] |= g.output[y as usize];
        }
    }
    g
}

/// Groups of buffers that are one piece of memory, on several streams.
pub(super) struct StreamGroups {
    parent: Vec<u32>,
    /// The steps that touch each group.
    pub steps: Vec<Vec<usize>>,
    /// Whether the caller reads the group after the run.
    pub output: Vec<bool>,
}

impl StreamGroups {
    /// The group's representative.
    pub(super) fn of(&self, mut buffer: u32) -> u32 {
        while self.parent[buffer as usize] != buffer {
            buffer = self.parent[buffer as usize];
        }
        buffer
    }
}

/// The steps that write a buffer, if they are different parts of one call; else none.
fn makers(lowered: &Lowered, operands: &[Vec<CallOperand>], steps: &[usize], y: u32) -> Vec<usize> {
    let writes = |s: &usize| operands[*s].iter().any(|o| o.operand.mem == y && o.writes());
    let makers: Vec<usize> = steps.iter().copied().filter(writes).collect();
    let whose = |s: &usize| (lowered.steps[*s].node_idx, lowered.steps[*s].call.entry());
    let one_call = makers.windows(2).all(|w| whose(&w[0]) == whose(&w[1]));
    let mut parts: Vec<_> = makers.iter().map(|&s| part(&*lowered.steps[s].call, &operands[s], y)).collect();
    parts.sort_unstable();
    if one_call && parts.windows(2).all(|w| w[0] != w[1]) { makers } else { Vec::new() }
}

/// What sets a part of a call apart from the others: the bytes it writes, or the range or share of the work.
fn part(call: &dyn Call, operands: &[CallOperand], y: u32) -> (u64, String) {
    let off = operands.iter().find(|o| o.operand.mem == y && o.writes()).map_or(0, |o| o.operand.off);
    let mut text = String::new();
    call.fields(&mut |name, field| match field {
        FieldText::Num(n) if name == "part_begin" => text += &n.to_string(),
        FieldText::Param(p) if name == "share" => text += &p,
        _ => {}
    });
    (off, text)
}

/// Whether a call writes `y` as its first result, over the very bytes of `x` that it may, and reads the group otherwise not.
fn writes_over(operands: &[CallOperand], y: u32, x: u32, in_group: &dyn Fn(u32) -> bool) -> bool {
    let Some(write) = operands.iter().find(|o| o.writes()) else { return false };
    let place = |o: &CallOperand| (o.operand.off, o.operand.bytes.clone());
    let fits = |o: &CallOperand| o.role == Role::Alias && o.operand.mem == x && place(o) == place(write);
    write.role == Role::Write
        && write.operand.mem == y
        && operands.iter().any(fits)
        && operands.iter().all(|o| !in_group(o.operand.mem) || fits(o))
}
