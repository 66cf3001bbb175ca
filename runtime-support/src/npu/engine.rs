//! An engine: a thread that works through its queue, run after run, and keeps its clock.
//!
//! Invariants: a faulty command ends the queue; whatever happens, the engine says that it has drained.

use super::command::{Command, Dma, Place, Program};
use super::config::{Config, DmaRate};
use super::device::{COMPUTE, Clock, Current, Shared, drained};
use core::time::Duration;
use kiln_kernels::isa::Isa;
use kiln_kernels::{Access, Cx, Fault, Region, Role};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// From here on a thread spins, because sleeping is not that exact.
const SPIN_NS: u64 = 120_000;

/// Waits until the clock shows this time.
pub(super) fn sleep_until(clock: &Clock, at_ns: u64) {
    loop {
        let left = at_ns.saturating_sub(clock.now_ns());
        match left {
            0 => return,
            SPIN_NS.. => std::thread::sleep(Duration::from_nanos(left - SPIN_NS)),
            _ => core::hint::spin_loop(),
        }
    }
}

/// One engine of a device, in its thread.
pub(super) struct Engine<'d> {
    pub(super) shared: &'d Shared,
    pub(super) engine_idx: usize,
}

/// An engine in the middle of a run.
struct Turn<'t> {
    shared: &'t Shared,
    current: &'t Current<'t>,
    engine_idx: usize,
    run: u64,
    now_ns: u64,
}

impl Engine<'_> {
    /// Serves runs until the device goes away.
    pub(super) fn serve(&self) {
        self.shared.events.register(self.engine_idx);
        for run in 1.. {
            let Some(start_ns) = self.shared.wait_for_start(run, self.engine_idx) else { return };
            // SAFETY: the run was started, and it ends only after this engine has signalled that it drained.
            let current = unsafe { self.shared.current() };
            let mut turn = Turn { shared: self.shared, current, engine_idx: self.engine_idx, run, now_ns: start_ns };
            let program: Program<'_> = current.program;
            if catch_unwind(AssertUnwindSafe(|| turn.queue(program.queue(self.engine_idx)))).is_err() {
                self.shared.state.poison(0, Fault::Panicked);
            }
            if self.shared.state.fault().is_some() {
                self.shared.events.wake(&current.host);
            }
            let host = current.host.clone();
            self.shared.events.signal(drained(self.engine_idx), run, turn.now_ns, &host);
        }
    }
}

impl Turn<'_> {
    fn queue(&mut self, commands: &[Command<'_>]) {
        for command in commands {
            let failed = || self.shared.state.fault().is_some();
            if failed() {
                return;
            }
            match *command {
                Command::Signal(event) => {
                    let event = self.shared.event(event);
                    self.shared.events.signal(event, self.run, self.now_ns, &self.current.host);
                }
                Command::Wait(event) => {
                    let event = self.shared.event(event);
                    match self.shared.events.wait(event, self.run, self.engine_idx, failed) {
                        Some(at_ns) => self.now_ns = self.now_ns.max(at_ns),
                        None => return,
                    }
                }
                Command::Dma(dma) => {
                    let ns = self.rate().transfer_ns(dma.bytes(), dma.handshake);
                    self.work(ns, dma.step, |turn| turn.transfer(&dma));
                    self.shared.count_bytes(dma.bytes());
                }
                Command::Launch { step, run, ns } => {
                    self.work(ns, step, |turn| turn.launch(step, run));
                    self.shared.count_launch();
                }
            }
        }
    }

    fn rate(&self) -> DmaRate {
        let Config { load, store, .. } = self.shared.config;
        if self.engine_idx == super::device::STORE { store.unwrap_or(load) } else { load }
    }

    /// Does the work, then lets the time pass that it takes on the device.
    fn work(&mut self, ns: u64, step: u32, f: impl FnOnce(&Self)) {
        let clock = &self.shared.clock;
        let begin = clock.now_ns();
        if catch_unwind(AssertUnwindSafe(|| f(self))).is_err() {
            self.shared.state.poison(step, Fault::Panicked);
        }
        let end = clock.now_ns();
        if !self.shared.config.paced {
            self.now_ns = end;
            return;
        }
        self.now_ns = self.now_ns.saturating_add(ns.max(end - begin));
        sleep_until(clock, self.now_ns);
    }

    fn launch(&self, step: u32, run: super::Launch<'_>) {
        if self.engine_idx != COMPUTE {
            return self.shared.state.poison(step, Fault::Descriptor);
        }
        // SAFETY: the program's promise: no write to the device's memory is concurrent with another access to it.
        let regions = [unsafe { self.shared.sram.share() }];
        let cx = Cx::new(&regions, Isa::detect(), &self.shared.state, &[]);
        run(cx.at(step));
    }

    /// Moves the rows. Both ends are checked against their memories first.
    fn transfer(&self, dma: &Dma) {
        let state = &self.shared.state;
        let wrong = || state.poison(dma.step, Fault::Descriptor);
        if self.engine_idx == COMPUTE {
            return wrong();
        }
        let side = |place: Place, stride: usize, role: Role| -> Option<(Region<'_>, Access)> {
            let (region, off) = match place {
                Place::Sram(off) => (&self.shared.sram, off),
                Place::Host { region, off } => (self.current.regions.get(region as usize)?, off),
            };
            // SAFETY: the program's promise, as above; the host's regions are shared with the engines for this run only.
            let region = unsafe { region.share() };
            let reach = dma.rows.saturating_sub(1).checked_mul(stride)?.checked_add(dma.row_bytes)?;
            Some((region, Access { mem: 0, off, bytes: reach, align: 1, role }))
        };
        let (Some((from, mut read)), Some((to, write))) =
            (side(dma.from, dma.from_stride, Role::Read), side(dma.to, dma.to_stride, Role::Write))
        else {
            return wrong();
        };
        read.mem = 1;
        let regions = [to, from];
        let cx = Cx::new(&regions, Isa::Scalar, state, &[]);
        if dma.bytes() == 0 {
            return;
        }
        if !cx.check(&[write, read]) {
            return wrong();
        }
        let (to, from) = (cx.address::<u8>(0, write.off, write.bytes), cx.address::<u8>(1, read.off, read.bytes));
        for row in 0..dma.rows {
            // SAFETY: `check` accepted both ends from the first row's first byte to the last row's last one, and that
            // they do not overlap.
            unsafe {
                let (to, from) = (to.add(row * dma.to_stride), from.add(row * dma.from_stride));
                core::ptr::copy_nonoverlapping(from, to, dma.row_bytes);
            }
        }
    }
}
