//! Speed of the element-wise kernels on 256 KiB operands (in L2), beside a plain copy of the same size.
//!
//! `cargo run --release -p kiln-kernels --example bench_elementwise [FILTER]`. Out: nanoseconds per element and, counting
//! each operand and the result once, GB/s; best and median of many runs.
use kiln_kernels::{
    Binary, BinaryOp, Cast, Clip, Compare, CompareOp, CopyNd, Cx, Isa, MathOp, Operand, Region, RunState, Select,
    Unary, UnaryMath, UnaryOp,
};
use std::time::Instant;

/// Elements of a result.
const N: usize = 1 << 16;
const BYTES: usize = N * 4;

fn at(mem: u32, bytes: usize) -> Operand {
    Operand::at(mem, 0, bytes)
}

fn extents(inner: [usize; 3]) -> [usize; 8] {
    [1, 1, 1, 1, 1, inner[0], inner[1], inner[2]]
}

fn strides(inner: [usize; 3]) -> [usize; 8] {
    [0, 0, 0, 0, 0, inner[0], inner[1], inner[2]]
}

struct Bench {
    filter: String,
    memory: Vec<Vec<u64>>,
}

impl Bench {
    fn run(&mut self, name: &str, bytes: usize, call: &dyn Fn(&Cx<'_>)) {
        if !name.contains(&self.filter) {
            return;
        }
        let state = RunState::new();
        let slices = self.memory.iter_mut().map(|m| {
            // SAFETY: u64 has no padding, and any bytes are valid.
            unsafe { std::slice::from_raw_parts_mut(m.as_mut_ptr().cast::<u8>(), m.len() * 8) }
        });
        let regions: Vec<_> = slices.map(Region::write).collect();
        let cx = Cx::new(&regions, Isa::detect(), &state, &[]);
        let mut times: Vec<f64> = (0..2000)
            .map(|_| {
                let start = Instant::now();
                call(&cx);
                start.elapsed().as_nanos() as f64
            })
            .collect();
        assert_eq!(state.fault(), None, "{name}");
        times.sort_by(f64::total_cmp);
        let (best, median) = (times[0], times[times.len() / 2]);
        println!(
            "{name:28} {:7.3} ns/element  {:6.1} GB/s   median {:7.3} ns/element",
            best / N as f64,
            bytes as f64 / best,
            median / N as f64
        );
    }
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let floats: Vec<u64> = (0..BYTES as u64 / 8)
        .map(|i| {
            let f = |k: u64| u64::from(((i * 2 + k) as f32 * 0.37 % 8.0 - 4.0).to_bits());
            f(0) | f(1) << 32
        })
        .collect();
    let truths = vec![0x0001_0001_0100_0001u64; N / 8];
    let mut b = Bench { filter, memory: vec![floats.clone(), floats, vec![0; BYTES / 8], truths] };
    b.run("copy", 2 * BYTES, &|cx| {
        let (dims, s) = (extents([1, 1, N]), strides([0, 0, 1]));
        let d = CopyNd { x: at(0, BYTES), y: at(2, BYTES), x_start: 0, y_start: 0, dims, x_strides: s, y_strides: s };
        kiln_kernels::copy_nd_b32(cx, &d);
    });
    for (name, dims, a, b_strides, b_elements) in [
        ("equal shapes", [1, 1, N], [0, 0, 1], [0, 0, 1], N),
        ("scalar", [1, 1, N], [0, 0, 1], [0, 0, 0], 1),
        ("row of 512", [1, 128, 512], [0, 512, 1], [0, 0, 1], 512),
        ("row of 16", [1, N / 16, 16], [0, 16, 1], [0, 0, 1], 16),
        ("row of 5", [1, N / 5, 5], [0, 5, 1], [0, 0, 1], 5),
        ("channels × 196", [1, 334, 196], [0, 196, 1], [0, 1, 0], 334),
        ("blocked channels × 64", [64, 64, 16], [1024, 16, 1], [16, 0, 1], 1024),
    ] {
        let n = dims.iter().product::<usize>();
        let op = BinaryOp::Add;
        let d = Binary {
            a: at(0, n * 4),
            b: at(1, b_elements * 4),
            y: at(2, n * 4),
            dims: extents(dims),
            a_strides: strides(a),
            b_strides: strides(b_strides),
            op,
        };
        b.run(&format!("add {name}"), (2 * n + b_elements) * 4, &|cx| kiln_kernels::binary_f32(cx, &d));
        let c = Compare {
            a: d.a,
            b: d.b,
            y: at(2, n),
            dims: d.dims,
            a_strides: d.a_strides,
            b_strides: d.b_strides,
            op: CompareOp::Less,
        };
        b.run(&format!("less {name}"), (n + b_elements) * 4 + n, &|cx| kiln_kernels::compare_f32(cx, &c));
    }
    for (name, c, a_elements) in [("where, scalar", [0, 0, 1], 1), ("where", [0, 0, 1], N)] {
        let step = usize::from(a_elements > 1);
        let d = Select {
            c: at(3, N),
            a: at(0, a_elements * 4),
            b: at(1, BYTES),
            y: at(2, BYTES),
            dims: extents([1, 1, N]),
            c_strides: strides(c),
            a_strides: strides([0, 0, step]),
            b_strides: strides([0, 0, 1]),
        };
        b.run(name, N + a_elements * 4 + 2 * BYTES, &|cx| kiln_kernels::select_b32(cx, &d));
    }
    for op in [UnaryOp::Relu, UnaryOp::Sqrt, UnaryOp::HardSwish] {
        let d = Unary { x: at(0, BYTES), y: at(2, BYTES), n: N, op, a: 0.0, b: 0.0 };
        b.run(&format!("{op:?}"), 2 * BYTES, &|cx| kiln_kernels::unary_f32(cx, &d));
    }
    for op in [
        MathOp::Exp,
        MathOp::Log,
        MathOp::Sigmoid,
        MathOp::Tanh,
        MathOp::Erf,
        MathOp::Gelu,
        MathOp::GeluTanh,
        MathOp::Swish,
        MathOp::Softplus,
        MathOp::Mish,
        MathOp::Elu,
        MathOp::Sin,
        MathOp::Tan,
    ] {
        let d = UnaryMath { x: at(0, BYTES), y: at(2, BYTES), n: N, op, a: 1.0, b: 1.0 };
        b.run(&format!("{op:?}"), 2 * BYTES, &|cx| kiln_kernels::unary_math_f32(cx, &d));
    }
    let d = UnaryMath { x: at(0, N * 2), y: at(2, N * 2), n: N, op: MathOp::Exp, a: 1.0, b: 1.0 };
    b.run("Exp f16", 4 * N, &|cx| kiln_kernels::unary_math_f16(cx, &d));
    let bounds = at(1, 4);
    let d = Clip { x: at(0, BYTES), lo: Some(bounds), hi: Some(bounds), y: at(2, BYTES), n: N };
    b.run("clip", 2 * BYTES, &|cx| kiln_kernels::clip_f32(cx, &d));
    let d = |x: usize, y: usize| Cast { x: at(0, N * x), y: at(2, N * y), n: N };
    b.run("cast f32 f16", 6 * N, &|cx| kiln_kernels::cast_f32_f16(cx, &d(4, 2)));
    b.run("cast f16 f32", 6 * N, &|cx| kiln_kernels::cast_f16_f32(cx, &d(2, 4)));
    b.run("cast f32 bf16", 6 * N, &|cx| kiln_kernels::cast_f32_bf16(cx, &d(4, 2)));
    b.run("cast u8 f32", 5 * N, &|cx| kiln_kernels::cast_u8_f32(cx, &d(1, 4)));
    b.run("cast f32 i32", 8 * N, &|cx| kiln_kernels::cast_f32_i32(cx, &d(4, 4)));
    b.run("cast f32 u8", 5 * N, &|cx| kiln_kernels::cast_f32_u8(cx, &d(4, 1)));
}
