//! Greedy placement: three ways, all deterministic, none worse than quadratic in conflicting pairs.
//!
//! - [`by_time`]: what an allocator would do at run time, smallest free hole that fits; n log n, for any number of buffers.
//! - [`best_gap`]: in a given order, each buffer goes into the smallest gap that fits between placed ones.
//! - [`lowest_first`]: always the buffer that can go lowest next, ties by rank; the first dive of MiniMalloc's search.
//!
//! In goes a component, out come offsets, aligned and free of overlaps. Fixed buffers stay where they are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::component::Component;
use super::spans::{MaxTree, PlacedSpans};

/// Not placed yet.
pub(super) const NOWHERE: u64 = u64::MAX;

/// Allocates at each start and frees at each end, as at run time. Intervals without fixed buffers only.
pub(super) fn by_time(part: &Component) -> Option<Vec<u64>> {
    let spans = part.spans.as_ref().filter(|_| part.can_go_by_time())?;
    // Within a section the largest first.
    let mut events: Vec<(u32, bool, Reverse<u64>, u32)> = (0..part.len())
        .flat_map(|i| {
            let size = Reverse(part.sizes[i]);
            [(spans[i].0, true, size, i as u32), (spans[i].1, false, size, i as u32)]
        })
        .collect();
    events.sort_unstable();
    let mut offsets = vec![0; part.len()];
    let mut by_offset: BTreeMap<u64, u64> = BTreeMap::new();
    let mut by_size: BTreeSet<(u64, u64)> = BTreeSet::new();
    let mut top = 0u64;
    for (_, starts, Reverse(size), i) in events {
        let i = i as usize;
        let (mut from, mut to) = (offsets[i], offsets[i] + size);
        if starts {
            let align = part.alignments[i];
            let fits = |&&(room, at): &&(u64, u64)| at.next_multiple_of(align) + size <= at + room;
            let hole = by_size.range((size, 0)..).take(64).find(fits).copied();
            let (begin, end) = match hole {
                Some((room, at)) => {
                    by_size.remove(&(room, at));
                    by_offset.remove(&at);
                    (at, at + room)
                }
                None => {
                    // Extends the last hole if it touches the top.
                    let last = by_offset.last_key_value().filter(|&(at, room)| at + room == top).map(|(at, _)| *at);
                    let begin = last.unwrap_or(top);
                    if let Some(room) = by_offset.remove(&begin) {
                        by_size.remove(&(room, begin));
                    }
                    top = begin.next_multiple_of(align) + size;
                    (begin, top)
                }
            };
            offsets[i] = begin.next_multiple_of(align);
            for (at, end) in [(begin, offsets[i]), (offsets[i] + size, end)] {
                if at < end {
                    by_offset.insert(at, end - at);
                    by_size.insert((end - at, at));
                }
            }
            continue;
        }
        // Freed: joins the holes on both sides.
        if let Some((&at, &room)) = by_offset.range(..from).next_back().filter(|&(at, room)| at + room == from) {
            by_size.remove(&(room, at));
            by_offset.remove(&at);
            from = at;
        }
        if let Some(room) = by_offset.remove(&to) {
            by_size.remove(&(room, to));
            to += room;
        }
        by_offset.insert(from, to - from);
        by_size.insert((to - from, from));
    }
    Some(offsets)
}

/// Places the buffers in `order`, each into the smallest gap that fits, else on top of its neighbours.
pub(super) fn best_gap(part: &Component, order: &[u32]) -> Vec<u64> {
    let mut offsets = vec![NOWHERE; part.len()];
    let mut index = match (&part.neighbours, &part.spans) {
        (None, Some(spans)) => Some(PlacedSpans::new(spans)),
        _ => None,
    };
    for (i, fixed) in part.fixed.iter().enumerate() {
        if let Some(offset) = *fixed {
            offsets[i] = offset;
            if let Some(index) = &mut index {
                index.place(i as u32);
            }
        }
    }
    let mut around: Vec<(u64, u64)> = Vec::new();
    for &i in order {
        around.clear();
        let mut see = |j: u32| {
            let j = j as usize;
            if offsets[j] != NOWHERE {
                around.push((offsets[j], offsets[j] + part.sizes[j]));
            }
        };
        match (&index, &part.neighbours) {
            (Some(index), _) => index.each_overlapping(i, see),
            (None, Some(lists)) => lists.row(i as usize).iter().for_each(|&j| see(j)),
            (None, None) => {}
        }
        around.sort_unstable();
        offsets[i as usize] = smallest_gap(&around, part.sizes[i as usize], part.alignments[i as usize]);
        if let Some(index) = &mut index {
            index.place(i);
        }
    }
    offsets
}

/// The offset in the smallest gap between `taken` ranges (sorted) that fits, or above them all.
fn smallest_gap(taken: &[(u64, u64)], size: u64, align: u64) -> u64 {
    let mut best: Option<(u64, u64)> = None;
    let mut floor = 0u64;
    for &(from, to) in taken {
        if from > floor {
            let at = floor.next_multiple_of(align);
            if at + size <= from && best.is_none_or(|(room, _)| from - floor < room) {
                best = Some((from - floor, at));
            }
        }
        floor = floor.max(to);
    }
    best.map_or(floor.next_multiple_of(align), |(_, at)| at)
}

/// Places the buffer that can go lowest next, again and again; of those that tie, the one that is first in `order`.
pub(super) fn lowest_first(part: &Component, order: &[u32]) -> Option<Vec<u64>> {
    match (&part.neighbours, &part.spans) {
        (Some(_), _) => Some(lowest_first_lists(part, order)),
        (None, Some(spans)) if part.can_go_by_time() => Some(lowest_first_spans(part, spans, order)),
        _ => None,
    }
}

fn lowest_first_lists(part: &Component, order: &[u32]) -> Vec<u64> {
    let obstacles = Obstacles::new(part);
    let mut offsets = part.fixed.iter().map(|fixed| fixed.unwrap_or(NOWHERE)).collect::<Vec<u64>>();
    let mut lowest: Vec<u64> = (0..part.len()).map(|i| obstacles.lowest_fit(part, i, 0)).collect();
    let mut rank = vec![0u32; part.len()];
    for (at, &i) in order.iter().enumerate() {
        rank[i as usize] = at as u32;
    }
    let mut queue: BinaryHeap<Reverse<(u64, u32, u32)>> =
        order.iter().map(|&i| Reverse((lowest[i as usize], rank[i as usize], i))).collect();
    while let Some(Reverse((at, _, i))) = queue.pop() {
        let here = i as usize;
        if offsets[here] != NOWHERE || lowest[here] != at {
            continue;
        }
        offsets[here] = at;
        for &j in part.neighbours.iter().flat_map(|lists| lists.row(here)) {
            let there = j as usize;
            if offsets[there] == NOWHERE && lowest[there] < at + part.sizes[here] {
                lowest[there] = obstacles.lowest_fit(part, there, at + part.sizes[here]);
                queue.push(Reverse((lowest[there], rank[there], j)));
            }
        }
    }
    offsets
}

fn lowest_first_spans(part: &Component, spans: &[(u32, u32)], order: &[u32]) -> Vec<u64> {
    let mut offsets = vec![NOWHERE; part.len()];
    let mut skyline = MaxTree::new(part.n_sections);
    let mut queue: BinaryHeap<Reverse<(u64, u32, u32)>> =
        order.iter().enumerate().map(|(at, &i)| Reverse((0, at as u32, i))).collect();
    while let Some(Reverse((known, rank, i))) = queue.pop() {
        let here = i as usize;
        let (first, end) = (spans[here].0 as usize, spans[here].1 as usize);
        let at = skyline.max(first, end).next_multiple_of(part.alignments[here]);
        if at > known {
            queue.push(Reverse((at, rank, i)));
            continue;
        }
        offsets[here] = at;
        skyline.raise(first, end, at + part.sizes[here]);
    }
    offsets
}

/// The fixed ranges that each free buffer has to avoid, by offset.
#[derive(Debug)]
pub(super) struct Obstacles {
    /// Empty when nothing is fixed.
    ranges: Vec<Vec<(u64, u64)>>,
}

impl Obstacles {
    pub(super) fn new(part: &Component) -> Obstacles {
        let Some(lists) = part.neighbours.as_ref().filter(|_| part.fixed.iter().any(Option::is_some)) else {
            return Obstacles { ranges: Vec::new() };
        };
        let ranges = (0..part.len())
            .map(|i| {
                let range = |&j: &u32| part.fixed[j as usize].map(|at| (at, at + part.sizes[j as usize]));
                let mut taken: Vec<(u64, u64)> = lists.row(i).iter().filter_map(range).collect();
                taken.sort_unstable();
                taken
            })
            .collect();
        Obstacles { ranges }
    }

    /// The lowest aligned offset from `floor` up at which buffer `i` meets no fixed one.
    pub(super) fn lowest_fit(&self, part: &Component, i: usize, floor: u64) -> u64 {
        let mut at = floor.next_multiple_of(part.alignments[i]);
        for &(from, to) in self.ranges.get(i).map_or(&[][..], Vec::as_slice) {
            if at + part.sizes[i] <= from {
                break;
            }
            if to > at {
                at = to.next_multiple_of(part.alignments[i]);
            }
        }
        at
    }
}
