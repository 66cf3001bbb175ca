//! Memory: which bytes of which arena each buffer gets, decided offline.

mod alias;
mod arena;
pub mod solve;

pub(crate) use arena::least;
pub use arena::{ArenaPlan, PeakTensor, plan, plan_device, plan_on_streams};
