//! What a program's steps read, byte by byte: the oracle that says whether a change to a program is wrong.
//!
//! In: a program, and for each step its number in the original. Out: for every operand that is read a hash of which
//! (step, operand, byte) made each of its bytes. It shares nothing with the verifier: a tag on every byte of the arena,
//! no ranges, no buffers' liveness.
//! Invariant: two programs with equal traces compute the same.

use kiln_compiler::program::{ARENA, INPUTS, Program, WEIGHTS};
use kiln_kernels::Role;
use std::collections::BTreeMap;

/// A byte's maker, and the buffer it was made for.
type Tag = (u64, u32);

const NOBODY: Tag = (0, u32::MAX);

/// Hashes by (original step, operand); outputs are steps behind the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    reads: BTreeMap<(usize, usize), Vec<u64>>,
    outputs: Vec<u64>,
    /// An operand lies outside its memory, or writes where nothing may.
    pub outside: bool,
}

impl Trace {
    /// Whether a changed program computes something else (or breaks out of its memory), this trace being the original's.
    pub fn is_broken_by(&self, changed: &Trace) -> bool {
        let differs = |(at, seen): (&(usize, usize), &Vec<u64>)| {
            seen.iter().any(|s| self.reads.get(at).is_none_or(|original| !original.contains(s)))
        };
        changed.outside || changed.outputs != self.outputs || changed.reads.iter().any(differs)
    }
}

fn mix(hash: u64, value: u64) -> u64 {
    (hash ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
}

struct Memory<'a> {
    arena: Vec<Tag>,
    weights: &'a [u8],
    input_bytes: Vec<u64>,
}

impl Memory<'_> {
    fn tag(&self, mem: u32, at: u64) -> Option<Tag> {
        let i = usize::try_from(at).ok()?;
        match mem {
            ARENA => self.arena.get(i).copied(),
            WEIGHTS => self.weights.get(i).map(|&b| (1 << 62 | u64::from(b), u32::MAX)),
            input => {
                let bytes = *self.input_bytes.get((input - INPUTS) as usize)?;
                (at < bytes).then_some((1 << 61 | u64::from(input) << 40 | at, u32::MAX))
            }
        }
    }
}

/// Runs a program on tags. `order` gives each step's number in the original program, `buffers` the buffers of the
/// original's operands, `weights` the weights region.
pub fn trace(program: &Program, order: &[usize], buffers: &[Vec<u32>], weights: &[u8]) -> Trace {
    let input_bytes = program.inputs.iter().map(|p| p.ty.bytes().upper().and_then(|b| u64::try_from(b).ok()));
    let mut memory = Memory {
        arena: vec![NOBODY; usize::try_from(program.arena.bytes).unwrap_or(0)],
        weights,
        input_bytes: input_bytes.map(|b| b.unwrap_or(0)).collect(),
    };
    let mut out = Trace::default();
    for (step, &original) in program.steps.iter().zip(order) {
        let operands = step.call.operands();
        let bytes = |o: &kiln_compiler::lower::CallOperand| {
            o.operand.bytes.upper().and_then(|b| u64::try_from(b).ok()).unwrap_or(0)
        };
        for (i, o) in operands.iter().enumerate().filter(|(_, o)| o.role != Role::Write) {
            let own = buffers[original][i];
            let mut hash = 0xcbf2_9ce4_8422_2325;
            for at in 0..bytes(o) {
                let Some(tag) = memory.tag(o.operand.mem, o.operand.off + at) else {
                    out.outside = true;
                    break;
                };
                // What an update finds where its buffer has not been written yet does not matter.
                if o.role != Role::Update {
                    hash = mix(hash, tag.0);
                } else if tag.1 == own {
                    hash = mix(mix(hash, at), tag.0);
                }
            }
            out.reads.entry((original, i)).or_default().push(hash);
        }
        for (i, o) in operands.iter().enumerate().filter(|(_, o)| o.writes()) {
            out.outside |= o.operand.mem != ARENA && bytes(o) > 0;
            for at in 0..bytes(o) {
                let place = usize::try_from(o.operand.off + at).ok().and_then(|i| memory.arena.get_mut(i));
                match place {
                    Some(tag) => {
                        *tag = (1 << 63 | (original as u64) << 40 | (i as u64) << 34 | at, buffers[original][i])
                    }
                    None => out.outside = true,
                }
            }
        }
    }
    for port in &program.outputs {
        let n = port.ty.bytes().upper().and_then(|b| u64::try_from(b).ok()).unwrap_or(0);
        let mut hash = 0;
        for at in 0..n {
            match memory.tag(ARENA, port.off + at) {
                Some(tag) => hash = mix(hash, tag.0),
                None => out.outside = true,
            }
        }
        out.outputs.push(hash);
    }
    out
}
