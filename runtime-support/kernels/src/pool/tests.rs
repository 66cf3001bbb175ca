//! Pools against their definition: every kind and instruction set, odd sizes, poisoned pad lanes, parts.

use super::*;
use crate::conv::tests::{blocked, numbers, plain, run};
use crate::{Cx, Isa, Operand, Region, RunState};
use alloc::vec;
use alloc::vec::Vec;

/// Spatial extents of a pool.
#[derive(Clone, Copy, Debug)]
struct Case {
    x: [usize; 3],
    y: [usize; 3],
    kernel: [usize; 3],
    strides: [usize; 3],
    dilations: [usize; 3],
    begin: [usize; 3],
    end: [usize; 3],
}

/// 2-D: input, kernel, strides, dilations, pads `[top, left, bottom, right]`, ceil mode.
fn case(x: [usize; 2], k: [usize; 2], s: [usize; 2], d: [usize; 2], p: [usize; 4], ceil: bool) -> Case {
    let out = |a: usize| {
        let room = x[a] + p[a] + p[a + 2] - (k[a] - 1) * d[a] - 1;
        let n = if ceil { room.div_ceil(s[a]) } else { room / s[a] } + 1;
        // A window that starts in the end padding is dropped.
        if ceil && (n - 1) * s[a] >= x[a] + p[a] { n - 1 } else { n }
    };
    Case {
        x: [1, x[0], x[1]],
        y: [1, out(0), out(1)],
        kernel: [1, k[0], k[1]],
        strides: [1, s[0], s[1]],
        dilations: [1, d[0], d[1]],
        begin: [0, p[0], p[1]],
        end: [0, p[2], p[3]],
    }
}

fn cases() -> Vec<Case> {
    vec![
        case([7, 19], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1], false),
        case([12, 21], [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], false),
        case([9, 10], [2, 2], [2, 2], [1, 1], [0, 0, 0, 0], true),
        case([8, 11], [3, 2], [3, 2], [1, 1], [1, 0, 1, 1], true),
        case([10, 30], [3, 3], [1, 2], [2, 3], [2, 1, 0, 3], false),
        case([20, 20], [5, 5], [1, 1], [1, 1], [2, 2, 2, 2], false),
        case([1, 40], [1, 4], [1, 3], [1, 1], [0, 3, 0, 2], true),
    ]
}

fn definition(c: &Case, planes: usize, kind: PoolKind, p: u32, x: &[f32]) -> Vec<f32> {
    let mut y = Vec::new();
    for plane in x.chunks(c.x[1] * c.x[2]).take(planes) {
        for r in 0..c.y[1] {
            for q in 0..c.y[2] {
                let (mut max, mut sum, mut lp, mut inside, mut padded) = (f32::NEG_INFINITY, 0.0f32, 0.0f64, 0, 0);
                for a in 0..c.kernel[1] {
                    for b in 0..c.kernel[2] {
                        let i = (r * c.strides[1] + a * c.dilations[1]) as isize - c.begin[1] as isize;
                        let j = (q * c.strides[2] + b * c.dilations[2]) as isize - c.begin[2] as isize;
                        let (h, w) = (c.x[1] as isize, c.x[2] as isize);
                        if i < h + c.end[1] as isize && j < w + c.end[2] as isize {
                            padded += 1;
                        }
                        if (0..h).contains(&i) && (0..w).contains(&j) {
                            let v = plane[(i * w + j) as usize];
                            inside += 1;
                            max = max.max(v);
                            sum += v;
                            lp += f64::from(v.abs()).powi(p as i32);
                        }
                    }
                }
                y.push(match kind {
                    PoolKind::Max => max,
                    PoolKind::Average => sum / inside as f32,
                    PoolKind::AverageWithPads => sum / padded as f32,
                    PoolKind::Lp => lp.powf(1.0 / f64::from(p)) as f32,
                });
            }
        }
    }
    y
}

const KINDS: [(PoolKind, u32); 5] =
    [(PoolKind::Max, 0), (PoolKind::Average, 0), (PoolKind::AverageWithPads, 0), (PoolKind::Lp, 2), (PoolKind::Lp, 3)];

fn assert_close(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(a == b || (a - b).abs() <= 1e-5 * b.abs(), "{what}: {a} is not {b} at {i}");
    }
}

#[test]
fn windows_equal_definition() {
    let (n, ch) = (2, 19);
    for c in cases() {
        for (kind, p) in KINDS {
            let x = numbers(n * ch * c.x[1] * c.x[2], 5);
            let expected = definition(&c, n * ch, kind, p, &x);
            for isa in Isa::supported() {
                let what = std::format!("{isa:?} {kind:?} {p} {c:?}");
                let units = pool_units(n * ch, c.y);
                let y = run(isa, &[&x], &vec![f32::NAN; expected.len()], 0, |cx, r, y, _| {
                    for part in [0, units / 3, units].windows(2) {
                        let d = Pool {
                            x: r[0],
                            y,
                            planes: n * ch,
                            part_begin: part[0],
                            part_end: part[1],
                            x_dims: c.x,
                            y_dims: c.y,
                            kernel: c.kernel,
                            strides: c.strides,
                            dilations: c.dilations,
                            pads_begin: c.begin,
                            pads_end: c.end,
                            kind,
                            p,
                        };
                        pool_f32(cx, &d);
                    }
                });
                assert_close(&y.expect("no fault"), &expected, &what);

                let in_blocks = blocked(&x, n, ch, c.x[1] * c.x[2]);
                let out = vec![f32::NAN; n * 32 * c.y[1] * c.y[2]];
                let units = pool_blocked_units(n, ch, c.y[1]);
                let y = run(isa, &[&in_blocks], &out, 0, |cx, r, y, _| {
                    for part in [0, units / 3, units].windows(2) {
                        let [[_, h, w], [_, oh, ow], [_, kh, kw]] = [c.x, c.y, c.kernel];
                        let [[_, sy, sx], [_, dy, dx]] = [c.strides, c.dilations];
                        let [[_, pt, pl], [_, pb, pr]] = [c.begin, c.end];
                        let (x, c, part_begin, part_end) = (r[0], ch, part[0], part[1]);
                        let d = PoolBlocked {
                            x,
                            y,
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
                            pb,
                            pr,
                            part_begin,
                            part_end,
                            kind,
                            p,
                        };
                        pool_blocked_f32(cx, &d);
                    }
                });
                assert_close(&plain(&y.expect("no fault"), n, ch, c.y[1] * c.y[2]), &expected, &what);
            }
        }
    }
}

#[test]
fn whole_images_equal_definition() {
    for (n, ch, h, w) in [(2, 19, 7, 7), (1, 16, 1, 1), (1, 33, 5, 13)] {
        let c = case([h, w], [h, w], [1, 1], [1, 1], [0; 4], false);
        for (kind, p) in KINDS {
            let x = numbers(n * ch * h * w, 5);
            let expected = definition(&c, n * ch, kind, p, &x);
            let in_blocks = blocked(&x, n, ch, h * w);
            for isa in Isa::supported() {
                let out = vec![f32::NAN; n * ch.next_multiple_of(16)];
                let units = n * ch.div_ceil(16);
                let y = run(isa, &[&in_blocks], &out, 0, |cx, r, y, _| {
                    for part in [0, units / 2, units].windows(2) {
                        let d = GlobalPoolBlocked {
                            x: r[0],
                            y,
                            n,
                            c: ch,
                            spatial: h * w,
                            part_begin: part[0],
                            part_end: part[1],
                            kind,
                            p,
                        };
                        global_pool_blocked_f32(cx, &d);
                    }
                });
                assert_close(&plain(&y.expect("no fault"), n, ch, 1), &expected, "global");
            }
        }
    }
}

/// 2×3 image, 2×2 windows: the first of equal values, both orders, second plane counted on.
#[test]
fn positions() {
    let x: [u8; 12] = [5, 200, 200, 7, 200, 1, 1, 2, 3, 4, 5, 6];
    for (column_major, expected) in [(false, [1i64, 1, 10, 11]), (true, [2, 2, 9, 11])] {
        let (mut y, mut indices) = ([0u8; 4], crate::AlignedBytes::zeroed(32).expect("memory"));
        let state = RunState::new();
        let regions = [Region::read(&x), Region::write(&mut y), Region::write(indices.as_mut_slice())];
        let cx = Cx::new(&regions, Isa::Scalar, &state, &[]);
        let d = MaxPoolIndices {
            x: Operand::at(0, 0, 12),
            y: Operand::at(1, 0, 4),
            indices: Operand::at(2, 0, 32),
            planes: 2,
            part_begin: 0,
            part_end: 2,
            x_dims: [1, 2, 3],
            y_dims: [1, 1, 2],
            kernel: [1, 2, 2],
            strides: [1, 1, 1],
            dilations: [1, 1, 1],
            pads_begin: [0, 0, 0],
            column_major,
        };
        max_pool_indices_u8(&cx, &d);
        assert_eq!(state.fault(), None);
        assert_eq!(y, [200, 200, 5, 6]);
        let got: Vec<i64> =
            indices.as_slice().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes"))).collect();
        assert_eq!(got, expected);
    }
}
