//! How long each node takes, run by run: feature `profile`.
//!
//! A stream's clock runs from the moment a step begins to the next step, a wait, or the stream's end; what is left out is
//! waiting for other streams. Times are added up over runs and streams.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use std::vec::Vec;

/// Nanoseconds by node, over all runs so far.
#[derive(Debug, Default)]
pub struct Times {
    nodes: &'static [(u32, &'static str)],
    ns: Vec<AtomicU64>,
    runs: u64,
}

impl Times {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self { nodes: &[], ns: Vec::new(), runs: 0 }
    }

    /// A run begins. The first one, or one of another schedule, allocates and starts from zero.
    pub(crate) fn begin(&mut self, nodes: &'static [(u32, &'static str)]) {
        if !core::ptr::eq(self.nodes, nodes) {
            *self = Self { nodes, ns: nodes.iter().map(|_| AtomicU64::new(0)).collect(), runs: 0 };
        }
        self.runs += 1;
    }

    /// Number of runs counted.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Every node's name and the nanoseconds it has taken in all runs.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (&'static str, u64)> {
        self.nodes.iter().zip(&self.ns).map(|((_, name), ns)| (*name, ns.load(Ordering::Relaxed)))
    }

    fn add(&self, step: u32, ns: u64) {
        let at = self.nodes.partition_point(|(first, _)| *first <= step);
        if let Some(total) = at.checked_sub(1).and_then(|i| self.ns.get(i)) {
            total.fetch_add(ns, Ordering::Relaxed);
        }
    }
}

/// One stream's clock.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    times: &'a Times,
    running: Cell<Option<(u32, Instant)>>,
}

impl<'a> Watch<'a> {
    pub(crate) fn of(times: &'a Times) -> Self {
        Self { times, running: Cell::new(None) }
    }

    /// A step begins: the one before, if one was running, is over.
    pub(crate) fn start(&self, step: u32) {
        let now = Instant::now();
        self.end(now);
        self.running.set(Some((step, now)));
    }

    /// No step runs from here on.
    pub(crate) fn stop(&self) {
        self.end(Instant::now());
    }

    fn end(&self, now: Instant) {
        if let Some((step, since)) = self.running.take() {
            self.times.add(step, u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX));
        }
    }
}
