//! Every vector method on every supported set, lane by lane against scalar Rust, over values that include the special
//! ones.

extern crate std;
use super::{F32x16, I32x16, LANES};
use crate::isa::Isa;
use crate::simd_fn;
use std::vec::Vec;

const SPECIAL: [f32; 24] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    0.499_999_97,
    8_388_607.5,
    8_388_609.0,
    -4_194_303.5,
    3e9,
    -3e9,
    1e-40,
    -1e-45,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1e-6,
];

/// Pairs of special values, then a long run of bit patterns. No signalling NaN: what compilers make of those in plain Rust
/// differs.
fn pairs() -> Vec<(f32, f32)> {
    let special = SPECIAL.iter().flat_map(|&a| SPECIAL.iter().map(move |&b| (a, b)));
    let mut state = 1u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let x = f32::from_bits(state ^ state >> 15);
        if x.is_nan() { f32::NAN } else { x }
    };
    let mut all: Vec<_> = special.chain((0..4096).map(|_| (next(), next()))).collect();
    all.truncate(all.len() / LANES * LANES);
    all
}

simd_fn! {
    fn apply<S>(s, which: usize, a: &[f32; LANES], b: &[f32; LANES]) -> [f32; LANES] {
        let (x, y) = (s.array(*a), s.array(*b));
        let (one, zero) = (s.splat(1.0), s.zero());
        match which {
            0 => x + y,
            1 => x - y,
            2 => x * y,
            3 => x / y,
            4 => -x,
            5 => x.min(y),
            6 => x.max(y),
            7 => x.abs(),
            8 => x.copysign(y),
            9 => x.sqrt(),
            10 => x.round(),
            11 => x.floor(),
            12 => x.ceil(),
            13 => x.trunc(),
            14 => S::F32::select(x.lt(y), one, zero),
            15 => S::F32::select(x.le(y), one, zero),
            16 => S::F32::select(x.eq(y), one, zero),
            17 => S::F32::select(x.is_nan(), one, zero),
            18 => S::F32::select(S::F32::and(x.lt(y), x.lt(zero)), x, y),
            _ => S::F32::select(S::F32::or(x.lt(y), x.lt(zero)), x, y),
        }
        .to_array()
    }
}

fn scalar(which: usize, x: f32, y: f32) -> f32 {
    let truth = |t: bool| if t { 1.0 } else { 0.0 };
    match which {
        0 => x + y,
        1 => x - y,
        2 => x * y,
        3 => x / y,
        4 => -x,
        5 => {
            if x < y {
                x
            } else {
                y
            }
        }
        6 => {
            if x > y {
                x
            } else {
                y
            }
        }
        7 => x.abs(),
        8 => x.copysign(y),
        9 => x.sqrt(),
        10 => x.round_ties_even(),
        11 => x.floor(),
        12 => x.ceil(),
        13 => x.trunc(),
        14 => truth(x < y),
        15 => truth(x <= y),
        16 => truth(x == y),
        17 => truth(x.is_nan()),
        18 => {
            if x < y && x < 0.0 {
                x
            } else {
                y
            }
        }
        _ => {
            if x < y || x < 0.0 {
                x
            } else {
                y
            }
        }
    }
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[test]
fn lanes_equal_scalar_rust() {
    for isa in Isa::supported() {
        for chunk in pairs().chunks(LANES) {
            let a = core::array::from_fn(|i| chunk[i].0);
            let b = core::array::from_fn(|i| chunk[i].1);
            for which in 0..20 {
                let got = apply(isa, which, &a, &b);
                for i in 0..LANES {
                    let want = scalar(which, a[i], b[i]);
                    assert!(
                        same(got[i], want),
                        "{isa:?} op {which} of {:e}, {:e}: {:e}, expected {want:e}",
                        a[i],
                        b[i],
                        got[i]
                    );
                }
            }
        }
    }
}

simd_fn! {
    fn fused<S>(s, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [[f32; LANES]; 2] {
        let (a, b, c) = (s.array(a), s.array(b), s.array(c));
        [a.fma(b, c).to_array(), a.fnma(b, c).to_array()]
    }
}

#[test]
fn fma_is_fused_only_beyond_scalar() {
    for isa in Isa::supported() {
        for chunk in pairs().chunks(LANES) {
            let a = core::array::from_fn(|i| chunk[i].0);
            let b = core::array::from_fn(|i| chunk[i].1);
            let c = core::array::from_fn(|i| chunk[LANES - 1 - i].0);
            let [sum, difference] = fused(isa, a, b, c);
            for i in 0..LANES {
                let (plus, minus) = match isa {
                    Isa::Scalar => (a[i] * b[i] + c[i], c[i] - a[i] * b[i]),
                    _ => (a[i].mul_add(b[i], c[i]), (-a[i]).mul_add(b[i], c[i])),
                };
                assert!(same(sum[i], plus) && same(difference[i], minus), "{isa:?} {:e} {:e} {:e}", a[i], b[i], c[i]);
            }
        }
    }
}

simd_fn! {
    fn conversions<S>(s, x: [f32; LANES], n: [f32; LANES]) -> ([f32; LANES], [f32; LANES], [f32; LANES], [i32; LANES]) {
        let x = s.array(x);
        let (mantissa, exponent) = x.split_pow2();
        (x.mul_pow2(s.array(n)).to_array(), mantissa.to_array(), exponent.to_array(), s.to_i32(x).to_array())
    }
}

#[test]
fn powers_of_two_and_integers() {
    for isa in Isa::supported() {
        for n in -252..=252 {
            let x: [f32; LANES] = core::array::from_fn(|i| 0.7 + 0.13 * i as f32);
            let (scaled, ..) = conversions(isa, x, [n as f32; LANES]);
            for i in 0..LANES {
                let want = (f64::from(x[i]) * f64::from(n).exp2()) as f32;
                assert_eq!(scaled[i].to_bits(), want.to_bits(), "{isa:?} {} * 2^{n}", x[i]);
            }
        }
        for e in -126..=127 {
            let x = core::array::from_fn(|i| (1.0 + i as f32 / 16.0) * (e as f32).exp2());
            let (_, mantissa, exponent, _) = conversions(isa, x, [0.0; LANES]);
            assert_eq!(mantissa, core::array::from_fn(|i| 1.0 + i as f32 / 16.0), "{isa:?} 2^{e}");
            assert_eq!(exponent, [e as f32; LANES], "{isa:?} 2^{e}");
        }
        for chunk in pairs().chunks(LANES) {
            let x = core::array::from_fn(|i| chunk[i].0);
            let (.., integers) = conversions(isa, x, [0.0; LANES]);
            for i in 0..LANES {
                let rounded = f64::from(x[i]).round_ties_even();
                let fits = (-2_147_483_648.0..2_147_483_648.0).contains(&rounded);
                assert_eq!(integers[i], if fits { rounded as i32 } else { i32::MIN }, "{isa:?} {:e}", x[i]);
            }
        }
    }
}

simd_fn! {
    fn reductions<S>(s, x: [f32; LANES]) -> [f32; 3] {
        let x = s.array(x);
        [x.sum(), x.max_lane(), x.min_lane()]
    }
}

#[test]
fn reductions_have_one_order() {
    for isa in Isa::supported() {
        for chunk in pairs().chunks(LANES) {
            let x: [f32; LANES] = core::array::from_fn(|i| chunk[i].0);
            let (got, want) = (reductions(isa, x), reductions(Isa::Scalar, x));
            assert!((0..3).all(|i| same(got[i], want[i])), "{isa:?} {x:?}: {got:?}, expected {want:?}");
        }
        let ramp = core::array::from_fn(|i| i as f32);
        assert_eq!(reductions(isa, ramp), [120.0, 15.0, 0.0]);
    }
}

simd_fn! {
    unsafe fn copy_n<S>(s, from: *const f32, to: *mut f32, n: usize) {
        // SAFETY: the caller vouches for `n` lanes at both.
        unsafe { s.load_n(from, n).store_n(to, n) }
    }
}

simd_fn! {
    fn rest_is_zero<S>(s, x: &[f32], at: usize, y: &mut [f32]) -> [f32; LANES] {
        let v = s.load_slice(x, at);
        v.store_slice(y, at);
        v.to_array()
    }
}

#[test]
fn partial_accesses_keep_to_their_lanes() {
    let from: Vec<f32> = (1..=32).map(|i| i as f32).collect();
    for isa in Isa::supported() {
        for n in 0..=LANES {
            let mut to = [-1.0; 32];
            // SAFETY: `n <= 16` lanes are in both.
            unsafe { copy_n(isa, from.as_ptr().add(3), to.as_mut_ptr().add(5), n) };
            for i in 0..32 {
                let want = if (5..5 + n).contains(&i) { from[i - 2] } else { -1.0 };
                assert_eq!(to[i], want, "{isa:?} n {n} lane {i}");
            }
            let mut y = [-1.0; 20];
            let got = rest_is_zero(isa, &from[..20], 20 - n, &mut y);
            assert_eq!(got, core::array::from_fn(|i| if i < n { from[20 - n + i] } else { 0.0 }), "{isa:?} n {n}");
            assert_eq!(y[20 - n..], from[20 - n..20], "{isa:?} n {n}");
        }
    }
}

#[test]
fn partial_loads_do_not_cross_into_an_unmapped_page() {
    // A boxed slice's end is the closest that safe code gets; the addresses after it may or may not be mapped. The masks
    // are tested above; here the lengths that end at the allocation are run under a sanitizer.
    for isa in Isa::supported() {
        for n in 0..=LANES {
            let from: std::boxed::Box<[f32]> = (0..n).map(|i| i as f32).collect();
            let mut to: std::boxed::Box<[f32]> = std::vec![0.0; n].into();
            // SAFETY: both hold `n` lanes.
            unsafe { copy_n(isa, from.as_ptr(), to.as_mut_ptr(), n) };
            assert_eq!(from, to);
        }
    }
}

#[test]
fn integer_square_root_equals_the_instruction() {
    for (a, b) in pairs() {
        for x in [a, b, a.abs(), b.abs()] {
            assert!(same(super::scalar::sqrt_by_integers(x), x.sqrt()), "{x:e}");
        }
    }
}

simd_fn! {
    fn integers<S>(s, a: [i32; LANES], b: [i32; LANES], n: usize) -> ([[i32; LANES]; 4], [f32; LANES], [u8; LANES], [i8; LANES]) {
        let (x, y) = (s.array_i32(a), s.array_i32(b));
        // SAFETY: the array has 16 lanes.
        let some = unsafe { s.load_i32_n(a.as_ptr(), n) };
        let results = [x + y, x - y, x * y, some].map(|v| v.to_array());
        (results, x.to_f32().to_array(), x.to_u8(), x.to_i8())
    }
}

#[test]
fn integer_lanes_equal_scalar_rust() {
    for isa in Isa::supported() {
        for (round, chunk) in pairs().chunks(LANES).enumerate() {
            let shift = round % 28;
            let a: [i32; LANES] = core::array::from_fn(|i| (chunk[i].0.to_bits() as i32) >> shift);
            let b: [i32; LANES] = core::array::from_fn(|i| chunk[i].1.to_bits() as i32);
            let n = round % 17;
            let ([sum, difference, product, some], floats, unsigned, signed) = integers(isa, a, b, n);
            for i in 0..LANES {
                let want = (a[i].wrapping_add(b[i]), a[i].wrapping_sub(b[i]), a[i].wrapping_mul(b[i]));
                assert_eq!((sum[i], difference[i], product[i]), want, "{isa:?} {} {}", a[i], b[i]);
                assert_eq!(some[i], if i < n { a[i] } else { 0 });
                assert_eq!(floats[i], a[i] as f32);
                let bytes = (a[i].clamp(0, 255) as u8, a[i].clamp(-128, 127) as i8);
                assert_eq!((unsigned[i], signed[i]), bytes, "{isa:?} {}", a[i]);
            }
        }
    }
}
