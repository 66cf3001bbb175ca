//! Where: elements of one operand or the other, by a condition, all three broadcast.
//!
//! In: `c` bytes (not 0 is true), `a` and `b` of one width, either of them perhaps in the memory of `y`. Out: `y`, contiguous.
//! <https://onnx.ai/onnx/operators/onnx__Where.html>

use super::walk::{Walk, checked_numel};
use crate::{Elem, Fault, Isa, kernel, simd_fn};

kernel! {
    /// `y = c ? a : b` over all indices below `dims`; strides are in elements, 0 repeats, the innermost is 0 or 1.
    pub struct Select {
        operands { read c: Truth, alias a: T, alias b: T, write y: T }
        arrays { dims: 8, c_strides: 8, a_strides: 8, b_strides: 8 }
    }
    entries {
        select_b8 { T = u8, Truth = u8 } select_b16 { T = u16, Truth = u8 }
        select_b32 { T = u32, Truth = u8 } select_b64 { T = u64, Truth = u8 }
    }
    body = select;
}

fn select<T: Elem>(isa: Isa, d: &Select, c: &[u8], a: Option<&[T]>, b: Option<&[T]>, y: &mut [T]) -> Result<(), Fault> {
    let (a_len, b_len) = (a.map_or(y.len(), <[T]>::len), b.map_or(y.len(), <[T]>::len));
    let operands = [(c.len(), &d.c_strides), (a_len, &d.a_strides), (b_len, &d.b_strides)];
    if checked_numel(&d.dims, &operands) != Some(y.len()) || operands.iter().any(|(_, s)| s[7] > 1) {
        return Err(Fault::Descriptor);
    }
    if !y.is_empty() {
        rows(isa, d, c, a, b, y);
    }
    Ok(())
}

/// One row of an operand.
#[derive(Clone, Copy)]
enum Row<'a, T> {
    /// It is the result's row.
    Own,
    /// One element for the whole row.
    One(T),
    /// As many elements as the result's row.
    All(&'a [T]),
}

impl<'a, T: Copy> Row<'a, T> {
    #[inline(always)]
    fn of(x: Option<&'a [T]>, at: usize, stride: usize, n: usize) -> Self {
        match x {
            None => Self::Own,
            Some(x) if stride == 0 => Self::One(x[at]),
            Some(x) => Self::All(&x[at..at + n]),
        }
    }
}

simd_fn! {
    /// All rows, on the widest vectors there are.
    fn rows<S>[T: Elem][T](s, d: &Select, c: &[u8], a: Option<&[T]>, b: Option<&[T]>, y: &mut [T]) {
        let _ = s;
        let mut walk: Walk<'_, 3, 7> = Walk::new(&d.dims, [&d.c_strides, &d.a_strides, &d.b_strides]);
        let n = d.dims[7];
        for y in y.chunks_exact_mut(n) {
            let (a, b) =
                (Row::of(a, walk.at[1], d.a_strides[7], n), Row::of(b, walk.at[2], d.b_strides[7], n));
            if d.c_strides[7] == 1 {
                by_element(&c[walk.at[0]..walk.at[0] + n], a, b, y);
            } else {
                match if c[walk.at[0]] != 0 { a } else { b } {
                    Row::Own => {}
                    Row::One(v) => y.fill(v),
                    Row::All(x) => y.copy_from_slice(x),
                }
            }
            walk.advance();
        }
    }
}

/// A row with a condition for each element.
#[inline(always)]
fn by_element<T: Copy>(c: &[u8], a: Row<'_, T>, b: Row<'_, T>, y: &mut [T]) {
    let n = y.len();
    let c = &c[..n];
    macro_rules! each {
        ($($x:ident),*; |$own:ident| $a:expr, $b:expr) => {{
            $(let $x = &$x[..n];)*
            for i in 0..n {
                let $own = y[i];
                $(let $x = $x[i];)*
                y[i] = if c[i] != 0 { $a } else { $b };
            }
        }};
    }
    match (a, b) {
        (Row::Own, Row::Own) => {}
        (Row::Own, Row::One(b)) => each!(; |own| own, b),
        (Row::Own, Row::All(b)) => each!(b; |own| own, b),
        (Row::One(a), Row::Own) => each!(; |own| a, own),
        (Row::One(a), Row::One(b)) => each!(; |_own| a, b),
        (Row::One(a), Row::All(b)) => each!(b; |_own| a, b),
        (Row::All(a), Row::Own) => each!(a; |own| a, own),
        (Row::All(a), Row::One(b)) => each!(a; |_own| a, b),
        (Row::All(a), Row::All(b)) => each!(a, b; |_own| a, b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    #[test]
    fn broadcasts_all_three() {
        let at = || crate::Operand::at(0, 0, 0);
        let (rows, n) = (3usize, 150usize);
        let c: Vec<u8> = (0..n).map(|i| (i % 3 == 0).into()).collect();
        let b: Vec<u32> = (0..(rows * n) as u32).collect();
        let s = |row, inner| [0, 0, 0, 0, 0, 0, row, inner];
        let d = Select {
            c: at(),
            a: at(),
            b: at(),
            y: at(),
            dims: [1, 1, 1, 1, 1, 1, rows, n],
            c_strides: s(0, 1),
            a_strides: s(0, 0),
            b_strides: s(n, 1),
        };
        let want: Vec<u32> = (0..rows * n).map(|i| if i % n % 3 == 0 { 7 } else { i as u32 }).collect();
        let mut y = std::vec![0; rows * n];
        select(Isa::Scalar, &d, &c, Some(&[7]), Some(&b), &mut y).unwrap();
        assert_eq!(y, want);
        y.copy_from_slice(&b);
        select(Isa::Scalar, &d, &c, Some(&[7]), None, &mut y).unwrap();
        assert_eq!(y, want);
        assert!(select(Isa::Scalar, &d, &c[1..], Some(&[7]), None, &mut y).is_err());
    }
}
