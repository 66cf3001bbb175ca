//! Placement by simulated time: start from cuts and baselines, then move nodes, branches and regions while it helps.
//!
//! In: a graph, a target, a policy. Out: the placement with its tasks and schedule, and what every candidate would take.
//! Invariant: under [`Objective::Makespan`] the simulated end is never later than that of `priority`, `parallax`, any
//! single device or the least sum, because all of them are candidates. The search is bounded by a number of tasks
//! simulated, never by a clock.

use super::parallax::{self, Thresholds};
use super::regions::regions;
use super::{Objective, Placement, Policy, choose_claims, is_legal, priority, single_device, sum};
use crate::plan::branch::branches;
use crate::plan::graph::{Shape, TaskGraph};
use crate::plan::id::DeviceId;
use crate::plan::insert::{TaskList, insert};
use crate::plan::schedule::{self, First, Planned, Scheduler, Shards};
use crate::plan::target::Target;

/// How hard to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Tasks that the search may simulate.
    pub tasks: u64,
    /// Whether heavy tasks may be cut into shards.
    pub shards: bool,
}

impl Default for Effort {
    fn default() -> Self {
        Self { tasks: 400_000, shards: true }
    }
}

/// Where a placement comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidate {
    /// Providers in order.
    Priority,
    /// The paper's thresholds.
    Parallax,
    /// As much as possible on one device.
    Single(DeviceId),
    /// The least sum of node and crossing costs.
    Sum,
    /// The best of all these, moved from node by node while that helps.
    Search,
}

/// A placement with what follows from it.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The placement.
    pub placement: Placement,
    /// Its kernels and copies.
    pub list: TaskList,
    /// Its schedule.
    pub planned: Planned,
    /// Where it comes from.
    pub from: Candidate,
    /// Simulated end of each candidate, under [`Policy::Optimal`].
    pub candidates: Vec<(Candidate, u64)>,
}

struct Context<'a> {
    graph: &'a TaskGraph,
    shape: &'a Shape,
    target: &'a Target,
    effort: Effort,
}

/// Places and schedules by a policy.
pub fn place(graph: &TaskGraph, shape: &Shape, target: &Target, policy: Policy, effort: Effort) -> Placed {
    let cx = Context { graph, shape, target, effort };
    match policy {
        Policy::Priority => cx.placed(priority::place(graph, shape, target), Candidate::Priority),
        Policy::Parallax => {
            cx.placed(parallax::place(graph, shape, target, &Thresholds::default()), Candidate::Parallax)
        }
        Policy::Optimal(Objective::Sum) => cx.placed(sum::place(graph, shape, target), Candidate::Sum),
        Policy::Optimal(Objective::Makespan) => cx.makespan(),
    }
}

impl Context<'_> {
    fn placed(&self, placement: Placement, from: Candidate) -> Placed {
        let list = insert(self.graph, self.shape, self.target, &placement);
        let planned = schedule::best(&list, self.target, self.effort.shards);
        let candidates = vec![(from, planned.timeline.end_ns)];
        Placed { placement, list, planned, from, candidates }
    }

    fn makespan(&self) -> Placed {
        let (graph, shape, target) = (self.graph, self.shape, self.target);
        let mut starts = vec![(sum::place(graph, shape, target), Candidate::Sum)];
        if target.n_devices() > 1 {
            let single = |d| (single_device(graph, shape, target, d), Candidate::Single(d));
            starts.extend(target.device_ids().map(single));
            starts.push((priority::place(graph, shape, target), Candidate::Priority));
            starts.push((parallax::place(graph, shape, target, &Thresholds::default()), Candidate::Parallax));
        }
        let mut candidates = Vec::new();
        let mut best: Option<Placed> = None;
        let mut done: Vec<Placement> = Vec::new();
        for (placement, from) in starts {
            if let Some(same) = done.iter().position(|p| *p == placement) {
                let (_, end): (Candidate, u64) = candidates[same];
                candidates.push((from, end));
                done.push(placement);
                continue;
            }
            done.push(placement.clone());
            let placed = self.placed(placement, from);
            candidates.push((from, placed.planned.timeline.end_ns));
            if best.as_ref().is_none_or(|b| rank(&placed) < rank(b)) {
                best = Some(placed);
            }
        }
        let mut best = best.unwrap_or_else(|| self.placed(Placement::default(), Candidate::Sum));
        if target.n_devices() > 1 {
            let found = self.placed(self.search(best.placement.clone()), Candidate::Search);
            if rank(&found) < rank(&best) {
                best = found;
            }
            candidates.push((Candidate::Search, best.planned.timeline.end_ns));
        }
        Placed { candidates, ..best }
    }

    /// Moves regions, branches and nodes to other devices as long as the quick simulation ends earlier.
    fn search(&self, mut placement: Placement) -> Placement {
        let mut budget = self.effort.tasks;
        let Some(mut least) = self.quick(&placement, &mut budget) else { return placement };
        loop {
            let before = least;
            for unit in self.units(&placement) {
                for d in self.target.device_ids() {
                    if budget == 0 {
                        return placement;
                    }
                    let Some(moved) = self.moved(&placement, &unit, d) else { continue };
                    let Some(end) = self.quick(&moved, &mut budget) else { continue };
                    if end < least {
                        (least, placement) = (end, moved);
                    }
                }
            }
            if least == before {
                return placement;
            }
        }
    }

    /// Sets of nodes to move together: regions, then branches, then claims, then single nodes, of each kind the longest
    /// first; each set once.
    fn units(&self, placement: &Placement) -> Vec<Vec<usize>> {
        let n = self.graph.nodes.len();
        let device = &placement.device;
        let found = regions(&self.shape.dag, device);
        let mut by_region: Vec<Vec<usize>> = vec![Vec::new(); found.device.len()];
        (0..n).for_each(|v| by_region[found.of[v]].push(v));
        let control_flow = |v: usize| self.graph.nodes[v].control_flow;
        let chains = branches(&self.shape.dag, control_flow, |a, b| device[a] == device[b]).nodes;
        let claims = placement.claims.iter().map(|&c| self.graph.claims[c].nodes.iter().map(|n| n.idx()).collect());
        let mut units = Vec::new();
        for mut kind in [by_region, chains, claims.collect(), (0..n).map(|v| vec![v]).collect()] {
            let ns = |v: &usize| self.graph.nodes[*v].cost_ns[device[*v].idx()].unwrap_or(0);
            let total = |unit: &Vec<usize>| unit.iter().fold(0u64, |sum, v| sum.saturating_add(ns(v)));
            kind.iter_mut().for_each(|unit| unit.sort_unstable());
            kind.sort_by_cached_key(|unit| (std::cmp::Reverse(total(unit)), unit.first().copied()));
            units.append(&mut kind);
        }
        let mut seen = std::collections::BTreeSet::new();
        units.retain(|u| seen.insert(u.clone()));
        units
    }

    fn moved(&self, placement: &Placement, unit: &[usize], to: DeviceId) -> Option<Placement> {
        if unit.iter().all(|&v| placement.device[v] == to) {
            return None;
        }
        let mut device = placement.device.clone();
        for &v in unit {
            let node = &self.graph.nodes[v];
            // In a region, what cannot move stays.
            if node.pin.is_none_or(|pin| pin == to) && (node.cost_ns[to.idx()].is_some() || unit.len() == 1) {
                device[v] = to;
            }
        }
        if device == placement.device {
            return None;
        }
        let claims = if self.graph.claims.is_empty() { vec![] } else { choose_claims(self.graph, self.shape, &device) };
        let moved = Placement { device, claims };
        is_legal(self.graph, self.shape, &moved).then_some(moved)
    }

    /// Simulated end and total time of the tasks, by one scheduler only.
    fn quick(&self, placement: &Placement, budget: &mut u64) -> Option<(u64, u64)> {
        let list = insert(self.graph, self.shape, self.target, placement);
        *budget = budget.saturating_sub(list.tasks.len() as u64 + 1);
        let shards = if self.effort.shards { Shards::WhereIdle } else { Shards::Never };
        let by = Scheduler::List { first: First::CriticalPath, shards };
        let planned = schedule::planned(&list, self.target, by)?;
        Some((planned.timeline.end_ns, total_ns(&list)))
    }
}

fn total_ns(list: &TaskList) -> u64 {
    list.tasks.iter().fold(0, |sum, t| sum.saturating_add(t.cost_ns))
}

/// The earlier end, then the less work.
fn rank(p: &Placed) -> (u64, u64) {
    (p.planned.timeline.end_ns, total_ns(&p.list))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::check::check;
    use crate::plan::testing::{Kit, Random, random_graph, random_target};

    fn end(kit: &Kit, policy: Policy) -> u64 {
        let effort = Effort { tasks: 20_000, shards: true };
        place(&kit.graph, &kit.shape(), &kit.target, policy, effort).planned.timeline.end_ns
    }

    /// planning.md §4: never worse than `priority`, `parallax` or any single device.
    #[test]
    fn makespan_is_never_worse_than_any_other_policy() {
        let mut r = Random(71);
        let (mut best, mut others) = (0, 0);
        for at in 0..1000 {
            let target = random_target(&mut r, 2 + at % 2);
            let n = 1 + r.below(12) as usize;
            let kit = random_graph(&mut r, target, n);
            let shape = kit.shape();
            let effort = Effort { tasks: 1000, shards: true };
            let placed = place(&kit.graph, &shape, &kit.target, Policy::Optimal(Objective::Makespan), effort);
            check(&kit.graph, &kit.target, &placed.list, &placed.planned.schedule).unwrap();
            let ns = placed.planned.timeline.end_ns;
            let single = kit.target.device_ids().map(|d| single_device(&kit.graph, &shape, &kit.target, d));
            let baselines = single.chain([
                priority::place(&kit.graph, &shape, &kit.target),
                parallax::place(&kit.graph, &shape, &kit.target, &Thresholds::default()),
                sum::place(&kit.graph, &shape, &kit.target),
            ]);
            let mut least = u64::MAX;
            for p in baselines {
                let list = insert(&kit.graph, &shape, &kit.target, &p);
                let other = schedule::best(&list, &kit.target, true).timeline.end_ns;
                assert!(ns <= other, "{at}: {ns} against {other}");
                least = least.min(other);
            }
            (best, others) = (best + ns, others + least);
        }
        // The moves are worth something.
        assert!(best * 100 < others * 98, "{best} against {others}");
    }

    #[test]
    fn the_sandwich_by_every_policy() {
        let kit = Kit::sandwich(0, 0);
        assert_eq!(end(&kit, Policy::Priority), 435_000);
        assert_eq!(end(&kit, Policy::Optimal(Objective::Sum)), 435_000);
        assert_eq!(end(&kit, Policy::Optimal(Objective::Makespan)), 435_000);
        let kit = Kit::sandwich(300_000, 0);
        assert_eq!(end(&kit, Policy::Optimal(Objective::Makespan)), 380_000);
    }

    /// Naive delegation is slower than the CPU alone where handshakes are dear; ours never is.
    #[test]
    fn dear_handshakes() {
        let mut kit = Kit::new(2, 1_000);
        let mut v = kit.input(8);
        for i in 0..20 {
            v = kit.node(&[v], &[if i % 2 == 0 { 50 } else { 0 }, 100]);
        }
        kit.output(v);
        assert_eq!(end(&kit, Policy::Parallax), 2_000);
        assert!(end(&kit, Policy::Priority) > 20_000);
        assert_eq!(end(&kit, Policy::Optimal(Objective::Makespan)), 2_000);
    }

    /// Sum puts everything on the faster device; makespan keeps both busy.
    #[test]
    fn two_devices_share_independent_work() {
        let mut kit = Kit::new(2, 10);
        let x = kit.input(2);
        let mut ends = Vec::new();
        for _ in 0..4 {
            let a = kit.node(&[x], &[100, 110]);
            ends.push(kit.node(&[a], &[100, 110]));
        }
        let y = kit.node(&ends, &[1, 1]);
        kit.output(y);
        assert!(end(&kit, Policy::Optimal(Objective::Sum)) > 800);
        assert!(end(&kit, Policy::Optimal(Objective::Makespan)) < 480);
    }
}
