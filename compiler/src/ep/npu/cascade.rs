//! Cascades: consecutive calls of the device run strip by strip together, and what lies between them stays in its memory.
//!
//! In: lowered calls, which of them run on the device and how. Out: groups of neighbours ([`Cascade`]) that end earlier as
//! one than one by one, by the same simulation as tiles ([`crate::plan::tiles`]), found by dynamic programming over the
//! cuts of the row ([`partition`]).
//! A strip is some rows of the group's last result with all that the calls before must make for them. A window with a halo
//! (a convolution's, a pool's) asks for rows that the strip before asked for too: these are computed again. Keeping them
//! would take a copy inside the device's memory for each strip and each call, as kernels write dense rows; computing them
//! again takes the time of so many rows, which the simulation counts, so that a strip is high where a halo is dear.
//! What lies between is a buffer of each strip: the memory's plan lets those of strips that follow each other share bytes.
//! A value between that others read too is stored as well, and only its loads are saved.
//! Invariant: a call of a group but its last is read by the group, all of it that is read is made in the same strip.

use super::cut::{self, Piece, Window};
use super::expand::OnDevice;
use super::fit::{Pad, halves};
use crate::lower::{BufferKind, Call, Lowered};
use crate::plan::cascade::partition;
use crate::plan::tiles::{Scheme, TileTimes, simulate};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Neighbours that run as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cascade {
    /// The first call's place among the steps.
    pub first: usize,
    /// How many calls.
    pub n: usize,
    /// Rows of the last result.
    pub n_rows: u64,
    /// Rows of a strip.
    pub rows: u64,
    /// Buffers for what comes from outside and goes there.
    pub n_buffers: usize,
    /// Calls whose result somebody outside the group reads, the last one among them.
    pub stored: BTreeSet<usize>,
    /// Predicted time.
    pub ns: u64,
}

impl Cascade {
    /// Rows of all strips.
    pub fn strips(&self) -> Vec<Range<u64>> {
        (0..self.n_rows.div_ceil(self.rows))
            .map(|i| i * self.rows..(i * self.rows + self.rows).min(self.n_rows))
            .collect()
    }
}

/// Pieces of all groups beyond which there is no cascade.
const MAX_PIECES: u64 = 2048;

/// The pieces of a strip, in order: these rows of the last call's result, and of every call before what the strip reads
/// of it. `None` where a call is not read by those after it, or they read what none of its pieces makes.
pub fn strip(calls: &[&dyn Call], rows: Range<u64>) -> Option<Vec<Piece>> {
    let (last, before) = calls.split_last()?;
    let mut pieces = vec![cut::piece(*last, 0..cut::extent(*last)?.blocks, rows)?];
    for call in before.iter().rev() {
        let whole = cut::whole(*call)?;
        let made = whole.windows[whole.result()?];
        let read = |p: &Piece| {
            let operands = p.call.operands();
            let reads = |(w, o): &(Window, crate::lower::CallOperand)| !o.writes() && w.meets(&made);
            p.windows.clone().into_iter().zip(operands).filter(reads).map(|(w, _)| w.dense()).collect::<Vec<_>>()
        };
        let wanted: BTreeSet<Window> = pieces.iter().flat_map(read).collect();
        let mut wanted = wanted.into_iter();
        let (Some(one), None) = (wanted.next(), wanted.next()) else { return None };
        pieces.push(cut::piece_for(*call, &one)?);
    }
    pieces.reverse();
    Some(pieces)
}

/// Bytes and times of a strip.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    input: u64,
    output: u64,
    weights: u64,
    /// Most that lies between its calls at once, scratch included.
    between: u64,
    load_ns: u64,
    weights_ns: u64,
    compute_ns: u64,
    store_ns: u64,
}

impl Needs {
    fn max(self, b: Self) -> Self {
        Self {
            input: self.input.max(b.input),
            output: self.output.max(b.output),
            weights: self.weights.max(b.weights),
            between: self.between.max(b.between),
            load_ns: self.load_ns.max(b.load_ns),
            weights_ns: self.weights_ns.max(b.weights_ns),
            compute_ns: self.compute_ns.max(b.compute_ns),
            store_ns: self.store_ns.max(b.store_ns),
        }
    }
}

/// A row of calls on the device, and what is asked about it.
struct Row<'a> {
    lowered: &'a Lowered,
    on: &'a [Option<OnDevice>],
    pad: &'a Pad,
    /// First and last step that reads a buffer; the run's end for outputs.
    readers: BTreeMap<u32, Vec<usize>>,
    outputs: BTreeSet<u32>,
    /// Buffers that calls in tiles touch: never in the device's memory as a whole.
    by_tiles: BTreeSet<u32>,
}

/// The groups of neighbours that pay, in order.
pub fn cascades(lowered: &Lowered, on: &[Option<OnDevice>], pad: &Pad) -> Vec<Cascade> {
    let mut row = Row {
        lowered,
        on,
        pad,
        readers: BTreeMap::new(),
        outputs: lowered.outputs.iter().map(|p| p.buffer).collect(),
        by_tiles: BTreeSet::new(),
    };
    for (i, step) in lowered.steps.iter().enumerate() {
        let tiled = on[i].is_some_and(|d| !d.fit.is_whole());
        for o in step.call.operands() {
            if !o.writes() {
                row.readers.entry(o.operand.mem).or_default().push(i);
            }
            if tiled {
                row.by_tiles.insert(o.operand.mem);
            }
        }
    }
    let mut out = Vec::new();
    let mut first = 0;
    while first < on.len() {
        let n = on[first..].iter().take_while(|d| d.is_some()).count();
        let groups = partition(n, |at, len| match len {
            1 => Some((row.alone_ns(first + at)?, None)),
            _ => row.group(first + at, len).map(|group| (group.ns, Some(group))),
        });
        out.extend(groups.unwrap_or_default().into_iter().filter_map(|(_, _, group)| group));
        first += n.max(1);
    }
    out
}

impl Row<'_> {
    /// Time of a call that runs by itself, with the transfers that its neighbours' tiles make necessary.
    fn alone_ns(&self, i: usize) -> Option<u64> {
        let device = self.on[i]?;
        let mut ns = device.fit.ns;
        if device.fit.is_whole() {
            let step = &self.lowered.steps[i];
            for (o, w) in step.call.operands().iter().zip(cut::whole(&*step.call)?.windows) {
                let value = self.lowered.buffers[w.buffer as usize].kind == BufferKind::Activation;
                if value && self.by_tiles.contains(&w.buffer) {
                    ns += if o.writes() { self.pad.store_ns(w.bytes()) } else { self.pad.load_ns(w.bytes()) };
                }
            }
        }
        Some(ns)
    }

    /// The fastest way to run these calls as one.
    fn group(&self, first: usize, n: usize) -> Option<Cascade> {
        let members = first..first + n;
        // Where all fit as they are, values stay in the memory anyway.
        if members.clone().all(|i| self.on[i].is_some_and(|d| d.fit.is_whole())) {
            return None;
        }
        let calls: Vec<&dyn Call> = self.lowered.steps[members.clone()].iter().map(|s| &*s.call).collect();
        let stored = self.stored(&calls, first)?;
        let n_rows = cut::extent(*calls.last()?)?.rows;
        let mut best: Option<Cascade> = None;
        for rows in halves(n_rows) {
            let n_strips = n_rows.div_ceil(rows);
            if n_strips * n as u64 > MAX_PIECES {
                break;
            }
            let middle = n_strips / 2 * rows;
            let needs = |rows: Range<u64>| self.needs(&strip(&calls, rows)?, first, &stored);
            // What no strip can do, no other strip will.
            let needs = needs(0..rows)?.max(needs(middle..(middle + rows).min(n_rows))?);
            for n_buffers in 1..=n_strips.min(2) {
                let bytes = n_buffers * (needs.input + needs.output) + needs.weights + needs.between;
                if bytes > self.pad.capacity_bytes {
                    continue;
                }
                let n_buffers = n_buffers as usize;
                let mut times = TileTimes::equal(n_strips as usize, needs.load_ns, needs.compute_ns, needs.store_ns);
                times.load_ns[0] += needs.weights_ns;
                let scheme = Scheme { n_buffers, in_place: false, one_engine: self.pad.one_engine };
                let ns = simulate(&times, scheme);
                if best.as_ref().is_none_or(|b| (ns, n_buffers) < (b.ns, b.n_buffers)) {
                    best = Some(Cascade { first, n, n_rows, rows, n_buffers, stored: stored.clone(), ns });
                }
            }
        }
        best
    }

    /// The members whose results others need; `None` where a member's result lies over what an earlier one or it
    /// itself reads, or over another's result: their strips would not go together.
    fn stored(&self, calls: &[&dyn Call], first: usize) -> Option<BTreeSet<usize>> {
        let wholes = calls.iter().map(|c| cut::whole(*c)).collect::<Option<Vec<_>>>()?;
        let results = wholes.iter().map(|w| w.result().map(|r| w.windows[r])).collect::<Option<Vec<_>>>()?;
        let mut stored = BTreeSet::from([first + calls.len() - 1]);
        for (k, made) in results.iter().enumerate() {
            let clash = |j: usize| {
                let later = j > k;
                let operands = wholes[j].call.operands();
                let over = |(w, o): (&Window, &crate::lower::CallOperand)| w.meets(made) && (o.writes() || !later);
                wholes[j].windows.iter().zip(&operands).enumerate().any(|(at, pair)| {
                    let own = j == k && wholes[j].result() == Some(at);
                    !own && over(pair)
                })
            };
            if self.lowered.buffers[made.buffer as usize].kind != BufferKind::Activation || (0..calls.len()).any(clash)
            {
                return None;
            }
            let outside = |&i: &usize| i < first || i >= first + calls.len();
            let read = self.readers.get(&made.buffer).is_some_and(|r| r.iter().any(outside));
            if read || self.outputs.contains(&made.buffer) {
                stored.insert(first + k);
            }
        }
        Some(stored)
    }

    fn needs(&self, pieces: &[Piece], first: usize, stored: &BTreeSet<usize>) -> Option<Needs> {
        let mut n = Needs::default();
        // What lies between: its size, and the last piece that reads it.
        let mut between: BTreeMap<Window, (u64, usize)> = BTreeMap::new();
        for (k, piece) in pieces.iter().enumerate() {
            for (w, o) in piece.windows.iter().zip(piece.call.operands()) {
                if let Some((_, last)) = between.get_mut(&w.dense()).filter(|_| !o.writes()) {
                    *last = k;
                }
            }
            let made = piece.windows[piece.result()?];
            between.insert(made.dense(), (self.pad.aligned(&made), k));
        }
        let mut made: BTreeSet<Window> = BTreeSet::new();
        for (k, piece) in pieces.iter().enumerate() {
            let device = self.on[first + k]?;
            let mut scratch = 0;
            for (o, w) in piece.call.operands().iter().zip(&piece.windows) {
                let bytes = self.pad.aligned(w);
                match &self.lowered.buffers[w.buffer as usize].kind {
                    BufferKind::Scratch if o.name == "scratch" => scratch += bytes,
                    BufferKind::Weight(_) => {
                        n.weights += bytes;
                        n.weights_ns += self.pad.load_ns(w.bytes());
                    }
                    _ if o.writes() && stored.contains(&(first + k)) => {
                        n.output += bytes;
                        n.store_ns += self.pad.store_ns(w.bytes());
                    }
                    _ if o.writes() || made.contains(&w.dense()) => {}
                    _ => {
                        n.input += bytes;
                        n.load_ns += self.pad.load_ns(w.bytes());
                    }
                }
            }
            made.insert(piece.windows[piece.result()?].dense());
            let lives = |(at, (_, last)): &(usize, &(u64, usize))| *at <= k && k <= *last;
            let order = pieces.iter().filter_map(|p| p.result().map(|r| p.windows[r].dense()));
            let alive = order.enumerate().filter_map(|(at, w)| between.get(&w).map(|b| (at, b)));
            // What is stored is counted with the results.
            let live: u64 = alive
                .filter(lives)
                .filter(|(at, _)| !stored.contains(&(first + at)))
                .map(|(_, (bytes, _))| bytes)
                .sum();
            n.between = n.between.max(live + scratch);
            n.compute_ns += device.ns(piece, self.pad);
        }
        Some(n)
    }
}
