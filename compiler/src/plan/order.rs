//! Happens-before: which step surely ends before which other begins, and which buffers may therefore share bytes.
//!
//! In: a schedule's steps. Out: [`HappensBefore`], vector clocks; from it and the accesses of each buffer the conflicts that
//! the memory solver takes ([`conflicts`]) and a clique that is surely alive at once ([`peak`]).
//! Invariants: a step is a position in a stream; two buffers do not conflict only if every access to one happens before
//! every access to the other. The work is proportional to steps × streams and the conflicts found, not to the square of
//! the buffers.

use super::insert::TaskList;
use super::schedule::{Schedule, Step};

/// A step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepAt {
    /// The stream.
    pub stream: usize,
    /// The position in it.
    pub step: usize,
}

/// The partial order of a schedule's steps.
#[derive(Clone, Debug)]
pub struct HappensBefore {
    n_streams: usize,
    base: Vec<usize>,
    /// For each step and stream, how many of the stream's steps have surely ended when the step begins.
    clock: Vec<u32>,
    /// The position of each step in one order that fits.
    rank: Vec<u32>,
}

impl HappensBefore {
    /// The order of the steps; nothing if they deadlock.
    pub fn new(schedule: &Schedule) -> Option<HappensBefore> {
        let n_streams = schedule.streams.len();
        let mut base = vec![0];
        for s in &schedule.streams {
            base.push(base[base.len() - 1] + s.steps.len());
        }
        let n_steps = base[n_streams];
        let mut hb = HappensBefore { n_streams, base, clock: vec![0; n_steps * n_streams], rank: vec![0; n_steps] };
        let mut signals: Vec<Option<Vec<u32>>> = vec![None; schedule.n_events];
        let mut blocked: Vec<Vec<usize>> = vec![Vec::new(); schedule.n_events];
        let mut now: Vec<Vec<u32>> = vec![vec![0; n_streams]; n_streams];
        let mut open: Vec<usize> = (0..n_streams).rev().collect();
        let mut n_done = 0;
        while let Some(s) = open.pop() {
            while let Some(step) = schedule.streams[s].steps.get(now[s][s] as usize) {
                if let Step::Wait { event, .. } = step {
                    let Some(signal) = &signals[event.idx()] else {
                        blocked[event.idx()].push(s);
                        break;
                    };
                    now[s].iter_mut().zip(signal).for_each(|(a, b)| *a = (*a).max(*b));
                }
                let number = hb.base[s] + now[s][s] as usize;
                hb.clock[number * n_streams..][..n_streams].copy_from_slice(&now[s]);
                hb.rank[number] = n_done;
                n_done += 1;
                now[s][s] += 1;
                if let Step::Signal(event) = step {
                    signals[event.idx()] = Some(now[s].clone());
                    open.append(&mut blocked[event.idx()]);
                }
            }
        }
        (n_done as usize == n_steps).then_some(hb)
    }

    fn clock(&self, at: StepAt) -> &[u32] {
        &self.clock[(self.base[at.stream] + at.step) * self.n_streams..][..self.n_streams]
    }

    fn rank(&self, at: StepAt) -> u32 {
        self.rank[self.base[at.stream] + at.step]
    }

    /// Whether one step ends before another begins, whatever the timing.
    pub fn before(&self, a: StepAt, b: StepAt) -> bool {
        self.clock(b)[a.stream] as usize > a.step
    }
}

/// Who touches a buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// The steps that write or read it.
    pub steps: Vec<StepAt>,
    /// It holds something when the run begins (an input in the arena).
    pub from_start: bool,
    /// It is read after the run (an output).
    pub to_end: bool,
}

/// The accesses to each buffer of a task list.
pub fn accesses(list: &TaskList, schedule: &Schedule) -> Vec<Accesses> {
    let mut all: Vec<Accesses> = list
        .buffers
        .iter()
        .map(|b| Accesses { steps: Vec::new(), from_start: b.writer.is_none(), to_end: b.output })
        .collect();
    for (stream, s) in schedule.streams.iter().enumerate() {
        for (step, part) in s.steps.iter().enumerate().filter_map(|(i, s)| s.part().map(|p| (i, p))) {
            let task = &list.tasks[part.task.idx()];
            for b in task.reads.iter().map(|r| r.buffer).chain(task.writes.iter().copied()) {
                all[b.idx()].steps.push(StepAt { stream, step });
            }
        }
    }
    all
}

/// One buffer's life in the partial order and in the linear one.
struct Life {
    /// For each stream: everything before this position is over before the buffer's first access.
    first: Vec<u32>,
    /// First and last access in the linear order.
    from: u32,
    to: u32,
}

fn life(hb: &HappensBefore, a: &Accesses) -> Option<Life> {
    if a.steps.is_empty() && !a.from_start && !a.to_end {
        return None;
    }
    let mut first = vec![if a.from_start || a.steps.is_empty() { 0 } else { u32::MAX }; hb.n_streams];
    for &at in &a.steps {
        first.iter_mut().zip(hb.clock(at)).for_each(|(f, c)| *f = (*f).min(*c));
    }
    let ranks = || a.steps.iter().map(|&at| hb.rank(at) + 1);
    let from = if a.from_start { 0 } else { ranks().min().unwrap_or(0) };
    let to = if a.to_end { u32::MAX } else { ranks().max().unwrap_or(0) };
    Some(Life { first, from, to })
}

/// All pairs of buffers that may not share bytes, each once and the smaller first.
///
/// Lives that overlap in one linear order conflict in the partial order. Of the others the earlier one conflicts with
/// the later if one of its accesses lies, on some stream, behind what is over when the later begins.
pub fn conflicts(hb: &HappensBefore, buffers: &[Accesses]) -> Vec<(usize, usize)> {
    let lives: Vec<Option<Life>> = buffers.iter().map(|a| life(hb, a)).collect();
    // The buffers that each step touches, stream by stream.
    let mut touched: Vec<Vec<u32>> = vec![Vec::new(); hb.rank.len()];
    for (i, a) in buffers.iter().enumerate() {
        a.steps.iter().for_each(|at| touched[hb.base[at.stream] + at.step].push(i as u32));
    }
    let mut by_start: Vec<usize> = (0..buffers.len()).filter(|&i| lives[i].is_some()).collect();
    by_start.sort_by_key(|&i| lives[i].as_ref().map(|l| (l.from, i)));
    let mut edges = Vec::new();
    let mut alive: std::collections::BTreeSet<(u32, usize)> = std::collections::BTreeSet::new();
    let mut seen = vec![usize::MAX; buffers.len()];
    for &i in &by_start {
        let Some(life) = &lives[i] else { continue };
        while alive.first().is_some_and(|&(to, _)| to < life.from) {
            alive.pop_first();
        }
        seen[i] = i;
        let mut meet = |j: usize| {
            if seen[j] != i {
                seen[j] = i;
                edges.push((i.min(j), i.max(j)));
            }
        };
        alive.iter().for_each(|&(_, j)| meet(j));
        for s in 0..hb.n_streams {
            // Steps of this stream that may still run when the buffer begins to live, but come earlier in the linear order.
            let steps = hb.base[s] + life.first[s].min((hb.base[s + 1] - hb.base[s]) as u32) as usize..hb.base[s + 1];
            for number in steps.take_while(|&n| hb.rank[n] + 1 < life.from) {
                touched[number].iter().for_each(|&j| meet(j as usize));
            }
        }
        alive.insert((life.to, i));
    }
    edges.sort_unstable();
    edges
}

/// The heaviest set of buffers alive at once in one linear order: a clique of the conflicts, and a lower bound.
pub fn peak(hb: &HappensBefore, buffers: &[Accesses], bytes: &[u64]) -> Vec<usize> {
    let mut ends: Vec<(u32, bool, usize)> = Vec::new();
    for (i, a) in buffers.iter().enumerate() {
        if let Some(life) = life(hb, a) {
            // At one moment, what begins is there before what ends is gone.
            ends.extend([(life.from, false, i), (life.to, true, i)]);
        }
    }
    ends.sort_unstable();
    let mut alive = std::collections::BTreeSet::new();
    let (mut now, mut most, mut best) = (0u64, 0u64, Vec::new());
    for (_, ends, i) in ends {
        if ends {
            // Only where something ends is the set as large as it gets.
            if now > most {
                (most, best) = (now, alive.iter().copied().collect());
            }
            alive.remove(&i);
            now -= bytes[i];
        } else {
            alive.insert(i);
            now += bytes[i];
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::solve;
    use crate::plan::insert::insert;
    use crate::plan::placement::priority;
    use crate::plan::schedule::all;
    use crate::plan::testing::{Random, random_graph, random_target};

    /// The definition, pair by pair and access by access.
    fn by_definition(hb: &HappensBefore, all: &[Accesses]) -> Vec<(usize, usize)> {
        let before = |a: &Accesses, b: &Accesses| {
            let steps = a.steps.iter().all(|&x| b.steps.iter().all(|&y| hb.before(x, y)));
            steps && !a.to_end && !b.from_start
        };
        let none = |a: &Accesses| a.steps.is_empty() && !a.from_start && !a.to_end;
        let mut edges = Vec::new();
        for i in 0..all.len() {
            for j in i + 1..all.len() {
                let free = none(&all[i]) || none(&all[j]) || before(&all[i], &all[j]) || before(&all[j], &all[i]);
                if !free {
                    edges.push((i, j));
                }
            }
        }
        edges
    }

    #[test]
    fn conflicts_equal_their_definition_and_can_be_solved() {
        let mut r = Random(53);
        for at in 0..150 {
            let target = random_target(&mut r, 1 + at % 3);
            let n = 1 + r.below(25) as usize;
            let kit = random_graph(&mut r, target, n);
            let shape = kit.shape();
            let list = insert(&kit.graph, &shape, &kit.target, &priority::place(&kit.graph, &shape, &kit.target));
            for p in all(&list, &kit.target, true) {
                let hb = HappensBefore::new(&p.schedule).unwrap();
                let mut accesses = accesses(&list, &p.schedule);
                if r.chance(30) {
                    accesses.push(Accesses::default());
                }
                let edges = conflicts(&hb, &accesses);
                assert_eq!(edges, by_definition(&hb, &accesses), "{at} {:?}", p.by);
                if at % 10 > 0 {
                    continue;
                }
                let bytes: Vec<u64> = (0..accesses.len()).map(|_| 1 + r.below(50)).collect();
                let peak = peak(&hb, &accesses, &bytes);
                let ones = vec![1; bytes.len()];
                let problem = solve::Problem::from_conflicts(&bytes, &ones, &edges).unwrap();
                let problem = problem.with_cliques(std::slice::from_ref(&peak)).unwrap();
                let solution = solve::solve(&problem, &solve::Options { climb_steps: 0, search_steps: 0 });
                assert!(solution.height >= peak.iter().map(|&i| bytes[i]).sum());
            }
        }
    }

    #[test]
    fn deadlocks_have_no_order() {
        use crate::plan::id::{DeviceId, EventId};
        use crate::plan::insert::Resource;
        use crate::plan::schedule::Stream;
        let steps = vec![Step::Wait { event: EventId(0), latency_ns: 0 }, Step::Signal(EventId(0))];
        let streams = vec![Stream { on: Resource::Device(DeviceId(0)), steps }];
        assert!(HappensBefore::new(&Schedule { streams, n_events: 1 }).is_none());
    }
}
