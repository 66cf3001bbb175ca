//! Where: elements of one operand or the other, by a condition, all three broadcast.
//!
//! In: `c` bytes (not 0 is true), `a` and `b` of one width, either of them perhaps in the memory of `y`. Out: `y`, contiguous.
//! <https://onnx.ai/onnx/operators/onnx__Where.html>

use super::blocks::{BLOCK, Wide, load};
use super::walk::{Walk, checked_numel};
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y = c ? a : b` over all indices below `dims`; strides are in elements, 0 repeats.
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

fn select<T: Wide<C = T>>(
    _: Isa,
    d: &Select,
    c: &[u8],
    a: Option<&[T]>,
    b: Option<&[T]>,
    y: &mut [T],
) -> Result<(), Fault> {
    let (a_len, b_len) = (a.map_or(y.len(), <[T]>::len), b.map_or(y.len(), <[T]>::len));
    let operands = [(c.len(), &d.c_strides), (a_len, &d.a_strides), (b_len, &d.b_strides)];
    if checked_numel(&d.dims, &operands) != Some(y.len()) {
        return Err(Fault::Descriptor);
    }
    if y.is_empty() {
        return Ok(());
    }
    let mut walk: Walk<'_, 3, 7> = Walk::new(&d.dims, [&d.c_strides, &d.a_strides, &d.b_strides]);
    let (n, c_stride, a_stride, b_stride) = (d.dims[7], d.c_strides[7], d.a_strides[7], d.b_strides[7]);
    let mut c_block = [0u8; BLOCK];
    let (mut a_block, mut b_block) = ([T::default(); BLOCK], [T::default(); BLOCK]);
    let mut row = 0;
    loop {
        let mut i = 0;
        while i < n {
            let m = BLOCK.min(n - i);
            let out = row + i;
            load(c, walk.at[0] + i * c_stride, c_stride, &mut c_block[..m]);
            if a_stride != 0 || i == 0 {
                load(a.unwrap_or(y), walk.at[1] + i * a_stride, a_stride, &mut a_block[..m]);
            }
            if b_stride != 0 || i == 0 {
                load(b.unwrap_or(y), walk.at[2] + i * b_stride, b_stride, &mut b_block[..m]);
            }
            for ((y, &c), (&a, &b)) in
                y[out..out + m].iter_mut().zip(&c_block).zip(a_block[..m].iter().zip(&b_block[..m]))
            {
                *y = if c != 0 { a } else { b };
            }
            i += m;
        }
        row += n;
        if !walk.advance() {
            return Ok(());
        }
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
