//! Memory: which bytes of which arena each buffer gets, decided offline.

pub mod solve;
