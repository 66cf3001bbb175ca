//! Times reductions, softmax, normalisations, attention and an LSTM on this machine, best and median of many runs.
//!
//! `cargo run --release -p kiln-kernels --example bench_norm`

use kiln_kernels::*;
use std::hint::black_box;
use std::time::Instant;

/// Memory of `f32`s as one region, operands one after the other.
struct Memory {
    data: AlignedF32,
    next: usize,
}

struct AlignedF32(Vec<f32>);

impl Memory {
    fn new(len: usize) -> Self {
        let data = (0..len).map(|i| ((i * 2_654_435_761) % 1000) as f32 * 0.004 - 2.0).collect();
        Self { data: AlignedF32(data), next: 0 }
    }

    fn take(&mut self, len: usize) -> Operand {
        let o = Operand::at(0, (self.next * 4) as u64, len * 4);
        self.next += len.next_multiple_of(16);
        assert!(self.next <= self.data.0.len());
        o
    }

    fn time(&mut self, name: &str, work: f64, unit: &str, run: &dyn Fn(&Cx<'_>)) {
        // SAFETY: f32 has no padding and every byte pattern is valid.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(self.data.0.as_mut_ptr().cast::<u8>(), self.data.0.len() * 4) };
        let regions = [Region::write(bytes)];
        let state = RunState::new();
        let cx = Cx::new(&regions, Isa::detect(), &state, &[]);
        let mut times = Vec::new();
        let start = Instant::now();
        while times.len() < 10 || start.elapsed().as_millis() < 300 {
            let t = Instant::now();
            run(black_box(&cx));
            times.push(t.elapsed().as_secs_f64());
        }
        assert_eq!(state.fault(), None, "{name}");
        times.sort_by(f64::total_cmp);
        let (best, median) = (times[0], times[times.len() / 2]);
        println!(
            "{name:40} best {:9.1} us  median {:9.1} us  {:7.1} {unit}",
            best * 1e6,
            median * 1e6,
            work / best / 1e9
        );
    }
}

fn main() {
    for (rows, n) in [(1536, 128), (9000, 1500), (1, 1000), (2048, 49)] {
        let mut m = Memory::new(2 * rows * n + 64);
        let (x, y) = (m.take(rows * n), m.take(rows * n));
        let d = Softmax { x, y, outer: rows, n, inner: 1, log: false };
        m.time(&format!("softmax {rows}x{n}"), (rows * n) as f64, "Gelem/s", &|cx| softmax_f32(cx, &d));
        let r = ReduceRows { x, y: Operand::at(0, y.off, rows * 4), rows, n, op: ReduceOp::Mean };
        m.time(&format!("reduce mean {rows}x{n}"), (rows * n * 4) as f64, "GB/s", &|cx| reduce_rows_f32(cx, &r));
    }
    {
        let (n, inner) = (16, 33600);
        let mut m = Memory::new(2 * n * inner + 64);
        let (x, y) = (m.take(n * inner), m.take(n * inner));
        let d = Softmax { x, y, outer: 1, n, inner, log: false };
        m.time("softmax 16 over 33600 columns", (n * inner) as f64, "Gelem/s", &|cx| softmax_f32(cx, &d));
        let r = ReduceColumns { x, y: Operand::at(0, y.off, inner * 4), outer: 1, n, inner, op: ReduceOp::Max };
        m.time("reduce max 16 over 33600 columns", (n * inner * 4) as f64, "GB/s", &|cx| reduce_columns_f32(cx, &r));
    }
    for (rows, n) in [(128, 768), (1500, 384), (3136, 96)] {
        let mut m = Memory::new(2 * rows * n + 2 * n + 128);
        let (x, y, scale, bias) = (m.take(rows * n), m.take(rows * n), m.take(n), m.take(n));
        let d = LayerNorm {
            x,
            skip: None,
            skip_bias: None,
            scale: Some(scale),
            bias: Some(bias),
            y,
            sum: None,
            mean: None,
            inv_std_dev: None,
            rows,
            n,
            skip_rows: 1,
            scale_step: 0,
            bias_step: 0,
            eps: 1e-5,
            rms: false,
        };
        m.time(&format!("layer norm {rows}x{n}"), (rows * n) as f64, "Gelem/s", &|cx| layer_norm_f32(cx, &d));
    }
    for (heads, queries, keys, size) in
        [(12, 128, 128, 64), (1, 1500, 1500, 64), (6, 1, 448, 64), (8, 77, 77, 64), (6, 1, 1500, 64)]
    {
        let mut m =
            Memory::new(2 * heads * (queries + keys) * size + attention_scratch_len(queries, keys, size, size) + 256);
        let (q, k, v) = (m.take(heads * queries * size), m.take(heads * keys * size), m.take(heads * keys * size));
        let (y, scratch) = (m.take(heads * queries * size), m.take(attention_scratch_len(queries, keys, size, size)));
        let d = Attention {
            q,
            k,
            v,
            mask: None,
            lens: None,
            sink: None,
            y,
            scores: None,
            scratch,
            batch: 1,
            heads,
            kv_heads: heads,
            queries,
            keys,
            head_size: size,
            v_head_size: size,
            q_batch: 0,
            q_head: size,
            q_row: heads * size,
            k_batch: 0,
            k_head: size,
            k_row: heads * size,
            v_batch: 0,
            v_head: size,
            v_row: heads * size,
            y_batch: 0,
            y_head: size,
            y_row: heads * size,
            mask_batch: 0,
            mask_head: 0,
            mask_row: 0,
            mask_keys: 0,
            offset: 0,
            scale: 0.125,
            softcap: 0.0,
            causal: false,
            from_end: false,
            window: [-1, -1],
            stage: ScoreStage::Product,
            wide_softmax: true,
            unseen_nan: false,
            nan_zero: false,
            share: [0, 1],
        };
        let flops = (4 * heads * queries * keys * size) as f64;
        m.time(&format!("attention {heads}x{queries}x{keys}x{size}"), flops, "GFLOP/s", &|cx| attention_f32(cx, &d));
    }
    for (steps, hidden) in [(100, 128), (50, 512)] {
        let mut m = Memory::new(steps * 5 * hidden + 4 * hidden * hidden + 20 * hidden + 1024);
        let (gates, r) = (m.take(steps * 4 * hidden), m.take(4 * hidden * hidden));
        let (y, y_h, y_c, scratch) = (m.take(steps * hidden), m.take(hidden), m.take(hidden), m.take(5 * hidden));
        let f = |function| CellActivation { function, alpha: 0.0, beta: 0.0 };
        let d = Lstm {
            gates,
            r,
            bias: None,
            peepholes: None,
            initial_h: None,
            initial_c: None,
            lens: None,
            y,
            y_h,
            y_c,
            scratch,
            steps,
            batch: 1,
            hidden,
            gate_step: 4 * hidden,
            gate_batch: 4 * hidden,
            y_start: 0,
            y_step: hidden,
            y_batch: hidden,
            h_start: 0,
            h_batch: hidden,
            layout: BLayout::Packed,
            reverse: false,
            input_forget: false,
            clip: f32::INFINITY,
            f: f(CellFunction::Sigmoid),
            g: f(CellFunction::Tanh),
            h: f(CellFunction::Tanh),
        };
        let flops = (steps * 8 * hidden * hidden) as f64;
        m.time(&format!("lstm {steps} steps of {hidden}"), flops, "GFLOP/s", &|cx| lstm_f32(cx, &d));
    }
}
