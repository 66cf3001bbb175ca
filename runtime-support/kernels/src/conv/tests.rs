//! Convolution kernels against the definition: odd sizes, tails, every instruction set, poisoned pad lanes, parts.

use super::*;
use crate::{Activation, AlignedBytes, Cx, Isa, Operand, Region, RunState};
use alloc::vec;
use alloc::vec::Vec;

/// Small integers over 8: sums of their products are exact in f32, so every order of summation gives the same bits.
pub(crate) fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 24) as f32 - 128.0) / 8.0
        })
        .collect()
}

pub(crate) fn bytes(x: &[f32]) -> AlignedBytes {
    let raw: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    AlignedBytes::copy_of(&raw).expect("memory")
}

pub(crate) fn floats(x: &AlignedBytes) -> Vec<f32> {
    x.as_slice().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Plain to blocked, with NaN in pad lanes.
pub(crate) fn blocked(x: &[f32], n: usize, c: usize, spatial: usize) -> Vec<f32> {
    let blocks = c.div_ceil(16);
    let mut y = vec![f32::NAN; n * blocks * spatial * 16];
    for i in 0..n {
        for ch in 0..c {
            for p in 0..spatial {
                y[((i * blocks + ch / 16) * spatial + p) * 16 + ch % 16] = x[(i * c + ch) * spatial + p];
            }
        }
    }
    y
}

/// Blocked to plain.
pub(crate) fn plain(x: &[f32], n: usize, c: usize, spatial: usize) -> Vec<f32> {
    let blocks = c.div_ceil(16);
    let mut y = vec![0.0; n * c * spatial];
    for i in 0..n {
        for ch in 0..c {
            for p in 0..spatial {
                y[(i * c + ch) * spatial + p] = x[((i * blocks + ch / 16) * spatial + p) * 16 + ch % 16];
            }
        }
    }
    y
}

/// Lays operands into regions of their own and runs a kernel; returns the written region, or the fault.
pub(crate) fn run<D>(
    isa: Isa,
    reads: &[&[f32]],
    written: &[f32],
    scratch_bytes: usize,
    call: impl Fn(&Cx<'_>, &[Operand], Operand, Option<Operand>) -> D,
) -> Result<Vec<f32>, crate::Fault> {
    let reads: Vec<_> = reads.iter().map(|r| bytes(r)).collect();
    let mut out = bytes(written);
    let mut scratch = bytes(&vec![f32::NAN; scratch_bytes / 4]);
    let out_bytes = out.as_slice().len();
    let mut regions: Vec<_> = reads.iter().map(|r| Region::read(r.as_slice())).collect();
    regions.push(Region::write(out.as_mut_slice()));
    regions.push(Region::write(scratch.as_mut_slice()));
    let operands: Vec<_> =
        reads.iter().enumerate().map(|(i, r)| Operand::at(i as u32, 0, r.as_slice().len())).collect();
    let state = RunState::new();
    let cx = Cx::new(&regions, isa, &state, &[]);
    let y = Operand::at(reads.len() as u32, 0, out_bytes);
    let s = (scratch_bytes > 0).then_some(Operand::at(reads.len() as u32 + 1, 0, scratch_bytes));
    call(&cx, &operands, y, s);
    match state.fault() {
        Some((_, fault)) => Err(fault),
        None => Ok(floats(&out)),
    }
}

#[derive(Clone, Copy)]
struct Case {
    shape: ConvShape,
    /// Right and bottom padding are implied by `oh` and `ow`; here for readability of the table.
    bias: bool,
    residual: bool,
}

const fn out(x: usize, k: usize, stride: usize, dilation: usize, pads: usize) -> usize {
    (x + pads - (k - 1) * dilation - 1) / stride + 1
}

/// `[n, ic, oc, groups]`, `[h, w]`, `[kh, kw]`, strides, dilations, pads `[top, left, bottom, right]`.
const fn case(
    [n, ic, oc, groups]: [usize; 4],
    [h, w]: [usize; 2],
    [kh, kw]: [usize; 2],
    [sy, sx]: [usize; 2],
    [dy, dx]: [usize; 2],
    [pt, pl, pb, pr]: [usize; 4],
) -> ConvShape {
    let (oh, ow) = (out(h, kh, sy, dy, pt + pb), out(w, kw, sx, dx, pl + pr));
    ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups }
}

const CASES: &[ConvShape] = &[
    case([1, 16, 16, 1], [5, 5], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    case([2, 19, 37, 1], [7, 9], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    case([1, 5, 70, 1], [9, 31], [3, 3], [2, 2], [1, 1], [1, 1, 1, 1]),
    case([1, 33, 100, 1], [6, 10], [1, 1], [1, 1], [1, 1], [0, 0, 0, 0]),
    case([2, 40, 20, 1], [7, 10], [1, 1], [2, 2], [1, 1], [0, 0, 0, 0]),
    case([1, 32, 48, 1], [11, 13], [5, 2], [1, 3], [2, 2], [2, 0, 1, 3]),
    case([1, 48, 96, 3], [8, 8], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    case([1, 20, 24, 1], [1, 50], [1, 4], [1, 2], [1, 3], [0, 3, 0, 2]),
    case([1, 16, 16, 1], [6, 7], [3, 3], [1, 1], [1, 1], [0, 0, 0, 0]),
    case([1, 17, 16, 1], [9, 7], [3, 1], [2, 1], [1, 1], [0, 0, 0, 0]),
    case([1, 16, 64, 1], [4, 4], [4, 4], [1, 1], [1, 1], [3, 3, 3, 3]),
    case([1, 80, 24, 1], [1, 900], [1, 3], [1, 1], [1, 1], [0, 1, 0, 1]),
    case([1, 64, 20, 1], [40, 60], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    case([1, 300, 16, 1], [23, 40], [1, 1], [1, 1], [1, 1], [0, 0, 0, 0]),
    case([1, 16, 16, 1], [2, 2], [1, 1], [1, 1], [1, 1], [1, 2, 1, 2]),
    case([1, 18, 16, 1], [5, 5], [3, 3], [3, 3], [1, 1], [2, 1, 0, 0]),
    case([1, 20, 20, 1], [90, 1], [5, 1], [2, 1], [1, 1], [2, 0, 1, 0]),
    case([2, 16, 16, 1], [33, 1], [1, 1], [1, 1], [1, 1], [0, 0, 0, 0]),
];

const FIRST_CASES: &[ConvShape] = &[
    case([1, 3, 32, 1], [20, 30], [3, 3], [2, 2], [1, 1], [1, 1, 1, 1]),
    case([2, 3, 64, 1], [21, 33], [7, 7], [2, 2], [1, 1], [3, 3, 3, 3]),
    case([1, 1, 20, 1], [9, 9], [5, 5], [1, 1], [1, 1], [2, 2, 2, 2]),
    case([1, 4, 33, 1], [32, 32], [8, 8], [8, 8], [1, 1], [0, 0, 0, 0]),
    case([1, 3, 16, 1], [12, 15], [3, 3], [1, 1], [2, 2], [1, 2, 3, 0]),
    case([1, 2, 16, 1], [1, 100], [1, 10], [1, 5], [1, 1], [0, 0, 0, 0]),
    case([1, 3, 16, 1], [8, 9], [1, 1], [1, 1], [1, 1], [0, 0, 0, 0]),
];

fn reference(s: &ConvShape, x: &[f32], w: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let mut y = vec![0.0; s.n * s.oc * s.oh * s.ow];
    let window = WindowShape {
        x: [1, s.h, s.w],
        y: [1, s.oh, s.ow],
        kernel: [1, s.kh, s.kw],
        strides: [1, s.sy, s.sx],
        dilations: [1, s.dy, s.dx],
        pads: [0, s.pt, s.pl],
    };
    conv_ref(&window, [s.n, s.ic, s.oc, s.groups], x, w, bias, &mut y);
    y
}

fn check(case: Case, first: bool) {
    let s = case.shape;
    let taps = s.kh * s.kw;
    let x = numbers(s.n * s.ic * s.h * s.w, 1);
    let w = numbers(s.oc * s.ic / s.groups * taps, 2);
    let bias = numbers(s.oc, 3);
    let res = numbers(s.n * s.oc * s.oh * s.ow, 4);
    let mut expected = reference(&s, &x, &w, case.bias.then_some(&bias));
    for (e, r) in expected.iter_mut().zip(&res) {
        *e = (*e + if case.residual { *r } else { 0.0 }).max(0.0);
    }
    let (packed, x, units, scratch) = if first {
        let packed = pack_conv_first_weights(&w, s.oc, s.ic, taps).expect("lengths");
        (packed, x, conv_first_units(s), conv_first_scratch_bytes(s))
    } else {
        let packed = pack_conv_weights(&w, s.oc, s.ic / s.groups, taps, s.groups).expect("lengths");
        (packed, blocked(&x, s.n, s.ic, s.h * s.w), conv_blocked_units(s), conv_blocked_scratch_bytes(s))
    };
    let res = blocked(&res, s.n, s.oc, s.oh * s.ow);
    let y0 = if case.residual { res.clone() } else { vec![f32::NAN; res.len()] };
    let bias = pack_bias(&bias);
    for isa in Isa::supported() {
        for cuts in [vec![0, units], vec![0, units / 3, units - units / 4, units]] {
            let y = run(isa, &[&x, &packed, &bias], &y0, scratch, |cx, r, y, scratch| {
                for part in cuts.windows(2) {
                    let bias = case.bias.then_some(r[2]);
                    let residual = case.residual.then_some(y);
                    let activation = Activation::Relu;
                    let ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups } = s;
                    let (x, weights, part_begin, part_end) = (r[0], r[1], part[0], part[1]);
                    if first {
                        let d = ConvFirst {
                            x,
                            weights,
                            bias,
                            y,
                            residual,
                            scratch,
                            n,
                            ic,
                            oc,
                            h,
                            w,
                            oh,
                            ow,
                            kh,
                            kw,
                            sy,
                            sx,
                            dy,
                            dx,
                            pt,
                            pl,
                            part_begin,
                            part_end,
                            activation,
                        };
                        conv_first_f32(cx, &d);
                    } else {
                        let d = ConvBlocked {
                            x,
                            weights,
                            bias,
                            y,
                            residual,
                            scratch,
                            n,
                            ic,
                            oc,
                            h,
                            w,
                            oh,
                            ow,
                            kh,
                            kw,
                            sy,
                            sx,
                            dy,
                            dx,
                            pt,
                            pl,
                            groups,
                            part_begin,
                            part_end,
                            activation,
                        };
                        conv_blocked_f32(cx, &d);
                    }
                }
            });
            let y = y.unwrap_or_else(|f| panic!("{isa:?} {s:?}: {f:?}"));
            assert_eq!(plain(&y, s.n, s.oc, s.oh * s.ow), expected, "{isa:?} {cuts:?} {s:?}");
        }
    }
}

#[test]
fn blocked_equals_definition() {
    for &shape in CASES {
        for (bias, residual) in [(false, false), (true, true)] {
            check(Case { shape, bias, residual }, false);
        }
    }
}

#[test]
fn first_equals_definition() {
    for &shape in FIRST_CASES {
        for (bias, residual) in [(true, false), (true, true)] {
            check(Case { shape, bias, residual }, true);
        }
    }
}

const DEPTHWISE_CASES: &[ConvShape] = &[
    case([1, 16, 16, 16], [9, 21], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    case([2, 20, 20, 20], [7, 7], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    case([1, 40, 40, 40], [14, 33], [3, 3], [2, 2], [1, 1], [1, 1, 1, 1]),
    case([1, 16, 16, 16], [12, 40], [5, 5], [1, 1], [1, 1], [2, 2, 2, 2]),
    case([1, 33, 33, 33], [12, 23], [5, 5], [2, 2], [1, 1], [1, 2, 2, 1]),
    case([1, 17, 17, 17], [2, 3], [5, 5], [1, 1], [1, 1], [2, 2, 2, 2]),
    case([1, 16, 16, 16], [10, 30], [3, 3], [1, 1], [2, 2], [2, 2, 2, 2]),
    case([1, 16, 16, 16], [1, 30], [1, 7], [1, 3], [1, 1], [0, 6, 0, 0]),
    case([1, 16, 16, 16], [9, 9], [3, 3], [3, 1], [1, 1], [0, 0, 0, 0]),
    case([1, 16, 16, 16], [20, 20], [7, 7], [1, 1], [1, 1], [3, 3, 3, 3]),
    case([1, 16, 16, 16], [3, 3], [3, 3], [1, 1], [1, 1], [4, 4, 4, 4]),
];

#[test]
fn depthwise_equals_definition() {
    for &s in DEPTHWISE_CASES {
        let taps = s.kh * s.kw;
        let x = numbers(s.n * s.ic * s.h * s.w, 1);
        let w = numbers(s.oc * taps, 2);
        let bias = numbers(s.oc, 3);
        let res = numbers(s.n * s.oc * s.oh * s.ow, 4);
        let mut expected = reference(&s, &x, &w, Some(&bias));
        for (e, r) in expected.iter_mut().zip(&res) {
            *e = (*e + r).clamp(-20.0, 50.0);
        }
        let x = blocked(&x, s.n, s.ic, s.h * s.w);
        let packed = pack_depthwise_weights(&w, s.ic, taps).expect("lengths");
        let res = blocked(&res, s.n, s.oc, s.oh * s.ow);
        let units = depthwise_units(s.n, s.ic, s.oh);
        for isa in Isa::supported() {
            for cuts in [vec![0, units], vec![0, units / 3, units - units / 4, units]] {
                for in_place in [false, true] {
                    let y0 = if in_place { res.clone() } else { vec![f32::NAN; res.len()] };
                    let y = run(isa, &[&x, &packed, &pack_bias(&bias), &res], &y0, 0, |cx, r, y, _| {
                        for part in cuts.windows(2) {
                            let ConvShape { n, ic: c, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, .. } = s;
                            let (x, weights, bias, residual) =
                                (r[0], r[1], Some(r[2]), Some(if in_place { y } else { r[3] }));
                            let (part_begin, part_end) = (part[0], part[1]);
                            let activation = Activation::Clip { lo: -20.0, hi: 50.0 };
                            let d = Depthwise {
                                x,
                                weights,
                                bias,
                                y,
                                residual,
                                n,
                                c,
                                h,
                                w,
                                oh,
                                ow,
                                kh,
                                kw,
                                sy,
                                sx,
                                dy,
                                dx,
                                pt,
                                pl,
                                part_begin,
                                part_end,
                                activation,
                            };
                            depthwise_f32(cx, &d);
                        }
                    })
                    .unwrap_or_else(|f| panic!("{isa:?} {s:?}: {f:?}"));
                    assert_eq!(plain(&y, s.n, s.oc, s.oh * s.ow), expected, "{isa:?} {cuts:?} {s:?}");
                }
            }
        }
    }
}

#[test]
fn winograd_equals_definition() {
    for s in [
        case([1, 16, 16, 1], [6, 6], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
        case([2, 19, 37, 1], [7, 9], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
        case([1, 5, 90, 1], [9, 4], [3, 3], [1, 1], [1, 1], [0, 0, 0, 0]),
        case([1, 33, 16, 1], [30, 31], [3, 3], [1, 1], [1, 1], [2, 0, 1, 2]),
        case([1, 16, 20, 1], [1, 1], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    ] {
        let ConvShape { n, ic, oc, h, w, oh, ow, pt, pl, .. } = s;
        // Sixteenths of what other tests use: the transforms stay exact.
        let x = numbers(n * ic * h * w, 1).iter().map(|v| (v / 2.0).floor()).collect::<Vec<_>>();
        let weights = numbers(oc * ic * 9, 2).iter().map(|v| (v / 2.0).floor()).collect::<Vec<_>>();
        let bias = numbers(oc, 3);
        let res = numbers(n * oc * oh * ow, 4);
        let mut expected = reference(&s, &x, &weights, Some(&bias));
        expected.iter_mut().zip(&res).for_each(|(e, r)| *e = (*e + r).max(0.0));
        for tile in [2, 4] {
            let packed = pack_winograd_weights(&weights, oc, ic, tile).expect("lengths");
            let reads = [&blocked(&x, n, ic, h * w)[..], &packed, &pack_bias(&bias)];
            let y0 = blocked(&res, n, oc, oh * ow);
            let (units, scratch_bytes) = (conv_winograd_units(s, tile), conv_winograd_scratch_bytes(s, tile));
            for isa in Isa::supported() {
                for cuts in [vec![0, units], vec![0, units / 3, units - units / 4, units]] {
                    for activation in [Activation::Relu, Activation::LeakyRelu { alpha: 0.0 }] {
                        let y = run(isa, &reads, &y0, scratch_bytes, |cx, r, y, scratch| {
                            for part in cuts.windows(2) {
                                let (x, weights, bias, residual) = (r[0], r[1], Some(r[2]), Some(y));
                                let (part_begin, part_end, scratch) = (part[0], part[1], scratch.expect("scratch"));
                                let d = ConvWinograd {
                                    x,
                                    weights,
                                    bias,
                                    y,
                                    residual,
                                    scratch,
                                    n,
                                    ic,
                                    oc,
                                    h,
                                    w,
                                    oh,
                                    ow,
                                    pt,
                                    pl,
                                    tile,
                                    part_begin,
                                    part_end,
                                    activation,
                                };
                                conv_winograd_f32(cx, &d);
                            }
                        })
                        .unwrap_or_else(|f| panic!("{isa:?} {s:?}: {f:?}"));
                        let y = plain(&y, n, oc, oh * ow);
                        // The points of the larger tile are no powers of two: near, where other results are an eighth away at least.
                        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-3;
                        let equal = if tile == 2 { y == expected } else { y.iter().zip(&expected).all(near) };
                        assert!(
                            equal && y.len() == expected.len(),
                            "{isa:?} {tile} {cuts:?} {s:?}: {y:?} {expected:?}"
                        );
                    }
                }
            }
        }
    }
}

/// On random numbers around zero, the error stays within a few units of what direct summation in f32 makes.
#[test]
fn winograd_rounds_little() {
    let s = case([1, 64, 32, 1], [14, 14], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]);
    let ConvShape { n, ic, oc, h, w, oh, ow, pt, pl, .. } = s;
    // Not representable in a few bits, unlike `numbers`.
    let noise = |n, seed| {
        numbers(n, seed).iter().zip(numbers(n, seed + 9)).map(|(a, b)| a / 16.0 + b / 4099.0).collect::<Vec<_>>()
    };
    let (x, weights) = (noise(ic * h * w, 1), noise(oc * ic * 9, 2));
    let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let mut exact = vec![0.0f64; oc * oh * ow];
    let window = WindowShape {
        x: [1, h, w],
        y: [1, oh, ow],
        kernel: [1, 3, 3],
        strides: [1; 3],
        dilations: [1; 3],
        pads: [0, 1, 1],
    };
    conv_ref(&window, [n, ic, oc, 1], &wide(&x), &wide(&weights), None, &mut exact);
    let rms = |y: &[f32]| {
        let sum = y.iter().zip(&exact).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>();
        (sum / exact.iter().map(|b| b * b).sum::<f64>()).sqrt()
    };
    let direct = rms(&reference(&s, &x, &weights, None));
    for (tile, isa) in [2, 4].into_iter().flat_map(|tile| Isa::supported().map(move |isa| (tile, isa))) {
        let packed = pack_winograd_weights(&weights, oc, ic, tile).expect("lengths");
        let y0 = vec![0.0; oc * oh * ow];
        let y = run(
            isa,
            &[&blocked(&x, n, ic, h * w), &packed],
            &y0,
            conv_winograd_scratch_bytes(s, tile),
            |cx, r, y, scratch| {
                let (part_begin, part_end, scratch) = (0, conv_winograd_units(s, tile), scratch.expect("scratch"));
                let (x, weights, bias, residual, activation) = (r[0], r[1], None, None, Activation::None);
                let d = ConvWinograd {
                    x,
                    weights,
                    bias,
                    y,
                    residual,
                    scratch,
                    n,
                    ic,
                    oc,
                    h,
                    w,
                    oh,
                    ow,
                    pt,
                    pl,
                    tile,
                    part_begin,
                    part_end,
                    activation,
                };
                conv_winograd_f32(cx, &d);
            },
        )
        .expect("no fault");
        let winograd = rms(&plain(&y, n, oc, oh * ow));
        std::println!("{isa:?} {tile}: direct {direct:.2e}, Winograd {winograd:.2e}");
        assert!(winograd < 4.0 * direct + 1e-7, "{isa:?} {tile}: direct {direct}, Winograd {winograd}");
    }
}

#[test]
fn joined_groups_equal_separate_ones() {
    for [ic, oc, groups, joined] in [[32, 32, 8, 2], [16, 48, 4, 1], [96, 96, 3, 3], [24, 48, 3, 0]] {
        let s = case([1, ic, oc, groups], [5, 6], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]);
        let x = numbers(ic * 30, 1);
        let w = numbers(oc * ic / groups * 9, 2);
        let Some((wide, n)) = join_groups(&w, oc, ic / groups, 9, groups) else {
            assert_eq!(joined, 0);
            continue;
        };
        assert_eq!(n, joined);
        assert_eq!(reference(&s, &x, &w, None), reference(&ConvShape { groups: n, ..s }, &x, &wide, None));
    }
}

#[test]
fn layouts_round_trip() {
    for [n, c, spatial] in [[1, 16, 16], [2, 19, 13], [1, 3, 50], [3, 40, 1], [1, 24, 35], [1, 1, 0]] {
        let x = numbers(n * c * spatial, 7);
        let units = blocked16_units(n, c);
        for isa in Isa::supported() {
            for cuts in [vec![0, units], vec![0, units / 2, units]] {
                let empty = vec![f32::NAN; n * c.next_multiple_of(16) * spatial];
                let y = run(isa, &[&x], &empty, 0, |cx, r, y, _| {
                    for p in cuts.windows(2) {
                        to_blocked16_f32(
                            cx,
                            &ToBlocked16 { x: r[0], y, n, c, spatial, part_begin: p[0], part_end: p[1] },
                        );
                    }
                })
                .expect("no fault");
                let expected: Vec<_> =
                    blocked(&x, n, c, spatial).iter().map(|v| if v.is_nan() { 0.0 } else { *v }).collect();
                assert_eq!(y, expected, "{isa:?} {n} {c} {spatial}");
                let back = run(isa, &[&blocked(&x, n, c, spatial)], &vec![f32::NAN; x.len()], 0, |cx, r, y, _| {
                    for p in cuts.windows(2) {
                        let d = FromBlocked16 { x: r[0], y, n, c, spatial, part_begin: p[0], part_end: p[1] };
                        from_blocked16_f32(cx, &d);
                    }
                })
                .expect("no fault");
                assert_eq!(back, x, "{isa:?} {n} {c} {spatial}");
            }
        }
    }
}

/// `[n, ic, oc, groups]` and the window's extents, for either direction.
type PlainCase = ([usize; 4], WindowShape);

/// `x`, kernel, strides, dilations, pads at begin and end; the output's extents follow.
fn plain_case(
    channels: [usize; 4],
    x: [usize; 3],
    kernel: [usize; 3],
    strides: [usize; 3],
    dilations: [usize; 3],
    pads: [usize; 3],
    end: [usize; 3],
) -> PlainCase {
    let y = core::array::from_fn(|a| out(x[a], kernel[a], strides[a], dilations[a], pads[a] + end[a]));
    (channels, WindowShape { x, y, kernel, strides, dilations, pads })
}

fn plain_cases() -> Vec<PlainCase> {
    let one = [1; 3];
    vec![
        plain_case([1, 3, 5, 1], [1, 9, 11], [1, 3, 3], one, one, [0, 1, 1], [0, 1, 1]),
        plain_case([2, 6, 9, 3], [1, 7, 30], [1, 3, 2], [1, 2, 3], one, [0, 1, 0], [0, 0, 2]),
        plain_case([1, 4, 4, 1], [5, 6, 7], [2, 3, 3], [2, 1, 2], [1, 2, 1], [1, 2, 1], [0, 1, 1]),
        plain_case([1, 8, 8, 8], [1, 12, 70], [1, 3, 5], one, [1, 1, 2], [0, 1, 4], [0, 1, 4]),
        plain_case([1, 2, 6, 2], [1, 1, 300], [1, 1, 10], [1, 1, 5], one, [0, 0, 3], [0, 0, 4]),
        plain_case([1, 700, 5, 1], [1, 1, 400], [1, 1, 3], one, one, [0, 0, 1], [0, 0, 1]),
        plain_case([1, 5, 4, 1], [3, 3, 3], [3, 3, 3], [3, 3, 3], one, [2, 1, 0], [1, 2, 0]),
        plain_case([1, 3, 3, 1], [1, 4, 4], [1, 1, 1], [1, 3, 2], one, [0, 0, 0], [0, 0, 0]),
    ]
}

/// The definition of the transpose: every input element times every weight, added where it lands.
fn transpose_ref(s: &WindowShape, [n, ic, oc, groups]: [usize; 4], x: &[f32], w: &[f32], bias: &[f32]) -> Vec<f32> {
    let (icg, ocg) = (ic / groups, oc / groups);
    let volume = |d: [usize; 3]| d.iter().product::<usize>();
    let split = |at: usize, d: [usize; 3]| [at / (d[1] * d[2]), at / d[2] % d[1], at % d[2]];
    let (xv, yv, kv) = (volume(s.x), volume(s.y), volume(s.kernel));
    let mut y: Vec<f32> = (0..n * oc * yv).map(|i| bias[i / yv % oc]).collect();
    for image in 0..n {
        for c in 0..ic {
            for o in 0..ocg {
                for (i, k) in (0..xv).flat_map(|i| (0..kv).map(move |k| (i, k))) {
                    let (at, tap) = (split(i, s.x), split(k, s.kernel));
                    let to: [isize; 3] = core::array::from_fn(|a| {
                        (at[a] * s.strides[a] + tap[a] * s.dilations[a]) as isize - s.pads[a] as isize
                    });
                    if (0..3).all(|a| (0..s.y[a] as isize).contains(&to[a])) {
                        let to = (to[0] as usize * s.y[1] + to[1] as usize) * s.y[2] + to[2] as usize;
                        let channel = c / icg * ocg + o;
                        y[(image * oc + channel) * yv + to] += x[(image * ic + c) * xv + i] * w[(c * ocg + o) * kv + k];
                    }
                }
            }
        }
    }
    y
}

fn transpose_cases() -> Vec<PlainCase> {
    let one = [1; 3];
    // `y` by the ONNX formula, with this output padding.
    let case = |channels,
                x: [usize; 3],
                kernel: [usize; 3],
                strides: [usize; 3],
                dilations: [usize; 3],
                pads: [usize; 3],
                end: [usize; 3],
                more: [usize; 3]| {
        let y = core::array::from_fn(|a| {
            strides[a] * (x[a] - 1) + more[a] + (kernel[a] - 1) * dilations[a] + 1 - pads[a] - end[a]
        });
        (channels, WindowShape { x, y, kernel, strides, dilations, pads })
    };
    vec![
        case([1, 3, 5, 1], [1, 5, 6], [1, 2, 2], [1, 2, 2], one, [0; 3], [0; 3], [0; 3]),
        case([2, 4, 6, 2], [1, 7, 9], [1, 4, 4], [1, 2, 2], one, [0, 1, 1], [0, 1, 1], [0; 3]),
        case([1, 5, 4, 1], [1, 6, 20], [1, 3, 3], [1, 2, 3], one, [0, 1, 1], [0, 1, 0], [0, 1, 2]),
        case([1, 4, 4, 4], [1, 4, 5], [1, 3, 3], [1, 2, 2], [1, 2, 3], [0, 1, 2], [0, 0, 1], [0, 1, 0]),
        case([1, 2, 3, 1], [3, 4, 5], [2, 3, 3], [2, 1, 2], [2, 1, 1], [1, 1, 1], [0, 1, 0], [1, 0, 1]),
        case([1, 3, 3, 1], [1, 1, 30], [1, 1, 16], [1, 1, 8], one, [0, 0, 4], [0, 0, 4], [0; 3]),
        case([1, 2, 2, 1], [1, 3, 4], [1, 1, 1], [1, 3, 2], one, [0; 3], [0; 3], [0, 2, 1]),
        case([1, 3, 2, 1], [1, 9, 80], [1, 3, 3], one, one, [0, 1, 1], [0, 1, 1], [0; 3]),
        case([1, 1, 2, 1], [1, 3, 3], [1, 2, 2], [1, 2, 2], [1, 2, 2], [0; 3], [0; 3], [0; 3]),
    ]
}

fn check_plain([n, ic, oc, groups]: [usize; 4], s: &WindowShape, transposed: bool) {
    let volume = |d: [usize; 3]| d.iter().product::<usize>();
    let x = numbers(n * ic * volume(s.x), 1);
    let w = numbers(ic / groups * oc * volume(s.kernel), 2);
    let bias = numbers(oc, 3);
    let res = numbers(n * oc * volume(s.y), 4);
    let mut expected = vec![0.0; res.len()];
    if transposed {
        expected = transpose_ref(s, [n, ic, oc, groups], &x, &w, &bias);
    } else {
        conv_ref(s, [n, ic, oc, groups], &x, &w, Some(&bias), &mut expected);
    }
    for (e, r) in expected.iter_mut().zip(&res) {
        *e += r;
    }
    let (units, scratch_bytes) = if transposed {
        (conv_transpose_units(n, ic, groups, s), conv_transpose_scratch_bytes(ic, groups, s))
    } else {
        (conv_plain_units(n, ic, groups, s), conv_plain_scratch_bytes(ic, groups, s))
    };
    let WindowShape { x: x_dims, y: y_dims, kernel, strides, dilations, pads } = *s;
    macro_rules! call {
        ($desc:ident $f:ident $cx:ident $r:ident $y:ident $scratch:ident $part:ident $activation:expr) => {
            $f(
                $cx,
                &$desc {
                    x: $r[0],
                    weights: $r[1],
                    bias: Some($r[2]),
                    y: $y,
                    residual: Some($y),
                    scratch: $scratch,
                    n,
                    ic,
                    oc,
                    groups,
                    part_begin: $part[0],
                    part_end: $part[1],
                    x_dims,
                    y_dims,
                    kernel,
                    strides,
                    dilations,
                    pads,
                    activation: $activation,
                },
            )
        };
    }
    for isa in Isa::supported() {
        for cuts in [vec![0, units], vec![0, units / 3, units - units / 4, units]] {
            for relu in [false, true] {
                let activation = if relu { Activation::Relu } else { Activation::None };
                let y = run(isa, &[&x, &w, &bias], &res, scratch_bytes, |cx, r, y, scratch| {
                    for part in cuts.windows(2) {
                        if transposed {
                            call!(ConvTranspose conv_transpose_f32 cx r y scratch part activation);
                        } else {
                            call!(ConvPlain conv_plain_f32 cx r y scratch part activation);
                        }
                    }
                })
                .unwrap_or_else(|f| panic!("{isa:?} {s:?}: {f:?}"));
                let expected: Vec<f32> = expected.iter().map(|&v| if relu { v.max(0.0) } else { v }).collect();
                assert_eq!(y, expected, "{isa:?} {cuts:?} {transposed} {s:?}");
            }
        }
    }
    // The same numbers as f64, by rows.
    let wide = |x: &[f32]| -> AlignedBytes {
        let raw: Vec<u8> = x.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect();
        AlignedBytes::copy_of(&raw).expect("memory")
    };
    let (x, w, bias, mut y) = (wide(&x), wide(&w), wide(&bias), wide(&res));
    let r = [&x, &w, &bias].map(|b| b.as_slice().len());
    let y_bytes = y.as_slice().len();
    let state = RunState::new();
    let regions = [
        Region::read(x.as_slice()),
        Region::read(w.as_slice()),
        Region::read(bias.as_slice()),
        Region::write(y.as_mut_slice()),
    ];
    let cx = &Cx::new(&regions, Isa::Scalar, &state, &[]);
    let r: Vec<_> = r.iter().enumerate().map(|(i, &n)| Operand::at(i as u32, 0, n)).collect();
    let (out, scratch) = (Operand::at(3, 0, y_bytes), None);
    for part in [0, units / 3, units].windows(2) {
        if transposed {
            call!(ConvTranspose conv_transpose_f64 cx r out scratch part Activation::None);
        } else {
            call!(ConvPlain conv_plain_f64 cx r out scratch part Activation::None);
        }
    }
    assert_eq!(state.fault(), None);
    let got: Vec<f32> =
        y.as_slice().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("8 bytes")) as f32).collect();
    assert_eq!(got, expected, "f64 {transposed} {s:?}");
}

#[test]
fn plain_equals_definition() {
    for (channels, window) in plain_cases() {
        check_plain(channels, &window, false);
    }
}

#[test]
fn blocked_transpose_equals_definition() {
    for ([n, _, _, _], g) in transpose_cases() {
        for [ic, oc, groups] in [[19, 37, 1], [32, 64, 2], [5, 3, 1]] {
            let [[xd, h, w], [yd, oh, ow], [kd, kh, kw]] = [g.x, g.y, g.kernel];
            if xd * yd * kd > 1 {
                continue;
            }
            let [[_, sy, sx], [_, dy, dx], [_, pt, pl]] = [g.strides, g.dilations, g.pads];
            let s = ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups };
            let x = numbers(n * ic * h * w, 1);
            let weights = numbers(ic / groups * oc * kh * kw, 2);
            let bias = numbers(oc, 3);
            let res = numbers(n * oc * oh * ow, 4);
            let mut expected = transpose_ref(&g, [n, ic, oc, groups], &x, &weights, &bias);
            expected.iter_mut().zip(&res).for_each(|(e, r)| *e = (*e + r).max(0.0));
            let packed = pack_conv_transpose_weights(&weights, &s).expect("lengths");
            let reads = [&blocked(&x, n, ic, h * w)[..], &packed, &pack_bias(&bias)];
            let y0 = blocked(&res, n, oc, oh * ow);
            let (units, scratch_bytes) = (conv_transpose_blocked_units(s), conv_transpose_blocked_scratch_bytes(s));
            for isa in Isa::supported() {
                for cuts in [vec![0, units], vec![0, units / 3, units - units / 4, units]] {
                    let y = run(isa, &reads, &y0, scratch_bytes, |cx, r, y, scratch| {
                        for part in cuts.windows(2) {
                            let (x, weights, bias, residual) = (r[0], r[1], Some(r[2]), Some(y));
                            let (part_begin, part_end, activation) =
                                (part[0], part[1], Activation::LeakyRelu { alpha: 0.0 });
                            let d = ConvTransposeBlocked {
                                x,
                                weights,
                                bias,
                                y,
                                residual,
                                scratch,
                                n,
                                ic,
                                oc,
                                h,
                                w,
                                oh,
                                ow,
                                kh,
                                kw,
                                sy,
                                sx,
                                dy,
                                dx,
                                pt,
                                pl,
                                groups,
                                part_begin,
                                part_end,
                                activation,
                            };
                            conv_transpose_blocked_f32(cx, &d);
                        }
                    })
                    .unwrap_or_else(|f| panic!("{isa:?} {s:?}: {f:?}"));
                    assert_eq!(plain(&y, n, oc, oh * ow), expected, "{isa:?} {cuts:?} {s:?}");
                }
            }
        }
    }
}

#[test]
fn transpose_equals_definition() {
    for (channels, window) in transpose_cases() {
        check_plain(channels, &window, true);
    }
}
