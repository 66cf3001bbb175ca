//! The blocked 8-bit convolutions against the definition, on every set of instructions.

extern crate std;
use super::*;
use crate::conv::ConvShape;
use crate::isa::Isa;
use crate::{Cx, Operand, Region, RunState};
use std::vec::Vec;

fn rng(seed: &mut u32) -> u32 {
    *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    *seed >> 8
}

struct Codes {
    x_zero: u8,
    x_flip: u8,
    y_zero: i32,
    y_flip: u8,
    low: u8,
    high: u8,
}

/// The definition over plain layouts, bytes as they are in memory.
fn definition(s: &ConvShape, x: &[u8], w: &[i8], bias: &[i32], factor: &[f32], c: &Codes) -> Vec<u8> {
    let (icg, ocg) = (s.ic / s.groups, s.oc / s.groups);
    let mut out = Vec::new();
    for (n, o) in (0..s.n).flat_map(|n| (0..s.oc).map(move |o| (n, o))) {
        for (i, j) in (0..s.oh).flat_map(|i| (0..s.ow).map(move |j| (i, j))) {
            let mut sum = bias[o];
            for (g, y, z) in (0..icg).flat_map(|g| (0..s.kh).flat_map(move |y| (0..s.kw).map(move |z| (g, y, z)))) {
                let (r, q) = ((i * s.sy + y * s.dy).wrapping_sub(s.pt), (j * s.sx + z * s.dx).wrapping_sub(s.pl));
                let channel = o / ocg * icg + g;
                let inside = r < s.h && q < s.w;
                let v = if inside { x[((n * s.ic + channel) * s.h + r) * s.w + q] ^ c.x_flip } else { c.x_zero };
                sum += i32::from(v) * i32::from(w[((o * icg + g) * s.kh + y) * s.kw + z]);
            }
            let code = ((sum as f32 * factor[o]).round_ties_even() as i32 + c.y_zero).clamp(0, 255) as u8;
            out.push(code.clamp(c.low, c.high) ^ c.y_flip);
        }
    }
    out
}

fn blocked(x: &[u8], n: usize, c: usize, spatial: usize) -> Vec<u8> {
    let blocks = c.div_ceil(16);
    let mut y = std::vec![0xabu8; n * blocks * 16 * spatial];
    for (at, &v) in x.iter().enumerate() {
        let (image, channel, p) = (at / (c * spatial), at / spatial % c, at % spatial);
        y[((image * blocks + channel / 16) * spatial + p) * 16 + channel % 16] = v;
    }
    y
}

fn padded<T: Copy + Default>(v: &[T]) -> Vec<T> {
    let mut v = v.to_vec();
    v.resize(v.len().next_multiple_of(16), T::default());
    v
}

fn le<T: Copy, const N: usize>(v: &[T], f: impl Fn(T) -> [u8; N]) -> crate::AlignedBytes {
    crate::AlignedBytes::copy_of(&v.iter().flat_map(|&v| f(v)).collect::<Vec<u8>>()).unwrap()
}

/// Random operands, or only the least and the greatest values.
#[derive(Clone, Copy, PartialEq)]
enum Values {
    Random,
    Extreme,
    /// 255 times -128 everywhere.
    Least,
}

fn check(s: ConvShape, c: &Codes, seed: u32, parts: usize) {
    check_values(s, c, seed, parts, Values::Random);
}

fn check_values(s: ConvShape, c: &Codes, seed: u32, parts: usize, values: Values) {
    let seed = &mut { seed };
    let depthwise = s.groups == s.ic && s.oc == s.ic && s.groups > 1;
    let (icg, taps) = (s.ic / s.groups, s.kh * s.kw);
    let of = |v: u32, low: u8, high: u8| match values {
        Values::Random => v as u8,
        Values::Extreme => [low, high][v as usize / 8 % 2],
        Values::Least => low,
    };
    let x: Vec<u8> = (0..s.n * s.ic * s.h * s.w).map(|_| of(rng(seed), 255 ^ c.x_flip, c.x_flip)).collect();
    let w: Vec<i8> = (0..s.oc * icg * taps).map(|_| of(rng(seed), 128, 127) as i8).collect();
    let bias: Vec<i32> = (0..s.oc).map(|_| rng(seed) as i32 % 20000 - 10000).collect();
    let unit = match values {
        Values::Random => 1e-5,
        // Sums that saturate nothing on the way are codes within the limits.
        Values::Extreme => 1e-5 / (icg * taps) as f32,
        Values::Least => 1e-5 / 100.0 / (icg * taps) as f32,
    };
    let factor: Vec<f32> = (0..s.oc).map(|_| (50 + rng(seed) % 100) as f32 * unit).collect();
    let want = blocked(&definition(&s, &x, &w, &bias, &factor, c), s.n, s.oc, s.oh * s.ow);
    let first = s.ic <= 4 && s.groups == 1;
    let packed = if depthwise {
        pack_qdepthwise_weights(&w, s.oc, s.kh, s.kw)
    } else {
        pack_qconv_weights(&w, s.oc, icg, taps, s.groups, if first { 4 } else { 16 })
    };
    let packed = le(&packed.unwrap(), |v| [v as u8]);
    let x = if first { x } else { blocked(&x, s.n, s.ic, s.h * s.w) };
    let x = le(&x, |v| [v]);
    let (bias, factor) = (le(&padded(&bias), i32::to_le_bytes), le(&padded(&factor), f32::to_le_bytes));
    let scratch_bytes = match (depthwise, first) {
        (true, _) => qdepthwise_scratch_bytes(s),
        (_, true) => qconv_first_scratch_bytes(s),
        _ => qconv_scratch_bytes(s, c.x_flip != 0),
    };
    let units = match (depthwise, first) {
        (true, _) => qdepthwise_units(s),
        (_, true) => qconv_first_units(s),
        _ => qconv_units(s, c.x_flip != 0),
    };
    for isa in Isa::supported() {
        let mut y = std::vec![0u8; want.len()];
        let mut scratch = std::vec![0x55u8; scratch_bytes];
        let len = |b: &crate::AlignedBytes| b.as_slice().len();
        let lens = [len(&x), len(&packed), len(&bias), len(&factor), scratch.len(), y.len()];
        let state = RunState::new();
        let regions = [
            Region::read(x.as_slice()),
            Region::read(packed.as_slice()),
            Region::read(bias.as_slice()),
            Region::read(factor.as_slice()),
            Region::write(&mut scratch),
            Region::write(&mut y),
        ];
        let cx = Cx::new(&regions, isa, &state, &[]);
        let o = |i: usize| Operand::at(i as u32, 0, lens[i]);
        let ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups } = s;
        let &Codes { x_zero, x_flip, y_zero, y_flip, low: y_low, high: y_high } = c;
        for part in 0..parts {
            let (part_begin, part_end) = (units * part / parts, units * (part + 1) / parts);
            let scratch = (lens[4] > 0).then(|| o(4));
            let (x, weights, bias, factor, y) = (o(0), o(1), o(2), o(3), o(5));
            if depthwise {
                let scratch = scratch.unwrap();
                qdepthwise_b8(
                    &cx,
                    &QDepthwise {
                        x,
                        weights,
                        bias,
                        factor,
                        scratch,
                        y,
                        n,
                        c: ic,
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
                        x_zero,
                        x_flip,
                        y_zero,
                        y_low,
                        y_high,
                        y_flip,
                    },
                );
            } else if first {
                qconv_first_b8(
                    &cx,
                    &QConvFirst {
                        x,
                        weights,
                        bias,
                        factor,
                        scratch,
                        y,
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
                        x_zero,
                        x_flip,
                        y_zero,
                        y_low,
                        y_high,
                        y_flip,
                    },
                );
            } else {
                qconv_blocked_b8(
                    &cx,
                    &QConvBlocked {
                        x,
                        weights,
                        bias,
                        factor,
                        scratch,
                        y,
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
                        x_zero,
                        x_flip,
                        y_zero,
                        y_low,
                        y_high,
                        y_flip,
                    },
                );
            }
        }
        assert_eq!(state.fault(), None, "{s:?}");
        let spatial = s.oh * s.ow;
        for (at, (&g, &w)) in y.iter().zip(&want).enumerate() {
            let channel = at / 16 / spatial % s.oc.div_ceil(16) * 16 + at % 16;
            if channel < s.oc {
                assert_eq!(g, w, "{} at {at} of {s:?}", isa.name());
            }
        }
    }
}

fn shape(
    n: usize,
    [ic, oc, groups]: [usize; 3],
    [h, w]: [usize; 2],
    [kh, kw]: [usize; 2],
    step: [usize; 4],
    pads: [usize; 4],
) -> ConvShape {
    let [sy, sx, dy, dx] = step;
    let [pt, pl, pb, pr] = pads;
    let out = |x: usize, p: usize, k: usize, d: usize, s: usize| (x + p - (k - 1) * d - 1) / s + 1;
    let (oh, ow) = (out(h, pt + pb, kh, dy, sy), out(w, pl + pr, kw, dx, sx));
    ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups }
}

const PLAIN: Codes = Codes { x_zero: 117, x_flip: 0, y_zero: 90, y_flip: 0, low: 0, high: 255 };
const SIGNED: Codes = Codes { x_zero: 130, x_flip: 0x80, y_zero: 120, y_flip: 0x80, low: 10, high: 250 };

#[test]
fn blocked_shapes() {
    for (i, s) in [
        shape(1, [16, 16, 1], [5, 5], [1, 1], [1, 1, 1, 1], [0; 4]),
        shape(2, [32, 48, 1], [7, 9], [1, 1], [1, 1, 1, 1], [0; 4]),
        shape(1, [40, 70, 1], [9, 11], [1, 1], [2, 2, 1, 1], [0; 4]),
        shape(1, [32, 64, 1], [8, 13], [3, 3], [1, 1, 1, 1], [1; 4]),
        shape(1, [24, 20, 1], [9, 30], [3, 3], [2, 2, 1, 1], [1, 1, 0, 1]),
        shape(1, [16, 32, 1], [10, 10], [3, 2], [1, 1, 2, 3], [2, 0, 1, 3]),
        shape(2, [64, 32, 2], [6, 6], [3, 3], [1, 1, 1, 1], [1; 4]),
        shape(1, [16, 16, 1], [1, 40], [1, 5], [1, 2, 1, 1], [0, 2, 0, 2]),
        shape(1, [16, 16, 1], [4, 4], [3, 3], [1, 1, 1, 1], [0; 4]),
        shape(1, [512, 16, 1], [40, 40], [1, 1], [1, 1, 1, 1], [0; 4]),
        shape(1, [256, 16, 1], [30, 60], [3, 3], [1, 1, 1, 1], [1; 4]),
    ]
    .into_iter()
    .enumerate()
    {
        check(s, &PLAIN, i as u32, 1);
        check(s, &SIGNED, i as u32 + 100, 3);
    }
}

#[test]
fn first_layers() {
    for (i, s) in [
        shape(1, [3, 32, 1], [15, 17], [3, 3], [2, 2, 1, 1], [1; 4]),
        shape(2, [1, 20, 1], [9, 9], [5, 5], [1, 1, 1, 1], [2; 4]),
        shape(1, [4, 16, 1], [12, 40], [7, 7], [2, 2, 1, 1], [3; 4]),
        shape(1, [2, 16, 1], [12, 12], [2, 3], [1, 1, 2, 2], [0, 1, 1, 0]),
    ]
    .into_iter()
    .enumerate()
    {
        check(s, &PLAIN, i as u32, 2);
        check(s, &SIGNED, i as u32 + 100, 1);
    }
}

#[test]
fn depthwise_shapes() {
    for (i, s) in [
        shape(1, [16, 16, 16], [7, 7], [3, 3], [1, 1, 1, 1], [1; 4]),
        shape(2, [40, 40, 40], [9, 14], [3, 3], [2, 2, 1, 1], [1; 4]),
        shape(1, [32, 32, 32], [12, 13], [5, 5], [1, 1, 1, 1], [2; 4]),
        shape(1, [32, 32, 32], [12, 13], [5, 5], [2, 2, 1, 1], [2, 1, 1, 2]),
        shape(1, [16, 16, 16], [12, 13], [5, 3], [1, 1, 1, 1], [2, 1, 2, 1]),
        shape(1, [16, 16, 16], [12, 13], [3, 3], [1, 1, 2, 2], [2; 4]),
        shape(1, [16, 16, 16], [112, 112], [3, 3], [1, 1, 1, 1], [1; 4]),
        shape(1, [16, 16, 16], [1, 30], [1, 9], [1, 1, 1, 1], [0, 4, 0, 4]),
    ]
    .into_iter()
    .enumerate()
    {
        check(s, &PLAIN, i as u32, 1);
        check(s, &SIGNED, i as u32 + 100, 2);
    }
}

/// Nothing saturates before the result does, however long the reduction and whatever the signs.
#[test]
fn extreme_values_and_long_reductions() {
    for (i, s) in [
        shape(1, [16, 16, 1], [5, 7], [1, 1], [1, 1, 1, 1], [0; 4]),
        shape(1, [1600, 85, 1], [3, 5], [1, 1], [1, 1, 1, 1], [0; 4]),
        shape(1, [200, 120, 1], [5, 11], [3, 3], [1, 1, 1, 1], [1; 4]),
        shape(1, [180, 33, 1], [9, 13], [3, 3], [2, 2, 1, 1], [1; 4]),
        shape(1, [200, 16, 1], [8, 9], [3, 3], [1, 1, 1, 2], [1, 2, 1, 2]),
        shape(1, [32, 16, 1], [2, 130], [1, 120], [1, 1, 1, 1], [0; 4]),
        shape(1, [3, 40, 1], [16, 19], [7, 7], [2, 2, 1, 1], [3; 4]),
        shape(1, [3, 24, 1], [12, 13], [3, 3], [2, 2, 1, 1], [1; 4]),
        shape(1, [2, 16, 1], [22, 30], [21, 23], [1, 1, 1, 1], [0; 4]),
        shape(1, [32, 32, 32], [9, 10], [3, 3], [1, 1, 1, 1], [1; 4]),
        shape(1, [20, 20, 20], [9, 11], [3, 3], [2, 2, 1, 1], [1; 4]),
        shape(1, [16, 16, 16], [12, 9], [5, 5], [1, 1, 1, 1], [2; 4]),
        shape(1, [16, 16, 16], [12, 9], [5, 5], [2, 2, 1, 1], [2; 4]),
        shape(1, [16, 16, 16], [12, 19], [4, 7], [1, 3, 2, 1], [2; 4]),
        shape(1, [16, 16, 16], [12, 12], [7, 7], [1, 1, 1, 1], [3; 4]),
    ]
    .into_iter()
    .enumerate()
    {
        for values in [Values::Random, Values::Extreme, Values::Least] {
            check_values(s, &PLAIN, i as u32, 1, values);
            check_values(s, &SIGNED, i as u32 + 100, 2, values);
        }
    }
}

/// Extents, strides and values that nobody chose.
#[test]
fn random_settings() {
    let seed = &mut 77;
    let mut draw = |from: u32, to: u32| (from + rng(seed) % (to + 1 - from)) as usize;
    for i in 0..200 {
        let kernel = match draw(0, 5) {
            0 => [3, 3],
            1 => [5, 5],
            2 => [1, 1],
            _ => [draw(1, 7), draw(1, 7)],
        };
        let groups_of = |c: usize| [c, c, c];
        let channels = match draw(0, 4) {
            0 => groups_of(draw(2, 50)),
            1 => groups_of(16),
            2 => [draw(1, 4), draw(1, 70), 1],
            3 => [32 * draw(1, 2), 16 * 2 * draw(1, 2), 2],
            _ => [draw(1, 130), draw(1, 100), 1],
        };
        let step = match draw(0, 2) {
            0 => [1, 1, 1, 1],
            1 => [2, 2, 1, 1],
            _ => [draw(1, 3), draw(1, 3), draw(1, 3), draw(1, 3)],
        };
        let pads = match draw(0, 2) {
            0 => [0; 4],
            1 => [1; 4],
            _ => [draw(0, 3), draw(0, 3), draw(0, 3), draw(0, 3)],
        };
        let [kh, kw] = kernel;
        let size = [(kh - 1) * step[2] + draw(1, 9), (kw - 1) * step[3] + draw(1, 13)];
        let s = shape(draw(1, 2), channels, size, kernel, step, pads);
        let values = [Values::Random, Values::Extreme, Values::Least][draw(0, 2)];
        check_values(s, if draw(0, 1) == 0 { &PLAIN } else { &SIGNED }, i, draw(1, 3), values);
    }
}

/// Where extents are found at run time, an image may be narrower than the kernel: there is no output, and nothing to do.
#[test]
fn kernels_wider_than_the_image() {
    for channels in [[16, 16, 16], [20, 20, 20], [3, 32, 1], [40, 70, 1]] {
        for kernel in [[1, 3], [3, 3], [5, 5], [1, 7]] {
            let s = shape(1, channels, [8, 9], kernel, [1, 1, 1, 1], [0; 4]);
            check(ConvShape { w: s.kw - 1, ow: 0, ..s }, &PLAIN, 1, 1);
            check(ConvShape { h: s.kh - 1, oh: 0, ..s }, &SIGNED, 2, 2);
        }
    }
}

/// Scratch bounds hold at every size up to the greatest one.
#[test]
fn scratch_bounds() {
    for (k, stride, dilation, pad) in
        [(1, 1, 1, 0), (1, 2, 1, 0), (3, 1, 1, 1), (3, 2, 1, 1), (5, 3, 2, 0), (7, 2, 1, 3)]
    {
        for c in [1, 3, 16, 100, 960] {
            let at = |h: usize, w: usize| {
                let out = |x: usize| (x + 2 * pad).checked_sub((k - 1) * dilation + 1).map(|r| r / stride + 1);
                let (oh, ow, groups) = (out(h)?, out(w)?, 1);
                let (sy, sx, dy, dx, pt, pl) = (stride, stride, dilation, dilation, pad, pad);
                Some(ConvShape { n: 1, ic: c, oc: c, h, w, oh, ow, kh: k, kw: k, sy, sx, dy, dx, pt, pl, groups })
            };
            for (most_h, most_w) in [(500, 500), (11, 3000), (3000, 11)] {
                let most = at(most_h, most_w).unwrap();
                for (h, w) in (1..=most_h).step_by(7).flat_map(|h| (1..=most_w).step_by(11).map(move |w| (h, w))) {
                    for (h, w) in [(h, w), (most_h, w), (h, most_w)] {
                        let Some(s) = at(h, w) else { continue };
                        assert!(qconv_scratch_bytes(s, true) <= qconv_scratch_bound(most), "{s:?} of {most:?}");
                        assert!(c > 4 || qconv_first_scratch_bytes(s) <= qconv_first_scratch_bound(most), "{s:?}");
                        assert!(qdepthwise_scratch_bytes(s) <= qdepthwise_scratch_bound(most), "{s:?} of {most:?}");
                    }
                }
            }
        }
    }
}
