//! What fits a size of memory: the schedule on all streams, that on one, or both of them in one module.
//!
//! In: a program, the same model on one stream, a budget in bytes. Out: the widest program within the budget; where the
//! other one needs less memory and its module can hold both, with that one beside it ([`Program::narrow`]), so that
//! `Model::with_budget` can choose at start. planning.md §8; that a stream's plan is near the one-stream arena is decided in
//! [`crate::streams`], so that there are two sizes and not many.
//! Invariant: both are proven, the one beside with the weights at the other's places.

use crate::error::{CompileError, Stage};
use crate::program::{Program, WEIGHTS};
use crate::verify::{self, Expectation};
use std::collections::HashMap;

/// Chooses. `narrow` is the model on one stream, if the program has more.
pub(crate) fn within(
    wide: Program,
    narrow: Option<(Program, Expectation)>,
    budget_bytes: u64,
    both: bool,
) -> Result<Program, CompileError> {
    let narrow = narrow.filter(|(n, _)| n.memory_bytes() < wide.memory_bytes());
    if wide.memory_bytes() <= budget_bytes {
        let narrow = match narrow {
            Some((narrow, expected)) if both => beside(&wide, narrow, &expected)?,
            _ => None,
        };
        return Ok(Program { narrow: narrow.map(Box::new), ..wide });
    }
    let least = narrow.map_or(wide, |(n, _)| n);
    if least.memory_bytes() <= budget_bytes { Ok(least) } else { Err(over(&least, budget_bytes)) }
}

/// The error that names what is alive at the peak.
fn over(program: &Program, budget_bytes: u64) -> CompileError {
    let named = |p: &crate::memory::PeakTensor| format!("\"{}\" {}", p.name, p.bytes);
    let peak: Vec<String> = program.arena.peak.iter().take(4).map(named).collect();
    let bytes = program.memory_bytes();
    let what = format!("the budget is {budget_bytes} bytes, {bytes} are needed, most of them for {}", peak.join(", "));
    CompileError::new(Stage::Plan, what)
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
