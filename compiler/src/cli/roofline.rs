//! What this machine does at most: the roofline that `kilnc bench` compares with.
//!
//! In: a module's figures. Out: for each step the least time that its work takes: computing at the measured multiply-add rate, or
//! moving its bytes, whatever takes longer. Weights come from memory where arena and weights together do not fit into the
//! caches; what a step reads of the arena was written just before, so as far as it fits it comes from a cache.
//! Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), with a roof for each level.

use super::measure::{cache_bytes_per_s, per_second};
use crate::facts::{Facts, StepFact};
use kiln_kernels::isa::Isa;
use kiln_kernels::peak;

/// Rates of one thread, and where the module's bytes lie.
pub(super) struct Roofline {
    /// Floating-point operations a second.
    pub(super) flops_per_s: f64,
    /// Bytes a second read from memory.
    pub(super) dram_bytes_per_s: f64,
    /// Bytes a second read and written in the nearest cache.
    pub(super) cache_bytes_per_s: f64,
    cache_bytes: u64,
    /// Whether arena and weights stay in the caches from run to run.
    all_cached: bool,
}

/// Where the system does not say how large its caches are.
const USUAL_CACHE_BYTES: u64 = 32 << 20;

impl Roofline {
    /// Takes about half a second.
    pub(super) fn measure(facts: &Facts) -> Result<Self, String> {
        let isa = Isa::detect();
        const ROUNDS: u64 = 1 << 18;
        let flops = per_second(ROUNDS * peak::FLOPS_PER_ROUND, || {
            std::hint::black_box(peak::multiply_add_rounds(isa, std::hint::black_box(ROUNDS)));
        });
        // Larger than the caches of most machines.
        let words = vec![1u64; 128 << 20 >> 3];
        let dram = per_second(words.len() as u64 * 8, || {
            std::hint::black_box(words.iter().fold(0u64, |sum, &w| sum.wrapping_add(w)));
        });
        let cache_bytes = largest_cache_bytes().unwrap_or(USUAL_CACHE_BYTES);
        Ok(Self {
            flops_per_s: flops as f64,
            dram_bytes_per_s: dram as f64,
            cache_bytes_per_s: cache_bytes_per_s(isa)?.max(dram) as f64,
            cache_bytes,
            all_cached: facts.arena_bytes.saturating_add(facts.weight_bytes) <= cache_bytes,
        })
    }

    /// The least time for a step on so many threads, in nanoseconds: each has its own units and its own nearest cache.
    pub(super) fn least_ns(&self, step: &StepFact, threads: u64) -> f64 {
        let weights = step.weight_bytes.min(step.bytes);
        let others = step.bytes - weights;
        let rate = |cached: bool| if cached { self.cache_bytes_per_s } else { self.dram_bytes_per_s };
        let moving = weights as f64 / rate(self.all_cached) + others as f64 / rate(others <= self.cache_bytes);
        (step.flops as f64 / self.flops_per_s).max(moving) * 1e9 / threads.max(1) as f64
    }
}

/// The size of the largest cache, where the system tells it.
fn largest_cache_bytes() -> Option<u64> {
    let caches = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let size = |entry: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(entry.ok()?.path().join("size")).ok()?;
        text.trim().strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)
    };
    caches.filter_map(size).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_computing_and_moving_counts() {
        let step = |flops, bytes, weight_bytes| StepFact { flops, bytes, weight_bytes, ..StepFact::default() };
        let roof = |all_cached| Roofline {
            flops_per_s: 1e9,
            dram_bytes_per_s: 1e9,
            cache_bytes_per_s: 10e9,
            cache_bytes: 1000,
            all_cached,
        };
        for (step, all_cached, threads, want_ns) in [
            (step(100, 10, 0), true, 1, 100.0),
            (step(100, 10, 0), true, 2, 50.0),
            // What was just written lies in a cache; weights do where everything fits.
            (step(0, 100, 0), false, 1, 10.0),
            (step(0, 100, 100), false, 1, 100.0),
            (step(0, 100, 100), true, 1, 10.0),
            (step(0, 2000, 0), false, 1, 2000.0),
        ] {
            let ns = roof(all_cached).least_ns(&step, threads);
            assert!((ns - want_ns).abs() < 1e-6, "{step:?}: {ns}, not {want_ns}");
        }
    }
}
