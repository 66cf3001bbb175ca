//! The threads of a model with several streams: one for each stream but the first, which runs on the caller's thread.
//!
//! Threads are made with the model and joined when it is dropped. [`Workers::run`] hands them the run's memory, runs
//! stream 0 itself and returns only after every stream has ended, whatever happens: a step that fails or panics poisons
//! the run, every wait sees that, and all streams end early. No locks, no allocation in a run.

use super::Stream;
use super::events::{ENDED, Hub, LAST_EPOCH, at, epoch_of};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicI64;
use kiln_kernels::isa::Isa;
use kiln_kernels::{Cx, Events, Fault, Region, RunState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle, Thread};

/// More streams than this run merged.
const MAX_STREAMS: usize = 64;

/// How often a waiting stream looks before it sleeps, with a core for every stream.
const SPINS: u32 = 4000;
/// The same with fewer cores than streams: whoever waits takes the core from who works.
const SPINS_CROWDED: u32 = 20;

/// What a run works on, as all its streams see it.
pub(super) struct Job<'r> {
    pub(super) regions: &'r [Region<'r>],
    pub(super) isa: Isa,
    pub(super) state: &'r RunState,
    pub(super) dims: &'r [AtomicI64],
}

/// A job without its lifetime, and who gave it.
struct Posted {
    job: *const Job<'static>,
    caller: Thread,
}

struct Shared {
    hub: Hub,
    posted: UnsafeCell<Option<Posted>>,
    /// The workers' threads, for waking them; set once all are there.
    threads: OnceLock<Vec<Thread>>,
    streams: &'static [Stream],
}

// SAFETY: `posted` is written by the caller while no worker is in a run (each has ended the former epoch), and read by
// workers after they have seen the next epoch begin; the hub orders the two. The job behind the pointer is shared by
// reference only, and its regions' bytes are ordered by the plan (see `Region::share`).
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it belongs to one thread.
unsafe impl Send for Shared {}

/// One stream's view of the others in one run.
struct Link<'a> {
    shared: &'a Shared,
    me: usize,
    epoch: u64,
    caller: &'a Thread,
}

impl Link<'_> {
    fn advance(&self, count: u32) {
        self.shared.hub.advance(self.me, at(self.epoch, count), |stream| match stream {
            0 => self.caller.unpark(),
            _ => self.shared.unpark(stream),
        });
    }
}

impl Events for Link<'_> {
    fn signal(&self, count: u32) {
        self.advance(count);
    }

    fn wait(&self, stream: u32, count: u32) {
        self.shared.hub.wait(self.me, stream as usize, at(self.epoch, count), thread::park);
    }
}

impl Shared {
    fn unpark(&self, stream: usize) {
        if let Some(thread) = self.threads.get().and_then(|all| all.get(stream - 1)) {
            thread.unpark();
        }
    }

    /// One stream of one run, from its first step to its end.
    fn stream(&self, link: &Link<'_>, job: &Job<'_>) {
        let cx = Cx::new(job.regions, job.isa, job.state, job.dims).on_stream(link);
        caught(&cx, || {
            (self.streams[link.me])(&cx);
        });
        link.advance(ENDED);
    }

    fn worker(&self, me: usize) {
        for epoch in 1.. {
            self.hub.wait(me, 0, at(epoch, 0), thread::park);
            if epoch_of(self.hub.done(0)) == LAST_EPOCH {
                return;
            }
            // SAFETY: the epoch has begun, so the caller has posted its job, and it does not touch it again before this
            // worker has ended the epoch.
            let Some(posted) = (unsafe { &*self.posted.get() }) else { return };
            // Once this stream has ended, the caller may go and post another job: what is needed after that is copied.
            let caller = posted.caller.clone();
            // SAFETY: the job lives until `Workers::run` returns, which waits for this stream's end.
            let job = unsafe { &*posted.job };
            self.stream(&Link { shared: self, me, epoch, caller: &caller }, job);
        }
    }
}

/// Runs steps; a panic in one poisons the run.
pub(super) fn caught(cx: &Cx<'_>, steps: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(steps)) {
        // Dropping a payload may panic in turn.
        core::mem::forget(payload);
        cx.fail(Fault::Panicked);
    }
}

/// A model's threads.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    epoch: u64,
}

impl Workers {
    /// Starts the threads; `None` where one stream after the other is as good: one stream, one core, no threads here.
    pub(super) fn start(streams: &'static [Stream]) -> Option<Self> {
        let cores = thread::available_parallelism().map_or(1, core::num::NonZero::get);
        if !(2..=MAX_STREAMS).contains(&streams.len()) || cores < 2 {
            return None;
        }
        let spins = if streams.len() <= cores { SPINS } else { SPINS_CROWDED };
        let hub = Hub::new(streams.len(), spins);
        let shared = Arc::new(Shared { hub, posted: UnsafeCell::new(None), threads: OnceLock::new(), streams });
        let mut workers = Self { shared, threads: Vec::new(), epoch: 0 };
        for me in 1..streams.len() {
            let shared = workers.shared.clone();
            let name = alloc::format!("kiln-stream-{me}");
            // What was started is ended by dropping `workers`.
            workers.threads.push(thread::Builder::new().name(name).spawn(move || shared.worker(me)).ok()?);
        }
        let _ = workers.shared.threads.set(workers.threads.iter().map(|t| t.thread().clone()).collect());
        // A thread's own handle is made when it is first asked for: now, not in a run.
        let _ = thread::current();
        Some(workers)
    }

    /// Runs all streams once; false if the epochs are used up (after 2^44 runs).
    pub(super) fn run(&mut self, job: &Job<'_>) -> bool {
        if self.epoch + 1 >= LAST_EPOCH {
            return false;
        }
        self.epoch += 1;
        let (shared, epoch, caller) = (&*self.shared, self.epoch, thread::current());
        let posted = Posted { job: core::ptr::from_ref(job).cast(), caller: caller.clone() };
        // SAFETY: every worker has ended the former epoch (the wait below, in the former run), and reads this only after
        // the new epoch has begun.
        unsafe { *shared.posted.get() = Some(posted) };
        let link = Link { shared, me: 0, epoch, caller: &caller };
        link.advance(0);
        shared.stream(&link, job);
        for stream in 1..shared.streams.len() {
            shared.hub.wait(0, stream, at(epoch, ENDED), thread::park);
        }
        true
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.hub.advance(0, u64::MAX, |_| {});
        for t in &self.threads {
            t.thread().unpark();
        }
        for t in self.threads.drain(..) {
            let _ = t.join();
        }
    }
}
