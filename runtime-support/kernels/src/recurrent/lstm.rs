//! LSTM: gates i, o, f, c, with peepholes from the cell state.

use super::cell::{CellElem, Extents, Lengths, add_gates, matrix_len};
use super::function::CellActivation;
use crate::gemm::BLayout;
use crate::{Fault, Isa, kernel};

kernel! {
    /// One direction of an LSTM. `r` is `[4·hidden, hidden]`, packed or as in the model; `bias` W's then R's;
    /// `peepholes` i, o, f. Scratch: four gates per batch entry and one row, then what a product with R needs.
    pub struct Lstm {
        operands {
            read gates: T, read r: T, opt bias: T, opt peepholes: T, opt initial_h: T, opt initial_c: T, opt lens: I,
            update y: T, update y_h: T, update y_c: T, write scratch: T,
        }
        nums {
            steps, batch, hidden, gate_step, gate_batch, y_start, y_step, y_batch, h_start, h_batch,
        }
        params {
            layout: BLayout, reverse: bool, input_forget: bool, clip: f32,
            f: CellActivation, g: CellActivation, h: CellActivation,
        }
    }
    entries { lstm_f32 { T = f32, I = i32 } lstm_f64 { T = f64, I = i32 } }
    body = lstm;
}

fn lstm<T: CellElem>(
    isa: Isa,
    d: &Lstm,
    gates: &[T],
    r: &[T],
    bias: Option<&[T]>,
    peepholes: Option<&[T]>,
    initial_h: Option<&[T]>,
    initial_c: Option<&[T]>,
    lens: Option<&[i32]>,
    y: &mut [T],
    y_h: &mut [T],
    y_c: &mut [T],
    scratch: &mut [T],
) -> Result<(), Fault> {
    let n = d.hidden;
    let e = Extents {
        steps: d.steps,
        batch: d.batch,
        hidden: n,
        gates: 4,
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
        states: [initial_h.map(<[T]>::len), initial_c.map(<[T]>::len), Some(y_h.len()), Some(y_c.len())],
        scratch: scratch.len(),
    };
    let width = n.checked_mul(4).ok_or(Fault::Descriptor)?;
    e.check(&lengths, width.checked_add(n).ok_or(Fault::Descriptor)?)?;
    if peepholes.is_some_and(|p| n.checked_mul(3) != Some(p.len())) || matrix_len(d.layout, width, n) != r.len() {
        return Err(Fault::Descriptor);
    }
    if n == 0 || d.batch == 0 {
        return Ok(());
    }
    e.begin(lens, y, [Some((&mut *y_h, initial_h)), Some((&mut *y_c, initial_c))])?;
    let (rows, rest) = scratch.split_at_mut(d.batch * width);
    let (temporary, product_scratch) = rest.split_at_mut(d.batch * n);
    let temporary = &mut temporary[..n];
    let peephole = |i: usize| peepholes.map(|p| &p[i * n..][..n]);
    for i in 0..d.steps {
        let shape = [d.batch, width, n];
        if !T::product(isa, d.layout, shape, &y_h[d.h_start..], d.h_batch, r, rows, product_scratch) {
            return Err(Fault::Descriptor);
        }
        for (b, row) in rows.chunks_exact_mut(width).enumerate() {
            let len = e.len_of(lens, b)?;
            if i >= len {
                continue;
            }
            let t = e.time(i, len);
            add_gates(row, &gates[e.gate_at(t, b)..][..width], bias, 0);
            let c_state = &mut y_c[e.h_at(b)..][..n];
            let (input, rest) = row.split_at_mut(n);
            let (output, rest) = rest.split_at_mut(n);
            let (forget, cell) = rest.split_at_mut(n);
            add_product(input, peephole(0), c_state);
            T::apply(isa, d.f, d.clip, input);
            if d.input_forget {
                forget.iter_mut().zip(&*input).for_each(|(f, &i)| *f = T::ONE - i);
            } else {
                add_product(forget, peephole(2), c_state);
                T::apply(isa, d.f, d.clip, forget);
            }
            T::apply(isa, d.g, d.clip, cell);
            for (((c, &f), &i), &g) in c_state.iter_mut().zip(&*forget).zip(&*input).zip(&*cell) {
                *c = f * *c + i * g;
            }
            add_product(output, peephole(1), c_state);
            T::apply(isa, d.f, d.clip, output);
            temporary.copy_from_slice(c_state);
            // The clip bounds gates only, as in ONNX Runtime.
            T::apply(isa, d.h, f32::INFINITY, temporary);
            let h_state = &mut y_h[e.h_at(b)..][..n];
            for ((h, &o), &c) in h_state.iter_mut().zip(&*output).zip(&*temporary) {
                *h = o * c;
            }
            y[e.y_at(t, b)..][..n].copy_from_slice(h_state);
        }
    }
    Ok(())
}

/// `to += p · c`.
fn add_product<T: CellElem>(to: &mut [T], p: Option<&[T]>, c: &[T]) {
    if let Some(p) = p {
        to.iter_mut().zip(p).zip(c).for_each(|((to, &p), &c)| *to = *to + p * c);
    }
}
