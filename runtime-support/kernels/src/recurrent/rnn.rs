//! RNN: one gate.

use super::cell::{CellElem, Extents, Lengths, add_gates, matrix_len};
use super::function::CellActivation;
use crate::gemm::BLayout;
use crate::{Fault, Isa, kernel};

kernel! {
    /// One direction of an RNN. `r` is `[hidden, hidden]`, packed or as in the model; `bias` W's then R's.
    /// Scratch: one row per batch entry, then what a product with R needs.
    pub struct Rnn {
        operands {
            read gates: T, read r: T, opt bias: T, opt initial_h: T, opt lens: I,
            update y: T, update y_h: T, write scratch: T,
        }
        nums {
            steps, batch, hidden, gate_step, gate_batch, y_start, y_step, y_batch, h_start, h_batch,
        }
        params { layout: BLayout, reverse: bool, clip: f32, f: CellActivation }
    }
    entries { rnn_f32 { T = f32, I = i32 } rnn_f64 { T = f64, I = i32 } }
    body = rnn;
}

fn rnn<T: CellElem>(
    isa: Isa,
    d: &Rnn,
    gates: &[T],
    r: &[T],
    bias: Option<&[T]>,
    initial_h: Option<&[T]>,
    lens: Option<&[i32]>,
    y: &mut [T],
    y_h: &mut [T],
    scratch: &mut [T],
) -> Result<(), Fault> {
    let n = d.hidden;
    let e = Extents {
        steps: d.steps,
        batch: d.batch,
        hidden: n,
        gates: 1,
        gate_step: d.gate_step,
        gate_batch: d.gate_batch,
        y_start: d.y_start,
        y_step: d.y_step,
        y_batch: d.y_batch,
        h_start: d.h_start,
        h_batch: d.h_batch,
        reverse: d.reverse,
        layout: d.layout,
    };
    let lengths = Lengths {
        gates: gates.len(),
        r: r.len(),
        bias: bias.map(<[T]>::len),
        lens,
        y: y.len(),
        states: [initial_h.map(<[T]>::len), Some(y_h.len()), None, None],
        scratch: scratch.len(),
    };
    e.check(&lengths, n)?;
    if matrix_len(d.layout, n, n) != r.len() {
        return Err(Fault::Descriptor);
    }
    if n == 0 || d.batch == 0 {
        return Ok(());
    }
    e.begin(lens, y, [Some((&mut *y_h, initial_h)), None])?;
    let (rows, product_scratch) = scratch.split_at_mut(d.batch * n);
    for i in 0..d.steps {
        let shape = [d.batch, n, n];
        if !T::product(isa, d.layout, shape, &y_h[d.h_start..], d.h_batch, r, rows, product_scratch) {
            return Err(Fault::Descriptor);
        }
        for (b, row) in rows.chunks_exact_mut(n).enumerate() {
            let len = e.len_of(lens, b)?;
            if i >= len {
                continue;
            }
            let t = e.time(i, len);
            add_gates(row, &gates[e.gate_at(t, b)..][..n], bias, 0);
            T::apply(isa, d.f, d.clip, row);
            y_h[e.h_at(b)..][..n].copy_from_slice(row);
            y[e.y_at(t, b)..][..n].copy_from_slice(row);
        }
    }
    Ok(())
}
