//! The register tile of 8-bit convolution: `Q` output pixels of a row × `B` blocks of 16 output channels, requantised to
//! bytes in the epilogue.
//!
//! In: pointers into the input (or the band's scratch), packed weights, bias and factor of each channel. Out: `n_tiles`
//! tiles of the output. Sums stay in registers over the whole reduction; four channels are one step of a dot product.
//! Along a kernel row the bytes of neighbouring taps lie side by side, so a row of taps is one run.

#[cfg(target_arch = "x86_64")]
use super::conv_wide::tile as wide;
use crate::gemm::int8::dot::portable::Portable;
#[cfg(target_arch = "x86_64")]
use crate::gemm::int8::dot::x86;
use crate::gemm::int8::dot::{Dot, Kernels};
use crate::simd::{F32x16, I32x16, LANES, Simd};

/// From sums to bytes: `clamp(round(sum · factor) + zero)`, bits flipped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Emission {
    /// Added after rounding; of signed results it is 128 more.
    pub(crate) zero: i32,
    /// Lower limit of the bytes, before `flip`.
    pub(crate) low: u8,
    /// Upper limit.
    pub(crate) high: u8,
    /// 0x80 for signed results.
    pub(crate) flip: u8,
    /// Whether every factor is small enough that no scaled sum leaves `i32`.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "conversions saturate elsewhere"))]
    pub(crate) small: bool,
}

/// Most output blocks of a tile.
pub(crate) const MAX_BLOCKS: usize = 4;

/// What a run of tiles in one output row needs. Distances are in bytes.
#[derive(Clone, Copy)]
pub(crate) struct ConvTile {
    /// First pixel's first channel at the first tap.
    pub(crate) x: *const u8,
    /// From output pixel to output pixel.
    pub(crate) x_pixel: usize,
    /// Input blocks, and from one to the next.
    pub(crate) blocks: usize,
    pub(crate) x_block: usize,
    /// Kernel rows, and from one to the next.
    pub(crate) rows: usize,
    pub(crate) x_row: usize,
    /// Runs of a kernel row, from one to the next, and steps of four bytes in each.
    pub(crate) runs: usize,
    pub(crate) x_run: usize,
    pub(crate) steps: usize,
    /// Weights of the first output block, and to the next.
    pub(crate) w: *const i8,
    pub(crate) w_block: usize,
    /// Bias and factor of the first output block.
    pub(crate) bias: *const i32,
    pub(crate) factor: *const f32,
    /// Output at the first pixel, and to the next block.
    pub(crate) y: *mut u8,
    pub(crate) y_block: usize,
    /// Output blocks, at most [`MAX_BLOCKS`]; tiles of a fixed number have it in their type, too.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other sets have it in their tiles' types"))]
    pub(crate) out_blocks: usize,
    /// Tiles of `Q` pixels, one after the other.
    pub(crate) n_tiles: usize,
    pub(crate) emission: Emission,
}

/// A compiled tile.
pub(crate) type TileFn = unsafe fn(&ConvTile);

/// What a set adds to its dot products: starting from a bias, and the epilogue.
pub(crate) trait Convolve: Dot {
    /// The set's float vectors.
    type S: Simd;
    fn simd(self) -> Self::S;
    /// # Safety
    /// 16 i32 are valid for reads.
    unsafe fn load(self, from: *const i32) -> Self::Sums;

    /// Writes `Q` pixels of 16 channels.
    ///
    /// # Safety
    /// 16 factors are valid for reads, `16·Q` bytes for writes.
    #[inline(always)]
    unsafe fn emit<const Q: usize>(self, sums: &[Self::Sums; Q], e: &Emission, factor: *const f32, y: *mut u8) {
        let s = self.simd();
        // SAFETY: the caller's promise.
        unsafe {
            let factor = s.load(factor);
            for q in 0..Q {
                let mut lanes = [0i32; LANES];
                self.store(sums[q], lanes.as_mut_ptr());
                let bytes = emit_one(s, lanes, e, factor);
                y.add(q * LANES).cast::<[u8; LANES]>().write(bytes);
            }
        }
    }
}

/// 16 sums of one pixel as bytes.
#[inline(always)]
pub(crate) fn emit_one<S: Simd>(s: S, sums: [i32; LANES], e: &Emission, factor: S::F32) -> [u8; LANES] {
    // Far beyond a byte, so that neither the conversion nor the sum overflows.
    let limit = s.splat(1_048_576.0);
    let scaled = (-limit).max(limit.min(s.array_i32(sums).to_f32() * factor));
    let bytes = (s.to_i32(scaled) + s.splat_i32(e.zero)).to_u8();
    bytes.map(|b| b.max(e.low).min(e.high) ^ e.flip)
}

/// # Safety
/// Every address that the arguments span is valid: `steps·4` input bytes of `n_tiles·Q` pixels at each run, row and block,
/// `B` blocks of packed weights, bias and factors, `B` blocks of `n_tiles·Q` pixels in `y`; the set runs here.
#[inline(always)]
unsafe fn tile<D: Convolve, const Q: usize, const B: usize>(d: D, t: &ConvTile) {
    // SAFETY: the caller vouches for all addresses.
    unsafe {
        for tile in 0..t.n_tiles {
            // Plain index loops: only those are unrolled early enough for the sums to become registers.
            let mut sums = [[d.zero(); Q]; B];
            for j in 0..B {
                let bias = d.load(t.bias.add(j * LANES));
                for i in 0..Q {
                    sums[j][i] = bias;
                }
            }
            let x_tile = t.x.add(tile * Q * t.x_pixel);
            let mut w = t.w;
            for block in 0..t.blocks {
                for row in 0..t.rows {
                    let x_row = x_tile.add(block * t.x_block + row * t.x_row);
                    for run in 0..t.runs {
                        let mut x = x_row.add(run * t.x_run);
                        for _ in 0..t.steps {
                            let mut lines = [d.line(w); B];
                            for j in 1..B {
                                lines[j] = d.line(w.add(j * t.w_block));
                            }
                            for i in 0..Q {
                                let bytes = x.add(i * t.x_pixel).cast::<u32>().read_unaligned();
                                let four = d.four(u32::from_le(bytes), 0);
                                for j in 0..B {
                                    sums[j][i] = d.dot(sums[j][i], four, lines[j]);
                                }
                            }
                            x = x.add(4);
                            w = w.add(4 * LANES);
                        }
                    }
                }
            }
            for j in 0..B {
                let y = t.y.add(tile * Q * LANES + j * t.y_block);
                d.emit(&sums[j], &t.emission, t.factor.add(j * LANES), y);
            }
        }
    }
}

impl Convolve for Portable {
    type S = crate::simd::scalar::Scalar;
    #[inline(always)]
    fn simd(self) -> Self::S {
        crate::simd::scalar::Scalar
    }
    #[inline(always)]
    unsafe fn load(self, from: *const i32) -> Self::Sums {
        // SAFETY: the caller vouches for 16 values.
        unsafe { from.cast::<Self::Sums>().read() }
    }
}

/// The x86-64 sets.
#[cfg(target_arch = "x86_64")]
mod sets {
    use super::*;
    use crate::simd::{avx2, avx512};
    use core::arch::x86_64::*;

    impl Convolve for x86::AvxVnni {
        type S = avx2::Avx2;
        #[inline(always)]
        fn simd(self) -> Self::S {
            // SAFETY: the token exists only where its set runs.
            unsafe { avx2::Avx2::assume() }
        }
        #[inline(always)]
        unsafe fn load(self, from: *const i32) -> Self::Sums {
            // SAFETY: the caller vouches for 16 values.
            unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())] }
        }
    }

    impl Convolve for x86::Avx512Vnni {
        type S = avx512::Avx512;
        #[inline(always)]
        fn simd(self) -> Self::S {
            // SAFETY: the token exists only where its set runs.
            unsafe { avx512::Avx512::assume() }
        }
        #[inline(always)]
        unsafe fn load(self, from: *const i32) -> Self::Sums {
            // SAFETY: the caller vouches for 16 values.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }

        /// Four pixels at a time: two saturating packs and a permutation make 64 bytes of four registers of sums.
        #[inline(always)]
        unsafe fn emit<const Q: usize>(self, sums: &[__m512i; Q], e: &Emission, factor: *const f32, y: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe {
                let factor = _mm512_loadu_ps(factor);
                let mut q = 0;
                while q < Q {
                    let at = |i: usize| sums[if q + i < Q { q + i } else { q }];
                    let bytes = emit_four([at(0), at(1), at(2), at(3)], e, factor);
                    if q + 4 <= Q {
                        _mm512_storeu_si512(y.add(q * LANES).cast(), bytes);
                    } else {
                        let mask = (1u16 << (4 * (Q - q))) - 1;
                        _mm512_mask_storeu_epi32(y.add(q * LANES).cast(), mask, bytes);
                    }
                    q += 4;
                }
            }
        }
    }

    /// Four pixels of 16 sums as 64 bytes.
    ///
    /// # Safety
    /// AVX-512 F, BW, DQ and VL run here.
    #[inline(always)]
    pub(crate) unsafe fn emit_four(sums: [__m512i; 4], e: &Emission, factor: __m512) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let mut scaled = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                scaled[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i]), factor);
            }
            if !e.small {
                let (low, high) = (_mm512_set1_ps(-1_048_576.0), _mm512_set1_ps(1_048_576.0));
                for v in &mut scaled {
                    *v = _mm512_max_ps(low, _mm512_min_ps(high, *v));
                }
            }
            let zero = _mm512_set1_epi32(e.zero);
            let code = |v: __m512| _mm512_add_epi32(_mm512_cvtps_epi32(v), zero);
            let low = _mm512_packs_epi32(code(scaled[0]), code(scaled[1]));
            let high = _mm512_packs_epi32(code(scaled[2]), code(scaled[3]));
            // Each 128-bit part now has four channels of four pixels.
            let bytes = _mm512_packus_epi16(low, high);
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let mut bytes = _mm512_permutexvar_epi32(order, bytes);
            if e.low > 0 || e.high < 255 {
                bytes = _mm512_max_epu8(bytes, _mm512_set1_epi8(e.low as i8));
                bytes = _mm512_min_epu8(bytes, _mm512_set1_epi8(e.high as i8));
            }
            if e.flip != 0 {
                bytes = _mm512_xor_si512(bytes, _mm512_set1_epi8(e.flip as i8));
            }
            bytes
        }
    }
}
#[cfg(target_arch = "x86_64")]
pub(crate) use sets::emit_four;

/// Compiles `tile` for one instruction set.
macro_rules! compiled {
    ($name:ident, $token:expr, $(#[$attr:meta])*) => {
        /// # Safety
        /// As for `tile`.
        $(#[$attr])*
        unsafe fn $name<const Q: usize, const B: usize>(t: &ConvTile) {
            // SAFETY: the caller's promise.
            unsafe { tile::<_, Q, B>($token, t) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
compiled!(avx512_vnni, x86::Avx512Vnni, #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
compiled!(avx_vnni, x86::AvxVnni, #[target_feature(enable = "avxvnni,avx2,fma,f16c")]);
compiled!(portable, Portable,);

macro_rules! tiles {
    ($f:ident, $(($b:literal: $($q:literal)*))*) => {
        &[$(($b, &[$($f::<$q, $b> as TileFn),*] as &[TileFn])),*]
    };
}

/// The AVX2 tiles, of any number of blocks.
#[cfg(target_arch = "x86_64")]
const WIDE: &[TileFn] = &[wide::<1>, wide::<2>, wide::<3>, wide::<4>, wide::<5>, wide::<6>];

/// The tiles of a set, by output blocks; the `q`-th of a row has `q + 1` pixels.
fn tiles(kernels: Kernels) -> &'static [(usize, &'static [TileFn])] {
    match kernels {
        #[cfg(target_arch = "x86_64")]
        Kernels::Avx512Vnni => {
            tiles!(avx512_vnni, (1: 1 2 3 4 5 6 7 8 9 10 11 12)(2: 1 2 3 4 5 6 7 8 9 10 11 12)(4: 1 2 3 4 5 6))
        }
        #[cfg(target_arch = "x86_64")]
        Kernels::AvxVnni => tiles!(avx_vnni, (1: 1 2 3 4 5 6)),
        #[cfg(target_arch = "x86_64")]
        Kernels::Avx2 => &[(1, WIDE), (2, WIDE), (3, WIDE), (MAX_BLOCKS, WIDE)],
        _ => tiles!(portable, (1: 1 2)),
    }
}

/// How a row of output pixels and a number of output blocks is covered by tiles.
pub(crate) struct Tiling {
    row: &'static [TileFn],
    blocks: usize,
}

impl Tiling {
    /// The cheapest cover of `cols` pixels × `blocks` blocks by one tile height.
    pub(crate) fn choose(kernels: Kernels, cols: usize, blocks: usize) -> Self {
        let all = tiles(kernels);
        let mut best = Self { row: all[0].1, blocks: all[0].0 };
        let mut best_cost = usize::MAX;
        for &(b, row) in all.iter().filter(|t| t.0 <= blocks) {
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
    /// As for `tile` over all `cols` pixels; the tiling was chosen for a set that runs here.
    pub(crate) unsafe fn run(&self, t: &ConvTile, cols: usize) {
        let n_tiles = cols.div_ceil(self.row.len());
        if n_tiles == 0 {
            return;
        }
        let (q, wider) = (cols / n_tiles, cols % n_tiles);
        let mut t = *t;
        for (q, n) in [(q + 1, wider), (q, n_tiles - wider)] {
            if n > 0 {
                t.n_tiles = n;
                // SAFETY: the caller's promise; the widths add up to `cols`.
                unsafe { self.row[q - 1](&t) };
                t.x = t.x.wrapping_add(n * q * t.x_pixel);
                t.y = t.y.wrapping_add(n * q * LANES);
            }
        }
    }
}

/// Half cycles per step, by a model of two products and two loads a cycle with a latency of five.
fn cost(cols: usize, blocks: usize, b: usize, max_q: usize) -> usize {
    let n_tiles = cols.div_ceil(max_q).max(1);
    let tile = |q: usize, b: usize| (q * b).max(q + b).max(10);
    let (q, wider) = (cols / n_tiles, cols % n_tiles);
    let row = |b: usize| wider * tile(q + 1, b) + (n_tiles - wider) * tile(q, b);
    let rest = blocks % b;
    blocks / b * row(b) + if rest > 0 { row(rest) } else { 0 }
}
