//! Tiles: an operator cut into pieces that fit a small memory, with transfers beside the computing.
//!
//! In: an operator's rows, bytes and time, a scratchpad and its DMA. Out: a [`Tiling`] (number of tiles, buffers, predicted
//! time), chosen by simulation. Per tile: load d, compute c, store o.
//! Formulas: one buffer N(d+c+o); two buffers d+c+o + (N−1)·max with max = max(c, d+o) where loads and stores share an
//! engine and max(c, d, o) where each has its own. They are exact without stores, with two engines, and for c ≥ d+o;
//! where a shared engine is the bottleneck the simulation ends earlier, by at most one tile's max, as it fills while it drains.

use super::cost::ns_at;

/// How the tiles of one operator are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// Buffers for input, and as many for output. With one, a tile is loaded, computed and stored before the next is loaded.
    pub n_buffers: usize,
    /// Output is written over the input: a buffer is free again only once it was stored.
    pub in_place: bool,
    /// Loads and stores share an engine.
    pub one_engine: bool,
}

/// Times of each tile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TileTimes {
    /// Transfer in.
    pub load_ns: Vec<u64>,
    /// Computing.
    pub compute_ns: Vec<u64>,
    /// Transfer out; 0 where nothing is stored.
    pub store_ns: Vec<u64>,
}

impl TileTimes {
    /// `n` equal tiles.
    pub fn equal(n: usize, load_ns: u64, compute_ns: u64, store_ns: u64) -> TileTimes {
        TileTimes { load_ns: vec![load_ns; n], compute_ns: vec![compute_ns; n], store_ns: vec![store_ns; n] }
    }
}

/// N(d+c+o).
pub fn one_buffer_ns(n: u64, d: u64, c: u64, o: u64) -> u64 {
    n * (d + c + o)
}

/// d+c+o + (N−1)·max.
pub fn two_buffers_ns(n: u64, d: u64, c: u64, o: u64, one_engine: bool) -> u64 {
    let max = if one_engine { c.max(d + o) } else { c.max(d).max(o) };
    if n == 0 { 0 } else { d + c + o + (n - 1) * max }
}

/// What two buffers save against one as N grows, in thousandths: min(c, d) / (c + d), without stores.
pub fn saving_limit_permille(d: u64, c: u64) -> u64 {
    (c.min(d) * 1000).checked_div(c + d).unwrap_or(0)
}

/// One piece of work of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Transfer of a tile in.
    Load(usize),
    /// Its computing.
    Compute(usize),
    /// Its transfer out.
    Store(usize),
}

/// The ordered queues that carry out a scheme: loading engine (and storing, where shared), computing, storing engine.
/// On a shared engine a tile's store stands behind the load that its buffer is free for, or before it where it is not.
pub fn queues(n: usize, scheme: Scheme) -> [Vec<Work>; 3] {
    let compute = (0..n).map(Work::Compute).collect();
    if !scheme.one_engine {
        return [(0..n).map(Work::Load).collect(), compute, (0..n).map(Work::Store).collect()];
    }
    let ahead = scheme.n_buffers.max(1);
    let waits_for_store = scheme.in_place || ahead == 1;
    let mut engine: Vec<Work> = (0..n.min(ahead)).map(Work::Load).collect();
    for i in 0..n {
        let next = (i + ahead < n).then_some(Work::Load(i + ahead));
        if waits_for_store {
            engine.push(Work::Store(i));
            engine.extend(next);
        } else {
            engine.extend(next);
            engine.push(Work::Store(i));
        }
    }
    [engine, compute, Vec::new()]
}

/// What must be done before a piece of work may begin, beyond what stands before it in its queue: the data is there, the
/// buffer is free.
pub fn needs(work: Work, scheme: Scheme) -> [Option<Work>; 2] {
    let b = scheme.n_buffers.max(1);
    let waits_for_store = scheme.in_place || b == 1;
    match work {
        Work::Load(i) if waits_for_store => [i.checked_sub(b).map(Work::Store), None],
        Work::Load(i) => [i.checked_sub(b).map(Work::Compute), None],
        Work::Compute(i) if waits_for_store => [Some(Work::Load(i)), None],
        Work::Compute(i) => [Some(Work::Load(i)), i.checked_sub(b).map(Work::Store)],
        Work::Store(i) => [Some(Work::Compute(i)), None],
    }
}

/// Runs the queues: begin and end of each piece of work, and the end of all.
pub fn simulate(times: &TileTimes, scheme: Scheme) -> u64 {
    let n = times.compute_ns.len();
    let queues = queues(n, scheme);
    // Loaded, computed, stored: when, once that is known.
    let mut done = [vec![None; n], vec![None; n], vec![None; n]];
    let place = |work: Work| match work {
        Work::Load(i) => (0, i, times.load_ns[i]),
        Work::Compute(i) => (1, i, times.compute_ns[i]),
        Work::Store(i) => (2, i, times.store_ns[i]),
    };
    let mut at = [0usize; 3];
    let mut now = [0u64; 3];
    loop {
        let mut moved = false;
        for q in 0..3 {
            while let Some(&work) = queues[q].get(at[q]) {
                let ready = needs(work, scheme).into_iter().flatten().try_fold(0u64, |ready, need| {
                    let (kind, i, _) = place(need);
                    done[kind][i].map(|ns: u64| ns.max(ready))
                });
                let Some(ready) = ready else { break };
                let (kind, i, ns) = place(work);
                // Nothing to store takes no turn on the engine.
                if ns == 0 && kind == 2 {
                    done[kind][i] = Some(ready);
                } else {
                    now[q] = now[q].max(ready) + ns;
                    done[kind][i] = Some(now[q]);
                }
                at[q] += 1;
                moved = true;
            }
        }
        if !moved {
            return now.into_iter().max().unwrap_or(0);
        }
    }
}

/// An operator whose rows can be computed in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Rows of output.
    pub n_rows: u64,
    /// Input of one row of output, without the halo.
    pub in_bytes_per_row: u64,
    /// Further rows of input that every tile needs (a convolution's kernel height less its stride).
    pub halo_rows: u64,
    /// Output of one row.
    pub out_bytes_per_row: u64,
    /// What stays in memory all the while: weights, scratch.
    pub resident_bytes: u64,
    /// What lies in memory between two operators of a cascade, for each row of the tile and of the halo.
    pub rolling_bytes_per_row: u64,
    /// Rows of it that are kept from tile to tile.
    pub rolling_halo_rows: u64,
    /// Time of all rows, without launches.
    pub compute_ns: u64,
    /// Time to start each tile.
    pub launch_ns: u64,
    /// Output may be written over input.
    pub in_place: bool,
}

/// A scratchpad and the engines that fill and empty it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratchpad {
    /// Size.
    pub capacity_bytes: u64,
    /// Buffers begin at multiples of this.
    pub alignment_bytes: u64,
    /// Loads: bytes a second.
    pub load_bytes_per_s: u64,
    /// Loads: start of each.
    pub load_latency_ns: u64,
    /// Stores: bytes a second.
    pub store_bytes_per_s: u64,
    /// Stores: start of each.
    pub store_latency_ns: u64,
    /// Loads and stores share an engine.
    pub one_engine: bool,
}

/// How to cut an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Tiles; 1 for none.
    pub n_tiles: u64,
    /// Rows of each tile but the last.
    pub rows: u64,
    /// Buffers and engines.
    pub scheme: Scheme,
    /// Times of each tile.
    pub times: TileTimes,
    /// Predicted time of all.
    pub predicted_ns: u64,
    /// Bytes of the scratchpad in use.
    pub bytes: u64,
}

/// Tiles beyond which no operator is cut.
const MAX_TILES: u64 = 4096;

/// The fastest way to run the operator in the scratchpad: of equals with the fewest tiles, then the fewest bytes. Nothing
/// if not even one row fits.
pub fn choose(op: &Rows, pad: &Scratchpad) -> Option<Tiling> {
    let mut best: Option<Tiling> = None;
    let mut rows = op.n_rows;
    while rows > 0 {
        let n_tiles = op.n_rows.div_ceil(rows);
        if n_tiles > MAX_TILES {
            break;
        }
        for n_buffers in 1..=3usize {
            for in_place in [false, true] {
                let scheme = Scheme { n_buffers, in_place, one_engine: pad.one_engine };
                let useless = in_place && (!op.in_place || n_buffers == 1) || n_buffers as u64 > n_tiles;
                let Some(tiling) = (!useless).then(|| tiling(op, pad, rows, scheme)).flatten() else { continue };
                let rank = |t: &Tiling| (t.predicted_ns, t.n_tiles, t.bytes);
                if best.as_ref().is_none_or(|b| rank(&tiling) < rank(b)) {
                    best = Some(tiling);
                }
            }
        }
        // The greatest tile height that makes more tiles.
        let next = op.n_rows.div_ceil(n_tiles + 1);
        rows = if next < rows { next } else { rows - 1 };
    }
    best
}

/// The operator in tiles of so many rows, if that fits.
pub fn tiling(op: &Rows, pad: &Scratchpad, rows: u64, scheme: Scheme) -> Option<Tiling> {
    if rows == 0 || op.n_rows == 0 {
        return None;
    }
    let n_tiles = op.n_rows.div_ceil(rows);
    let in_bytes = |rows: u64| op.in_bytes_per_row.checked_mul(rows.checked_add(op.halo_rows)?);
    let out_bytes = |rows: u64| op.out_bytes_per_row.checked_mul(rows);
    let align = |bytes: u64| bytes.checked_next_multiple_of(pad.alignment_bytes.max(1));
    let (input, output) = (align(in_bytes(rows)?)?, align(out_bytes(rows)?)?);
    let each = if scheme.in_place { input.max(output) } else { input.checked_add(output)? };
    let rolling = align(op.rolling_bytes_per_row.checked_mul(rows.checked_add(op.rolling_halo_rows)?)?)?;
    let resident = align(op.resident_bytes)?.checked_add(rolling)?;
    let bytes = each.checked_mul(scheme.n_buffers as u64)?.checked_add(resident)?;
    if bytes > pad.capacity_bytes {
        return None;
    }
    let mut times = TileTimes::default();
    for tile in 0..n_tiles {
        let rows = rows.min(op.n_rows - tile * rows);
        let transfer = |bytes: u64, rate: u64, latency: u64| if bytes == 0 { 0 } else { latency + ns_at(bytes, rate) };
        times.load_ns.push(transfer(in_bytes(rows)?, pad.load_bytes_per_s, pad.load_latency_ns));
        times.store_ns.push(transfer(out_bytes(rows)?, pad.store_bytes_per_s, pad.store_latency_ns));
        let share = (u128::from(op.compute_ns) * u128::from(rows)).div_ceil(u128::from(op.n_rows));
        times.compute_ns.push(op.launch_ns.checked_add(u64::try_from(share).ok()?)?);
    }
    let predicted_ns = simulate(&times, scheme);
    Some(Tiling { n_tiles, rows, scheme, times, predicted_ns, bytes })
}

/// A tiled operator in a row of them, for the prefetch of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its time, weights not counted.
    pub ns: u64,
    /// The loading engine's idle time in it.
    pub slack_ns: u64,
    /// Bytes it needs, its weights included.
    pub bytes: u64,
    /// Its weights' bytes.
    pub weight_bytes: u64,
    /// Time to load its weights.
    pub weight_ns: u64,
}

/// For each operator of a row, how long it has to wait for its weights: those that fit beside the operator before are
/// loaded in that one's slack.
pub fn exposed_ns(stages: &[Stage], capacity_bytes: u64) -> Vec<u64> {
    let wait = |(i, s): (usize, &Stage)| {
        let before = i.checked_sub(1).map(|i| stages[i]);
        let room = before.filter(|b| b.bytes.checked_add(s.weight_bytes).is_some_and(|sum| sum <= capacity_bytes));
        s.weight_ns.saturating_sub(room.map_or(0, |b| b.slack_ns))
    };
    stages.iter().enumerate().map(wait).collect()
}

impl Tiling {
    /// The loading engine's idle time.
    pub fn slack_ns(&self) -> u64 {
        let stores = if self.scheme.one_engine { self.times.store_ns.iter().sum() } else { 0 };
        self.predicted_ns.saturating_sub(self.times.load_ns.iter().sum::<u64>()).saturating_sub(stores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::Random;

    fn scheme(n_buffers: usize, one_engine: bool) -> Scheme {
        Scheme { n_buffers, in_place: false, one_engine }
    }

    /// planning.md §9, N = 6 and o = 0, in ms: 48 -> 28, 48 -> 38, 48 -> 38; limits 50 %, 25 %, 25 %.
    #[test]
    fn goldens() {
        for (d, c, want, saved_permille, limit) in [(4, 4, 28, 416, 500), (2, 6, 38, 208, 250), (6, 2, 38, 208, 250)] {
            let times = TileTimes::equal(6, d, c, 0);
            for one_engine in [false, true] {
                assert_eq!(simulate(&times, scheme(1, one_engine)), 48);
                assert_eq!(simulate(&times, scheme(2, one_engine)), want);
                assert_eq!(simulate(&times, scheme(3, one_engine)), want);
            }
            assert_eq!((one_buffer_ns(6, d, c, 0), two_buffers_ns(6, d, c, 0, true)), (48, want));
            assert_eq!((48 - want) * 1000 / 48, saved_permille);
            assert_eq!(saving_limit_permille(d, c), limit);
            let n = 100_000;
            let (one, two) = (one_buffer_ns(n, d, c, 0), two_buffers_ns(n, d, c, 0, true));
            assert!(((one - two) * 1000 / one).abs_diff(limit) <= 1);
        }
    }

    #[test]
    fn formulas_equal_the_simulation() {
        let mut r = Random(91);
        for _ in 0..3000 {
            let (n, d, c, o) = (1 + r.below(12), 1 + r.below(20), 1 + r.below(20), r.below(20));
            let times = TileTimes::equal(n as usize, d, c, o);
            for one_engine in [false, true] {
                assert_eq!(simulate(&times, scheme(1, one_engine)), one_buffer_ns(n, d, c, o));
                let (formula, two) = (two_buffers_ns(n, d, c, o, one_engine), simulate(&times, scheme(2, one_engine)));
                if !one_engine || o == 0 || c >= d + o {
                    assert_eq!(two, formula, "N {n} d {d} c {c} o {o} one engine {one_engine}");
                    assert_eq!(simulate(&times, scheme(3, one_engine)), two, "a third buffer changes nothing");
                } else {
                    let max = c.max(d + o);
                    assert!(two <= formula && formula - two <= max, "{two} {formula}: N {n} d {d} c {c} o {o}");
                }
            }
        }
    }

    #[test]
    fn a_third_buffer_pays_when_latency_varies_or_output_is_in_place() {
        let mut times = TileTimes::equal(6, 4, 4, 0);
        times.load_ns = vec![4, 1, 1, 10, 4, 4];
        assert!(simulate(&times, scheme(3, false)) < simulate(&times, scheme(2, false)));
        let times = TileTimes::equal(6, 4, 4, 4);
        let in_place = |n_buffers| simulate(&times, Scheme { n_buffers, in_place: true, one_engine: false });
        assert!(in_place(3) < in_place(2) && in_place(2) < in_place(1));
        assert_eq!(in_place(3), two_buffers_ns(6, 4, 4, 4, false));
    }

    /// Loads 1 byte/ns, no latency: times equal bytes.
    fn pad(capacity_bytes: u64) -> Scratchpad {
        Scratchpad {
            capacity_bytes,
            alignment_bytes: 1,
            load_bytes_per_s: 1_000_000_000,
            load_latency_ns: 0,
            store_bytes_per_s: 1_000_000_000,
            store_latency_ns: 0,
            one_engine: false,
        }
    }

    fn op() -> Rows {
        Rows {
            n_rows: 60,
            in_bytes_per_row: 10,
            halo_rows: 0,
            out_bytes_per_row: 1,
            resident_bytes: 100,
            rolling_bytes_per_row: 0,
            rolling_halo_rows: 0,
            compute_ns: 600,
            launch_ns: 0,
            in_place: false,
        }
    }

    #[test]
    fn the_tiling_fits_and_is_the_fastest() {
        let mut last = u64::MAX;
        for capacity in [110, 111, 122, 200, 300, 760, 10_000] {
            match choose(&op(), &pad(capacity)) {
                None => assert!(capacity < 111),
                Some(t) => {
                    assert!(t.bytes <= capacity && t.rows * t.n_tiles >= 60);
                    assert_eq!(t.times.compute_ns.len() as u64, t.n_tiles);
                    assert!(t.predicted_ns <= last, "more memory is never slower");
                    last = t.predicted_ns;
                }
            }
        }
        // One row fits once: one buffer. 11 + 11: two.
        assert_eq!(choose(&op(), &pad(111)).unwrap().scheme.n_buffers, 1);
        assert_eq!(choose(&op(), &pad(122)).unwrap().scheme.n_buffers, 2);
    }

    #[test]
    fn nothing_is_tiled_where_it_does_not_pay() {
        let roomy = pad(100_000);
        assert!(choose(&op(), &roomy).unwrap().n_tiles > 1, "overlap pays while tiles are free");
        let mut dear = op();
        dear.launch_ns = 1_000;
        let t = choose(&dear, &roomy).unwrap();
        assert_eq!((t.n_tiles, t.scheme.n_buffers), (1, 1));
        // A halo makes many tiles dear, and so does the latency of transfers.
        let mut halo = op();
        halo.halo_rows = 4;
        assert!(choose(&halo, &roomy).unwrap().n_tiles < choose(&op(), &roomy).unwrap().n_tiles);
        let slow = Scratchpad { load_latency_ns: 50, store_latency_ns: 50, ..roomy };
        assert!(choose(&op(), &slow).unwrap().n_tiles < choose(&op(), &roomy).unwrap().n_tiles);
        // Without rows there is nothing, and absurd sizes do not overflow.
        assert_eq!(choose(&Rows { n_rows: 0, ..op() }, &roomy), None);
        assert_eq!(choose(&Rows { in_bytes_per_row: u64::MAX / 2, ..op() }, &roomy), None);
    }

    #[test]
    fn weights_hide_in_the_slack_before() {
        let stage = |slack_ns, bytes| Stage { ns: 100, slack_ns, bytes, weight_bytes: 10, weight_ns: 30 };
        assert_eq!(exposed_ns(&[stage(20, 50), stage(40, 95), stage(0, 50)], 100), [30, 10, 30]);
        let t = tiling(&op(), &pad(10_000), 10, scheme(2, false)).unwrap();
        assert_eq!(t.slack_ns(), t.predicted_ns - 600);
    }
}
