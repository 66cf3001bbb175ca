//! Numbers of attributes as bytes of an element type.

use kiln_kernels::{Dtype, bf16, f16};

/// A number as one element, rounded and saturated; `None` for types that hold no plain numbers.
pub(super) fn number_bytes(v: f64, dtype: Dtype) -> Option<Vec<u8>> {
    Some(match dtype {
        Dtype::F32 => (v as f32).to_le_bytes().to_vec(),
        Dtype::F64 => v.to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f64(v).to_bits().to_le_bytes().to_vec(),
        Dtype::Bf16 => bf16::from_f64(v).to_bits().to_le_bytes().to_vec(),
        Dtype::U8 => vec![v as u8],
        Dtype::I8 => (v as i8).to_le_bytes().to_vec(),
        Dtype::U16 => (v as u16).to_le_bytes().to_vec(),
        Dtype::I16 => (v as i16).to_le_bytes().to_vec(),
        Dtype::U32 => (v as u32).to_le_bytes().to_vec(),
        Dtype::I32 => (v as i32).to_le_bytes().to_vec(),
        Dtype::U64 => (v as u64).to_le_bytes().to_vec(),
        Dtype::I64 => (v as i64).to_le_bytes().to_vec(),
        Dtype::Bool => vec![u8::from(v != 0.0)],
        _ if v == 0.0 => vec![0; dtype.size_bytes()],
        _ => return None,
    })
}
