//! Discrete-event simulation: when each step of a schedule runs.
//!
//! In: tasks with their times, and steps. Out: a [`Timeline`], or nothing if streams wait for each other for ever.
//! Streams run their steps in order; a wait ends once its event was signalled and the latency has passed.

use super::{Schedule, Step};
use crate::plan::insert::TaskList;

/// Begin and end of each step, by stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// `[stream][step]`: begin and end.
    pub steps: Vec<Vec<(u64, u64)>>,
    /// End of the last step.
    pub end_ns: u64,
}

/// Runs the steps.
pub fn simulate(list: &TaskList, schedule: &Schedule) -> Option<Timeline> {
    let mut signalled: Vec<Option<u64>> = vec![None; schedule.n_events];
    let mut blocked: Vec<Vec<usize>> = vec![Vec::new(); schedule.n_events];
    let mut steps: Vec<Vec<(u64, u64)>> = schedule.streams.iter().map(|s| Vec::with_capacity(s.steps.len())).collect();
    let mut open: Vec<usize> = (0..schedule.streams.len()).rev().collect();
    while let Some(s) = open.pop() {
        while let Some(step) = schedule.streams[s].steps.get(steps[s].len()) {
            let now = steps[s].last().map_or(0, |&(_, end)| end);
            let end = match *step {
                Step::Signal(e) => {
                    signalled[e.idx()] = Some(now);
                    open.append(&mut blocked[e.idx()]);
                    now
                }
                Step::Wait { event, latency_ns } => match signalled[event.idx()] {
                    Some(at) => now.max(at.saturating_add(latency_ns)),
                    None => {
                        blocked[event.idx()].push(s);
                        break;
                    }
                },
                Step::Launch(_) | Step::Copy(_) | Step::Dma(_) => {
                    let ns = step.part().map_or(0, |part| part.ns(&list.tasks[part.task.idx()]));
                    now.saturating_add(ns)
                }
            };
            steps[s].push((now, end));
        }
    }
    let complete = steps.iter().zip(&schedule.streams).all(|(done, s)| done.len() == s.steps.len());
    let end_ns = steps.iter().filter_map(|s| s.last()).map(|&(_, end)| end).max().unwrap_or(0);
    complete.then_some(Timeline { steps, end_ns })
}

#[cfg(test)]
mod tests {
    use super::super::{Part, Stream};
    use super::*;
    use crate::plan::id::{DeviceId, EventId, TaskId};
    use crate::plan::insert::{Resource, Task, TaskKind};

    fn list(costs: &[u64]) -> TaskList {
        let kind = TaskKind::Launch { nodes: vec![], claim: None };
        let on = Resource::Device(DeviceId(0));
        let task =
            |&cost_ns| Task { kind: kind.clone(), on, cost_ns, launch_ns: 2, splits: 4, reads: vec![], writes: vec![] };
        TaskList { tasks: costs.iter().map(task).collect(), buffers: vec![] }
    }

    fn stream(steps: Vec<Step>) -> Stream {
        Stream { on: Resource::Device(DeviceId(0)), steps }
    }

    #[test]
    fn waits_shards_and_latency() {
        let part = |task, shard, of| Step::Launch(Part { task: TaskId(task), shard, of });
        let wait = Step::Wait { event: EventId(0), latency_ns: 3 };
        let a = stream(vec![part(0, 0, 2), Step::Signal(EventId(0))]);
        let b = stream(vec![part(0, 1, 2), wait, part(1, 0, 1)]);
        let schedule = Schedule { streams: vec![b, a], n_events: 1 };
        let t = simulate(&list(&[11, 10]), &schedule).unwrap();
        // 2 + ceil(9 / 2).
        assert_eq!(t.steps[0], [(0, 7), (7, 10), (10, 20)]);
        assert_eq!(t.steps[1], [(0, 7), (7, 7)]);
        assert_eq!(t.end_ns, 20);
    }

    #[test]
    fn streams_that_wait_for_each_other_are_a_deadlock() {
        let wait = |e| Step::Wait { event: EventId(e), latency_ns: 0 };
        let a = stream(vec![wait(0), Step::Signal(EventId(1))]);
        let b = stream(vec![wait(1), Step::Signal(EventId(0))]);
        assert_eq!(simulate(&list(&[]), &Schedule { streams: vec![a, b], n_events: 2 }), None);
        assert_eq!(simulate(&list(&[]), &Schedule::default()), Some(Timeline::default()));
    }
}
