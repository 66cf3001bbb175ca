//! Planning: which device runs what, what is copied where, which stream does it when, and in which order bytes may be
//! reused. Plain data in, plain data out; nothing here knows operators, kernels or emission.
//!
//! The way the data goes: a [`target`] file and a [`graph`] of nodes with costs per device → [`placement`] (which device)
//! → [`insert`] (copies as tasks, buffers) → [`branch`]es and layers → [`schedule`] (streams, steps, waits, simulated
//! time) → [`order`] (happens-before, conflicts for the memory solver) → [`check`] (independent proof).
//! [`budget`] makes several schedules for several sizes of memory, [`tiles`] cuts operators to fit a small memory.
//!
//! Invariants: times are integer nanoseconds, sizes bytes; every search is bounded by counts, never by a clock; the same
//! input gives the same plan on every machine.

pub mod branch;
pub mod budget;
pub mod cascade;
pub mod check;
pub mod cost;
pub mod dag;
pub mod graph;
pub mod id;
pub mod insert;
pub mod order;
pub mod placement;
pub mod schedule;
pub mod target;
#[cfg(test)]
pub(crate) mod testing;
pub mod tiles;

/// More streams than this on one device are refused.
pub const MAX_STREAMS: usize = 64;
