//! Rates of the 8-bit convolutions on the shapes of known networks, against the processor's measured peak.
//!
//! `cargo run --release -p kiln-kernels --features std --example bench_quant [ROUNDS]`. Each line: extents, microseconds
//! (best of the rounds), GOP/s (two operations a multiply-add), per cent of the peak of `vpdpbusd` measured in between.

use kiln_kernels::conv::ConvShape;
use kiln_kernels::isa::Isa;
use kiln_kernels::*;
use std::time::Instant;

struct Case {
    name: &'static str,
    s: ConvShape,
}

fn shape(ic: usize, oc: usize, h: usize, k: usize, stride: usize, groups: usize) -> ConvShape {
    let pad = k / 2;
    let oh = (h + 2 * pad - k) / stride + 1;
    let (n, w, ow) = (1, h, oh);
    ConvShape { n, ic, oc, h, w, oh, ow, kh: k, kw: k, sy: stride, sx: stride, dy: 1, dx: 1, pt: pad, pl: pad, groups }
}

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(30);
    let cases = [
        Case { name: "first 3x3/2", s: shape(3, 32, 224, 3, 2, 1) },
        Case { name: "first 7x7/2", s: shape(3, 64, 224, 7, 2, 1) },
        Case { name: "3x3", s: shape(64, 64, 56, 3, 1, 1) },
        Case { name: "3x3", s: shape(128, 128, 28, 3, 1, 1) },
        Case { name: "3x3", s: shape(256, 256, 14, 3, 1, 1) },
        Case { name: "3x3", s: shape(512, 512, 7, 3, 1, 1) },
        Case { name: "3x3/2", s: shape(64, 128, 56, 3, 2, 1) },
        Case { name: "1x1/2", s: shape(64, 128, 56, 1, 2, 1) },
        Case { name: "1x1", s: shape(32, 16, 112, 1, 1, 1) },
        Case { name: "1x1", s: shape(16, 96, 112, 1, 1, 1) },
        Case { name: "1x1", s: shape(96, 24, 56, 1, 1, 1) },
        Case { name: "1x1", s: shape(24, 144, 56, 1, 1, 1) },
        Case { name: "1x1", s: shape(192, 32, 28, 1, 1, 1) },
        Case { name: "1x1", s: shape(64, 384, 14, 1, 1, 1) },
        Case { name: "1x1", s: shape(576, 96, 14, 1, 1, 1) },
        Case { name: "1x1", s: shape(160, 960, 7, 1, 1, 1) },
        Case { name: "1x1", s: shape(320, 1280, 7, 1, 1, 1) },
        Case { name: "depthwise", s: shape(32, 32, 112, 3, 1, 32) },
        Case { name: "depthwise/2", s: shape(96, 96, 112, 3, 2, 96) },
        Case { name: "depthwise", s: shape(144, 144, 56, 3, 1, 144) },
        Case { name: "depthwise", s: shape(384, 384, 14, 3, 1, 384) },
        Case { name: "depthwise", s: shape(960, 960, 7, 3, 1, 960) },
        Case { name: "depthwise 5x5", s: shape(240, 240, 28, 5, 1, 240) },
    ];
    for isa in Isa::supported().filter(|i| *i != Isa::Scalar) {
        println!("{}", isa.name());
        for case in &cases {
            let (best, peak) = run(isa, case.s, rounds);
            let s = case.s;
            let ops = 2.0 * (s.n * s.oc * s.oh * s.ow * (s.ic / s.groups) * s.kh * s.kw) as f64;
            println!(
                "{:14} {:4}->{:4} {:3}x{:<3} {:9.1} us {:7.1} GOP/s {:5.1} % of {:.0}",
                case.name,
                s.ic,
                s.oc,
                s.oh,
                s.ow,
                best * 1e6,
                ops / best / 1e9,
                100.0 * ops / best / peak,
                peak / 1e9
            );
        }
    }
}

/// Best seconds of the kernel, and the peak operations a second measured between its rounds.
fn run(isa: Isa, s: ConvShape, rounds: usize) -> (f64, f64) {
    let ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups } = s;
    let depthwise = groups > 1;
    let first = ic <= 4;
    let pad16 = |c: usize| c.next_multiple_of(16);
    let bytes = |n: usize| AlignedBytes::zeroed(n.max(64)).expect("memory");
    let mut x = bytes(n * if first { ic } else { pad16(ic) } * h * w);
    x.as_mut_slice().iter_mut().enumerate().for_each(|(i, v)| *v = (i * 31 % 251) as u8);
    let weights_len = if depthwise { pad16(ic) * kh * kw.div_ceil(4) * 4 } else { pad16(oc) * pad16(ic) * kh * kw };
    let mut weights = bytes(weights_len);
    weights.as_mut_slice().iter_mut().enumerate().for_each(|(i, v)| *v = (i * 17 % 251) as u8);
    let bias = bytes(pad16(oc) * 4);
    let factor: Vec<u8> = (0..pad16(oc)).flat_map(|_| 0.0005f32.to_le_bytes()).collect();
    let factor = AlignedBytes::copy_of(&factor).expect("memory");
    let (scratch_len, units) = match (depthwise, first) {
        (true, _) => (qdepthwise_scratch_bytes(s), qdepthwise_units(s)),
        (_, true) => (qconv_first_scratch_bytes(s), qconv_first_units(s)),
        _ => (qconv_scratch_bytes(s, false), qconv_units(s, false)),
    };
    let mut scratch = bytes(scratch_len);
    let mut y = bytes(n * pad16(oc) * oh * ow);
    let state = RunState::new();
    let lens = [&x, &weights, &bias, &factor, &scratch, &y].map(|b| b.as_slice().len());
    let regions = [
        Region::read(x.as_slice()),
        Region::read(weights.as_slice()),
        Region::read(bias.as_slice()),
        Region::read(factor.as_slice()),
        Region::write(scratch.as_mut_slice()),
        Region::write(y.as_mut_slice()),
    ];
    let cx = Cx::new(&regions, isa, &state, &[]);
    let o = |i: usize| Operand::at(i as u32, 0, lens[i]);
    let (x, weights, bias, factor, y) = (o(0), o(1), o(2), o(3), o(5));
    let (part_begin, part_end, x_zero, x_flip, y_zero, y_low, y_high, y_flip) = (0, units, 7, 0, 100, 0, 255, 0);
    let call: Box<dyn Fn()> = if depthwise {
        #[rustfmt::skip]
        let d = QDepthwise {
            x, weights, bias, factor, scratch: o(4), y, n, c: ic, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl,
            part_begin, part_end, x_zero, x_flip, y_zero, y_low, y_high, y_flip,
        };
        Box::new(move || qdepthwise_b8(&cx, &d))
    } else if first {
        #[rustfmt::skip]
        let d = QConvFirst {
            x, weights, bias, factor, scratch: Some(o(4)), y, n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl,
            part_begin, part_end, x_zero, x_flip, y_zero, y_low, y_high, y_flip,
        };
        Box::new(move || qconv_first_b8(&cx, &d))
    } else {
        let scratch = (scratch_len > 0).then(|| o(4));
        #[rustfmt::skip]
        let d = QConvBlocked {
            x, weights, bias, factor, scratch, y, n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, groups,
            part_begin, part_end, x_zero, x_flip, y_zero, y_low, y_high, y_flip,
        };
        Box::new(move || qconv_blocked_b8(&cx, &d))
    };
    let (mut best, mut best_peak) = (f64::INFINITY, 0.0f64);
    for _ in 0..rounds {
        let start = Instant::now();
        call();
        best = best.min(start.elapsed().as_secs_f64());
        best_peak = best_peak.max(peak());
    }
    assert!(state.fault().is_none());
    (best, best_peak)
}

/// Operations a second of the widest dot product in registers; infinite where there is none.
fn peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx512vnni") {
        // SAFETY: the set is there.
        return unsafe { peak_vnni() };
    }
    f64::INFINITY
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn peak_vnni() -> f64 {
    use std::arch::x86_64::*;
    const N: usize = 20_000;
    let (a, b) = (_mm512_set1_epi8(3), _mm512_set1_epi8(5));
    let mut sums = [_mm512_setzero_si512(); 16];
    let start = Instant::now();
    for _ in 0..N {
        for s in &mut sums {
            *s = _mm512_dpbusd_epi32(*s, std::hint::black_box(a), b);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let total = sums.iter().fold(_mm512_setzero_si512(), |t, s| _mm512_add_epi32(t, *s));
    std::hint::black_box(_mm512_reduce_add_epi32(total));
    (N * 16 * 128) as f64 / seconds
}
