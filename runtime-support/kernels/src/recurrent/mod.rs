//! LSTM, GRU and RNN over one direction.
//!
//! In: `gates`, the products of every time step's input with W (made by one matrix product before), R, biases, initial
//! states, lengths. Out: the states of every step, and the last ones. One call is one direction; two directions write
//! disjoint parts of the same results.
//!
//! Invariant: gate rows of step `t` and batch entry `b` begin at `t·gate_step + b·gate_batch`; rows of Y at
//! `y_start + t·y_step + b·y_batch`; states at `h_start + b·h_batch`. All in elements.

mod cell;
mod function;
mod gru;
mod lstm;
mod rnn;

pub use function::{CellActivation, CellFunction};
pub use gru::*;
pub use lstm::*;
pub use rnn::*;
