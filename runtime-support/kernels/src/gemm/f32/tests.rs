//! The f32 product against its definition in f64, over sizes with every kind of tail, layouts, epilogues, batches, shares
//! and instruction sets.

extern crate std;
use super::super::{pack_b_into, packed_len};
use super::*;
use std::vec;
use std::vec::Vec;

fn random(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Buffers of one case, with margins that must not change.
struct Case {
    p: GemmParams,
    a: Vec<f32>,
    b: Vec<f32>,
    bias: Option<Vec<f32>>,
    residual: Option<Vec<f32>>,
    in_place: bool,
}

const MARGIN: f32 = -12345.0;

impl Case {
    fn run(&self, isa: Isa, streams: usize) -> Vec<f32> {
        let needed = self.p.lengths().expect("consistent parameters");
        let mut c = vec![MARGIN; needed.c + 3];
        if self.in_place {
            c[..needed.c].copy_from_slice(&random(needed.c, 9));
        }
        let residual = match &self.residual {
            _ if self.in_place => Residual::Output,
            Some(r) => Residual::Of(r),
            None => Residual::None,
        };
        let mut scratch = vec![f32::NAN; needed.scratch];
        for i in 0..streams {
            let units = self.p.share(i, streams);
            // SAFETY: one share after another.
            let ok = unsafe {
                product_f32_units(
                    isa,
                    &self.p,
                    units,
                    &self.a,
                    &self.b,
                    self.bias.as_deref(),
                    residual,
                    &mut c[..],
                    &mut scratch,
                )
            };
            assert!(ok);
        }
        c
    }

    fn check(&self, b_plain: &[f32], ldb: usize) {
        let p = &self.p;
        let needed = p.lengths().expect("consistent parameters");
        let transposed = p.b_layout == BLayout::Transposed;
        let mut want = vec![f64::from(MARGIN); needed.c + 3];
        let old = random(needed.c, 9);
        if self.in_place {
            want.iter_mut().zip(&old).for_each(|(w, &o)| *w = f64::from(o));
        }
        for i0 in 0..p.batch[0] {
            for i1 in 0..p.batch[1] {
                let at = |s: [usize; 2]| i0 * s[0] + i1 * s[1];
                for i in 0..p.m {
                    for j in 0..p.n {
                        let mut sum = self.bias.as_ref().map_or(0.0, |b| f64::from(b[j]));
                        let c_at = at(p.c_batch) + i * p.ldc + j;
                        if self.in_place {
                            sum += f64::from(old[c_at]);
                        } else if let Some(r) = &self.residual {
                            sum += f64::from(r[at(p.residual_batch) + i * p.ld_residual + j]);
                        }
                        for k in 0..p.k {
                            let b_at = at(p.b_batch) + if transposed { j * ldb + k } else { k * ldb + j };
                            sum += f64::from(self.a[at(p.a_batch) + i * p.lda + k]) * f64::from(b_plain[b_at]);
                        }
                        want[c_at] = f64::from(p.activation.scalar(sum as f32));
                    }
                }
            }
        }
        for isa in Isa::supported() {
            let got = self.run(isa, 1);
            // Rounding errors grow with √k, partial sums too.
            let tolerance = 5e-6 + 1e-7 * p.k as f64;
            for (x, (&got, &want)) in got.iter().zip(&want).enumerate() {
                assert!((f64::from(got) - want).abs() <= tolerance, "{isa:?} {p:?} at {x}: {got}, expected {want}");
            }
            for streams in [2, 3] {
                let shared = self.run(isa, streams);
                assert!(
                    shared.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{isa:?} {p:?}: bits differ over {streams} streams"
                );
            }
        }
    }
}

/// Builds and checks one case: `gap` widens every stride.
fn case(m: usize, n: usize, k: usize, layout: BLayout, gap: usize, epilogue: usize, activation: Activation) {
    let (rows, columns) = if layout == BLayout::Transposed { (n, k) } else { (k, n) };
    let ldb = columns + gap;
    let b_plain = random(rows * ldb, 2);
    let p = GemmParams {
        lda: k + gap,
        ldb,
        ldc: n + gap,
        ld_residual: if epilogue == 3 { 0 } else { n + gap },
        b_layout: layout,
        activation,
        ..GemmParams::packed(m, n, k)
    };
    let b = if layout == BLayout::Packed {
        let mut packed = vec![f32::NAN; packed_len(k, n)];
        assert!(pack_b_into(&mut packed, &b_plain, k, n, ldb, false));
        packed
    } else {
        b_plain.clone()
    };
    let case = Case {
        a: random(m * (k + gap), 1),
        b,
        bias: (epilogue != 0).then(|| random(n, 3)),
        residual: (epilogue >= 2).then(|| random(m * (n + gap), 4)),
        in_place: epilogue == 4,
        p,
    };
    case.check(&b_plain, ldb);
}

const LAYOUTS: [BLayout; 3] = [BLayout::Packed, BLayout::Rows, BLayout::Transposed];

#[test]
fn every_count_of_rows_and_width_of_tail() {
    for layout in LAYOUTS {
        for m in 1..=30 {
            for n in [1, 15, 16, 17, 31, 32, 33, 48, 63, 65, 129] {
                case(m, n, 5 + m % 3, layout, m % 2, m % 5, Activation::None);
            }
        }
    }
}

#[test]
fn every_epilogue_and_activation() {
    let activations = [
        Activation::None,
        Activation::Relu,
        Activation::Clip { lo: -0.5, hi: 0.5 },
        Activation::Gelu,
        Activation::Silu,
        Activation::LeakyRelu { alpha: 0.1 },
    ];
    for layout in LAYOUTS {
        for epilogue in 0..5 {
            for activation in activations {
                case(7, 37, 19, layout, 3, epilogue, activation);
                case(15, 16, 0, layout, 0, epilogue, activation);
            }
        }
    }
}

#[test]
fn blocks_of_k_and_rows() {
    for layout in LAYOUTS {
        for epilogue in [0, 4] {
            case(40, 50, 2500, layout, 0, epilogue, Activation::Relu);
            case(300, 40, 1100, layout, 5, epilogue, Activation::Silu);
        }
    }
    case(33, 70, 1024, BLayout::Packed, 0, 2, Activation::None);
}

#[test]
fn empty_extents() {
    for layout in LAYOUTS {
        for (m, n, k) in [(0, 5, 5), (5, 0, 5), (0, 0, 0), (3, 3, 0), (1, 20, 0)] {
            case(m, n, k, layout, 0, 1, Activation::None);
        }
    }
}

#[test]
fn batches_of_heads_in_place_of_transposes() {
    // [batch, seq, heads, size] operands, read and written where they lie.
    for layout in [BLayout::Rows, BLayout::Transposed] {
        for (batch, heads, m, n, k) in [(1, 3, 5, 7, 9), (2, 12, 17, 33, 16), (3, 2, 64, 64, 32)] {
            let (b_rows, b_columns) = if layout == BLayout::Transposed { (n, k) } else { (k, n) };
            let ldb = heads * b_columns;
            let b = random(batch * b_rows * ldb, 2);
            let p = GemmParams {
                lda: heads * k,
                ldb,
                ldc: heads * n,
                b_layout: layout,
                batch: [batch, heads],
                a_batch: [m * heads * k, k],
                b_batch: [b_rows * ldb, b_columns],
                c_batch: [m * heads * n, n],
                ..GemmParams::packed(m, n, k)
            };
            let a = random(batch * m * heads * k, 1);
            Case { p, a, b: b.clone(), bias: None, residual: None, in_place: false }.check(&b, ldb);
        }
    }
}

#[test]
fn short_operands_are_refused_untouched() {
    let p = GemmParams::packed(4, 20, 8);
    let needed = p.lengths().expect("consistent parameters");
    let (a, b, bias) = (random(needed.a, 1), random(needed.b, 2), random(20, 3));
    let mut c = vec![MARGIN; needed.c];
    let isa = Isa::detect();
    assert!(!product_f32(isa, &p, &a[1..], &b, None, Residual::None, &mut c, &mut []));
    assert!(!product_f32(isa, &p, &a, &b[1..], None, Residual::None, &mut c, &mut []));
    assert!(!product_f32(isa, &p, &a, &b, Some(&bias[1..]), Residual::None, &mut c, &mut []));
    assert!(!product_f32(isa, &p, &a, &b, None, Residual::Of(&a), &mut c, &mut []));
    assert!(!product_f32(isa, &p, &a, &b, None, Residual::None, &mut c[1..], &mut []));
    let plain = GemmParams { b_layout: BLayout::Transposed, ldb: 8, ..p };
    assert!(!product_f32(isa, &plain, &a, &b, None, Residual::None, &mut c, &mut []));
    assert!(c.iter().all(|&x| x == MARGIN));
    assert!(product_f32(isa, &p, &a, &b, Some(&bias), Residual::None, &mut c, &mut []));
}

#[test]
fn tiles_are_even_and_cover() {
    for n in 1..100 {
        for size in 1..20 {
            let tiles: Vec<_> = even_tiles(7..7 + n, n.div_ceil(size)).collect();
            assert!(tiles.iter().all(|t| !t.is_empty() && t.len() <= size));
            assert_eq!((tiles[0].start, tiles[tiles.len() - 1].end), (7, 7 + n));
            assert!(tiles.windows(2).all(|w| w[0].end == w[1].start));
        }
    }
}
