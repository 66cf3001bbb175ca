//! The direct convolution's register tile: `Q` output pixels of a row × `B` blocks of 16 output channels.
//!
//! In: pointers into the input (or the band's scratch), packed weights, bias, residual. Out: `n_tiles` tiles of the
//! output, clamped. Accumulators stay in registers over the whole reduction: per input channel and tap, `B` weight
//! vectors are loaded and `Q` inputs broadcast, for `Q·B` multiply-adds.
//!
//! Invariant: only the first `ic_last` channels of the last input block are read, so pad lanes reach nothing.

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
    /// Weights that will be wanted next: the first tile of a run asks for as many as it reads. Any address, or null.
    pub(crate) ahead: *const f32,
    /// Elements from one block's bias to the next: 16, or 0 where there is none.
    pub(crate) bias_block: usize,
    /// Elements from one output block to the next, in `y` and `residual`.
    pub(crate) y_block: usize,
    /// Lower limit of the result.
    pub(crate) low: f32,
    /// Upper limit of the result.
    pub(crate) high: f32,
}

/// A compiled tile.
pub(crate) type TileFn = unsafe fn(&TileArgs);

/// `LANE` is the number of input channels side by side (16 or 1).
///
/// # Safety
/// Every address that the arguments span is valid: input pixels `0..n_tiles·Q` at each tap of each block's channels,
/// `B` blocks of packed weights and bias, `B` blocks of `n_tiles·Q` pixels in `y`, and in `residual` unless it is null.
#[inline(always)]
unsafe fn tile<S: Simd, const LANE: usize, const Q: usize, const B: usize>(s: S, a: &TileArgs) {
    let (low, high) = (s.splat(a.low), s.splat(a.high));
    for t in 0..a.n_tiles {
        let x_tile = a.x.wrapping_add(t * Q * LANE);
        let mut acc = [[s.zero(); Q]; B];
        for b in 0..B {
            // SAFETY: the caller vouches for `B` blocks of bias.
            acc[b] = [unsafe { s.load(a.bias.add(b * a.bias_block)) }; Q];
        }
        let mut w = a.w;
        let (mut ahead, ahead_step) = if t > 0 || a.ahead.is_null() { (a.w, 0) } else { (a.ahead, B * 16) };
        for block in 0..a.ic_blocks {
            let channels = if block + 1 == a.ic_blocks { a.ic_last } else { LANE };
            let x_block = x_tile.wrapping_add(block.wrapping_mul(a.x_block));
            for ky in 0..a.kh {
                let mut x = x_block.wrapping_add(ky.wrapping_mul(a.x_row));
                let mut phase = 0;
                for _ in 0..a.kw {
                    // SAFETY: the caller vouches for the inputs and weights of every tap and channel.
                    unsafe {
                        if LANE == 16 && channels == 16 && ahead_step == 0 {
                            // Nothing to look ahead to: where a neighbour shares the core, or vectors are short, every instruction counts.
                            for i in 0..4 {
                                for j in 0..4 {
                                    let c = 4 * i + j;
                                    step::<S, LANE, Q, B, false>(
                                        s,
                                        x.add(c),
                                        w.add(c * 16),
                                        a.w_block,
                                        ahead,
                                        &mut acc,
                                    );
                                }
                            }
                        } else if LANE == 16 && channels == 16 {
                            for i in 0..4 {
                                for j in 0..4 {
                                    let c = 4 * i + j;
                                    step::<S, LANE, Q, B, true>(s, x.add(c), w.add(c * 16), a.w_block, ahead, &mut acc);
                                    ahead = ahead.wrapping_add(ahead_step);
                                }
                            }
                        } else {
                            for c in 0..channels {
                                step::<S, LANE, Q, B, true>(s, x.add(c), w.add(c * 16), a.w_block, ahead, &mut acc);
                                ahead = ahead.wrapping_add(ahead_step);
                            }
                        }
                    }
                    w = w.wrapping_add(LANE * 16);
                    x = x.wrapping_add(a.x_tap);
                    phase += a.phase_step;
                    if phase >= a.phases {
                        phase -= a.phases;
                        x = x.wrapping_add(a.x_wrap);
                    }
                }
            }
        }
        for b in 0..B {
            let at = t * Q * a.y_step + b * a.y_block;
            for q in 0..Q {
                let mut v = acc[b][q];
                // SAFETY: the caller vouches for the output pixels, and for the residual's unless it is null.
                unsafe {
                    if !a.residual.is_null() {
                        v = v + s.load(a.residual.add(at + q * a.y_step));
                    }
                    high.min(low.max(v)).store(a.y.add(at + q * a.y_step));
                }
            }
        }
    }
}

/// One input channel at one tap; `AHEAD`: with a look at what is wanted next.
///
/// # Safety
/// `x` is valid at `q·LANE` for `q < Q`, `w` for 16 weights at `b·w_block` for `b < B`.
#[inline(always)]
unsafe fn step<S: Simd, const LANE: usize, const Q: usize, const B: usize, const AHEAD: bool>(
    s: S,
    x: *const f32,
    w: *const f32,
    w_block: usize,
    ahead: *const f32,
    acc: &mut [[S::F32; Q]; B],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut weights = [s.zero(); B];
        for b in 0..B {
            weights[b] = s.load(w.add(b * w_block));
            if AHEAD {
                prefetch(ahead.wrapping_add(b * 16));
            }
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
        unsafe fn $name<const LANE: usize, const Q: usize, const B: usize>(a: &TileArgs) {
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
    ($f:ident, $lane:literal, $(($b:literal: $($q:literal)*))*) => {
        &[$(($b, &[$($f::<$lane, $q, $b> as TileFn),*] as &[TileFn])),*]
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
        Isa::Avx512 => both!(avx512
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

    /// Covers `cols` pixels from the arguments' start, by tiles of two widths that differ by one.
    ///
    /// # Safety
    /// As for `tile` over all `cols` pixels; the tiling was chosen for an instruction set that runs here.
    pub(crate) unsafe fn run<const LANE: usize>(&self, a: &TileArgs, cols: usize) {
        let n_tiles = cols.div_ceil(self.row.len());
        if n_tiles == 0 {
            return;
        }
        let (q, wider) = (cols / n_tiles, cols % n_tiles);
        let mut a = *a;
        for (q, n) in [(q + 1, wider), (q, n_tiles - wider)] {
            if n > 0 {
                a.n_tiles = n;
                // SAFETY: the caller's promise; the widths add up to `cols`.
                unsafe { self.row[q - 1](&a) };
                a.ahead = core::ptr::null();
                a.x = a.x.wrapping_add(n * q * LANE);
                a.y = a.y.wrapping_add(n * q * a.y_step);
                if !a.residual.is_null() {
                    a.residual = a.residual.wrapping_add(n * q * a.y_step);
                }
            }
        }
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
