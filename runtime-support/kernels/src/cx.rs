//! What a kernel call runs in: memory regions, the instruction set, extents found at run time, and the first fault.
//!
//! In: descriptors with baked locations. Out: slices handed to safe kernel bodies.
//! Invariant: `Cx::check` accepted a descriptor's operands (bounds, alignment, no write overlapping another
//! operand except where the kernel declares that it works in place) before any slice of them exists.

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::{Isa, Operand};

/// Alignment of every region's start and of every buffer in it, in bytes (one cache line, one AVX-512 register).
pub const ALIGN: usize = 64;

/// One contiguous memory that descriptors point into: the arena, the weights, or one of the caller's inputs.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    ptr: *mut u8,
    bytes: usize,
    writable: bool,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> Region<'a> {
    /// A region that kernels may only read.
    pub const fn read(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr().cast_mut(), bytes: bytes.len(), writable: false, life: PhantomData }
    }

    /// A region that kernels may read and write.
    pub const fn write(bytes: &'a mut [u8]) -> Self {
        Self { ptr: bytes.as_mut_ptr(), bytes: bytes.len(), writable: true, life: PhantomData }
    }

    /// The same memory, seen from a further stream.
    ///
    /// # Safety
    /// The caller promises that the streams' kernel calls are ordered so that no write to a byte is concurrent
    /// with another access to it: what Kiln's plan verifier proves of a schedule.
    pub const unsafe fn share(&self) -> Self {
        *self
    }

    /// Length in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// How a kernel uses an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read only.
    Read,
    /// Read; may be exactly the memory of the first written operand (element-wise, in place).
    Alias,
    /// Written in full or in part; never read before it is written.
    Write,
    /// Read and written.
    Update,
}

/// One operand as [`Cx::check`] sees it.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Region index.
    pub mem: u32,
    /// Byte offset in the region.
    pub off: u64,
    /// Length in bytes; zero for an absent optional operand.
    pub bytes: usize,
    /// Required alignment in bytes.
    pub align: usize,
    /// How it is used.
    pub role: Role,
}

impl Access {
    /// An operand's access; an absent one reaches nothing.
    #[doc(hidden)]
    pub const fn of(operand: Option<&Operand>, align: usize, role: Role) -> Self {
        match operand {
            Some(o) => Self { mem: o.mem, off: o.off, bytes: o.bytes, align, role },
            None => Self { mem: 0, off: 0, bytes: 0, align: 1, role: Role::Read },
        }
    }
}

/// Why a kernel call could not do its work. The first one of a run is kept and becomes the error of `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Fault {
    /// A descriptor points outside its memory, is misaligned or overlaps: a bug in the compiler.
    Descriptor = 1,
    /// An index operand holds a value outside the axis it selects from.
    IndexOutOfRange = 2,
    /// An extent or a value found at run time lies outside of the bounds it was planned for.
    BoundExceeded = 3,
    /// Extents found at run time do not fit together.
    ShapeMismatch = 4,
    /// A kernel panicked.
    Panicked = 5,
    /// Integer division by zero.
    DivisionByZero = 6,
    /// The kernel does not know the format of what it was given, or was built without the feature for it.
    Unsupported = 7,
    /// An optional value, or a value of another type, is not there.
    ValueMissing = 8,
    /// A text is no number.
    NotANumber = 9,
    /// There is no memory for a string or a sequence.
    OutOfMemory = 10,
    /// A value is not the one that the module was compiled for.
    ValueDiffers = 11,
}

impl Fault {
    /// The fault with this number.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Descriptor,
            2 => Self::IndexOutOfRange,
            3 => Self::BoundExceeded,
            4 => Self::ShapeMismatch,
            5 => Self::Panicked,
            6 => Self::DivisionByZero,
            7 => Self::Unsupported,
            8 => Self::ValueMissing,
            9 => Self::NotANumber,
            10 => Self::OutOfMemory,
            11 => Self::ValueDiffers,
            _ => return None,
        })
    }

    /// What went wrong, in words.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Descriptor => "descriptor outside its memory (a compiler bug)",
            Self::IndexOutOfRange => "an index is out of range",
            Self::BoundExceeded => "a size or value is outside of the bounds it was planned for",
            Self::ShapeMismatch => "sizes found at run time do not fit together",
            Self::Panicked => "a kernel panicked",
            Self::DivisionByZero => "integer division by zero",
            Self::Unsupported => "a format that is not supported, or a feature that kiln was built without",
            Self::ValueMissing => "a value is absent or of another type",
            Self::NotANumber => "a text is no number",
            Self::OutOfMemory => "no memory for a string or a sequence",
            Self::ValueDiffers => "the value is not the one that was compiled for",
        }
    }
}

/// State shared by all streams of one run.
#[derive(Debug, Default)]
pub struct RunState {
    /// `step << 8 | fault` of the first failed call, 0 while all is well.
    fault: AtomicU64,
    #[cfg(feature = "profile")]
    times: crate::profile::Times,
}

impl RunState {
    /// A state without a fault.
    pub const fn new() -> Self {
        Self {
            fault: AtomicU64::new(0),
            #[cfg(feature = "profile")]
            times: crate::profile::Times::new(),
        }
    }

    /// Before a run: forgets the fault, and says which node each step belongs to (its first step, in order).
    pub fn begin(&mut self, nodes: &'static [(u32, &'static str)]) {
        self.clear();
        #[cfg(feature = "profile")]
        self.times.begin(nodes);
        #[cfg(not(feature = "profile"))]
        let _ = nodes;
    }

    /// How long the nodes have taken.
    #[cfg(feature = "profile")]
    pub fn times(&self) -> &crate::profile::Times {
        &self.times
    }

    /// The first fault and the step it happened in.
    pub fn fault(&self) -> Option<(u32, Fault)> {
        let v = self.fault.load(Ordering::Acquire);
        Fault::from_code((v & 0xff) as u8).map(|f| ((v >> 8) as u32, f))
    }

    /// Keeps the fault, unless one is kept already.
    pub fn poison(&self, step: u32, fault: Fault) {
        let v = (u64::from(step) << 8) | fault as u64;
        let _ = self.fault.compare_exchange(0, v, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Forgets the fault, before the next run.
    pub fn clear(&self) {
        self.fault.store(0, Ordering::Release);
    }
}

/// How one stream of a run and the others wait for each other. Steps are counted from the stream's beginning.
pub trait Events {
    /// This stream has done its first `count` steps.
    fn signal(&self, count: u32);
    /// Returns once that stream has done its first `count` steps, or has ended.
    fn wait(&self, stream: u32, count: u32);
}

/// What one stream's kernel calls run in.
pub struct Cx<'a> {
    regions: &'a [Region<'a>],
    isa: Isa,
    state: &'a RunState,
    dims: &'a [AtomicI64],
    events: Option<&'a dyn Events>,
    #[cfg(feature = "alloc")]
    objects: crate::objects::Objects<'a>,
    step: Cell<u32>,
    #[cfg(feature = "profile")]
    watch: crate::profile::Watch<'a>,
}

impl<'a> Cx<'a> {
    /// A context over the regions; `dims` are the slots of extents found at run time.
    pub fn new(regions: &'a [Region<'a>], isa: Isa, state: &'a RunState, dims: &'a [AtomicI64]) -> Self {
        Self {
            regions,
            isa,
            state,
            dims,
            events: None,
            #[cfg(feature = "alloc")]
            objects: crate::objects::Objects::default(),
            step: Cell::new(0),
            #[cfg(feature = "profile")]
            watch: crate::profile::Watch::of(&state.times),
        }
    }

    /// With objects: strings, sequences, optional values.
    #[cfg(feature = "alloc")]
    #[must_use]
    pub fn with_objects(mut self, objects: crate::objects::Objects<'a>) -> Self {
        self.objects = objects;
        self
    }

    /// The object in a slot, to read; `None` for an unknown slot or one that is being written.
    #[cfg(feature = "alloc")]
    pub fn object(&self, slot: usize) -> Option<crate::objects::ObjectRef<'_>> {
        self.objects.read(slot)
    }

    /// As [`Self::object`], with an inner `None` for the slot of an absent operand ([`crate::NO_SLOT`]).
    #[cfg(feature = "alloc")]
    pub fn opt_object(&self, slot: usize) -> Option<Option<crate::objects::ObjectRef<'_>>> {
        if slot == crate::NO_SLOT { Some(None) } else { self.objects.read(slot).map(Some) }
    }

    /// The object in a slot, to write; `None` for one of the caller's, an unknown slot, or one in use.
    #[cfg(feature = "alloc")]
    pub fn object_mut(&self, slot: usize) -> Option<core::cell::RefMut<'_, crate::objects::Object>> {
        self.objects.write(slot)
    }

    /// As one of several streams. Without events all streams run as one, in an order that fits.
    #[must_use]
    pub fn on_stream(mut self, events: &'a dyn Events) -> Self {
        self.events = Some(events);
        self
    }

    /// Tells the other streams that this one has done its first `count` steps.
    pub fn signal(&self, count: u32) {
        if let Some(events) = self.events {
            events.signal(count);
        }
    }

    /// Waits until a stream has done its first `count` steps. `None` where the run has failed: this stream ends here,
    /// since what it waited for may be missing.
    pub fn wait(&self, stream: u32, count: u32) -> Option<()> {
        if let Some(events) = self.events
            && !self.failed()
        {
            #[cfg(feature = "profile")]
            self.watch.stop();
            events.wait(stream, count);
        }
        (!self.failed()).then_some(())
    }

    /// The instruction set kernels use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Names the step that runs from here on, for error messages.
    pub fn at(&self, step: u32) -> &Self {
        self.step.set(step);
        #[cfg(feature = "profile")]
        self.watch.start(step);
        self
    }

    /// The stream's last step is over.
    pub fn end(&self) {
        #[cfg(feature = "profile")]
        self.watch.stop();
    }

    /// Marks the run as failed in the present step.
    pub fn fail(&self, fault: Fault) {
        self.state.poison(self.step.get(), fault);
    }

    /// Whether a call has failed in this run.
    pub fn failed(&self) -> bool {
        self.state.fault().is_some()
    }

    /// An extent found at run time.
    pub fn dim(&self, slot: usize) -> usize {
        self.dims.get(slot).map_or(0, |d| usize::try_from(d.load(Ordering::Relaxed)).unwrap_or(0))
    }

    /// An extent known only at run time, as a signed number to reckon with.
    pub fn extent(&self, slot: usize) -> isize {
        self.dims.get(slot).map_or(0, |d| isize::try_from(d.load(Ordering::Relaxed)).unwrap_or(isize::MAX))
    }

    /// Stores an extent found at run time; a negative number (an index from the end) in two's complement.
    pub fn set_dim(&self, slot: usize, value: usize) {
        if let Some(d) = self.dims.get(slot) {
            d.store(value as isize as i64, Ordering::Relaxed);
        }
    }

    /// Checks all operands of one call: inside their regions, aligned, writes only to writable regions, and no write
    /// overlaps another operand, except an [`Role::Alias`] operand that is exactly the first written one.
    pub fn check(&self, operands: &[Access]) -> bool {
        let mut first_write: Option<usize> = None;
        for (i, a) in operands.iter().enumerate() {
            if a.bytes == 0 {
                continue;
            }
            let Some(region) = self.regions.get(a.mem as usize) else { return false };
            let Ok(off) = usize::try_from(a.off) else { return false };
            let inside = off.checked_add(a.bytes).is_some_and(|end| end <= region.bytes);
            if !inside || (region.ptr as usize).wrapping_add(off) % a.align != 0 {
                return false;
            }
            if matches!(a.role, Role::Write | Role::Update) {
                if !region.writable {
                    return false;
                }
                first_write.get_or_insert(i);
            }
        }
        let start = |a: &Access| self.regions[a.mem as usize].ptr as usize + a.off as usize;
        for (i, w) in operands.iter().enumerate() {
            if w.bytes == 0 || !matches!(w.role, Role::Write | Role::Update) {
                continue;
            }
            let ws = start(w);
            for (j, a) in operands.iter().enumerate() {
                if i == j || a.bytes == 0 {
                    continue;
                }
                let s = start(a);
                let disjoint = s + a.bytes <= ws || ws + w.bytes <= s;
                let in_place = a.role == Role::Alias && first_write == Some(i) && s == ws && a.bytes == w.bytes;
                if !disjoint && !in_place {
                    return false;
                }
            }
        }
        true
    }

    /// Where an operand starts; dangling but aligned for an empty one.
    #[doc(hidden)]
    pub fn address<T>(&self, mem: u32, off: u64, bytes: usize) -> *mut T {
        if bytes == 0 {
            return core::ptr::NonNull::<T>::dangling().as_ptr();
        }
        self.regions[mem as usize].ptr.wrapping_add(off as usize).cast()
    }
}
