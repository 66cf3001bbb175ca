//! The arena of one memory on one stream: lifetimes from the order of steps, offsets from the solver.

use super::alias::groups;
use super::solve::{self, Options, Problem};
use crate::error::{CompileError, Stage};
use crate::lower::{BufferKind, Lowered};

/// Where every buffer lies in the arena, and how good the plan is.
#[derive(Clone, Debug, Default)]
pub struct ArenaPlan {
    /// For every buffer its offset in the arena; `None` for inputs and weights, and for buffers nobody uses.
    pub offsets: Vec<Option<u64>>,
    /// Size of the arena.
    pub bytes: u64,
    /// No plan for this schedule is smaller.
    pub lower_bound_bytes: u64,
    /// Without any sharing.
    pub naive_bytes: u64,
    /// Whether no smaller plan exists.
    pub proven_optimal: bool,
    /// The buffers alive at the peak, largest first.
    pub peak: Vec<PeakTensor>,
}

/// A buffer alive at the peak.
#[derive(Clone, Debug)]
pub struct PeakTensor {
    /// The value's name.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// Plans the arena of a lowered graph, in the order of its steps. Sizes are the symbols' upper bounds.
pub fn plan(lowered: &Lowered) -> Result<ArenaPlan, CompileError> {
    let error = |m: String| CompileError::new(Stage::Plan, m);
    let groups = groups(lowered);
    let n = lowered.buffers.len();
    let mut members = Vec::new();
    let mut buffers = Vec::new();
    let mut index = vec![usize::MAX; n];
    for (b, buffer) in lowered.buffers.iter().enumerate() {
        let here = matches!(buffer.kind, BufferKind::Activation | BufferKind::Scratch);
        let used = groups.first[b] != usize::MAX || groups.last[b] == usize::MAX;
        if !here || !used || groups.of(b as u32) != b as u32 {
            continue;
        }
        let bytes = buffer.bytes.upper().and_then(|u| u64::try_from(u).ok());
        let bytes =
            bytes.ok_or_else(|| error(format!("the size of \"{}\" has no bound: {}", buffer.name, buffer.bytes)))?;
        let lower = if groups.first[b] == usize::MAX { 0 } else { groups.first[b] };
        let upper = groups.last[b].min(lowered.steps.len()).saturating_add(1);
        index[b] = buffers.len();
        members.push(b);
        buffers.push(solve::Buffer::new(lower as i64, upper as i64, bytes));
    }
    let problem = Problem::from_intervals(&buffers).map_err(|e| error(e.to_string()))?;
    let solution = solve::solve(&problem, &Options::default());
    let mut offsets = vec![None; n];
    for (b, offset) in offsets.iter_mut().enumerate() {
        let at = index[groups.of(b as u32) as usize];
        if at != usize::MAX {
            *offset = Some(solution.offsets[at]);
        }
    }
    let mut peak: Vec<PeakTensor> = problem
        .peak()
        .iter()
        .map(|&i| PeakTensor { name: lowered.buffers[members[i]].name.clone(), bytes: buffers[i].size })
        .collect();
    peak.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    Ok(ArenaPlan {
        offsets,
        bytes: solution.height,
        lower_bound_bytes: solution.lower_bound,
        naive_bytes: problem.naive_bytes(),
        proven_optimal: solution.proven_optimal,
        peak,
    })
}
