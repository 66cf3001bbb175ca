//! From placed calls to what an NPU does: pieces that fit its memory, and the transfers around them.
//!
//! In: lowered calls, which of them run on the device and how ([`Fit`]). Out: [`Expanded`]: the same calls with the device's
//! ones cut into pieces over buffers in its memory, transfers as steps of their own, and for every step the engine that
//! runs it and the steps it must wait for beyond its data. A value that only whole calls on the device touch stays in its
//! memory as long as there is room; all others lie in the host's, and every piece loads and stores what it needs. The next
//! piece's loads stand before a piece's computing where both fit, so that they overlap; a window that the piece before
//! had already is not loaded again. Calls of a cascade ([`Cascade`]) are cut into strips in place of pieces: a strip's calls
//! compute one after the other, and what lies between them is neither stored nor loaded.
//! Invariant: the steps' order is one in which everything is right, one after the other.

use super::cascade::{self, Cascade};
use super::cut::{self, Piece, WHOLE_PPM, Window};
use super::fit::{Fit, Pad};
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::{self, Buffer, BufferKind, Lowered, Step};
use kiln_kernels::{Dtype, Operand, Role, Transfer};
use std::collections::{BTreeMap, BTreeSet};

/// Who runs a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// The CPU.
    Host,
    /// The engine that fills the device's memory; stores too, where the device has one engine.
    Load,
    /// The device's compute unit.
    Compute,
    /// The engine that empties its memory.
    Store,
}

/// A call on the device.
#[derive(Clone, Copy, Debug)]
pub struct OnDevice {
    /// How it is run.
    pub fit: Fit,
    /// Its time without launch.
    pub compute_ns: u64,
}

impl OnDevice {
    /// Time of a piece of it, launch included.
    pub fn ns(&self, piece: &Piece, pad: &Pad) -> u64 {
        pad.launch_ns + (u128::from(self.compute_ns) * u128::from(piece.ppm)).div_ceil(u128::from(WHOLE_PPM)) as u64
    }
}

/// The result.
#[derive(Debug, Default)]
pub struct Expanded {
    /// Steps and buffers.
    pub lowered: Lowered,
    /// The engine of each step.
    pub lanes: Vec<Lane>,
    /// The device's time of each step; 0 for the host's.
    pub ns: Vec<u64>,
    /// Whether a transfer begins or ends a value's crossing.
    pub handshake: Vec<bool>,
    /// Steps that each step must wait for so that the device's memory does not overflow.
    pub needs: Vec<Vec<usize>>,
}

/// A piece, or the pieces of a strip, with the steps that make it up, before they are put in order.
struct Job {
    loads: Vec<NewStep>,
    computes: Vec<NewStep>,
    stores: Vec<NewStep>,
    /// May be loaded while the piece before computes.
    early: bool,
    /// Buffers of the host's memory that it loads from and stores to.
    reads: BTreeSet<u32>,
    writes: BTreeSet<u32>,
}

struct NewStep {
    step: Step,
    lane: Lane,
    ns: u64,
    handshake: bool,
}

enum Item {
    Host(Step),
    Piece(Job),
}

struct Expansion<'a> {
    pad: &'a Pad,
    buffers: Vec<Buffer>,
    /// Values that stay in the device's memory: after which step nobody needs them.
    resident: BTreeMap<u32, usize>,
    /// What lies in the device's memory: the buffer there, the last piece that used it.
    cache: BTreeMap<Window, (u32, usize)>,
    n_pieces: usize,
    /// Whether the host wrote a buffer last and the device has not fetched it yet.
    fresh: Vec<bool>,
    read_by_host: Vec<bool>,
    items: Vec<Item>,
}

fn error(message: impl Into<String>) -> CompileError {
    CompileError::new(Stage::Plan, message)
}

/// A piece of a call, on its way to a job.
struct Part<'a> {
    /// The call's place among the steps.
    i: usize,
    step: &'a Step,
    device: OnDevice,
    piece: Piece,
    /// Its result goes to the host's memory, unless it stays as a whole.
    stored: bool,
}

/// Expands. `fill_permille` is the part of the memory that residents and early loads may fill.
pub fn expand(
    lowered: Lowered,
    on: &[Option<OnDevice>],
    cascades: &[Cascade],
    pad: &Pad,
    fill_permille: u64,
) -> Result<Expanded, CompileError> {
    let room = pad.capacity_bytes / 1000 * fill_permille;
    let grouped: BTreeSet<usize> = cascades.iter().flat_map(|c| c.first..c.first + c.n).collect();
    let (resident, crowd) = residents(&lowered, on, &grouped, pad, room);
    let mut read_by_host = vec![false; lowered.buffers.len()];
    for place in &lowered.outputs {
        read_by_host[place.buffer as usize] = true;
    }
    for (step, _) in lowered.steps.iter().zip(on).filter(|(_, on)| on.is_none()) {
        step.call.operands().iter().for_each(|o| read_by_host[o.operand.mem as usize] |= o.role != Role::Write);
    }
    let fresh = lowered.buffers.iter().map(|b| matches!(b.kind, BufferKind::Input(_))).collect();
    let mut lowered = lowered;
    let mut it = Expansion {
        pad,
        buffers: std::mem::take(&mut lowered.buffers),
        resident,
        cache: BTreeMap::new(),
        n_pieces: 0,
        fresh,
        read_by_host,
        items: Vec::new(),
    };
    let steps = std::mem::take(&mut lowered.steps);
    for (i, step) in steps.iter().enumerate() {
        match on[i] {
            _ if grouped.contains(&i) => {
                if let Some(group) = cascades.iter().find(|c| c.first == i) {
                    it.cascade(group, &steps, on)?;
                }
            }
            None => {
                for o in step.call.operands().iter().filter(|o| o.writes()) {
                    it.written(o.operand.mem);
                    it.fresh[o.operand.mem as usize] = true;
                }
                it.items.push(Item::Host(Step { call: step.call.boxed(), node_idx: step.node_idx }));
            }
            Some(device) => {
                // The call's own tiles may overlap if that was counted; whole calls if the memory has room for both.
                let roomy = i > 0 && crowd[i - 1].saturating_add(crowd[i]) <= room;
                it.call(i, step, device, roomy)?;
            }
        }
    }
    lowered.buffers = it.buffers;
    Ok(ordered(lowered, it.items))
}

/// Which values stay in the device's memory and until which step; and for every step the bytes it needs in it, with what
/// stays meanwhile.
fn residents(
    lowered: &Lowered,
    on: &[Option<OnDevice>],
    grouped: &BTreeSet<usize>,
    pad: &Pad,
    room: u64,
) -> (BTreeMap<u32, usize>, Vec<u64>) {
    let mut writers: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let mut life: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    let mut elsewhere: BTreeSet<u32> = lowered.outputs.iter().map(|p| p.buffer).collect();
    let whole_buffer =
        |o: &lower::CallOperand| o.operand.off == 0 && o.operand.bytes == lowered.buffers[o.operand.mem as usize].bytes;
    for (i, step) in lowered.steps.iter().enumerate() {
        let here = on[i].is_some_and(|d| d.fit.is_whole()) && !grouped.contains(&i);
        for o in step.call.operands() {
            let b = o.operand.mem;
            if o.writes() {
                writers.entry(b).or_default().push(i);
            }
            let (_, last) = life.entry(b).or_insert((i, i));
            *last = i;
            let value = lowered.buffers[b as usize].kind == BufferKind::Activation;
            if !here || !value || !whole_buffer(&o) {
                elsewhere.insert(b);
            }
        }
    }
    let stays = |b: &u32| !elsewhere.contains(b) && writers.get(b).is_some_and(|w| w.len() == 1 && w[0] == life[b].0);
    let mut stay: BTreeSet<u32> = life.keys().copied().filter(stays).collect();
    let size = |b: u32| crate::ep::upper(&lowered.buffers[b as usize].bytes).next_multiple_of(pad.alignment_bytes);
    let mut crowd = vec![0; lowered.steps.len()];
    for (i, step) in lowered.steps.iter().enumerate() {
        let Some(device) = on[i] else { continue };
        let operands: BTreeSet<u32> = step.call.operands().iter().map(|o| o.operand.mem).collect();
        let own = if device.fit.is_whole() && !grouped.contains(&i) {
            operands.iter().map(|&b| size(b)).sum()
        } else {
            pad.capacity_bytes
        };
        loop {
            let beside = |b: &&u32| life[b].0 < i && i <= life[b].1 && !operands.contains(b);
            let all: Vec<u32> = stay.iter().filter(beside).copied().collect();
            crowd[i] = own + all.iter().map(|&b| size(b)).sum::<u64>();
            let largest = all.into_iter().max_by_key(|&b| (size(b), b));
            match largest.filter(|_| crowd[i] > room) {
                Some(b) => _ = stay.remove(&b),
                None => break,
            }
        }
    }
    (stay.into_iter().map(|b| (b, life[&b].1)).collect(), crowd)
}

impl Expansion<'_> {
    /// What the device has of a buffer is out of date.
    fn written(&mut self, buffer: u32) {
        self.cache.retain(|w, _| w.buffer != buffer);
    }

    fn on_device(&mut self, name: String, bytes: u64) -> u32 {
        self.buffers.push(Buffer { name, bytes: Dim::Const(bytes as i64), kind: BufferKind::OnDevice });
        self.fresh.push(false);
        self.read_by_host.push(false);
        self.buffers.len() as u32 - 1
    }

    fn call(&mut self, i: usize, step: &Step, device: OnDevice, roomy: bool) -> Result<(), CompileError> {
        let tiles = device.fit.tiles();
        let n = tiles.len();
        for (t, (blocks, rows)) in tiles.into_iter().enumerate() {
            let piece = match device.fit.is_whole() {
                true => cut::whole(&*step.call),
                false => cut::piece(&*step.call, blocks, rows),
            };
            let piece = piece.ok_or_else(|| error("a call on the device cannot be cut as planned"))?;
            let early = if t == 0 { roomy } else { device.fit.n_buffers > 1 };
            let job = self.job(vec![Part { i, step, device, piece, stored: true }], early, t + 1 == n)?;
            self.items.push(Item::Piece(job));
            self.n_pieces += 1;
        }
        self.fetched(step);
        Ok(())
    }

    /// The strips of a cascade.
    fn cascade(&mut self, group: &Cascade, steps: &[Step], on: &[Option<OnDevice>]) -> Result<(), CompileError> {
        let members = group.first..group.first + group.n;
        let calls: Vec<&dyn lower::Call> = steps[members.clone()].iter().map(|s| &*s.call).collect();
        let strips = group.strips();
        let n = strips.len();
        for (t, rows) in strips.into_iter().enumerate() {
            let wrong = || error("a cascade on the device cannot be cut as planned");
            let pieces = cascade::strip(&calls, rows).ok_or_else(wrong)?;
            let part = |(i, piece): (usize, Piece)| {
                let device = on[i].ok_or_else(wrong)?;
                Ok::<_, CompileError>(Part { i, step: &steps[i], device, piece, stored: group.stored.contains(&i) })
            };
            let parts = members.clone().zip(pieces).map(part).collect::<Result<Vec<_>, _>>()?;
            let job = self.job(parts, t > 0 && group.n_buffers > 1, t + 1 == n)?;
            self.items.push(Item::Piece(job));
            self.n_pieces += 1;
        }
        steps[members].iter().for_each(|step| self.fetched(step));
        Ok(())
    }

    /// The device made what the call writes: nothing to fetch from the host.
    fn fetched(&mut self, step: &Step) {
        for o in step.call.operands().iter().filter(|o| o.writes()) {
            self.fresh[o.operand.mem as usize] = false;
        }
    }

    /// The steps of a piece, or of the pieces of a strip.
    fn job(&mut self, parts: Vec<Part<'_>>, early: bool, last: bool) -> Result<Job, CompileError> {
        let (mut loads, mut computes, mut stores) = (Vec::new(), Vec::new(), Vec::new());
        let (mut reads, mut written) = (BTreeSet::new(), BTreeSet::new());
        // What the strip has made so far.
        let mut made: BTreeMap<Window, u32> = BTreeMap::new();
        for Part { i, step, device, piece, stored } in parts {
            let operands = piece.call.operands();
            let mut places = Vec::new();
            for (o, w) in operands.iter().zip(&piece.windows) {
                let from = &self.buffers[w.buffer as usize];
                let (name, scratch) = (from.name.clone(), from.kind == BufferKind::Scratch && o.name == "scratch");
                let begins = o.role == Role::Update && (piece.fills || !self.holds_something(w.buffer));
                if scratch || o.role == Role::Write || begins {
                    places.push(self.on_device(name, w.bytes()));
                    continue;
                }
                if let Some(&place) = made.get(&w.dense()).filter(|_| !o.writes()) {
                    places.push(place);
                    continue;
                }
                let stays = self.resident.get(&w.buffer).is_some_and(|&until| until >= i);
                let cached = self.cache.get(w).filter(|(_, used)| stays || used + 1 >= self.n_pieces).map(|c| c.0);
                let place = match cached {
                    Some(place) => place,
                    None => {
                        let place = self.on_device(name, w.bytes());
                        let handshake = std::mem::replace(&mut self.fresh[w.buffer as usize], false);
                        loads.push(self.transfer(w, place, Lane::Load, handshake, step.node_idx)?);
                        reads.insert(w.buffer);
                        place
                    }
                };
                places.push(place);
                if !o.writes() {
                    self.cache.insert(*w, (place, self.n_pieces));
                }
            }
            for ((o, w), &place) in operands.iter().zip(&piece.windows).zip(&places) {
                if !o.writes() || o.name == "scratch" {
                    continue;
                }
                self.written(w.buffer);
                made.insert(w.dense(), place);
                if self.resident.contains_key(&w.buffer) {
                    self.cache.insert(*w, (place, self.n_pieces));
                } else if stored {
                    let handshake = last && self.read_by_host[w.buffer as usize];
                    stores.push(self.transfer(w, place, Lane::Store, handshake, step.node_idx)?);
                    written.insert(w.buffer);
                }
            }
            let ns = device.ns(&piece, self.pad);
            let mut call = piece.call;
            let mut at = places.into_iter();
            call.relocate(&mut |o| (o.mem, o.off) = (at.next().unwrap_or(u32::MAX), 0));
            let step = Step { call, node_idx: step.node_idx };
            computes.push(NewStep { step, lane: Lane::Compute, ns, handshake: false });
        }
        Ok(Job { loads, computes, stores, early, reads, writes: written })
    }

    /// Whether anybody has written the buffer so far.
    fn holds_something(&self, buffer: u32) -> bool {
        let touched = |call: &dyn lower::Call| call.operands().iter().any(|o| o.operand.mem == buffer && o.writes());
        self.items.iter().any(|item| match item {
            Item::Host(step) => touched(&*step.call),
            Item::Piece(job) => job.writes.contains(&buffer),
        })
    }

    fn transfer(
        &self,
        w: &Window,
        place: u32,
        lane: Lane,
        handshake: bool,
        node_idx: usize,
    ) -> Result<NewStep, CompileError> {
        let dim = |n: u64| Dim::Const(n as i64);
        let host = Operand::at(w.buffer, w.off, dim(w.reach()));
        let here = Operand::at(place, 0, dim(w.bytes()));
        let (x, y, strides, ns) = match lane {
            Lane::Store => (here, host, (w.row_bytes, w.stride), self.pad.store_ns(w.bytes())),
            _ => (host, here, (w.stride, w.row_bytes), self.pad.load_ns(w.bytes())),
        };
        let (x_stride, y_stride) = (dim(strides.0), dim(strides.1));
        let call = Transfer { x, y, rows: dim(w.rows), row_bytes: dim(w.row_bytes), x_stride, y_stride };
        let call = lower::call::call(&[Dtype::U8], call)?;
        let lane = if self.pad.one_engine { Lane::Load } else { lane };
        Ok(NewStep { step: Step { call, node_idx }, lane, ns, handshake })
    }
}

/// Puts the items in one order, and says what must be over before a piece is loaded or computed.
fn ordered(lowered: Lowered, items: Vec<Item>) -> Expanded {
    let mut out = Expanded { lowered, ..Expanded::default() };
    // For the last two pieces: their computing and stores.
    let mut before: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut items = items.into_iter().peekable();
    let mut loaded = false;
    while let Some(item) = items.next() {
        let job = match item {
            Item::Host(step) => {
                out.push(NewStep { step, lane: Lane::Host, ns: 0, handshake: false }, Vec::new());
                continue;
            }
            Item::Piece(job) => job,
        };
        if !std::mem::take(&mut loaded) {
            // The memory is this piece's: all that the one before had is over.
            let needs: Vec<usize> =
                before.last().map(|(c, s)| s.iter().copied().chain([*c]).collect()).unwrap_or_default();
            job.loads.into_iter().for_each(|l| _ = out.push(l, needs.clone()));
        }
        if let Some(Item::Piece(next)) = items.peek_mut()
            && next.early
            && next.reads.is_disjoint(&job.writes)
        {
            let needs: Vec<usize> = before.last().map(|(c, _)| vec![*c]).unwrap_or_default();
            std::mem::take(&mut next.loads).into_iter().for_each(|l| _ = out.push(l, needs.clone()));
            loaded = true;
        }
        let mut needs = Vec::new();
        if let [.., (_, stores), _] = &before[..] {
            needs.extend(stores);
        }
        if let Some((_, stores)) = before.last().filter(|_| !job.early) {
            needs.extend(stores);
        }
        let mut computed = 0;
        for compute in job.computes {
            computed = out.push(compute, std::mem::take(&mut needs));
        }
        let stores = job.stores.into_iter().map(|s| out.push(s, Vec::new())).collect();
        before.push((computed, stores));
        if before.len() > 2 {
            before.remove(0);
        }
    }
    out
}

impl Expanded {
    fn push(&mut self, new: NewStep, needs: Vec<usize>) -> usize {
        self.lowered.steps.push(new.step);
        self.lanes.push(new.lane);
        self.ns.push(new.ns);
        self.handshake.push(new.handshake);
        self.needs.push(needs);
        self.lanes.len() - 1
    }
}
