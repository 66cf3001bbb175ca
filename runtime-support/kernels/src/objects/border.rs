//! Between the arena and objects: tensors put into objects and taken out, constants, copies.

use super::object::numel;
use super::{Object, Strings, TensorObject, decode_strings};
use crate::{Dtype, Fault, Isa, NO_SLOT, kernel};
use alloc::vec::Vec;

/// Greatest rank of a tensor that goes in or out.
pub const OBJECT_RANK: usize = 8;

/// The first `rank` extents.
pub(super) fn dims_of(dims: &[usize; OBJECT_RANK], rank: usize) -> Result<Vec<usize>, Fault> {
    dims.get(..rank).map(<[usize]>::to_vec).ok_or(Fault::Descriptor)
}

/// Extents for the slots of a kernel that found them.
pub(super) fn found_dims(dims: &[usize]) -> Result<[usize; OBJECT_RANK], Fault> {
    let mut out = [0; OBJECT_RANK];
    out.get_mut(..dims.len()).ok_or(Fault::ShapeMismatch)?.copy_from_slice(dims);
    Ok(out)
}

/// Refuses extents above `most`, and others than `most` where no slot waits for what was found.
pub(super) fn expect_dims(
    dims: &[usize],
    most: &[usize; OBJECT_RANK],
    slots: &[usize; OBJECT_RANK],
) -> Result<(), Fault> {
    for ((n, most), slot) in dims.iter().zip(most).zip(slots) {
        if n > most {
            return Err(Fault::BoundExceeded);
        }
        if *slot == NO_SLOT && n != most {
            return Err(Fault::ShapeMismatch);
        }
    }
    Ok(())
}

kernel! {
    /// `y` = the tensor `x` of ONNX's type number `dtype` and these extents.
    pub struct PutTensor {
        operands { read x: T }
        arrays { dims: 8 }
        params { rank: usize, dtype: i32 }
        objects { write y }
    }
    entries { put_tensor { T = u8 } }
    body = put_tensor_body;
}

fn put_tensor_body(_: Isa, d: &PutTensor, x: &[u8], y: &mut Object) -> Result<(), Fault> {
    let dtype = Dtype::from_onnx(d.dtype).ok_or(Fault::Descriptor)?;
    let dims = dims_of(&d.dims, d.rank)?;
    let bytes = numel(&dims).and_then(|n| n.checked_mul(dtype.size_bytes()));
    let bytes = bytes.and_then(|n| x.get(..n)).ok_or(Fault::Descriptor)?;
    *y = Object::Tensor(TensorObject::new(dtype, dims, bytes).ok_or(Fault::OutOfMemory)?);
    Ok(())
}

kernel! {
    /// `y` = the tensor in the object `x`, which must have this type and rank, and no extent above `most`; one without a slot
    /// must be exactly that.
    pub struct TakeTensor {
        operands { write y: T }
        arrays { most: 8 }
        params { rank: usize, dtype: i32 }
        found { dim_0, dim_1, dim_2, dim_3, dim_4, dim_5, dim_6, dim_7 }
        objects { read x }
    }
    entries { take_tensor { T = u8 } }
    body = take_tensor_body;
}

fn take_tensor_body(_: Isa, d: &TakeTensor, y: &mut [u8], x: &Object) -> Result<[usize; OBJECT_RANK], Fault> {
    let tensor = x.as_tensor().filter(|t| t.dtype().to_onnx() == d.dtype).ok_or(Fault::ValueMissing)?;
    let dims = tensor.dims();
    if dims.len() != d.rank {
        return Err(Fault::ShapeMismatch);
    }
    let slots = [d.dim_0, d.dim_1, d.dim_2, d.dim_3, d.dim_4, d.dim_5, d.dim_6, d.dim_7];
    expect_dims(dims, &d.most, &slots)?;
    y.get_mut(..tensor.bytes().len()).ok_or(Fault::BoundExceeded)?.copy_from_slice(tensor.bytes());
    found_dims(dims)
}

kernel! {
    /// `y` = constant strings of these extents; `x` holds them as bytes (see [`super::encode_strings`]).
    pub struct ConstantStrings {
        operands { read x: T }
        arrays { dims: 8 }
        params { rank: usize }
        objects { write y }
    }
    entries { constant_strings { T = u8 } }
    body = constant_strings_body;
}

fn constant_strings_body(_: Isa, d: &ConstantStrings, x: &[u8], y: &mut Object) -> Result<(), Fault> {
    let data = decode_strings(x).ok_or(Fault::Descriptor)?;
    *y = Object::Strings(Strings::new(dims_of(&d.dims, d.rank)?, data).ok_or(Fault::Descriptor)?);
    Ok(())
}

kernel! {
    /// `y` = `x`.
    pub struct CopyObject {
        operands { }
        objects { read x, write y }
    }
    entries { copy_object { } }
    body = copy_object_body;
}

fn copy_object_body(_: Isa, _: &CopyObject, x: &Object, y: &mut Object) -> Result<(), Fault> {
    *y = x.clone();
    Ok(())
}

kernel! {
    /// `y` = `x`, which is nothing afterwards.
    pub struct MoveObject {
        operands { }
        objects { update x, write y }
    }
    entries { move_object { } }
    body = move_object_body;
}

fn move_object_body(_: Isa, _: &MoveObject, x: &mut Object, y: &mut Object) -> Result<(), Fault> {
    *y = core::mem::take(x);
    Ok(())
}

kernel! {
    /// `y` = nothing: an absent optional value.
    pub struct ClearObject {
        operands { }
        objects { write y }
    }
    entries { clear_object { } }
    body = clear_object_body;
}

fn clear_object_body(_: Isa, _: &ClearObject, y: &mut Object) -> Result<(), Fault> {
    *y = Object::None;
    Ok(())
}

kernel! {
    /// `y` = whether the optional value `x` is there.
    pub struct HasElement {
        operands { write y: T }
        objects { read x }
    }
    entries { has_element { T = u8 } }
    body = has_element_body;
}

fn has_element_body(_: Isa, _: &HasElement, y: &mut [u8], x: &Object) -> Result<(), Fault> {
    *y.first_mut().ok_or(Fault::Descriptor)? = u8::from(!x.is_none());
    Ok(())
}

kernel! {
    /// `y` = the optional value `x`, which must be there.
    pub struct GetElement {
        operands { }
        objects { read x, write y }
    }
    entries { get_element { } }
    body = get_element_body;
}

fn get_element_body(_: Isa, _: &GetElement, x: &Object, y: &mut Object) -> Result<(), Fault> {
    if x.is_none() {
        return Err(Fault::ValueMissing);
    }
    *y = x.clone();
    Ok(())
}
