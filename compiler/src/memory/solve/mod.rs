//! The memory solver: a fixed offset for every buffer, as low a height as can be found, and an honest lower bound.
//!
//! In goes a [`Problem`] (lifetimes or a conflict graph), out comes a [`Solution`]. Plain data both ways; nothing here
//! knows the rest of the compiler. Three steps, each only if the one before ended above the lower bound:
//! greedy ([`greedy`]), hill climbing ([`climb`]), exact search ([`search`]).
//! Independent components are solved one by one. Budgets count steps, never time: the same input gives the same plan
//! on every machine. [`validate`] checks a placement with code of its own.
//!
//! ```
//! use kiln_compiler::memory::solve::{Buffer, Options, Problem, solve};
//! let buffers = [Buffer::new(0, 2, 100), Buffer::new(1, 3, 64), Buffer::new(2, 4, 128)];
//! let problem = Problem::from_intervals(&buffers)?;
//! let solution = solve(&problem, &Options::default());
//! assert_eq!((solution.height, solution.lower_bound), (192, 192));
//! # Ok::<(), kiln_compiler::memory::solve::ProblemError>(())
//! ```

mod branch;
mod climb;
mod clique;
mod component;
mod csr;
pub mod csv;
mod greedy;
mod order;
mod problem;
mod search;
mod spans;
pub mod validate;

use std::fmt;

use component::Component;
pub use problem::{Buffer, DEFAULT_ALIGNMENT, Problem, ProblemError};
use search::{Outcome, Searcher};

/// Conflicting pairs up to which they are listed; hill climbing and the exact search need the lists.
const MAX_LISTED_PAIRS: u64 = 1_000_000;

/// Conflicting pairs up to which the greedy methods that look at each of them run.
const MAX_GREEDY_PAIRS: u64 = 100_000_000;

/// How much effort the solver may spend on a problem. All budgets are counts, so they mean the same on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Neighbours that hill climbing may look at.
    pub climb_steps: u64,
    /// Steps of the exact search: buffers and sections that it touches.
    pub search_steps: u64,
}

impl Default for Options {
    /// Around half a second of an optimised build.
    fn default() -> Options {
        Options { climb_steps: 20_000_000, search_steps: 400_000_000 }
    }
}

impl Options {
    /// Ten times the default's search, for when packing is all there is to do.
    pub fn thorough() -> Options {
        Options { climb_steps: 20_000_000, search_steps: 4_000_000_000 }
    }

    /// No climbing, no search: greedy placements only.
    pub fn greedy() -> Options {
        Options { climb_steps: 0, search_steps: 0 }
    }
}

/// What found a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// No two buffers conflict: everything lies at offset 0 or where it was fixed.
    Trivial,
    /// Greedy placement.
    Greedy,
    /// Hill climbing on the order of placement.
    HillClimb,
    /// Exact search.
    Search,
}

/// A placement of all buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// The offset of each buffer, by its position in the problem.
    pub offsets: Vec<u64>,
    /// Bytes needed: the greatest offset plus aligned size.
    pub height: u64,
    /// No placement is lower than this ([`Problem::lower_bound`]).
    pub lower_bound: u64,
    /// The height is the least possible: it equals the bound, or the search below it was exhausted.
    pub proven_optimal: bool,
    /// The costliest method that contributed.
    pub method: Method,
}

/// Why a problem does not fit into a capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The capacity asked for.
    pub capacity: u64,
    /// No placement is lower than this.
    pub lower_bound: u64,
    /// The lowest placement found.
    pub height: u64,
    /// Whether it is certain that nothing fits; otherwise the search ended first.
    pub proven: bool,
    /// The buffers alive at the peak (of the bound), ascending: what has to shrink.
    pub culprits: Vec<usize>,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unfit { capacity, lower_bound, height, .. } = self;
        if lower_bound > capacity {
            write!(f, "{capacity} bytes are too few: {lower_bound} are alive at once")
        } else if self.proven {
            write!(f, "{capacity} bytes are too few: no placement fits, though only {lower_bound} are alive at once")
        } else {
            write!(
                f,
                "no placement within {capacity} bytes found: the lowest needs {height}, the bound is {lower_bound}"
            )
        }
    }
}

impl std::error::Error for Unfit {}

/// Finds as low a placement as the options' budgets allow.
pub fn solve(problem: &Problem, options: &Options) -> Solution {
    solve_to(problem, problem.lower_bound(), true, options)
}

/// Finds a placement within `capacity` bytes, not necessarily the lowest.
pub fn solve_capacity(problem: &Problem, capacity: u64, options: &Options) -> Result<Solution, Unfit> {
    let lower_bound = problem.lower_bound();
    let unfit = |height, proven| Unfit { capacity, lower_bound, height, proven, culprits: problem.peak().to_vec() };
    if lower_bound > capacity {
        return Err(unfit(solve(problem, &Options::greedy()).height, true));
    }
    let solution = solve_to(problem, capacity, false, options);
    if solution.height <= capacity {
        return Ok(solution);
    }
    Err(unfit(solution.height, solution.proven_optimal))
}

/// Solves component by component; `target` is good enough. `lower` says whether anything below the best greedy height
/// is welcome, or only the target.
fn solve_to(problem: &Problem, target: u64, lower: bool, options: &Options) -> Solution {
    let mut left = options.clone();
    let mut offsets: Vec<u64> = problem.fixed.iter().map(|fixed| fixed.unwrap_or(0)).collect();
    let mut solution_method = Method::Trivial;
    let lower_bound = problem.lower_bound();
    // Buffers without conflicts are in no component.
    let alone = problem.sizes.iter().zip(&offsets).map(|(size, at)| if *size > 0 { size + at } else { 0 });
    let mut least = alone.max().unwrap_or(0).min(lower_bound);
    let mut height = least;
    for part in component::split(problem) {
        // A component that stays below what another needs anyway is low enough.
        let placed = solve_component(part, target.max(least), lower, &mut left);
        solution_method = solution_method.max(placed.method);
        height = height.max(placed.height);
        least = least.max(placed.least);
        for (i, at) in placed.ids.iter().zip(placed.offsets) {
            offsets[*i as usize] = at;
        }
    }
    let proven_optimal = height <= lower_bound.max(least);
    Solution { offsets, height, lower_bound, proven_optimal, method: solution_method }
}

/// A placed component.
struct Placed {
    ids: Vec<u32>,
    offsets: Vec<u64>,
    height: u64,
    /// What this component needs at least, as far as is proven.
    least: u64,
    method: Method,
}

fn solve_component(part: Component, target: u64, lower: bool, left: &mut Options) -> Placed {
    let target = target.max(part.lower_bound);
    let n_pairs = part.n_pairs();
    let part = part.with_lists(MAX_LISTED_PAIRS);
    let mut method = Method::Greedy;
    let (mut offsets, order) = greedy_best(&part, n_pairs, target);
    let mut height = part.height(&offsets);
    let climbed = (height > target).then(|| climb::climb(&part, order, target, &mut left.climb_steps)).flatten();
    if let Some(better) = climbed.filter(|better| part.height(better) < height) {
        (method, height, offsets) = (Method::HillClimb, part.height(&better), better);
    }
    let (better, least) = search_below(&part, height, target, lower, &mut left.search_steps);
    if let Some(better) = better {
        (method, height, offsets) = (Method::Search, part.height(&better), better);
    }
    Placed { height, offsets, least, method, ids: part.ids }
}

/// Exact search below `height`: at `target` first, then (if anything `lower` is welcome) by bisection between what
/// failed and what was found. Also says what the component needs at least, which rises when a search is exhausted.
fn search_below(part: &Component, height: u64, target: u64, lower: bool, budget: &mut u64) -> (Option<Vec<u64>>, u64) {
    let mut least = part.lower_bound;
    let mut best: Option<Vec<u64>> = None;
    let searcher = (height > target && *budget > 0).then(|| Searcher::new(part)).flatten();
    let Some(searcher) = searcher else { return (best, least) };
    // Heights are multiples of this, so nothing lies strictly between two neighbours.
    let grain = part.grain();
    // Every height up to `failed` failed, `found` was found.
    let (mut failed, mut found) = (target - 1, height);
    let mut capacity = target;
    // The target gets half of the budget, each later capacity a quarter of the other half.
    let (first, later) = if lower { (*budget / 2, *budget / 8) } else { (*budget, 0) };
    while capacity < found && *budget > 0 {
        let share = if capacity == target { first } else { later }.min(*budget);
        let mut spend = share;
        let outcome = searcher.search(capacity, &mut spend);
        *budget -= share - spend;
        match outcome {
            Outcome::Found(offsets) => {
                found = part.height(&offsets);
                best = Some(offsets);
            }
            Outcome::Exhausted => {
                failed = capacity;
                least = least.max((capacity / grain + 1) * grain);
            }
            Outcome::OutOfBudget => failed = capacity,
        }
        if !lower {
            break;
        }
        // Whole grains, above what failed.
        capacity = (failed.midpoint(found) / grain * grain).max((failed / grain + 1) * grain);
    }
    (best, least)
}

/// The best of the greedy placements, and the order that gave it.
fn greedy_best(part: &Component, n_pairs: u64, target: u64) -> (Vec<u64>, Vec<u32>) {
    let totals = part.totals();
    let mut best: Option<(u64, Vec<u64>, Vec<u32>)> = None;
    let mut try_one = |offsets: Vec<u64>, order: &[u32]| {
        let height = part.height(&offsets);
        if best.as_ref().is_none_or(|(least, _, _)| height < *least) {
            best = Some((height, offsets, order.to_vec()));
        }
        height <= target
    };
    let mut order: Vec<u32> = part.free().collect();
    let mut done = greedy::by_time(part).is_some_and(|offsets| try_one(offsets, &order));
    let many = n_pairs > MAX_GREEDY_PAIRS;
    // Without lists each neighbour has to be found anew: fewer ways are tried.
    let listed = part.neighbours.is_some();
    for (at, keys) in order::GREEDY_ORDERS.iter().enumerate() {
        // However many pairs there are, one placement has to be made.
        if done || (many && (at > 0 || part.can_go_by_time())) {
            break;
        }
        if !listed && keys[0] == order::Key::Width {
            continue;
        }
        order::sort(&mut order, keys, part, &totals);
        done = greedy::lowest_first(part, &order).is_some_and(|offsets| try_one(offsets, &order));
        if !done && (listed || at == 0) {
            done = try_one(greedy::best_gap(part, &order), &order);
        }
    }
    best.map(|(_, offsets, order)| (offsets, order)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
