//! A simulated neural accelerator: honest hardware in software, for targets such as `soc-npu`.
//!
//! In: a [`Program`] (a queue of commands for each engine) and the host's regions. Out: what its DMA engine stored there.
//! The device has a memory of its own ([`Npu`] allocates it, nothing else has its address): a kernel that runs on it gets
//! slices of that memory only, because region [`SRAM`] is the only one its context has. It has a compute thread and one or
//! two DMA threads, which order their work by events: a counter per event that holds the number of the last run in which it
//! was signalled, so nothing is reset between runs. Waiting spins, then parks; nothing is allocated or locked by a run.
//!
//! Time: each engine keeps a clock of its own that its commands advance by what the rates in [`Config`] say (or by how long
//! the work took here, if that is longer) and is never ahead of the wall clock by more than the command at hand: it sleeps
//! until its clock is reached. So a schedule's length can be measured, not only computed.
//! A fault or a panic poisons the run: all engines drain, `run` returns the error, the device stays usable.
//! Source: planning.md, "Tiles, DMA and overlap".

mod command;
mod config;
mod device;
mod engine;
mod event;
#[cfg(test)]
mod tests;

pub use command::{Command, Dma, Launch, Place, Program};
pub use config::{Config, DmaRate};
pub use device::{Counters, Host, Npu};

/// The region that a kernel on the device finds its memory under.
pub const SRAM: u32 = 0;

/// Makes a [`Program`] of a command queue for each engine: loading, computing, storing.
///
/// Only for programs that Kiln's plan verifier accepted (or tests whose queues order their accesses in the same way): the
/// engines run at once, and what keeps their accesses apart are the program's events.
#[macro_export]
macro_rules! npu_program {
    ($n_events:expr, $queues:expr) => {{
        let n_events: u32 = $n_events;
        let queues: [&[$crate::npu::Command<'_>]; 3] = $queues;
        // SAFETY: the queues come from a plan whose happens-before order the verifier has proven.
        unsafe { $crate::npu::Program::new(n_events, queues) }
    }};
}
