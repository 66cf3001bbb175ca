//! The multiply-add rate of this machine: a loop that does nothing else, for a caller with a clock.

use crate::simd::{F32x16, LANES, Simd};
use crate::{Isa, simd_fn};

/// Vectors in flight: more than the latency times the units of any processor we know, and no more than its registers.
const CHAINS: usize = 12;

/// Floating-point operations of one round.
pub const FLOPS_PER_ROUND: u64 = (2 * CHAINS * LANES) as u64;

simd_fn! {
    /// Runs rounds of independent multiply-adds; the result only keeps them from being removed. No chain is like another:
    /// equal ones would be computed once.
    fn rounds_from<S>(s, rounds: u64, starts: [f32; CHAINS]) -> f32 {
        // As many at a time as stay in registers: 32 of one vector each with AVX-512, 16 of half a vector with AVX2.
        if matches!(S::ISA, Isa::Avx512) {
            chains::<S, CHAINS>(s, rounds, &starts)
        } else {
            let (low, high) = starts.split_at(HALF);
            chains::<S, HALF>(s, rounds, low) + chains::<S, HALF>(s, rounds, high)
        }
    }
}

/// Half of the chains.
const HALF: usize = CHAINS / 2;

#[inline(always)]
fn chains<S: Simd, const N: usize>(s: S, rounds: u64, starts: &[f32]) -> f32 {
    let (a, b) = (s.splat(0.999_9), s.splat(0.000_1));
    let mut sums = [s.zero(); N];
    for i in 0..N {
        sums[i] = s.splat(starts[i]);
    }
    for _ in 0..rounds {
        for i in 0..N {
            sums[i] = sums[i].fma(a, b);
        }
    }
    let mut total = s.zero();
    for sum in sums {
        total = total + sum;
    }
    total.sum()
}

/// Runs rounds of independent multiply-adds; the result only keeps them from being removed.
pub fn multiply_add_rounds(isa: Isa, rounds: u64) -> f32 {
    // What the optimiser does not know it cannot compute beforehand.
    let starts = core::array::from_fn(|i| 0.1 + i as f32 * 0.01);
    rounds_from(isa, core::hint::black_box(rounds), core::hint::black_box(starts))
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;

    #[test]
    fn is_the_same_on_every_set() {
        let scalar = super::multiply_add_rounds(Isa::Scalar, 10);
        for isa in Isa::supported() {
            let sum = super::multiply_add_rounds(isa, 10);
            assert!((sum - scalar).abs() < 1e-3 * scalar.abs(), "{sum}, {scalar}");
        }
    }
}
