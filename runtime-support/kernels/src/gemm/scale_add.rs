//! What Gemm adds to a product: `y = alpha·x + beta·c`, with `c` broadcast to the rows.
//!
//! Types without fractions are computed in f64 and truncated where alpha or beta have fractions, exactly elsewhere.

use super::generic::Numeric;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[m,n] = alpha·x[m,n] + beta·c[m·c_row + n·c_column]`; in place where `x` is `y`.
    pub struct ScaleAdd {
        operands { alias x: T, opt c: T, write y: T }
        nums { m, n, c_row, c_column }
        params { alpha: f32, beta: f32 }
    }
    entries {
        scale_add_f32 { T = f32 } scale_add_f64 { T = f64 } scale_add_i32 { T = i32 } scale_add_i64 { T = i64 }
        scale_add_u32 { T = u32 } scale_add_u64 { T = u64 }
    }
    body = scale_add;
}

/// Numbers an attribute of type FLOAT can be turned into.
pub trait FromFloat: Numeric + PartialEq {
    /// The attribute as this type.
    fn from_float(x: f32) -> Self;
    /// `alpha·x + beta·c`, truncated, where the type has no fractions and a factor does.
    fn truncated(alpha: f32, x: Self, beta: f32, c: Self) -> Option<Self>;
}

macro_rules! from_float {
    ($($t:ty: $whole:literal),*) => { $(impl FromFloat for $t {
        fn from_float(x: f32) -> Self {
            x as $t
        }
        fn truncated(alpha: f32, x: Self, beta: f32, c: Self) -> Option<Self> {
            let whole = |f: f32| libm::truncf(f) == f;
            if !$whole || (whole(alpha) && whole(beta)) {
                return None;
            }
            Some((f64::from(alpha) * x as f64 + f64::from(beta) * c as f64) as $t)
        }
    })* };
}
from_float!(f32: false, f64: false, i32: true, i64: true, u32: true, u64: true);

fn scale_add<T: FromFloat>(_: Isa, d: &ScaleAdd, x: Option<&[T]>, c: Option<&[T]>, y: &mut [T]) -> Result<(), Fault> {
    let len = d.m.checked_mul(d.n).filter(|&l| y.len() >= l && x.is_none_or(|x| x.len() >= l));
    if len.is_none() {
        return Err(Fault::Descriptor);
    }
    let (alpha, beta) = (T::from_float(d.alpha), T::from_float(d.beta));
    for i in 0..d.m {
        for j in 0..d.n {
            let at = i * d.n + j;
            let x = x.map_or(y[at], |x| x[at]);
            let c = match c {
                None => T::ZERO,
                Some(c) => *c.get(i * d.c_row + j * d.c_column).ok_or(Fault::Descriptor)?,
            };
            y[at] = match T::truncated(d.alpha, x, d.beta, c) {
                Some(y) => y,
                None if c == T::ZERO => T::ZERO.mul_add(alpha, x),
                None => T::ZERO.mul_add(alpha, x).mul_add(beta, c),
            };
        }
    }
    Ok(())
}
