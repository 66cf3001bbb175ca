//! What Gemm adds to a product: `y = alpha·x + beta·c`, with `c` broadcast to the rows.
//!
//! Types without fractions take alpha and beta truncated, as a cast of the attribute does.

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
pub trait FromFloat: Numeric {
    /// The attribute as this type.
    fn from_float(x: f32) -> Self;
}

macro_rules! from_float {
    ($($t:ty),*) => { $(impl FromFloat for $t {
        fn from_float(x: f32) -> Self {
            x as $t
        }
    })* };
}
from_float!(f32, f64, i32, i64, u32, u64);

fn scale_add<T: FromFloat>(_: Isa, d: &ScaleAdd, x: Option<&[T]>, c: Option<&[T]>, y: &mut [T]) -> Result<(), Fault> {
    let len = d.m.checked_mul(d.n).filter(|&l| y.len() >= l && x.is_none_or(|x| x.len() >= l));
    if len.is_none() {
        return Err(Fault::Descriptor);
    }
    let (alpha, beta) = (T::from_float(d.alpha), T::from_float(d.beta));
    for i in 0..d.m {
        for j in 0..d.n {
            let at = i * d.n + j;
            let product = T::ZERO.mul_add(alpha, x.map_or(y[at], |x| x[at]));
            y[at] = match c {
                None => product,
                Some(c) => {
                    let c = c.get(i * d.c_row + j * d.c_column).ok_or(Fault::Descriptor)?;
                    product.mul_add(beta, *c)
                }
            };
        }
    }
    Ok(())
}
