//! GRU: gates z, r, h; the reset gate before or after the product with R.

use super::cell::{CellElem, Extents, Lengths, add_gates, matrix_len};
use super::function::CellActivation;
use crate::gemm::BLayout;
use crate::{Fault, Isa, kernel};

kernel! {
    /// One direction of a GRU. `r` is the matrix `[2·hidden, hidden]` of z and r, then the one `[hidden, hidden]` of h, both
    /// packed or as in the model; `bias` W's then R's. Scratch: four rows per batch entry, then what a product with R needs.
    pub struct Gru {
        operands {
            read gates: T, read r: T, opt bias: T, opt initial_h: T, opt lens: I,
            update y: T, update y_h: T, write scratch: T,
        }
        nums {
            steps, batch, hidden, gate_step, gate_batch, y_start, y_step, y_batch, h_start, h_batch,
        }
        params {
            layout: BLayout, reverse: bool, linear_before_reset: bool, clip: f32, f: CellActivation, g: CellActivation,
        }
    }
    entries { gru_f32 { T = f32, I = i32 } gru_f64 { T = f64, I = i32 } }
    body = gru;
}

fn gru<T: CellElem>(
    isa: Isa,
    d: &Gru,
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
        gates: 3,
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
    e.check(&lengths, n.checked_mul(4).ok_or(Fault::Descriptor)?)?;
    let zr_len = matrix_len(d.layout, 2 * n, n);
    if zr_len.checked_add(matrix_len(d.layout, n, n)) != Some(r.len()) {
        return Err(Fault::Descriptor);
    }
    if n == 0 || d.batch == 0 {
        return Ok(());
    }
    e.begin(lens, y, [Some((&mut *y_h, initial_h)), None])?;
    let (r_zr, r_h) = r.split_at(zr_len);
    let (zr_rows, rest) = scratch.split_at_mut(d.batch * 2 * n);
    let (h_rows, rest) = rest.split_at_mut(d.batch * n);
    let (reset_rows, product_scratch) = rest.split_at_mut(d.batch * n);
    for i in 0..d.steps {
        let state = &y_h[d.h_start..];
        let mut ok = T::product(isa, d.layout, [d.batch, 2 * n, n], state, d.h_batch, r_zr, zr_rows, product_scratch);
        if d.linear_before_reset {
            ok &= T::product(isa, d.layout, [d.batch, n, n], state, d.h_batch, r_h, h_rows, product_scratch);
        }
        if !ok {
            return Err(Fault::Descriptor);
        }
        for (b, zr) in zr_rows.chunks_exact_mut(2 * n).enumerate() {
            let len = e.len_of(lens, b)?;
            // An entry that has ended goes along, unused.
            let t = if i < len { e.time(i, len) } else { 0 };
            add_gates(zr, &gates[e.gate_at(t, b)..][..2 * n], bias, 0);
            T::apply(isa, d.f, d.clip, zr);
            let state = &y_h[e.h_at(b)..][..n];
            for ((to, &r), &h) in reset_rows[b * n..][..n].iter_mut().zip(&zr[n..]).zip(state) {
                *to = r * h;
            }
        }
        if !d.linear_before_reset
            && !T::product(isa, d.layout, [d.batch, n, n], reset_rows, n, r_h, h_rows, product_scratch)
        {
            return Err(Fault::Descriptor);
        }
        for (b, h) in h_rows.chunks_exact_mut(n).enumerate() {
            let len = e.len_of(lens, b)?;
            if i >= len {
                continue;
            }
            let t = e.time(i, len);
            let (z, r) = zr_rows[b * 2 * n..][..2 * n].split_at(n);
            let gates = &gates[e.gate_at(t, b) + 2 * n..][..n];
            if d.linear_before_reset {
                if let Some(bias) = bias {
                    h.iter_mut().zip(&bias[5 * n..]).for_each(|(h, &b)| *h = *h + b);
                }
                h.iter_mut().zip(r).zip(gates).for_each(|((h, &r), &g)| *h = r * *h + g);
                if let Some(bias) = bias {
                    h.iter_mut().zip(&bias[2 * n..]).for_each(|(h, &b)| *h = *h + b);
                }
            } else {
                add_gates(h, gates, bias, 2 * n);
            }
            T::apply(isa, d.g, d.clip, h);
            let state = &mut y_h[e.h_at(b)..][..n];
            for ((state, &z), &h) in state.iter_mut().zip(z).zip(&*h) {
                *state = (T::ONE - z) * h + z * *state;
            }
            y[e.y_at(t, b)..][..n].copy_from_slice(state);
        }
    }
    Ok(())
}
