//! GFLOP/s of the f32 matrix product on shapes of real networks, beside the processor's peak measured in the same run.
//!
//! `cargo run --release -p kiln-kernels --example bench_gemm [avx512|avx2|scalar [MxNxK[/LDA]…]]`. Shapes are M×N×K, LDA is from row
//! to row of A. Times are the best and the
//! median of many runs on one thread; peak is measured again before every shape, since other work makes clocks wander.

use kiln_kernels::gemm::int8::{Int8Operands, Int8Params, Scaling, pack_int8_into, packed_int8_len, product_int8};
use kiln_kernels::gemm::{BLayout, GemmParams, Residual, pack_b_into, packed_len, product_f32};
use kiln_kernels::isa::Isa;
use kiln_kernels::simd::{F32x16, LANES};
use kiln_kernels::simd_fn;
use std::hint::black_box;
use std::time::Instant;

simd_fn! {
    /// Independent fused multiply-adds in registers: the peak.
    fn multiply_add<S>[const N: usize][N](s, x: &mut [[f32; LANES]; N], factor: f32, steps: usize) {
        let mut acc = x.map(|x| s.array(x));
        let factor = s.splat(factor);
        for _ in 0..steps {
            for acc in &mut acc {
                *acc = acc.fma(factor, factor);
            }
        }
        *x = acc.map(|acc| acc.to_array());
    }
}

/// GFLOP/s of registers alone: the best of a few runs.
fn peak(isa: Isa) -> f64 {
    const STEPS: usize = 20_000;
    fn run<const N: usize>(isa: Isa) -> f64 {
        let mut x = [[1.0; LANES]; N];
        let best = (0..5).map(|_| seconds(|| multiply_add(isa, black_box(&mut x), 0.5, STEPS)));
        (2 * N * LANES * STEPS) as f64 / best.fold(f64::INFINITY, f64::min) / 1e9
    }
    // As many as each set's registers hold.
    run::<12>(isa).max(run::<6>(isa)).max(run::<3>(isa))
}

fn seconds(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64()
}

fn random(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.5).collect()
}

fn bench(isa: Isa, name: &str, p: &GemmParams) {
    let Some(needed) = p.lengths() else {
        return println!("{name}: inconsistent");
    };
    let (a, plain) = (random(needed.a), random(p.k * p.n));
    let mut packed = vec![0.0; packed_len(p.k, p.n)];
    let b = if p.b_layout == BLayout::Packed {
        pack_b_into(&mut packed, &plain, p.k, p.n, p.n, false);
        packed
    } else {
        random(needed.b)
    };
    let (mut c, mut scratch) = (vec![0.0; needed.c], vec![0.0; needed.scratch]);
    let flops = (2 * p.m * p.n * p.k * p.batch[0] * p.batch[1]) as f64;
    let mut run = || {
        let ok = product_f32(isa, p, &a, black_box(&b), None, Residual::None, &mut c, &mut scratch);
        assert!(ok, "bench: lengths");
    };
    let runs = ((3e9 / flops) as usize).clamp(15, 2000);
    let mut best_peak = 0.0f64;
    let mut times = Vec::new();
    for _ in 0..5 {
        best_peak = best_peak.max(peak(isa));
        run();
        times.extend((0..runs.div_ceil(5)).map(|_| seconds(&mut run)));
    }
    times.sort_by(f64::total_cmp);
    let (best, median) = (times[0], times[times.len() / 2]);
    println!(
        "{name:<28} best {:>6.1} GFLOP/s ({:>3.0} %)  median {:>6.1} ({:>3.0} %)  {:>8.1} us  B {:>5.1} GB/s  peak {:.0}",
        flops / best / 1e9,
        flops / best / 1e7 / best_peak,
        flops / median / 1e9,
        flops / median / 1e7 / best_peak,
        median * 1e6,
        4.0 * b.len() as f64 / median / 1e9,
        best_peak
    );
}

/// GOP/s of the 8-bit product with i32, f32 or 8-bit results.
fn bench_int8(isa: Isa, m: usize, n: usize, k: usize) {
    let bytes = |n: usize| (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<_>>();
    let p = Int8Params::dense(m, n, k, false);
    let (a, plain) = (bytes(m * k), bytes(k * n));
    let (mut b, mut b_sums) = (vec![0i8; packed_int8_len(k, n)], vec![0; n.next_multiple_of(16)]);
    assert!(pack_int8_into(&mut b, &mut b_sums, &plain, [k, n], n, false, true));
    let o = Int8Operands { a: &a, b: &b, b_sums: &b_sums, a_zero: &[128], b_zero: &[], bias: &[] };
    let scaling = Scaling { a_scale: 1e-4, ..Scaling::NONE };
    let (mut c32, mut cf, mut c8) = (vec![0i32; m * n], vec![0.0f32; m * n], vec![0u8; m * n]);
    let mut best = [f64::INFINITY; 3];
    for _ in 0..((6e9 / (m * n * k) as f64) as usize).clamp(15, 2000) {
        let mut ok = true;
        best[0] = best[0].min(seconds(|| ok &= product_int8(isa, &p, black_box(&o), &scaling, &mut c32)));
        best[1] = best[1].min(seconds(|| ok &= product_int8(isa, &p, black_box(&o), &scaling, &mut cf)));
        best[2] = best[2].min(seconds(|| ok &= product_int8(isa, &p, black_box(&o), &scaling, &mut c8)));
        assert!(ok, "bench: lengths");
    }
    let rate = best.map(|t| 2.0 * (m * n * k) as f64 / t / 1e9);
    println!(
        "int8 {m}x{n}x{k}: best to i32 {:.0}, to f32 {:.0}, to u8 {:.0} GOP/s ({:.1} us to i32)",
        rate[0],
        rate[1],
        rate[2],
        best[0] * 1e6
    );
}

fn main() {
    let wanted = std::env::args().nth(1);
    let isa = match wanted {
        None => Isa::detect(),
        Some(name) => match Isa::supported().find(|isa| isa.name() == name) {
            Some(isa) => isa,
            None => return println!("{name} does not run here"),
        },
    };
    println!("{}", isa.name());
    let asked: Vec<String> = std::env::args().skip(2).collect();
    for shape in &asked {
        let numbers: Vec<usize> = shape.split(['x', '/']).filter_map(|n| n.parse().ok()).collect();
        let (&[m, n, k] | &[m, n, k, _]) = numbers.as_slice() else { return println!("{shape} is not MxNxK[/LDA]") };
        let lda = numbers.get(3).copied().unwrap_or(k).max(k);
        bench(isa, shape, &GemmParams { lda, ..GemmParams::packed(m, n, k) });
    }
    if !asked.is_empty() {
        return;
    }
    let shapes = [
        [128, 768, 768],
        [128, 3072, 768],
        [128, 768, 3072],
        [77, 512, 512],
        [1500, 384, 384],
        [128, 1024, 1024],
        [197, 192, 768],
        [3136, 64, 64],
        [16, 768, 768],
        [8, 768, 768],
        [4, 768, 768],
        [2, 768, 768],
        [1, 768, 768],
        [1, 4096, 1024],
        [1, 1000, 2048],
        [1, 8192, 4096],
    ];
    for [m, n, k] in shapes {
        bench(isa, &format!("{m}x{n}x{k}"), &GemmParams::packed(m, n, k));
    }
    // Heads side by side in rows of A, B and C.
    let heads = |heads: usize, m, n, k, b_layout| GemmParams {
        lda: heads * k,
        ldb: if b_layout == BLayout::Rows { heads * n } else { heads * k },
        ldc: heads * n,
        b_layout,
        batch: [1, heads],
        a_batch: [0, k],
        b_batch: [0, if b_layout == BLayout::Rows { n } else { k }],
        c_batch: [0, n],
        ..GemmParams::packed(m, n, k)
    };
    for [n_heads, m, n, k] in
        [[12, 128, 64, 128], [6, 1500, 64, 1500], [1, 512, 512, 512], [1, 300, 300, 300], [12, 1, 64, 448]]
    {
        bench(isa, &format!("{n_heads}x {m}x{n}x{k} A.B"), &heads(n_heads, m, n, k, BLayout::Rows));
        bench(isa, &format!("{n_heads}x {m}x{k}x{n} A.Bt"), &heads(n_heads, m, k, n, BLayout::Transposed));
    }
    for [m, n, k] in [
        [128, 768, 768],
        [128, 3072, 768],
        [128, 768, 3072],
        [77, 512, 512],
        [1500, 384, 384],
        [16, 768, 768],
        [1, 768, 768],
    ] {
        bench_int8(isa, m, n, k);
    }
}
