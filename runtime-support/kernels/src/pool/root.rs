//! The p-th root and integer powers, without a mathematics library: for Lp pools.
//!
//! In: non-negative finite numbers. Out: the root to within two units in the last place, by Newton's iteration.

use core::ops::{Add, Div, Mul, Sub};

/// Floats that a p-th root is taken of.
pub(super) trait Real:
    Copy + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    fn from_u32(v: u32) -> Self;
    /// Above zero and finite.
    fn is_positive(self) -> bool;
    /// A number within a factor of two of the p-th root of a positive number.
    fn near_root(self, p: u32) -> Self;
}

impl Real for f32 {
    fn from_u32(v: u32) -> Self {
        v as f32
    }
    fn is_positive(self) -> bool {
        self > 0.0 && self.is_finite()
    }
    fn near_root(self, p: u32) -> Self {
        (f64::from(self)).near_root(p) as f32
    }
}

impl Real for f64 {
    fn from_u32(v: u32) -> Self {
        f64::from(v)
    }
    fn is_positive(self) -> bool {
        self > 0.0 && self.is_finite()
    }
    fn near_root(self, p: u32) -> Self {
        // Divides the exponent; subnormals start from the least normal exponent.
        let exponent = ((self.to_bits() >> 52) & 0x7ff) as i64 - 1023;
        f64::from_bits(((exponent.div_euclid(i64::from(p)) + 1023) as u64) << 52)
    }
}

/// x^p
#[inline]
pub(super) fn power<T: Real>(x: T, p: u32) -> T {
    let mut result = T::from_u32(1);
    let (mut base, mut rest) = (x, p);
    while rest > 0 {
        if rest & 1 == 1 {
            result = result * base;
        }
        base = base * base;
        rest >>= 1;
    }
    result
}

/// x^(1/p); NaN and infinity stay, as does zero.
pub(super) fn root<T: Real>(x: T, p: u32) -> T {
    if p <= 1 || !x.is_positive() {
        return x;
    }
    let (n, n_less) = (T::from_u32(p), T::from_u32(p - 1));
    // From above the root, Newton's steps fall monotonically until rounding stops them.
    let mut r = x.near_root(p) * T::from_u32(2);
    for _ in 0..2000 {
        let next = (n_less * r + x / power(r, p - 1)) / n;
        if next >= r {
            break;
        }
        r = next;
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_of_powers() {
        for p in 1..12 {
            for x in [1e-3f64, 0.5, 1.0, 1.5, 7.0, 123.0] {
                assert!((root(power(x, p), p) / x - 1.0).abs() < 1e-14, "{x} {p}");
                let y = x as f32;
                assert!((root(power(y, p), p) / y - 1.0).abs() < 1e-5, "{x} {p}");
            }
        }
        assert_eq!((root(0.0f32, 3), root(f32::INFINITY, 3)), (0.0, f32::INFINITY));
        assert!(root(f32::NAN, 2).is_nan());
    }
}
