//! What the whole-system tests share: models at hand, stages of a compile, random graphs, broken programs, and a user's
//! module with models included both ways.
#![forbid(unsafe_code)]

pub mod exports;
pub mod graphs;
pub mod models;
pub mod mutate;
pub mod session;
pub mod stages;
pub mod trace;
mod user;

pub use user::*;
