//! Which instruction set the kernels run on, found once when a model starts.
//!
//! In: `cpuid` and `xgetbv` (x86-64) or the compile target (others). Out: an [`Isa`], passed to every kernel, and
//! [`CpuFeatures`] for kernels that need a finer choice (int8, bf16).
//!
//! Invariant: a value of [`Isa`] other than `Scalar` proves that this processor and its operating system support that
//! set. The variants cannot be built outside this crate, so safe code cannot forge the proof.
//! Source: Intel SDM vol. 1, 13.3 (XCR0), 14.3 and 15.2 (detection of AVX and AVX-512).

use core::sync::atomic::{AtomicU8, Ordering};

/// The instruction sets with kernels of their own, in rising order of width.
///
/// `Avx2` means AVX2, FMA and F16C; `Avx512` means those and AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Portable code without fused multiply-add: its results depend on no processor.
    Scalar,
    /// 256-bit vectors, two to a logical vector.
    #[non_exhaustive]
    Avx2,
    /// 512-bit vectors, one to a logical vector.
    #[non_exhaustive]
    Avx512,
    /// 128-bit vectors, four to a logical vector.
    #[non_exhaustive]
    Neon,
}

impl Isa {
    /// The widest set that this processor and its operating system support.
    pub fn detect() -> Self {
        CpuFeatures::detect().isa()
    }

    /// Every set this processor supports, `Scalar` first: what a test loops over.
    pub fn supported() -> impl Iterator<Item = Self> {
        let best = Self::detect();
        [Self::Scalar, Self::Avx2, Self::Avx512, Self::Neon].into_iter().filter(move |&isa| match isa {
            Self::Scalar => true,
            // x86-64 sets are nested; NEON stands alone.
            Self::Avx2 | Self::Avx512 => best != Self::Neon && isa <= best,
            Self::Neon => best == Self::Neon,
        })
    }

    /// Its name in lower case, as options and reports spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }
}

/// Finer facts about the processor, for kernels that gain from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuFeatures {
    /// AVX2, FMA and F16C.
    avx2: bool,
    /// The above and AVX-512 F, BW, DQ, VL.
    avx512: bool,
    /// NEON, which every aarch64 has.
    neon: bool,
    /// 256-bit `vpdpbusd` without AVX-512.
    avx_vnni: bool,
    /// 512-bit `vpdpbusd`.
    avx512_vnni: bool,
    /// `vdpbf16ps`.
    avx512_bf16: bool,
}

impl CpuFeatures {
    /// Asks the processor.
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Self {
        let (leaf1, leaf7, leaf7_1) = (cpuid(1, 0), cpuid(7, 0), cpuid(7, 1));
        let (Some(leaf1), Some(leaf7)) = (leaf1, leaf7) else {
            return Self::default();
        };
        let leaf7_1_eax = leaf7_1.filter(|_| leaf7.eax >= 1).map_or(0, |l| l.eax);
        let bit = |reg: u32, n: u32| reg >> n & 1 == 1;
        if !bit(leaf1.ecx, 27) {
            return Self::default(); // no OSXSAVE: xgetbv would fault
        }
        // SAFETY: OSXSAVE is set, so xgetbv exists and register 0 is readable.
        let xcr0 = unsafe { xcr0() };
        let os_ymm = xcr0 & 0x6 == 0x6;
        let os_zmm = xcr0 & 0xe6 == 0xe6;
        let fma_avx_f16c = bit(leaf1.ecx, 12) && bit(leaf1.ecx, 28) && bit(leaf1.ecx, 29);
        let avx2 = os_ymm && fma_avx_f16c && bit(leaf7.ebx, 5);
        let f_dq_bw_vl = [16, 17, 30, 31].into_iter().all(|n| bit(leaf7.ebx, n));
        let avx512 = avx2 && os_zmm && f_dq_bw_vl;
        Self {
            avx2,
            avx512,
            neon: false,
            avx_vnni: avx2 && bit(leaf7_1_eax, 4),
            avx512_vnni: avx512 && bit(leaf7.ecx, 11),
            avx512_bf16: avx512 && bit(leaf7_1_eax, 5),
        }
    }

    /// Asks the compile target: nothing else is optional here.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect() -> Self {
        Self { neon: cfg!(all(target_arch = "aarch64", target_feature = "neon")), ..Self::default() }
    }

    /// As [`CpuFeatures::detect`], but asks the processor at the first call only (in a virtual machine each `cpuid` is slow).
    pub fn cached() -> Self {
        /// Bits of the fields in order, and one that says they are known.
        static KNOWN: AtomicU8 = AtomicU8::new(0);
        const IS_KNOWN: u8 = 1 << 6;
        let mut bits = KNOWN.load(Ordering::Relaxed);
        if bits == 0 {
            let f = Self::detect();
            let fields = [f.avx2, f.avx512, f.neon, f.avx_vnni, f.avx512_vnni, f.avx512_bf16];
            bits = fields.into_iter().enumerate().fold(IS_KNOWN, |bits, (i, field)| bits | u8::from(field) << i);
            KNOWN.store(bits, Ordering::Relaxed);
        }
        let bit = |n: u8| bits >> n & 1 == 1;
        Self { avx2: bit(0), avx512: bit(1), neon: bit(2), avx_vnni: bit(3), avx512_vnni: bit(4), avx512_bf16: bit(5) }
    }

    /// The widest [`Isa`] these features allow.
    pub const fn isa(self) -> Isa {
        match self {
            Self { avx512: true, .. } => Isa::Avx512,
            Self { avx2: true, .. } => Isa::Avx2,
            Self { neon: true, .. } => Isa::Neon,
            _ => Isa::Scalar,
        }
    }

    /// Whether 256-bit `vpdpbusd` runs without AVX-512 (AVX-VNNI).
    pub const fn avx_vnni(self) -> bool {
        self.avx_vnni
    }

    /// Whether 512-bit `vpdpbusd` runs (AVX512-VNNI).
    pub const fn avx512_vnni(self) -> bool {
        self.avx512_vnni
    }

    /// Whether `vdpbf16ps` runs (AVX512-BF16).
    pub const fn avx512_bf16(self) -> bool {
        self.avx512_bf16
    }
}

/// One leaf of `cpuid`, or nothing where the processor has no such leaf.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)] // `__cpuid*` are unsafe functions in older toolchains only
fn cpuid(leaf: u32, subleaf: u32) -> Option<core::arch::x86_64::CpuidResult> {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    // SAFETY: every x86-64 processor has cpuid.
    let max_leaf = unsafe { __cpuid(0) }.eax;
    // SAFETY: as above, and the leaf exists.
    (leaf <= max_leaf).then(|| unsafe { __cpuid_count(leaf, subleaf) })
}

/// The operating system's enabled register states.
///
/// # Safety
/// `cpuid` must report OSXSAVE.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: the caller guarantees xgetbv; register 0 always exists.
    unsafe { core::arch::x86_64::_xgetbv(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn agrees_with_std() {
        extern crate std;
        use std::is_x86_feature_detected as has;
        let features = CpuFeatures::detect();
        assert_eq!((CpuFeatures::cached(), CpuFeatures::cached()), (features, features));
        let avx2 = has!("avx2") && has!("fma") && has!("f16c");
        let avx512 = avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        assert_eq!((features.avx2, features.avx512), (avx2, avx512));
        assert_eq!(features.avx512_vnni, avx512 && has!("avx512vnni"));
        assert_eq!(features.avx_vnni, avx2 && has!("avxvnni"));
        assert_eq!(features.avx512_bf16, avx512 && has!("avx512bf16"));
    }

    #[test]
    fn supported_starts_scalar_and_ends_with_detected() {
        assert_eq!(Isa::supported().next(), Some(Isa::Scalar));
        assert_eq!(Isa::supported().last(), Some(Isa::detect()));
    }
}
