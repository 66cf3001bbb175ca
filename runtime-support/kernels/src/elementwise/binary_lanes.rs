//! f32 arithmetic on whole vectors: the operations that networks spend time in.
//!
//! Rows of contiguous or repeated operands; a row of exactly one vector that repeats (a bias per channel in the blocked
//! layout) stays in a register over the next outer dimension.

use super::binary::{Binary, BinaryOp};
use super::walk::Walk;
use crate::Isa;
use crate::simd::{F32x16, LANES, Simd};
use crate::simd_fn;

/// A function of two vectors.
trait Lanes {
    fn apply<V: F32x16>(a: V, b: V) -> V;
}

macro_rules! lanes {
    ($($name:ident |$a:ident, $b:ident| $value:expr),* $(,)?) => { $(
        struct $name;
        impl Lanes for $name {
            #[inline(always)]
            fn apply<V: F32x16>($a: V, $b: V) -> V {
                $value
            }
        }
    )* };
}
lanes! {
    Add |a, b| a + b,
    Sub |a, b| a - b,
    Mul |a, b| a * b,
    Div |a, b| a / b,
    Min |a, b| V::select(a.is_nan(), a, a.min(b)),
    Max |a, b| V::select(a.is_nan(), a, a.max(b)),
    Prelu |a, b| V::select(a.lt(a.splat_like(0.0)), a * b, a),
}

/// Does the call where its operation and its inner strides are among the fast ones. Extents are checked by the caller.
pub(super) fn run(isa: Isa, d: &Binary, a: Option<&[f32]>, b: Option<&[f32]>, y: &mut [f32]) -> bool {
    if d.a_strides[7] > 1 || d.b_strides[7] > 1 {
        return false;
    }
    let out = y.as_mut_ptr();
    let (a, b) = (a.map_or(out.cast_const(), <[f32]>::as_ptr), b.map_or(out.cast_const(), <[f32]>::as_ptr));
    macro_rules! dispatch {
        ($($name:ident),*) => {
            match d.op {
                // SAFETY: the caller checked that every offset below the extents lies inside each operand, and that
                // `y` has as many elements; an operand in place is read before it is overwritten, lane for lane.
                $(BinaryOp::$name => unsafe { planes::<$name>(isa, d, a, b, out) },)*
                _ => return false,
            }
        };
    }
    dispatch!(Add, Sub, Mul, Div, Min, Max, Prelu);
    true
}

simd_fn! {
    /// All rows, two inner dimensions at a time.
    ///
    /// # Safety
    /// The operands hold every element that extents and strides reach, `y` as many as the extents say; inner strides are
    /// 0 or 1; `a` and `b` overlap `y` only where they are it.
    unsafe fn planes<S>[O: Lanes][O](s, d: &Binary, a: *const f32, b: *const f32, y: *mut f32) {
        let (rows, n) = (d.dims[6], d.dims[7]);
        let mut walk: Walk<'_, 2, 6> = Walk::new(&d.dims, [&d.a_strides, &d.b_strides]);
        let (a_row, b_row) = (d.a_strides[6], d.b_strides[6]);
        let (a_one, b_one) = (d.a_strides[7] == 1, d.b_strides[7] == 1);
        let mut y = y;
        loop {
            // SAFETY: offsets of the walk lie inside the operands.
            unsafe {
                let (a, b) = (a.add(walk.at[0]), b.add(walk.at[1]));
                if n == LANES && b_row == 0 && b_one && a_one && rows > 1 {
                    let fixed = s.load(b);
                    for r in 0..rows {
                        O::apply(s.load(a.add(r * a_row)), fixed).store(y.add(r * LANES));
                    }
                } else {
                    for r in 0..rows {
                        row::<S, O>(s, a.add(r * a_row), a_one, b.add(r * b_row), b_one, y.add(r * n), n);
                    }
                }
                y = y.add(rows * n);
            }
            if !walk.advance() {
                return;
            }
        }
    }
}

/// One row of `n` results.
///
/// # Safety
/// Operands that step hold `n` elements, repeated ones 1; `y` holds `n`.
#[inline(always)]
unsafe fn row<S: Simd, O: Lanes>(s: S, a: *const f32, a_one: bool, b: *const f32, b_one: bool, y: *mut f32, n: usize) {
    let (whole, rest) = (n / LANES * LANES, n % LANES);
    // SAFETY: indices stay below `n`; a repeated operand is read at 0 only.
    unsafe {
        match (a_one, b_one) {
            (true, true) => {
                for i in (0..whole).step_by(LANES) {
                    O::apply(s.load(a.add(i)), s.load(b.add(i))).store(y.add(i));
                }
                if rest > 0 {
                    O::apply(s.load_n(a.add(whole), rest), s.load_n(b.add(whole), rest)).store_n(y.add(whole), rest);
                }
            }
            (true, false) => {
                let b = s.splat(*b);
                for i in (0..whole).step_by(LANES) {
                    O::apply(s.load(a.add(i)), b).store(y.add(i));
                }
                if rest > 0 {
                    O::apply(s.load_n(a.add(whole), rest), b).store_n(y.add(whole), rest);
                }
            }
            (false, true) => {
                let a = s.splat(*a);
                for i in (0..whole).step_by(LANES) {
                    O::apply(a, s.load(b.add(i))).store(y.add(i));
                }
                if rest > 0 {
                    O::apply(a, s.load_n(b.add(whole), rest)).store_n(y.add(whole), rest);
                }
            }
            (false, false) => {
                let v = O::apply(s.splat(*a), s.splat(*b));
                for i in (0..whole).step_by(LANES) {
                    v.store(y.add(i));
                }
                if rest > 0 {
                    v.store_n(y.add(whole), rest);
                }
            }
        }
    }
}
