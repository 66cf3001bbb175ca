//! Cascades: consecutive tiled operators run tile by tile together, what lies between them never leaving the scratchpad.
//!
//! In: operators in a row, each reading only what the one before makes. Out: which neighbours to run as one, and the
//! tiling of each group. Between two operators of a cascade lies a rolling buffer: the rows of a tile, and those kept from
//! the tile before for the halo, so nothing is computed twice.
//! Method: dynamic programming over the cuts of the row; a group pays if it ends earlier than its parts.
//! Loads of a cascade are counted with the halo of all its operators in every tile: never too little.

use super::tiles::{Rows, Scratchpad, Tiling, choose};

/// Operators `first..first + n` as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The first operator.
    pub first: usize,
    /// How many.
    pub n: usize,
    /// How they are run.
    pub tiling: Tiling,
}

/// Operators in a cascade, at most.
const MAX_GROUP: usize = 8;

/// Two operators as one: `b` reads what `a` makes. Nothing if the sizes are absurd.
pub fn join(a: &Rows, b: &Rows) -> Option<Rows> {
    if a.n_rows == 0 || b.n_rows == 0 {
        return None;
    }
    // Rows of `a` for each row of `b`, rounded up.
    let scale = |per_row: u64| per_row.checked_mul(a.n_rows).map(|total| total.div_ceil(b.n_rows));
    let halo_of_a = a.halo_rows.checked_mul(b.n_rows)?.div_ceil(a.n_rows);
    let rolling_halo_of_a = a.rolling_halo_rows.checked_mul(b.n_rows)?.div_ceil(a.n_rows);
    Some(Rows {
        n_rows: b.n_rows,
        in_bytes_per_row: scale(a.in_bytes_per_row)?,
        halo_rows: b.halo_rows.checked_add(halo_of_a)?,
        out_bytes_per_row: b.out_bytes_per_row,
        resident_bytes: a.resident_bytes.checked_add(b.resident_bytes)?,
        rolling_bytes_per_row: scale(a.rolling_bytes_per_row)?
            .checked_add(b.rolling_bytes_per_row)?
            .checked_add(b.in_bytes_per_row)?,
        rolling_halo_rows: b.halo_rows.max(rolling_halo_of_a).max(b.rolling_halo_rows),
        compute_ns: a.compute_ns.checked_add(b.compute_ns)?,
        launch_ns: a.launch_ns.checked_add(b.launch_ns)?,
        in_place: false,
    })
}

/// Cuts a row of `n` into groups so that the sum of their times is least: for each group its first member, its length and
/// what `group` said of it. `group` gives time and plan of members `first..first + n`, or nothing where they cannot run as one;
/// of equals the one with fewer members is taken. Nothing if some member has no plan even alone.
pub fn partition<T: Clone>(
    n: usize,
    mut group: impl FnMut(usize, usize) -> Option<(u64, T)>,
) -> Option<Vec<(usize, usize, T)>> {
    // Least time of the first members, and the group that ends there.
    let mut best: Vec<(u64, Option<(usize, usize, T)>)> = vec![(0, None)];
    for end in 1..=n {
        let mut least: Option<(u64, (usize, usize, T))> = None;
        for first in (end.saturating_sub(MAX_GROUP)..end).rev() {
            let (before, reachable) = &best[first];
            if reachable.is_none() && first > 0 {
                continue;
            }
            let Some((ns, plan)) = group(first, end - first) else { continue };
            let ns = before.saturating_add(ns);
            if least.as_ref().is_none_or(|(l, _)| ns < *l) {
                least = Some((ns, (first, end - first, plan)));
            }
        }
        best.push(least.map_or((u64::MAX, None), |(ns, group)| (ns, Some(group))));
    }
    let mut groups = Vec::new();
    let mut end = n;
    while end > 0 {
        let group = best[end].1.clone()?;
        end = group.0;
        groups.push(group);
    }
    groups.reverse();
    Some(groups)
}

/// The groups with the least predicted time, in order. Nothing if some operator does not fit even alone.
pub fn cascades(ops: &[Rows], pad: &Scratchpad) -> Option<Vec<Group>> {
    let groups = partition(ops.len(), |first, n| {
        let (last, before) = ops[first..first + n].split_last()?;
        let joined = before.iter().rev().try_fold(*last, |rest, op| join(op, &rest))?;
        let tiling = choose(&joined, pad)?;
        Some((tiling.predicted_ns, tiling))
    })?;
    Some(groups.into_iter().map(|(first, n, tiling)| Group { first, n, tiling }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(compute_ns: u64) -> Rows {
        Rows {
            n_rows: 60,
            in_bytes_per_row: 10,
            halo_rows: 2,
            out_bytes_per_row: 10,
            resident_bytes: 50,
            rolling_bytes_per_row: 0,
            rolling_halo_rows: 0,
            compute_ns,
            launch_ns: 5,
            in_place: false,
        }
    }

    fn pad(capacity_bytes: u64) -> Scratchpad {
        Scratchpad {
            capacity_bytes,
            alignment_bytes: 1,
            load_bytes_per_s: 1_000_000_000,
            load_latency_ns: 10,
            store_bytes_per_s: 1_000_000_000,
            store_latency_ns: 10,
            one_engine: true,
        }
    }

    fn total(groups: &[Group]) -> u64 {
        groups.iter().map(|g| g.tiling.predicted_ns).sum()
    }

    #[test]
    fn joined_sizes() {
        let j = join(&Rows { n_rows: 120, ..op(7) }, &op(8)).unwrap();
        assert_eq!((j.n_rows, j.in_bytes_per_row, j.out_bytes_per_row, j.compute_ns), (60, 20, 10, 15));
        assert_eq!((j.halo_rows, j.rolling_bytes_per_row, j.rolling_halo_rows, j.resident_bytes), (3, 10, 2, 100));
        assert_eq!(join(&Rows { n_rows: 0, ..op(1) }, &op(1)), None);
        assert_eq!(join(&Rows { in_bytes_per_row: u64::MAX, ..op(1) }, &op(1)), None);
    }

    /// Where transfers are the bottleneck, what lies between is not worth storing and loading.
    #[test]
    fn cascades_pay_where_transfers_are_dear() {
        let ops = [op(100), op(100), op(100)];
        let groups = cascades(&ops, &pad(1500)).unwrap();
        assert_eq!((groups.len(), groups[0].n), (1, 3));
        let alone: u64 = ops.iter().map(|o| choose(o, &pad(1500)).unwrap().predicted_ns).sum();
        assert!(total(&groups) * 2 < alone, "{} against {alone}", total(&groups));
        assert!(groups.iter().all(|g| g.tiling.bytes <= 1500));
    }

    #[test]
    fn what_does_not_fit_together_runs_alone() {
        let mut ops = [op(100), op(100), op(100)];
        ops[2].resident_bytes = 1_300;
        let groups = cascades(&ops, &pad(1_400)).unwrap();
        assert_eq!(groups.iter().map(|g| (g.first, g.n)).collect::<Vec<_>>(), [(0, 2), (2, 1)]);
        ops[1].resident_bytes = 1_500;
        assert_eq!(cascades(&ops, &pad(1_400)), None);
        assert_eq!(cascades(&[], &pad(1)), Some(vec![]));
    }

    /// The groups cover the row, and are never slower than all operators one by one.
    #[test]
    fn never_slower_than_one_by_one() {
        let mut r = crate::plan::testing::Random(7);
        for _ in 0..60 {
            let ops: Vec<Rows> = (0..1 + r.below(6))
                .map(|_| Rows {
                    n_rows: 1 + r.below(40),
                    in_bytes_per_row: r.below(30),
                    halo_rows: r.below(4),
                    out_bytes_per_row: r.below(30),
                    resident_bytes: r.below(300),
                    launch_ns: r.below(30),
                    ..op(r.below(2_000))
                })
                .collect();
            let pad = pad(600);
            let Some(groups) = cascades(&ops, &pad) else { continue };
            let alone: u64 = ops.iter().map(|o| choose(o, &pad).unwrap().predicted_ns).sum();
            assert!(total(&groups) <= alone);
            let mut at = 0;
            for g in &groups {
                assert_eq!(g.first, at);
                at += g.n;
            }
            assert_eq!(at, ops.len());
        }
    }
}
