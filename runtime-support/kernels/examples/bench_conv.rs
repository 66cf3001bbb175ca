//! Speed of the convolution kernels on layers of well-known networks, beside this machine's multiply-add peak.
//!
//! `cargo run --release -p kiln-kernels --features alloc --example bench_conv [FILTER] [ROUNDS]`. Out: per layer the best
//! and the median over many runs in GFLOP/s, and the best as a share of the peak measured in the same run.
use kiln_kernels::simd::F32x16;
use kiln_kernels::{
    Activation, AlignedBytes, ConvBlocked, ConvFirst, ConvShape, Cx, Depthwise, Isa, Operand, Region, RunState,
    conv_blocked_f32, conv_blocked_scratch_bytes, conv_blocked_units, conv_first_f32, conv_first_scratch_bytes,
    conv_first_units, depthwise_f32, depthwise_units, simd_fn,
};
use std::time::Instant;

simd_fn! {
    /// `rounds` × 24 multiply-adds of 16 lanes that depend on no memory.
    fn peak<S>(s, rounds: usize, seed: f32) -> f32 {
        let (a, b) = (s.splat(seed), s.splat(1.0 - seed));
        let mut acc = [s.zero(); 24];
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
    (0..20)
        .map(|_| {
            let start = Instant::now();
            std::hint::black_box(peak(isa, rounds, std::hint::black_box(0.5)));
            (rounds * 24 * 32) as f64 / start.elapsed().as_nanos() as f64
        })
        .fold(0.0, f64::max)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Blocked,
    First,
    Depthwise,
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

fn depthwise(c: usize, x: usize, k: usize, stride: usize) -> ConvShape {
    ConvShape { groups: c, ..square(c, c, x, k, stride) }
}

fn layers() -> Vec<(Kind, &'static str, ConvShape)> {
    use Kind::{Blocked, Depthwise, First};
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
        Kind::First => (s.ic, conv_first_scratch_bytes(*s), conv_first_units(*s)),
    };
    let x = noise(s.n * lanes * s.h * s.w * 4);
    let weights = noise(up(s.oc) * lanes.div_ceil(s.groups) * s.kh * s.kw * 4);
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
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            match kind {
                Kind::Blocked => conv_blocked_f32(&cx, &blocked),
                Kind::First => conv_first_f32(&cx, &first),
                Kind::Depthwise => depthwise_f32(&cx, &depthwise),
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
    println!("{:24} {:>8} {:>8} {:>8} {:>6}", "layer", "best", "median", "us", "share");
    for (kind, name, s) in layers() {
        if !name.contains(&filter) {
            continue;
        }
        let times = bench(isa, kind, &s, rounds);
        let flops = 2.0 * (s.n * s.ic / s.groups * s.oc * s.oh * s.ow * s.kh * s.kw) as f64;
        let (best, median) = (times[0], times[times.len() / 2]);
        println!(
            "{name:24} {:8.1} {:8.1} {:8.1} {:5.1}%",
            flops / best,
            flops / median,
            best / 1e3,
            100.0 * flops / best / peak
        );
    }
    println!("peak again {:.0} GFLOP/s", measure_peak(isa));
}
