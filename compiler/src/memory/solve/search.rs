//! Exact search for a placement within a capacity, after MiniMalloc (Moffitt, "MiniMalloc: A Lightweight Memory Allocator
//! for Hardware-Accelerated Machine Learning", ASPLOS 2023).
//!
//! Depth first. A node places one more buffer at the lowest offset its placed neighbours allow. Pruning:
//! - canonical: offsets never decrease along a branch, ties go by rank;
//! - sections: in each, what is unplaced must still fit above the floor ([`super::branch`], which draws more conclusions than
//!   MiniMalloc: a candidate tried in vain must rest on something unplaced, and members stack up from their own bounds);
//! - dominance: no buffer starts where another could still end below it;
//! - decomposition: when the unplaced buffers fall into independent parts, each is searched alone, the smallest first,
//!   and one that fails fails the node;
//! - memory: a state that failed (which buffers are unplaced, and how low each may go) is not searched again, whatever led
//!   to it and in whichever order. When a node fails, no placement of its unplaced buffers at all completes it: what was
//!   concluded above it holds for every completion, as candidates given up there failed in the same sense.
//!
//! Orders take turns with node limits that double. Only nodes and steps are counted, never time. The stack is explicit, so
//! depth is no danger.

use std::collections::HashSet;
use std::rc::Rc;

use super::branch::{Branch, Tables};
use super::component::Component;
use super::greedy::NOWHERE;
use super::order::{self, Key};

/// Components with more buffers are not searched: a node lists all that are unplaced.
const MAX_BUFFERS: usize = 2048;

/// Failed states remembered per capacity.
const MAX_FAILED: usize = 1 << 20;

/// What a search ended with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A placement within the capacity.
    Found(Vec<u64>),
    /// There is none.
    Exhausted,
    /// The budget ran out.
    OutOfBudget,
}

/// Searches one component, for one capacity after another.
pub(super) struct Searcher<'a> {
    tables: Tables<'a>,
}

/// A buffer and its rank in the order of its part.
type Ranked = (u32, u32);

/// An entry of the stack.
enum Frame {
    /// Places one of `candidates` (offset, rank, buffer), by turns. `state` names what is left to place.
    Choose {
        sections: Rc<[u32]>,
        unplaced: Vec<Ranked>,
        candidates: Vec<(u64, u32, u32)>,
        next: usize,
        mark: usize,
        state: u128,
    },
    /// Solves independent parts, by turns; all must succeed.
    All { parts: Vec<Vec<u32>>, next: usize, mark: usize },
}

/// What the entry on top of the stack does next.
enum Move {
    Push(Frame),
    Succeed,
    Fail,
    Stop,
}

impl<'a> Searcher<'a> {
    /// Prepares the search; `None` for a component that is too large for it.
    pub(super) fn new(part: &'a Component) -> Option<Searcher<'a>> {
        let tables = (part.len() <= MAX_BUFFERS).then(|| Tables::new(part))??;
        Some(Searcher { tables })
    }

    /// Looks for a placement within `capacity`, taking the steps it needs from `budget`.
    pub(super) fn search(&self, capacity: u64, budget: &mut u64) -> Outcome {
        let all: Vec<u32> = (0..self.tables.members.n_rows() as u32).collect();
        if !Branch::new(&self.tables, capacity).all_fit(0, &all) {
            return Outcome::Exhausted;
        }
        let mut failed = HashSet::new();
        let mut node_limit = 2 * self.tables.part.len() as u64;
        loop {
            for keys in &order::SEARCH_ORDERS {
                let mut run = Run {
                    t: &self.tables,
                    branch: Branch::new(&self.tables, capacity),
                    keys,
                    nodes_left: node_limit,
                    step_limit: *budget,
                    failed: &mut failed,
                };
                let outcome = run.run();
                *budget = budget.saturating_sub(run.branch.steps);
                if outcome != Outcome::OutOfBudget || *budget == 0 {
                    return outcome;
                }
            }
            node_limit = node_limit.saturating_mul(2);
        }
    }
}

/// One search with one order, up to a number of nodes.
struct Run<'a> {
    t: &'a Tables<'a>,
    branch: Branch<'a>,
    keys: &'a [Key; 3],
    nodes_left: u64,
    step_limit: u64,
    failed: &'a mut HashSet<u128>,
}

impl Run<'_> {
    fn run(&mut self) -> Outcome {
        let free: Vec<u32> = self.t.part.free().collect();
        let parts = if free.is_empty() { Vec::new() } else { vec![free] };
        let mut stack = vec![Frame::All { parts, next: 0, mark: 0 }];
        // How the entry above ended; None when the top is new.
        let mut ended: Option<bool> = None;
        while let Some(top) = stack.last_mut() {
            let step = match top {
                Frame::All { parts, next, mark } => self.next_part(parts, next, *mark, ended),
                Frame::Choose { .. } if ended == Some(true) => Move::Succeed,
                Frame::Choose { sections, unplaced, candidates, next, mark, state } => {
                    let step = self.next_candidate(sections, unplaced, candidates, next, mark, ended.is_some());
                    if matches!(step, Move::Fail) && self.failed.len() < MAX_FAILED {
                        self.failed.insert(*state);
                    }
                    step
                }
            };
            ended = match step {
                Move::Push(frame) => {
                    stack.push(frame);
                    None
                }
                Move::Succeed | Move::Fail => {
                    stack.pop();
                    Some(matches!(step, Move::Succeed))
                }
                Move::Stop => return Outcome::OutOfBudget,
            };
        }
        if ended == Some(true) { Outcome::Found(std::mem::take(&mut self.branch.offsets)) } else { Outcome::Exhausted }
    }

    fn next_part(&mut self, parts: &mut [Vec<u32>], next: &mut usize, mark: usize, ended: Option<bool>) -> Move {
        if ended == Some(false) {
            self.branch.undo(mark);
            return Move::Fail;
        }
        let Some(part) = parts.get_mut(*next).map(std::mem::take) else { return Move::Succeed };
        *next += 1;
        Move::Push(self.enter(part))
    }

    /// Tries the next candidates until one can be placed; `came_back`: the last one tried failed further down.
    fn next_candidate(
        &mut self,
        sections: &Rc<[u32]>,
        unplaced: &[Ranked],
        candidates: &[(u64, u32, u32)],
        next: &mut usize,
        mark: &mut usize,
        came_back: bool,
    ) -> Move {
        let mut failed = came_back;
        loop {
            if failed {
                // What failing proves holds for all later candidates of this node.
                self.branch.undo(*mark);
                let goes_on = self.branch.give_up(candidates[*next - 1].2);
                *mark = self.branch.mark();
                if !goes_on {
                    return Move::Fail;
                }
            }
            let Some(&(at, _, buffer)) = candidates.get(*next) else { return Move::Fail };
            if self.nodes_left == 0 || self.branch.steps >= self.step_limit {
                return Move::Stop;
            }
            *next += 1;
            self.nodes_left -= 1;
            self.branch.steps += (unplaced.len() + sections.len()) as u64;
            if self.branch.place(buffer) && self.branch.all_fit(at, sections) {
                let left: Vec<Ranked> = unplaced.iter().copied().filter(|&(_, i)| i != buffer).collect();
                let parts = self.parts(&left, buffer);
                return Move::Push(match parts.len() {
                    1 => self.choose(Rc::clone(sections), left),
                    _ => Frame::All { parts, next: 0, mark: self.branch.mark() },
                });
            }
            failed = true;
        }
    }

    /// The entry for an independent part: its buffers ranked, its sections listed.
    fn enter(&mut self, mut buffers: Vec<u32>) -> Frame {
        let t = self.t;
        let of_all = buffers.iter().flat_map(|&i| t.sections.row(i as usize)).copied();
        let mut sections: Vec<u32> = of_all.collect();
        self.branch.steps += sections.len() as u64;
        sections.sort_unstable();
        sections.dedup();
        let mut totals = vec![0; t.part.len()];
        for &i in &buffers {
            let most = t.sections.row(i as usize).iter().map(|&s| self.branch.totals[s as usize]).max();
            totals[i as usize] = most.unwrap_or(0);
        }
        order::sort(&mut buffers, self.keys, t.part, &totals);
        let unplaced = buffers.into_iter().enumerate().map(|(rank, i)| (rank as u32, i)).collect();
        self.choose(sections.into(), unplaced)
    }

    /// The entry that places the next buffer. Candidates: those that may lie at their lowest offset, and start
    /// below the least height at which any unplaced buffer could end.
    fn choose(&self, sections: Rc<[u32]>, unplaced: Vec<Ranked>) -> Frame {
        let Branch { lowest, bounds, .. } = &self.branch;
        let state = unplaced.iter().fold(0, |state, &(_, i)| state ^ mix(i, lowest[i as usize]));
        if self.failed.contains(&state) {
            return Frame::Choose {
                sections,
                unplaced,
                candidates: Vec::new(),
                next: 0,
                mark: self.branch.mark(),
                state,
            };
        }
        let sizes = &self.t.part.sizes;
        let ceiling = unplaced.iter().map(|&(_, i)| lowest[i as usize] + sizes[i as usize]).min().unwrap_or(0);
        let mut candidates: Vec<(u64, u32, u32)> = unplaced
            .iter()
            .map(|&(rank, i)| (lowest[i as usize], rank, i))
            .filter(|&(at, _, i)| at < ceiling && at >= bounds[i as usize])
            .collect();
        candidates.sort_unstable();
        Frame::Choose { sections, unplaced, candidates, next: 0, mark: self.branch.mark(), state }
    }

    /// Cuts the unplaced buffers into independent parts after `placed` was placed, the smallest first.
    fn parts(&mut self, left: &[Ranked], placed: u32) -> Vec<Vec<u32>> {
        let mut parts = match &self.t.part.spans {
            Some(spans) => self.parts_by_time(spans, left, placed),
            None => self.parts_by_reach(left),
        };
        parts.sort_by_key(Vec::len);
        parts
    }

    /// Intervals come apart only between sections of the buffer just placed, where nothing unplaced crosses.
    fn parts_by_time(&self, spans: &[(u32, u32)], left: &[Ranked], placed: u32) -> Vec<Vec<u32>> {
        let (first, end) = spans[placed as usize];
        let cuts: Vec<u32> = (first + 1..end).filter(|&s| self.branch.crossing[s as usize - 1] == 0).collect();
        let mut parts = vec![Vec::new(); cuts.len() + 1];
        for &(_, i) in left {
            parts[cuts.partition_point(|&cut| cut <= spans[i as usize].0)].push(i);
        }
        parts.retain(|part| !part.is_empty());
        parts
    }

    fn parts_by_reach(&mut self, left: &[Ranked]) -> Vec<Vec<u32>> {
        let mut seen = vec![false; self.t.part.len()];
        let mut parts: Vec<Vec<u32>> = Vec::new();
        for &(_, root) in left {
            if std::mem::replace(&mut seen[root as usize], true) {
                continue;
            }
            let mut part = vec![root];
            let mut at = 0;
            while at < part.len() {
                let row = self.t.lists.row(part[at] as usize);
                self.branch.steps += row.len() as u64;
                for &j in row {
                    if self.branch.offsets[j as usize] == NOWHERE && !std::mem::replace(&mut seen[j as usize], true) {
                        part.push(j);
                    }
                }
                at += 1;
            }
            parts.push(part);
        }
        parts
    }
}

/// A number for a buffer and its lowest offset; states xor them. 128 bits, so that no two states collide in practice.
fn mix(buffer: u32, lowest: u64) -> u128 {
    let half = |seed: u64| {
        let mut z = lowest.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (u64::from(buffer) + 1).wrapping_mul(seed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    u128::from(half(0xD1B5_4A32_D192_ED03)) << 64 | u128::from(half(0xABC9_8388_FB8F_AC03))
}
