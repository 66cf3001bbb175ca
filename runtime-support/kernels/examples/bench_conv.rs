//! Speed of the convolution kernels on layers of well-known networks, beside this machine's multiply-add peak.
//!
//! `cargo run --release -p kiln-kernels --features alloc --example bench_conv [FILTER] [ROUNDS]`. Out: per layer the best
//! and the median over many runs in GFLOP/s, and the best as a share of the peak measured in the same run.
use kiln_kernels::simd::F32x16;
use kiln_kernels::{
    Activation, AlignedBytes, ConvBlocked, ConvFirst, ConvPlain, ConvShape, ConvTranspose, ConvTransposeBlocked,
    ConvWinograd, Cx, Depthwise, FromBlocked16, Isa, Operand, PoolBlocked, PoolKind, Region, RunState, ToBlocked16,
    WindowShape, blocked16_units, conv_blocked_f32, conv_blocked_scratch_bytes, conv_blocked_units, conv_first_f32,
    conv_first_scratch_bytes, conv_first_units, conv_plain_f32, conv_plain_scratch_bytes, conv_plain_units,
    conv_transpose_blocked_f32, conv_transpose_blocked_scratch_bytes, conv_transpose_blocked_units, conv_transpose_f32,
    conv_transpose_scratch_bytes, conv_transpose_units, depthwise_f32, depthwise_units, from_blocked16_f32,
    pool_blocked_f32, pool_blocked_units, simd_fn, to_blocked16_f32,
};
use kiln_kernels::{conv_winograd_f32, conv_winograd_scratch_bytes, conv_winograd_units};
use std::time::Instant;

simd_fn! {
    /// `rounds` × `N` multiply-adds of 16 lanes that depend on no memory.
    fn peak<S>[const N: usize][N](s, rounds: usize, seed: f32) -> f32 {
        let (a, b) = (s.splat(seed), s.splat(1.0 - seed));
        let mut acc = [s.zero(); N];
        for _ in 0..rounds {
            for v in &mut acc {
                *v = v.fma(a, b);
            }
        }
        let mut sum = acc[0];
        for v in &acc[1..] {
            sum = sum + *v;
        }
        sum.sum()
    }
}

/// Best GFLOP/s of the multiply-add loop.
fn measure_peak(isa: Isa) -> f64 {
    let rounds = 200_000;
    // As many accumulators as fit the set's registers.
    let (n, f): (usize, fn(Isa, usize, f32) -> f32) =
        if isa.name() == "avx512" { (24, peak::<24>) } else { (6, peak::<6>) };
    (0..20)
        .map(|_| {
            let start = Instant::now();
            std::hint::black_box(f(isa, rounds, std::hint::black_box(0.5)));
            (rounds * n * 32) as f64 / start.elapsed().as_nanos() as f64
        })
        .fold(0.0, f64::max)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Blocked,
    First,
    Depthwise,
    Plain,
    Transpose,
    TransposeBlocked,
    /// With tiles of so many output pixels a side.
    Winograd(usize),
    MaxPool,
    ToBlocked,
    FromBlocked,
}

/// `[ic, oc]`, input extent, kernel, stride; same padding; 2-D and square.
fn square(ic: usize, oc: usize, x: usize, k: usize, stride: usize) -> ConvShape {
    let pad = (k - 1) / 2;
    let o = (x + 2 * pad - k) / stride + 1;
    let (h, w, oh, ow) = (x, x, o, o);
    ConvShape {
        n: 1,
        ic,
        oc,
        h,
        w,
        oh,
        ow,
        kh: k,
        kw: k,
        sy: stride,
        sx: stride,
        dy: 1,
        dx: 1,
        pt: pad,
        pl: pad,
        groups: 1,
    }
}

/// Stride 1 and same padding, for an image and a window that are not square.
fn wide(ic: usize, oc: usize, [h, w]: [usize; 2], [kh, kw]: [usize; 2]) -> ConvShape {
    ConvShape { h, w, oh: h, ow: w, kh, kw, pt: kh / 2, pl: kw / 2, ..square(ic, oc, 1, 1, 1) }
}

fn depthwise(c: usize, x: usize, k: usize, stride: usize) -> ConvShape {
    ConvShape { groups: c, ..square(c, c, x, k, stride) }
}

/// A transposed convolution without padding.
fn transposed(ic: usize, oc: usize, x: usize, k: usize, stride: usize) -> ConvShape {
    let o = (x - 1) * stride + k;
    ConvShape { oh: o, ow: o, pt: 0, pl: 0, ..square(ic, oc, x, k, stride) }
}

fn window(s: &ConvShape) -> WindowShape {
    WindowShape {
        x: [1, s.h, s.w],
        y: [1, s.oh, s.ow],
        kernel: [1, s.kh, s.kw],
        strides: [1, s.sy, s.sx],
        dilations: [1, s.dy, s.dx],
        pads: [0, s.pt, s.pl],
    }
}

fn layers() -> Vec<(Kind, &'static str, ConvShape)> {
    use Kind::{
        Blocked, Depthwise, First, FromBlocked, MaxPool, Plain, ToBlocked, Transpose, TransposeBlocked, Winograd,
    };
    vec![
        (Blocked, "3x3 64-64 @56", square(64, 64, 56, 3, 1)),
        (Blocked, "3x3 128-128 @28", square(128, 128, 28, 3, 1)),
        (Blocked, "3x3 256-256 @14", square(256, 256, 14, 3, 1)),
        (Blocked, "3x3 512-512 @7", square(512, 512, 7, 3, 1)),
        (Blocked, "3x3 64-64 @80", square(64, 64, 80, 3, 1)),
        (Blocked, "3x3 32-32 @160", square(32, 32, 160, 3, 1)),
        (Blocked, "3x3 16-16 @160", square(16, 16, 160, 3, 1)),
        (Blocked, "3x3 128-128 @40", square(128, 128, 40, 3, 1)),
        (Blocked, "1x1 64-64 @56", square(64, 64, 56, 1, 1)),
        (Blocked, "1x1 64-256 @56", square(64, 256, 56, 1, 1)),
        (Blocked, "1x1 256-64 @56", square(256, 64, 56, 1, 1)),
        (Blocked, "1x1 512-128 @28", square(512, 128, 28, 1, 1)),
        (Blocked, "1x1 128-512 @28", square(128, 512, 28, 1, 1)),
        (Blocked, "1x1 1024-256 @14", square(1024, 256, 14, 1, 1)),
        (Blocked, "1x1 256-1024 @14", square(256, 1024, 14, 1, 1)),
        (Blocked, "1x1 2048-512 @7", square(2048, 512, 7, 1, 1)),
        (Blocked, "1x1 512-2048 @7", square(512, 2048, 7, 1, 1)),
        (Blocked, "1x1 256-512 @56 s2", square(256, 512, 56, 1, 2)),
        (Blocked, "3x3 128-128 @56 s2", square(128, 128, 56, 3, 2)),
        (Blocked, "3x3 32-64 @160 s2", square(32, 64, 160, 3, 2)),
        (Blocked, "1x1 96-24 @56", square(96, 24, 56, 1, 1)),
        (Blocked, "1x1 24-144 @56", square(24, 144, 56, 1, 1)),
        (Blocked, "1x1 32-16 @112", square(32, 16, 112, 1, 1)),
        (Blocked, "1x1 16-96 @112", square(16, 96, 112, 1, 1)),
        (Blocked, "1x1 160-960 @7", square(160, 960, 7, 1, 1)),
        (Blocked, "1x1 960-160 @7", square(960, 160, 7, 1, 1)),
        (Blocked, "1x1 960-256 @1", square(960, 256, 1, 1, 1)),
        (
            Blocked,
            "1x3 384-384 @3000 s2",
            ConvShape { h: 1, oh: 1, kh: 1, sy: 1, pt: 0, ..square(384, 384, 3000, 3, 2) },
        ),
        (First, "3x3 3-32 @224 s2", square(3, 32, 224, 3, 2)),
        (First, "7x7 3-64 @224 s2", square(3, 64, 224, 7, 2)),
        (First, "3x3 3-16 @640 s2", square(3, 16, 640, 3, 2)),
        (First, "3x3 3-64 @224", square(3, 64, 224, 3, 1)),
        (Depthwise, "dw3 32 @112", depthwise(32, 112, 3, 1)),
        (Depthwise, "dw3 96 @112 s2", depthwise(96, 112, 3, 2)),
        (Depthwise, "dw3 144 @56", depthwise(144, 56, 3, 1)),
        (Depthwise, "dw3 192 @28", depthwise(192, 28, 3, 1)),
        (Depthwise, "dw3 576 @14", depthwise(576, 14, 3, 1)),
        (Depthwise, "dw3 960 @7", depthwise(960, 7, 3, 1)),
        (Depthwise, "dw5 240 @28", depthwise(240, 28, 5, 1)),
        (Depthwise, "dw5 672 @14 s2", depthwise(672, 14, 5, 2)),
        (Depthwise, "dw7 96 @56", depthwise(96, 56, 7, 1)),
        (Plain, "plain 3x3 64-64 @56", square(64, 64, 56, 3, 1)),
        (Plain, "plain 3x3 128-128 g32 @56", ConvShape { groups: 32, ..square(128, 128, 56, 3, 1) }),
        (Plain, "plain 3x3 512-512 @7", square(512, 512, 7, 3, 1)),
        (Plain, "plain 3x3 3-32 @224 s2", square(3, 32, 224, 3, 2)),
        (Transpose, "transpose 2x2 128-64 @56 s2", transposed(128, 64, 56, 2, 2)),
        (Transpose, "transpose 4x4 64-32 @64 s2", transposed(64, 32, 64, 4, 2)),
        (Transpose, "transpose 3x3 256-128 @14 s2", transposed(256, 128, 14, 3, 2)),
        (TransposeBlocked, "tblocked 2x2 128-64 @56 s2", transposed(128, 64, 56, 2, 2)),
        (TransposeBlocked, "tblocked 4x4 64-32 @64 s2", transposed(64, 32, 64, 4, 2)),
        (TransposeBlocked, "tblocked 3x3 256-128 @14 s2", transposed(256, 128, 14, 3, 2)),
        (
            Blocked,
            "5x1 256-512 @512x1",
            ConvShape { w: 1, ow: 1, oh: 508, kw: 1, pt: 0, pl: 0, ..square(256, 512, 512, 5, 1) },
        ),
        (Winograd(2), "winograd2 64-64 @56", square(64, 64, 56, 3, 1)),
        (Winograd(4), "winograd4 64-64 @56", square(64, 64, 56, 3, 1)),
        (Winograd(2), "winograd2 128-128 @28", square(128, 128, 28, 3, 1)),
        (Winograd(4), "winograd4 128-128 @28", square(128, 128, 28, 3, 1)),
        (Winograd(2), "winograd2 256-256 @14", square(256, 256, 14, 3, 1)),
        (Winograd(4), "winograd4 256-256 @14", square(256, 256, 14, 3, 1)),
        (Winograd(2), "winograd2 512-512 @7", square(512, 512, 7, 3, 1)),
        (Winograd(4), "winograd4 512-512 @7", square(512, 512, 7, 3, 1)),
        (Winograd(2), "winograd2 16-16 @160", square(16, 16, 160, 3, 1)),
        (Winograd(4), "winograd4 16-16 @160", square(16, 16, 160, 3, 1)),
        (Winograd(2), "winograd2 32-32 @80", square(32, 32, 80, 3, 1)),
        (Winograd(4), "winograd4 32-32 @80", square(32, 32, 80, 3, 1)),
        (Winograd(2), "winograd2 64-64 @80", square(64, 64, 80, 3, 1)),
        (Winograd(4), "winograd4 64-64 @80", square(64, 64, 80, 3, 1)),
        (Winograd(2), "winograd2 64-64 @40", square(64, 64, 40, 3, 1)),
        (Winograd(4), "winograd4 64-64 @40", square(64, 64, 40, 3, 1)),
        (Winograd(2), "winograd2 128-128 @20", square(128, 128, 20, 3, 1)),
        (Winograd(4), "winograd4 128-128 @20", square(128, 128, 20, 3, 1)),
        (Blocked, "3x3 32-32 @80", square(32, 32, 80, 3, 1)),
        (Blocked, "3x3 64-64 @40", square(64, 64, 40, 3, 1)),
        (Blocked, "3x3 128-128 @20", square(128, 128, 20, 3, 1)),
        (First, "first 3x39 8-8 @172x264", wide(8, 8, [172, 264], [3, 39])),
        (Plain, "plain 3x39 8-8 @172x264", wide(8, 8, [172, 264], [3, 39])),
        (First, "first 5x5 8-1 @172x264", wide(8, 1, [172, 264], [5, 5])),
        (Plain, "plain 5x5 8-1 @172x264", wide(8, 1, [172, 264], [5, 5])),
        (Blocked, "7x3 32-1 @172x88", wide(32, 1, [172, 88], [7, 3])),
        (Plain, "plain 7x3 32-1 @172x88", wide(32, 1, [172, 88], [7, 3])),
        (Plain, "plain 3x3 3-16 @224", square(3, 16, 224, 3, 1)),
        (First, "first 3x3 3-16 @224", square(3, 16, 224, 3, 1)),
        (Blocked, "3x3 96-24 @40x80", wide(96, 24, [40, 80], [3, 3])),
        (Winograd(4), "winograd4 3x3 96-24 @40x80", wide(96, 24, [40, 80], [3, 3])),
        (Blocked, "3x3 96-16 @40x80", wide(96, 16, [40, 80], [3, 3])),
        (Winograd(4), "winograd4 3x3 96-16 @40x80", wide(96, 16, [40, 80], [3, 3])),
        (Blocked, "3x3 16-32 @80", square(16, 32, 80, 3, 1)),
        (Winograd(4), "winograd4 16-32 @80", square(16, 32, 80, 3, 1)),
        (MaxPool, "maxpool3 64 @112 s2", depthwise(64, 112, 3, 2)),
        (MaxPool, "maxpool5 256 @20", depthwise(256, 20, 5, 1)),
        (ToBlocked, "to blocked 64 @56", depthwise(64, 56, 1, 1)),
        (FromBlocked, "from blocked 64 @56", depthwise(64, 56, 1, 1)),
    ]
}

fn noise(bytes: usize) -> AlignedBytes {
    let mut all = AlignedBytes::zeroed(bytes).expect("memory");
    for (i, b) in all.as_mut_slice().chunks_exact_mut(4).enumerate() {
        b.copy_from_slice(&((i * 2_654_435_761 % 1024) as f32 / 512.0 - 1.0).to_le_bytes());
    }
    all
}

/// Nanoseconds of `rounds` runs.
fn bench(isa: Isa, kind: Kind, s: &ConvShape, rounds: usize) -> Vec<f64> {
    let up = |c: usize| c.next_multiple_of(16);
    let (lanes, scratch_bytes, units) = match kind {
        Kind::Blocked => (up(s.ic), conv_blocked_scratch_bytes(*s), conv_blocked_units(*s)),
        Kind::Depthwise => (up(s.ic), 0, depthwise_units(s.n, s.ic, s.oh)),
        Kind::Plain => (
            s.ic,
            conv_plain_scratch_bytes(s.ic, s.groups, &window(s)),
            conv_plain_units(s.n, s.ic, s.groups, &window(s)),
        ),
        Kind::Transpose => (
            s.ic,
            conv_transpose_scratch_bytes(s.ic, s.groups, &window(s)),
            conv_transpose_units(s.n, s.ic, s.groups, &window(s)),
        ),
        Kind::TransposeBlocked => {
            (up(s.ic), conv_transpose_blocked_scratch_bytes(*s), conv_transpose_blocked_units(*s))
        }
        Kind::Winograd(tile) => (up(s.ic), conv_winograd_scratch_bytes(*s, tile), conv_winograd_units(*s, tile)),
        Kind::MaxPool => (up(s.ic), 0, pool_blocked_units(s.n, s.ic, s.oh)),
        Kind::ToBlocked | Kind::FromBlocked => (up(s.ic), 0, blocked16_units(s.n, s.ic)),
        Kind::First => (s.ic, conv_first_scratch_bytes(*s), conv_first_units(*s)),
    };
    let x = noise(s.n * lanes * s.h * s.w * 4);
    let weights = noise(if let Kind::Winograd(tile) = kind {
        (tile + 2).pow(2) * up(s.ic) * up(s.oc) * 4
    } else {
        up(s.oc) * lanes.div_ceil(s.groups) * s.kh * s.kw * 4
    });
    let bias = noise(up(s.oc) * 4);
    let mut out = noise(s.n * up(s.oc) * s.oh * s.ow * 4);
    let mut scratch = noise(scratch_bytes);
    let at = |mem: u32, b: &AlignedBytes| Operand::at(mem, 0, b.as_slice().len());
    let (xo, wo, bo, yo, so) = (at(0, &x), at(1, &weights), at(2, &bias), at(3, &out), at(4, &scratch));
    let regions = [
        Region::read(x.as_slice()),
        Region::read(weights.as_slice()),
        Region::read(bias.as_slice()),
        Region::write(out.as_mut_slice()),
        Region::write(scratch.as_mut_slice()),
    ];
    let state = RunState::new();
    let cx = Cx::new(&regions, isa, &state, &[]);
    let &ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups } = s;
    let (x, weights, bias, y, residual, scratch) = (xo, wo, Some(bo), yo, None, Some(so));
    let (part_begin, part_end, activation) = (0, units, Activation::Relu);
    let blocked = ConvBlocked {
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
    let first = ConvFirst {
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
    let depthwise = Depthwise {
        x,
        weights,
        bias,
        y,
        residual,
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
        activation,
    };
    let WindowShape { x: x_dims, y: y_dims, kernel, strides, dilations, pads } = window(s);
    let plain = ConvPlain {
        x,
        weights,
        bias,
        y,
        residual,
        scratch,
        n,
        ic,
        oc,
        groups,
        part_begin,
        part_end,
        x_dims,
        y_dims,
        kernel,
        strides,
        dilations,
        pads,
        activation,
    };
    let transpose = ConvTranspose {
        x,
        weights,
        bias,
        y,
        residual,
        scratch,
        n,
        ic,
        oc,
        groups,
        part_begin,
        part_end,
        x_dims,
        y_dims,
        kernel,
        strides,
        dilations,
        pads,
        activation,
    };
    let transpose_blocked = ConvTransposeBlocked {
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
    let tile = if let Kind::Winograd(tile) = kind { tile } else { 2 };
    let winograd = ConvWinograd {
        x,
        weights,
        bias,
        y,
        residual,
        scratch: so,
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
    let pool = PoolBlocked {
        x,
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
        pb: pt,
        pr: pl,
        part_begin,
        part_end,
        kind: PoolKind::Max,
        p: 0,
    };
    let to_blocked = ToBlocked16 { x, y, n, c: ic, spatial: h * w, part_begin, part_end };
    let from_blocked = FromBlocked16 { x, y, n, c: ic, spatial: h * w, part_begin, part_end };
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            match kind {
                Kind::Blocked => conv_blocked_f32(&cx, &blocked),
                Kind::First => conv_first_f32(&cx, &first),
                Kind::Depthwise => depthwise_f32(&cx, &depthwise),
                Kind::Plain => conv_plain_f32(&cx, &plain),
                Kind::Transpose => conv_transpose_f32(&cx, &transpose),
                Kind::TransposeBlocked => conv_transpose_blocked_f32(&cx, &transpose_blocked),
                Kind::Winograd(_) => conv_winograd_f32(&cx, &winograd),
                Kind::MaxPool => pool_blocked_f32(&cx, &pool),
                Kind::ToBlocked => to_blocked16_f32(&cx, &to_blocked),
                Kind::FromBlocked => from_blocked16_f32(&cx, &from_blocked),
            }
            start.elapsed().as_nanos() as f64
        })
        .collect();
    assert_eq!(state.fault(), None);
    times.sort_by(f64::total_cmp);
    times
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let rounds: usize = std::env::args().nth(2).and_then(|r| r.parse().ok()).unwrap_or(60);
    let isa = match std::env::var("KILN_ISA").as_deref() {
        Ok(name) => Isa::supported().find(|i| i.name() == name).unwrap_or(Isa::detect()),
        Err(_) => Isa::detect(),
    };
    let peak = measure_peak(isa);
    println!("{}: peak {peak:.0} GFLOP/s", isa.name());
    println!("{:28} {:>8} {:>8} {:>8} {:>6}", "layer", "best", "median", "us", "share");
    for (kind, name, s) in layers() {
        if !name.contains(&filter) {
            continue;
        }
        let times = bench(isa, kind, &s, rounds);
        let out = if matches!(kind, Kind::Transpose | Kind::TransposeBlocked) { s.h * s.w } else { s.oh * s.ow };
        let flops = 2.0 * (s.n * s.ic / s.groups * s.oc * out * s.kh * s.kw) as f64;
        let (best, median) = (times[0], times[times.len() / 2]);
        println!(
            "{name:28} {:8.1} {:8.1} {:8.1} {:5.1}%",
            flops / best,
            flops / median,
            best / 1e3,
            100.0 * flops / best / peak
        );
    }
    println!("peak again {:.0} GFLOP/s", measure_peak(isa));
}
