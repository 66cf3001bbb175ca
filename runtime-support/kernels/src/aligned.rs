//! Heap bytes aligned for every kernel.

use crate::ALIGN;
use alloc::vec::Vec;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; ALIGN]);

/// Zeroed bytes on the heap that start on a 64-byte boundary.
pub struct AlignedBytes {
    lines: Vec<Line>,
    bytes: usize,
}

impl AlignedBytes {
    /// This many zero bytes; `None` when the memory is not to be had.
    pub fn zeroed(bytes: usize) -> Option<Self> {
        let n = bytes.div_ceil(ALIGN);
        let mut lines = Vec::new();
        lines.try_reserve_exact(n).ok()?;
        lines.resize(n, Line([0; ALIGN]));
        Some(Self { lines, bytes })
    }

    /// A copy of these bytes; `None` when the memory is not to be had.
    pub fn copy_of(data: &[u8]) -> Option<Self> {
        let mut all = Self::zeroed(data.len())?;
        all.as_mut_slice().copy_from_slice(data);
        Some(all)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `lines` holds at least `bytes` initialised bytes without padding.
        unsafe { core::slice::from_raw_parts(self.lines.as_ptr().cast(), self.bytes) }
    }

    /// The bytes, to change.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; the borrow is unique.
        unsafe { core::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.bytes) }
    }
}

impl PartialEq for AlignedBytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl core::fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}
