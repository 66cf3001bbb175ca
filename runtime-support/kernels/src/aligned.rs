//! Heap bytes aligned for every kernel.

use crate::ALIGN;
use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::ptr::NonNull;

/// The boundary for this many bytes: what would fill a quarter of a large page starts on the boundary of one.
const fn boundary(bytes: usize) -> usize {
    if cfg!(all(feature = "std", target_os = "linux")) && bytes >= AlignedBytes::LARGE_PAGE / 4 {
        AlignedBytes::LARGE_PAGE
    } else {
        ALIGN
    }
}

/// Zeroed bytes on the heap that start on a 64-byte boundary.
pub struct AlignedBytes {
    /// What was allocated; dangling where nothing was.
    memory: NonNull<u8>,
    /// Its size: [`AlignedBytes::layout`] of `bytes`.
    bytes: usize,
}

// SAFETY: the bytes are owned, as those of a `Vec<u8>`.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above; a shared borrow only reads.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Bytes of a large page, where the system has such and is asked for them (`std`'s Linux).
    pub const LARGE_PAGE: usize = 2 << 20;

    /// This many zero bytes; `None` when the memory is not to be had.
    ///
    /// Large memory is not touched here: the system has it zeroed, where an allocation with a greater alignment than the
    /// usual one would be zeroed by hand. So a piece of the usual alignment with room to start on a boundary is taken.
    pub fn zeroed(bytes: usize) -> Option<Self> {
        if bytes == 0 {
            return Some(Self { memory: NonNull::dangling(), bytes });
        }
        // SAFETY: the layout's size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(Self::layout(bytes)?) })?;
        Some(Self { memory, bytes })
    }

    /// The bytes with room to start on their boundary, and to end on one; what is never touched takes no memory.
    fn layout(bytes: usize) -> Option<Layout> {
        let boundary = boundary(bytes);
        Layout::from_size_align(bytes.checked_next_multiple_of(boundary)?.checked_add(boundary)?, 1).ok()
    }

    /// A copy of these bytes; `None` when the memory is not to be had.
    pub fn copy_of(data: &[u8]) -> Option<Self> {
        let mut all = Self::zeroed(data.len())?;
        all.as_mut_slice().copy_from_slice(data);
        Some(all)
    }

    /// The first byte on a boundary.
    fn start(&self) -> *mut u8 {
        let memory = self.memory.as_ptr();
        match self.bytes {
            0 => core::ptr::without_provenance_mut(ALIGN),
            bytes => memory.wrapping_add(memory.addr().wrapping_neg() % boundary(bytes)),
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes begin less than a boundary behind the start of an allocation that is longer by one.
        unsafe { core::slice::from_raw_parts(self.start(), self.bytes) }
    }

    /// Bytes from the start on that are the allocation's: the last boundary behind its end.
    pub fn room(&self) -> usize {
        self.bytes.next_multiple_of(boundary(self.bytes))
    }

    /// The bytes, to change.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; the borrow is unique.
        unsafe { core::slice::from_raw_parts_mut(self.start(), self.bytes) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if let (Some(layout), 1..) = (Self::layout(self.bytes), self.bytes) {
            // SAFETY: `zeroed` allocated it with this layout, and this is its only owner.
            unsafe { dealloc(self.memory.as_ptr(), layout) };
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_on_a_boundary_and_is_zero() {
        for bytes in [0, 1, 63, 64, 65, 4096, 3 << 20] {
            let mut a = AlignedBytes::zeroed(bytes).unwrap();
            assert!(a.as_slice().len() == bytes && a.as_slice().as_ptr().addr().is_multiple_of(ALIGN));
            assert!(a.as_slice().iter().all(|&b| b == 0));
            a.as_mut_slice().fill(7);
            let copy = AlignedBytes::copy_of(a.as_slice()).unwrap();
            assert_eq!(copy, a);
        }
        assert!(AlignedBytes::zeroed(usize::MAX).is_none());
    }
}
