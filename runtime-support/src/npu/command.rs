//! The command vocabulary: transfers, kernel launches, signals and waits.
//!
//! In: offsets that a plan decided. Invariant: plain data, valid for any number of runs.

use kiln_kernels::Cx;

/// A place of the device's memory or of one of the host's regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Byte offset in the device's memory.
    Sram(u64),
    /// In the host's memory.
    Host {
        /// Region index, as in the module's descriptors.
        region: u32,
        /// Byte offset.
        off: u64,
    },
}

/// A transfer of `rows` rows of `row_bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dma {
    /// Step number, for errors.
    pub step: u32,
    /// First row's source.
    pub from: Place,
    /// First row's destination.
    pub to: Place,
    /// Rows.
    pub rows: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes from one row to the next at the source.
    pub from_stride: usize,
    /// Bytes from one row to the next at the destination.
    pub to_stride: usize,
    /// Whether the value changes devices: then the handshake is paid as well.
    pub handshake: bool,
}

impl Dma {
    /// A transfer of contiguous bytes.
    pub const fn flat(step: u32, from: Place, to: Place, bytes: usize) -> Self {
        Self { step, from, to, rows: 1, row_bytes: bytes, from_stride: bytes, to_stride: bytes, handshake: false }
    }

    /// Bytes moved.
    pub const fn bytes(&self) -> usize {
        self.rows * self.row_bytes
    }
}

/// A kernel to run: its call is baked in, the context has the device's memory as its only region.
pub type Launch<'p> = &'p (dyn Fn(&Cx<'_>) + Sync);

/// One command of an engine's queue.
#[derive(Clone, Copy)]
pub enum Command<'p> {
    /// Moves bytes.
    Dma(Dma),
    /// Runs a kernel.
    Launch {
        /// Step number, for errors.
        step: u32,
        /// The kernel's call.
        run: Launch<'p>,
        /// Time it takes on the device, in nanoseconds.
        ns: u64,
    },
    /// Everything before it on this queue is done.
    Signal(u32),
    /// Goes on once the event was signalled in this run.
    Wait(u32),
}

/// A queue for each engine: loading, computing, storing (the last is empty where loads and stores share an engine).
#[derive(Clone, Copy)]
pub struct Program<'p> {
    n_events: u32,
    queues: [&'p [Command<'p>]; 3],
    bases: [u32; 4],
}

impl<'p> Program<'p> {
    /// A program whose events are numbered below `n_events`. Use [`npu_program!`](crate::npu_program).
    ///
    /// # Safety
    /// The queues and the host's signals order all accesses: no write to a byte of the device's memory or of a region is
    /// concurrent with another access to it. This is what Kiln's plan verifier proves.
    #[doc(hidden)]
    pub const unsafe fn new(n_events: u32, queues: [&'p [Command<'p>]; 3]) -> Self {
        Self { n_events, queues, bases: [0; 4] }
    }

    /// With the event that says "stream `s` has done its first `n` steps" numbered `bases[s] + n`: how the host's kernels
    /// name events ([`Cx::wait`], [`Cx::signal`]). Stream 0 is the host, the engines follow.
    #[must_use]
    pub const fn with_bases(mut self, bases: [u32; 4]) -> Self {
        self.bases = bases;
        self
    }

    /// The event of a stream's first `count` steps; one that is not there for a stream that is not.
    pub(super) fn event_of(&self, stream: u32, count: u32) -> u32 {
        self.bases.get(stream as usize).map_or(u32::MAX, |base| base.saturating_add(count))
    }

    /// Number of events.
    pub const fn n_events(&self) -> u32 {
        self.n_events
    }

    /// An engine's queue.
    pub(super) const fn queue(&self, engine_idx: usize) -> &'p [Command<'p>] {
        self.queues[engine_idx]
    }
}
