//! What fits a size of memory: the schedules on all streams, on half of them, … on one, several of them in one module.
//!
//! In: a program, the same model on fewer streams, a budget in bytes. Out: the widest program within the budget; where
//! narrower ones need less memory and its module can hold them, with those beside it ([`Program::narrow`]), so that
//! `Model::with_budget` can choose at start. planning.md §8.
//! Invariants: each program beside needs less memory than the one before; all are proven, those beside with the weights at
//! the widest one's places.

use crate::error::{CompileError, Stage};
use crate::program::{Program, WEIGHTS};
use crate::verify::{self, Expectation};
use std::collections::HashMap;

/// Schedules in one module, at most.
const MAX_SCHEDULES: usize = 4;

/// How many streams the narrower schedules have: halves, and one at last.
pub(crate) fn narrower(streams: usize) -> Vec<usize> {
    let mut all: Vec<usize> =
        std::iter::successors(Some(streams), |n| Some(n / 2)).skip(1).take_while(|&n| n > 0).collect();
    if all.len() >= MAX_SCHEDULES {
        all.drain(MAX_SCHEDULES - 2..all.len() - 1);
    }
    all
}

/// Chooses. `narrow` is the model on fewer and fewer streams, if the program has several.
pub(crate) fn within(
    wide: Program,
    narrow: Vec<(Program, Expectation)>,
    budget_bytes: u64,
    several: bool,
) -> Result<Program, CompileError> {
    let mut all = vec![(wide, None)];
    for (program, expected) in narrow {
        if all.last().is_none_or(|(last, _)| program.memory_bytes() < last.memory_bytes()) {
            all.push((program, Some(expected)));
        }
    }
    let Some(first) = all.iter().position(|(p, _)| p.memory_bytes() <= budget_bytes) else {
        return Err(all
            .pop()
            .map_or_else(|| CompileError::new(Stage::Plan, "no schedule"), |(p, _)| over(&p, budget_bytes)));
    };
    let mut rest = all.split_off(first).into_iter();
    let Some((mut widest, _)) = rest.next() else { return Err(CompileError::new(Stage::Plan, "no schedule")) };
    for (program, expected) in rest.filter(|_| several) {
        if let Some(expected) = expected
            && let Some(program) = beside(&widest, program, &expected)?
        {
            widest.narrow.push(program);
        }
    }
    Ok(widest)
}

/// The error that names the largest of what is alive at the peak and of the states.
fn over(program: &Program, budget_bytes: u64) -> CompileError {
    let states = program.states.iter().map(|s| (program.inputs[s.input_idx].name.as_str(), s.memory_bytes()));
    let peak = program.arena.peak.iter().map(|p| (p.name.as_str(), p.bytes));
    let mut all: Vec<(&str, u64)> = states.chain(peak).collect();
    all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let named: Vec<String> = all.iter().take(4).map(|(name, bytes)| format!("\"{name}\" {bytes}")).collect();
    let bytes = program.memory_bytes();
    let what = format!("{budget_bytes} bytes are too few: {bytes} are needed, most of them for {}", named.join(", "));
    CompileError::new(Stage::Plan, what).at("budget")
}

/// The narrow program as part of the wide one's module: with its weights. `None` where a module cannot hold both.
fn beside(wide: &Program, mut narrow: Program, expected: &Expectation) -> Result<Option<Program>, CompileError> {
    let alone = [wide, &narrow].iter().all(|p| p.device.is_none() && p.n_objects == 0 && p.states.is_empty());
    if !alone || wide.extents != narrow.extents || wide.n_slots != narrow.n_slots {
        return Ok(None);
    }
    let places: HashMap<&[u8], u64> = wide.weights.iter().map(|w| (&w.data[..], w.off)).collect();
    let mut moved = Vec::with_capacity(narrow.weights.len());
    for w in &narrow.weights {
        let Some(&off) = places.get(&w.data[..]) else { return Ok(None) };
        moved.push((w.off, w.off + w.data.len() as u64, off));
    }
    let mut lost = false;
    for step in &mut narrow.steps {
        step.call.relocate(&mut |o| {
            if o.mem == WEIGHTS {
                let at = moved.partition_point(|(start, ..)| *start <= o.off).checked_sub(1).map(|i| moved[i]);
                match at.filter(|(_, end, _)| o.off < *end) {
                    Some((start, _, to)) => o.off = to + (o.off - start),
                    None => lost = true,
                }
            }
        });
    }
    if lost {
        return Ok(None);
    }
    narrow.weights.clone_from(&wide.weights);
    narrow.weight_bytes = wide.weight_bytes;
    verify::verify(&narrow, expected)?;
    Ok(Some(narrow))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emit::{self, WeightsFrom};
    use crate::ir::Tensor;
    use crate::ops::testing::case;
    use crate::program::{Meta, assemble};
    use crate::{exec, lower, memory, streams};
    use kiln_kernels::Dtype;
    use kiln_kernels::isa::Isa;

    /// A program on so many streams with some bytes of its arena to spare, so that three of them differ.
    fn program(streams: usize, spare_bytes: u64) -> (Program, Expectation) {
        let data: Vec<u8> = (0..64 * 64).flat_map(|i| ((i % 7) as f32 - 3.0).to_le_bytes()).collect();
        let x = Tensor::new(Dtype::F32, vec![64, 64], data.into()).unwrap();
        let graph = case("", "MatMul", 13).input(x.clone()).constant(x).infer().unwrap();
        let lowered = lower::lower(&graph).unwrap();
        let (lowered, schedule) = streams::plan(&graph, lowered, streams).unwrap();
        let expected = verify::expectation(&lowered);
        let mut arena = memory::plan_on_streams(&lowered, &schedule).unwrap();
        arena.bytes += spare_bytes;
        (assemble(&graph, lowered, schedule, arena, &[], Meta::default()).unwrap(), expected)
    }

    #[test]
    fn three_schedules_in_one_module() {
        let ((wide, _), mid, narrow) = (program(4, 128), program(2, 64), program(1, 0));
        let streams = |p: &Program| p.schedule.streams.len();
        assert_eq!((streams(&wide), streams(&mid.0), streams(&narrow.0)), (4, 2, 1));
        let least = narrow.0.memory_bytes();
        let narrower = || vec![program(2, 64), program(1, 0)];
        let all = within(wide.clone(), narrower(), u64::MAX, true).unwrap();
        let bytes: Vec<u64> = std::iter::once(&all).chain(&all.narrow).map(Program::memory_bytes).collect();
        assert_eq!(bytes, [least + 128, least + 64, least]);
        let source = emit::emit(&all, WeightsFrom::Embed, false).unwrap().source;
        for text in ["mod schedule_1 {", "mod schedule_2 {", "schedule_1::STREAMS", "schedule_2::steps"] {
            assert!(source.contains(text), "{text}");
        }
        assert!(!source.contains("schedule_2::STREAMS"), "one stream has no threads");
        let input: Vec<u8> = (0..64 * 64).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let run = |p: &Program| exec::run_program(p, &[&input], Isa::detect()).unwrap()[0].data().to_vec();
        assert!(all.narrow.iter().all(|p| run(p) == run(&all)));
        let widths = |budget| within(wide.clone(), narrower(), budget, true).map(|p| (streams(&p), p.narrow.len()));
        assert_eq!(widths(least + 127).unwrap(), (2, 1));
        assert_eq!(widths(least).unwrap(), (1, 0));
        assert!(widths(least - 1).is_err());
        // Those that need no less than the one before are left out, and all but one where there may be one only.
        let same = within(wide.clone(), vec![program(2, 128), program(1, 0)], u64::MAX, true).unwrap();
        assert_eq!(same.narrow.iter().map(streams).collect::<Vec<_>>(), [1]);
        assert!(within(wide, narrower(), u64::MAX, false).unwrap().narrow.is_empty());
    }

    #[test]
    fn halves_and_one_at_last() {
        assert_eq!(narrower(1), [0usize; 0]);
        assert_eq!((narrower(2), narrower(3), narrower(6)), (vec![1], vec![1], vec![3, 1]));
        assert_eq!((narrower(8), narrower(64)), (vec![4, 2, 1], vec![32, 16, 1]));
    }
}
