//! The direct convolution's register tile: `Q` output pixels of a row × `B` blocks of 16 output channels.
//!
//! In: pointers into the input (or the band's scratch), packed weights, bias, residual. Out: `n_tiles` tiles of the
//! output, clamped. Accumulators stay in registers over the whole reduction: per input channel and tap, `B` weight
//! vectors are loaded and `Q` inputs broadcast, for `Q·B` multiply-adds.
//!
//! Invariant: only the first `ic_last` channels of the last input block are read, so pad lanes reach nothing.

#[cfg(target_arch = "x86_64")]
use super::tall;
use crate::Isa;
use crate::simd::{F32x16, Simd, prefetch};

/// What a run of tiles in one output row needs.
#[derive(Clone, Copy)]
pub(crate) struct TileArgs {
    /// First pixel's first channel at the first tap.
    pub(crate) x: *const f32,
    /// Weights of the first output block.
    pub(crate) w: *const f32,
    /// Bias of the first output block.
    pub(crate) bias: *const f32,
    /// Residual at the first pixel, or null. May equal `y`.
    pub(crate) residual: *const f32,
    /// Output at the first pixel.
    pub(crate) y: *mut f32,
    /// Elements from one output pixel to the next: 16, or more where outputs are written with a stride.
    pub(crate) y_step: usize,
    /// Tiles of `Q` pixels, one after the other.
    pub(crate) n_tiles: usize,
    /// Input blocks.
    pub(crate) ic_blocks: usize,
    /// Channels of the last input block.
    pub(crate) ic_last: usize,
    /// Kernel height.
    pub(crate) kh: usize,
    /// Kernel width.
    pub(crate) kw: usize,
    /// Elements from one input block to the next.
    pub(crate) x_block: usize,
    /// Elements from one tap row to the next.
    pub(crate) x_row: usize,
    /// Elements from one tap to the next within a row (two's complement) while the phase does not wrap.
    pub(crate) x_tap: usize,
    /// Phases to go on by per tap.
    pub(crate) phase_step: usize,
    /// Number of phases; passing it adds `x_wrap`.
    pub(crate) phases: usize,
    /// Elements to add when the phase wraps (two's complement).
    pub(crate) x_wrap: usize,
    /// Weights from one output block to the next.
    pub(crate) w_block: usize,
    /// Weights that will be wanted next, of which the tiles ask for a share each. Any addresses.
    pub(crate) ahead: Ahead,
    /// Elements from one block's bias to the next: 16, or 0 where there is none.
    pub(crate) bias_block: usize,
    /// Elements from one output block to the next, in `y` and `residual`.
    pub(crate) y_block: usize,
    /// Lower limit of the result.
    pub(crate) low: f32,
    /// Upper limit of the result.
    pub(crate) high: f32,
}

/// Memory to ask for ahead, little by little: all at once would fill the few slots that a core has for lines on their way, and
/// then the tile would wait for memory while the tiles after it, which find their weights near, ask for nothing.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub(super) next: *const f32,
    end: *const f32,
    /// Cache lines to ask for every [`QUAD`] channels.
    lines: usize,
}

/// Channels between two looks ahead.
const QUAD: usize = 4;

impl Ahead {
    pub(crate) const NOTHING: Self = Self { next: core::ptr::null(), end: core::ptr::null(), lines: 0 };

    /// `len` floats from `next`; no rate is set.
    pub(crate) fn new(next: *const f32, len: usize) -> Self {
        Self { next, end: next.wrapping_add(len), lines: 0 }
    }

    /// At most `len` floats of it.
    pub(crate) fn limited(self, len: usize) -> Self {
        Self { end: self.end.min(self.next.wrapping_add(len)), ..self }
    }

    /// Shared by `tiles` tiles of `channels` channels (all taps' and blocks') each.
    pub(crate) fn shared_by(self, tiles: usize, channels: usize) -> Self {
        let lines = (self.end as usize).saturating_sub(self.next as usize).div_ceil(64);
        Self { lines: lines.div_ceil((tiles * channels.div_ceil(QUAD)).max(1)), ..self }
    }

    /// The next line to ask for, and how many to ask for after four channels.
    #[inline(always)]
    pub(super) fn due(&self) -> (*const f32, usize) {
        (self.next, if self.next < self.end { self.lines } else { 0 })
    }

    /// Asks for what is due.
    #[inline(always)]
    pub(super) fn look(&mut self) {
        let (mut next, lines) = self.due();
        for _ in 0..lines {
            prefetch(next);
            next = next.wrapping_add(16);
        }
        self.next = next;
    }
}

/// A compiled tile. Returns what is still to be asked for.
pub(crate) type TileFn = unsafe fn(&TileArgs) -> Ahead;

/// The taps of all input blocks, in the order of the packed weights.
pub(super) struct Taps {
    blocks: usize,
    block: *const f32,
    row: *const f32,
    x: *const f32,
    w: *const f32,
    ky: usize,
    kx: usize,
    phase: usize,
}

impl Taps {
    /// From the first tap of the tile whose first pixel is `x`.
    #[inline(always)]
    pub(super) fn of(a: &TileArgs, x: *const f32) -> Self {
        // A phase of a transposed convolution may have no taps.
        let blocks = if a.kh * a.kw == 0 { 0 } else { a.ic_blocks };
        Self { blocks, block: x, row: x, x, w: a.w, ky: 0, kx: 0, phase: 0 }
    }

    /// The next tap's input and weights, and its number of channels of `LANE`.
    #[inline(always)]
    pub(super) fn next<const LANE: usize>(&mut self, a: &TileArgs) -> Option<(*const f32, *const f32, usize)> {
        if self.blocks == 0 {
            return None;
        }
        let at = (self.x, self.w, if self.blocks == 1 { a.ic_last } else { LANE });
        self.w = self.w.wrapping_add(LANE * 16);
        self.x = self.x.wrapping_add(a.x_tap);
        self.phase += a.phase_step;
        if self.phase >= a.phases {
            self.phase -= a.phases;
            self.x = self.x.wrapping_add(a.x_wrap);
        }
        self.kx += 1;
        if self.kx == a.kw {
            (self.kx, self.phase, self.row) = (0, 0, self.row.wrapping_add(a.x_row));
            self.ky += 1;
            if self.ky == a.kh {
                (self.ky, self.block) = (0, self.block.wrapping_add(a.x_block));
                self.blocks -= 1;
                self.row = self.block;
            }
            self.x = self.row;
        }
        Some(at)
    }
}

/// What the sums start from.
///
/// # Safety
/// `B` blocks of bias are valid.
#[inline(always)]
pub(super) unsafe fn first<S: Simd, const Q: usize, const B: usize>(s: S, a: &TileArgs) -> [[S::F32; Q]; B] {
    let mut acc = [[s.zero(); Q]; B];
    for b in 0..B {
        // SAFETY: the caller's promise.
        acc[b] = [unsafe { s.load(a.bias.add(b * a.bias_block)) }; Q];
    }
    acc
}

/// Writes the sums of tile `t`: residual added, clamped.
///
/// # Safety
/// The tile's output pixels are valid, and the residual's unless it is null.
#[inline(always)]
pub(super) unsafe fn last<S: Simd, const Q: usize, const B: usize>(
    s: S,
    a: &TileArgs,
    t: usize,
    acc: [[S::F32; Q]; B],
) {
    let (low, high) = (s.splat(a.low), s.splat(a.high));
    for b in 0..B {
        let at = t * Q * a.y_step + b * a.y_block;
        for q in 0..Q {
            let mut v = acc[b][q];
            // SAFETY: the caller's promise.
            unsafe {
                if !a.residual.is_null() {
                    v = v + s.load(a.residual.add(at + q * a.y_step));
                }
                high.min(low.max(v)).store(a.y.add(at + q * a.y_step));
            }
        }
    }
}

/// `LANE` is the number of input channels side by side (16 or 1).
///
/// # Safety
/// Every address that the arguments span is valid: input pixels `0..n_tiles·Q` at each tap of each block's channels,
/// `B` blocks of packed weights and bias, `B` blocks of `n_tiles·Q` pixels in `y`, and in `residual` unless it is null.
#[inline(always)]
unsafe fn tile<S: Simd, const LANE: usize, const Q: usize, const B: usize>(s: S, a: &TileArgs) -> Ahead {
    let mut ahead = a.ahead;
    for t in 0..a.n_tiles {
        // SAFETY: the caller vouches for the inputs and weights of every tap and channel, and for bias, output and residual.
        unsafe {
            let mut acc = first::<S, Q, B>(s, a);
            let mut taps = Taps::of(a, a.x.wrapping_add(t * Q * LANE));
            while let Some((x, w, channels)) = taps.next::<LANE>(a) {
                if LANE == 16 && channels == 16 {
                    for i in 0..16 / QUAD {
                        for j in 0..QUAD {
                            let c = QUAD * i + j;
                            step::<S, LANE, Q, B>(s, x.add(c), w.add(c * 16), a.w_block, &mut acc);
                        }
                        ahead.look();
                    }
                } else {
                    steps::<S, LANE, Q, B>(s, a, x, w, channels, &mut acc);
                    ahead.look();
                }
            }
            last(s, a, t, acc);
        }
    }
    ahead
}

/// The first `channels` input channels at one tap, one by one.
///
/// # Safety
/// As for [`step`], of each channel.
#[inline(always)]
pub(super) unsafe fn steps<S: Simd, const LANE: usize, const Q: usize, const B: usize>(
    s: S,
    a: &TileArgs,
    x: *const f32,
    w: *const f32,
    channels: usize,
    acc: &mut [[S::F32; Q]; B],
) {
    for c in 0..channels {
        // SAFETY: the caller's promise.
        unsafe { step::<S, LANE, Q, B>(s, x.add(c), w.add(c * 16), a.w_block, acc) };
    }
}

/// One input channel at one tap.
///
/// # Safety
/// `x` is valid at `q·LANE` for `q < Q`, `w` for 16 weights at `b·w_block` for `b < B`.
#[inline(always)]
unsafe fn step<S: Simd, const LANE: usize, const Q: usize, const B: usize>(
    s: S,
    x: *const f32,
    w: *const f32,
    w_block: usize,
    acc: &mut [[S::F32; Q]; B],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut weights = [s.zero(); B];
        for b in 0..B {
            weights[b] = s.load(w.add(b * w_block));
        }
        for q in 0..Q {
            let v = s.splat(*x.add(q * LANE));
            for b in 0..B {
                acc[b][q] = v.fma(weights[b], acc[b][q]);
            }
        }
    }
}

/// Compiles `tile` for one instruction set.
macro_rules! compiled {
    ($name:ident, $token:expr, $set:ty, $(#[$attr:meta])*) => {
        /// # Safety
        /// As for `tile`, and the instruction set runs here.
        $(#[$attr])*
        unsafe fn $name<const LANE: usize, const Q: usize, const B: usize>(a: &TileArgs) -> Ahead {
            // SAFETY: the caller's promise.
            unsafe { tile::<$set, LANE, Q, B>($token, a) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
compiled!(avx512, crate::simd::avx512::Avx512::assume(), crate::simd::avx512::Avx512, #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
compiled!(avx2, crate::simd::avx2::Avx2::assume(), crate::simd::avx2::Avx2, #[target_feature(enable = "avx2,fma,f16c")]);
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
compiled!(neon, crate::simd::neon::Neon::new(), crate::simd::neon::Neon,);
compiled!(scalar, crate::simd::scalar::Scalar, crate::simd::scalar::Scalar,);

/// Rows `(B, most Q)`: the tiles compiled for a set, by number of blocks.
type Tiles = &'static [(usize, &'static [TileFn])];

macro_rules! tiles {
    ($f:ident, $lane:literal, $(($b:literal: $($q:literal)* $([$($tall:ident)*])?))*) => {
        &[$(($b, &[$($f::<$lane, $q, $b> as TileFn),* $($(, tall::$tall as TileFn)*)?] as &[TileFn])),*]
    };
}

/// The tiles of an instruction set; the `q`-th of a row has `q + 1` pixels.
fn tiles<const LANE: usize>(isa: Isa) -> Tiles {
    macro_rules! both {
        ($f:ident $($rest:tt)*) => {
            if LANE == 16 { tiles!($f, 16, $($rest)*) } else { tiles!($f, 1, $($rest)*) }
        };
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if LANE == 16 => tiles!(avx512, 16,
            (1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
            (2: 1 2 3 4 5 6 [tall_7x2 tall_8x2 tall_9x2 tall_10x2 tall_11x2 tall_12x2 tall_13x2 tall_14x2])
            (3: 1 2 3 4 5 6 [tall_7x3 tall_8x3 tall_9x3])
            (4: 1 2 3 [tall_4x4 tall_5x4 tall_6x4])),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => tiles!(avx512, 1,
            (1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
            (2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
            (3: 1 2 3 4 5 6 7 8 9)
            (4: 1 2 3 4 5 6 7)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => both!(avx2 (1: 1 2 3 4 5 6)),
        #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
        Isa::Neon => both!(neon (1: 1 2 3 4 5 6)),
        _ => both!(scalar (1: 1 2)),
    }
}

/// How a row of output pixels and a number of output blocks is covered by tiles.
pub(crate) struct Tiling {
    row: &'static [TileFn],
    blocks: usize,
}

impl Tiling {
    /// The cheapest cover of `cols` pixels × `blocks` blocks by one tile height.
    pub(crate) fn choose<const LANE: usize>(isa: Isa, cols: usize, blocks: usize) -> Self {
        let all = tiles::<LANE>(isa);
        let mut best = Self { row: all[0].1, blocks: all[0].0 };
        let mut best_cost = usize::MAX;
        for &(b, row) in all {
            let cost = cost(cols, blocks, b, row.len());
            if cost < best_cost {
                (best, best_cost) = (Self { row, blocks: b }, cost);
            }
        }
        best
    }

    /// Output blocks of one pass.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Tiles that cover `cols` pixels.
    pub(crate) fn count(&self, cols: usize) -> usize {
        cols.div_ceil(self.row.len())
    }

    /// Covers `cols` pixels from the arguments' start, by tiles of two widths that differ by one. Returns what is still to be
    /// asked for.
    ///
    /// # Safety
    /// As for `tile` over all `cols` pixels; the tiling was chosen for an instruction set that runs here.
    pub(crate) unsafe fn run<const LANE: usize>(&self, a: &TileArgs, cols: usize) -> Ahead {
        let mut a = *a;
        let n_tiles = self.count(cols);
        if n_tiles == 0 {
            return a.ahead;
        }
        let (q, wider) = (cols / n_tiles, cols % n_tiles);
        for (q, n) in [(q + 1, wider), (q, n_tiles - wider)] {
            if n > 0 {
                a.n_tiles = n;
                // SAFETY: the caller's promise; the widths add up to `cols`.
                a.ahead = unsafe { self.row[q - 1](&a) };
                a.x = a.x.wrapping_add(n * q * LANE);
                a.y = a.y.wrapping_add(n * q * a.y_step);
                if !a.residual.is_null() {
                    a.residual = a.residual.wrapping_add(n * q * a.y_step);
                }
            }
        }
        a.ahead
    }
}

/// Half cycles per input channel and tap, by a model of two multiply-adds and two loads a cycle with a latency of four.
fn cost(cols: usize, blocks: usize, b: usize, max_q: usize) -> usize {
    let n_tiles = cols.div_ceil(max_q).max(1);
    let tile = |q: usize, b: usize| (q * b).max(q + b).max(8);
    let (q, wider) = (cols / n_tiles, cols % n_tiles);
    let row = |b: usize| wider * tile(q + 1, b) + (n_tiles - wider) * tile(q, b);
    let rest = blocks % b;
    blocks / b * row(b) + if rest > 0 { row(rest) } else { 0 }
}
