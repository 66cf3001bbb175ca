//! Streams of an expanded program: a stream for the CPU and one for each engine of the device, with the waits between them.
//!
//! In: steps in one order that fits, with their engines. Out: a [`Schedule`]. A step waits for whoever wrote what it touches
//! and whoever read what it overwrites, by buffer, and for the steps its memory depends on; a wait that an earlier one
//! implies is left out (vector clocks).

use super::expand::{Expanded, Lane};
use crate::lower::BufferKind;
use crate::schedule::{Schedule, StreamStep};

/// Engines in the order of their streams.
pub const LANES: [Lane; 4] = [Lane::Host, Lane::Load, Lane::Compute, Lane::Store];

type Clock = [usize; 4];

/// The streams. `host_ns` are the times of the host's steps, in the list's order; times of other steps are the device's,
/// with the handshake of the engine where a value changes devices: of that which loads, of that which stores.
pub fn schedule(expanded: &Expanded, host_ns: &dyn Fn(usize) -> u64, handshake_ns: [u64; 2]) -> Schedule {
    let steps = &expanded.lowered.steps;
    let n_buffers = expanded.lowered.buffers.len();
    let mut out = Schedule { streams: vec![Vec::new(); LANES.len()], ..Schedule::default() };
    // For every buffer and stream, how many of the stream's runs touch it at most.
    let (mut written, mut read): (Vec<Clock>, Vec<Clock>) = (vec![[0; 4]; n_buffers], vec![[0; 4]; n_buffers]);
    let (mut now, mut ends): ([Clock; 4], [u64; 4]) = ([[0; 4]; 4], [0; 4]);
    let mut after: [Vec<(Clock, u64)>; 4] = Default::default();
    let mut place = Vec::with_capacity(steps.len());
    for (i, step) in steps.iter().enumerate() {
        let lane = expanded.lanes[i] as usize;
        let operands = step.call.operands();
        let mut needed: Clock = [0; 4];
        let mut need = |clock: &Clock| needed.iter_mut().zip(clock).for_each(|(a, b)| *a = (*a).max(*b));
        for o in &operands {
            let b = o.operand.mem as usize;
            if !matches!(expanded.lowered.buffers[b].kind, BufferKind::Weight(_) | BufferKind::Input(_)) {
                need(&written[b]);
                if o.writes() {
                    need(&read[b]);
                }
            }
        }
        for &step in &expanded.needs[i] {
            let (lane, run): (usize, usize) = place[step];
            let mut clock = [0; 4];
            clock[lane] = run + 1;
            need(&clock);
        }
        let mut begin = ends[lane];
        // The latest first: it may imply the others.
        let mut others: Vec<usize> = (0..4).filter(|&l| l != lane && needed[l] > 0).collect();
        others.sort_by_key(|&l| std::cmp::Reverse(after[l][needed[l] - 1].1));
        for stream in others {
            let (clock, end) = after[stream][needed[stream] - 1];
            begin = begin.max(end);
            if now[lane][stream] >= needed[stream] {
                continue;
            }
            out.streams[lane].push(StreamStep::Wait { stream, count: needed[stream] });
            now[lane].iter_mut().zip(clock).for_each(|(a, b)| *a = (*a).max(b));
        }
        let engine = usize::from(expanded.lanes[i] == Lane::Store);
        let handshake = if expanded.handshake[i] { handshake_ns[engine] } else { 0 };
        let ns = if expanded.lanes[i] == Lane::Host { host_ns(i) } else { expanded.ns[i] + handshake };
        out.sequential_ns = out.sequential_ns.saturating_add(ns);
        let end = begin.saturating_add(ns);
        (ends[lane], out.predicted_ns) = (end, out.predicted_ns.max(end));
        out.times.push((begin, end));
        out.streams[lane].push(StreamStep::Run(i));
        now[lane][lane] += 1;
        let run = now[lane][lane];
        place.push((lane, run - 1));
        after[lane].push((now[lane], end));
        for o in &operands {
            let clock = if o.writes() { &mut written } else { &mut read };
            clock[o.operand.mem as usize][lane] = run;
        }
    }
    out
}
