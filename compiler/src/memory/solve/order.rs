//! The orders in which buffers are tried. Names as in MiniMalloc: each letter is a key, greatest first, and ties go to the
//! next letter, at last to the buffer that comes first.

use super::component::Component;

/// A key of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A: bytes times lifetime.
    Area,
    /// T: the greatest total of any section it lives in.
    Total,
    /// W: lifetime (cliques it is in, for a graph).
    Width,
    /// Z: bytes.
    Size,
    /// O: neighbours.
    Overlaps,
}

/// The orders of the exact search, tried round-robin.
pub(super) const SEARCH_ORDERS: [[Key; 3]; 4] = [
    [Key::Width, Key::Area, Key::Total],
    [Key::Total, Key::Area, Key::Width],
    [Key::Total, Key::Width, Key::Area],
    [Key::Overlaps, Key::Area, Key::Total],
];

/// The orders of the greedy methods.
pub(super) const GREEDY_ORDERS: [[Key; 3]; 5] = [
    [Key::Size, Key::Width, Key::Total],
    [Key::Area, Key::Size, Key::Total],
    [Key::Width, Key::Area, Key::Total],
    [Key::Total, Key::Area, Key::Width],
    [Key::Total, Key::Width, Key::Area],
];

/// Sorts `buffers` by the keys of an order. `totals[i]` belongs to buffer `i`.
pub(super) fn sort(buffers: &mut [u32], order: &[Key; 3], part: &Component, totals: &[u64]) {
    let value = |key: Key, i: usize| match key {
        Key::Area => u128::from(part.sizes[i]) * u128::from(part.widths[i]),
        Key::Total => u128::from(totals[i]),
        Key::Width => u128::from(part.widths[i]),
        Key::Size => u128::from(part.sizes[i]),
        Key::Overlaps => part.neighbours.as_ref().map_or(0, |lists| lists.row(i).len() as u128),
    };
    buffers.sort_by(|&a, &b| {
        let differ = order.iter().map(|&key| value(key, b as usize).cmp(&value(key, a as usize)));
        differ.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then).then(a.cmp(&b))
    });
}
