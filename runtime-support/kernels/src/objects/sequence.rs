//! Sequences: elements put in, taken out, split off a tensor, joined to one.
//!
//! Positions count from the end where they are negative, as the operators' pages say.
//! <https://onnx.ai/onnx/operators/onnx__SequenceInsert.html> and its neighbours.

use super::border::{OBJECT_RANK, dims_of, expect_dims, found_dims};
use super::object::numel;
use super::{Object, TensorObject};
use crate::{Dtype, Fault, Isa, kernel};
use alloc::vec::Vec;

fn elements(s: &Object) -> Result<&[Object], Fault> {
    s.as_sequence().ok_or(Fault::ValueMissing)
}

/// A position among `n` places.
fn position(at: Option<&[i64]>, n: usize, default: usize) -> Result<usize, Fault> {
    let Some(at) = at else { return if default < n { Ok(default) } else { Err(Fault::IndexOutOfRange) } };
    let at = *at.first().ok_or(Fault::Descriptor)?;
    let len = i64::try_from(n).map_err(|_| Fault::IndexOutOfRange)?;
    let at = if at < 0 { at.saturating_add(len) } else { at };
    usize::try_from(at).ok().filter(|at| *at < n).ok_or(Fault::IndexOutOfRange)
}

kernel! {
    /// `y` = a sequence without elements.
    pub struct EmptySequence {
        operands { }
        objects { write y }
    }
    entries { empty_sequence { } }
    body = empty_body;
}

fn empty_body(_: Isa, _: &EmptySequence, y: &mut Object) -> Result<(), Fault> {
    *y = Object::Sequence(Vec::new());
    Ok(())
}

kernel! {
    /// Appends `x` to the sequence `y`.
    pub struct AppendElement {
        operands { }
        objects { read x, update y }
    }
    entries { append_element { } }
    body = append_body;
}

fn append_body(_: Isa, _: &AppendElement, x: &Object, y: &mut Object) -> Result<(), Fault> {
    let Object::Sequence(y) = y else { return Err(Fault::ValueMissing) };
    y.push(x.clone());
    Ok(())
}

kernel! {
    /// `y` = the sequence `s` with `x` before the element at `at`; without `at` at the end.
    pub struct InsertElement {
        operands { opt at: I }
        objects { read s, read x, write y }
    }
    entries { insert_element { I = i64 } }
    body = insert_body;
}

fn insert_body(
    _: Isa,
    _: &InsertElement,
    at: Option<&[i64]>,
    s: &Object,
    x: &Object,
    y: &mut Object,
) -> Result<(), Fault> {
    let s = elements(s)?;
    // The end is a place too, but -1 is the last element's.
    let at = match at {
        Some(&[at, ..]) if usize::try_from(at) == Ok(s.len()) => s.len(),
        None => s.len(),
        at => position(at, s.len(), 0)?,
    };
    let mut out = Vec::with_capacity(s.len() + 1);
    out.extend_from_slice(&s[..at]);
    out.push(x.clone());
    out.extend_from_slice(&s[at..]);
    *y = Object::Sequence(out);
    Ok(())
}

kernel! {
    /// `y` = the sequence `s` without the element at `at`, the last one by default.
    pub struct EraseElement {
        operands { opt at: I }
        objects { read s, write y }
    }
    entries { erase_element { I = i64 } }
    body = erase_body;
}

fn erase_body(_: Isa, _: &EraseElement, at: Option<&[i64]>, s: &Object, y: &mut Object) -> Result<(), Fault> {
    let s = elements(s)?;
    let at = position(at, s.len(), s.len().wrapping_sub(1))?;
    let mut out = s.to_vec();
    out.remove(at);
    *y = Object::Sequence(out);
    Ok(())
}

kernel! {
    /// `y` = the element of the sequence `s` at `at`.
    pub struct ElementAt {
        operands { read at: I }
        objects { read s, write y }
    }
    entries { element_at { I = i64 } }
    body = at_body;
}

fn at_body(_: Isa, _: &ElementAt, at: &[i64], s: &Object, y: &mut Object) -> Result<(), Fault> {
    let s = elements(s)?;
    *y = s[position(Some(at), s.len(), 0)?].clone();
    Ok(())
}

kernel! {
    /// `y` = the number of elements of the sequence `s`.
    pub struct CountElements {
        operands { write y: I }
        objects { read s }
    }
    entries { count_elements { I = i64 } }
    body = count_body;
}

fn count_body(_: Isa, _: &CountElements, y: &mut [i64], s: &Object) -> Result<(), Fault> {
    let n = i64::try_from(elements(s)?.len()).map_err(|_| Fault::BoundExceeded)?;
    *y.first_mut().ok_or(Fault::Descriptor)? = n;
    Ok(())
}

kernel! {
    /// `y` = the parts of the tensor `x` along an axis. `split` holds one length for all (the last part may be smaller),
    /// or, where `listed`, each part's; without it the parts are single slices, without the axis where `drop_axis`.
    pub struct SplitTensor {
        operands { read x: T, opt split: I }
        nums { n_split }
        arrays { dims: 8 }
        params { rank: usize, dtype: i32, axis: usize, listed: bool, drop_axis: bool }
        objects { write y }
    }
    entries { split_tensor { T = u8, I = i64 } }
    body = split_body;
}

/// The parts' lengths, which add up to `extent`.
fn lengths(d: &SplitTensor, split: Option<&[i64]>, extent: usize) -> Result<Vec<usize>, Fault> {
    let length = |n: i64| usize::try_from(n).map_err(|_| Fault::ShapeMismatch);
    let Some(split) = split else { return Ok(core::iter::repeat_n(1, extent).collect()) };
    let split = split.get(..d.n_split).ok_or(Fault::Descriptor)?;
    if d.listed {
        let all = split.iter().map(|&n| length(n)).collect::<Result<Vec<_>, _>>()?;
        let sum = all.iter().try_fold(0usize, |a, &n| a.checked_add(n));
        return if sum == Some(extent) { Ok(all) } else { Err(Fault::ShapeMismatch) };
    }
    let each = length(*split.first().ok_or(Fault::Descriptor)?)?;
    if each == 0 {
        return Err(Fault::ShapeMismatch);
    }
    Ok((0..extent).step_by(each).map(|at| each.min(extent - at)).collect())
}

fn split_body(_: Isa, d: &SplitTensor, x: &[u8], split: Option<&[i64]>, y: &mut Object) -> Result<(), Fault> {
    let dtype = Dtype::from_onnx(d.dtype).ok_or(Fault::Descriptor)?;
    let dims = dims_of(&d.dims, d.rank)?;
    let extent = *dims.get(d.axis).ok_or(Fault::Descriptor)?;
    let outer = numel(&dims[..d.axis]).ok_or(Fault::Descriptor)?;
    let row = numel(&dims[d.axis + 1..]).and_then(|n| n.checked_mul(dtype.size_bytes())).ok_or(Fault::Descriptor)?;
    let mut parts = Vec::new();
    let mut at = 0;
    for n in lengths(d, split, extent)? {
        let mut bytes = Vec::with_capacity(outer * n * row);
        for i in 0..outer {
            let start = (i * extent + at) * row;
            bytes.extend_from_slice(x.get(start..start + n * row).ok_or(Fault::Descriptor)?);
        }
        let mut shape = dims.clone();
        if d.drop_axis {
            shape.remove(d.axis);
        } else {
            shape[d.axis] = n;
        }
        parts.push(Object::Tensor(TensorObject::new(dtype, shape, &bytes).ok_or(Fault::OutOfMemory)?));
        at += n;
    }
    *y = Object::Sequence(parts);
    Ok(())
}

kernel! {
    /// `y` = the tensors of the sequence `s` joined along an axis, a new one where `new_axis`. No extent may exceed `most`;
    /// one without a slot must be exactly that.
    pub struct JoinSequence {
        operands { write y: T }
        arrays { most: 8 }
        params { rank: usize, dtype: i32, axis: usize, new_axis: bool }
        found { dim_0, dim_1, dim_2, dim_3, dim_4, dim_5, dim_6, dim_7 }
        objects { read s }
    }
    entries { join_sequence { T = u8 } }
    body = join_body;
}

fn join_body(_: Isa, d: &JoinSequence, y: &mut [u8], s: &Object) -> Result<[usize; OBJECT_RANK], Fault> {
    let mut parts = Vec::new();
    for part in elements(s)? {
        parts.push(part.as_tensor().filter(|t| t.dtype().to_onnx() == d.dtype).ok_or(Fault::ValueMissing)?);
    }
    let first = parts.first().ok_or(Fault::ShapeMismatch)?;
    let with_axis = |dims: &[usize]| -> Vec<usize> {
        let mut dims = dims.to_vec();
        if d.new_axis && d.axis <= dims.len() {
            dims.insert(d.axis, 1);
        }
        dims
    };
    let mut dims = with_axis(first.dims());
    if dims.len() != d.rank || d.axis >= d.rank {
        return Err(Fault::ShapeMismatch);
    }
    dims[d.axis] = 0;
    for part in &parts {
        let shape = with_axis(part.dims());
        let differs = |(a, (n, m)): (usize, (&usize, &usize))| a != d.axis && n != m;
        if shape.len() != d.rank || shape.iter().zip(&dims).enumerate().any(differs) {
            return Err(Fault::ShapeMismatch);
        }
        dims[d.axis] = dims[d.axis].checked_add(shape[d.axis]).ok_or(Fault::BoundExceeded)?;
    }
    let slots = [d.dim_0, d.dim_1, d.dim_2, d.dim_3, d.dim_4, d.dim_5, d.dim_6, d.dim_7];
    expect_dims(&dims, &d.most, &slots)?;
    let outer = numel(&dims[..d.axis]).ok_or(Fault::BoundExceeded)?;
    let mut at = 0;
    for i in 0..outer {
        for part in &parts {
            let bytes = part.bytes();
            let row = bytes.len() / outer;
            y.get_mut(at..at + row).ok_or(Fault::BoundExceeded)?.copy_from_slice(&bytes[i * row..(i + 1) * row]);
            at += row;
        }
    }
    found_dims(&dims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NO_SLOT, Operand};

    fn sequence(n: i64) -> Object {
        Object::Sequence((0..n).map(|i| Object::tensor(&[1], &[i]).unwrap()).collect())
    }

    fn values(s: &Object) -> Vec<i64> {
        s.as_sequence().unwrap().iter().map(|o| o.elements::<i64>().unwrap()[0]).collect()
    }

    #[test]
    fn insert_and_erase() {
        let x = Object::tensor(&[1], &[9i64]).unwrap();
        let d = InsertElement {
            at: None,
            s: crate::ObjectSlot::at(0),
            x: crate::ObjectSlot::at(1),
            y: crate::ObjectSlot::at(2),
        };
        for (at, want) in [(None, [0, 1, 9]), (Some(2), [0, 1, 9]), (Some(0), [9, 0, 1]), (Some(-1), [0, 9, 1])] {
            let at = at.map(|a| [a]);
            let mut y = Object::None;
            insert_body(Isa::Scalar, &d, at.as_ref().map(|a| &a[..]), &sequence(2), &x, &mut y).unwrap();
            assert_eq!(values(&y), want);
        }
        for at in [3, -3] {
            let got = insert_body(Isa::Scalar, &d, Some(&[at]), &sequence(2), &x, &mut Object::None);
            assert_eq!(got, Err(Fault::IndexOutOfRange));
        }
        let d = EraseElement { at: None, s: crate::ObjectSlot::at(0), y: crate::ObjectSlot::at(1) };
        for (at, want) in [(None, [0, 1]), (Some(0), [1, 2]), (Some(-2), [0, 2])] {
            let at = at.map(|a| [a]);
            let mut y = Object::None;
            erase_body(Isa::Scalar, &d, at.as_ref().map(|a| &a[..]), &sequence(3), &mut y).unwrap();
            assert_eq!(values(&y), want);
        }
        let empty = erase_body(Isa::Scalar, &d, None, &sequence(0), &mut Object::None);
        assert_eq!(empty, Err(Fault::IndexOutOfRange));
    }

    #[test]
    fn split_and_join() {
        let split = |listed, drop_axis, split: Option<&[i64]>| {
            let d = SplitTensor {
                x: Operand::at(0, 0, 6),
                split: None,
                n_split: split.map_or(0, <[i64]>::len),
                dims: [2, 3, 0, 0, 0, 0, 0, 0],
                rank: 2,
                dtype: Dtype::U8.to_onnx(),
                axis: 1,
                listed,
                drop_axis,
                y: crate::ObjectSlot::at(0),
            };
            let mut y = Object::None;
            split_body(Isa::Scalar, &d, &[1, 2, 3, 4, 5, 6], split, &mut y).map(|()| y)
        };
        let parts = split(false, false, Some(&[2])).unwrap();
        let [a, b] = parts.as_sequence().unwrap() else { panic!("two parts") };
        assert_eq!((a.dims().unwrap(), a.elements::<u8>().unwrap()), (&[2, 2][..], alloc::vec![1, 2, 4, 5]));
        assert_eq!((b.dims().unwrap(), b.elements::<u8>().unwrap()), (&[2, 1][..], alloc::vec![3, 6]));
        let single = split(false, true, None).unwrap();
        assert_eq!(single.as_sequence().unwrap()[1].dims().unwrap(), [2]);
        assert_eq!(split(true, false, Some(&[2, 2])), Err(Fault::ShapeMismatch));
        assert_eq!(split(false, false, Some(&[0])), Err(Fault::ShapeMismatch));
        let join = |most: usize| JoinSequence {
            y: Operand::at(0, 0, 6),
            most: [2, most, 0, 0, 0, 0, 0, 0],
            rank: 2,
            dtype: Dtype::U8.to_onnx(),
            axis: 1,
            new_axis: false,
            dim_0: NO_SLOT,
            dim_1: 0,
            dim_2: NO_SLOT,
            dim_3: NO_SLOT,
            dim_4: NO_SLOT,
            dim_5: NO_SLOT,
            dim_6: NO_SLOT,
            dim_7: NO_SLOT,
            s: crate::ObjectSlot::at(0),
        };
        let mut y = [0; 6];
        assert_eq!(join_body(Isa::Scalar, &join(3), &mut y, &parts).unwrap()[..2], [2, 3]);
        assert_eq!(y, [1, 2, 3, 4, 5, 6]);
        assert_eq!(join_body(Isa::Scalar, &join(2), &mut y, &parts), Err(Fault::BoundExceeded));
    }
}
