//! Events and lanes: who waits for what, and how a sleeping thread is woken.
//!
//! An event holds the number of the last run in which it was signalled and the device time of the signal. A lane is a thread
//! that may wait; it spins, then says that it parks, looks again, and parks. A signal is stored first, then the lanes are
//! looked at: with a full fence between the two on both sides, one of them sees the other.
//! Invariant: an event's number only grows.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::boxed::Box;
use std::sync::OnceLock;
use std::thread::{self, Thread};

/// Rounds of looking before a thread parks.
const SPINS: u32 = 2_000;

#[derive(Default)]
struct Event {
    run: AtomicU64,
    at_ns: AtomicU64,
}

#[derive(Default)]
struct Lane {
    parked: AtomicBool,
    thread: OnceLock<Thread>,
}

/// All events of a device and the threads that wait for them.
pub(super) struct Events {
    events: Box<[Event]>,
    lanes: Box<[Lane]>,
}

impl Events {
    /// This many events and lanes.
    pub(super) fn new(n_events: usize, n_lanes: usize) -> Self {
        Self {
            events: (0..n_events).map(|_| Event::default()).collect(),
            lanes: (0..n_lanes).map(|_| Lane::default()).collect(),
        }
    }

    /// Says which thread a lane is: once, by that thread.
    pub(super) fn register(&self, lane_idx: usize) {
        let _ = self.lanes[lane_idx].thread.set(thread::current());
    }

    /// Signals an event; `host` is the thread of the lane that has no fixed one.
    pub(super) fn signal(&self, event: usize, run: u64, at_ns: u64, host: &Thread) {
        if let Some(e) = self.events.get(event) {
            e.at_ns.store(at_ns, Ordering::Relaxed);
            e.run.store(run, Ordering::Release);
        }
        self.wake(host);
    }

    /// Wakes every lane that parks.
    pub(super) fn wake(&self, host: &Thread) {
        fence(Ordering::SeqCst);
        for lane in &self.lanes {
            if lane.parked.load(Ordering::Relaxed) {
                lane.thread.get().unwrap_or(host).unpark();
            }
        }
    }

    /// Waits until the event is signalled in this run or `give_up` says so: the device time of the signal, or nothing.
    pub(super) fn wait(&self, event: usize, run: u64, lane_idx: usize, give_up: impl Fn() -> bool) -> Option<u64> {
        let event = self.events.get(event)?;
        let look = || (event.run.load(Ordering::Acquire) >= run).then(|| event.at_ns.load(Ordering::Relaxed));
        for _ in 0..SPINS {
            if let Some(at_ns) = look() {
                return Some(at_ns);
            }
            if give_up() {
                return None;
            }
            core::hint::spin_loop();
        }
        let parked = &self.lanes[lane_idx].parked;
        loop {
            parked.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let seen = look();
            if seen.is_some() || give_up() {
                parked.store(false, Ordering::Relaxed);
                return seen;
            }
            thread::park();
        }
    }
}
