//! Hardmax: one at the first greatest element of a line, zero elsewhere.

use crate::{Elem, Fault, Isa, kernel};

kernel! {
    /// `y = 1` at the first greatest of each line along axis `n` of `x` as `[outer, n, inner]`, else 0.
    pub struct Hardmax {
        operands { read x: T, write y: T }
        nums { outer, n, inner }
    }
    entries { hardmax_f32 { T = f32 } hardmax_f64 { T = f64 } }
    body = hardmax;
}

fn hardmax<T: Elem + PartialOrd + From<u8>>(_: Isa, d: &Hardmax, x: &[T], y: &mut [T]) -> Result<(), Fault> {
    let numel = d.outer.checked_mul(d.n).and_then(|n| n.checked_mul(d.inner));
    if numel != Some(y.len()) || x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    y.fill(T::default());
    if x.is_empty() {
        return Ok(());
    }
    let block = d.n * d.inner;
    for (x, y) in x.chunks_exact(block).zip(y.chunks_exact_mut(block)) {
        for i in 0..d.inner {
            let mut best = i;
            for at in (i..block).step_by(d.inner) {
                // A NaN is greater than all, as in NumPy's argmax.
                #[expect(clippy::eq_op, reason = "the test for NaN")]
                if x[at] > x[best] || (x[at] != x[at] && x[best] == x[best]) {
                    best = at;
                }
            }
            y[best] = T::from(1);
        }
    }
    Ok(())
}
