//! The device: its memory, its threads, and a run seen from the host.
//!
//! Invariants: while no run is on, all engines wait for the start of the next one; `run` returns after all have drained.

use super::command::Program;
use super::config::Config;
use super::engine::Engine;
use super::event::Events;
use crate::Error;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, Ordering};
use kiln_kernels::isa::Isa;
use kiln_kernels::{AlignedBytes, Cx, Events as StreamEvents, Fault, Region, RunState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle, Thread};
use std::time::Instant;
use std::vec::Vec;

/// The compute engine's position among the engines.
pub(super) const COMPUTE: usize = 1;
/// The storing engine's.
pub(super) const STORE: usize = 2;
/// Engines: loading, computing, storing.
const N_ENGINES: usize = 3;
/// The host's lane comes after the engines'.
const HOST: usize = N_ENGINES;
/// The event that starts a run; the engines' "drained" events come before it, a program's events behind it.
const START: usize = N_ENGINES;

/// The event by which an engine says that it is through with the run.
pub(super) fn drained(engine_idx: usize) -> usize {
    engine_idx
}

/// The device's clock.
pub(super) struct Clock(Instant);

impl Clock {
    /// Nanoseconds since the device was switched on.
    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What engines need to know of the run at hand.
pub(super) struct Current<'r> {
    pub(super) program: Program<'r>,
    pub(super) regions: &'r [Region<'r>],
    pub(super) host: Thread,
}

/// What the host and the engines share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) events: Events,
    pub(super) state: RunState,
    pub(super) clock: Clock,
    /// The device's memory; `memory` owns it.
    pub(super) sram: Region<'static>,
    current: AtomicPtr<Current<'static>>,
    quit: AtomicBool,
    launches: AtomicU64,
    bytes: AtomicU64,
}

// SAFETY: the region is only ever used through `share`, under the programs' promise that accesses are ordered; all else
// is atomic or constant.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing is bound to a thread.
unsafe impl Send for Shared {}

impl Shared {
    /// The run at hand.
    ///
    /// # Safety
    /// A run has started and will not end while the result is used.
    pub(super) unsafe fn current(&self) -> &Current<'_> {
        // SAFETY: `run` stored the pointer before the start's release, and keeps what it points to until all have drained.
        unsafe { &*self.current.load(Ordering::Acquire).cast() }
    }

    /// A program's event among all events.
    pub(super) fn event(&self, event: u32) -> usize {
        START + 1 + event as usize
    }

    /// Waits for the start of a run; nothing when the device goes away.
    pub(super) fn wait_for_start(&self, run: u64, lane_idx: usize) -> Option<u64> {
        let quit = || self.quit.load(Ordering::Acquire);
        self.events.wait(START, run, lane_idx, quit).filter(|_| !quit())
    }

    pub(super) fn count_launch(&self) {
        self.launches.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// What the device has done since it was switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Kernels run by the compute engine.
    pub launches: u64,
    /// Bytes moved by the DMA engines.
    pub dma_bytes: u64,
}

/// A simulated accelerator, switched on: its threads run until it is dropped.
pub struct Npu {
    shared: Arc<Shared>,
    /// Owns the bytes behind `shared.sram`: not touched while the threads live.
    _memory: AlignedBytes,
    threads: Vec<JoinHandle<()>>,
    run: u64,
}

impl Npu {
    /// Switches a device on: allocates its memory and starts its threads.
    pub fn new(config: Config) -> Result<Self, Error> {
        let none = Error::OutOfMemory { bytes: config.sram_bytes };
        let mut memory = AlignedBytes::zeroed(config.sram_bytes).ok_or(none)?;
        let bytes = memory.as_mut_slice();
        // SAFETY: the bytes live on the heap until `_memory` is dropped, which is after the threads were joined, and are
        // used through this region only.
        let bytes: &'static mut [u8] = unsafe { &mut *ptr::from_mut(bytes) };
        let shared = Arc::new(Shared {
            config,
            events: Events::new(START + 1 + config.n_events as usize, N_ENGINES + 1),
            state: RunState::new(),
            clock: Clock(Instant::now()),
            sram: Region::write(bytes),
            current: AtomicPtr::new(ptr::null_mut()),
            quit: AtomicBool::new(false),
            launches: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        let mut npu = Self { shared, _memory: memory, threads: Vec::new(), run: 0 };
        for (engine_idx, name) in ["npu load", "npu compute", "npu store"].into_iter().enumerate() {
            let shared = Arc::clone(&npu.shared);
            let serve = move || Engine { shared: &shared, engine_idx }.serve();
            let thread = thread::Builder::new().name(name.into()).spawn(serve).map_err(|_| none)?;
            npu.threads.push(thread);
        }
        Ok(npu)
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// What it has done so far.
    pub fn counters(&self) -> Counters {
        let load = |a: &AtomicU64| a.load(Ordering::Relaxed);
        Counters { launches: load(&self.shared.launches), dma_bytes: load(&self.shared.bytes) }
    }

    /// Runs a program once, and `host` beside it on this thread. Returns when all engines have drained: the first fault of
    /// the run, and the step it happened in, as an error.
    pub fn run(
        &mut self,
        program: Program<'_>,
        regions: &[Region<'_>],
        host: &mut dyn FnMut(&Host<'_>),
    ) -> Result<(), (u32, Fault)> {
        self.run_with(program, regions, &[], host)
    }

    /// As [`Npu::run`]; `dims` are the slots of extents that the host's kernels find.
    pub fn run_with(
        &mut self,
        program: Program<'_>,
        regions: &[Region<'_>],
        dims: &[AtomicI64],
        host: &mut dyn FnMut(&Host<'_>),
    ) -> Result<(), (u32, Fault)> {
        let shared = &*self.shared;
        if program.n_events() > shared.config.n_events {
            return Err((0, Fault::Descriptor));
        }
        self.run += 1;
        shared.state.clear();
        let current = Current { program, regions, host: thread::current() };
        shared.current.store(ptr::from_ref(&current).cast_mut().cast(), Ordering::Release);
        shared.events.signal(START, self.run, shared.clock.now_ns(), &current.host);
        let link = Link { shared, program, run: self.run, thread: &current.host };
        // The program's promise covers what the host does between its signals and waits.
        let seen = Host { link: &link, cx: Cx::new(regions, Isa::detect(), &shared.state, dims).on_stream(&link) };
        if catch_unwind(AssertUnwindSafe(|| host(&seen))).is_err() {
            shared.state.poison(0, Fault::Panicked);
        }
        if shared.state.fault().is_some() {
            shared.events.wake(&current.host);
        }
        for engine_idx in 0..N_ENGINES {
            shared.events.wait(drained(engine_idx), self.run, HOST, || false);
        }
        shared.current.store(ptr::null_mut(), Ordering::Release);
        shared.state.fault().map_or(Ok(()), Err)
    }
}

impl Drop for Npu {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::Release);
        self.shared.events.signal(START, u64::MAX, 0, &thread::current());
        for thread in self.threads.drain(..) {
            // A thread's panic was a fault of its run already.
            let _ = thread.join();
        }
    }
}

/// The host's part in the events of one run.
struct Link<'r> {
    shared: &'r Shared,
    program: Program<'r>,
    run: u64,
    thread: &'r Thread,
}

impl Link<'_> {
    fn signal_event(&self, event: u32) {
        let (event, now_ns) = (self.shared.event(event), self.shared.clock.now_ns());
        self.shared.events.signal(event, self.run, now_ns, self.thread);
    }

    fn wait_event(&self, event: u32) -> bool {
        let failed = || self.shared.state.fault().is_some();
        !failed() && self.shared.events.wait(self.shared.event(event), self.run, HOST, failed).is_some()
    }
}

impl StreamEvents for Link<'_> {
    fn signal(&self, count: u32) {
        self.signal_event(self.program.event_of(0, count));
    }

    fn wait(&self, stream: u32, count: u32) {
        self.wait_event(self.program.event_of(stream, count));
    }
}

/// A run seen from the host: its kernels' context, and its part in the program's events.
pub struct Host<'r> {
    link: &'r Link<'r>,
    cx: Cx<'r>,
}

impl<'r> Host<'r> {
    /// The context of kernels that run on the host, as stream 0.
    pub fn cx(&self) -> &Cx<'r> {
        &self.cx
    }

    /// Everything that the host did before is done.
    pub fn signal(&self, event: u32) {
        self.link.signal_event(event);
    }

    /// Waits for an event. `false` when the run has failed: then the host should return.
    pub fn wait(&self, event: u32) -> bool {
        self.link.wait_event(event)
    }
}
