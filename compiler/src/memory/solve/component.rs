//! Independent parts of a problem. Buffers of different components never conflict, so each is packed on its own and the
//! arena is as high as the highest of them.

use super::clique;
use super::csr::Csr;
use super::problem::{Conflicts, Problem, section_totals};
use super::spans::MaxTree;

/// One connected part of a problem, numbered from 0.
#[derive(Debug)]
pub(super) struct Component {
    /// The problem's number of each buffer, ascending.
    pub(super) ids: Vec<u32>,
    pub(super) sizes: Vec<u64>,
    pub(super) alignments: Vec<u64>,
    pub(super) widths: Vec<u64>,
    pub(super) fixed: Vec<Option<u64>>,
    /// Intervals only: the sections each buffer lives in, from 0.
    pub(super) spans: Option<Vec<(u32, u32)>>,
    pub(super) n_sections: usize,
    /// Graphs always; intervals when there are few enough pairs ([`Component::with_lists`]).
    pub(super) neighbours: Option<Csr>,
    /// Graphs only: cliques that the caller gave.
    given: Csr,
    /// A bound of this component alone, or 0 where only the problem's is known (graphs).
    pub(super) lower_bound: u64,
}

impl Component {
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The buffers that are not fixed.
    pub(super) fn free(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len() as u32).filter(|&i| self.fixed[i as usize].is_none())
    }

    /// The height of a placement.
    pub(super) fn height(&self, offsets: &[u64]) -> u64 {
        offsets.iter().zip(&self.sizes).map(|(offset, size)| offset + size).max().unwrap_or(0)
    }

    /// Whether an allocator that follows time can place it: intervals, nothing fixed.
    pub(super) fn can_go_by_time(&self) -> bool {
        self.spans.is_some() && self.fixed.iter().all(Option::is_none)
    }

    /// The greatest total of any section that each buffer lives in; for a graph the weight of its neighbours and itself.
    pub(super) fn totals(&self) -> Vec<u64> {
        let Some(spans) = &self.spans else {
            let sizes = |i: usize| self.neighbours.iter().flat_map(move |lists| lists.row(i));
            return (0..self.len())
                .map(|i| self.sizes[i] + sizes(i).map(|&j| self.sizes[j as usize]).sum::<u64>())
                .collect();
        };
        let totals = section_totals(spans, self.n_sections, &self.sizes);
        let mut tree = MaxTree::new(self.n_sections);
        totals.iter().enumerate().for_each(|(at, &total)| tree.raise(at, at + 1, total));
        spans.iter().map(|&(first, end)| tree.max(first as usize, end as usize)).collect()
    }

    /// A number that divides every offset and height worth trying: each buffer rests on the ground, on another one or on
    /// a fixed one, and its offset is rounded up to its alignment.
    pub(super) fn grain(&self) -> u64 {
        let ends = self.sizes.iter().chain(self.fixed.iter().flatten());
        let grain = ends.fold(0, |grain, &size| gcd(grain, size));
        let rounds = self.alignments.iter().any(|&align| !grain.is_multiple_of(align));
        let aligned =
            if rounds { self.alignments.iter().fold(grain, |grain, &align| gcd(grain, align)) } else { grain };
        aligned.max(1)
    }

    /// How many pairs conflict, counted without listing them.
    pub(super) fn n_pairs(&self) -> u64 {
        let Some(spans) = &self.spans else {
            return self.neighbours.as_ref().map_or(0, |lists| lists.n_items() as u64 / 2);
        };
        // A pair overlaps when the one that starts later does so before the other's end.
        let mut alive = vec![0i64; self.n_sections + 1];
        let mut starting = vec![0u64; self.n_sections + 1];
        for &(first, end) in spans {
            alive[first as usize] += 1;
            alive[end as usize] -= 1;
            starting[first as usize] += 1;
        }
        let (mut here, mut pairs) = (0i64, 0u64);
        for at in 0..self.n_sections {
            here += alive[at];
            // Those that start here meet all alive; among themselves each pair counts once.
            let (all, new) = (here as u64, starting[at]);
            pairs += new * (all - new) + new * new.saturating_sub(1) / 2;
        }
        pairs
    }

    /// Lists the conflicts of intervals, if there are at most `max_pairs` of them.
    pub(super) fn with_lists(mut self, max_pairs: u64) -> Component {
        if self.neighbours.is_none() && self.n_pairs() <= max_pairs {
            let cliques = self.cliques();
            let mut pairs = Vec::new();
            // In each section, those that start there meet all that are alive.
            let spans = self.spans.as_deref().unwrap_or_default();
            for at in 0..cliques.n_rows() {
                let alive = cliques.row(at);
                for &b in alive.iter().filter(|&&b| spans[b as usize].0 as usize == at) {
                    for &a in alive {
                        if a != b && (spans[a as usize].0 as usize != at || a < b) {
                            pairs.extend([(a, b), (b, a)]);
                        }
                    }
                }
            }
            self.neighbours = Some(Csr::from_pairs(self.len(), pairs.into_iter()));
        }
        self
    }

    /// The cliques for the search's pruning: all sections of intervals, in time order; an edge cover of a graph.
    pub(super) fn cliques(&self) -> Csr {
        match (&self.spans, &self.neighbours) {
            (Some(spans), _) => {
                let pairs =
                    spans.iter().enumerate().flat_map(|(i, &(first, end))| (first..end).map(move |s| (s, i as u32)));
                Csr::from_pairs(self.n_sections, pairs)
            }
            (None, Some(lists)) => clique::cover(lists, &self.given, &self.sizes),
            (None, None) => Csr::new(),
        }
    }
}

/// Cuts a problem into its components, those with the greatest bound first. Buffers that conflict with nothing and are
/// not fixed are left out: they go to offset 0.
pub(super) fn split(problem: &Problem) -> Vec<Component> {
    let part_of = match &problem.conflicts {
        Conflicts::Intervals { spans, n_sections } => interval_parts(spans, *n_sections),
        Conflicts::Graph { neighbours, .. } => graph_parts(neighbours),
    };
    let n_parts = part_of.iter().flatten().max().map_or(0, |&last| last as usize + 1);
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); n_parts];
    for (i, part) in part_of.iter().enumerate() {
        if let Some(part) = part {
            members[*part as usize].push(i as u32);
        }
    }
    let mut local = vec![0u32; problem.sizes.len()];
    for ids in &members {
        for (at, &i) in ids.iter().enumerate() {
            local[i as usize] = at as u32;
        }
    }
    let mut given: Vec<Csr> = vec![Csr::new(); n_parts];
    if let Conflicts::Graph { cliques, .. } = &problem.conflicts {
        for row in (0..cliques.n_rows()).map(|row| cliques.row(row)) {
            if let Some(part) = row.first().and_then(|&v| part_of[v as usize]) {
                given[part as usize].push_row(row.iter().map(|&v| local[v as usize]));
            }
        }
    }
    let mut parts: Vec<Component> =
        members.into_iter().zip(given).map(|(ids, given)| cut_out(problem, ids, given, &local)).collect();
    parts.sort_by_key(|part| (std::cmp::Reverse(part.lower_bound), part.ids[0]));
    parts
}

fn cut_out(problem: &Problem, ids: Vec<u32>, given: Csr, local: &[u32]) -> Component {
    let pick = |all: &[u64]| -> Vec<u64> { ids.iter().map(|&i| all[i as usize]).collect() };
    let (sizes, alignments, widths) = (pick(&problem.sizes), pick(&problem.alignments), pick(&problem.widths));
    let fixed: Vec<Option<u64>> = ids.iter().map(|&i| problem.fixed[i as usize]).collect();
    let fixed_end = fixed.iter().zip(&sizes).filter_map(|(offset, size)| Some((*offset)? + size)).max().unwrap_or(0);
    let mut part = Component {
        sizes,
        alignments,
        widths,
        fixed,
        spans: None,
        n_sections: 0,
        neighbours: None,
        given,
        lower_bound: 0,
        ids,
    };
    match &problem.conflicts {
        Conflicts::Intervals { spans, .. } => {
            let first = part.ids.iter().map(|&i| spans[i as usize].0).min().unwrap_or(0);
            let own: Vec<(u32, u32)> =
                part.ids.iter().map(|&i| spans[i as usize]).map(|(a, b)| (a - first, b - first)).collect();
            part.n_sections = own.iter().map(|span| span.1 as usize).max().unwrap_or(0);
            let totals = section_totals(&own, part.n_sections, &part.sizes);
            part.lower_bound = totals.into_iter().max().unwrap_or(0).max(fixed_end);
            part.spans = Some(own);
        }
        Conflicts::Graph { neighbours, .. } => {
            let mut lists = Csr::new();
            for &i in &part.ids {
                lists.push_row(neighbours.row(i as usize).iter().map(|&v| local[v as usize]));
            }
            part.lower_bound = clique::heaviest(&lists, &part.given, &part.sizes).0.max(fixed_end);
            part.widths = clique::widths(&lists, &part.sizes);
            part.neighbours = Some(lists);
        }
    }
    part
}

/// The part of each buffer: a new one begins at a section that no buffer enters alive.
fn interval_parts(spans: &[(u32, u32)], n_sections: usize) -> Vec<Option<u32>> {
    let mut crossing = vec![0i64; n_sections + 1];
    for &(first, end) in spans.iter().filter(|(first, end)| first < end) {
        crossing[first as usize + 1] += 1;
        crossing[end as usize] -= 1;
    }
    let (mut alive, mut part) = (0i64, 0u32);
    let part_at: Vec<u32> = (0..n_sections)
        .map(|at| {
            alive += crossing[at];
            part += u32::from(at > 0 && alive == 0);
            part
        })
        .collect();
    spans.iter().map(|&(first, end)| (first < end).then(|| part_at[first as usize])).collect()
}

/// The connected components of a graph; none for a vertex without neighbours.
fn graph_parts(neighbours: &Csr) -> Vec<Option<u32>> {
    let mut part_of = vec![None; neighbours.n_rows()];
    let mut n_parts = 0;
    for root in 0..neighbours.n_rows() {
        if part_of[root].is_some() || neighbours.row(root).is_empty() {
            continue;
        }
        let mut open = vec![root as u32];
        part_of[root] = Some(n_parts);
        while let Some(v) = open.pop() {
            for &u in neighbours.row(v as usize) {
                if part_of[u as usize].is_none() {
                    part_of[u as usize] = Some(n_parts);
                    open.push(u);
                }
            }
        }
        n_parts += 1;
    }
    part_of
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
