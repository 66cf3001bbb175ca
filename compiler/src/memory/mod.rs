//! Memory: which bytes of which arena each buffer gets, decided offline.

mod alias;
mod arena;
mod regions;
pub mod solve;

/// How an arena is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Arenas {
    /// All buffers packed together.
    #[default]
    Shared,
    /// A region for each branch.
    Branch,
}

pub(crate) use arena::least;
pub use arena::{ArenaPlan, PeakTensor, plan, plan_by_branch, plan_device, plan_on_streams};
