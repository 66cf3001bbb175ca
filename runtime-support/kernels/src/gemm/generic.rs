//! A matrix product of any numeric type, for f64 and the integers: plain loops that keep to rows.
//!
//! In: row-major A and B with strides. Out: C. Integers wrap, as ONNX's reference does. The order of the sum is that of k.

/// What a product needs of a type.
pub trait Numeric: Copy {
    /// Zero.
    const ZERO: Self;
    /// `self + a * b`; integers wrap.
    fn mul_add(self, a: Self, b: Self) -> Self;
}

macro_rules! numeric {
    (float: $($float:ty),*; integer: $($integer:ty),*) => {
        $(impl Numeric for $float {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                self + a * b
            }
        })*
        $(impl Numeric for $integer {
            const ZERO: Self = 0;
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                self.wrapping_add(a.wrapping_mul(b))
            }
        })*
    };
}
numeric!(float: f32, f64; integer: i8, i16, i32, i64, u8, u16, u32, u64);

/// `C[M,N] = A[M,K]·B[K,N]`, rows `strides` apart (of A, B, C). Returns whether the slices were long enough; if not, nothing
/// is written.
pub fn matmul_generic<T: Numeric>([m, n, k]: [usize; 3], strides: [usize; 3], a: &[T], b: &[T], c: &mut [T]) -> bool {
    if m == 0 || n == 0 {
        return true;
    }
    let fits = |rows: usize, columns: usize, stride: usize, len: usize| {
        rows == 0
            || columns == 0
            || (rows - 1).checked_mul(stride).and_then(|x| x.checked_add(columns)).is_some_and(|x| x <= len)
    };
    let [lda, ldb, ldc] = strides;
    if !(fits(m, k, lda, a.len()) && fits(k, n, ldb, b.len()) && fits(m, n, ldc, c.len())) || (ldc < n && m > 1) {
        return false;
    }
    /// Columns at a time: a row of C and a block of B stay in L1.
    const BLOCK: usize = 256;
    for from in (0..n).step_by(BLOCK) {
        let width = BLOCK.min(n - from);
        for i in 0..m {
            let row = &mut c[i * ldc + from..][..width];
            row.fill(T::ZERO);
            for kk in 0..k {
                let x = a[i * lda + kk];
                let line = &b[kk * ldb + from..][..width];
                for (c, &b) in row.iter_mut().zip(line) {
                    *c = c.mul_add(x, b);
                }
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    #[test]
    fn equals_the_definition() {
        for [m, n, k] in [[1, 1, 1], [3, 5, 7], [2, 300, 9], [4, 4, 0], [0, 3, 3]] {
            let a: std::vec::Vec<i64> = (0..m * k).map(|i| i as i64 * 7 - 20).collect();
            let b: std::vec::Vec<i64> = (0..k * n).map(|i| 11 - i as i64 * 3).collect();
            let mut c = vec![-1; m * n];
            assert!(matmul_generic([m, n, k], [k, n, n], &a, &b, &mut c));
            for i in 0..m {
                for j in 0..n {
                    assert_eq!(c[i * n + j], (0..k).map(|x| a[i * k + x] * b[x * n + j]).sum::<i64>());
                }
            }
        }
    }

    #[test]
    fn integers_wrap_and_short_slices_are_refused() {
        let mut c = [0u32; 1];
        assert!(matmul_generic([1, 1, 2], [2, 1, 1], &[u32::MAX, 2], &[2, 3], &mut c));
        assert_eq!(c, [4]);
        assert!(!matmul_generic([1, 1, 2], [2, 1, 1], &[1], &[2, 3], &mut c));
        assert_eq!(c, [4]);
        let mut d = [0.0f64; 4];
        assert!(!matmul_generic([2, 2, 1], [1, 2, 1], &[1.0, 2.0], &[2.0, 3.0], &mut d));
    }
}
