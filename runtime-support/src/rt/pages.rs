//! What the system is told about memory that a model is about to use, so that it is there before the first run asks for it
//! page by page: each first touch of a page costs a microsecond or more, most of all in a virtual machine.
//!
//! In: memory by address and length. Out: advice; nothing but time depends on it, and where the system takes none (not Linux, an
//! old kernel) nothing happens. Source: madvise(2).

use kiln_kernels::AlignedBytes;

#[cfg(target_os = "linux")]
mod linux {
    use core::ffi::{c_int, c_void};

    const HUGE_PAGE: c_int = 14;
    const POPULATE_WRITE: c_int = 23;
    /// A small page; larger ones only make the range that is rounded to these smaller than the system's own.
    const PAGE: usize = 4096;
    const LARGE: usize = super::AlignedBytes::LARGE_PAGE;

    unsafe extern "C" {
        fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int;
    }

    fn advise(start: *const u8, len: usize, advice: c_int) {
        let skip = start.addr() % PAGE;
        // SAFETY: the kinds of advice used here change no byte, whatever lies in the pages; addresses where nothing lies are an error.
        unsafe { madvise(start.wrapping_sub(skip).cast_mut().cast(), len + skip, advice) };
    }

    pub fn fresh(start: *const u8, len: usize, room: usize) {
        if len == 0 {
            return;
        }
        // The last large page is taken whole where a good part of it is used: small pages cost more time than zeroing it.
        let large = if len % LARGE >= LARGE / 4 { len.next_multiple_of(LARGE) } else { len - len % LARGE };
        let large = if start.addr().is_multiple_of(LARGE) { large.min(room) } else { 0 };
        if large > 0 {
            advise(start, large, HUGE_PAGE);
        }
        // A touch brings a large page; small ones are asked for now, all in one call.
        if let Some(rest @ 1..) = len.checked_sub(large) {
            advise(start.wrapping_add(large), rest, POPULATE_WRITE);
        }
    }
}

/// Memory that was just allocated and will be written, with what room it has: large pages, and those that are small at once.
pub fn fresh(memory: &AlignedBytes) {
    #[cfg(target_os = "linux")]
    linux::fresh(memory.as_slice().as_ptr(), memory.as_slice().len(), memory.room());
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}
