//! A region of the arena for each branch, as Parallax lays memory out, to compare with.
//!
//! In: calls in a schedule, and who touches which piece of memory when. Out: offsets. The pieces that a branch makes lie
//! together in its region, packed by their own lives; regions share bytes only where all accesses to one surely happen
//! before all accesses to the other. So nothing of two branches that may run at once meets, and a branch's memory is one
//! block that could be given back.
//! Source: Parallax, arXiv 2512.11532, §3.2; planning.md §7.

use super::arena::{Lives, problem};
use super::solve::{self, Options, Solution};
use crate::error::{CompileError, Stage};
use crate::lower::Lowered;
use crate::plan::branch::branches;
use crate::plan::dag::Dag;
use crate::plan::order::Accesses;
use crate::schedule::{Schedule, StreamStep};

/// The offset of every piece of memory, in two levels: in its region, and the region's.
pub(super) fn solve(lowered: &Lowered, schedule: &Schedule, lives: &Lives) -> Result<Solution, CompileError> {
    let branch = branch_of_steps(lowered, schedule)?;
    let n_branches = branch.iter().max().map_or(0, |b| b + 1);
    // What no step touches has a region of its own, behind those of branches.
    let mut pieces: Vec<Vec<usize>> = vec![Vec::new(); n_branches + 1];
    for (piece, &first) in lives.first.iter().enumerate() {
        pieces[branch.get(first).copied().unwrap_or(n_branches)].push(piece);
    }
    pieces.retain(|p| !p.is_empty());
    let (mut inner, mut sizes, mut accesses) = (Vec::new(), Vec::new(), Vec::new());
    for pieces in &pieces {
        let own: Vec<Accesses> = pieces.iter().map(|&p| lives.accesses[p].clone()).collect();
        let own_sizes: Vec<u64> = pieces.iter().map(|&p| lives.sizes[p]).collect();
        let solution = solve::solve(&problem(&lives.order, &own_sizes, &own)?, &Options::default());
        sizes.push(solution.height);
        inner.push(solution.offsets);
        accesses.push(Accesses {
            from_start: own.iter().any(|a| a.from_start),
            to_end: own.iter().any(|a| a.to_end),
            steps: own.into_iter().flat_map(|a| a.steps).collect(),
        });
    }
    let regions = solve::solve(&problem(&lives.order, &sizes, &accesses)?, &Options::default());
    let mut offsets = vec![0; lives.sizes.len()];
    for ((pieces, inner), base) in pieces.iter().zip(inner).zip(&regions.offsets) {
        pieces.iter().zip(inner).for_each(|(&p, off)| offsets[p] = base + off);
    }
    // The bound of all pieces packed together: regions may not reach it.
    let lower_bound = problem(&lives.order, &lives.sizes, &lives.accesses)?.lower_bound();
    Ok(Solution {
        offsets,
        height: regions.height,
        lower_bound,
        proven_optimal: regions.height == lower_bound,
        ..regions
    })
}

/// The branch of every step: chains of calls on one stream.
fn branch_of_steps(lowered: &Lowered, schedule: &Schedule) -> Result<Vec<usize>, CompileError> {
    let n = lowered.steps.len();
    let mut stream = vec![0; n];
    for (s, steps) in schedule.streams.iter().enumerate() {
        for step in steps {
            if let StreamStep::Run(i) = *step {
                stream[i] = s;
            }
        }
    }
    let mut writers: Vec<Vec<usize>> = vec![Vec::new(); lowered.buffers.len()];
    let mut edges = Vec::new();
    for (i, step) in lowered.steps.iter().enumerate() {
        let operands = step.call.operands();
        for o in &operands {
            edges.extend(writers[o.operand.mem as usize].iter().filter(|&&w| w != i).map(|&w| (w, i)));
        }
        operands.iter().filter(|o| o.writes()).for_each(|o| writers[o.operand.mem as usize].push(i));
    }
    let dag = Dag::new(n, edges).map_err(|_| CompileError::new(Stage::Plan, "calls that need each other"))?;
    let control_flow = |i: usize| lowered.steps[i].call.control().is_some();
    Ok(branches(&dag, control_flow, |a, b| stream[a] == stream[b]).of)
}
