//! Integers that operators take as operands and plans need as extents: read into a slot, or compared with what was planned.

use crate::{Fault, Isa, kernel};

kernel! {
    /// An element of `x` becomes an extent, or another number that a plan reckons with; outside `least ..= most` (signed) it
    /// is a fault.
    pub struct ReadExtent {
        operands { read x: I }
        nums { at, least, most }
        found { value }
    }
    entries { read_extent_i64 { I = i64 } read_extent_i32 { I = i32 } }
    body = read_extent;
}

fn read_extent<I: Copy + Into<i64>>(_: Isa, d: &ReadExtent, x: &[I]) -> Result<[usize; 1], Fault> {
    let value: i64 = (*x.get(d.at).ok_or(Fault::Descriptor)?).into();
    let value = isize::try_from(value).map_err(|_| Fault::BoundExceeded)?;
    let within = (d.least as isize..=d.most as isize).contains(&value);
    if within { Ok([value as usize]) } else { Err(Fault::BoundExceeded) }
}

kernel! {
    /// Checks that each of the first `n` elements of `x` is `planned`, or `other`.
    pub struct CheckInts {
        operands { read x: I }
        nums { n }
        arrays { planned: 8, other: 8 }
    }
    entries { check_ints_i64 { I = i64 } check_ints_i32 { I = i32 } }
    body = check_ints;
}

fn check_ints<I: Copy + Into<i64>>(_: Isa, d: &CheckInts, x: &[I]) -> Result<(), Fault> {
    let x = x.get(..d.n).filter(|x| x.len() <= d.planned.len()).ok_or(Fault::Descriptor)?;
    let agree = |(&x, (&p, &o)): (&I, (&usize, &usize))| {
        let x: i64 = x.into();
        x == p as i64 || x == o as i64
    };
    if x.iter().zip(d.planned.iter().zip(&d.other)).all(agree) { Ok(()) } else { Err(Fault::ShapeMismatch) }
}
kernel! {
    /// Checks that each of the first `n` extents of `given` is that of `wanted` or, with `or_one`, 1 (it is broadcast then).
    pub struct CheckExtents {
        operands {}
        nums { n }
        arrays { given: 8, wanted: 8 }
        params { or_one: bool }
    }
    entries { check_extents {} }
    body = extents_agree;
}

fn extents_agree(_: Isa, d: &CheckExtents) -> Result<(), Fault> {
    let agree = |(&g, &w): (&usize, &usize)| g == w || (d.or_one && g == 1);
    if d.given.iter().zip(&d.wanted).take(d.n).all(agree) { Ok(()) } else { Err(Fault::ShapeMismatch) }
}

kernel! {
    /// Checks that `x` holds exactly the bytes of `want`.
    pub struct CheckEqual {
        operands { read x: B, read want: B }
    }
    entries { check_equal_u8 { B = u8 } }
    body = check_equal;
}

fn check_equal(_: Isa, _: &CheckEqual, x: &[u8], want: &[u8]) -> Result<(), Fault> {
    if x == want { Ok(()) } else { Err(Fault::ValueDiffers) }
}
