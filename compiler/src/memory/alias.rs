//! Buffers that share memory by design: an element-wise kernel writes over an operand that nobody reads any more.
//!
//! In: lowered steps. Out: for every buffer the buffer it lives in (its group's first member), and the group's lifetime.
//! Invariant: never in place over an input, a constant, a value read later, or one that the same call reads otherwise.

use crate::lower::{BufferKind, Lowered};
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
        let Some(write) = ops.iter().find(|o| matches!(o.role, Role::Write | Role::Update)) else { continue };
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
