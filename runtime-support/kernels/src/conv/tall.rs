//! AVX-512's largest tiles of direct convolution, whose loop over the channels of a block is written in assembly.
//!
//! As [`super::tile`] has it. A compiler that unrolls these steps moves loads ahead of products and spills sums for them, by chance
//! in one size and not in the next; here the 32 registers hold up to 28 sums, the weights of a channel and one input, always.
//!
//! Invariant: the order of products is that of [`super::tile`], so the bits of the result are the same.

use super::tile::{Ahead, Taps, TileArgs, first, last, steps};
use crate::simd::avx512::Avx512;
use core::arch::asm;

/// One pixel's channel, times the weights of each block.
macro_rules! pixel {
    ($q:literal, $c:literal, $($line:literal $sum:tt)*) => {
        concat!(
            "vbroadcastss zmm31, dword ptr [{x}+64*", $q, "+4*", $c, "]\n",
            $("vfmadd231ps ", $sum, ", ", $line, ", zmm31\n"),*
        )
    };
}

/// A channel.
macro_rules! channel {
    ($c:literal, [$($line:literal $w:literal)*], [$([$q:literal $($with:literal $sum:tt)*])*]) => {
        concat!(
            $("vmovups ", $line, ", zmmword ptr [", $w, "+64*", $c, "]\n",)*
            $(pixel!($q, $c, $($with $sum)*)),*
        )
    };
}

/// A tile of `$pixels` × `$blocks`: the register and the address of each block's weights; for each pixel its number, and for each
/// block the weights' register, the register of the sum, and the block's number.
macro_rules! tile {
    ($name:ident, $pixels:literal x $blocks:literal, [$($held:tt $at:literal)*], [$([$q:literal $($line:literal $sum:tt $b:literal)*])*]) => {
        /// # Safety
        /// [`super::tile::TileFn`]'s contract; AVX-512 runs here.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        pub(super) unsafe fn $name(a: &TileArgs) -> Ahead {
            let mut ahead = a.ahead;
            for t in 0..a.n_tiles {
                // SAFETY: the caller vouches for the inputs and weights of every tap and channel, and for bias, output and
                // residual. The assembly reads 16 channels of each pixel and their weights, asks for lines ahead, which may be
                // any, and writes its operands alone.
                unsafe {
                    let s = Avx512::assume();
                    let mut acc = first::<_, $pixels, $blocks>(s, a);
                    let mut taps = Taps::of(a, a.x.wrapping_add(t * $pixels * 16));
                    while let Some((x, w, channels)) = taps.next::<16>(a) {
                        if channels < 16 {
                            steps::<_, 16, $pixels, $blocks>(s, a, x, w, channels, &mut acc);
                            ahead.look();
                            continue;
                        }
                        let (next, lines) = ahead.due();
                        asm!(
                            "2:",
                            channel!("0", [$($held $at)*], [$([$q $($line $sum)*])*]),
                            channel!("1", [$($held $at)*], [$([$q $($line $sum)*])*]),
                            channel!("2", [$($held $at)*], [$([$q $($line $sum)*])*]),
                            channel!("3", [$($held $at)*], [$([$q $($line $sum)*])*]),
                            "mov {due:e}, {lines:e}",
                            "test {due:e}, {due:e}",
                            "jz 4f",
                            "3:",
                            "prefetcht0 byte ptr [{next}]",
                            "add {next}, 64",
                            "dec {due:e}",
                            "jnz 3b",
                            "4:",
                            "add {x}, 16",
                            "add {w}, 256",
                            "dec {quads:e} # {block} {block3}",
                            "jnz 2b",
                            x = inout(reg) x => _,
                            w = inout(reg) w => _,
                            block = in(reg) 4 * a.w_block,
                            block3 = in(reg) 12 * a.w_block,
                            next = inout(reg) next => ahead.next,
                            lines = in(reg) lines,
                            due = out(reg) _,
                            quads = inout(reg) 4usize => _,
                            $($(inout($sum) acc[$b][$q].0,)*)*
                            $(out($held) _,)*
                            out("zmm31") _,
                            options(readonly, nostack)
                        );
                    }
                    last(s, a, t, acc);
                }
            }
            ahead
        }
    };
}

/// A tile for each marked pixel: of the pixels up to that one.
macro_rules! tiles {
    ($blocks:literal $weights:tt [$($done:tt)*]) => {};
    ($blocks:literal $weights:tt [$($done:tt)*] () $pixel:tt $($more:tt)*) => {
        tiles! { $blocks $weights [$($done)* $pixel] $($more)* }
    };
    ($blocks:literal $weights:tt [$($done:tt)*] ($name:ident $pixels:literal) $pixel:tt $($more:tt)*) => {
        tile! { $name, $pixels x $blocks, $weights, [$($done)* $pixel] }
        tiles! { $blocks $weights [$($done)* $pixel] $($more)* }
    };
}

tiles! {
    2 ["zmm28" "{w}" "zmm29" "{w}+{block}"] []
    () [0 "zmm28" "zmm0" 0 "zmm29" "zmm1" 1]
    () [1 "zmm28" "zmm2" 0 "zmm29" "zmm3" 1]
    () [2 "zmm28" "zmm4" 0 "zmm29" "zmm5" 1]
    () [3 "zmm28" "zmm6" 0 "zmm29" "zmm7" 1]
    () [4 "zmm28" "zmm8" 0 "zmm29" "zmm9" 1]
    () [5 "zmm28" "zmm10" 0 "zmm29" "zmm11" 1]
    (tall_7x2 7) [6 "zmm28" "zmm12" 0 "zmm29" "zmm13" 1]
    (tall_8x2 8) [7 "zmm28" "zmm14" 0 "zmm29" "zmm15" 1]
    (tall_9x2 9) [8 "zmm28" "zmm16" 0 "zmm29" "zmm17" 1]
    (tall_10x2 10) [9 "zmm28" "zmm18" 0 "zmm29" "zmm19" 1]
    (tall_11x2 11) [10 "zmm28" "zmm20" 0 "zmm29" "zmm21" 1]
    (tall_12x2 12) [11 "zmm28" "zmm22" 0 "zmm29" "zmm23" 1]
    (tall_13x2 13) [12 "zmm28" "zmm24" 0 "zmm29" "zmm25" 1]
    (tall_14x2 14) [13 "zmm28" "zmm26" 0 "zmm29" "zmm27" 1]
}

tiles! {
    3 ["zmm27" "{w}" "zmm28" "{w}+{block}" "zmm29" "{w}+2*{block}"] []
    () [0 "zmm27" "zmm0" 0 "zmm28" "zmm1" 1 "zmm29" "zmm2" 2]
    () [1 "zmm27" "zmm3" 0 "zmm28" "zmm4" 1 "zmm29" "zmm5" 2]
    () [2 "zmm27" "zmm6" 0 "zmm28" "zmm7" 1 "zmm29" "zmm8" 2]
    () [3 "zmm27" "zmm9" 0 "zmm28" "zmm10" 1 "zmm29" "zmm11" 2]
    () [4 "zmm27" "zmm12" 0 "zmm28" "zmm13" 1 "zmm29" "zmm14" 2]
    () [5 "zmm27" "zmm15" 0 "zmm28" "zmm16" 1 "zmm29" "zmm17" 2]
    (tall_7x3 7) [6 "zmm27" "zmm18" 0 "zmm28" "zmm19" 1 "zmm29" "zmm20" 2]
    (tall_8x3 8) [7 "zmm27" "zmm21" 0 "zmm28" "zmm22" 1 "zmm29" "zmm23" 2]
    (tall_9x3 9) [8 "zmm27" "zmm24" 0 "zmm28" "zmm25" 1 "zmm29" "zmm26" 2]
}

tiles! {
    4 ["zmm24" "{w}" "zmm25" "{w}+{block}" "zmm26" "{w}+2*{block}" "zmm27" "{w}+{block3}"] []
    () [0 "zmm24" "zmm0" 0 "zmm25" "zmm1" 1 "zmm26" "zmm2" 2 "zmm27" "zmm3" 3]
    () [1 "zmm24" "zmm4" 0 "zmm25" "zmm5" 1 "zmm26" "zmm6" 2 "zmm27" "zmm7" 3]
    () [2 "zmm24" "zmm8" 0 "zmm25" "zmm9" 1 "zmm26" "zmm10" 2 "zmm27" "zmm11" 3]
    (tall_4x4 4) [3 "zmm24" "zmm12" 0 "zmm25" "zmm13" 1 "zmm26" "zmm14" 2 "zmm27" "zmm15" 3]
    (tall_5x4 5) [4 "zmm24" "zmm16" 0 "zmm25" "zmm17" 1 "zmm26" "zmm18" 2 "zmm27" "zmm19" 3]
    (tall_6x4 6) [5 "zmm24" "zmm20" 0 "zmm25" "zmm21" 1 "zmm26" "zmm22" 2 "zmm27" "zmm23" 3]
}
