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
        _ => numel.saturating_mul(dtype.size_bytes()),
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
    let pair = numel.saturating_mul(2);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn proto(data_type: i32, dims: &[i64]) -> TensorProto {
        TensorProto { data_type, dims: dims.to_vec(), ..TensorProto::default() }
    }

    fn raw(data_type: i32, dims: &[i64], raw: &[u8]) -> TensorProto {
        TensorProto { raw_data: Some(Bytes::copy_from_slice(raw)), ..proto(data_type, dims) }
    }

    fn ints(data_type: i32, dims: &[i64], values: &[i32]) -> TensorProto {
        TensorProto { int32_data: values.to_vec(), ..proto(data_type, dims) }
    }

    fn decode(proto: TensorProto) -> Result<Tensor, String> {
        decode_tensor(proto, &mut ExternalFiles::new(None)).map_err(|e| e.message)
    }

    #[test]
    fn encodings() {
        let (f32_, u8_, i8_, u16_, i64_, bool_, f16, u32_, c64) = (1, 2, 3, 4, 7, 9, 10, 12, 14);
        let (f8, u4, i4, f4, u2, i2, f6) = (17, 21, 22, 23, 25, 26, 27);
        for (proto, bytes) in [
            (raw(f32_, &[], &[0, 0, 128, 63]), &[0, 0, 128, 63][..]),
            (raw(f32_, &[0, 4], &[]), &[]),
            (proto(f32_, &[3, 0]), &[]),
            (TensorProto { float_data: vec![1.0], ..proto(f32_, &[1]) }, &[0, 0, 128, 63]),
            (TensorProto { float_data: vec![1.0, 0.0], ..proto(c64, &[1]) }, &[0, 0, 128, 63, 0, 0, 0, 0]),
            (TensorProto { int64_data: vec![-2], ..proto(i64_, &[1]) }, &[254, 255, 255, 255, 255, 255, 255, 255]),
            (TensorProto { uint64_data: vec![u32::MAX.into()], ..proto(u32_, &[1]) }, &[255; 4]),
            (ints(u8_, &[2], &[0, 255]), &[0, 255]),
            (ints(i8_, &[2], &[-128, 127]), &[128, 127]),
            (ints(u16_, &[1], &[65535]), &[255, 255]),
            (ints(f16, &[2], &[0x3c00, -1]), &[0, 0x3c, 255, 255]),
            (ints(f8, &[2], &[0x7e, -128]), &[0x7e, 0x80]),
            (ints(bool_, &[2], &[1, 0]), &[1, 0]),
            (raw(bool_, &[3], &[1, 0, 7]), &[1, 0, 1]),
            (raw(u4, &[3], &[0xf1, 0xf2]), &[1, 15, 2]),
            (raw(i4, &[3], &[0xf1, 0x08]), &[1, 255, 248]),
            (raw(f4, &[2], &[0xf1]), &[1, 15]),
            (ints(u4, &[3], &[0xf1, 0x02]), &[1, 15, 2]),
            (ints(i4, &[2], &[-15]), &[1, 255]),
            (raw(u2, &[5], &[0b11_10_01_00, 1]), &[0, 1, 2, 3, 1]),
            (raw(i2, &[4], &[0b11_10_01_00]), &[0, 1, 254, 255]),
            (raw(f6, &[5], &[0x41, 0x40, 0xff, 0xa1]), &[1, 1, 52, 63, 33]),
            (ints(f6, &[2], &[63, 0]), &[63, 0]),
        ] {
            let shown = format!("{proto:?}");
            let tensor = decode(proto).unwrap_or_else(|e| panic!("{shown}: {e}"));
            assert_eq!(tensor.bytes().map(|b| &b[..]), Some(bytes), "{shown}");
        }
    }

    #[test]
    fn strings() {
        let two = vec![Bytes::from_static(b"a"), Bytes::from_static(b"\xff")];
        let tensor = decode(TensorProto { string_data: two.clone(), ..proto(8, &[2]) }).unwrap();
        assert_eq!(tensor.data, TensorData::Strings(Arc::new(two)));
        assert!(decode(raw(8, &[1], b"a")).is_err());
    }

    #[test]
    fn refused() {
        let external = |location| TensorProto {
            data_location: location,
            external_data: vec![Default::default()],
            ..proto(1, &[1])
        };
        for (proto, wanted) in [
            (proto(0, &[1]), "element type is UNDEFINED"),
            (proto(99, &[1]), "element type 99 is not one ONNX defines"),
            (proto(1, &[2]), "dims [2] need 2 entries of float_data, found 0"),
            (raw(1, &[2], &[0; 7]), "2 elements of f32 need 8 bytes, found 7"),
            (raw(21, &[3], &[0; 3]), "3 elements of u4 need 2 bytes, found 3"),
            (raw(1, &[-1], &[0; 4]), "dims [-1] are out of range"),
            (raw(1, &[1 << 32, 1 << 32], &[0; 4]), "dims [4294967296,4294967296] have too many elements to count"),
            (raw(1, &[1 << 62], &[0; 4]), "4611686018427387904 elements of f32 are more bytes than can be counted"),
            (TensorProto { float_data: vec![1.0], ..raw(1, &[1], &[0; 4]) }, "has both raw_data and float_data"),
            (ints(1, &[1], &[1]), "has int32_data, but elements of f32 stand in float_data"),
            (ints(3, &[1], &[128]), "value 128 does not fit i8"),
            (ints(9, &[1], &[2]), "value 2 does not fit bool"),
            (external(0), "has external_data, but its data location does not say EXTERNAL"),
            (external(1), "external data: has no location"),
            (external(2), "data location 2 is not one ONNX defines"),
        ] {
            assert_eq!(decode(proto), Err(wanted.to_owned()));
        }
    }
}
