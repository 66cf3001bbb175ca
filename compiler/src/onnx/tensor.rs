//! A `TensorProto` to a [`Tensor`]: every encoding ONNX has, to kiln's one layout.
//!
//! In: the message, and the files its external data may lie in. Out: exactly the bytes of its dims.
//! Nothing is allocated before the stored data was found to have the size that dims and type ask
//! for, so memory is bounded by what the file holds. `raw_data` of types that need no unpacking is
//! shared with the file's bytes, not copied.
//! Source: `onnx.proto`, `TensorProto`.

use std::sync::Arc;

use bytes::Bytes;
use kiln_kernels::Dtype;

use super::external::ExternalFiles;
use super::model::{Tensor, TensorData};
use super::proto::{EXTERNAL, TensorProto};
use crate::error::{CompileError, Stage};

/// Decodes one tensor. The error does not name the tensor: the caller knows what it is.
pub(super) fn decode_tensor(proto: TensorProto, files: &mut ExternalFiles) -> Result<Tensor, CompileError> {
    let dtype = decode_dtype(proto.data_type)?;
    let (dims, numel) = decode_dims(&proto.dims)?;
    if proto.segment.is_some() {
        return Err(error("is a segment of a larger tensor, which is not supported"));
    }
    let stored_bytes = stored_len_bytes(dtype, numel)?;
    let kind = storage(&proto, dtype)?;
    let data = match kind {
        Storage::External => {
            let bytes = files.read(&proto.external_data, stored_bytes)?;
            TensorData::Bytes(unpack_raw(dtype, numel, bytes)?)
        }
        Storage::Raw => {
            let bytes = proto.raw_data.unwrap_or_default();
            TensorData::Bytes(unpack_raw(dtype, numel, bytes)?)
        }
        Storage::Typed if dtype == Dtype::Str => {
            expect_count("string_data", proto.string_data.len(), numel, &dims)?;
            TensorData::Strings(Arc::new(proto.string_data))
        }
        Storage::Typed => TensorData::Bytes(decode_typed(&proto, dtype, numel, &dims)?),
    };
    Ok(Tensor { dtype, dims, data })
}

/// The element type, or what is wrong with its number.
pub(super) fn decode_dtype(data_type: i32) -> Result<Dtype, CompileError> {
    match Dtype::from_onnx(data_type) {
        Some(dtype) => Ok(dtype),
        None if data_type == 0 => Err(error("element type is UNDEFINED")),
        None => Err(error(format!("element type {data_type} is not one ONNX defines"))),
    }
}

/// The extents and their product.
pub(super) fn decode_dims(dims: &[i64]) -> Result<(Vec<usize>, usize), CompileError> {
    let mut extents = Vec::with_capacity(dims.len());
    for &dim in dims {
        match usize::try_from(dim) {
            Ok(extent) => extents.push(extent),
            Err(_) => return Err(error(format!("dims {} are out of range", show(dims)))),
        }
    }
    if extents.contains(&0) {
        return Ok((extents, 0));
    }
    let numel = extents.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    match numel {
        Some(numel) if isize::try_from(numel).is_ok() => Ok((extents, numel)),
        _ => Err(error(format!("dims {} have too many elements to count", show(dims)))),
    }
}

/// A list for a message, cut when long.
pub(super) fn show<T: std::fmt::Display>(items: &[T]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> = items.iter().take(SHOWN).map(T::to_string).collect();
    if items.len() > SHOWN {
        text.push(format!("… {} in all", items.len()));
    }
    format!("[{}]", text.join(","))
}

fn error(message: impl Into<String>) -> CompileError {
    CompileError::new(Stage::Decode, message)
}

/// Bytes of raw data that ONNX's packed form of `numel` elements takes.
fn stored_len_bytes(dtype: Dtype, numel: usize) -> Result<usize, CompileError> {
    let len = match dtype.bits() {
        2 => numel.div_ceil(4),
        4 => numel.div_ceil(2),
        6 => (numel / 4) * 3 + (numel % 4 * 6).div_ceil(8),
        _ => numel.checked_mul(dtype.size_bytes()).unwrap_or(usize::MAX),
    };
    if isize::try_from(len).is_ok() {
        Ok(len)
    } else {
        Err(error(format!("{numel} elements of {dtype} are more bytes than can be counted")))
    }
}

/// Where a tensor's elements stand.
enum Storage {
    External,
    Raw,
    Typed,
}

/// Finds the one field that holds the data; two, or the wrong one, are an error.
fn storage(proto: &TensorProto, dtype: Dtype) -> Result<Storage, CompileError> {
    let typed = [
        ("float_data", proto.float_data.len()),
        ("int32_data", proto.int32_data.len()),
        ("string_data", proto.string_data.len()),
        ("int64_data", proto.int64_data.len()),
        ("double_data", proto.double_data.len()),
        ("uint64_data", proto.uint64_data.len()),
    ];
    let used: Vec<&str> = typed.iter().filter(|(_, len)| *len > 0).map(|(field, _)| *field).collect();
    let raw = proto.raw_data.as_ref().is_some_and(|raw| !raw.is_empty());
    let external = proto.data_location == EXTERNAL;
    if !matches!(proto.data_location, 0 | EXTERNAL) {
        return Err(error(format!("data location {} is not one ONNX defines", proto.data_location)));
    }
    if !external && !proto.external_data.is_empty() {
        return Err(error("has external_data, but its data location does not say EXTERNAL"));
    }
    if external && (raw || !used.is_empty()) {
        return Err(error("has data in the model as well as in an external file"));
    }
    if raw && let Some(field) = used.first() {
        return Err(error(format!("has both raw_data and {field}")));
    }
    let wanted = typed_field(dtype);
    if let Some(field) = used.iter().find(|field| **field != wanted) {
        return Err(error(format!("has {field}, but elements of {dtype} stand in {wanted}")));
    }
    if dtype == Dtype::Str && (raw || external) {
        return Err(error("strings can only stand in string_data"));
    }
    Ok(if external {
        Storage::External
    } else if proto.raw_data.is_some() && used.is_empty() && dtype != Dtype::Str {
        Storage::Raw
    } else {
        Storage::Typed
    })
}

/// The typed field that holds elements of `dtype`.
fn typed_field(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 | Dtype::C64 => "float_data",
        Dtype::F64 | Dtype::C128 => "double_data",
        Dtype::I64 => "int64_data",
        Dtype::U32 | Dtype::U64 => "uint64_data",
        Dtype::Str => "string_data",
        _ => "int32_data",
    }
}

fn expect_count(field: &str, found: usize, wanted: usize, dims: &[usize]) -> Result<(), CompileError> {
    if found == wanted {
        Ok(())
    } else {
        Err(error(format!("dims {} need {wanted} entries of {field}, found {found}", show(dims))))
    }
}

/// Elements from a typed field.
fn decode_typed(proto: &TensorProto, dtype: Dtype, numel: usize, dims: &[usize]) -> Result<Bytes, CompileError> {
    let count = |found: usize, wanted: usize| expect_count(typed_field(dtype), found, wanted, dims);
    let pair = numel.checked_mul(2).unwrap_or(usize::MAX);
    let bytes: Vec<u8> = match dtype {
        Dtype::F32 | Dtype::C64 => {
            count(proto.float_data.len(), if dtype == Dtype::C64 { pair } else { numel })?;
            proto.float_data.iter().flat_map(|v| v.to_le_bytes()).collect()
        }
        Dtype::F64 | Dtype::C128 => {
            count(proto.double_data.len(), if dtype == Dtype::C128 { pair } else { numel })?;
            proto.double_data.iter().flat_map(|v| v.to_le_bytes()).collect()
        }
        Dtype::I64 => {
            count(proto.int64_data.len(), numel)?;
            proto.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect()
        }
        Dtype::U64 => {
            count(proto.uint64_data.len(), numel)?;
            proto.uint64_data.iter().flat_map(|v| v.to_le_bytes()).collect()
        }
        Dtype::U32 => {
            count(proto.uint64_data.len(), numel)?;
            let mut bytes = Vec::with_capacity(proto.uint64_data.len() * 4);
            for &value in &proto.uint64_data {
                let value = u32::try_from(value).map_err(|_| misfit(value, dtype))?;
                bytes.extend_from_slice(&value.to_le_bytes());
            }
            bytes
        }
        _ => return decode_int32_data(&proto.int32_data, dtype, numel, dims),
    };
    Ok(Bytes::from(bytes))
}

fn misfit(value: impl std::fmt::Display, dtype: Dtype) -> CompileError {
    error(format!("value {value} does not fit {dtype}"))
}

/// Elements from `int32_data`: one each, or several for types narrower than six bits.
fn decode_int32_data(data: &[i32], dtype: Dtype, numel: usize, dims: &[usize]) -> Result<Bytes, CompileError> {
    let entries = if dtype.bits() < 6 { stored_len_bytes(dtype, numel)? } else { numel };
    expect_count("int32_data", data.len(), entries, dims)?;
    let (low, high) = int32_range(dtype);
    if let Some(value) = data.iter().find(|value| **value < low || **value > high) {
        return Err(misfit(value, dtype));
    }
    let bytes: Vec<u8> = match (dtype.bits(), dtype) {
        (32, _) => data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        (16, _) => data.iter().flat_map(|v| (*v as u16).to_le_bytes()).collect(),
        (2 | 4, _) => {
            let packed: Vec<u8> = data.iter().map(|v| *v as u8).collect();
            return unpack_raw(dtype, numel, Bytes::from(packed));
        }
        _ => data.iter().map(|v| *v as u8).collect(),
    };
    Ok(Bytes::from(bytes))
}

/// Entries of `int32_data` that stand for elements of `dtype`. Bit patterns may be written as
/// signed or as unsigned numbers.
fn int32_range(dtype: Dtype) -> (i32, i32) {
    match dtype {
        Dtype::I32 => (i32::MIN, i32::MAX),
        Dtype::I16 => (i16::MIN.into(), i16::MAX.into()),
        Dtype::U16 => (0, u16::MAX.into()),
        Dtype::I8 => (i8::MIN.into(), i8::MAX.into()),
        Dtype::U8 => (0, u8::MAX.into()),
        Dtype::Bool => (0, 1),
        Dtype::F16 | Dtype::Bf16 => (i16::MIN.into(), u16::MAX.into()),
        Dtype::F6E2M3 | Dtype::F6E3M2 => (0, 63),
        _ => (i8::MIN.into(), u8::MAX.into()),
    }
}

/// Raw bytes as ONNX stores them to kiln's layout.
fn unpack_raw(dtype: Dtype, numel: usize, raw: Bytes) -> Result<Bytes, CompileError> {
    let wanted = stored_len_bytes(dtype, numel)?;
    if raw.len() != wanted {
        return Err(error(format!("{numel} elements of {dtype} need {wanted} bytes, found {}", raw.len())));
    }
    Ok(match dtype {
        Dtype::U4 | Dtype::F4E2M1 => unpack(&raw, numel, 4, |code| code),
        Dtype::I4 => unpack(&raw, numel, 4, |code| (((code << 4) as i8) >> 4) as u8),
        Dtype::U2 => unpack(&raw, numel, 2, |code| code),
        Dtype::I2 => unpack(&raw, numel, 2, |code| (((code << 6) as i8) >> 6) as u8),
        Dtype::F6E2M3 | Dtype::F6E3M2 => unpack6(&raw, numel),
        Dtype::Bool if raw.iter().any(|byte| *byte > 1) => raw.iter().map(|byte| u8::from(*byte != 0)).collect(),
        _ => raw,
    })
}

/// Codes of `bits` bits (a divisor of 8), low bits first, to one a byte.
fn unpack(raw: &[u8], numel: usize, bits: usize, widen: impl Fn(u8) -> u8) -> Bytes {
    let mask = (1u8 << bits) - 1;
    let mut out = Vec::with_capacity(numel);
    for byte in raw {
        for shift in (0..8).step_by(bits) {
            if out.len() < numel {
                out.push(widen((byte >> shift) & mask));
            }
        }
    }
    Bytes::from(out)
}

/// 6-bit codes, a bit stream that starts at the low bits, to one a byte.
fn unpack6(raw: &[u8], numel: usize) -> Bytes {
    let mut out = Vec::with_capacity(numel);
    for group in raw.chunks(3) {
        let stream = group.iter().enumerate().fold(0u32, |sum, (i, byte)| sum | u32::from(*byte) << (8 * i));
        for i in 0..4 {
            if out.len() < numel {
                out.push((stream >> (6 * i)) as u8 & 63);
            }
        }
    }
    Bytes::from(out)
}
