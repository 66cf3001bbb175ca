//! How much memory a model may take, and which of its schedules fits.
//!
//! In: the arena's size of each schedule, the widest first; a budget in bytes. Out: the first that fits.
//! The system is asked once, when a model is made. Source: Parallax, arXiv 2512.11532, §3.3.

use super::Error;

/// What is left alone of the memory that is free, in percent.
#[cfg(all(feature = "std", target_os = "linux"))]
const MARGIN_PERCENT: u64 = 40;

/// The position of the first arena within the budget; [`Error::Budget`] with the size of the smallest if there is none.
pub fn widest_within(arena_bytes: &[usize], budget_bytes: usize) -> Result<usize, Error> {
    let least = arena_bytes.iter().copied().min().unwrap_or(0);
    let fits = arena_bytes.iter().position(|bytes| *bytes <= budget_bytes);
    fits.ok_or(Error::Budget { needed: least, given: budget_bytes })
}

/// What an arena may take of the memory that the system has free: all but the margin. Everything where the system does not
/// say what is free.
pub fn free_budget_bytes() -> usize {
    #[cfg(all(feature = "std", target_os = "linux"))]
    if let Some(free) = std::fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(available) {
        return usize::try_from(u128::from(free) * u128::from(100 - MARGIN_PERCENT) / 100).unwrap_or(usize::MAX);
    }
    usize::MAX
}

/// The bytes that Linux says a program can have without swapping.
#[cfg(all(feature = "std", target_os = "linux"))]
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_that_fits() {
        assert_eq!(widest_within(&[100, 60], 100), Ok(0));
        assert_eq!(widest_within(&[100, 60], 99), Ok(1));
        assert_eq!(widest_within(&[100, 60], 59), Err(Error::Budget { needed: 60, given: 59 }));
        assert_eq!(widest_within(&[7], usize::MAX), Ok(0));
        assert!(free_budget_bytes() > 0);
    }

    #[cfg(all(feature = "std", target_os = "linux"))]
    #[test]
    fn linux_says_what_is_available() {
        let text = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB\n";
        assert_eq!(available(text), Some(8192 << 10));
        assert_eq!(available("MemAvailable: many kB"), None);
        assert_eq!(available(""), None);
    }
}
