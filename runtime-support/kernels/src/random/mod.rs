//! Random numbers: RandomUniform, RandomNormal, Bernoulli, Multinomial.
//!
//! The generator is a counter: element `i` of a call with seed `s` is SplitMix64's output at counter `i` of the stream `s`.
//! So results depend on nothing but seed and position: the same on every processor, run after run.
//! Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014 (the finalizer).

mod choice;
mod fill;

pub use choice::*;
pub use fill::*;

/// Bits at a counter of a stream.
pub(crate) fn bits(seed: u64, i: usize) -> u64 {
    let mut z = seed.wrapping_add((i as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Evenly in 0..1, with 53 bits.
pub(crate) fn uniform(seed: u64, i: usize) -> f64 {
    (bits(seed, i) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let n = 100_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for i in 0..n {
            let u = uniform(7, i);
            assert!((0.0..1.0).contains(&u));
            sum += u;
            squares += u * u;
        }
        assert!((sum / n as f64 - 0.5).abs() < 0.005 && (squares / n as f64 - 1.0 / 3.0).abs() < 0.005);
        assert_ne!(bits(1, 0), bits(2, 0));
    }
}
