//! The plan verifier: proves of a program, from its steps alone, that every byte read was written by the right call.
//!
//! It shares nothing with the planners: it looks at the baked operands only, and keeps for every byte range of the arena
//! which (step, operand) wrote it last. What a step should read it learns from the lowered calls, whose operands still
//! name buffers. It also checks bounds and alignment, that nothing writes to weights or inputs, and that outputs hold
//! their producer's bytes at the end.
//! On several streams it then proves that no order the schedule allows does anything else ([`streams`]).
//! A failure is a compiler bug and stops the compile.

mod device;
mod streams;

use crate::error::{CompileError, Stage};
use crate::lower::control::covers;
use crate::lower::{BufferKind, Call, FieldText, Lowered};
use crate::program::{ARENA, INPUTS, Program, WEIGHTS};
use kiln_kernels::Role;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a step touches in terms of buffers, taken before planning.
pub struct Expectation {
    steps: Vec<Vec<(u32, u64)>>,
    calls: Vec<u64>,
    outputs: Vec<(u32, u64)>,
    kinds: Vec<BufferKind>,
    bytes: Vec<u64>,
    /// Objects in slots below this are there from the beginning.
    given_objects: usize,
    output_objects: Vec<usize>,
}

/// Notes the buffers of every operand, before planning bakes the places in.
pub fn expectation(lowered: &Lowered) -> Expectation {
    Expectation {
        steps: lowered
            .steps
            .iter()
            .map(|s| s.call.operands().iter().map(|o| (o.operand.mem, o.operand.off)).collect())
            .collect(),
        calls: lowered.steps.iter().map(|s| fingerprint(&*s.call)).collect(),
        outputs: lowered.outputs.iter().map(|p| (p.buffer, p.off)).collect(),
        kinds: lowered.buffers.iter().map(|b| b.kind.clone()).collect(),
        given_objects: lowered.outer_objects,
        output_objects: lowered.output_objects.values().copied().collect(),
        bytes: lowered.buffers.iter().map(|b| u64::try_from(b.bytes.upper().unwrap_or(0)).unwrap_or(0)).collect(),
    }
}

/// The kernel, its operands' lengths and all that is no operand: what planning must leave as it is.
fn fingerprint(call: &dyn Call) -> u64 {
    let mut hash = DefaultHasher::new();
    call.entry().hash(&mut hash);
    call.fields(&mut |name, field| {
        name.hash(&mut hash);
        match field {
            FieldText::Operand(o) => o.bytes.hash(&mut hash),
            FieldText::OptOperand(o) => o.map(|o| &o.bytes).hash(&mut hash),
            FieldText::Num(n) => n.hash(&mut hash),
            FieldText::Nums(ns) => ns.hash(&mut hash),
            FieldText::Param(p) => p.hash(&mut hash),
        }
    });
    hash.finish()
}

/// Which buffer's byte lies at each arena byte now: disjoint ranges `start -> (end, buffer, offset in the buffer)`.
#[derive(Default)]
struct Contents(BTreeMap<u64, (u64, u32, u64)>);

impl Contents {
    /// Forgets what lies in the range.
    fn clear(&mut self, start: u64, end: u64) {
        let hit: Vec<u64> = self.0.range(..end).rev().take_while(|(_, v)| v.0 > start).map(|(k, _)| *k).collect();
        for s in hit {
            let (e, buffer, off) = self.0.remove(&s).unwrap_or_default();
            if s < start {
                self.0.insert(s, (start, buffer, off));
            }
            if e > end {
                self.0.insert(end, (e, buffer, off + (end - s)));
            }
        }
    }

    fn write(&mut self, start: u64, end: u64, buffer: u32, off: u64) {
        self.clear(start, end);
        if start < end {
            self.0.insert(start, (end, buffer, off));
        }
    }

    /// Whether every byte of the range is the buffer's, from `off` on.
    fn holds(&self, start: u64, end: u64, buffer: u32, off: u64) -> bool {
        let mut at = start;
        while at < end {
            let Some((s, &(e, b, o))) = self.0.range(..=at).next_back() else { return false };
            if e <= at || b != buffer || o + (at - s) != off + (at - start) {
                return false;
            }
            at = e;
        }
        true
    }
}

/// The first object that a call reads and nobody has written; what it writes is written from here on. One call may not
/// write an object twice or also read it.
fn unwritten_object(call: &dyn Call, written: &mut BTreeSet<usize>, n_objects: usize) -> Option<usize> {
    let all = call.objects();
    let writes = |role: Role| matches!(role, Role::Write | Role::Update);
    let clash = |(i, (slot, role)): (usize, &(usize, Role))| {
        writes(*role)
            && call.control().is_none()
            && all.iter().enumerate().any(|(j, (other, _))| i != j && other == slot)
    };
    let fault = |(i, (slot, role)): (usize, &(usize, Role))| {
        let unread = *role != Role::Write && !written.contains(slot);
        (*slot >= n_objects || unread || clash((i, &(*slot, *role)))).then_some(*slot)
    };
    let found = all.iter().enumerate().find_map(fault);
    written.extend(all.iter().filter(|(_, role)| writes(*role)).map(|(slot, _)| *slot));
    found
}

/// Where the memory of a state begins when arena and states are numbered through.
fn state_base(k: usize) -> u64 {
    (1 << 62) + ((k as u64) << 45)
}

/// A place in the arena or in a state's memory, numbered through.
fn linear(program: &Program, o: &crate::lower::CallOperand, at: u64) -> u64 {
    let first = INPUTS as usize + program.inputs.len();
    (o.operand.mem as usize).checked_sub(first).map_or(at, |k| state_base(k) + at)
}

/// Checks a program against what its calls were meant to touch.
pub fn verify(program: &Program, expected: &Expectation) -> Result<(), CompileError> {
    let fail = |step: usize, what: String| {
        let node = program.steps.get(step).map_or("outputs", |s| s.node.as_str());
        Err(CompileError::new(Stage::Verify, format!("step {step}: {what} (a bug in the compiler)")).at_node(node, ""))
    };
    let regions = program.region_bytes();
    // What lies in the arena and, numbered on behind it, in states and in a device's memory.
    let mut contents = Contents::default();
    let device = program.device_region();
    let mut written = vec![false; expected.kinds.len()];
    // What the run before left in states that are kept in place.
    for (b, kind) in expected.kinds.iter().enumerate() {
        if let BufferKind::Held(k) = kind {
            contents.write(state_base(*k), state_base(*k) + expected.bytes[b], b as u32, 0);
        }
    }
    let mut objects: BTreeSet<usize> = (0..expected.given_objects).collect();
    // Parts of one call fill a result together: those after the first find it begun, and nobody else's bytes in it.
    let mut begun = BTreeSet::new();
    if program.steps.len() != expected.steps.len() {
        return fail(0, "steps were lost".into());
    }
    let groups = streams::groups(program, expected);
    let mut weights: BTreeMap<u64, Vec<&crate::program::Weight>> = BTreeMap::new();
    program.weights.iter().for_each(|w| weights.entry(w.off).or_default().push(w));
    for (i, step) in program.steps.iter().enumerate() {
        let operands = step.call.operands();
        if fingerprint(&*step.call) != expected.calls[i] || operands.len() != expected.steps[i].len() {
            return fail(i, "another call stands here".into());
        }
        let later_part = groups[i].is_some_and(|g| begun.contains(&g));
        for (o, &(buffer, off)) in operands.iter().zip(&expected.steps[i]) {
            let bytes = o.operand.bytes.upper().and_then(|b| u64::try_from(b).ok());
            let Some(bytes) = bytes else { return fail(i, format!("operand {} has no bound", o.name)) };
            let (start, end) = (o.operand.off, o.operand.off.saturating_add(bytes));
            let limit = regions.get(o.operand.mem as usize).and_then(|r| r.upper());
            if limit.is_none_or(|l| end > u64::try_from(l).unwrap_or(0)) {
                return fail(i, format!("operand {} lies outside its region", o.name));
            }
            if start % (o.dtype.size_bytes().max(1) as u64) != 0 {
                return fail(i, format!("operand {} is misaligned", o.name));
            }
            let writes = o.writes();
            let kind = &expected.kinds[buffer as usize];
            let region_fits = match kind {
                BufferKind::Weight(_) => o.operand.mem == WEIGHTS,
                BufferKind::Input(n) | BufferKind::Outer(n) => o.operand.mem == INPUTS + *n as u32,
                BufferKind::State(k) => o.operand.mem == INPUTS + (program.inputs.len() + k) as u32,
                BufferKind::Held(k) => {
                    let held = program.states.get(*k).is_some_and(|s| s.held.is_some());
                    held && o.operand.mem == INPUTS + (program.inputs.len() + k) as u32
                }
                BufferKind::Activation | BufferKind::Scratch => o.operand.mem == ARENA,
                BufferKind::OnDevice => Some(o.operand.mem) == device,
            };
            if !region_fits {
                return fail(i, format!("operand {} is in the wrong region", o.name));
            }
            if off.saturating_add(bytes) > expected.bytes[buffer as usize] {
                return fail(i, format!("operand {} is longer than its buffer", o.name));
            }
            let fixed = |k: &BufferKind| {
                matches!(k, BufferKind::Input(_) | BufferKind::Outer(_) | BufferKind::State(_) | BufferKind::Held(_))
            };
            if fixed(kind) && start != off {
                return fail(i, format!("operand {} reads another part of the input", o.name));
            }
            // A body writes the memory around it where its node says so; that is checked there.
            if writes
                && o.operand.mem != ARENA
                && !matches!(kind, BufferKind::Outer(_) | BufferKind::State(_) | BufferKind::OnDevice)
            {
                return fail(i, format!("operand {} writes outside the arena", o.name));
            }
            // A read, or an update of a buffer that holds something already, must find that buffer's bytes. The first
            // update of a buffer starts it (its calls together fill it).
            // So must a further part of a call, in place too: the first part has written over what it could.
            let in_place = operands.iter().position(|w| o.role == Role::Alias && w.writes() && w.operand == o.operand);
            let (buffer, off) = match in_place {
                Some(w) if later_part => expected.steps[i][w],
                _ => (buffer, off),
            };
            let reads = matches!(o.role, Role::Read | Role::Alias)
                || ((o.role == Role::Update || later_part) && written[buffer as usize]);
            if let BufferKind::Weight(data) = kind {
                let here = start.checked_sub(off).and_then(|base| weights.get(&base));
                let place = here.is_some_and(|all| all.iter().any(|w| w.data == *data));
                if off + bytes > data.len() as u64 || !place {
                    return fail(i, format!("operand {} is not the constant it should be", o.name));
                }
            } else if reads
                && !matches!(kind, BufferKind::Input(_) | BufferKind::Outer(_))
                && !contents.holds(linear(program, o, start), linear(program, o, end), buffer, off)
            {
                return fail(i, format!("operand {} reads bytes that another buffer has overwritten", o.name));
            }
        }
        if let Some(slot) = unwritten_object(&*step.call, &mut objects, program.n_objects) {
            return fail(i, format!("object {slot} is read before it is written, or does not exist"));
        }
        if let Some(control) = step.call.control()
            && let Some(o) = control.inner_operands().iter().find(|o| {
                let may = |d: &crate::lower::CallOperand| !o.writes() || d.writes();
                let weight = o.operand.mem == WEIGHTS && !o.writes();
                !weight && !operands.iter().any(|d| may(d) && covers(&d.operand, &o.operand))
            })
        {
            return fail(i, format!("operand {} of a body lies outside the step's", o.name));
        }
        // Writes come after all reads of the step; overlapping writes in one step are refused.
        for (a, first) in operands.iter().enumerate() {
            if !first.writes() {
                continue;
            }
            let range = |o: &crate::lower::CallOperand| {
                (o.operand.off, o.operand.off + u64::try_from(o.operand.bytes.upper().unwrap_or(0)).unwrap_or(0))
            };
            let (s, e) = range(first);
            for (b, other) in operands.iter().enumerate() {
                let (os, oe) = range(other);
                let overlap = other.operand.mem == first.operand.mem && s < oe && os < e;
                let in_place = other.role == Role::Alias && (os, oe) == (s, e);
                if a != b && overlap && !in_place {
                    return fail(i, format!("operand {} overlaps operand {}", first.name, other.name));
                }
            }
            let (buffer, off) = expected.steps[i][a];
            if matches!(expected.kinds[buffer as usize], BufferKind::Outer(_)) {
                continue;
            }
            let (s, e) = (linear(program, first, s), linear(program, first, e));
            if first.role == Role::Update && !written[buffer as usize] {
                // Starts the whole buffer: further updates and reads find it even where this call wrote a part.
                let Some(base) = s.checked_sub(off) else {
                    return fail(i, format!("operand {} lies before its buffer", first.name));
                };
                contents.write(base, base + expected.bytes[buffer as usize], buffer, 0);
            } else {
                contents.write(s, e, buffer, off);
            }
            written[buffer as usize] = true;
        }
        begun.extend(groups[i]);
    }
    let ports: Vec<usize> = program.outputs.iter().filter_map(|p| p.object.as_ref()).map(|o| o.slot).collect();
    if ports != expected.output_objects || ports.iter().any(|slot| !objects.contains(slot)) {
        return fail(program.steps.len(), "an output object is not written".into());
    }
    for (i, (port, &(buffer, off))) in program.outputs.iter().zip(&expected.outputs).enumerate() {
        if port.object.is_some() {
            continue;
        }
        let bytes = u64::try_from(port.ty.bytes().upper().unwrap_or(0)).unwrap_or(0);
        // Where the caller will read it: in a state's memory if it is the state's output, else in the arena.
        let from = match program.states.iter().position(|s| s.output_idx == i) {
            Some(k) => state_base(k) + port.off,
            None => port.off,
        };
        if !contents.holds(from, from + bytes, buffer, off) {
            return fail(program.steps.len(), format!("output \"{}\" does not hold its value at the end", port.name));
        }
    }
    device::check(program).or_else(|(step, what)| fail(step, what))?;
    streams::check(program, expected, &groups).or_else(|(step, what)| fail(step, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Tensor;
    use crate::ops::testing::case;
    use crate::{lower, memory, program, streams};

    /// Two steps: constant strings are made, then read.
    fn strings() -> (Program, Expectation) {
        let x = |s| Tensor::from_strings(&[1], &[s]).unwrap();
        let graph = case("", "StringConcat", 20).input(x("a")).constant(x("b")).infer().unwrap();
        let lowered = lower::lower(&graph).unwrap();
        let (lowered, schedule) = streams::plan(&graph, lowered, 1).unwrap();
        let expected = expectation(&lowered);
        let arena = memory::plan_on_streams(&lowered, &schedule).unwrap();
        let program = program::assemble(&graph, lowered, schedule, arena, &[], program::Meta::default()).unwrap();
        (program, expected)
    }

    #[test]
    fn objects_are_written_before_they_are_read() {
        let (mut program, mut expected) = strings();
        assert_eq!(program.steps.len(), 2);
        verify(&program, &expected).unwrap();
        let given = std::mem::take(&mut expected.given_objects);
        assert!(verify(&program, &expected).unwrap_err().message.contains("object 0 is read before"));
        expected.given_objects = given;
        program.steps.swap(0, 1);
        expected.calls.swap(0, 1);
        expected.steps.swap(0, 1);
        assert!(verify(&program, &expected).unwrap_err().message.contains("read before"));
    }

    #[test]
    fn outputs_are_the_objects_they_should_be() {
        let (mut program, expected) = strings();
        let slot = program.outputs[0].object.as_mut().map(|o| std::mem::replace(&mut o.slot, 0));
        assert!(slot.is_some_and(|s| s > 0));
        assert!(verify(&program, &expected).is_err());
    }
}
