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
        self.shared.hub.wait(self.me, stream as usize, at(self.epoch, count), thread::yield_now, thread::park);
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
            self.hub.wait(me, 0, at(epoch, 0), thread::yield_now, thread::park);
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
    cx.end();
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
        if cores < 2 { None } else { Self::threads(streams, cores) }
    }

    /// The same for a number of cores.
    fn threads(streams: &'static [Stream], cores: usize) -> Option<Self> {
        if !(2..=MAX_STREAMS).contains(&streams.len()) {
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
            shared.hub.wait(0, stream, at(epoch, ENDED), thread::yield_now, thread::park);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Error, Instance, Region, Weights, bytes_of};
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};
    use kiln_kernels::{Binary, BinaryOp, Operand, binary_i32};

    /// Steps of each stream.
    const STEPS: usize = 40;
    const LANES: usize = 16;
    const BYTES: usize = LANES * 4;

    /// What stream 1 does in its step 5.
    static MISHAP: AtomicU32 = AtomicU32::new(0);
    /// The tests share `MISHAP`: one at a time.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// Stream `s` of `n`: each step adds what this stream and the next one made in the step before.
    fn step(cx: &Cx<'_>, n: usize, s: usize, row: usize) {
        let place = |row: usize, s: usize| match row {
            0 => Operand::at(2, (s * BYTES) as u64, BYTES),
            _ => Operand::at(0, (((row - 1) * n + s) * BYTES) as u64, BYTES),
        };
        let (mut dims, mut strides) = ([1; 8], [0; 8]);
        (dims[7], strides[7]) = (LANES, 1);
        let (a, b, y) = (place(row, s), place(row, (s + 1) % n), place(row + 1, s));
        binary_i32(
            cx.at((row * n + s) as u32),
            &Binary { a, b, y, dims, a_strides: strides, b_strides: strides, op: BinaryOp::Add },
        );
        if (s, row) == (1, 5) {
            match MISHAP.load(Ordering::Relaxed) {
                1 => cx.fail(Fault::IndexOutOfRange),
                2 => panic!("a kernel that panics"),
                _ => {}
            }
        }
    }

    fn stream<const N: usize, const S: usize>(cx: &Cx<'_>) -> Option<()> {
        for row in 0..STEPS {
            if row > 0 {
                cx.wait(((S + 1) % N) as u32, row as u32)?;
            }
            step(cx, N, S, row);
            cx.signal(row as u32 + 1);
        }
        Some(())
    }

    fn merged<const N: usize>(cx: &Cx<'_>) {
        (0..STEPS).for_each(|row| (0..N).for_each(|s| step(cx, N, s, row)));
    }

    static TWO: &[Stream] = &[stream::<2, 0>, stream::<2, 1>];
    static FOUR: &[Stream] = &[stream::<4, 0>, stream::<4, 1>, stream::<4, 2>, stream::<4, 3>];
    static EIGHT: &[Stream] = &[
        stream::<8, 0>,
        stream::<8, 1>,
        stream::<8, 2>,
        stream::<8, 3>,
        stream::<8, 4>,
        stream::<8, 5>,
        stream::<8, 6>,
        stream::<8, 7>,
    ];
    static NODES: &[(u32, &str)] = &[(0, "first"), (11, "eleventh"), (12, "others")];

    fn instance(streams: &'static [Stream]) -> Instance<'static> {
        let bytes = streams.len() * STEPS * BYTES;
        let mut instance = Instance::on_heap(bytes, Weights::Embedded(&[])).unwrap();
        // Threads also where the machine has one core only.
        instance.workers = Workers::threads(streams, 2);
        instance
    }

    fn run(model: &mut Instance<'_>, n: usize, input: &[i32], steps: fn(&Cx<'_>)) -> Result<std::vec::Vec<i32>, Error> {
        let mut regions = [Region::read(&[]), Region::read(&[]), Region::read(bytes_of(input))];
        model.run(&mut regions, &[], NODES, steps)?;
        let last = model.raw_output(((STEPS - 1) * n * BYTES) as u64, n * BYTES)?;
        Ok(last.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    fn expected(n: usize, input: &[i32]) -> std::vec::Vec<i32> {
        let mut now = input.to_vec();
        for _ in 0..STEPS {
            let next = |i: usize| now[i].wrapping_add(now[(i + LANES) % (n * LANES)]);
            now = (0..n * LANES).map(next).collect();
        }
        now
    }

    fn many_runs(n_runs: i32) {
        let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        MISHAP.store(0, Ordering::Relaxed);
        for (streams, merged) in [(TWO, merged::<2> as fn(&Cx<'_>)), (FOUR, merged::<4>), (EIGHT, merged::<8>)] {
            let n = streams.len();
            let mut model = instance(streams);
            for i in 0..n_runs {
                let input: std::vec::Vec<i32> = (0..(n * LANES) as i32).map(|x| x * 7 + i).collect();
                assert_eq!(run(&mut model, n, &input, merged).unwrap(), expected(n, &input), "run {i} on {n} streams");
            }
        }
    }

    #[test]
    fn streams_do_what_one_thread_does() {
        many_runs(200);
    }

    #[test]
    #[ignore = "takes minutes on a busy machine"]
    fn ten_thousand_runs() {
        many_runs(10_000);
    }

    #[test]
    fn a_run_that_fails_or_panics_is_an_error_and_the_next_one_is_right() {
        let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        let input = [3; 4 * LANES];
        let mut model = instance(FOUR);
        for i in 0..60 {
            MISHAP.store(i % 3, Ordering::Relaxed);
            let got = run(&mut model, 4, &input, merged::<4>);
            let fault = [None, Some(Fault::IndexOutOfRange), Some(Fault::Panicked)][i as usize % 3];
            match fault {
                None => assert_eq!(got.unwrap(), expected(4, &input)),
                // Step 21 is stream 1's step 5.
                Some(fault) => assert_eq!(got.unwrap_err(), Error::Node { node: "others", fault }),
            }
        }
        MISHAP.store(2, Ordering::Relaxed);
        let mut merged_only = Instance::on_heap(4 * STEPS * BYTES, Weights::Embedded(&[])).unwrap();
        let fault = Fault::Panicked;
        let got = run(&mut merged_only, 4, &input, merged::<4>);
        assert_eq!(got.unwrap_err(), Error::Node { node: "others", fault });
        MISHAP.store(0, Ordering::Relaxed);
        assert_eq!(run(&mut merged_only, 4, &input, merged::<4>).unwrap(), expected(4, &input));
    }

    #[test]
    fn dropping_the_model_ends_its_threads() {
        for _ in 0..20 {
            let workers = Workers::threads(EIGHT, 2).unwrap();
            let shared = Arc::downgrade(&workers.shared);
            drop(workers);
            assert!(shared.upgrade().is_none(), "a thread is left");
        }
    }

    #[test]
    fn a_model_may_move_to_another_thread_between_runs() {
        let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        MISHAP.store(0, Ordering::Relaxed);
        let input = [5; 2 * LANES];
        let mut model = instance(TWO);
        for _ in 0..10 {
            let (moved, got) = thread::spawn(move || {
                let got = run(&mut model, 2, &input, merged::<2>);
                (model, got)
            })
            .join()
            .unwrap();
            model = moved;
            assert_eq!(got.unwrap(), expected(2, &input));
        }
    }
}
