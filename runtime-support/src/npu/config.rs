//! What the device is like: size of its memory, rates of its engines.
//!
//! In: a target file's numbers. Times are nanoseconds, rates bytes a second.

/// Rates of a DMA engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaRate {
    /// Bytes a second.
    pub bytes_per_s: u64,
    /// Start of each transfer.
    pub latency_ns: u64,
    /// What a value's change of devices costs beyond that.
    pub handshake_ns: u64,
}

impl DmaRate {
    /// Time of a transfer, rounded up.
    pub fn transfer_ns(&self, bytes: usize, handshake: bool) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let moving = (bytes as u128 * 1_000_000_000).div_ceil(u128::from(self.bytes_per_s.max(1)));
        let start = self.latency_ns.saturating_add(if handshake { self.handshake_ns } else { 0 });
        start.saturating_add(u64::try_from(moving).unwrap_or(u64::MAX))
    }
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Size of its memory.
    pub sram_bytes: usize,
    /// The engine that loads.
    pub load: DmaRate,
    /// The engine that stores; `None` where the loading engine does that too.
    pub store: Option<DmaRate>,
    /// Events a program may use.
    pub n_events: u32,
    /// Whether commands take the time that the rates say. Without, they take what they take here.
    pub paced: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_round_up() {
        let rate = DmaRate { bytes_per_s: 3_000_000_000, latency_ns: 10, handshake_ns: 100 };
        assert_eq!(rate.transfer_ns(0, true), 0);
        assert_eq!(rate.transfer_ns(1, false), 11);
        assert_eq!(rate.transfer_ns(6, true), 112);
        assert_eq!(DmaRate { bytes_per_s: 0, ..rate }.transfer_ns(usize::MAX, false), u64::MAX);
    }
}
