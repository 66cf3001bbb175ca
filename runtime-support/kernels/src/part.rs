//! The result of a call that may be one of several parts, running on several threads at once.
//!
//! In: a checked operand. Out: a pointer to it, and slices of what the part itself writes.
//! Invariant: no reference to the whole result exists while parts run, since other parts write other elements of it; what a
//! kernel reaches through a [`PartOut`] are the elements of its own units of work. Units are disjoint (each kernel says how),
//! parts have disjoint units, and nobody but parts of one call touches the result meanwhile: the plan verifier's proof.

use core::marker::PhantomData;
use core::ops::Range;

/// Where a part of a call writes: all of the call's result, of which its own elements only may be touched.
pub struct PartOut<'a, T> {
    first: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<'a, T> PartOut<'a, T> {
    /// The result of a call that runs as a whole.
    pub const fn whole(result: &'a mut [T]) -> Self {
        Self { first: result.as_mut_ptr(), len: result.len(), life: PhantomData }
    }

    /// A result of `len` elements.
    ///
    /// # Safety
    /// For `'a`, the elements that the part writes are valid for reads and writes, and nobody else accesses them; the others
    /// are memory of the same allocation.
    pub(crate) const unsafe fn new(first: *mut T, len: usize) -> Self {
        Self { first, len, life: PhantomData }
    }

    /// Elements of the whole result.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the whole result has no element.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first element; only the part's own elements may be accessed through it.
    pub const fn as_mut_ptr(&mut self) -> *mut T {
        self.first
    }

    /// The whole result, as a pointer; only the part's own elements may be accessed through it.
    pub const fn as_mut_slice_ptr(&mut self) -> *mut [T] {
        core::ptr::slice_from_raw_parts_mut(self.first, self.len)
    }

    /// Elements that the part writes. Panics outside of the result.
    ///
    /// # Safety
    /// All of them are elements of the part's own units.
    pub const unsafe fn own(&mut self, at: Range<usize>) -> &mut [T] {
        assert!(at.start <= at.end && at.end <= self.len, "a part's range outside of the result");
        // SAFETY: the range lies in the result; its elements are valid and the part's alone, by the promises here and at `new`.
        unsafe { core::slice::from_raw_parts_mut(self.first.add(at.start), at.end - at.start) }
    }
}
