//! How streams wait for each other: one progress counter per stream on an atomic, spin, then park.
//!
//! A counter holds an epoch (the run's number) above a count of steps, so it only ever grows and nothing is reset between
//! runs: [`at`] makes such a value, [`ENDED`] is the count of a stream that has ended. A run begins when stream 0 reaches
//! count 0 of its epoch. No locks, no allocation after [`Hub::new`].
//! Invariant: a stream that waits sleeps only after it has said what it waits for and looked once more; a stream that
//! moves on looks who sleeps after it has moved. One of the two sees the other (both have a sequentially consistent
//! fence between), so no wake-up is lost.

#[cfg(not(all(loom, test)))]
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use alloc::boxed::Box;

/// Bits of a counter that count steps.
const COUNT_BITS: u32 = 20;
/// The count of a stream that has ended.
pub(super) const ENDED: u32 = (1 << COUNT_BITS) - 1;
/// The epoch that ends the workers; runs have smaller ones.
pub(super) const LAST_EPOCH: u64 = u64::MAX >> COUNT_BITS;

/// A counter's value: so many steps done in an epoch.
pub(super) fn at(epoch: u64, count: u32) -> u64 {
    (epoch << COUNT_BITS) | u64::from(count.min(ENDED))
}

/// The epoch of a counter's value.
pub(super) fn epoch_of(value: u64) -> u64 {
    value >> COUNT_BITS
}

/// Rounds of looking between two offers of the core to another thread: some microseconds.
const YIELD_EVERY: u32 = 64;

/// One stream's side, on cache lines of its own.
#[repr(align(128))]
struct Slot {
    /// How far the stream is.
    done: AtomicU64,
    /// What it sleeps for: that stream ...
    wants_stream: AtomicUsize,
    /// ... at least so far.
    wants: AtomicU64,
}

/// The counters of all streams of one model.
pub(super) struct Hub {
    slots: Box<[Slot]>,
    /// A bit for each stream that sleeps.
    asleep: AtomicU64,
    spins: u32,
}

impl Hub {
    /// Counters of up to 64 streams, all at epoch 0. A waiting stream looks `spins` times before it sleeps.
    pub(super) fn new(n_streams: usize, spins: u32) -> Self {
        let slot = |_| Slot { done: AtomicU64::new(0), wants_stream: AtomicUsize::new(0), wants: AtomicU64::new(0) };
        Self { slots: (0..n_streams).map(slot).collect(), asleep: AtomicU64::new(0), spins }
    }

    /// How far a stream is.
    pub(super) fn done(&self, stream: usize) -> u64 {
        self.slots[stream].done.load(Ordering::Acquire)
    }

    /// Stream `me` is so far now. `wake` is called with every stream that slept for it.
    pub(super) fn advance(&self, me: usize, value: u64, mut wake: impl FnMut(usize)) {
        self.slots[me].done.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
        let mut left = self.asleep.load(Ordering::Acquire);
        while left != 0 {
            let sleeper = left.trailing_zeros() as usize;
            left &= left - 1;
            let slot = &self.slots[sleeper];
            if slot.wants_stream.load(Ordering::Relaxed) == me && slot.wants.load(Ordering::Relaxed) <= value {
                wake(sleeper);
            }
        }
    }

    /// Returns once a stream is so far. `yield_core` lets another thread on, should one wait for this core: it may be the very
    /// one that this stream waits for. `park` sleeps until stream `me` is woken, perhaps without cause.
    pub(super) fn wait(&self, me: usize, stream: usize, value: u64, yield_core: impl Fn(), park: impl Fn()) {
        for round in 1..=self.spins {
            if self.done(stream) >= value {
                return;
            }
            if round.is_multiple_of(YIELD_EVERY) {
                yield_core();
            } else {
                core::hint::spin_loop();
            }
        }
        if self.done(stream) >= value {
            return;
        }
        let slot = &self.slots[me];
        slot.wants_stream.store(stream, Ordering::Relaxed);
        slot.wants.store(value, Ordering::Relaxed);
        self.asleep.fetch_or(1 << me, Ordering::Release);
        fence(Ordering::SeqCst);
        while self.done(stream) < value {
            park();
        }
        self.asleep.fetch_and(!(1 << me), Ordering::Relaxed);
    }
}

#[cfg(all(loom, test))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    /// `std::thread::park` and `unpark` by their contract (loom's own wake a thread out of `join` too).
    struct Token(Mutex<bool>, Condvar);

    impl Token {
        fn park(&self) {
            let mut there = self.0.lock().unwrap();
            while !*there {
                there = self.1.wait(there).unwrap();
            }
            *there = false;
        }

        fn unpark(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }
    }

    struct Shared {
        hub: Hub,
        data: [UnsafeCell<u32>; 2],
        tokens: [Token; 2],
    }
    // SAFETY: the cells are accessed in the order that the events under test enforce; loom checks it.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    impl Shared {
        fn of_two() -> Arc<Self> {
            let token = || Token(Mutex::new(false), Condvar::new());
            let data = [UnsafeCell::new(0), UnsafeCell::new(0)];
            Arc::new(Self { hub: Hub::new(2, 0), data, tokens: [token(), token()] })
        }

        fn write(&self, i: usize, value: u32) {
            // SAFETY: loom checks that nobody else has it.
            self.data[i].with_mut(|p| unsafe { *p = value });
        }

        fn read(&self, i: usize) -> u32 {
            // SAFETY: loom checks that nobody writes it.
            self.data[i].with(|p| unsafe { *p })
        }

        fn advance(&self, me: usize, value: u64) {
            self.hub.advance(me, value, |s| self.tokens[s].unpark());
        }

        fn wait(&self, me: usize, stream: usize, value: u64) {
            self.hub.wait(me, stream, value, || {}, || self.tokens[me].park());
        }
    }

    /// Every interleaving with at most three preemptions: all bugs of this kind known need two or fewer.
    fn check(f: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(f);
    }

    /// Two runs of: the caller writes, the worker reads and writes, the caller reads; then the worker is told to end.
    #[test]
    fn runs_follow_each_other_without_a_lost_wake_up() {
        check(|| {
            let s = Shared::of_two();
            let t = s.clone();
            let worker = thread::spawn(move || {
                for epoch in 1.. {
                    t.wait(1, 0, at(epoch, 0));
                    if epoch_of(t.hub.done(0)) == LAST_EPOCH {
                        return;
                    }
                    t.write(1, t.read(0) + 1);
                    t.advance(1, at(epoch, ENDED));
                }
            });
            for epoch in 1..=2 {
                s.write(0, epoch as u32);
                s.advance(0, at(epoch, 0));
                s.wait(0, 1, at(epoch, ENDED));
                assert_eq!(s.read(1), epoch as u32 + 1);
            }
            s.advance(0, u64::MAX);
            worker.join().unwrap();
        });
    }

    /// Both streams write, wait for each other in the middle, and read what the other wrote.
    #[test]
    fn streams_see_what_they_waited_for() {
        check(|| {
            let s = Shared::of_two();
            let t = s.clone();
            let worker = thread::spawn(move || {
                t.write(1, 5);
                t.advance(1, at(1, 1));
                t.wait(1, 0, at(1, 1));
                assert_eq!(t.read(0), 4);
            });
            s.write(0, 4);
            s.advance(0, at(1, 1));
            s.wait(0, 1, at(1, 1));
            assert_eq!(s.read(1), 5);
            worker.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn values_grow_with_epoch_and_count() {
        assert!(at(1, ENDED) < at(2, 0) && at(2, 0) < at(2, 1) && at(2, 5) < at(2, ENDED));
        assert_eq!((epoch_of(at(7, 3)), epoch_of(u64::MAX)), (7, LAST_EPOCH));
    }
}
