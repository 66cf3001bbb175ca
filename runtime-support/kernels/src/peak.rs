//! The multiply-add rate of this machine: a loop that does nothing else, for a caller with a clock.

use crate::simd::{F32x16, LANES};
use crate::simd_fn;

/// Vectors in flight: more than the latency times the units of any processor we know, and no more than its registers.
const CHAINS: usize = 12;

/// Floating-point operations of one round.
pub const FLOPS_PER_ROUND: u64 = (2 * CHAINS * LANES) as u64;

simd_fn! {
    /// Runs rounds of independent multiply-adds; the result only keeps them from being removed.
    pub fn multiply_add_rounds<S>(s, rounds: u64) -> f32 {
        let (a, b) = (s.splat(0.999_9), s.splat(0.000_1));
        // 1 is the fixed point: the loop from there would be no loop to a compiler that sees the start.
        let start = 1.0 + (rounds % 2) as f32 * 0.001;
        let mut sums = [s.splat(start); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = sum.fma(a, b);
            }
        }
        let mut total = s.zero();
        for sum in sums {
            total = total + sum;
        }
        total.sum()
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;

    #[test]
    fn tends_to_the_fixed_point() {
        for isa in Isa::supported() {
            let sum = super::multiply_add_rounds(isa, 10);
            assert!((sum - 192.0).abs() < 1.0, "{sum}");
        }
    }
}
