//! The microkernels of u8×i8 products: a tile of MR rows and NV panels of i32 sums in registers, four steps of k at a time.
//!
//! In: a [`DotTile`]. Out: the tile's sums, row after row. All sets are exact: `vpdpbusd` does not saturate; AVX2 without
//! it has microkernels of its own ([`wide`](super::wide)).

use crate::gemm::pack::PANEL;
use crate::isa::{CpuFeatures, Isa};

/// What a microkernel works on.
#[derive(Clone, Copy, Debug)]
pub struct DotTile {
    /// Columns of A.
    pub k: usize,
    /// First row of A.
    pub a: *const u8,
    /// From row to row of A.
    pub lda: usize,
    /// Applied to four bytes of A: `0x80808080` makes i8 into u8 by adding 128, 0 does nothing.
    pub flip: u32,
    /// First panel of B.
    pub b: *const i8,
    /// From panel to panel of B.
    pub b_panel: usize,
    /// MR·NV·16 sums.
    pub sums: *mut i32,
}

/// A microkernel of a fixed size.
///
/// # Safety
/// For the kernel's MR rows and NV panels: `k` bytes of each row of A and `k` rounded up to 4 times 16 bytes of each panel
/// are valid for reads, MR·NV·16 sums for writes; the instruction set runs here.
pub type DotFn = unsafe fn(&DotTile);

/// The instructions of one set.
pub(crate) trait Dot: Copy {
    /// Sums of 16 columns.
    type Sums: Copy;
    /// 16 columns at four steps of k.
    type Line: Copy;
    /// Four steps of k of a row, for every column.
    type Four: Copy;
    fn zero(self) -> Self::Sums;
    /// Four bytes of A, made u8 by `flip`.
    fn four(self, bytes: u32, flip: u32) -> Self::Four;
    /// # Safety
    /// 64 bytes are valid for reads.
    unsafe fn line(self, b: *const i8) -> Self::Line;
    fn dot(self, sums: Self::Sums, a: Self::Four, b: Self::Line) -> Self::Sums;
    /// # Safety
    /// 16 i32 are valid for writes.
    unsafe fn store(self, sums: Self::Sums, to: *mut i32);
}

#[inline(always)]
unsafe fn tile<D: Dot, const MR: usize, const NV: usize>(d: D, t: &DotTile) {
    // SAFETY: `DotFn`'s contract; every address below is one it lists.
    unsafe {
        // Plain index loops: only those are unrolled early enough for the sums to become registers.
        let mut sums = [[d.zero(); NV]; MR];
        let (mut a, mut b) = (t.a, t.b);
        for _ in 0..t.k / 4 {
            let mut lines = [d.line(b); NV];
            for j in 1..NV {
                lines[j] = d.line(b.add(j * t.b_panel));
            }
            for i in 0..MR {
                let four = d.four(u32::from_le(a.add(i * t.lda).cast::<u32>().read_unaligned()), t.flip);
                for j in 0..NV {
                    sums[i][j] = d.dot(sums[i][j], four, lines[j]);
                }
            }
            a = a.add(4);
            b = b.add(4 * PANEL);
        }
        let rest = t.k % 4;
        if rest > 0 {
            let mut lines = [d.line(b); NV];
            for j in 1..NV {
                lines[j] = d.line(b.add(j * t.b_panel));
            }
            for i in 0..MR {
                // B is zero beyond k, whatever A's bytes are there; they are only not to be read.
                let row = a.add(i * t.lda);
                let mut bytes = u32::from(*row);
                if rest > 1 {
                    bytes |= u32::from(*row.add(1)) << 8;
                }
                if rest > 2 {
                    bytes |= u32::from(*row.add(2)) << 16;
                }
                let four = d.four(bytes, t.flip);
                for j in 0..NV {
                    sums[i][j] = d.dot(sums[i][j], four, lines[j]);
                }
            }
        }
        for i in 0..MR {
            for j in 0..NV {
                d.store(sums[i][j], t.sums.add((i * NV + j) * PANEL));
            }
        }
    }
}

/// The microkernels of one set: for each width in panels, those of 1, 2, … rows.
pub struct DotTable {
    /// Panels for many rows; wider kernels are for few.
    usual: usize,
    widths: &'static [(usize, &'static [DotFn])],
}

impl DotTable {
    /// The widest kernels of at most `panels` panels; the widest of all only for few rows.
    pub fn widest(&self, panels: usize, rows: usize) -> (usize, &'static [DotFn]) {
        let fits = |w: &&(usize, &'static [DotFn])| w.0 <= panels && (w.0 <= self.usual || rows <= w.1.len());
        // Every table starts with one panel.
        self.widths.iter().rfind(fits).copied().unwrap_or(self.widths[0])
    }
}

/// Which microkernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// Plain Rust.
    Portable,
    /// AVX2 without `vpdpbusd`.
    Avx2,
    /// 256-bit `vpdpbusd`.
    AvxVnni,
    /// 512-bit `vpdpbusd`.
    Avx512Vnni,
}

impl Kernels {
    /// The best that `isa` allows on this processor.
    pub fn of(isa: Isa) -> Self {
        let features = CpuFeatures::cached();
        match isa {
            Isa::Avx512 if features.avx512_vnni() => Self::Avx512Vnni,
            Isa::Avx2 | Isa::Avx512 if features.avx_vnni() => Self::AvxVnni,
            Isa::Avx2 | Isa::Avx512 => Self::Avx2,
            _ => Self::Portable,
        }
    }

    /// Their functions.
    pub fn table(self) -> &'static DotTable {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => &x86::avx512_vnni::TABLE,
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => &x86::avx_vnni::TABLE,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => &x86::avx2::TABLE,
            _ => &portable::TABLE,
        }
    }
}

/// Plain Rust.
pub(crate) mod portable {
    use super::{Dot, DotFn, DotTable, DotTile, PANEL, tile};

    #[derive(Clone, Copy)]
    pub(crate) struct Portable;

    impl Dot for Portable {
        type Sums = [i32; PANEL];
        type Line = [i8; 4 * PANEL];
        type Four = [u8; 4];

        #[inline(always)]
        fn zero(self) -> Self::Sums {
            [0; PANEL]
        }

        #[inline(always)]
        fn four(self, bytes: u32, flip: u32) -> Self::Four {
            (bytes ^ flip).to_le_bytes()
        }

        #[inline(always)]
        unsafe fn line(self, b: *const i8) -> Self::Line {
            // SAFETY: the caller vouches for 64 bytes.
            unsafe { b.cast::<Self::Line>().read() }
        }

        #[inline(always)]
        fn dot(self, sums: Self::Sums, a: [u8; 4], b: Self::Line) -> Self::Sums {
            let product = |lane: usize, k: usize| i32::from(a[k]) * i32::from(b[4 * lane + k]);
            core::array::from_fn(|i| {
                sums[i].wrapping_add(product(i, 0) + product(i, 1) + product(i, 2) + product(i, 3))
            })
        }

        #[inline(always)]
        unsafe fn store(self, sums: Self::Sums, to: *mut i32) {
            // SAFETY: the caller vouches for 16 sums.
            unsafe { to.cast::<Self::Sums>().write(sums) }
        }
    }

    unsafe fn kernel<const MR: usize, const NV: usize>(t: &DotTile) {
        // SAFETY: `DotFn`'s contract.
        unsafe { tile::<_, MR, NV>(Portable, t) }
    }

    pub(super) static TABLE: DotTable =
        DotTable { usual: 1, widths: &[(1, &[kernel::<1, 1> as DotFn, kernel::<2, 1>])] };
}

/// The x86-64 sets.
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use super::{Dot, DotFn, DotTable, DotTile, PANEL, tile};
    use core::arch::x86_64::*;

    /// Instructions of a set whose token is in hand.
    macro_rules! op {
        ($e:expr) => {
            // SAFETY: the token exists only in kernels compiled for its set, which run only where the set does.
            unsafe { $e }
        };
    }

    /// A module with the table of one set.
    macro_rules! table {
        ($module:ident, $token:ident, $features:literal, $usual:literal, $($panels:literal: $($rows:literal)*),*) => {
            pub(super) mod $module {
                use super::{DotFn, DotTable, DotTile, tile};

                #[target_feature(enable = $features)]
                unsafe fn kernel<const MR: usize, const NV: usize>(t: &DotTile) {
                    // SAFETY: `DotFn`'s contract.
                    unsafe { tile::<_, MR, NV>(super::$token, t) }
                }

                pub(in super::super) static TABLE: DotTable = DotTable {
                    usual: $usual,
                    widths: &[$(($panels, &[$(kernel::<$rows, $panels> as DotFn),*])),*],
                };
            }
        };
    }
    table!(
        avx512_vnni, Avx512Vnni, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c", 2,
        1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14, 2: 1 2 3 4 5 6 7 8 9 10 11 12 13, 4: 1 2 3 4 5 6
    );
    table!(avx_vnni, AvxVnni, "avxvnni,avx2,fma,f16c", 1, 1: 1 2 3 4 5 6, 2: 1 2);

    /// AVX2 without `vpdpbusd`.
    pub(super) mod avx2 {
        use super::{DotFn, DotTable};
        use crate::gemm::int8::wide::kernel;

        /// The kernels of `NV` panels.
        const fn rows<const NV: usize>() -> &'static [DotFn] {
            &[kernel::<1, NV>, kernel::<2, NV>, kernel::<3, NV>, kernel::<4, NV>, kernel::<5, NV>, kernel::<6, NV>]
        }

        pub(in super::super) static TABLE: DotTable =
            DotTable { usual: 4, widths: &[(1, rows::<1>()), (2, rows::<2>()), (4, rows::<4>())] };
    }

    #[derive(Clone, Copy)]
    pub(crate) struct Avx512Vnni;

    impl Dot for Avx512Vnni {
        type Sums = __m512i;
        type Line = __m512i;
        type Four = __m512i;

        #[inline(always)]
        fn zero(self) -> __m512i {
            op!(_mm512_setzero_si512())
        }

        #[inline(always)]
        fn four(self, bytes: u32, flip: u32) -> __m512i {
            // The exclusive-or on vectors: a broadcast from memory is free, one from a general register is not.
            op!(_mm512_xor_si512(_mm512_set1_epi32(bytes as i32), _mm512_set1_epi32(flip as i32)))
        }

        #[inline(always)]
        unsafe fn line(self, b: *const i8) -> __m512i {
            // SAFETY: the caller vouches for 64 bytes; the token for the set.
            unsafe { _mm512_loadu_si512(b.cast()) }
        }

        #[inline(always)]
        fn dot(self, sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
            op!(_mm512_dpbusd_epi32(sums, a, b))
        }

        #[inline(always)]
        unsafe fn store(self, sums: __m512i, to: *mut i32) {
            // SAFETY: the caller vouches for 16 sums; the token for the set.
            unsafe { _mm512_storeu_si512(to.cast(), sums) }
        }
    }

    #[derive(Clone, Copy)]
    pub(crate) struct AvxVnni;

    impl Dot for AvxVnni {
        type Sums = [__m256i; 2];
        type Line = [__m256i; 2];
        type Four = __m256i;

        #[inline(always)]
        fn zero(self) -> Self::Sums {
            op!([_mm256_setzero_si256(); 2])
        }

        #[inline(always)]
        fn four(self, bytes: u32, flip: u32) -> __m256i {
            op!(_mm256_xor_si256(_mm256_set1_epi32(bytes as i32), _mm256_set1_epi32(flip as i32)))
        }

        #[inline(always)]
        unsafe fn line(self, b: *const i8) -> Self::Line {
            // SAFETY: the caller vouches for 64 bytes; the token for the set.
            unsafe { [_mm256_loadu_si256(b.cast()), _mm256_loadu_si256(b.add(32).cast())] }
        }

        #[inline(always)]
        fn dot(self, sums: Self::Sums, a: __m256i, b: Self::Line) -> Self::Sums {
            op!([_mm256_dpbusd_avx_epi32(sums[0], a, b[0]), _mm256_dpbusd_avx_epi32(sums[1], a, b[1])])
        }

        #[inline(always)]
        unsafe fn store(self, sums: Self::Sums, to: *mut i32) {
            // SAFETY: the caller vouches for 16 sums; the token for the set.
            unsafe {
                _mm256_storeu_si256(to.cast(), sums[0]);
                _mm256_storeu_si256(to.add(8).cast(), sums[1]);
            }
        }
    }

    const _: () = assert!(PANEL == 16);
}
