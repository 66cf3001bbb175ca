//! From an order of parts to steps: signals and waits where streams depend on each other, and no wait that another implies.
//!
//! In: parts in order on each lane, what they read and write, barriers. Out: a schedule, or nothing if the order
//! contradicts the dependencies.
//! Method: a vector clock per part says how much of every lane is done once it is done. A dependency already in the
//! lane's clock needs no wait; of those left at one part only the last per lane counts, and one that another's clock
//! contains is dropped.

use super::list::sync_ns;
use super::{Order, Schedule, Step, Stream, step};
use crate::plan::id::EventId;
use crate::plan::insert::TaskList;
use crate::plan::target::Target;

/// A part's position.
#[derive(Clone, Copy, PartialEq, Eq)]
struct At {
    lane: usize,
    pos: usize,
}

/// A dependency on another lane.
#[derive(Clone, Copy)]
struct Dep {
    on: At,
    latency_ns: u64,
}

struct Waits<'a> {
    list: &'a TaskList,
    target: &'a Target,
    order: &'a Order,
    /// Where each task's shards stand.
    place: Vec<Vec<At>>,
    /// First global number of each lane's parts.
    base: Vec<usize>,
    /// For each part and lane, how many of the lane's parts are done once the part is.
    clock: Vec<u32>,
    /// The waits of each part.
    waits: Vec<Vec<Dep>>,
}

/// Makes the steps.
pub(super) fn steps(list: &TaskList, target: &Target, order: &Order) -> Option<Schedule> {
    let mut place: Vec<Vec<At>> = vec![Vec::new(); list.tasks.len()];
    let mut base = vec![0];
    for (lane, l) in order.lanes.iter().enumerate() {
        for (pos, part) in l.parts.iter().enumerate() {
            let all = &mut place[part.task.idx()];
            all.resize(part.of as usize, At { lane: usize::MAX, pos: 0 });
            all[part.shard as usize] = At { lane, pos };
        }
        base.push(base[lane] + l.parts.len());
    }
    if place.iter().any(|shards| shards.is_empty() || shards.iter().any(|at| at.lane == usize::MAX)) {
        return None;
    }
    let n_parts = base[order.lanes.len()];
    let clock = vec![0; n_parts * order.lanes.len()];
    let mut w = Waits { list, target, order, place, base, clock, waits: vec![Vec::new(); n_parts] };
    w.run().then(|| w.schedule())
}

impl Waits<'_> {
    fn number(&self, at: At) -> usize {
        self.base[at.lane] + at.pos
    }

    fn clock(&self, at: At) -> &[u32] {
        let n = self.order.lanes.len();
        &self.clock[self.number(at) * n..][..n]
    }

    /// Visits the parts in an order that fits all dependencies; false if there is none.
    fn run(&mut self) -> bool {
        let n_lanes = self.order.lanes.len();
        let mut next = vec![0usize; n_lanes];
        let mut blocked: Vec<Vec<usize>> = vec![Vec::new(); self.waits.len()];
        let mut open: Vec<usize> = (0..n_lanes).rev().collect();
        let mut barrier = vec![0usize; n_lanes];
        let mut n_done = 0;
        while let Some(lane) = open.pop() {
            while next[lane] < self.order.lanes[lane].parts.len() {
                let at = At { lane, pos: next[lane] };
                let deps = self.deps(at, &mut barrier[lane]);
                if let Some(dep) = deps.iter().find(|d| d.on.pos >= next[d.on.lane]) {
                    blocked[self.number(dep.on)].push(lane);
                    break;
                }
                self.visit(at, deps);
                (next[lane], n_done) = (next[lane] + 1, n_done + 1);
                open.append(&mut blocked[self.number(at)]);
            }
        }
        n_done == self.waits.len()
    }

    /// What a part waits for on other lanes: who writes what it reads, and the parts before a barrier.
    fn deps(&self, at: At, barrier: &mut usize) -> Vec<Dep> {
        let part = self.order.lanes[at.lane].parts[at.pos];
        let on = self.order.lanes[at.lane].on;
        let mut deps = Vec::new();
        let sync = |lane: usize| if self.order.lanes[lane].on == on { sync_ns(self.target, on) } else { 0 };
        for r in &self.list.tasks[part.task.idx()].reads {
            let Some(writer) = self.list.buffers[r.buffer.idx()].writer else { continue };
            let shards = &self.place[writer.idx()];
            let aligned = r.rowwise && shards.len() == part.of as usize;
            let shards = if aligned { &shards[part.shard as usize..][..1] } else { &shards[..] };
            let dep = |&on: &At| Dep { on, latency_ns: r.latency_ns + sync(on.lane) };
            deps.extend(shards.iter().filter(|s| s.lane != at.lane || s.pos >= at.pos).map(dep));
        }
        // The last barrier before this part: earlier ones are implied by it.
        while self.order.barriers.get(*barrier + 1).is_some_and(|b| b[at.lane] <= at.pos) {
            *barrier += 1;
        }
        if let Some(before) = self.order.barriers.get(*barrier).filter(|b| b[at.lane] == at.pos) {
            let lanes = (0..before.len()).filter(|&l| l != at.lane && before[l] > 0);
            deps.extend(lanes.map(|l| Dep { on: At { lane: l, pos: before[l] - 1 }, latency_ns: sync(l) }));
        }
        deps
    }

    /// Decides a part's waits and its clock.
    fn visit(&mut self, at: At, deps: Vec<Dep>) {
        let n = self.order.lanes.len();
        let mut known = match at.pos {
            0 => vec![0; n],
            pos => self.clock(At { lane: at.lane, pos: pos - 1 }).to_vec(),
        };
        let mut last: Vec<Option<Dep>> = vec![None; n];
        for dep in deps.into_iter().filter(|d| d.on.pos as u32 >= known[d.on.lane]) {
            let latest = &mut last[dep.on.lane];
            let (pos, ns) = latest.map_or((0, 0), |l| (l.on.pos, l.latency_ns));
            let on = At { lane: dep.on.lane, pos: pos.max(dep.on.pos) };
            *latest = Some(Dep { on, latency_ns: ns.max(dep.latency_ns) });
        }
        let all: Vec<Dep> = last.into_iter().flatten().collect();
        let implied = |d: &Dep| all.iter().any(|o| o.on != d.on && self.clock(o.on)[d.on.lane] as usize > d.on.pos);
        let kept: Vec<Dep> = all.iter().filter(|d| !implied(d)).copied().collect();
        for d in &kept {
            known.iter_mut().zip(self.clock(d.on)).for_each(|(k, c)| *k = (*k).max(*c));
        }
        known[at.lane] = at.pos as u32 + 1;
        let number = self.number(at);
        self.clock[number * n..][..n].copy_from_slice(&known);
        self.waits[number] = kept;
    }

    fn schedule(&self) -> Schedule {
        let mut event: Vec<Option<EventId>> = vec![None; self.waits.len()];
        let mut n_events = 0;
        // Events are numbered in the order of the parts that signal them.
        let mut waited = vec![false; self.waits.len()];
        self.waits.iter().flatten().for_each(|d| waited[self.number(d.on)] = true);
        for (e, _) in event.iter_mut().zip(waited).filter(|(_, waited)| *waited) {
            *e = Some(EventId::new(n_events));
            n_events += 1;
        }
        let mut streams = Vec::new();
        for (lane, l) in self.order.lanes.iter().enumerate() {
            let mut steps = Vec::with_capacity(l.parts.len());
            for (pos, part) in l.parts.iter().enumerate() {
                let number = self.number(At { lane, pos });
                for d in &self.waits[number] {
                    let event = event[self.number(d.on)];
                    steps.extend(event.map(|event| Step::Wait { event, latency_ns: d.latency_ns }));
                }
                steps.push(step(self.list, *part));
                steps.extend(event[number].map(Step::Signal));
            }
            streams.push(Stream { on: l.on, steps });
        }
        Schedule { streams, n_events }
    }
}
