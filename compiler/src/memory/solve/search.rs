//! Exact search for a placement within a capacity, after MiniMalloc (Moffitt, "MiniMalloc: A Lightweight Memory Allocator
//! for Hardware-Accelerated Machine Learning", ASPLOS 2023).
//!
//! Depth first. A node places one more buffer at the lowest offset its placed neighbours allow. Pruning:
//! - canonical: offsets never decrease along a branch, ties go by rank;
//! - sections: the floor of each section (what lies below every unplaced member) plus the bytes still to place must fit;
//! - dominance: no buffer starts where another could still end below it;
//! - decomposition: when the unplaced buffers fall into independent parts, each is searched alone, and the first that
//!   fails fails the node.
//!
//! Orders take turns with node limits that double. Only nodes and steps are counted, never time. An explicit stack, so
//! that depth is no danger. Invariant: undoing the trail to a mark restores the state at that mark exactly.

use std::cmp::Reverse;
use std::rc::Rc;

use super::component::Component;
use super::csr::Csr;
use super::greedy::{NOWHERE, Obstacles};
use super::order::{self, Key};

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

fn var(name: &str) -> u64 {
    static V: std::sync::OnceLock<Vec<u64>> = std::sync::OnceLock::new();
    V.get_or_init(|| {
        (0..10).map(|i| std::env::var(format!("V{i}")).ok().and_then(|v| v.parse().ok()).unwrap_or(0)).collect()
    })[(name.as_bytes()[1] - b'0') as usize]
}

/// The search's view of a component; reused for several capacities.
pub(super) struct Searcher<'a> {
    part: &'a Component,
    lists: &'a Csr,
    /// Members of each section (clique), and the sections of each buffer.
    members: Csr,
    sections: Csr,
    obstacles: Obstacles,
    /// The fixed ranges in each section; empty when nothing is fixed.
    fixed_in: Vec<Vec<(u64, u64)>>,
    /// Nodes visited so far, for reports.
    pub(super) n_nodes: u64,
}

/// What placing a buffer changed.
enum Change {
    Lowest { buffer: u32, was: u64, bound_was: u64 },
    Floor { section: u32, was: u64 },
    Placed { buffer: u32 },
}

/// Where a stack entry continues.
enum Frame {
    /// Tries candidates one after another.
    Choose { part: Rc<Part>, unplaced: Vec<(u32, u32)>, candidates: Vec<(u64, u32, u32)>, next: usize, mark: usize },
    /// Solves independent parts one after another.
    All { parts: Vec<Vec<u32>>, next: usize, mark: usize, floor: u64 },
}

/// An independent part of the unplaced buffers.
struct Part {
    /// The sections they live in.
    sections: Vec<u32>,
}

/// The state along the current branch.
struct State {
    capacity: u64,
    offsets: Vec<u64>,
    /// The lowest offset that placed and fixed neighbours allow.
    lowest: Vec<u64>,
    /// No solution on this branch has the buffer lower than this.
    bounds: Vec<u64>,
    /// Unplaced members of each section.
    live: Vec<Vec<u32>>,
    floors: Vec<u64>,
    /// Bytes of unplaced buffers in each section.
    totals: Vec<u64>,
    /// Intervals: how many unplaced buffers cross from section s to s + 1.
    crossing: Vec<u32>,
    trail: Vec<Change>,
    /// Sections whose floor may have risen; `stamp` marks those listed.
    touched: Vec<(u32, bool)>,
    flags: Vec<u64>,
    stamps: Vec<u64>,
    stamp: u64,
    steps: u64,
    waiting: Vec<(u64, u64)>,
}

impl<'a> Searcher<'a> {
    /// Prepares the search; `None` without lists of neighbours.
    pub(super) fn new(part: &'a Component) -> Option<Searcher<'a>> {
        let lists = part.neighbours.as_ref()?;
        let members = part.cliques();
        let sections = members.transposed(part.len());
        let any_fixed = part.fixed.iter().any(Option::is_some);
        let fixed_in = (0..if any_fixed { members.n_rows() } else { 0 })
            .map(|s| {
                let range = |&i: &u32| part.fixed[i as usize].map(|at| (at, at + part.sizes[i as usize]));
                members.row(s).iter().filter_map(range).collect()
            })
            .collect();
        Some(Searcher { part, lists, members, sections, obstacles: Obstacles::new(part), fixed_in, n_nodes: 0 })
    }

    /// Looks for a placement within `capacity`, spending at most `budget` steps.
    pub(super) fn search(&mut self, capacity: u64, budget: &mut u64) -> Outcome {
        let mut node_limit = 2 * self.part.len() as u64;
        loop {
            for order in &order::SEARCH_ORDERS {
                match self.run(capacity, order, node_limit, budget) {
                    Outcome::OutOfBudget if *budget == 0 => return Outcome::OutOfBudget,
                    Outcome::OutOfBudget => {}
                    done => return done,
                }
            }
            node_limit = node_limit.saturating_mul(2);
        }
    }

    /// One order, up to a number of nodes.
    fn run(&mut self, capacity: u64, order: &[Key; 3], node_limit: u64, budget: &mut u64) -> Outcome {
        let mut state = self.start(capacity);
        let mut nodes_left = node_limit;
        let free: Vec<u32> = self.part.free().collect();
        if !self.all_fit(&state, 0, &(0..self.members.n_rows() as u32).collect::<Vec<u32>>()) {
            return Outcome::Exhausted;
        }
        let mut stack = vec![Frame::All { parts: vec![free], next: 0, mark: 0, floor: 0 }];
        // What the frame that was left last reported; None right after one was entered.
        let mut report: Option<bool> = None;
        while let Some(top) = stack.last_mut() {
            let entered = match top {
                Frame::All { parts, next, mark, floor } => {
                    if report.take() == Some(false) {
                        state.undo(self, *mark);
                        report = Some(false);
                        None
                    } else if *next == parts.len() {
                        report = Some(true);
                        None
                    } else {
                        let part = std::mem::take(&mut parts[*next]);
                        *next += 1;
                        Some(self.enter(&mut state, part, order, *floor))
                    }
                }
                Frame::Choose { .. } if report == Some(true) => None,
                Frame::Choose { part, unplaced, candidates, next, mark } => {
                    report = None;
                    state.undo(self, *mark);
                    let mut child = None;
                    if *next > 0 && var("V6") == 0 {
                        let (at, _, buffer) = candidates[*next - 1];
                        let ok = self.give_up(&mut state, buffer, at);
                        *mark = state.trail.len();
                        if !ok {
                            *next = candidates.len();
                        }
                    }
                    while child.is_none() && *next < candidates.len() {
                        let (at, rank, buffer) = candidates[*next];
                        *next += 1;
                        if nodes_left == 0 || state.steps >= *budget {
                            *budget = budget.saturating_sub(state.steps);
                            self.n_nodes += node_limit - nodes_left;
                            return Outcome::OutOfBudget;
                        }
                        nodes_left -= 1;
                        state.steps += (unplaced.len() + part.sections.len()) as u64;
                        if self.place(&mut state, buffer, at) && self.all_fit(&state, at, &part.sections) {
                            child = Some(self.descend(&mut state, part, unplaced, (at, rank), buffer));
                        } else {
                            state.undo(self, *mark);
                            if var("V6") == 0 {
                                let ok = self.give_up(&mut state, buffer, at);
                                *mark = state.trail.len();
                                if !ok {
                                    *next = candidates.len();
                                }
                            }
                        }
                    }
                    if child.is_none() {
                        report = Some(false);
                    }
                    child
                }
            };
            match entered {
                Some(frame) => stack.push(frame),
                None => {
                    stack.pop();
                }
            }
        }
        *budget = budget.saturating_sub(state.steps);
        self.n_nodes += node_limit - nodes_left;
        if report == Some(true) { Outcome::Found(state.offsets) } else { Outcome::Exhausted }
    }

    fn start(&self, capacity: u64) -> State {
        let (n, n_sections) = (self.part.len(), self.members.n_rows());
        let offsets: Vec<u64> = self.part.fixed.iter().map(|fixed| fixed.unwrap_or(NOWHERE)).collect();
        let free_size = |&i: &u32| if offsets[i as usize] == NOWHERE { self.part.sizes[i as usize] } else { 0 };
        let totals = (0..n_sections).map(|s| self.members.row(s).iter().map(free_size).sum()).collect();
        let lowest: Vec<u64> = (0..n).map(|i| self.obstacles.lowest_fit(self.part, i, 0)).collect();
        let mut crossing = vec![0; n_sections];
        for &(first, end) in self.part.free().filter_map(|i| Some(&self.part.spans.as_ref()?[i as usize])) {
            crossing[first as usize..end as usize - 1].iter_mut().for_each(|n| *n += 1);
        }
        State {
            capacity,
            bounds: lowest.clone(),
            lowest,
            live: (0..n_sections)
                .map(|s| self.members.row(s).iter().copied().filter(|&i| offsets[i as usize] == NOWHERE).collect())
                .collect(),
            offsets,
            floors: vec![0; n_sections],
            totals,
            crossing,
            trail: Vec::new(),
            touched: Vec::new(),
            stamps: vec![0; n_sections],
            flags: vec![0; n_sections],
            stamp: 0,
            steps: 0,
            waiting: Vec::new(),
        }
    }

    /// A frame for one independent part, its buffers ranked by `order`.
    fn enter(&self, state: &mut State, mut buffers: Vec<u32>, order: &[Key; 3], floor: u64) -> Frame {
        let mut sections: Vec<u32> = buffers.iter().flat_map(|&i| self.sections.row(i as usize)).copied().collect();
        sections.sort_unstable();
        sections.dedup();
        let total = |i: usize| self.sections.row(i).iter().map(|&s| state.totals[s as usize]).max().unwrap_or(0);
        let mut totals = vec![0; self.part.len()];
        for &i in &buffers {
            totals[i as usize] = total(i as usize);
        }
        order::sort(&mut buffers, order, self.part, &totals);
        state.steps += (sections.len() + buffers.len()) as u64;
        let unplaced = buffers.into_iter().enumerate().map(|(rank, i)| (rank as u32, i)).collect();
        self.choose(state, Rc::new(Part { sections }), unplaced, (floor, 0))
    }

    /// A frame with the candidates for the next placement; none must come before `last` (offset and rank).
    fn choose(&self, state: &State, part: Rc<Part>, unplaced: Vec<(u32, u32)>, last: (u64, u32)) -> Frame {
        let lowest = |i: u32| state.lowest[i as usize];
        let ceiling = unplaced.iter().map(|&(_, i)| lowest(i) + self.part.sizes[i as usize]).min().unwrap_or(0);
        let mut candidates: Vec<(u64, u32, u32)> = unplaced
            .iter()
            .map(|&(rank, i)| (lowest(i), rank, i))
            .filter(|&(at, rank, i)| {
                at < ceiling && if var("V6") == 0 { at >= state.bounds[i as usize] } else { (at, rank) >= last }
            })
            .collect();
        candidates.sort_unstable();
        Frame::Choose { part, unplaced, candidates, next: 0, mark: state.trail.len() }
    }

    /// The frame below a placement.
    fn descend(
        &self,
        state: &mut State,
        part: &Rc<Part>,
        unplaced: &[(u32, u32)],
        last: (u64, u32),
        buffer: u32,
    ) -> Frame {
        let mut left: Vec<(u32, u32)> = unplaced.iter().copied().filter(|&(_, i)| i != buffer).collect();
        if var("V5") > 0 {
            loop {
                let before = left.len();
                left.retain(|&(_, j)| {
                    let top = state.lowest[j as usize] + self.part.sizes[j as usize];
                    let free = self
                        .lists
                        .row(j as usize)
                        .iter()
                        .all(|&k| state.offsets[k as usize] != NOWHERE || state.lowest[k as usize] >= top);
                    if free {
                        self.place(state, j, state.lowest[j as usize]);
                    }
                    !free
                });
                if left.len() == before {
                    break;
                }
            }
        }
        let parts = self.parts(state, &left, buffer);
        if parts.len() == 1 {
            return self.choose(state, Rc::clone(part), left, last);
        }
        Frame::All { parts, next: 0, mark: state.trail.len(), floor: if var("V1") == 1 { last.0 } else { 0 } }
    }

    /// Cuts the unplaced buffers into independent parts, after `placed` was placed. One part may stand for all.
    fn parts(&self, state: &mut State, left: &[(u32, u32)], placed: u32) -> Vec<Vec<u32>> {
        let Some(spans) = &self.part.spans else { return self.graph_parts(state, left) };
        let (first, end) = spans[placed as usize];
        let cuts: Vec<u32> = (first..end - 1).filter(|&s| state.crossing[s as usize] == 0).map(|s| s + 1).collect();
        if left.is_empty() {
            return Vec::new();
        }
        let mut parts = vec![Vec::new(); cuts.len() + 1];
        for &(_, i) in left {
            parts[cuts.partition_point(|&cut| cut <= spans[i as usize].0)].push(i);
        }
        parts.retain(|part| !part.is_empty());
        parts.sort_by_key(|part| Reverse(part.len()));
        if var("V2") == 0 {
            parts.reverse();
        }
        if var("V2") == 2 {
            parts.sort_by_key(|part| spans[part[0] as usize].0);
        }
        parts
    }

    fn graph_parts(&self, state: &mut State, left: &[(u32, u32)]) -> Vec<Vec<u32>> {
        let mut part_of = vec![usize::MAX; self.part.len()];
        let mut parts: Vec<Vec<u32>> = Vec::new();
        for &(_, root) in left {
            if part_of[root as usize] != usize::MAX {
                continue;
            }
            part_of[root as usize] = parts.len();
            let mut found = vec![root];
            let mut at = 0;
            while at < found.len() {
                let row = self.lists.row(found[at] as usize);
                state.steps += row.len() as u64 / 8;
                for &j in row {
                    if state.offsets[j as usize] == NOWHERE && part_of[j as usize] == usize::MAX {
                        part_of[j as usize] = parts.len();
                        found.push(j);
                    }
                }
                at += 1;
            }
            parts.push(found);
        }
        parts
    }

    /// Places a buffer. False if some neighbour no longer fits; the trail undoes it either way.
    fn place(&self, state: &mut State, buffer: u32, at: u64) -> bool {
        let i = buffer as usize;
        let top = at + self.part.sizes[i];
        state.offsets[i] = at;
        state.trail.push(Change::Placed { buffer });
        state.change_counts(self, i, false);
        for &section in self.sections.row(i) {
            state.trail.push(Change::Floor { section, was: state.floors[section as usize] });
            state.floors[section as usize] = top;
        }
        state.steps += (self.lists.row(i).len() + self.sections.row(i).len()) as u64;
        state.stamp += 1;
        state.touched.clear();
        for &s in self.sections.row(i) {
            state.touch(s, false);
        }
        for &j in self.lists.row(i) {
            let there = j as usize;
            let was = state.lowest[there];
            if state.offsets[there] != NOWHERE || was >= top {
                continue;
            }
            let bound_was = state.bounds[there];
            state.trail.push(Change::Lowest { buffer: j, was, bound_was });
            state.lowest[there] = self.obstacles.lowest_fit(self.part, there, top);
            let bound = state.lowest[there];
            if bound > bound_was && !self.raise(state, there, bound) {
                return false;
            }
        }
        self.check_touched(state, at)
    }

    fn raise(&self, state: &mut State, i: usize, bound: u64) -> bool {
        let was = std::mem::replace(&mut state.bounds[i], bound);
        if bound + self.part.sizes[i] > state.capacity {
            return false;
        }
        state.steps += self.sections.row(i).len() as u64;
        for &s in self.sections.row(i) {
            let sure = bound + state.totals[s as usize] <= state.capacity;
            if !sure || was <= state.floors[s as usize] {
                state.touch(s, !sure);
            }
        }
        true
    }

    /// The candidate cannot start where it could: it will rest on a neighbour that is not placed yet.
    fn give_up(&self, state: &mut State, buffer: u32, at: u64) -> bool {
        let i = buffer as usize;
        let mut support = u64::MAX;
        for &k in self.lists.row(i) {
            let k = k as usize;
            if state.offsets[k] == NOWHERE {
                support = support.min(state.bounds[k].max(at) + self.part.sizes[k]);
            }
        }
        if support == u64::MAX {
            return false;
        }
        state.stamp += 1;
        state.touched.clear();
        let bound = self.obstacles.lowest_fit(self.part, i, support);
        state.trail.push(Change::Lowest { buffer, was: state.lowest[i], bound_was: state.bounds[i] });
        (bound <= state.bounds[i] || self.raise(state, i, bound)) && self.check_touched(state, at)
    }

    fn check_touched(&self, state: &mut State, at: u64) -> bool {
        for t in 0..state.touched.len() {
            let (section, check) = state.touched[t];
            let section = section as usize;
            let floor = state.floors[section];
            let mut least = u64::MAX;
            state.steps += 1 + if check { 4 * state.live[section].len() as u64 } else { 0 };
            if check || state.flags[section] == state.stamp {
                state.waiting.clear();
                for &j in &state.live[section] {
                    state.waiting.push((state.bounds[j as usize], self.part.sizes[j as usize]));
                }
                state.waiting.sort_unstable();
                let mut top = at;
                for &(bound, size) in &state.waiting {
                    top = top.max(bound) + size;
                }
                if top > state.capacity {
                    return false;
                }
                least = state.waiting.first().map_or(u64::MAX, |first| first.0);
            } else {
                for &j in &state.live[section] {
                    least = least.min(state.bounds[j as usize]);
                    if least <= floor {
                        break;
                    }
                }
            }
            if least != u64::MAX && least > floor {
                state.trail.push(Change::Floor { section: section as u32, was: floor });
                state.floors[section] = least;
            }
        }
        true
    }

    /// Whether every section can still hold what is not placed, when nothing more goes below `at`.
    fn all_fit(&self, state: &State, at: u64, sections: &[u32]) -> bool {
        if self.fixed_in.is_empty() {
            return sections
                .iter()
                .all(|&s| state.floors[s as usize].max(at) + state.totals[s as usize] <= state.capacity);
        }
        sections.iter().all(|&s| {
            let floor = state.floors[s as usize].max(at);
            let fixed = self.fixed_in[s as usize].iter().map(|&(from, to)| to.saturating_sub(from.max(floor)));
            state.totals[s as usize] == 0 || floor + state.totals[s as usize] + fixed.sum::<u64>() <= state.capacity
        })
    }
}

impl State {
    fn touch(&mut self, s: u32, check: bool) {
        if self.stamps[s as usize] != self.stamp {
            self.stamps[s as usize] = self.stamp;
            self.touched.push((s, check));
        }
        if check {
            self.flags[s as usize] = self.stamp;
        }
    }

    fn undo(&mut self, search: &Searcher, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Change::Lowest { buffer, was, bound_was }) => {
                    self.lowest[buffer as usize] = was;
                    self.bounds[buffer as usize] = bound_was;
                }
                Some(Change::Floor { section, was }) => self.floors[section as usize] = was,
                Some(Change::Placed { buffer }) => {
                    self.offsets[buffer as usize] = NOWHERE;
                    self.change_counts(search, buffer as usize, true);
                }
                None => {}
            }
        }
    }

    /// Takes a buffer out of the totals and crossings of its sections, or puts it back.
    fn change_counts(&mut self, search: &Searcher, i: usize, back: bool) {
        let size = search.part.sizes[i];
        for &s in search.sections.row(i) {
            let total = &mut self.totals[s as usize];
            *total = if back { *total + size } else { *total - size };
            let live = &mut self.live[s as usize];
            if back {
                live.push(i as u32);
            } else if let Some(at) = live.iter().position(|&j| j == i as u32) {
                live.swap_remove(at);
            }
        }
        if let Some(&(first, end)) = search.part.spans.as_ref().map(|spans| &spans[i]) {
            for n in &mut self.crossing[first as usize..end as usize - 1] {
                *n = if back { *n + 1 } else { *n - 1 };
            }
        }
    }
}
