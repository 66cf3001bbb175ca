//! List scheduling: at every moment a stream is free, the most urgent ready task goes to the stream on which it starts first.
//!
//! In: a task list, what is urgent, when to cut into shards. Out: an order. A stream that made an operand is preferred, so
//! chains stay on their stream. Time is that of the cost model: O(V log V + E · streams).
//! Source: Graham, "Bounds on multiprocessing timing anomalies" (1969); upward rank from HEFT, Topcuoglu et al. (2002).

use super::{First, Lane, Order, Part, Shards, lanes};
use crate::plan::id::TaskId;
use crate::plan::insert::{Resource, TaskList};
use crate::plan::target::Target;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Where and when a part ends.
#[derive(Clone, Copy)]
struct Done {
    lane: usize,
    end_ns: u64,
}

struct Scheduling<'a> {
    list: &'a TaskList,
    shards: Shards,
    lanes: Vec<Lane>,
    /// From a signal to a wait between two streams of the same resource.
    sync_ns: Vec<u64>,
    /// The lanes of each resource, by the resource's position.
    group: Vec<std::ops::Range<usize>>,
    free_ns: Vec<u64>,
    done: Vec<Vec<Done>>,
    /// Ready tasks of each resource.
    ready: Vec<BinaryHeap<(u64, Reverse<usize>)>>,
    /// Ends of parts to come.
    events: BinaryHeap<Reverse<(u64, usize)>>,
}

/// Orders by list scheduling.
pub(super) fn order(list: &TaskList, target: &Target, first: First, shards: Shards) -> Order {
    let dag = list.dag();
    let n = list.tasks.len();
    let mut urgency = vec![0u64; n];
    for t in dag.order().rev() {
        urgency[t] = match first {
            First::ModelOrder => (n - t) as u64,
            First::CriticalPath => {
                let after = dag.succs(t).iter().map(|&s| urgency[s as usize]).max().unwrap_or(0);
                list.tasks[t].cost_ns.saturating_add(after)
            }
        };
    }
    let mut s = Scheduling::new(list, target, shards);
    let mut left: Vec<usize> = (0..n).map(|t| dag.preds(t).len()).collect();
    for t in (0..n).filter(|&t| left[t] == 0) {
        s.make_ready(t, urgency[t]);
    }
    let mut parts_left: Vec<usize> = vec![0; n];
    let mut now = 0;
    loop {
        for g in 0..s.group.len() {
            while s.group[g].clone().any(|l| s.free_ns[l] <= now) {
                let Some((_, Reverse(t))) = s.ready[g].pop() else { break };
                parts_left[t] = s.put(g, t, now);
            }
        }
        let Some(Reverse((at, _))) = s.events.peek().copied() else { break };
        now = at;
        while let Some(Reverse((_, t))) = s.events.peek().copied().filter(|Reverse((end, _))| *end == now) {
            s.events.pop();
            parts_left[t] -= 1;
            if parts_left[t] > 0 {
                continue;
            }
            for &u in dag.succs(t) {
                let u = u as usize;
                left[u] -= 1;
                if left[u] == 0 {
                    s.make_ready(u, urgency[u]);
                }
            }
        }
    }
    Order { lanes: s.lanes, barriers: Vec::new() }
}

impl<'a> Scheduling<'a> {
    fn new(list: &'a TaskList, target: &Target, shards: Shards) -> Self {
        let lanes = lanes(target);
        let mut group: Vec<std::ops::Range<usize>> = Vec::new();
        for (l, lane) in lanes.iter().enumerate() {
            match group.last_mut() {
                Some(g) if lanes[g.start].on == lane.on => g.end = l + 1,
                _ => group.push(l..l + 1),
            }
        }
        let sync_ns = lanes.iter().map(|lane| sync_ns(target, lane.on)).collect();
        let n_lanes = lanes.len();
        Self {
            list,
            shards,
            lanes,
            sync_ns,
            ready: vec![BinaryHeap::new(); group.len()],
            group,
            free_ns: vec![0; n_lanes],
            done: vec![Vec::new(); list.tasks.len()],
            events: BinaryHeap::new(),
        }
    }

    fn make_ready(&mut self, t: usize, urgency: u64) {
        let on = self.list.tasks[t].on;
        if let Some(g) = self.group.iter().position(|g| self.lanes[g.start].on == on) {
            self.ready[g].push((urgency, Reverse(t)));
        }
    }

    /// When all a task reads can be read on a lane.
    fn ready_ns(&self, t: usize, lane: usize) -> u64 {
        let mut at = 0;
        for r in &self.list.tasks[t].reads {
            let Some(writer) = self.list.buffers[r.buffer.idx()].writer else { continue };
            for d in &self.done[writer.idx()] {
                let same_resource = self.lanes[d.lane].on == self.lanes[lane].on;
                let sync = if same_resource && d.lane != lane { self.sync_ns[lane] } else { 0 };
                at = at.max(d.end_ns + r.latency_ns + sync);
            }
        }
        at
    }

    /// Puts a task on lanes of a resource; how many parts it became.
    fn put(&mut self, g: usize, t: usize, now: u64) -> usize {
        let task = &self.list.tasks[t];
        let made_here = |lane: usize| {
            let writers = task.reads.iter().filter_map(|r| self.list.buffers[r.buffer.idx()].writer);
            let ends = writers.flat_map(|w| &self.done[w.idx()]).filter(|d| d.lane == lane).map(|d| d.end_ns + 1);
            ends.max().unwrap_or(0)
        };
        let start = |l: usize| self.free_ns[l].max(self.ready_ns(t, l)).max(now);
        let mut by_start: Vec<(u64, Reverse<u64>, usize)> =
            self.group[g].clone().map(|l| (start(l), Reverse(made_here(l)), l)).collect();
        by_start.sort_unstable();
        let of = self.n_shards(t, self.ready[g].len(), &by_start);
        by_start.truncate(of);
        // Shards lie on lanes in order, so that row-wise readers find their rows on their own lane.
        by_start.sort_unstable_by_key(|(_, _, l)| *l);
        for (shard, (start, _, lane)) in by_start.into_iter().enumerate() {
            let part = Part { task: TaskId::new(t), shard: shard as u32, of: of as u32 };
            let end_ns = start + part.ns(task);
            self.lanes[lane].parts.push(part);
            self.free_ns[lane] = end_ns;
            self.done[t].push(Done { lane, end_ns });
            self.events.push(Reverse((end_ns, t)));
        }
        of
    }

    /// Into how many shards to cut a task, with so many others ready for the same streams.
    fn n_shards(&self, t: usize, others: usize, by_start: &[(u64, Reverse<u64>, usize)]) -> usize {
        let task = &self.list.tasks[t];
        let most = (task.splits as usize).min(by_start.len()).max(1);
        let (least, most) = match self.shards {
            Shards::Never => (1, 1),
            Shards::WhereIdle => (1, (most / (others + 1)).max(1)),
            Shards::Always => (most, most),
        };
        let end = |k: usize| {
            let part = Part { task: TaskId::new(t), shard: 0, of: k as u32 };
            let sync = if k > 1 { self.sync_ns[by_start[0].2] } else { 0 };
            by_start[k - 1].0 + part.ns(task) + sync
        };
        let best = (least..=most).min_by_key(|&k| (end(k), k)).unwrap_or(1);
        // Not even "always" cuts what gets slower by it.
        if end(best) > end(1) && self.shards == Shards::WhereIdle { 1 } else { best }
    }
}

/// From a signal to a wait between two streams of a resource.
pub(super) fn sync_ns(target: &Target, on: Resource) -> u64 {
    match on {
        Resource::Device(d) => target.device(d).sync_ns,
        Resource::Dma(_) => 0,
    }
}
