//! The device as its users see it: results, events with the host, faults, many runs, overlap.

use super::{Command, Config, Dma, DmaRate, Npu, Place, Program, SRAM};
use crate::npu_program;
use core::time::Duration;
use kiln_kernels::gemm::int8::{pack_int8_into, packed_int8_len};
use kiln_kernels::{
    Activation, AlignedBytes, BLayout, Cx, Fault, Gemm, GemmInt8, Operand, Region, Unary, UnaryOp, gemm_f32,
    gemm_u8_i32, unary_f32,
};
use std::time::Instant;
use std::vec::Vec;

const MS: u64 = 1_000_000;

fn config(paced: bool) -> Config {
    let rate = DmaRate { bytes_per_s: 1_000_000_000, latency_ns: 0, handshake_ns: 0 };
    Config { sram_bytes: 1 << 16, load: rate, store: Some(rate), n_events: 64, paced }
}

fn load(off: u64, to: u64, bytes: usize) -> Command<'static> {
    Command::Dma(Dma::flat(1, Place::Host { region: 0, off }, Place::Sram(to), bytes))
}

fn store(from: u64, off: u64, bytes: usize) -> Command<'static> {
    Command::Dma(Dma::flat(3, Place::Sram(from), Place::Host { region: 0, off }, bytes))
}

fn floats(memory: &AlignedBytes, off: usize, n: usize) -> Vec<f32> {
    let bytes = &memory.as_slice()[off..off + 4 * n];
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn write_floats(memory: &mut AlignedBytes, off: usize, values: impl IntoIterator<Item = f32>) {
    for (i, v) in values.into_iter().enumerate() {
        memory.as_mut_slice()[off + 4 * i..][..4].copy_from_slice(&v.to_le_bytes());
    }
}

/// `y = -x` over 16 numbers: `x` at 0, `y` at 64.
fn negate(cx: &Cx<'_>) {
    let (x, y) = (Operand::at(SRAM, 0, 64), Operand::at(SRAM, 64, 64));
    unary_f32(cx, &Unary { x, y, n: 16, op: UnaryOp::Neg, a: 0.0, b: 0.0 });
}

fn launch(run: super::Launch<'_>, ns: u64) -> Command<'_> {
    Command::Launch { step: 2, run, ns }
}

/// Load, negate, store: the host's bytes 0..64 to 64..128.
const NEGATE: [&[Command<'static>]; 3] = [
    &[Command::Dma(Dma::flat(1, Place::Host { region: 0, off: 0 }, Place::Sram(0), 64)), Command::Signal(0)],
    &[Command::Wait(0), Command::Launch { step: 2, run: &negate, ns: 0 }, Command::Signal(1)],
    &[
        Command::Wait(1),
        Command::Dma(Dma::flat(3, Place::Sram(64), Place::Host { region: 0, off: 64 }, 64)),
        Command::Signal(2),
    ],
];

fn run(npu: &mut Npu, program: Program<'_>, memory: &mut AlignedBytes) -> Result<(), (u32, Fault)> {
    npu.run(program, &[Region::write(memory.as_mut_slice())], &mut |_| ())
}

#[test]
fn f32_and_int8_products() {
    let (m, n, k) = (5, 32, 24);
    let mut memory = AlignedBytes::zeroed(1 << 14).unwrap();
    let a: Vec<f32> = (0..m * k).map(|i| (i % 7) as f32 - 3.0).collect();
    let b: Vec<f32> = (0..k * n).map(|i| (i % 5) as f32 - 2.0).collect();
    write_floats(&mut memory, 0, a.iter().copied());
    write_floats(&mut memory, 1024, kiln_kernels::gemm::pack::pack_b(&b, k, n, false));
    let packed_len = packed_int8_len(k, n);
    let (mut packed, mut sums) = (std::vec![0i8; packed_len], std::vec![0i32; n]);
    let (a8, b8): (Vec<u8>, Vec<u8>) =
        ((0..m * k).map(|i| (i * 37) as u8).collect(), (0..k * n).map(|i| (i * 11) as u8).collect());
    assert!(pack_int8_into(&mut packed, &mut sums, &b8, [k, n], n, false, true));
    memory.as_mut_slice()[8192..][..m * k].copy_from_slice(&a8);
    for (to, p) in memory.as_mut_slice()[8320..].iter_mut().zip(&packed) {
        *to = *p as u8;
    }
    for (to, s) in memory.as_mut_slice()[10240..].chunks_exact_mut(4).zip(&sums) {
        to.copy_from_slice(&s.to_le_bytes());
    }
    let at = |off: u64, bytes: usize| Operand::at(SRAM, off, bytes);
    let gemm = Gemm {
        a: at(0, 4 * m * k),
        b: at(1024, 4 * k * n),
        bias: None,
        residual: None,
        c: at(4096, 4 * m * n),
        scratch: None,
        m,
        n,
        k,
        lda: k,
        ldb: 0,
        ldc: n,
        ld_residual: n,
        batch: [1, 1],
        a_batch: [0; 2],
        b_batch: [0; 2],
        c_batch: [0; 2],
        residual_batch: [0; 2],
        b_layout: BLayout::Packed,
        activation: Activation::None,
        share: [0, 1],
    };
    let int8 = GemmInt8 {
        a: at(8192, m * k),
        b: at(8320, packed_len),
        b_sums: at(10240, 4 * n),
        a_zero: None,
        b_zero: None,
        bias: None,
        a_scale: None,
        b_scale: None,
        c_scale: None,
        c_zero: None,
        bias_f32: None,
        c: at(12288, 4 * m * n),
        m,
        n,
        k,
        lda: k,
        ldc: n,
        activation: Activation::None,
        share: [0, 1],
    };
    let run_f32 = |cx: &Cx<'_>| gemm_f32(cx, &gemm);
    let run_int8 = |cx: &Cx<'_>| gemm_u8_i32(cx, &int8);
    let loads = [load(0, 0, 4096), load(8192, 8192, 4096), Command::Signal(0)];
    let compute = [Command::Wait(0), launch(&run_f32, 0), launch(&run_int8, 0), Command::Signal(1)];
    let stores = [Command::Wait(1), store(4096, 4096, 4 * m * n), store(12288, 12288, 4 * m * n)];
    let mut npu = Npu::new(config(false)).unwrap();
    run(&mut npu, npu_program!(2, [&loads, &compute, &stores]), &mut memory).unwrap();
    let (y, y8) = (floats(&memory, 4096, m * n), &memory.as_slice()[12288..]);
    for i in 0..m {
        for j in 0..n {
            let want: f32 = (0..k).map(|p| a[i * k + p] * b[p * n + j]).sum();
            assert_eq!(y[i * n + j], want);
            let want: i32 = (0..k).map(|p| i32::from(a8[i * k + p]) * i32::from(b8[p * n + j] as i8)).sum();
            assert_eq!(i32::from_le_bytes(y8[4 * (i * n + j)..][..4].try_into().unwrap()), want);
        }
    }
    assert_eq!(npu.counters().launches, 2);
    assert_eq!(npu.counters().dma_bytes, (2 * 4096 + 2 * 4 * m * n) as u64);
}

#[test]
fn rows_are_strided_on_both_sides() {
    let mut memory = AlignedBytes::zeroed(1024).unwrap();
    (0..=255).for_each(|i| memory.as_mut_slice()[i as usize] = i as u8);
    let host = |off| Place::Host { region: 0, off };
    let gather =
        Dma { rows: 4, row_bytes: 8, from_stride: 64, to_stride: 8, ..Dma::flat(1, host(16), Place::Sram(0), 0) };
    let scatter = Dma { from: Place::Sram(0), to: host(512), from_stride: 8, to_stride: 32, ..gather };
    let loads = [Command::Dma(gather), Command::Dma(scatter)];
    let mut npu = Npu::new(Config { store: None, ..config(false) }).unwrap();
    run(&mut npu, npu_program!(0, [&loads, &[], &[]]), &mut memory).unwrap();
    for row in 0..4 {
        let want: Vec<u8> = (0..8).map(|i| (16 + row * 64 + i) as u8).collect();
        assert_eq!(memory.as_slice()[512 + row * 32..][..8], want);
        assert!(memory.as_slice()[520 + row * 32..][..24].iter().all(|&b| b == 0));
    }
}

/// The host makes the input while the device waits, and waits for the result.
#[test]
fn host_and_device_wait_for_each_other() {
    let mut memory = AlignedBytes::zeroed(128).unwrap();
    let mut npu = Npu::new(config(false)).unwrap();
    let queues: [Vec<Command<'_>>; 3] = [
        std::iter::once(Command::Wait(3)).chain(NEGATE[0].iter().copied()).collect(),
        NEGATE[1].to_vec(),
        NEGATE[2].to_vec(),
    ];
    let program = npu_program!(4, [&queues[0], &queues[1], &queues[2]]);
    for pause_ms in [0, 0, 3] {
        let mut waited = false;
        npu.run(program, &[Region::write(memory.as_mut_slice())], &mut |host| {
            std::thread::sleep(Duration::from_millis(pause_ms));
            let (x, y) = (Operand::at(0, 64, 64), Operand::at(0, 0, 64));
            unary_f32(host.cx(), &Unary { x, y, n: 16, op: UnaryOp::Neg, a: 0.0, b: 0.0 });
            host.signal(3);
            waited = host.wait(2);
        })
        .unwrap();
        assert!(waited);
        write_floats(&mut memory, 64, (0..16).map(|i| i as f32 + pause_ms as f32));
        run_negate_of_negate(&mut npu, program, &mut memory);
    }
}

fn run_negate_of_negate(npu: &mut Npu, program: Program<'_>, memory: &mut AlignedBytes) {
    let before = floats(memory, 64, 16);
    npu.run(program, &[Region::write(memory.as_mut_slice())], &mut |host| {
        let (x, y) = (Operand::at(0, 64, 64), Operand::at(0, 0, 64));
        unary_f32(host.cx(), &Unary { x, y, n: 16, op: UnaryOp::Neg, a: 0.0, b: 0.0 });
        host.signal(3);
    })
    .unwrap();
    assert_eq!(floats(memory, 64, 16), before);
    assert_eq!(floats(memory, 0, 16), before.iter().map(|v| -v).collect::<Vec<_>>());
}

#[test]
fn faults_and_panics_drain_and_the_next_run_is_right() {
    let mut memory = AlignedBytes::zeroed(128).unwrap();
    write_floats(&mut memory, 0, (0..16).map(|i| i as f32));
    let mut npu = Npu::new(config(false)).unwrap();
    let fails = |cx: &Cx<'_>| cx.fail(Fault::DivisionByZero);
    let panics = |_: &Cx<'_>| panic!("a kernel's panic, for the test");
    // The host's memory is not addressable from the device: there is no second region.
    let escapes = |cx: &Cx<'_>| {
        let (x, y) = (Operand::at(1, 0, 64), Operand::at(SRAM, 64, 64));
        unary_f32(cx, &Unary { x, y, n: 16, op: UnaryOp::Neg, a: 0.0, b: 0.0 });
    };
    let outside = |cx: &Cx<'_>| {
        let (x, y) = (Operand::at(SRAM, (1 << 16) - 32, 64), Operand::at(SRAM, 64, 64));
        unary_f32(cx, &Unary { x, y, n: 16, op: UnaryOp::Neg, a: 0.0, b: 0.0 });
    };
    let kernels: [(super::Launch<'_>, Fault); 4] = [
        (&fails, Fault::DivisionByZero),
        (&panics, Fault::Panicked),
        (&escapes, Fault::Descriptor),
        (&outside, Fault::Descriptor),
    ];
    for (kernel, fault) in kernels {
        let compute = [Command::Wait(0), launch(kernel, 0), Command::Signal(1)];
        let program = npu_program!(3, [NEGATE[0], &compute, NEGATE[2]]);
        let mut told = true;
        let result = npu.run(program, &[Region::write(memory.as_mut_slice())], &mut |host| told = host.wait(2));
        assert_eq!((result, told), (Err((2, fault)), false));
        memory.as_mut_slice()[64..].fill(0);
        run(&mut npu, npu_program!(3, NEGATE), &mut memory).unwrap();
        assert_eq!(floats(&memory, 64, 16)[15], -15.0);
    }
    for bad in [load(100, 0, 64), load(0, (1 << 16) - 8, 64), store(0, 100, 64)] {
        let loads = [bad];
        let result = run(&mut npu, npu_program!(1, [&loads, &[], &[]]), &mut memory);
        assert_eq!(result.unwrap_err().1, Fault::Descriptor);
    }
    // A kernel on a DMA engine, a transfer on the compute engine, events that are not there.
    let (kernel, transfer) = ([launch(&negate, 0)], [load(0, 0, 64)]);
    assert!(run(&mut npu, npu_program!(1, [&kernel, &[], &[]]), &mut memory).is_err());
    assert!(run(&mut npu, npu_program!(1, [&[], &transfer, &[]]), &mut memory).is_err());
    assert!(run(&mut npu, npu_program!(65, [&[], &[], &[]]), &mut memory).is_err());
    // Read-only memory is not stored to.
    let stored = npu.run(npu_program!(3, NEGATE), &[Region::read(memory.as_slice())], &mut |_| ());
    assert_eq!(stored, Err((3, Fault::Descriptor)));
    // The host's own panic.
    let result =
        npu.run(npu_program!(3, NEGATE), &[Region::write(memory.as_mut_slice())], &mut |_| panic!("on the host"));
    assert_eq!(result, Err((0, Fault::Panicked)));
    run(&mut npu, npu_program!(3, NEGATE), &mut memory).unwrap();
}

#[test]
fn thousands_of_runs() {
    let mut memory = AlignedBytes::zeroed(128).unwrap();
    let mut npu = Npu::new(config(false)).unwrap();
    for i in 0..3000 {
        write_floats(&mut memory, 0, [i as f32; 16]);
        run(&mut npu, npu_program!(3, NEGATE), &mut memory).unwrap();
        assert_eq!(floats(&memory, 64, 16), [-(i as f32); 16]);
    }
    assert_eq!(npu.counters().launches, 3000);
}

/// Loads of 4 ms beside computing of 4 ms. Only what noise cannot undo is asserted: nothing is faster than the rates
/// allow, and the second buffer saves time in the best of some tries.
#[test]
fn transfers_overlap_with_computing() {
    let work = |cx: &Cx<'_>| negate(cx);
    let n = 6u32;
    let tile = 4 * MS;
    let rate = DmaRate { bytes_per_s: 1_000_000_000, latency_ns: tile - 64, handshake_ns: 0 };
    let mut npu = Npu::new(Config { load: rate, ..config(true) }).unwrap();
    let mut memory = AlignedBytes::zeroed(64).unwrap();
    let mut best = [u64::MAX; 2];
    for (buffers, best) in [1, 2].into_iter().zip(&mut best) {
        let mut loads = Vec::new();
        let mut compute = Vec::new();
        for i in 0..n {
            if i >= buffers {
                loads.push(Command::Wait(n + i - buffers));
            }
            loads.extend([load(0, 1024 + 64 * u64::from(i % buffers), 64), Command::Signal(i)]);
            compute.extend([Command::Wait(i), launch(&work, tile), Command::Signal(n + i)]);
        }
        for _ in 0..5 {
            let begin = Instant::now();
            run(&mut npu, npu_program!(2 * n, [&loads, &compute, &[]]), &mut memory).unwrap();
            *best = (*best).min(begin.elapsed().as_nanos() as u64);
        }
    }
    let [one, two] = best;
    assert!(one >= 48 * MS && two >= 28 * MS, "faster than the device: {one} {two}");
    assert!(two < one - 4 * MS, "no overlap: {one} {two}");
}
