//! Memory for a model without a heap.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

#[repr(C, align(64))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

/// An arena in static memory, to be taken once.
///
/// ```
/// static ARENA: kiln::StaticArena<4096> = kiln::StaticArena::new();
/// let memory: &'static mut [u8] = ARENA.take().expect("taken once");
/// assert!(ARENA.take().is_none());
/// ```
pub struct StaticArena<const BYTES: usize> {
    bytes: UnsafeCell<Aligned<BYTES>>,
    taken: AtomicBool,
}

// SAFETY: `take` hands the bytes out at most once, so no two threads ever hold them.
unsafe impl<const BYTES: usize> Sync for StaticArena<BYTES> {}

impl<const BYTES: usize> StaticArena<BYTES> {
    /// Zeroed memory.
    #[expect(clippy::new_without_default, reason = "made in statics, by const code only")]
    pub const fn new() -> Self {
        Self { bytes: UnsafeCell::new(Aligned([0; BYTES])), taken: AtomicBool::new(false) }
    }

    /// The memory, the first time it is asked for.
    #[expect(clippy::mut_from_ref, reason = "the flag lets one caller through")]
    pub fn take(&'static self) -> Option<&'static mut [u8]> {
        if self.taken.swap(true, Ordering::AcqRel) {
            return None;
        }
        // SAFETY: the flag was false, so this is the only reference there will ever be; the bytes are initialised.
        Some(unsafe { &mut (*self.bytes.get()).0 })
    }
}
