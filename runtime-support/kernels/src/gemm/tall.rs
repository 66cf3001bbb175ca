//! AVX-512's largest f32 microkernels, whose loop over k is written in assembly.
//!
//! As [`super::tile`] has it, with four steps of k at constant addresses: what is left beside products is one broadcast a row, one
//! load a panel and one prefetch. A compiler that unrolls these steps moves loads ahead of products and spills sums for them, by
//! chance in one size and not in the next; here the 32 registers hold up to 28 sums, the lines of B and one element of A, always.
//!
//! Invariant: the order of products is that of [`super::tile`], so the bits of the result are the same.

use super::tile::{At, Tile, first, last, rest};
use crate::simd::LANES;
use crate::simd::avx512::Avx512;
use core::arch::asm;

/// One row at a step of k: its element of A, times the lines of B.
macro_rules! row {
    ($a:literal, $k:literal, $($line:literal $sum:tt)*) => {
        concat!("vbroadcastss zmm31, dword ptr [", $a, "+4*", $k, "]\n", $("vfmadd231ps ", $sum, ", ", $line, ", zmm31\n"),*)
    };
}

/// A step of k.
macro_rules! step {
    ($k:literal, [$($line:literal $b:literal)*], [$([$a:literal $($with:literal $sum:tt)*])*]) => {
        concat!(
            $("vmovups ", $line, ", zmmword ptr [", $b, "+64*", $k, "]\n",)*
            $(row!($a, $k, $($with $sum)*),)*
            "prefetcht0 byte ptr [{ahead}]\n",
            "add {ahead}, {ahead_step}\n"
        )
    };
}

/// A microkernel of `$mr` rows and `$nv` panels: the register and the address of each line of B; for each row the address of its
/// element of A, and for each panel the line, the register of the sum, and the panel's number.
macro_rules! kernel {
    ($name:ident, $mr:literal x $nv:literal, [$($held:tt $at:literal)*], [$([$row:literal $a:literal $($line:literal $sum:tt $panel:literal)*])*]) => {
        /// # Safety
        /// [`super::tile::TileFn`]'s contract; AVX-512 runs here.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        pub(super) unsafe fn $name(t: &Tile) {
            // SAFETY: the caller's contract: the products read rows of A and lines of B that it lists, at `4 * groups` steps of
            // k; prefetches may name any address. The assembly writes its operands alone.
            unsafe {
                let s = Avx512::assume();
                let mut acc = first::<_, $mr, $nv>(s, t);
                let mut at = At::start(t);
                let groups = if t.b_step == LANES { t.k / 4 } else { 0 };
                if groups > 0 {
                    // Operands that a size has no use for are named all the same: the assembler wants every one.
                    let third = |i: usize| at.a.wrapping_add(3 * i * t.lda);
                    asm!(
                        "2:",
                        step!("0", [$($held $at)*], [$([$a $($line $sum)*])*]),
                        step!("1", [$($held $at)*], [$([$a $($line $sum)*])*]),
                        step!("2", [$($held $at)*], [$([$a $($line $sum)*])*]),
                        step!("3", [$($held $at)*], [$([$a $($line $sum)*])*]),
                        "add {a0}, 16",
                        "add {a3}, 16",
                        "add {a6}, 16",
                        "add {a9}, 16",
                        "add {a12}, 16",
                        "add {b}, 256",
                        "dec {groups} # {panel3}",
                        "jnz 2b",
                        a0 = inout(reg) third(0) => _,
                        a3 = inout(reg) third(1) => _,
                        a6 = inout(reg) third(2) => _,
                        a9 = inout(reg) third(3) => _,
                        a12 = inout(reg) third(4) => _,
                        lda = in(reg) 4 * t.lda,
                        b = inout(reg) at.b => at.b,
                        panel = in(reg) 4 * t.b_panel,
                        panel3 = in(reg) 12usize.wrapping_mul(t.b_panel),
                        ahead = inout(reg) at.ahead => at.ahead,
                        ahead_step = in(reg) 4 * t.prefetch_step,
                        groups = inout(reg) groups => _,
                        $($(inout($sum) acc[$row][$panel].0,)*)*
                        $(out($held) _,)*
                        out("zmm31") _,
                        options(readonly, nostack)
                    );
                    at.a = at.a.wrapping_add(4 * groups);
                }
                rest(s, t, &mut at, t.k - 4 * groups, &mut acc);
                last(s, t, acc);
            }
        }
    };
}

/// A microkernel for each marked row: of the rows up to that one.
macro_rules! kernels {
    ($nv:literal $lines:tt [$($done:tt)*]) => {};
    ($nv:literal $lines:tt [$($done:tt)*] () $row:tt $($more:tt)*) => {
        kernels! { $nv $lines [$($done)* $row] $($more)* }
    };
    ($nv:literal $lines:tt [$($done:tt)*] ($name:ident $mr:literal) $row:tt $($more:tt)*) => {
        kernel! { $name, $mr x $nv, $lines, [$($done)* $row] }
        kernels! { $nv $lines [$($done)* $row] $($more)* }
    };
}

kernels! {
    2 ["zmm28" "{b}" "zmm29" "{b}+{panel}"] []
    () [0 "{a0}" "zmm28" "zmm0" 0 "zmm29" "zmm1" 1]
    () [1 "{a0}+{lda}" "zmm28" "zmm2" 0 "zmm29" "zmm3" 1]
    () [2 "{a0}+2*{lda}" "zmm28" "zmm4" 0 "zmm29" "zmm5" 1]
    () [3 "{a3}" "zmm28" "zmm6" 0 "zmm29" "zmm7" 1]
    () [4 "{a3}+{lda}" "zmm28" "zmm8" 0 "zmm29" "zmm9" 1]
    () [5 "{a3}+2*{lda}" "zmm28" "zmm10" 0 "zmm29" "zmm11" 1]
    (tall_7x2 7) [6 "{a6}" "zmm28" "zmm12" 0 "zmm29" "zmm13" 1]
    (tall_8x2 8) [7 "{a6}+{lda}" "zmm28" "zmm14" 0 "zmm29" "zmm15" 1]
    (tall_9x2 9) [8 "{a6}+2*{lda}" "zmm28" "zmm16" 0 "zmm29" "zmm17" 1]
    (tall_10x2 10) [9 "{a9}" "zmm28" "zmm18" 0 "zmm29" "zmm19" 1]
    (tall_11x2 11) [10 "{a9}+{lda}" "zmm28" "zmm20" 0 "zmm29" "zmm21" 1]
    (tall_12x2 12) [11 "{a9}+2*{lda}" "zmm28" "zmm22" 0 "zmm29" "zmm23" 1]
    (tall_13x2 13) [12 "{a12}" "zmm28" "zmm24" 0 "zmm29" "zmm25" 1]
    (tall_14x2 14) [13 "{a12}+{lda}" "zmm28" "zmm26" 0 "zmm29" "zmm27" 1]
}

kernels! {
    3 ["zmm27" "{b}" "zmm28" "{b}+{panel}" "zmm29" "{b}+2*{panel}"] []
    () [0 "{a0}" "zmm27" "zmm0" 0 "zmm28" "zmm1" 1 "zmm29" "zmm2" 2]
    () [1 "{a0}+{lda}" "zmm27" "zmm3" 0 "zmm28" "zmm4" 1 "zmm29" "zmm5" 2]
    () [2 "{a0}+2*{lda}" "zmm27" "zmm6" 0 "zmm28" "zmm7" 1 "zmm29" "zmm8" 2]
    () [3 "{a3}" "zmm27" "zmm9" 0 "zmm28" "zmm10" 1 "zmm29" "zmm11" 2]
    () [4 "{a3}+{lda}" "zmm27" "zmm12" 0 "zmm28" "zmm13" 1 "zmm29" "zmm14" 2]
    () [5 "{a3}+2*{lda}" "zmm27" "zmm15" 0 "zmm28" "zmm16" 1 "zmm29" "zmm17" 2]
    (tall_7x3 7) [6 "{a6}" "zmm27" "zmm18" 0 "zmm28" "zmm19" 1 "zmm29" "zmm20" 2]
    (tall_8x3 8) [7 "{a6}+{lda}" "zmm27" "zmm21" 0 "zmm28" "zmm22" 1 "zmm29" "zmm23" 2]
    (tall_9x3 9) [8 "{a6}+2*{lda}" "zmm27" "zmm24" 0 "zmm28" "zmm25" 1 "zmm29" "zmm26" 2]
}

kernels! {
    4 ["zmm24" "{b}" "zmm25" "{b}+{panel}" "zmm26" "{b}+2*{panel}" "zmm27" "{b}+{panel3}"] []
    () [0 "{a0}" "zmm24" "zmm0" 0 "zmm25" "zmm1" 1 "zmm26" "zmm2" 2 "zmm27" "zmm3" 3]
    () [1 "{a0}+{lda}" "zmm24" "zmm4" 0 "zmm25" "zmm5" 1 "zmm26" "zmm6" 2 "zmm27" "zmm7" 3]
    () [2 "{a0}+2*{lda}" "zmm24" "zmm8" 0 "zmm25" "zmm9" 1 "zmm26" "zmm10" 2 "zmm27" "zmm11" 3]
    (tall_4x4 4) [3 "{a3}" "zmm24" "zmm12" 0 "zmm25" "zmm13" 1 "zmm26" "zmm14" 2 "zmm27" "zmm15" 3]
    (tall_5x4 5) [4 "{a3}+{lda}" "zmm24" "zmm16" 0 "zmm25" "zmm17" 1 "zmm26" "zmm18" 2 "zmm27" "zmm19" 3]
    (tall_6x4 6) [5 "{a3}+2*{lda}" "zmm24" "zmm20" 0 "zmm25" "zmm21" 1 "zmm26" "zmm22" 2 "zmm27" "zmm23" 3]
}
