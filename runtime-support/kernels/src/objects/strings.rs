//! Strings chosen by index and strings joined.
//!
//! Movement of strings (Gather, Concat, Transpose, …) is the same movement of their numbers, and then [`TakeStrings`].
//! <https://onnx.ai/onnx/operators/onnx__StringConcat.html>

use super::border::{OBJECT_RANK, dims_of};
use super::object::numel;
use super::{Object, Strings};
use crate::{Fault, Isa, kernel};
use alloc::string::String;
use alloc::vec::Vec;

/// Where an operand's number stands in the number of one of its strings.
pub const OPERAND_SHIFT: u32 = 40;

pub(super) fn strings(x: &Object) -> Result<&Strings, Fault> {
    x.as_strings().ok_or(Fault::ValueMissing)
}

/// Offsets of the elements of a result of these extents in an operand that is read by these strides.
pub(super) fn offsets<'a>(
    dims: &'a [usize; OBJECT_RANK],
    strides: &'a [usize; OBJECT_RANK],
) -> Result<impl Iterator<Item = usize> + 'a, Fault> {
    let n = numel(dims).ok_or(Fault::Descriptor)?;
    Ok((0..n).map(move |i| {
        let mut rest = i;
        let mut off = 0usize;
        for axis in (0..OBJECT_RANK).rev() {
            off = off.wrapping_add((rest % dims[axis]).wrapping_mul(strides[axis]));
            rest /= dims[axis];
        }
        off
    }))
}

kernel! {
    /// `y` = the strings of these numbers: element `n % 2^40` of operand `n / 2^40`. `x` is the only operand, or the sequence
    /// of all.
    pub struct TakeStrings {
        operands { read numbers: I }
        nums { n }
        arrays { dims: 8 }
        params { rank: usize }
        objects { read x, write y }
    }
    entries { take_strings { I = i64 } }
    body = take_body;
}

fn take_body(_: Isa, d: &TakeStrings, numbers: &[i64], x: &Object, y: &mut Object) -> Result<(), Fault> {
    let numbers = numbers.get(..d.n).ok_or(Fault::Descriptor)?;
    let mut out: Vec<String> = Vec::with_capacity(numbers.len());
    for &n in numbers {
        let operand = usize::try_from(n >> OPERAND_SHIFT).map_err(|_| Fault::IndexOutOfRange)?;
        let at = (n & ((1 << OPERAND_SHIFT) - 1)) as usize;
        let from = match x {
            Object::Sequence(all) => all.get(operand).ok_or(Fault::IndexOutOfRange)?,
            one if operand == 0 => one,
            _ => return Err(Fault::IndexOutOfRange),
        };
        out.push(strings(from)?.data().get(at).ok_or(Fault::IndexOutOfRange)?.clone());
    }
    *y = Object::Strings(Strings::new(dims_of(&d.dims, d.rank)?, out).ok_or(Fault::ShapeMismatch)?);
    Ok(())
}

kernel! {
    /// `y` = `a` and then `b`, element by element, read by these strides. The last `rank` extents are the result's.
    pub struct StringConcat {
        operands { }
        arrays { dims: 8, a_strides: 8, b_strides: 8 }
        params { rank: usize }
        objects { read a, read b, write y }
    }
    entries { string_concat { } }
    body = concat_body;
}

fn concat_body(_: Isa, d: &StringConcat, a: &Object, b: &Object, y: &mut Object) -> Result<(), Fault> {
    let (a, b) = (strings(a)?, strings(b)?);
    let mut out = Vec::new();
    for (i, j) in offsets(&d.dims, &d.a_strides)?.zip(offsets(&d.dims, &d.b_strides)?) {
        let (a, b) = (a.data().get(i).ok_or(Fault::ShapeMismatch)?, b.data().get(j).ok_or(Fault::ShapeMismatch)?);
        let mut both = String::with_capacity(a.len() + b.len());
        both.push_str(a);
        both.push_str(b);
        out.push(both);
    }
    let dims = d.dims.get(OBJECT_RANK - d.rank.min(OBJECT_RANK)..).ok_or(Fault::Descriptor)?;
    *y = Object::Strings(Strings::new(dims.to_vec(), out).ok_or(Fault::ShapeMismatch)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operand;

    #[test]
    fn concatenated_by_strides() {
        let d = StringConcat {
            dims: [1, 1, 1, 1, 1, 1, 2, 2],
            a_strides: [0, 0, 0, 0, 0, 0, 2, 1],
            b_strides: [0, 0, 0, 0, 0, 0, 0, 1],
            rank: 2,
            a: crate::ObjectSlot::at(0),
            b: crate::ObjectSlot::at(1),
            y: crate::ObjectSlot::at(2),
        };
        let (a, b) = (Object::strings(&[2, 2], &["a", "b", "c", "d"]), Object::strings(&[2], &["x", "ß"]));
        let mut y = Object::None;
        concat_body(Isa::Scalar, &d, &a.unwrap(), &b.unwrap(), &mut y).unwrap();
        assert_eq!(y, Object::strings(&[2, 2], &["ax", "bß", "cx", "dß"]).unwrap());
        assert!(concat_body(Isa::Scalar, &d, &Object::None, &Object::None, &mut y).is_err());
    }

    #[test]
    fn taken_from_several() {
        let d = TakeStrings {
            numbers: Operand::at(0, 0, 24),
            n: 3,
            dims: [3; 8],
            rank: 1,
            x: crate::ObjectSlot::at(0),
            y: crate::ObjectSlot::at(1),
        };
        let parts = [Object::strings(&[2], &["a", "b"]).unwrap(), Object::strings(&[1], &["c"]).unwrap()];
        let all = Object::Sequence(parts.to_vec());
        let mut y = Object::None;
        take_body(Isa::Scalar, &d, &[1, 1 << OPERAND_SHIFT, 0], &all, &mut y).unwrap();
        assert_eq!(y, Object::strings(&[3], &["b", "c", "a"]).unwrap());
        for wrong in [2, -1, 2 << OPERAND_SHIFT] {
            assert_eq!(take_body(Isa::Scalar, &d, &[0, 0, wrong], &all, &mut y), Err(Fault::IndexOutOfRange));
        }
    }
}
