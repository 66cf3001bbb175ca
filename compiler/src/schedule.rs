//! The schedule: what each stream runs, in which order, and where streams wait for each other.
//!
//! Plain data that the planner of streams makes, memory planning and emission follow, and the verifier checks.
//! Invariants: every step of the program stands on one stream, once; a wait names another stream.

use crate::plan::id::{DeviceId, EventId, TaskId};
use crate::plan::insert::Resource;
use crate::plan::order::StepAt;
use crate::plan::schedule::{self as planner, Part};
use std::collections::BTreeSet;

/// One step of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamStep {
    /// Runs a step of the program.
    Run(usize),
    /// Goes on once another stream has done its first `count` runs.
    Wait {
        /// The other stream.
        stream: usize,
        /// How many of its runs must be done.
        count: usize,
    },
}

/// What each stream does, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The streams; at least one.
    pub streams: Vec<Vec<StreamStep>>,
    /// What the target says the run takes, in nanoseconds.
    pub predicted_ns: u64,
    /// The same for one stream.
    pub sequential_ns: u64,
    /// Begin and end of every step of the program, as predicted, in nanoseconds.
    pub times: Vec<(u64, u64)>,
}

impl Schedule {
    /// One stream that runs all steps in order; `costs` are their predicted times.
    pub fn one(costs: &[u64]) -> Self {
        let mut now = 0u64;
        let mut next = |ns: &u64| {
            let start = now;
            now = now.saturating_add(*ns);
            (start, now)
        };
        let times: Vec<_> = costs.iter().map(&mut next).collect();
        let streams = vec![(0..costs.len()).map(StreamStep::Run).collect()];
        Self { streams, predicted_ns: now, sequential_ns: now, times }
    }

    /// The counts of each stream that others wait for: after so many runs it says how far it is.
    pub fn signals(&self) -> Vec<BTreeSet<usize>> {
        let mut all = vec![BTreeSet::new(); self.streams.len()];
        for step in self.streams.iter().flatten() {
            if let StreamStep::Wait { stream, count } = *step {
                all[stream].insert(count);
            }
        }
        all
    }

    /// Number of waits.
    pub fn n_waits(&self) -> usize {
        self.streams.iter().flatten().filter(|s| matches!(s, StreamStep::Wait { .. })).count()
    }

    /// The same with events in place of counts, and where each step of the program stands: what the planner's partial
    /// order works on.
    pub(crate) fn events(&self) -> (planner::Schedule, Vec<StepAt>) {
        let mut n_events = 0;
        let mut signals: Vec<std::collections::BTreeMap<usize, EventId>> = Vec::new();
        for counts in self.signals() {
            let event = |count| {
                n_events += 1;
                (count, EventId::new(n_events - 1))
            };
            signals.push(counts.into_iter().map(event).collect());
        }
        let n_steps = self.streams.iter().flatten().filter(|s| matches!(s, StreamStep::Run(_))).count();
        let mut at = vec![StepAt { stream: 0, step: 0 }; n_steps];
        let mut streams = Vec::new();
        for (s, steps) in self.streams.iter().enumerate() {
            let (mut out, mut done) = (Vec::new(), 0);
            for step in steps {
                match *step {
                    StreamStep::Run(i) => {
                        at[i] = StepAt { stream: s, step: out.len() };
                        out.push(planner::Step::Launch(Part { task: TaskId::new(i), shard: 0, of: 1 }));
                        done += 1;
                        out.extend(signals[s].get(&done).map(|&e| planner::Step::Signal(e)));
                    }
                    StreamStep::Wait { stream, count } => {
                        let event = signals[stream].get(&count);
                        out.extend(event.map(|&event| planner::Step::Wait { event, latency_ns: 0 }));
                    }
                }
            }
            streams.push(planner::Stream { on: Resource::Device(DeviceId(0)), steps: out });
        }
        (planner::Schedule { streams, n_events }, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StreamStep::{Run, Wait};

    #[test]
    fn one_stream_has_no_waits() {
        let one = Schedule::one(&[3, 4]);
        assert_eq!(one.streams, [[Run(0), Run(1)]]);
        assert_eq!((one.predicted_ns, one.times), (7, vec![(0, 3), (3, 7)]));
    }

    #[test]
    fn waits_become_events() {
        let streams = vec![vec![Run(0), Run(2)], vec![Run(1), Wait { stream: 0, count: 1 }, Run(3)]];
        let schedule = Schedule { streams, ..Schedule::default() };
        assert_eq!(schedule.signals(), [BTreeSet::from([1]), BTreeSet::new()]);
        let (events, at) = schedule.events();
        let order = crate::plan::order::HappensBefore::new(&events).unwrap();
        let before = |a: usize, b: usize| order.before(at[a], at[b]);
        assert!(before(0, 3) && before(0, 2) && before(1, 3));
        assert!(!before(2, 3) && !before(0, 1) && !before(3, 2));
    }
}
