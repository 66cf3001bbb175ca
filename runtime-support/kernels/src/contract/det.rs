//! Determinants, by elimination with pivoting in f64.

use crate::real::Real;
use crate::{Fault, Isa, kernel};

kernel! {
    /// The determinant of each of `batch` matrices `[n, n]`. Scratch: one matrix.
    pub struct Det {
        operands { read x: T, write y: T, write scratch: F }
        nums { batch, n }
    }
    entries { det_f32 { T = f32, F = f64 } det_f64 { T = f64, F = f64 } }
    body = det;
}

fn det<T: Real>(_: Isa, d: &Det, x: &[T], y: &mut [T], scratch: &mut [f64]) -> Result<(), Fault> {
    let n = d.n;
    let size = n.checked_mul(n).ok_or(Fault::Descriptor)?;
    if d.batch.checked_mul(size) != Some(x.len()) || y.len() != d.batch || scratch.len() < size {
        return Err(Fault::Descriptor);
    }
    if size == 0 {
        y.fill(T::put(1.0));
        return Ok(());
    }
    let m = &mut scratch[..size];
    for (x, y) in x.chunks_exact(size).zip(y) {
        m.iter_mut().zip(x).for_each(|(m, x)| *m = x.get());
        *y = T::put(eliminate(m, n));
    }
    Ok(())
}

/// The determinant of an n×n matrix, which is destroyed.
fn eliminate(m: &mut [f64], n: usize) -> f64 {
    let mut det = 1.0;
    for k in 0..n {
        let mut pivot = k;
        for i in k + 1..n {
            if m[i * n + k].abs() > m[pivot * n + k].abs() {
                pivot = i;
            }
        }
        if m[pivot * n + k] == 0.0 {
            return 0.0;
        }
        if pivot != k {
            for j in k..n {
                m.swap(k * n + j, pivot * n + j);
            }
            det = -det;
        }
        det *= m[k * n + k];
        for i in k + 1..n {
            let factor = m[i * n + k] / m[k * n + k];
            for j in k + 1..n {
                m[i * n + j] -= factor * m[k * n + j];
            }
        }
    }
    det
}
