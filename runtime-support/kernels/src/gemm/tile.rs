//! The f32 microkernels: a tile of MR rows and NV panels of 16 columns of C in registers, over a run of k.
//!
//! In: a [`Tile`] of pointers and strides. Out: the tile of C. The same code serves packed panels, plain rows of B and
//! blocks of k, since B is addressed by two strides and the accumulators may start from C. One function per size and
//! instruction set, chosen from a [`Table`] by the loops in [`super::f32`].

use crate::isa::Isa;
use crate::simd::{F32x16, LANES, Simd, prefetch, prefetch_write};

/// Panels of the widest tile of any set.
pub const MAX_PANELS: usize = 8;

/// What a microkernel works on.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// Steps of k.
    pub k: usize,
    /// First row of A, at the first k.
    pub a: *const f32,
    /// From row to row of A.
    pub lda: usize,
    /// First panel of B, at the first k.
    pub b: *const f32,
    /// From k to k of B.
    pub b_step: usize,
    /// From panel to panel of B.
    pub b_panel: usize,
    /// First row and column of C.
    pub c: *mut f32,
    /// From row to row of C.
    pub ldc: usize,
    /// Columns of the last panel, 1..=16.
    pub n_last: usize,
    /// What all accumulators of a column start from, or null.
    pub bias: *const f32,
    /// What the accumulators start from besides (C itself, for a later run of k), or null.
    pub residual: *const f32,
    /// From row to row of the residual.
    pub ld_residual: usize,
    /// The result is clamped to these limits, at the last run of k.
    pub clamp: Option<(f32, f32)>,
    /// Memory that will be wanted next: with every step of k, one line of it is asked for.
    pub prefetch: *const f32,
    /// Elements from one asked line to the next.
    pub prefetch_step: usize,
}

/// A microkernel of a fixed size.
///
/// # Safety
/// For the kernel's MR rows and NV panels, all of a [`Tile`]'s addresses are valid: A and B for reads, C for reads and
/// writes, bias and residual (if not null) for reads; of the last panel only `n_last` columns of C, bias and residual,
/// but 16 of B.
pub type TileFn = unsafe fn(&Tile);

/// Where a run of k is.
pub(super) struct At {
    pub(super) a: *const f32,
    pub(super) b: *const f32,
    pub(super) ahead: *const f32,
}

impl At {
    /// The beginning of a tile's run.
    #[inline(always)]
    pub(super) fn start(t: &Tile) -> Self {
        Self { a: t.a, b: t.b, ahead: t.prefetch }
    }
}

/// `U` steps of k.
///
/// # Safety
/// `TileFn`'s contract for `t`, of whose run of k at least `U` steps are left from `at` on; `b_step` is the tile's.
#[inline(always)]
unsafe fn steps<S: Simd, const MR: usize, const NV: usize, const U: usize>(
    s: S,
    t: &Tile,
    b_step: usize,
    at: &mut At,
    acc: &mut [[S::F32; NV]; MR],
) {
    // SAFETY: the caller's contract; the products read rows of A and lines of B that it lists.
    unsafe {
        for u in 0..U {
            let mut line = [s.zero(); NV];
            for j in 0..NV {
                line[j] = s.load(at.b.add(u * b_step + j * t.b_panel));
            }
            for i in 0..MR {
                let x = s.splat(*at.a.add(i * t.lda + u));
                for j in 0..NV {
                    acc[i][j] = x.fma(line[j], acc[i][j]);
                }
            }
        }
        for u in 0..U.div_ceil(2) {
            prefetch(at.ahead.wrapping_add(u * 2 * t.prefetch_step));
        }
    }
    at.ahead = at.ahead.wrapping_add(U * t.prefetch_step);
    at.a = at.a.wrapping_add(U);
    at.b = at.b.wrapping_add(U * b_step);
}

/// The last `left` steps of k, one by one.
///
/// # Safety
/// As for [`steps`].
#[inline(always)]
pub(super) unsafe fn rest<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    t: &Tile,
    at: &mut At,
    left: usize,
    acc: &mut [[S::F32; NV]; MR],
) {
    for _ in 0..left {
        // SAFETY: the caller's promise.
        unsafe { steps::<S, MR, NV, 1>(s, t, t.b_step, at, acc) };
    }
}

/// Columns of the tile's `j`-th of `NV` panels.
#[inline(always)]
fn columns<const NV: usize>(t: &Tile, j: usize) -> usize {
    if j + 1 == NV { t.n_last } else { LANES }
}

/// What the sums start from.
///
/// # Safety
/// `TileFn`'s contract.
#[inline(always)]
pub(super) unsafe fn first<S: Simd, const MR: usize, const NV: usize>(s: S, t: &Tile) -> [[S::F32; NV]; MR] {
    // SAFETY: the caller's contract; every address below is one it lists.
    unsafe {
        let load = |p: *const f32, n: usize| {
            if n == LANES { s.load(p) } else { s.load_n(p, n) }
        };
        // Plain index loops throughout: only those are unrolled early enough for the accumulators to become registers.
        let mut acc = [[s.zero(); NV]; MR];
        if !t.bias.is_null() {
            for j in 0..NV {
                let bias = load(t.bias.add(LANES * j), columns::<NV>(t, j));
                for i in 0..MR {
                    acc[i][j] = bias;
                }
            }
        }
        if !t.residual.is_null() {
            for i in 0..MR {
                let row = t.residual.add(i * t.ld_residual);
                for j in 0..NV {
                    acc[i][j] = acc[i][j] + load(row.add(LANES * j), columns::<NV>(t, j));
                }
            }
        } else if S::MANY_REGISTERS {
            // Nothing has read these lines of C: they are brought near while the products are computed.
            for i in 0..MR {
                for j in 0..NV {
                    prefetch_write(t.c.wrapping_add(i * t.ldc + LANES * j));
                }
            }
        }
        acc
    }
}

/// Writes the sums, clamped.
///
/// # Safety
/// `TileFn`'s contract.
#[inline(always)]
pub(super) unsafe fn last<S: Simd, const MR: usize, const NV: usize>(s: S, t: &Tile, mut acc: [[S::F32; NV]; MR]) {
    if let Some((low, high)) = t.clamp {
        let (low, high) = (s.splat(low), s.splat(high));
        for i in 0..MR {
            for j in 0..NV {
                acc[i][j] = high.min(low.max(acc[i][j]));
            }
        }
    }
    // SAFETY: the caller's contract; rows and columns of C.
    unsafe {
        for i in 0..MR {
            let c = t.c.add(i * t.ldc);
            for j in 0..NV {
                if columns::<NV>(t, j) == LANES {
                    acc[i][j].store(c.add(LANES * j));
                } else {
                    acc[i][j].store_n(c.add(LANES * j), t.n_last);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Simd, const MR: usize, const NV: usize>(s: S, t: &Tile) {
    // SAFETY: the caller's contract is `TileFn`'s.
    unsafe {
        let mut acc = first::<S, MR, NV>(s, t);
        let mut at = At::start(t);
        let mut left = t.k;
        // Panels whose rows follow each other: addresses within four steps are constants, which leaves the processor little but the
        // products to do. With many registers the compiler moves loads of later steps ahead and spills sums for them: `tall`.
        if !S::MANY_REGISTERS && t.b_step == LANES {
            while left >= 4 {
                steps::<S, MR, NV, 4>(s, t, LANES, &mut at, &mut acc);
                left -= 4;
            }
        }
        rest(s, t, &mut at, left, &mut acc);
        last(s, t, acc);
    }
}

/// The microkernels of one instruction set: for each width in panels, those of 1, 2, … rows.
#[derive(Clone, Copy)]
pub struct Table {
    /// `(panels, kernels by rows)`, in rising order of panels.
    pub widths: &'static [(usize, &'static [TileFn])],
}

impl Table {
    /// The kernels that are `panels` wide.
    pub fn width(&self, panels: usize) -> Option<&'static [TileFn]> {
        self.widths.iter().find(|w| w.0 == panels).map(|w| w.1)
    }

    /// The microkernels of a set.
    pub fn of(isa: Isa) -> &'static Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::TABLE,
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Isa::Neon => &neon::TABLE,
            _ => &scalar::TABLE,
        }
    }
}

/// A module with the table of one set.
macro_rules! table {
    ($module:ident, $token:expr, $features:literal, $($panels:literal: $($rows:literal)* $([$($tall:ident)*])?),*) => {
        mod $module {
            use super::{Table, Tile, TileFn, tile};

            #[target_feature(enable = $features)]
            unsafe fn kernel<const MR: usize, const NV: usize>(t: &Tile) {
                // SAFETY: the table is only reached through the set's `Isa`; the rest is `TileFn`'s contract.
                unsafe { tile::<_, MR, NV>($token, t) }
            }

            pub(super) static TABLE: Table = Table {
                widths: &[$(($panels, &[$(kernel::<$rows, $panels> as TileFn),* $($(, super::super::tall::$tall)*)?])),*],
            };
        }
    };
}

#[cfg(target_arch = "x86_64")]
table!(
    avx512, crate::simd::avx512::Avx512::assume(), "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c",
    1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14,
    2: 1 2 3 4 5 6 [tall_7x2 tall_8x2 tall_9x2 tall_10x2 tall_11x2 tall_12x2 tall_13x2 tall_14x2],
    3: 1 2 3 4 5 6 [tall_7x3 tall_8x3 tall_9x3],
    4: 1 2 3 [tall_4x4 tall_5x4 tall_6x4],
    8: 1 2 3
);
#[cfg(target_arch = "x86_64")]
table!(avx2, crate::simd::avx2::Avx2::assume(), "avx2,fma,f16c", 1: 1 2 3 4 5 6, 2: 1 2 3, 4: 1);
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
table!(neon, crate::simd::neon::Neon::new(), "neon", 1: 1 2 3 4 5 6, 2: 1 2 3, 4: 1);

mod scalar {
    use super::{Table, Tile, TileFn, tile};

    unsafe fn kernel<const MR: usize, const NV: usize>(t: &Tile) {
        // SAFETY: `TileFn`'s contract.
        unsafe { tile::<_, MR, NV>(crate::simd::scalar::Scalar, t) }
    }

    pub(super) static TABLE: Table =
        Table { widths: &[(1, &[kernel::<1, 1> as TileFn, kernel::<2, 1>, kernel::<3, 1>]), (2, &[kernel::<1, 2>])] };
}
