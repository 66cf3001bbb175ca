//! A model's memory, its threads and its run.

use super::border::{Element, array_of, slice_of};
#[cfg(feature = "std")]
use super::workers::{Job, Workers, caught};
use super::{Error, Profile, Region, Stream, Weights};
#[cfg(feature = "std")]
use crate::npu::{self, Npu};
use core::sync::atomic::AtomicI64;
use kiln_kernels::isa::Isa;
use kiln_kernels::{ALIGN, Cx, Reserved, RunState};

enum Arena<'a> {
    Borrowed(&'a mut [u8]),
    #[cfg(feature = "alloc")]
    Owned(kiln_kernels::AlignedBytes),
}

impl Arena<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(b) => b,
            #[cfg(feature = "alloc")]
            Self::Owned(b) => b.as_slice(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Borrowed(b) => b,
            #[cfg(feature = "alloc")]
            Self::Owned(b) => b.as_mut_slice(),
        }
    }
}

#[cfg(feature = "alloc")]
fn heap(bytes: usize) -> Option<Arena<'static>> {
    let memory = kiln_kernels::AlignedBytes::zeroed(bytes)?;
    #[cfg(feature = "std")]
    super::pages::fresh(&memory);
    Some(Arena::Owned(memory))
}

#[cfg(not(feature = "alloc"))]
fn heap(_: usize) -> Option<Arena<'static>> {
    None
}

/// An output that is an input of the next run: two pieces of memory behind the arena that change places after each run, or
/// one in which a run writes over what it replaces.
#[derive(Clone, Copy, Debug)]
pub struct StateInfo {
    /// Region of the input.
    pub input: usize,
    /// Region of the output.
    pub output: usize,
    /// Size of each piece in bytes, a multiple of 64.
    pub bytes: usize,
    /// Whether there is one piece, which is the output's region; the input's is empty.
    pub in_place: bool,
}

impl StateInfo {
    fn memory_bytes(&self) -> usize {
        if self.in_place { self.bytes } else { 2 * self.bytes }
    }
}

/// The states of a model.
#[derive(Clone, Copy, Debug)]
struct States {
    /// Where their memory begins.
    start: usize,
    all: &'static [StateInfo],
    /// Whether the second piece of each holds the input.
    swapped: bool,
}

impl States {
    /// Where the piece that holds the input of state `k` lies.
    fn offset(&self, k: usize) -> Option<usize> {
        let before: usize = self.all.get(..k)?.iter().map(StateInfo::memory_bytes).sum();
        let state = self.all.get(k)?;
        Some(self.start + before + if self.swapped && !state.in_place { state.bytes } else { 0 })
    }
}

/// Puts arena and weights into the first two regions, and the states into theirs.
fn fill<'r>(regions: &mut [Region<'r>], arena: &'r mut Arena<'_>, weights: &'r Weights, states: &States) {
    let bytes = arena.bytes_mut();
    let (main, mut rest) = bytes.split_at_mut(states.start.min(bytes.len()));
    for s in states.all {
        if rest.len() < s.memory_bytes() {
            return;
        }
        let (first, tail) = rest.split_at_mut(s.bytes);
        let (second, tail) = tail.split_at_mut(s.memory_bytes() - s.bytes);
        rest = tail;
        let (input, output) = if states.swapped && !s.in_place { (second, first) } else { (first, second) };
        let output = if s.in_place {
            input
        } else {
            if let Some(region) = regions.get_mut(s.input) {
                *region = Region::read(input);
            }
            output
        };
        if let Some(region) = regions.get_mut(s.output) {
            *region = Region::write(output);
        }
    }
    if let [a, w, ..] = regions {
        *a = Region::write(main);
        *w = Region::read(weights.bytes());
    }
}

/// How a run ended; after a good one the states change places.
fn outcome(state: &RunState, nodes: &'static [(u32, &'static str)], states: &mut States) -> Result<(), Error> {
    if let Some((step, fault)) = state.fault() {
        return Err(Error::Node { node: node_of(nodes, step), fault });
    }
    states.swapped = !states.swapped;
    Ok(())
}

/// The node that a step belongs to.
fn node_of(nodes: &'static [(u32, &'static str)], step: u32) -> &'static str {
    let at = nodes.partition_point(|(first, _)| *first <= step);
    at.checked_sub(1).and_then(|i| nodes.get(i)).map_or("", |(_, name)| name)
}

/// A panic cannot be caught without `std`.
#[cfg(not(feature = "std"))]
fn caught(cx: &Cx<'_>, steps: impl FnOnce()) {
    steps();
    cx.end();
}

/// A model's arena, weights, instruction set and threads.
pub struct Instance<'a> {
    arena: Arena<'a>,
    weights: Weights,
    isa: Isa,
    state: RunState,
    #[cfg(feature = "alloc")]
    objects: alloc::vec::Vec<kiln_kernels::Object>,
    states: States,
    #[cfg(feature = "std")]
    pub(super) workers: Option<Workers>,
    #[cfg(feature = "std")]
    npu: Option<(Npu, npu::Program<'static>)>,
}

impl Instance<'static> {
    /// With an arena from the heap. Without feature `alloc` there is none: [`Error::OutOfMemory`].
    pub fn on_heap(arena_bytes: usize, weights: Weights) -> Result<Self, Error> {
        let arena = heap(arena_bytes).ok_or(Error::OutOfMemory { bytes: arena_bytes })?;
        Ok(Self::new(arena, weights))
    }

    /// As [`Instance::on_heap`], with a thread for each stream but the first. Without feature `std`, with one core, or
    /// where the system has no threads, all streams run merged on the caller's thread.
    pub fn on_streams(arena_bytes: usize, weights: Weights, streams: &'static [Stream]) -> Result<Self, Error> {
        let instance = Self::on_heap(arena_bytes, weights)?;
        #[cfg(feature = "std")]
        let instance = Self { workers: Workers::start(streams), ..instance };
        #[cfg(not(feature = "std"))]
        let _ = streams;
        Ok(instance)
    }
}

impl<'a> Instance<'a> {
    /// With the caller's memory as arena.
    pub fn in_memory(arena: &'a mut [u8], arena_bytes: usize, weights: Weights) -> Result<Self, Error> {
        if arena.len() < arena_bytes || (arena_bytes > 0 && !arena.as_ptr().addr().is_multiple_of(ALIGN)) {
            return Err(Error::Arena { needed: arena_bytes, given: arena.len() });
        }
        Ok(Self::new(Arena::Borrowed(arena), weights))
    }

    fn new(arena: Arena<'a>, weights: Weights) -> Self {
        Self {
            arena,
            weights,
            isa: Isa::detect(),
            state: RunState::new(),
            #[cfg(feature = "alloc")]
            objects: alloc::vec::Vec::new(),
            states: States { start: usize::MAX, all: &[], swapped: false },
            #[cfg(feature = "std")]
            workers: None,
            #[cfg(feature = "std")]
            npu: None,
        }
    }

    /// With states, whose memory begins at byte `start` of the arena's.
    #[must_use]
    pub fn with_states(self, start: usize, all: &'static [StateInfo]) -> Self {
        Self { states: States { start, all, swapped: false }, ..self }
    }

    /// Where the memory of a state lies: what the last run wrote, and the next one reads.
    pub fn state(&self, k: usize) -> u64 {
        self.states.offset(k).map_or(u64::MAX, |off| off as u64)
    }

    /// Replaces what the next run reads of a state.
    pub fn set_state(&mut self, k: usize, bytes: &[u8]) -> Result<(), Error> {
        let (room, wrong) = self.state_mut(k, bytes.len())?;
        room.get_mut(..bytes.len()).ok_or(wrong)?.copy_from_slice(bytes);
        Ok(())
    }

    /// The same for a state that has room between its rows, given as a tensor of this shape and element size.
    pub fn set_reserved(
        &mut self,
        k: usize,
        bytes: &[u8],
        (reserved, shape, element): (Reserved, &[usize], usize),
    ) -> Result<(), Error> {
        let (room, wrong) = self.state_mut(k, bytes.len())?;
        reserved.spread(bytes, shape, element, room).ok_or(wrong)
    }

    /// The memory that the next run reads of a state, and the error for `given` bytes that do not fit.
    fn state_mut(&mut self, k: usize, given: usize) -> Result<(&mut [u8], Error), Error> {
        let info = self.states.all.get(k).zip(self.states.offset(k));
        let Some((info, off)) = info else { return Err(Error::Output) };
        let wrong = Error::Input { input_idx: info.input, expected: info.bytes, given };
        let room = self.arena.bytes_mut().get_mut(off..off + info.bytes).ok_or(wrong)?;
        Ok((room, wrong))
    }

    /// All states zero.
    pub fn clear_states(&mut self) {
        if let Some(all) = self.arena.bytes_mut().get_mut(self.states.start..) {
            all.fill(0);
        }
    }

    /// How long the nodes have taken in the runs so far.
    pub fn profile(&self) -> Profile<'_> {
        Profile::of(&self.state)
    }

    /// With a simulated NPU that runs this program beside the steps of the CPU: allocates its memory, starts its threads.
    #[cfg(feature = "std")]
    pub fn with_npu(self, config: npu::Config, program: npu::Program<'static>) -> Result<Self, Error> {
        Ok(Self { npu: Some((Npu::new(config)?, program)), ..self })
    }

    /// What the NPU has done so far, if there is one.
    #[cfg(feature = "std")]
    pub fn npu_counters(&self) -> Option<npu::Counters> {
        self.npu.as_ref().map(|(npu, _)| npu.counters())
    }

    #[cfg(feature = "std")]
    fn run_npu<'r>(
        &'r mut self,
        regions: &mut [Region<'r>],
        extents: &[AtomicI64],
        nodes: &'static [(u32, &'static str)],
        steps: fn(&Cx<'_>),
    ) -> Result<(), Error> {
        let Self { arena, weights, npu, states, .. } = self;
        fill(regions, arena, weights, states);
        let Some((npu, program)) = npu else { return Ok(()) };
        let run = npu.run_with(*program, regions, extents, &mut |host| steps(host.cx()));
        run.map_err(|(step, fault)| Error::Node { node: node_of(nodes, step), fault })
    }

    /// Runs the steps: on the model's threads if it has some, else `steps`, all streams merged. The first two regions are
    /// filled in here: arena and weights.
    pub fn run<'r>(
        &'r mut self,
        regions: &mut [Region<'r>],
        extents: &[AtomicI64],
        nodes: &'static [(u32, &'static str)],
        steps: fn(&Cx<'_>),
    ) -> Result<(), Error> {
        #[cfg(feature = "std")]
        if self.npu.is_some() {
            return self.run_npu(regions, extents, nodes, steps);
        }
        #[cfg(feature = "std")]
        if self.workers.is_some() {
            return self.run_streams(regions, extents, nodes, steps);
        }
        self.run_with(regions, extents, nodes, &mut |cx| caught(cx, || steps(cx)))
    }

    #[cfg(feature = "std")]
    fn run_streams<'r>(
        &'r mut self,
        regions: &mut [Region<'r>],
        extents: &[AtomicI64],
        nodes: &'static [(u32, &'static str)],
        steps: fn(&Cx<'_>),
    ) -> Result<(), Error> {
        let Self { arena, weights, isa, state, states, workers, .. } = self;
        fill(regions, arena, weights, states);
        state.begin(nodes);
        let job = Job { regions, isa: *isa, state, dims: extents };
        if !workers.as_mut().is_some_and(|w| w.run(&job)) {
            let cx = Cx::new(regions, *isa, state, extents);
            caught(&cx, || steps(&cx));
        }
        outcome(state, nodes, states)
    }

    /// Runs one step after the other and calls `each` with the number of every one that is done.
    pub fn run_each<'r>(
        &'r mut self,
        regions: &mut [Region<'r>],
        extents: &[AtomicI64],
        nodes: &'static [(u32, &'static str)],
        steps: &[fn(&Cx<'_>)],
        each: &mut dyn FnMut(usize),
    ) -> Result<(), Error> {
        self.run_with(regions, extents, nodes, &mut |cx| {
            for (i, step) in steps.iter().enumerate() {
                step(cx);
                each(i);
            }
        })
    }

    fn run_with<'r>(
        &'r mut self,
        regions: &mut [Region<'r>],
        extents: &[AtomicI64],
        nodes: &'static [(u32, &'static str)],
        steps: &mut dyn FnMut(&Cx<'_>),
    ) -> Result<(), Error> {
        let Self { arena, weights, isa, state, states, .. } = self;
        fill(regions, arena, weights, states);
        state.begin(nodes);
        let cx = Cx::new(regions, *isa, state, extents);
        steps(&cx);
        outcome(state, nodes, states)
    }

    /// Runs a model with objects: slots `0 ..` are the caller's, `n_own` more the model's, emptied before the run.
    #[cfg(feature = "alloc")]
    pub fn run_objects<'r>(
        &'r mut self,
        regions: &mut [Region<'r>],
        extents: &[AtomicI64],
        nodes: &'static [(u32, &'static str)],
        (given, n_own): (&[&kiln_kernels::Object], usize),
        steps: &mut dyn FnMut(&Cx<'_>),
    ) -> Result<(), Error> {
        use core::cell::RefCell;
        let Self { arena, weights, isa, state, states, objects, .. } = self;
        fill(regions, arena, weights, states);
        state.begin(nodes);
        objects.clear();
        let own: alloc::vec::Vec<_> = (0..n_own).map(|_| RefCell::default()).collect();
        let cx = Cx::new(regions, *isa, state, extents).with_objects(kiln_kernels::Objects { given, own: &own });
        caught(&cx, || steps(&cx));
        outcome(state, nodes, states)?;
        objects.extend(own.into_iter().map(RefCell::into_inner));
        Ok(())
    }

    /// An output that is an object, by its number among the model's own.
    #[cfg(feature = "alloc")]
    pub fn object(&self, own: usize) -> Result<&kiln_kernels::Object, Error> {
        self.objects.get(own).ok_or(Error::Output)
    }

    /// An output in the arena.
    pub fn output<T: Element, const N: usize>(&self, off: u64) -> Result<&[T; N], Error> {
        array_of(self.raw_output(off, N * size_of::<T>())?).ok_or(Error::Output)
    }

    /// An output of run-time extents in the arena.
    pub fn output_slice<T: Element>(&self, off: u64, n: usize) -> Result<&[T], Error> {
        let bytes = n.checked_mul(size_of::<T>()).ok_or(Error::Output)?;
        slice_of(self.raw_output(off, bytes)?).ok_or(Error::Output)
    }

    /// An output's bytes.
    pub fn raw_output(&self, off: u64, bytes: usize) -> Result<&[u8], Error> {
        let start = usize::try_from(off).map_err(|_| Error::Output)?;
        let end = start.checked_add(bytes).ok_or(Error::Output)?;
        if bytes == 0 {
            // An empty slice must be aligned too.
            return Ok(&self.arena.bytes()[..0]);
        }
        self.arena.bytes().get(start..end).ok_or(Error::Output)
    }
}
