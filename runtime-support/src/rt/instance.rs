//! A model's memory and its run.

use super::border::{Element, array_of, slice_of};
use super::{Error, Region};
use core::sync::atomic::AtomicI64;
use kiln_kernels::isa::Isa;
use kiln_kernels::{ALIGN, Cx, RunState};

/// Constant bytes of a model.
pub enum Weights {
    /// In the binary.
    Embedded(&'static [u8]),
    /// Read from a file.
    #[cfg(feature = "std")]
    Loaded(kiln_kernels::AlignedBytes),
}

impl Weights {
    /// Reads the weights file.
    #[cfg(feature = "std")]
    pub fn from_file(path: &'static str, bytes: usize) -> Result<Self, Error> {
        use std::io::Read;
        let wrong = |_| Error::Weights { path };
        let mut file = std::fs::File::open(path).map_err(wrong)?;
        if file.metadata().map_err(wrong)?.len() != bytes as u64 {
            return Err(Error::Weights { path });
        }
        let mut all = kiln_kernels::AlignedBytes::zeroed(bytes).ok_or(Error::OutOfMemory { bytes })?;
        file.read_exact(all.as_mut_slice()).map_err(wrong)?;
        Ok(Self::Loaded(all))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Embedded(b) => b,
            #[cfg(feature = "std")]
            Self::Loaded(b) => b.as_slice(),
        }
    }
}

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
    kiln_kernels::AlignedBytes::zeroed(bytes).map(Arena::Owned)
}

#[cfg(not(feature = "alloc"))]
fn heap(_: usize) -> Option<Arena<'static>> {
    None
}

/// A model's arena, weights and instruction set.
pub struct Instance<'a> {
    arena: Arena<'a>,
    weights: Weights,
    isa: Isa,
    state: RunState,
}

impl Instance<'static> {
    /// With an arena from the heap. Without feature `alloc` there is none: [`Error::OutOfMemory`].
    pub fn on_heap(arena_bytes: usize, weights: Weights) -> Result<Self, Error> {
        let arena = heap(arena_bytes).ok_or(Error::OutOfMemory { bytes: arena_bytes })?;
        Ok(Self { arena, weights, isa: Isa::detect(), state: RunState::new() })
    }
}

impl<'a> Instance<'a> {
    /// With the caller's memory as arena.
    pub fn in_memory(arena: &'a mut [u8], arena_bytes: usize, weights: Weights) -> Result<Self, Error> {
        if arena.len() < arena_bytes || (arena_bytes > 0 && !arena.as_ptr().addr().is_multiple_of(ALIGN)) {
            return Err(Error::Arena { needed: arena_bytes, given: arena.len() });
        }
        Ok(Self { arena: Arena::Borrowed(arena), weights, isa: Isa::detect(), state: RunState::new() })
    }

    /// Runs the steps. The first two regions are filled in here: arena and weights.
    pub fn run<'r>(
        &'r mut self,
        regions: &mut [Region<'r>],
        extents: &[AtomicI64],
        nodes: &'static [(u32, &'static str)],
        steps: fn(&Cx<'_>),
    ) -> Result<(), Error> {
        self.run_with(regions, extents, nodes, &mut |cx| steps(cx))
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
        let Self { arena, weights, isa, state } = self;
        if let [a, w, ..] = regions {
            *a = Region::write(arena.bytes_mut());
            *w = Region::read(weights.bytes());
        }
        state.clear();
        let cx = Cx::new(regions, *isa, state, extents);
        steps(&cx);
        match state.fault() {
            None => Ok(()),
            Some((step, fault)) => {
                let at = nodes.partition_point(|(first, _)| *first <= step);
                let node = at.checked_sub(1).and_then(|i| nodes.get(i)).map_or("", |(_, name)| name);
                Err(Error::Node { node, fault })
            }
        }
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
