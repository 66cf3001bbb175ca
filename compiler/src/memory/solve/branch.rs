//! The state of the exact search along one branch: what is placed, and what that proves about the rest.
//!
//! Every change goes on a trail, so that a node can be left as it was entered. Kept up to date:
//! - `lowest[j]`: where an unplaced buffer would land now, given its placed and fixed neighbours;
//! - `bounds[j] >= lowest[j]`: no solution on this branch has it lower. It rises above `lowest` when the search gave up
//!   starting `j` where it could: then `j` will rest on a neighbour not yet placed ([`Branch::give_up`]);
//! - per section the floor (nothing unplaced starts below) and the bytes of unplaced members.
//!
//! "Solution" means the one with the least sum of offsets: in it no buffer can move down, and sorted by offset each
//! buffer lies at its `lowest`. Everything pruned is pruned for that solution only, which is enough: if any solution
//! exists, that one does. Invariant: undoing to a mark restores the state at that mark (lists of live members up to order).

use super::component::Component;
use super::csr::Csr;
use super::greedy::{NOWHERE, Obstacles};

/// What does not change during a search.
pub(super) struct Tables<'a> {
    pub(super) part: &'a Component,
    /// Neighbours of each buffer.
    pub(super) lists: &'a Csr,
    /// Members of each section (clique), and the sections of each buffer.
    pub(super) members: Csr,
    pub(super) sections: Csr,
    obstacles: Obstacles,
    /// The fixed ranges in each section; no rows when nothing is fixed.
    fixed_in: Vec<Vec<(u64, u64)>>,
}

impl<'a> Tables<'a> {
    /// `None` for a component whose conflicts are not listed.
    pub(super) fn new(part: &'a Component) -> Option<Tables<'a>> {
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
        Some(Tables { part, lists, members, sections, obstacles: Obstacles::new(part), fixed_in })
    }
}

/// One undoable change.
enum Change {
    Bound { buffer: u32, lowest: u64, bound: u64 },
    Floor { section: u32, floor: u64 },
    Placed { buffer: u32 },
}

/// The state along one branch. `steps` counts the work done.
pub(super) struct Branch<'a> {
    t: &'a Tables<'a>,
    capacity: u64,
    pub(super) offsets: Vec<u64>,
    pub(super) lowest: Vec<u64>,
    pub(super) bounds: Vec<u64>,
    floors: Vec<u64>,
    /// Bytes of the unplaced members of each section, and who they are.
    pub(super) totals: Vec<u64>,
    live: Vec<Vec<u32>>,
    /// Intervals: how many unplaced buffers reach from section s into s + 1.
    pub(super) crossing: Vec<u32>,
    trail: Vec<Change>,
    touched: Touched,
    /// Scratch for [`Branch::stack_height`].
    waiting: Vec<(u64, u64)>,
    pub(super) steps: u64,
}

/// Sections to look at again; `suspect` ones may no longer hold their members.
struct Touched {
    list: Vec<u32>,
    listed: Vec<u64>,
    suspect: Vec<u64>,
    stamp: u64,
}

impl Touched {
    fn clear(&mut self) {
        self.list.clear();
        self.stamp += 1;
    }

    fn add(&mut self, section: u32, suspect: bool) {
        let s = section as usize;
        if self.listed[s] != self.stamp {
            self.listed[s] = self.stamp;
            self.list.push(section);
        }
        if suspect {
            self.suspect[s] = self.stamp;
        }
    }
}

impl<'a> Branch<'a> {
    pub(super) fn new(t: &'a Tables<'a>, capacity: u64) -> Branch<'a> {
        let (n, n_sections) = (t.part.len(), t.members.n_rows());
        let offsets: Vec<u64> = t.part.fixed.iter().map(|fixed| fixed.unwrap_or(NOWHERE)).collect();
        let is_free = |i: &u32| offsets[*i as usize] == NOWHERE;
        let live: Vec<Vec<u32>> =
            (0..n_sections).map(|s| t.members.row(s).iter().copied().filter(is_free).collect()).collect();
        let totals = live.iter().map(|live| live.iter().map(|&i| t.part.sizes[i as usize]).sum()).collect();
        let mut crossing = vec![0; n_sections];
        for &(first, end) in t.part.free().filter_map(|i| Some(&t.part.spans.as_ref()?[i as usize])) {
            crossing[first as usize..end as usize - 1].iter_mut().for_each(|n| *n += 1);
        }
        let lowest: Vec<u64> = (0..n).map(|i| t.obstacles.lowest_fit(t.part, i, 0)).collect();
        Branch {
            t,
            capacity,
            offsets,
            bounds: lowest.clone(),
            lowest,
            floors: vec![0; n_sections],
            totals,
            live,
            crossing,
            trail: Vec::new(),
            touched: Touched { list: Vec::new(), listed: vec![0; n_sections], suspect: vec![0; n_sections], stamp: 0 },
            waiting: Vec::new(),
            steps: 0,
        }
    }

    /// A point to which [`Branch::undo`] can return.
    pub(super) fn mark(&self) -> usize {
        self.trail.len()
    }

    /// Restores the state at `mark`.
    pub(super) fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Change::Bound { buffer, lowest, bound }) => {
                    self.lowest[buffer as usize] = lowest;
                    self.bounds[buffer as usize] = bound;
                }
                Some(Change::Floor { section, floor }) => self.floors[section as usize] = floor,
                Some(Change::Placed { buffer }) => {
                    self.offsets[buffer as usize] = NOWHERE;
                    self.join_sections(buffer);
                }
                None => {}
            }
        }
    }

    /// Places a buffer at its lowest offset. False if the rest cannot fit any more; the trail undoes it either way.
    pub(super) fn place(&mut self, buffer: u32) -> bool {
        let t = self.t;
        let i = buffer as usize;
        let at = self.lowest[i];
        let top = at + t.part.sizes[i];
        self.steps += (t.lists.row(i).len() + t.sections.row(i).len()) as u64;
        if top > self.capacity {
            return false;
        }
        self.offsets[i] = at;
        self.trail.push(Change::Placed { buffer });
        self.leave_sections(buffer);
        self.touched.clear();
        for &section in t.sections.row(i) {
            self.raise_floor(section, top);
            self.touched.add(section, false);
        }
        for &j in t.lists.row(i) {
            let there = j as usize;
            if self.offsets[there] != NOWHERE || self.lowest[there] >= top {
                continue;
            }
            let lowest = t.obstacles.lowest_fit(t.part, there, top);
            self.trail.push(Change::Bound { buffer: j, lowest: self.lowest[there], bound: self.bounds[there] });
            self.lowest[there] = lowest;
            if lowest > self.bounds[there] && !self.raise_bound(there, lowest) {
                return false;
            }
        }
        self.touched_fit(at)
    }

    /// Draws the conclusion from having tried an unplaced buffer at its lowest offset in vain. False: the node has failed.
    ///
    /// In the solution the buffer lies higher, so something unplaced is in its way (else it could move down), and it
    /// lies above that. Nothing unplaced starts below the buffer's own lowest offset, as candidates go by offset.
    pub(super) fn give_up(&mut self, buffer: u32) -> bool {
        let t = self.t;
        let i = buffer as usize;
        let at = self.lowest[i];
        self.steps += t.lists.row(i).len() as u64;
        let in_the_way = t.lists.row(i).iter().map(|&j| j as usize).filter_map(|j| {
            let from = self.bounds[j].max(at);
            (self.offsets[j] == NOWHERE && from < at + t.part.sizes[i]).then(|| from + t.part.sizes[j])
        });
        let Some(support) = in_the_way.min() else { return false };
        let bound = t.obstacles.lowest_fit(t.part, i, support);
        self.trail.push(Change::Bound { buffer, lowest: at, bound: self.bounds[i] });
        self.touched.clear();
        (bound <= self.bounds[i] || self.raise_bound(i, bound)) && self.touched_fit(at)
    }

    /// Whether each of these sections can hold its unplaced members, when none of them starts below `at`.
    pub(super) fn all_fit(&self, at: u64, sections: &[u32]) -> bool {
        let t = self.t;
        if t.fixed_in.is_empty() {
            let top = |&s: &u32| self.floors[s as usize].max(at) + self.totals[s as usize];
            return sections.iter().all(|s| top(s) <= self.capacity);
        }
        sections.iter().map(|&s| s as usize).filter(|&s| self.totals[s] > 0).all(|s| {
            let floor = self.floors[s].max(at);
            let fixed = t.fixed_in[s].iter().map(|&(from, to)| to.saturating_sub(from.max(floor)));
            floor + self.totals[s] + fixed.sum::<u64>() <= self.capacity
        })
    }

    fn raise_floor(&mut self, section: u32, floor: u64) {
        let was = self.floors[section as usize];
        if floor > was {
            self.trail.push(Change::Floor { section, floor: was });
            self.floors[section as usize] = floor;
        }
    }

    /// Raises a bound (already on the trail) and lists the sections that this concerns.
    fn raise_bound(&mut self, i: usize, bound: u64) -> bool {
        let t = self.t;
        let was = std::mem::replace(&mut self.bounds[i], bound);
        if bound + t.part.sizes[i] > self.capacity {
            return false;
        }
        self.steps += t.sections.row(i).len() as u64;
        for &section in t.sections.row(i) {
            let s = section as usize;
            // The members stack up too high only if those from some bound on do, and of the bounds that rose the greatest
            // counts; the floor rises only where this was the lowest member.
            let suspect = bound + self.totals[s] > self.capacity;
            if suspect || was <= self.floors[s] {
                self.touched.add(section, suspect);
            }
        }
        true
    }

    /// Raises the floors of the touched sections; false if the members of one cannot be stacked within the capacity.
    fn touched_fit(&mut self, at: u64) -> bool {
        for index in 0..self.touched.list.len() {
            let section = self.touched.list[index];
            let s = section as usize;
            self.steps += 1;
            let suspect = self.touched.suspect[s] == self.touched.stamp;
            if suspect && self.stack_height(s, at) > self.capacity {
                return false;
            }
            let floor = self.floors[s];
            let mut least = u64::MAX;
            for &j in &self.live[s] {
                least = least.min(self.bounds[j as usize]);
                if least <= floor {
                    break;
                }
            }
            if least != u64::MAX {
                self.raise_floor(section, least);
            }
        }
        true
    }

    /// How high the unplaced members of a section reach at least: stacked from `at` in the order of their bounds, none
    /// below its bound (a machine with release dates).
    fn stack_height(&mut self, s: usize, at: u64) -> u64 {
        let sizes = &self.t.part.sizes;
        self.steps += 4 * self.live[s].len() as u64;
        self.waiting.clear();
        let mut top = at;
        for &j in &self.live[s] {
            let (bound, size) = (self.bounds[j as usize], sizes[j as usize]);
            if bound <= at {
                top += size;
            } else {
                self.waiting.push((bound, size));
            }
        }
        self.waiting.sort_unstable();
        self.waiting.iter().fold(top, |top, &(bound, size)| top.max(bound) + size)
    }

    fn leave_sections(&mut self, buffer: u32) {
        let t = self.t;
        for &s in t.sections.row(buffer as usize) {
            self.totals[s as usize] -= t.part.sizes[buffer as usize];
            let live = &mut self.live[s as usize];
            if let Some(at) = live.iter().position(|&j| j == buffer) {
                live.swap_remove(at);
            }
        }
        if let Some(spans) = &t.part.spans {
            let (first, end) = spans[buffer as usize];
            self.crossing[first as usize..end as usize - 1].iter_mut().for_each(|n| *n -= 1);
        }
    }

    fn join_sections(&mut self, buffer: u32) {
        let t = self.t;
        for &s in t.sections.row(buffer as usize) {
            self.totals[s as usize] += t.part.sizes[buffer as usize];
            self.live[s as usize].push(buffer);
        }
        if let Some(spans) = &t.part.spans {
            let (first, end) = spans[buffer as usize];
            self.crossing[first as usize..end as usize - 1].iter_mut().for_each(|n| *n += 1);
        }
    }
}
