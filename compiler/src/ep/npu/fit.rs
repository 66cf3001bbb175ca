//! Whether and how a call fits the device's memory: as a whole, or in tiles of rows and blocks, through one or two buffers (a third one changes nothing while times are constant).
//!
//! In: a call, what its buffers are, the device's memory and engines. Out: a [`Fit`] with the time that the tiles take by
//! simulation ([`crate::plan::tiles`]), the shortest of a fixed set of candidates; or what does not fit, in words.

use super::cut::{self, Extent, Piece, Window};
use crate::lower::{Buffer, BufferKind, Call};
use crate::plan::cost::ns_at;
use crate::plan::id::DeviceId;
use crate::plan::target::Target;
use crate::plan::tiles::{Scheme, TileTimes, simulate};

/// A device's memory and engines, as the target file has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pad {
    /// Size of the memory.
    pub capacity_bytes: u64,
    /// Buffers begin at multiples of this.
    pub alignment_bytes: u64,
    /// Loads: bytes a second, and start of each.
    pub load: (u64, u64),
    /// Stores: bytes a second, and start of each.
    pub store: (u64, u64),
    /// Loads and stores share an engine.
    pub one_engine: bool,
    /// Start of a kernel.
    pub launch_ns: u64,
}

impl Pad {
    /// The memory of a device and the links between it and the host; `None` where there are none.
    pub fn of(target: &Target, device: DeviceId) -> Option<Self> {
        let memory = &target.memories[target.device(device).memory.idx()];
        let (to, from) = (target.link(target.host, device)?, target.link(device, target.host)?);
        let rate = |link: &crate::plan::target::Link| {
            let latency = link.dma.map_or(0, |d| target.dmas[d.idx()].latency_ns);
            Some((link.copy_bytes_per_s?, latency))
        };
        // Without engines of its own, the device has one queue for both directions, and that one a rate.
        let one_engine = to.dma.is_none() && from.dma.is_none();
        Some(Self {
            capacity_bytes: memory.capacity_bytes,
            alignment_bytes: memory.alignment_bytes,
            load: rate(to)?,
            store: if one_engine { rate(to)? } else { rate(from)? },
            one_engine,
            launch_ns: target.device(device).launch_ns,
        })
    }

    /// Size of a window in the memory.
    pub fn aligned(&self, window: &Window) -> u64 {
        window.bytes().next_multiple_of(self.alignment_bytes)
    }

    /// Time of a transfer in.
    pub fn load_ns(&self, bytes: u64) -> u64 {
        if bytes == 0 { 0 } else { self.load.1 + ns_at(bytes, self.load.0) }
    }

    /// Time of a transfer out.
    pub fn store_ns(&self, bytes: u64) -> u64 {
        if bytes == 0 { 0 } else { self.store.1 + ns_at(bytes, self.store.0) }
    }
}

/// How a call is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// How far the call can be cut; one block of one row where it cannot.
    pub extent: Extent,
    /// Blocks of a tile.
    pub blocks: u64,
    /// Rows of a tile.
    pub rows: u64,
    /// Buffers for its operands.
    pub n_buffers: usize,
    /// Predicted time: of a whole call with operands in place, of tiles with their transfers.
    pub ns: u64,
}

impl Fit {
    /// Whether the call runs as a whole.
    pub fn is_whole(&self) -> bool {
        self.blocks >= self.extent.blocks && self.rows >= self.extent.rows
    }

    /// Block and row ranges of all tiles, blocks outermost, so that weights are loaded once.
    pub fn tiles(&self) -> Vec<(std::ops::Range<u64>, std::ops::Range<u64>)> {
        let ranges = |n: u64, each: u64| (0..n.div_ceil(each)).map(move |i| i * each..(i * each + each).min(n));
        let blocks = ranges(self.extent.blocks, self.blocks.max(1));
        blocks.flat_map(|b| ranges(self.extent.rows, self.rows.max(1)).map(move |r| (b.clone(), r))).collect()
    }
}

/// Bytes of a piece by use.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    input: u64,
    output: u64,
    weights: u64,
    scratch: u64,
    load_ns: u64,
    weights_ns: u64,
    store_ns: u64,
}

fn needs(piece: &Piece, buffers: &[Buffer], pad: &Pad) -> Needs {
    let mut n = Needs::default();
    for (o, w) in piece.call.operands().iter().zip(&piece.windows) {
        let bytes = pad.aligned(w);
        match &buffers[w.buffer as usize].kind {
            BufferKind::Scratch if o.name == "scratch" => n.scratch += bytes,
            BufferKind::Weight(_) => {
                n.weights += bytes;
                n.weights_ns += pad.load_ns(w.bytes());
            }
            _ if o.writes() => {
                n.output += bytes;
                n.store_ns += pad.store_ns(w.bytes());
            }
            _ => {
                n.input += bytes;
                n.load_ns += pad.load_ns(w.bytes());
            }
        }
    }
    n
}

/// Tiles beyond which no call is cut.
const MAX_TILES: u64 = 2048;

/// How to run a call that takes `compute_ns` without its launch.
pub fn fit(call: &dyn Call, buffers: &[Buffer], pad: &Pad, compute_ns: u64) -> Result<Fit, String> {
    let whole = cut::whole(call).ok_or("its kernel works in place, or its sizes are not fixed")?;
    let n = needs(&whole, buffers, pad);
    let all = n.input + n.output + n.weights + n.scratch;
    let extent = cut::extent(call);
    if all <= pad.capacity_bytes {
        let extent = extent.unwrap_or(Extent { blocks: 1, rows: 1 });
        // The transfer of weights can hide behind the call before.
        let ns = pad.launch_ns + compute_ns.max(n.weights_ns);
        return Ok(Fit { extent, blocks: extent.blocks, rows: extent.rows, n_buffers: 1, ns });
    }
    let too_large = || format!("it needs {all} bytes of {} and cannot be cut into tiles", pad.capacity_bytes);
    let extent = extent.ok_or_else(too_large)?;
    let mut best: Option<Fit> = None;
    let mut least = u64::MAX;
    for blocks in halves(extent.blocks) {
        for rows in halves(extent.rows) {
            for n_buffers in 1..=2 {
                let fit = Fit { extent, blocks, rows, n_buffers, ns: 0 };
                let Some((bytes, ns)) = tiled(call, buffers, pad, compute_ns, &fit) else { continue };
                least = least.min(bytes);
                let better = |b: &Fit| (ns, fit.n_buffers) < (b.ns, b.n_buffers);
                if bytes <= pad.capacity_bytes && best.as_ref().is_none_or(better) {
                    best = Some(Fit { ns, ..fit });
                }
            }
        }
    }
    best.ok_or_else(|| format!("its smallest tile needs {least} bytes of {}", pad.capacity_bytes))
}

/// n, n/2, n/4, … 1, rounded up.
pub(super) fn halves(n: u64) -> Vec<u64> {
    let mut all = vec![n];
    while let Some(&last) = all.last().filter(|&&last| last > 1) {
        all.push(last.div_ceil(2));
    }
    all
}

/// Bytes in use at once, and the time of all tiles.
fn tiled(call: &dyn Call, buffers: &[Buffer], pad: &Pad, compute_ns: u64, fit: &Fit) -> Option<(u64, u64)> {
    let Extent { blocks, rows } = fit.extent;
    let (groups, lines) = (blocks.div_ceil(fit.blocks), rows.div_ceil(fit.rows));
    if fit.is_whole() || groups * lines > MAX_TILES || fit.n_buffers as u64 > groups * lines {
        return None;
    }
    // The largest pieces: one in the middle has rows above and below it.
    let middle = lines / 2 * fit.rows;
    let middle = middle..(middle + fit.rows).min(rows);
    let samples = [0..fit.rows.min(rows), middle];
    let mut n = Needs::default();
    for lines in samples {
        let part = needs(&cut::piece(call, 0..fit.blocks, lines)?, buffers, pad);
        let max = |a: u64, b: u64| a.max(b);
        n = Needs {
            input: max(n.input, part.input),
            output: max(n.output, part.output),
            weights: max(n.weights, part.weights),
            scratch: max(n.scratch, part.scratch),
            load_ns: max(n.load_ns, part.load_ns),
            weights_ns: max(n.weights_ns, part.weights_ns),
            store_ns: max(n.store_ns, part.store_ns),
        };
    }
    let several = fit.n_buffers as u64;
    // The weights of the next blocks come while the last rows of these are at work.
    let weights = if groups > 1 && several > 1 { 2 * n.weights } else { n.weights };
    let bytes = several * (n.input + n.output) + weights + several.min(2) * n.scratch;
    let tiles = (groups * lines) as usize;
    let each = pad.launch_ns + compute_ns.div_ceil(groups * lines);
    let mut times = TileTimes::equal(tiles, n.load_ns, each, n.store_ns);
    for tile in (0..tiles).step_by(lines as usize) {
        times.load_ns[tile] += n.weights_ns;
    }
    let scheme = Scheme { n_buffers: fit.n_buffers, in_place: false, one_engine: pad.one_engine };
    Some((bytes, simulate(&times, scheme)))
}
