//! The simulated NPU against the formulas of planning.md §9: tiles through one, two and three buffers, measured.
//!
//! `measured_within_a_tenth` takes about half a minute and wants an idle machine, so it runs on demand:
//! `cargo test -p kiln-compiler --release --test npu_overlap -- --ignored --nocapture`.

use kiln::npu::{Command, Config, Dma, DmaRate, Npu, Place};
use kiln_compiler::plan::tiles::{Scheme, TileTimes, Work, needs, one_buffer_ns, queues, simulate, two_buffers_ns};
use std::time::Instant;

const MS: u64 = 1_000_000;
/// Bytes that the DMA engines move in a millisecond.
const BYTES_PER_MS: u64 = 1_000;

/// Load, compute and store time of a tile, in ms; `one_engine` for loads and stores on the same one.
#[derive(Clone, Copy, Debug)]
struct Case {
    n: usize,
    d: u64,
    c: u64,
    o: u64,
    one_engine: bool,
}

impl Case {
    fn scheme(&self, n_buffers: usize) -> Scheme {
        Scheme { n_buffers, in_place: false, one_engine: self.one_engine }
    }

    fn predicted_ns(&self, n_buffers: usize) -> u64 {
        simulate(&TileTimes::equal(self.n, self.d * MS, self.c * MS, self.o * MS), self.scheme(n_buffers))
    }

    /// The queues of the planner, with an event for each piece of work. Every tile has its own part of the buffers.
    fn commands(&self, n_buffers: usize, kernel: kiln::npu::Launch<'static>) -> [Vec<Command<'static>>; 3] {
        let scheme = self.scheme(n_buffers);
        let event = |work: Work| match work {
            Work::Load(i) => i as u32,
            Work::Compute(i) => (self.n + i) as u32,
            Work::Store(i) => (2 * self.n + i) as u32,
        };
        let dma = |from: Place, to: Place, ms: u64| Command::Dma(Dma::flat(0, from, to, (ms * BYTES_PER_MS) as usize));
        let host = |off: u64| Place::Host { region: 0, off };
        queues(self.n, scheme).map(|queue| {
            let mut out = Vec::new();
            for work in queue {
                out.extend(needs(work, scheme).into_iter().flatten().map(|w| Command::Wait(event(w))));
                match work {
                    Work::Load(i) => {
                        out.push(dma(host(0), Place::Sram(8 * BYTES_PER_MS * (i % n_buffers) as u64), self.d))
                    }
                    Work::Compute(_) => out.push(Command::Launch { step: 0, run: kernel, ns: self.c * MS }),
                    Work::Store(_) if self.o == 0 => {}
                    Work::Store(i) => {
                        let from = Place::Sram(8 * BYTES_PER_MS * (3 + i % n_buffers) as u64);
                        out.push(dma(from, host(16 * BYTES_PER_MS), self.o));
                    }
                }
                out.push(Command::Signal(event(work)));
            }
            out
        })
    }

    /// Best of some runs.
    fn measured_ns(&self, n_buffers: usize, runs: usize) -> u64 {
        let rate = DmaRate { bytes_per_s: 1_000 * BYTES_PER_MS, latency_ns: 0, handshake_ns: 0 };
        let store = (!self.one_engine).then_some(rate);
        let n_events = 3 * self.n as u32;
        let config = Config { sram_bytes: 1 << 16, load: rate, store, n_events, paced: true };
        let mut npu = Npu::new(config).unwrap();
        let queues = self.commands(n_buffers, &|_| ());
        let mut memory = vec![0u8; 1 << 15];
        let mut best = u64::MAX;
        for _ in 0..runs {
            let begin = Instant::now();
            let program = kiln::npu_program!(n_events, [&queues[0], &queues[1], &queues[2]]);
            npu.run(program, &[kiln::kernels::Region::write(&mut memory)], &mut |_| ()).unwrap();
            best = best.min(begin.elapsed().as_nanos() as u64);
        }
        best
    }
}

/// Ten ratios of loading to computing; tile times of 2 ms and more.
const RATIOS: [(u64, u64); 10] = [(4, 4), (2, 6), (6, 2), (2, 4), (4, 2), (4, 6), (6, 4), (2, 8), (8, 2), (3, 5)];

#[test]
#[ignore = "half a minute on an idle machine"]
fn measured_within_a_tenth() {
    let mut wrong = Vec::new();
    println!("ms of a tile: load compute store | predicted, measured with one, two, three buffers");
    for (o, one_engine) in [(0, false), (0, true), (2, false), (3, false), (2, true), (3, true)] {
        for (d, c) in RATIOS {
            let case = Case { n: 6, d, c, o, one_engine };
            let mut line = format!("{d} {c} {o}{} |", if one_engine { " (one engine)" } else { "" });
            for n_buffers in 1..=3 {
                let (predicted, measured) = (case.predicted_ns(n_buffers), case.measured_ns(n_buffers, 5));
                line += &format!(" {:.2} {:.2};", predicted as f64 / 1e6, measured as f64 / 1e6);
                if measured.abs_diff(predicted) * 10 > predicted {
                    wrong.push((case, n_buffers, predicted, measured));
                }
            }
            println!("{line}");
        }
    }
    assert!(wrong.is_empty(), "more than a tenth away from the prediction: {wrong:?}");
}

/// What noise cannot undo: nothing ends before the prediction, and the second buffer saves time.
#[test]
fn no_faster_than_planned_and_overlapped() {
    for (d, c, o, one_engine) in [(4, 4, 0, false), (2, 6, 2, true), (3, 4, 3, false)] {
        let case = Case { n: 6, d, c, o, one_engine };
        let measured: Vec<u64> = (1..=3).map(|b| case.measured_ns(b, 4)).collect();
        for (n_buffers, &measured) in (1..=3).zip(&measured) {
            assert!(measured >= case.predicted_ns(n_buffers), "{case:?} with {n_buffers}: {measured}");
        }
        assert!(measured[1] < measured[0] && measured[2] < measured[0], "{case:?}: {measured:?}");
    }
}

#[test]
fn the_predictions_are_the_formulas() {
    for (d, c) in RATIOS {
        for (o, one_engine) in [(0, false), (0, true), (2, false), (3, false)] {
            let case = Case { n: 6, d, c, o, one_engine };
            assert_eq!(case.predicted_ns(1), one_buffer_ns(6, d, c, o) * MS);
            assert_eq!(case.predicted_ns(2), two_buffers_ns(6, d, c, o, one_engine) * MS);
            assert_eq!(case.predicted_ns(3), case.predicted_ns(2));
        }
    }
}
