//! Products of 8-bit integer matrices of any signs with zero points, exact in `i32`: the general form, for operands that
//! are found at run time.
//!
//! `y = (a − a_zero) · (b − b_zero)`. Sums wrap. <https://onnx.ai/onnx/operators/onnx__MatMulInteger.html>

use super::Quantised;
use crate::{Fault, Isa, kernel, simd_fn};

kernel! {
    /// Row-major matrices; `batch` levels with element strides (0 repeats). A zero point is one, or one a row of `a`
    /// (`a_zero_row` 1), one a column of `b` (`b_zero_column` 1).
    pub struct IntMatMul {
        operands { read a: A, read b: B, opt a_zero: A, opt b_zero: B, write y: Y }
        nums { m, n, k, a_zero_row, b_zero_column }
        arrays { batch: 6, a_batch: 6, b_batch: 6, a_zero_batch: 6, b_zero_batch: 6 }
    }
    entries {
        int_matmul_u8_u8 { A = u8, B = u8, Y = i32 } int_matmul_u8_i8 { A = u8, B = i8, Y = i32 }
        int_matmul_i8_u8 { A = i8, B = u8, Y = i32 } int_matmul_i8_i8 { A = i8, B = i8, Y = i32 }
    }
    body = int_matmul;
}

/// Columns at a time: a row of sums and a block of `b` stay in the nearest caches.
const BLOCK: usize = 256;

/// One past the last element that strides reach, or an overflow.
fn reach(dims: &[usize], strides: &[usize]) -> Option<usize> {
    let last = dims.iter().zip(strides).map(|(&d, &s)| d.checked_sub(1)?.checked_mul(s));
    last.into_iter().try_fold(1usize, |sum, v| sum.checked_add(v?))
}

fn int_matmul<A: Quantised, B: Quantised>(
    isa: Isa,
    d: &IntMatMul,
    a: &[A],
    b: &[B],
    a_zero: Option<&[A]>,
    b_zero: Option<&[B]>,
    y: &mut [i32],
) -> Result<(), Fault> {
    let (m, n, k) = (d.m, d.n, d.k);
    let products = d.batch.iter().try_fold(1usize, |p, &v| p.checked_mul(v));
    let numel = products.and_then(|p| p.checked_mul(m)).and_then(|p| p.checked_mul(n)).ok_or(Fault::Descriptor)?;
    if y.len() != numel {
        return Err(Fault::Descriptor);
    }
    if numel == 0 {
        return Ok(());
    }
    if k == 0 {
        y.fill(0);
        return Ok(());
    }
    let fits = |len: usize, strides: &[usize; 6], matrix: [usize; 2], steps: [usize; 2]| {
        let batch = reach(&d.batch, strides).and_then(|r| r.checked_add(reach(&matrix, &steps)? - 1));
        batch.is_some_and(|r| r <= len)
    };
    let sound = fits(a.len(), &d.a_batch, [m, k], [k, 1])
        && fits(b.len(), &d.b_batch, [k, n], [n, 1])
        && a_zero.is_none_or(|z| fits(z.len(), &d.a_zero_batch, [m, 1], [d.a_zero_row, 0]))
        && b_zero.is_none_or(|z| fits(z.len(), &d.b_zero_batch, [1, n], [0, d.b_zero_column]))
        && d.b_zero_column <= 1;
    if !sound {
        return Err(Fault::Descriptor);
    }
    let mut idx = [0usize; 6];
    for y in y.chunks_exact_mut(m * n) {
        let at = |strides: &[usize; 6]| idx.iter().zip(strides).map(|(i, s)| i * s).sum::<usize>();
        let (a, b) = (&a[at(&d.a_batch)..], &b[at(&d.b_batch)..]);
        let a_zero = a_zero.map(|z| &z[at(&d.a_zero_batch)..]);
        let b_zero = b_zero.map(|z| &z[at(&d.b_zero_batch)..]);
        for (i, y) in y.chunks_exact_mut(n).enumerate() {
            let za = a_zero.map_or(0, |z| z[i * d.a_zero_row].wide());
            row(isa, &a[i * k..(i + 1) * k], za, b, b_zero, d.b_zero_column == 1, y);
        }
        for axis in (0..6).rev() {
            idx[axis] += 1;
            if idx[axis] < d.batch[axis] {
                break;
            }
            idx[axis] = 0;
        }
    }
    Ok(())
}

simd_fn! {
    /// One row of the product.
    fn row<S>[A: Quantised, B: Quantised][A, B](
        _s, a: &[A], a_zero: i32, b: &[B], b_zero: Option<&[B]>, each: bool, y: &mut [i32],
    ) {
        let n = y.len();
        let sum: i32 = a.iter().map(|a| a.wide() - a_zero).fold(0, i32::wrapping_add);
        for from in (0..n).step_by(BLOCK) {
            let width = BLOCK.min(n - from);
            let y = &mut y[from..from + width];
            match b_zero {
                None => y.fill(0),
                Some(z) if each => {
                    for (y, z) in y.iter_mut().zip(&z[from..]) {
                        *y = z.wide().wrapping_mul(sum).wrapping_neg();
                    }
                }
                Some(z) => y.fill(z[0].wide().wrapping_mul(sum).wrapping_neg()),
            }
            for (kk, a) in a.iter().enumerate() {
                let a = a.wide() - a_zero;
                for (y, b) in y.iter_mut().zip(&b[kk * n + from..][..width]) {
                    *y = y.wrapping_add(a.wrapping_mul(b.wide()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::Operand;
    use std::vec::Vec;

    #[test]
    fn zero_points_and_batches_on_every_set() {
        let (batch, m, n, k) = (2, 3, 300, 5);
        let a: Vec<u8> = (0..batch * m * k).map(|i| (i * 37 % 256) as u8).collect();
        let b: Vec<i8> = (0..k * n).map(|i| (i * 91 % 256) as u8 as i8).collect();
        let a_zero: Vec<u8> = (0..m).map(|i| 100 + i as u8).collect();
        let b_zero: Vec<i8> = (0..n).map(|i| (i % 7) as i8 - 3).collect();
        let o = Operand::at(0, 0, 0);
        let d = IntMatMul {
            a: o,
            b: o,
            a_zero: Some(o),
            b_zero: Some(o),
            y: o,
            m,
            n,
            k,
            a_zero_row: 1,
            b_zero_column: 1,
            batch: [1, 1, 1, 1, 1, batch],
            a_batch: [0, 0, 0, 0, 0, m * k],
            b_batch: [0; 6],
            a_zero_batch: [0; 6],
            b_zero_batch: [0; 6],
        };
        for isa in Isa::supported() {
            let mut y = std::vec![0; batch * m * n];
            int_matmul(isa, &d, &a, &b, Some(&a_zero), Some(&b_zero), &mut y).unwrap();
            for (at, &y) in y.iter().enumerate() {
                let (i, j) = (at / n, at % n);
                let want: i32 = (0..k)
                    .map(|kk| {
                        (i32::from(a[i * k + kk]) - i32::from(a_zero[i % m]))
                            * (i32::from(b[kk * n + j]) - i32::from(b_zero[j]))
                    })
                    .sum();
                assert_eq!(y, want);
            }
            assert!(int_matmul(isa, &d, &a[1..], &b, Some(&a_zero), Some(&b_zero), &mut y).is_err());
            assert!(int_matmul(isa, &d, &a, &b, Some(&a_zero[1..]), Some(&b_zero), &mut y).is_err());
        }
    }
}
