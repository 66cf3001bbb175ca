//! Blocks: up to [`BLOCK`] elements of each operand in the type they are computed in.
//!
//! In: slices of memory elements, or the result's own memory where an operand is computed in place. Out: a function of
//! plain contiguous arrays, called once per block. f16 and bf16 are widened to f32 and rounded once, on the way out.
//! Invariant: a block's operands are read before its results are written, so working in place is exact.

use super::walk::{Extents, Walk};
use crate::{Elem, bf16, f16};

/// Elements of a block.
pub const BLOCK: usize = 64;

/// An element type with the type it is computed in.
pub trait Wide: Elem {
    /// The computing type.
    type C: Copy + Default + PartialEq + PartialOrd;
    /// To the computing type, exactly.
    fn widen(self) -> Self::C;
    /// Back, rounded once.
    fn narrow(c: Self::C) -> Self;
}

macro_rules! computed_in_itself {
    ($($t:ty),*) => { $(impl Wide for $t {
        type C = $t;
        #[inline(always)]
        fn widen(self) -> $t {
            self
        }
        #[inline(always)]
        fn narrow(c: $t) -> $t {
            c
        }
    })* };
}
computed_in_itself!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! computed_in_f32 {
    ($($t:ty),*) => { $(impl Wide for $t {
        type C = f32;
        #[inline(always)]
        fn widen(self) -> f32 {
            self.to_f32()
        }
        #[inline(always)]
        fn narrow(c: f32) -> $t {
            <$t>::from_f32(c)
        }
    })* };
}
computed_in_f32!(f16, bf16);

/// Reads `out.len()` elements from `at` on, one every `stride` (0 repeats one).
#[inline(always)]
pub fn load<T: Wide>(x: &[T], at: usize, stride: usize, out: &mut [T::C]) {
    match stride {
        0 => out.fill(x[at].widen()),
        1 => {
            let n = out.len();
            for (o, &x) in out.iter_mut().zip(&x[at..at + n]) {
                *o = x.widen();
            }
        }
        _ => {
            for (i, o) in out.iter_mut().enumerate() {
                *o = x[at + i * stride].widen();
            }
        }
    }
}

/// Writes a block.
#[inline(always)]
pub fn store<T: Wide>(values: &[T::C], y: &mut [T]) {
    for (y, &v) in y.iter_mut().zip(values) {
        *y = T::narrow(v);
    }
}

/// `y = f(x)`, block by block; `x` is `None` where it is `y`.
pub fn map_blocks<T: Wide>(x: Option<&[T]>, y: &mut [T], f: impl Fn(&mut [T::C])) {
    let mut block = [T::C::default(); BLOCK];
    let mut at = 0;
    while at < y.len() {
        let n = BLOCK.min(y.len() - at);
        load(x.unwrap_or(y), at, 1, &mut block[..n]);
        f(&mut block[..n]);
        store(&block[..n], &mut y[at..at + n]);
        at += n;
    }
}

/// An operand's elements and strides; the elements are `None` where they are the result's.
pub type Strided<'a, T> = (Option<&'a [T]>, &'a Extents);

/// `y = f(a, b)` over broadcast operands, block by block; `f` overwrites its first argument with the result.
///
/// The caller has checked extents and lengths, and that no extent is zero.
#[inline(always)]
pub fn zip_blocks<T: Wide>(
    dims: &Extents,
    (a, a_strides): Strided<'_, T>,
    (b, b_strides): Strided<'_, T>,
    y: &mut [T],
    f: fn(&mut [T::C], &[T::C]),
) {
    let mut walk: Walk<'_, 2, 7> = Walk::new(dims, [a_strides, b_strides]);
    let (n, a_stride, b_stride) = (dims[7], a_strides[7], b_strides[7]);
    let (mut a_block, mut b_block) = ([T::C::default(); BLOCK], [T::C::default(); BLOCK]);
    let mut row = 0;
    loop {
        let mut i = 0;
        while i < n {
            let m = BLOCK.min(n - i);
            let out = row + i;
            load(a.unwrap_or(y), walk.at[0] + i * a_stride, a_stride, &mut a_block[..m]);
            if b_stride != 0 || i == 0 {
                load(b.unwrap_or(y), walk.at[1] + i * b_stride, b_stride, &mut b_block[..m]);
            }
            f(&mut a_block[..m], &b_block[..m]);
            store(&a_block[..m], &mut y[out..out + m]);
            i += m;
        }
        row += n;
        if !walk.advance() {
            return;
        }
    }
}

/// As [`zip_blocks`] with a result of truth values.
pub fn compare_blocks<T: Wide>(
    dims: &Extents,
    (a, a_strides): (&[T], &Extents),
    (b, b_strides): (&[T], &Extents),
    y: &mut [u8],
    f: fn(&[T::C], &[T::C], &mut [u8]),
) {
    let mut walk: Walk<'_, 2, 7> = Walk::new(dims, [a_strides, b_strides]);
    let (n, a_stride, b_stride) = (dims[7], a_strides[7], b_strides[7]);
    let (mut a_block, mut b_block) = ([T::C::default(); BLOCK], [T::C::default(); BLOCK]);
    let mut row = 0;
    loop {
        let mut i = 0;
        while i < n {
            let m = BLOCK.min(n - i);
            if a_stride != 0 || i == 0 {
                load(a, walk.at[0] + i * a_stride, a_stride, &mut a_block[..m]);
            }
            if b_stride != 0 || i == 0 {
                load(b, walk.at[1] + i * b_stride, b_stride, &mut b_block[..m]);
            }
            f(&a_block[..m], &b_block[..m], &mut y[row + i..row + i + m]);
            i += m;
        }
        row += n;
        if !walk.advance() {
            return;
        }
    }
}
