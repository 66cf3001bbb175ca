//! The arena of one memory: lifetimes from the order of steps, on several streams conflicts from their partial order;
//! offsets from the solver.

use super::alias::{groups, groups_on_streams};
use super::solve::{self, Options, Problem, Solution};
use crate::error::{CompileError, Stage};
use crate::lower::{Buffer, BufferKind, Lowered};
use crate::plan::order::{Accesses, HappensBefore, conflicts, peak};
use crate::schedule::Schedule;

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

/// A solver's problem, and which buffers of the lowered graph its buffers are.
struct Question {
    problem: Problem,
    /// The representative of each of the solver's buffers.
    members: Vec<usize>,
    /// The solver's number of every buffer; `usize::MAX` where it has no place in the arena.
    index: Vec<usize>,
}

/// Plans the arena of a lowered graph, in the order of its steps. Sizes are the symbols' upper bounds.
pub fn plan(lowered: &Lowered) -> Result<ArenaPlan, CompileError> {
    Ok(answer(lowered, &one_stream(lowered)?))
}

/// Plans the arena for a schedule: on several streams two buffers may share bytes only if every access to one surely
/// happens before every access to the other.
pub fn plan_on_streams(lowered: &Lowered, schedule: &Schedule) -> Result<ArenaPlan, CompileError> {
    Ok(answer(lowered, &question(lowered, schedule)?))
}

/// The same with a region for each branch ([`super::regions`]).
pub fn plan_by_branch(lowered: &Lowered, schedule: &Schedule) -> Result<ArenaPlan, CompileError> {
    let lives = lives(lowered, schedule)?;
    let solution = super::regions::solve(lowered, schedule, &lives)?;
    let Lives { order, members, sizes, accesses, index, .. } = lives;
    Ok(arena(lowered, &Question { problem: problem(&order, &sizes, &accesses)?, members, index }, solution))
}

/// A bound below the arena of a schedule in bytes, without solving, and the buffers that give it.
pub(crate) fn least(lowered: &Lowered, schedule: &Schedule) -> Result<(u64, Vec<usize>), CompileError> {
    let Question { problem, members, .. } = question(lowered, schedule)?;
    Ok((problem.lower_bound(), problem.peak().iter().map(|&i| members[i]).collect()))
}

fn question(lowered: &Lowered, schedule: &Schedule) -> Result<Question, CompileError> {
    if schedule.streams.len() < 2 { one_stream(lowered) } else { several_streams(lowered, schedule) }
}

fn error(m: String) -> CompileError {
    CompileError::new(Stage::Plan, m)
}

fn one_stream(lowered: &Lowered) -> Result<Question, CompileError> {
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
        let bytes = bound(buffer)?;
        let lower = if groups.first[b] == usize::MAX { 0 } else { groups.first[b] };
        let upper = groups.last[b].min(lowered.steps.len()).saturating_add(1);
        index[b] = buffers.len();
        members.push(b);
        buffers.push(solve::Buffer::new(lower as i64, upper as i64, bytes));
    }
    let problem = Problem::from_intervals(&buffers).map_err(|e| error(e.to_string()))?;
    let index = (0..n).map(|b| index[groups.of(b as u32) as usize]).collect();
    Ok(Question { problem, members, index })
}

fn bound(buffer: &Buffer) -> Result<u64, CompileError> {
    let bytes = buffer.bytes.upper().and_then(|u| u64::try_from(u).ok());
    let unbounded = || format!("the size of \"{}\" has no bound: {}", buffer.name, buffer.bytes);
    bytes.ok_or_else(|| CompileError::new(Stage::Plan, unbounded()))
}

/// Solves, and puts the solution as a plan.
fn answer(lowered: &Lowered, question: &Question) -> ArenaPlan {
    arena(lowered, question, solve::solve(&question.problem, &Options::default()))
}

/// The solution as a plan.
fn arena(lowered: &Lowered, question: &Question, solution: Solution) -> ArenaPlan {
    let Question { problem, members, index } = question;
    let place = |&at: &usize| Some(at).filter(|&at| at != usize::MAX).map(|at| solution.offsets[at]);
    let tensor = |&i: &usize| {
        let buffer = &lowered.buffers[members[i]];
        PeakTensor { name: buffer.name.clone(), bytes: bound(buffer).unwrap_or(0) }
    };
    let mut peak: Vec<PeakTensor> = problem.peak().iter().map(tensor).collect();
    peak.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    ArenaPlan {
        offsets: index.iter().map(place).collect(),
        bytes: solution.height,
        lower_bound_bytes: solution.lower_bound,
        naive_bytes: problem.naive_bytes(),
        proven_optimal: solution.proven_optimal,
        peak,
    }
}

/// Who touches which piece of memory when, in a schedule's partial order.
pub(super) struct Lives {
    pub(super) order: HappensBefore,
    /// The buffer that stands for each piece of memory.
    pub(super) members: Vec<usize>,
    pub(super) sizes: Vec<u64>,
    pub(super) accesses: Vec<Accesses>,
    /// The piece of every buffer; `usize::MAX` where it has no place in the arena.
    pub(super) index: Vec<usize>,
    /// The first step that touches each piece; `usize::MAX` where none does.
    pub(super) first: Vec<usize>,
}

pub(super) fn lives(lowered: &Lowered, schedule: &Schedule) -> Result<Lives, CompileError> {
    let (events, at) = schedule.events();
    let order = HappensBefore::new(&events).ok_or_else(|| error("a schedule that deadlocks".into()))?;
    let groups = groups_on_streams(lowered, &|a, b| order.before(at[a], at[b]));
    let (mut members, mut sizes, mut accesses, mut first) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut index = vec![usize::MAX; lowered.buffers.len()];
    for (b, buffer) in lowered.buffers.iter().enumerate() {
        let here = matches!(buffer.kind, BufferKind::Activation | BufferKind::Scratch);
        let used = !groups.steps[b].is_empty() || groups.output[b];
        if !here || !used || groups.of(b as u32) != b as u32 {
            continue;
        }
        index[b] = members.len();
        members.push(b);
        sizes.push(bound(buffer)?);
        first.push(groups.steps[b].iter().copied().min().unwrap_or(usize::MAX));
        let steps = groups.steps[b].iter().map(|&s| at[s]).collect();
        accesses.push(Accesses { steps, from_start: false, to_end: groups.output[b] });
    }
    let index = (0..index.len()).map(|b| index[groups.of(b as u32) as usize]).collect();
    Ok(Lives { order, members, sizes, accesses, index, first })
}

/// The solver's problem of pieces of memory in a partial order.
pub(super) fn problem(order: &HappensBefore, sizes: &[u64], accesses: &[Accesses]) -> Result<Problem, CompileError> {
    let alignments = vec![solve::DEFAULT_ALIGNMENT; sizes.len()];
    let aligned: Vec<u64> = sizes.iter().map(|s| s.next_multiple_of(solve::DEFAULT_ALIGNMENT)).collect();
    let clique = peak(order, accesses, &aligned);
    let problem = Problem::from_conflicts(sizes, &alignments, &conflicts(order, accesses));
    problem.and_then(|p| p.with_cliques(&[clique])).map_err(|e| error(e.to_string()))
}

fn several_streams(lowered: &Lowered, schedule: &Schedule) -> Result<Question, CompileError> {
    let Lives { order, members, sizes, accesses, index, .. } = lives(lowered, schedule)?;
    Ok(Question { problem: problem(&order, &sizes, &accesses)?, members, index })
}

/// Plans a device's memory: the buffers on it may share bytes only if every access to one surely happens before every
/// access to the other. Over capacity is an error that names the largest buffers in use at once.
pub fn plan_device(
    lowered: &Lowered,
    schedule: &Schedule,
    capacity_bytes: u64,
    alignment_bytes: u64,
) -> Result<ArenaPlan, CompileError> {
    let error = |m: String| CompileError::new(Stage::Plan, m);
    let (events, at) = schedule.events();
    let order = HappensBefore::new(&events).ok_or_else(|| error("a schedule that deadlocks".into()))?;
    let mut index = vec![usize::MAX; lowered.buffers.len()];
    let (mut members, mut sizes, mut accesses) = (Vec::new(), Vec::new(), Vec::<Accesses>::new());
    for (i, step) in lowered.steps.iter().enumerate() {
        for o in step.call.operands() {
            let b = o.operand.mem as usize;
            if lowered.buffers[b].kind != BufferKind::OnDevice {
                continue;
            }
            if index[b] == usize::MAX {
                index[b] = members.len();
                members.push(b);
                sizes.push(bound(&lowered.buffers[b])?);
                accesses.push(Accesses::default());
            }
            let steps = &mut accesses[index[b]].steps;
            if steps.last() != Some(&at[i]) {
                steps.push(at[i]);
            }
        }
    }
    let alignment = alignment_bytes.max(solve::DEFAULT_ALIGNMENT);
    let aligned: Vec<u64> = sizes.iter().map(|s| s.next_multiple_of(alignment)).collect();
    let clique = peak(&order, &accesses, &aligned);
    let problem = Problem::from_conflicts(&sizes, &vec![alignment; sizes.len()], &conflicts(&order, &accesses));
    let problem = problem.and_then(|p| p.with_cliques(&[clique])).map_err(|e| error(e.to_string()))?;
    // Whatever fits is as good as the smallest.
    let greedy = Some(solve::solve(&problem, &Options::greedy())).filter(|s| s.height <= capacity_bytes);
    let solution = greedy.unwrap_or_else(|| solve::solve(&problem, &Options::default()));
    let plan = arena(lowered, &Question { problem, members, index }, solution);
    if plan.bytes <= capacity_bytes {
        return Ok(plan);
    }
    let largest: Vec<String> = plan.peak.iter().take(4).map(|t| format!("\"{}\" {}", t.name, t.bytes)).collect();
    let (bytes, largest) = (plan.bytes, largest.join(", "));
    Err(error(format!("the device's memory has {capacity_bytes} bytes, {bytes} are needed at once, for {largest}")))
}
