//! What `Model::profile` gives.

use core::marker::PhantomData;
use kiln_kernels::RunState;

/// How long each node has taken in the runs so far, over all streams, waiting left out. Empty without the feature `profile`,
/// with which a run reads the clock once a step. Steps on a device are not in it.
#[derive(Clone, Copy, Debug)]
pub struct Profile<'a> {
    #[cfg(feature = "profile")]
    times: &'a kiln_kernels::profile::Times,
    of: PhantomData<&'a RunState>,
}

impl<'a> Profile<'a> {
    #[cfg(feature = "profile")]
    pub(super) fn of(state: &'a RunState) -> Self {
        Self { times: state.times(), of: PhantomData }
    }

    #[cfg(not(feature = "profile"))]
    pub(super) fn of(_: &'a RunState) -> Self {
        Self { of: PhantomData }
    }

    /// Number of runs.
    pub fn runs(&self) -> u64 {
        #[cfg(feature = "profile")]
        return self.times.runs();
        #[cfg(not(feature = "profile"))]
        0
    }

    /// Each ONNX node's name, in the order of the schedule, and the nanoseconds of all runs together. A node whose calls stand
    /// apart comes more than once.
    pub fn nodes(&self) -> impl Iterator<Item = (&'static str, u64)> + use<'a> {
        #[cfg(feature = "profile")]
        return self.times.nodes();
        #[cfg(not(feature = "profile"))]
        core::iter::empty()
    }
}

#[cfg(all(test, feature = "profile"))]
mod tests {
    use crate::rt::{Instance, Region, Weights};
    use kiln_kernels::Cx;
    use std::thread::sleep;
    use std::time::Duration;

    static NODES: &[(u32, &str)] = &[(0, "first"), (2, "second"), (3, "first")];

    fn steps(cx: &Cx<'_>) {
        for step in [0, 1, 2, 3] {
            cx.at(step);
            sleep(Duration::from_millis(if step == 2 { 20 } else { 2 }));
        }
    }

    #[test]
    fn every_node_has_its_steps_time() {
        let mut instance = Instance::on_heap(64, Weights::Embedded(&[])).unwrap();
        for runs in 1..=3u64 {
            instance.run(&mut [Region::read(&[]), Region::read(&[])], &[], NODES, steps).unwrap();
            let profile = instance.profile();
            assert_eq!(profile.runs(), runs);
            let found: std::vec::Vec<_> = profile.nodes().collect();
            assert_eq!(found.iter().map(|(name, _)| *name).collect::<std::vec::Vec<_>>(), ["first", "second", "first"]);
            for ((_, ns), ms) in found.iter().zip([4, 20, 2]) {
                assert!(*ns >= runs * ms * 1_000_000, "{found:?}");
            }
        }
    }
}
