//! Contraction of two tensors over any indices: what Einsum cannot do as a matrix product.
//!
//! In: `a` and `b` with a stride for every kept and every summed index. Out: `c` in the order of the kept indices.
//! Floats are summed in f64, integers in their own type, wrapping.

use crate::reduce::{Odometer, product, reach};
use crate::{Elem, Fault, Isa, kernel};

kernel! {
    /// `c[kept] = Σ over dims of a · b`.
    pub struct Contract {
        operands { read a: T, read b: T, write c: T }
        arrays { kept: 8, a_kept: 8, b_kept: 8, dims: 8, a_strides: 8, b_strides: 8 }
    }
    entries {
        contract_f32 { T = f32 } contract_f64 { T = f64 }
        contract_i8 { T = i8 } contract_i16 { T = i16 } contract_i32 { T = i32 } contract_i64 { T = i64 }
        contract_u8 { T = u8 } contract_u16 { T = u16 } contract_u32 { T = u32 } contract_u64 { T = u64 }
    }
    body = contract;
}

trait Term: Elem {
    type Sum: Copy + Default;
    fn add(sum: Self::Sum, a: Self, b: Self) -> Self::Sum;
    fn finish(sum: Self::Sum) -> Self;
}

macro_rules! float_terms {
    ($($t:ident)*) => { $(impl Term for $t {
        type Sum = f64;
        #[inline(always)]
        fn add(sum: f64, a: Self, b: Self) -> f64 {
            sum + a as f64 * b as f64
        }
        #[inline(always)]
        fn finish(sum: f64) -> Self {
            sum as Self
        }
    })* };
}
float_terms!(f32 f64);

macro_rules! int_terms {
    ($($t:ident)*) => { $(impl Term for $t {
        type Sum = $t;
        #[inline(always)]
        fn add(sum: Self, a: Self, b: Self) -> Self {
            sum.wrapping_add(a.wrapping_mul(b))
        }
        #[inline(always)]
        fn finish(sum: Self) -> Self {
            sum
        }
    })* };
}
int_terms!(i8 i16 i32 i64 u8 u16 u32 u64);

fn contract<T: Term>(_: Isa, d: &Contract, a: &[T], b: &[T], c: &mut [T]) -> Result<(), Fault> {
    let n_kept = product(&d.kept).ok_or(Fault::Descriptor)?;
    let n = product(&d.dims).ok_or(Fault::Descriptor)?;
    if c.len() != n_kept {
        return Err(Fault::Descriptor);
    }
    if n == 0 {
        c.fill(T::default());
        return Ok(());
    }
    let last = |kept: &[usize; 8], strides: &[usize; 8]| reach(&d.kept, kept)?.checked_add(reach(&d.dims, strides)?);
    let inside = |last: Option<usize>, len: usize| last.is_some_and(|l| l < len);
    if n_kept > 0 && !(inside(last(&d.a_kept, &d.a_strides), a.len()) && inside(last(&d.b_kept, &d.b_strides), b.len()))
    {
        return Err(Fault::Descriptor);
    }
    let (mut a_at, mut b_at) = (Odometer::new(&d.kept, &d.a_kept), Odometer::new(&d.kept, &d.b_kept));
    for c in c {
        let mut sum = T::Sum::default();
        let (mut a_in, mut b_in) = (Odometer::new(&d.dims, &d.a_strides), Odometer::new(&d.dims, &d.b_strides));
        loop {
            let (a_from, b_from) = (a_at.offset + a_in.offset, b_at.offset + b_in.offset);
            for i in 0..d.dims[7] {
                sum = T::add(sum, a[a_from + i * d.a_strides[7]], b[b_from + i * d.b_strides[7]]);
            }
            b_in.step(7);
            if !a_in.step(7) {
                break;
            }
        }
        *c = T::finish(sum);
        a_at.step(8);
        b_at.step(8);
    }
    Ok(())
}
