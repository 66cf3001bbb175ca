//! The CPU's provider: claims every operator, which makes every graph runnable.
//!
//! Costs are the roofline of the target file; heavy nodes may be cut over the streams.

use super::{Candidate, Decline, ExecutionProvider, Offer};

/// Work below which a shard is not worth a sync point, in multiply-accumulates.
const SHARD_MACS: u64 = 100_000;
/// Shards at most.
const MAX_SPLITS: u64 = 64;

/// The CPU.
#[derive(Clone, Copy, Debug)]
pub struct Cpu;

impl ExecutionProvider for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn claim(&self, node: &Candidate<'_>) -> Result<Offer, Decline> {
        let splits = (node.work.macs / SHARD_MACS).clamp(1, MAX_SPLITS);
        Ok(Offer { cost_ns: node.roofline_ns(), splits: splits as u32 })
    }
}
