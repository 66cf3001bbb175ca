//! This machine's rates as a target file: arithmetic by element type, memory, start of a kernel, a hand-over between threads.
//!
//! Each rate is the best of several rounds: what the machine can do, not what else it was doing. f32 is the peak of
//! independent multiply-adds; f64 and 8-bit integers are what the matrix kernels reach on operands that stay in cache.

use kiln_kernels::isa::Isa;
use kiln_kernels::peak::{FLOPS_PER_ROUND, multiply_add_rounds};
use kiln_kernels::{Activation, AlignedBytes, Cx, GemmInt8, MatMul, Operand, Region, RunState, Unary, UnaryOp};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rates {
    /// Multiply-accumulates a second.
    pub f32: u64,
    /// The same in f64.
    pub f64: u64,
    /// The same of 8-bit integers.
    pub i8: u64,
    /// Bytes a second, read and written.
    pub memory: u64,
    /// Start of a kernel.
    pub launch_ns: u64,
    /// From a signal of one thread to the end of another's wait.
    pub sync_ns: u64,
    /// Size of the memory that a model may use: set, not measured.
    pub capacity_bytes: u64,
}

/// Rounds of multiply-adds.
const MULTIPLY_ADDS: u64 = 1 << 18;
/// Rounds of each measurement.
const ROUNDS: usize = 7;

/// Measures everything: about a second.
pub(super) fn rates() -> Result<Rates, String> {
    let isa = Isa::detect();
    // The count is opaque, or the loop would be computed when this is compiled.
    let f32 = per_second(MULTIPLY_ADDS * FLOPS_PER_ROUND / 2, || {
        std::hint::black_box(multiply_add_rounds(isa, std::hint::black_box(MULTIPLY_ADDS)));
    });
    Ok(Rates {
        f32,
        f64: matmul_f64(isa)?,
        i8: gemm_int8(isa)?,
        memory: memory()?,
        launch_ns: launch_ns(isa)?,
        sync_ns: sync_ns(),
        // A bound for plans, not a measurement.
        capacity_bytes: 8 << 30,
    })
}

/// The best rate of some rounds.
pub(super) fn per_second(amount: u64, mut work: impl FnMut()) -> u64 {
    let best = (0..ROUNDS).map(|_| {
        let begin = Instant::now();
        work();
        u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    });
    let ns = best.min().unwrap_or(1);
    u64::try_from(u128::from(amount) * 1_000_000_000 / u128::from(ns)).unwrap_or(u64::MAX).max(1)
}

/// Calls a kernel over one region of zeros.
fn on_zeros(bytes: usize, isa: Isa, mut run: impl FnMut(&Cx<'_>)) -> Result<(), String> {
    let mut memory = AlignedBytes::zeroed(bytes).ok_or("no memory to measure with")?;
    let state = RunState::new();
    let regions = [Region::write(memory.as_mut_slice())];
    let cx = Cx::new(&regions, isa, &state, &[]);
    run(&cx);
    match state.fault() {
        None => Ok(()),
        Some((_, fault)) => Err(format!("a kernel failed while it was measured: {}", fault.message())),
    }
}

/// Rows of the products.
const M: usize = 64;
/// Columns.
const N: usize = 256;
/// Depth.
const K: usize = 256;

fn matmul_f64(isa: Isa) -> Result<u64, String> {
    let (a, b, c) = (M * K * 8, K * N * 8, M * N * 8);
    let d = MatMul {
        a: Operand::at(0, 0, a),
        b: Operand::at(0, a as u64, b),
        c: Operand::at(0, (a + b) as u64, c),
        m: M,
        n: N,
        k: K,
        lda: K,
        ldb: N,
        ldc: N,
        batch: [1, 1],
        a_batch: [0; 2],
        b_batch: [0; 2],
        c_batch: [0; 2],
    };
    let mut rate = 0;
    on_zeros(a + b + c, isa, |cx| rate = per_second((M * N * K) as u64, || kiln_kernels::matmul_f64(cx, &d)))?;
    Ok(rate)
}

fn gemm_int8(isa: Isa) -> Result<u64, String> {
    let (a, b, sums, c) = (M * K, K * N, N * 4, M * N * 4);
    let at = |off: usize, bytes: usize| Operand::at(0, off as u64, bytes);
    let d = GemmInt8 {
        a: at(0, a),
        b: at(a, b),
        b_sums: at(a + b, sums),
        a_zero: None,
        b_zero: None,
        bias: None,
        a_scale: None,
        b_scale: None,
        c_scale: None,
        c_zero: None,
        bias_f32: None,
        c: at(a + b + sums, c),
        m: M,
        n: N,
        k: K,
        lda: K,
        ldc: N,
        activation: Activation::None,
        share: [0, 1],
    };
    let many = |cx: &Cx<'_>| (0..16).for_each(|_| kiln_kernels::gemm_u8_i32(cx, &d));
    let mut rate = 0;
    on_zeros(a + b + sums + c, isa, |cx| rate = per_second((16 * M * N * K) as u64, || many(cx)))?;
    Ok(rate)
}

/// Copies what no cache holds.
fn memory() -> Result<u64, String> {
    const BYTES: usize = 128 << 20;
    let from = AlignedBytes::copy_of(&vec![1u8; BYTES]).ok_or("no memory to measure with")?;
    let mut to = AlignedBytes::copy_of(from.as_slice()).ok_or("no memory to measure with")?;
    Ok(per_second(2 * BYTES as u64, || to.as_mut_slice().copy_from_slice(std::hint::black_box(from.as_slice()))))
}

/// Bytes a second that an element-wise kernel reads and writes in the nearest cache.
pub(super) fn cache_bytes_per_s(isa: Isa) -> Result<u64, String> {
    // Both operands together take half of the smallest first-level cache in use.
    const BYTES: usize = 8 << 10;
    const CALLS: usize = 1000;
    let (x, y) = (Operand::at(0, 0, BYTES), Operand::at(0, BYTES as u64, BYTES));
    let d = Unary { x, y, n: BYTES / 4, op: UnaryOp::Neg, a: 0.0, b: 0.0 };
    let mut rate = 1;
    let many = |cx: &Cx<'_>| (0..CALLS).for_each(|_| kiln_kernels::unary_f32(cx, &d));
    on_zeros(2 * BYTES, isa, |cx| rate = per_second((2 * BYTES * CALLS) as u64, || many(cx)))?;
    Ok(rate)
}

fn launch_ns(isa: Isa) -> Result<u64, String> {
    let d = Unary { x: Operand::at(0, 0, 4), y: Operand::at(0, 64, 4), n: 1, op: UnaryOp::Neg, a: 0.0, b: 0.0 };
    let mut calls = 1;
    let many = |cx: &Cx<'_>| (0..10_000).for_each(|_| kiln_kernels::unary_f32(cx, &d));
    on_zeros(128, isa, |cx| calls = per_second(10_000, || many(cx)))?;
    Ok((1_000_000_000 / calls).max(1))
}

/// Two threads hand a number back and forth.
fn sync_ns() -> u64 {
    const TURNS: u64 = 2_000;
    let (there, back) = (AtomicU64::new(0), AtomicU64::new(0));
    let wait = |counter: &AtomicU64, turn: u64| {
        let mut looks = 0u32;
        while counter.load(Ordering::Acquire) < turn {
            looks += 1;
            if looks.is_multiple_of(1024) {
                std::thread::yield_now();
            }
        }
    };
    let rate = per_second(2 * TURNS, || {
        [&there, &back].iter().for_each(|counter| counter.store(0, Ordering::Release));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 1..=TURNS {
                    wait(&there, turn);
                    back.store(turn, Ordering::Release);
                }
            });
            for turn in 1..=TURNS {
                there.store(turn, Ordering::Release);
                wait(&back, turn);
            }
        });
    });
    (1_000_000_000 / rate).max(1)
}

/// The target file.
pub(super) fn text(r: &Rates) -> String {
    let Rates { f32, f64, i8, memory, launch_ns, sync_ns, capacity_bytes } = r;
    format!(
        "# This machine, as `kilnc target measure` found it: one CPU, no transitions. (capacity_bytes is set, not measured.)\n\
         name = \"measured\"\nhost = \"cpu\"\n\n\
         [[memory]]\nname = \"dram\"\ncapacity_bytes = {capacity_bytes}\nbytes_per_s = {memory}\nalignment_bytes = 64\n\n\
         [[device]]\nname = \"cpu\"\nep = \"cpu\"\nmemory = \"dram\"\nstreams = 1\nlaunch_ns = {launch_ns}\nsync_ns = {sync_ns}\n\
         mac_per_s = {{ f32 = {f32}, f64 = {f64}, i8 = {i8}, u8 = {i8} }}\n\
         dtypes = [\"f32\", \"f16\", \"bf16\", \"f64\", \"i8\", \"u8\", \"i16\", \"u16\", \"i32\", \"u32\", \"i64\", \"u64\", \"bool\", \"string\"]\n\
         layouts = [\"plain\", \"blocked16\"]\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::target::Target;

    #[test]
    fn a_measured_file_is_a_target() {
        let rates = rates().unwrap();
        // No core does a million multiply-adds in a nanosecond.
        assert!(rates.f32 < 1_000_000_000_000_000 && rates.i8 < 1_000_000_000_000_000, "{rates:?}");
        assert!(rates.f32 > 1_000_000 && rates.i8 > 1_000_000 && rates.memory > 1_000_000, "{rates:?}");
        let target = Target::parse(&text(&rates), "measured").unwrap_or_else(|e| panic!("{e}"));
        let f32 = target.dtype_named("f32").unwrap();
        assert_eq!(target.device(target.host).rate(f32), rates.f32);
        assert_eq!(target.memories[0].bytes_per_s, rates.memory);
    }
}
