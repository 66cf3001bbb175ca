//! The 8-bit product against its definition in i64, on every set of microkernels, over signs, zero points, tails and
//! outputs; extreme values show that nothing saturates on the way.

extern crate std;
use super::*;
use crate::activation::Activation;
use std::vec;
use std::vec::Vec;

fn random(n: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// Microkernels that run here, with the set they belong to.
fn kernels() -> Vec<(Isa, Kernels)> {
    let mut all = vec![(Isa::Scalar, Kernels::Portable)];
    for isa in Isa::supported() {
        all.push((isa, Kernels::of(isa)));
        if matches!(isa, Isa::Avx2 | Isa::Avx512) {
            all.push((isa, Kernels::Avx2));
        }
    }
    all
}

fn value(byte: u8, signed: bool) -> i64 {
    if signed { i64::from(byte as i8) } else { i64::from(byte) }
}

struct Case {
    p: Int8Params,
    a: Vec<u8>,
    b: Vec<u8>,
    a_zero: Vec<u8>,
    b_zero: Vec<u8>,
    b_signed: bool,
    bias: Vec<i32>,
}

impl Case {
    fn random(m: usize, n: usize, k: usize, signs: usize, zeros: usize) -> Self {
        let gap = m % 3;
        let p = Int8Params { lda: k + gap, ldc: n + gap, ..Int8Params::dense(m, n, k, signs & 1 != 0) };
        let zero = |len: usize, seed| match zeros {
            0 => vec![],
            1 => random(1, seed),
            _ => random(len, seed),
        };
        Self {
            p,
            a: random(m * p.lda, 1),
            b: random(k * n, 2),
            a_zero: zero(m, 3),
            b_zero: zero(n, 4),
            b_signed: signs & 2 != 0,
            bias: if zeros == 1 { vec![] } else { (0..n as i32).map(|i| i * 1000 - 7).collect() },
        }
    }

    fn exact(&self, i: usize, j: usize) -> i64 {
        let p = &self.p;
        let pick = |zero: &[u8], at: usize, signed| match zero {
            [] => 0,
            [one] => value(*one, signed),
            all => value(all[at], signed),
        };
        let (za, zb) = (pick(&self.a_zero, i, p.a_signed), pick(&self.b_zero, j, self.b_signed));
        let bias = self.bias.get(j).map_or(0, |&b| i64::from(b));
        let product = |k: usize| {
            (value(self.a[i * p.lda + k], p.a_signed) - za) * (value(self.b[k * p.n + j], self.b_signed) - zb)
        };
        bias + (0..p.k).map(product).sum::<i64>()
    }

    fn run<C: Quantized>(&self, isa: Isa, kernels: Kernels, scaling: &Scaling, fill: C) -> Vec<C> {
        let p = &self.p;
        let mut packed = vec![99i8; packed_int8_len(p.k, p.n)];
        let mut sums = vec![77; p.n.next_multiple_of(PANEL)];
        assert!(pack_int8_into(&mut packed, &mut sums, &self.b, [p.k, p.n], p.n, false, self.b_signed));
        let mut b_zero: Vec<i8> = self.b_zero.iter().map(|&z| pack::packed_zero(z, self.b_signed)).collect();
        if b_zero.is_empty() && !self.b_signed {
            b_zero.push(pack::packed_zero(0, false));
        }
        let (a_zero, b_zero) = (&self.a_zero[..], &b_zero[..]);
        let o = Int8Operands { a: &self.a, b: &packed, b_sums: &sums, a_zero, b_zero, bias: &self.bias };
        let mut c = vec![fill; p.m * p.ldc];
        assert!(p.fits(&o, c.len()) && scaling.fits(p.n));
        for i in 0..2 {
            // SAFETY: lengths are checked, and the kernels run here.
            unsafe { run(isa, kernels, p, p.share(i, 2), &o, scaling, c.as_mut_ptr()) };
        }
        c
    }

    fn check(&self) {
        let p = &self.p;
        let scales: Vec<f32> = (0..p.n).map(|j| 1e-3 * (1.0 + j as f32)).collect();
        for (isa, kernels) in kernels() {
            let c = self.run(isa, kernels, &Scaling::NONE, -1i32);
            for (x, &got) in c.iter().enumerate() {
                let (i, j) = (x / p.ldc, x % p.ldc);
                let want = if j < p.n { self.exact(i, j) } else { -1 };
                assert_eq!(i64::from(got), want, "{isa:?} {kernels:?} {p:?} at {i}, {j}");
            }
            let scaling = Scaling {
                a_scale: 0.37,
                c_scale: 2.0,
                b_scale: &scales,
                bias: &scales,
                c_zero: 3,
                activation: Activation::Relu,
            };
            let f = self.run(isa, kernels, &scaling, -1.0f32);
            let q = self.run(isa, kernels, &scaling, 1i8);
            for i in 0..p.m {
                for j in 0..p.n {
                    let want = (self.exact(i, j) as f32 * (0.37 * scales[j] / 2.0) + scales[j]).max(0.0);
                    assert_eq!(f[i * p.ldc + j], want, "{isa:?} {kernels:?} {p:?} at {i}, {j}");
                    let want = (want.round_ties_even() + 3.0).clamp(-128.0, 127.0) as i8;
                    assert_eq!(q[i * p.ldc + j], want, "{isa:?} {kernels:?} {p:?} at {i}, {j}");
                }
            }
        }
    }
}

#[test]
fn every_tail_sign_and_zero_point() {
    for m in [1, 2, 3, 7, 13, 14, 15, 29] {
        for n in [1, 15, 16, 17, 33, 64, 80] {
            for k in [0, 1, 2, 3, 4, 5, 31] {
                Case::random(m, n, k, m + n, k % 3).check();
            }
        }
    }
    for signs in 0..4 {
        for zeros in 0..3 {
            Case::random(5, 20, 70, signs, zeros).check();
        }
    }
}

#[test]
fn extremes_do_not_saturate() {
    for (a, b, signs) in [(255, 128, 2), (255, 127, 2), (128, 128, 3), (255, 255, 0), (127, 0, 1)] {
        let mut case = Case::random(4, 18, 1000, signs, 0);
        case.a.fill(a);
        case.b.fill(b);
        case.bias.clear();
        case.check();
    }
}

#[test]
fn blocks_of_rows() {
    Case::random(700, 17, 1031, 2, 1).check();
}

/// Longer than what is widened at a time.
#[test]
fn long_reductions() {
    for (m, n, k) in [(1, 70, 1537), (6, 33, 1536), (13, 20, 1541), (3, 50, 4099)] {
        Case::random(m, n, k, m, 1).check();
    }
}

#[test]
fn rounds_to_even_and_saturates() {
    let p = Int8Params::dense(1, 6, 1, false);
    let mut packed = vec![0i8; packed_int8_len(1, 6)];
    let mut sums = vec![0; 16];
    assert!(pack_int8_into(&mut packed, &mut sums, &[1, 3, 5, 127, 255, 253], [1, 6], 6, false, true));
    let o = Int8Operands { a: &[1], b: &packed, b_sums: &sums, a_zero: &[], b_zero: &[], bias: &[] };
    for isa in Isa::supported() {
        let half = Scaling { a_scale: 0.5, ..Scaling::NONE };
        let mut c = [0i8; 6];
        assert!(product_int8(isa, &p, &o, &half, &mut c));
        assert_eq!(c, [0, 2, 2, 64, 0, -2]);
        let huge = Scaling { a_scale: 1e30, c_zero: 10, ..Scaling::NONE };
        let mut c = [0u8; 6];
        assert!(product_int8(isa, &p, &o, &huge, &mut c));
        assert_eq!(c, [255, 255, 255, 255, 0, 0]);
        assert!(!product_int8(isa, &p, &o, &huge, &mut c[1..]));
        assert!(!product_int8(isa, &p, &Int8Operands { a_zero: &[1, 2], ..o }, &huge, &mut c));
    }
}

#[test]
fn transposed_b_packs_the_same() {
    let (k, n) = (13, 21);
    let b = random(k * n, 5);
    let transposed: Vec<u8> = (0..n * k).map(|i| b[i % k * n + i / k]).collect();
    let pack = |b: &[u8], stride, transposed| {
        let (mut packed, mut sums) = (vec![9i8; packed_int8_len(k, n)], vec![9; 32]);
        assert!(pack_int8_into(&mut packed, &mut sums, b, [k, n], stride, transposed, false));
        (packed, sums)
    };
    assert_eq!(pack(&b, n, false), pack(&transposed, k, true));
}
