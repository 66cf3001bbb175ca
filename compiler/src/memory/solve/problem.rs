//! What the solver is asked: buffers with aligned sizes, and which of them may not share bytes.
//!
//! Two ways in. [`Problem::from_intervals`]: half-open lifetimes on one stream; buffers conflict when lifetimes
//! overlap, and the sections (maximal sets of buffers alive at once) are all maximal cliques.
//! [`Problem::from_conflicts`]: any conflict graph, as several streams give one; [`Problem::with_cliques`] adds
//! cliques the caller knows of. Out comes a checked problem on which no later arithmetic can overflow.
//!
//! Invariants: sizes are multiples of the buffer's own alignment; a buffer of size 0 conflicts with nothing;
//! the sum of all sizes, alignments and fixed ends is below 2^62; fixed buffers do not collide.

use std::collections::BTreeMap;
use std::fmt;

use super::clique;
use super::csr::Csr;

/// Offsets are multiples of this many bytes unless a buffer says otherwise.
pub const DEFAULT_ALIGNMENT: u64 = 64;

/// No problem may ask for more bytes than this in total: beyond it sums could overflow.
const MAX_TOTAL_BYTES: u64 = 1 << 62;

/// A buffer of a one-stream schedule. It is known by its position in the list handed to the solver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// First time at which it is alive.
    pub lower: i64,
    /// First time at which it is no longer alive; equal to `lower` for one that never is.
    pub upper: i64,
    /// Bytes asked for. The solver rounds them up to a multiple of `alignment`.
    pub size: u64,
    /// Its offset is a multiple of this; at least 1.
    pub alignment: u64,
}

impl Buffer {
    /// A buffer alive in `[lower, upper)`, with [`DEFAULT_ALIGNMENT`].
    pub fn new(lower: i64, upper: i64, size: u64) -> Buffer {
        Buffer { lower, upper, size, alignment: DEFAULT_ALIGNMENT }
    }

    /// The same buffer with another alignment.
    pub fn aligned(self, alignment: u64) -> Buffer {
        Buffer { alignment, ..self }
    }
}

/// Why a problem makes no sense. Numbers are positions in the caller's lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemError {
    /// The lifetime ends before it begins.
    Lifetime {
        /// The buffer.
        buffer: usize,
    },
    /// An alignment of 0.
    Alignment {
        /// The buffer.
        buffer: usize,
    },
    /// The sizes add up to more than 2^62 bytes.
    TooLarge,
    /// Lists of different lengths, or an edge, clique or fixed offset that names a buffer which is not there.
    NoSuchBuffer {
        /// The number that was named.
        buffer: usize,
    },
    /// More than 2^31 buffers.
    TooMany,
    /// A given clique holds two buffers that do not conflict.
    NotAClique {
        /// One of the two.
        a: usize,
        /// The other.
        b: usize,
    },
    /// A fixed offset is not a multiple of the buffer's alignment.
    FixedAlignment {
        /// The buffer.
        buffer: usize,
    },
    /// Two fixed buffers that conflict share bytes.
    FixedOverlap {
        /// One of the two.
        a: usize,
        /// The other.
        b: usize,
    },
}

impl fmt::Display for ProblemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProblemError::Lifetime { buffer } => write!(f, "buffer {buffer}: its lifetime ends before it begins"),
            ProblemError::Alignment { buffer } => write!(f, "buffer {buffer}: an alignment of 0"),
            ProblemError::TooLarge => write!(f, "the sizes add up to more than 2^62 bytes"),
            ProblemError::NoSuchBuffer { buffer } => write!(f, "there is no buffer {buffer}"),
            ProblemError::TooMany => write!(f, "more than 2^31 buffers"),
            ProblemError::NotAClique { a, b } => write!(f, "buffers {a} and {b} of a clique do not conflict"),
            ProblemError::FixedAlignment { buffer } => write!(f, "buffer {buffer}: its fixed offset is not aligned"),
            ProblemError::FixedOverlap { a, b } => write!(f, "fixed buffers {a} and {b} share bytes"),
        }
    }
}

impl std::error::Error for ProblemError {}

/// Who conflicts with whom.
#[derive(Clone, Debug)]
pub(super) enum Conflicts {
    /// `spans[i]` are the sections `[first, end)` in which buffer `i` lives; empty for one that conflicts with nothing.
    Intervals { spans: Vec<(u32, u32)>, n_sections: usize },
    /// Neighbours of each buffer, and cliques that the caller gave.
    Graph { neighbours: Csr, cliques: Csr },
}

/// A checked packing problem, with its lower bound.
#[derive(Clone, Debug)]
pub struct Problem {
    pub(super) sizes: Vec<u64>,
    pub(super) alignments: Vec<u64>,
    /// Lifetime lengths, for the search's orders; for a graph they are counted per component.
    pub(super) widths: Vec<u64>,
    pub(super) fixed: Vec<Option<u64>>,
    pub(super) conflicts: Conflicts,
    lower_bound: u64,
    peak: Vec<usize>,
}

impl Problem {
    /// Buffers of one stream. Near-linear in their number.
    pub fn from_intervals(buffers: &[Buffer]) -> Result<Problem, ProblemError> {
        if let Some(buffer) = buffers.iter().position(|b| b.upper < b.lower) {
            return Err(ProblemError::Lifetime { buffer });
        }
        let sizes: Vec<u64> = buffers.iter().map(|b| b.size).collect();
        let alignments: Vec<u64> = buffers.iter().map(|b| b.alignment).collect();
        let sizes = rounded_sizes(&sizes, &alignments)?;
        let widths = buffers.iter().map(|b| b.upper.abs_diff(b.lower)).collect();
        let (spans, n_sections) = sections(buffers, &sizes);
        let n = buffers.len();
        let conflicts = Conflicts::Intervals { spans, n_sections };
        Ok(Problem { sizes, alignments, widths, fixed: vec![None; n], conflicts, lower_bound: 0, peak: Vec::new() }
            .with_bound())
    }

    /// Buffers of which the pairs in `edges` may not share bytes. A repeated edge counts once, a loop is ignored.
    pub fn from_conflicts(
        sizes: &[u64],
        alignments: &[u64],
        edges: &[(usize, usize)],
    ) -> Result<Problem, ProblemError> {
        let n = sizes.len();
        if alignments.len() != n {
            return Err(ProblemError::NoSuchBuffer { buffer: alignments.len().min(n) });
        }
        let sizes = rounded_sizes(sizes, alignments)?;
        if let Some(buffer) = edges.iter().flat_map(|&(a, b)| [a, b]).find(|&v| v >= n) {
            return Err(ProblemError::NoSuchBuffer { buffer });
        }
        let real = |&(a, b): &(usize, usize)| a != b && sizes[a] > 0 && sizes[b] > 0;
        let both = edges.iter().copied().filter(real).flat_map(|(a, b)| [(a as u32, b as u32), (b as u32, a as u32)]);
        let neighbours = Csr::from_pairs(n, both);
        let widths = vec![0; n];
        let alignments = alignments.to_vec();
        let conflicts = Conflicts::Graph { neighbours, cliques: Csr::new() };
        Ok(Problem { sizes, alignments, widths, fixed: vec![None; n], conflicts, lower_bound: 0, peak: Vec::new() }
            .with_bound())
    }

    /// Adds cliques that the caller knows of (sets that are alive at once): they sharpen the lower bound and the
    /// search's pruning. On intervals nothing is added, as all maximal cliques are known.
    pub fn with_cliques(mut self, known: &[Vec<usize>]) -> Result<Problem, ProblemError> {
        if let Some(buffer) = known.iter().flatten().copied().find(|&v| v >= self.sizes.len()) {
            return Err(ProblemError::NoSuchBuffer { buffer });
        }
        if let Conflicts::Graph { neighbours, cliques } = &mut self.conflicts {
            for clique in known {
                let mut members: Vec<u32> = clique.iter().filter(|&&v| self.sizes[v] > 0).map(|&v| v as u32).collect();
                members.sort_unstable();
                members.dedup();
                for (at, &a) in members.iter().enumerate() {
                    let row = neighbours.row(a as usize);
                    if let Some(&b) = members[at + 1..].iter().find(|b| row.binary_search(b).is_err()) {
                        return Err(ProblemError::NotAClique { a: a as usize, b: b as usize });
                    }
                }
                cliques.push_row(members.into_iter());
            }
        }
        Ok(self.with_bound())
    }

    /// Fixes the offsets of buffers that are already placed; the others are packed around them.
    pub fn with_fixed(mut self, placed: &[(usize, u64)]) -> Result<Problem, ProblemError> {
        for &(buffer, offset) in placed {
            let alignment = *self.alignments.get(buffer).ok_or(ProblemError::NoSuchBuffer { buffer })?;
            if !offset.is_multiple_of(alignment) {
                return Err(ProblemError::FixedAlignment { buffer });
            }
            self.fixed[buffer] = Some(offset);
        }
        let ends = self.fixed.iter().flatten().copied();
        checked_total(self.sizes.iter().chain(&self.alignments).copied().chain(ends))?;
        self.check_fixed()?;
        Ok(self.with_bound())
    }

    /// How many buffers there are.
    pub fn n_buffers(&self) -> usize {
        self.sizes.len()
    }

    /// The size of each buffer, rounded up to its alignment.
    pub fn aligned_sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// No placement is lower than this. Intervals: the greatest sum of aligned bytes alive at once. Graphs: the weight
    /// of the heaviest clique found (given ones, and a search of bounded effort), which is a valid bound because members of
    /// a clique are pairwise disjoint in memory. Never below the end of a fixed buffer.
    pub fn lower_bound(&self) -> u64 {
        self.lower_bound
    }

    /// The buffers of the set that gives [`Self::lower_bound`], ascending.
    pub fn peak(&self) -> &[usize] {
        &self.peak
    }

    /// The sum of all aligned sizes: the arena without any sharing.
    pub fn naive_bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    fn with_bound(mut self) -> Problem {
        let (mut bound, mut peak) = match &self.conflicts {
            Conflicts::Intervals { spans, n_sections } => interval_peak(spans, *n_sections, &self.sizes),
            Conflicts::Graph { neighbours, cliques } => clique::heaviest(neighbours, cliques, &self.sizes),
        };
        for (i, &size) in self.sizes.iter().enumerate() {
            let end = size + if size > 0 { self.fixed[i].unwrap_or(0) } else { 0 };
            if end > bound {
                (bound, peak) = (end, vec![i]);
            }
        }
        self.lower_bound = bound;
        self.peak = peak;
        self
    }

    fn check_fixed(&self) -> Result<(), ProblemError> {
        let range = |i: usize| self.fixed[i].map(|offset| (offset, offset + self.sizes[i]));
        match &self.conflicts {
            Conflicts::Graph { neighbours, .. } => {
                for a in 0..self.sizes.len() {
                    let Some(ra) = range(a) else { continue };
                    for b in neighbours.row(a).iter().map(|&b| b as usize).filter(|&b| b > a) {
                        if range(b).is_some_and(|rb| ra.0 < rb.1 && rb.0 < ra.1) {
                            return Err(ProblemError::FixedOverlap { a, b });
                        }
                    }
                }
            }
            Conflicts::Intervals { spans, .. } => {
                // (section, starts after ends, buffer); the fixed buffers alive, by offset.
                let fixed = (0..self.sizes.len()).filter(|&i| self.fixed[i].is_some() && spans[i].0 < spans[i].1);
                let mut events: Vec<(u32, bool, usize)> =
                    fixed.flat_map(|i| [(spans[i].0, true, i), (spans[i].1, false, i)]).collect();
                events.sort_unstable();
                let mut alive: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
                for (_, starts, i) in events {
                    let Some((offset, end)) = range(i) else { continue };
                    if !starts {
                        alive.remove(&offset);
                        continue;
                    }
                    let below = alive.range(..end).next_back();
                    if let Some((_, &(_, b))) = below.filter(|(_, (other_end, _))| *other_end > offset) {
                        return Err(ProblemError::FixedOverlap { a: i.min(b), b: i.max(b) });
                    }
                    alive.insert(offset, (end, i));
                }
            }
        }
        Ok(())
    }
}

/// Sizes rounded up to their alignments, once all sums are known to stay small.
fn rounded_sizes(sizes: &[u64], alignments: &[u64]) -> Result<Vec<u64>, ProblemError> {
    if sizes.len() > (1 << 31) {
        return Err(ProblemError::TooMany);
    }
    if let Some(buffer) = alignments.iter().position(|&a| a == 0) {
        return Err(ProblemError::Alignment { buffer });
    }
    // Rounding adds less than one alignment, placing less than another.
    checked_total(sizes.iter().chain(alignments).chain(alignments).copied())?;
    Ok(sizes.iter().zip(alignments).map(|(s, a)| s.next_multiple_of(*a)).collect())
}

fn checked_total(mut parts: impl Iterator<Item = u64>) -> Result<u64, ProblemError> {
    parts
        .try_fold(0u64, |sum, part| sum.checked_add(part).filter(|&s| s <= MAX_TOTAL_BYTES))
        .ok_or(ProblemError::TooLarge)
}

/// Numbers the maximal sections in time order and says which of them each buffer lives in.
///
/// A section ends where some buffer ends after another began: only there the set alive is maximal.
fn sections(buffers: &[Buffer], sizes: &[u64]) -> (Vec<(u32, u32)>, usize) {
    let live = |i: &usize| sizes[*i] > 0 && buffers[*i].lower < buffers[*i].upper;
    // Ends sort before starts of the same time: lifetimes are half-open.
    let mut events: Vec<(i64, bool, u32)> = (0..buffers.len())
        .filter(live)
        .flat_map(|i| [(buffers[i].lower, true, i as u32), (buffers[i].upper, false, i as u32)])
        .collect();
    events.sort_unstable();
    let mut spans = vec![(0, 0); buffers.len()];
    let mut n_sections = 0;
    let mut began = false;
    for (_, starts, i) in events {
        if starts {
            spans[i as usize].0 = n_sections;
            began = true;
        } else {
            if began {
                n_sections += 1;
                began = false;
            }
            spans[i as usize].1 = n_sections;
        }
    }
    (spans, n_sections as usize)
}

/// The heaviest section: its weight and its members.
fn interval_peak(spans: &[(u32, u32)], n_sections: usize, sizes: &[u64]) -> (u64, Vec<usize>) {
    let totals = section_totals(spans, n_sections, sizes);
    let Some((at, &bound)) = totals.iter().enumerate().max_by_key(|&(at, &total)| (total, usize::MAX - at)) else {
        return (0, Vec::new());
    };
    let alive = |i: &usize| spans[*i].0 as usize <= at && at < spans[*i].1 as usize;
    (bound, (0..spans.len()).filter(alive).collect())
}

/// The bytes alive in each section.
pub(super) fn section_totals(spans: &[(u32, u32)], n_sections: usize, sizes: &[u64]) -> Vec<u64> {
    let mut delta = vec![0i64; n_sections + 1];
    for (&(first, end), &size) in spans.iter().zip(sizes).filter(|((first, end), _)| first < end) {
        delta[first as usize] += size as i64;
        delta[end as usize] -= size as i64;
    }
    let mut alive = 0i64;
    delta[..n_sections]
        .iter()
        .map(|d| {
            alive += d;
            alive as u64
        })
        .collect()
}
