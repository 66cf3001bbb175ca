//! Element types of tensors: what ONNX's `TensorProto.DataType` names, as kiln stores it in memory.
//!
//! In memory every element takes `size_bytes()` whole bytes, little endian. Types narrower than a
//! byte are unpacked to one element per byte: signed ones sign-extended, unsigned ones
//! zero-extended, `f4e2m1`, `f6e2m3` and `f6e3m2` as their raw codes. `bool` is one byte, 0 or 1. Complex numbers are
//! (real, imaginary) pairs. Strings have no fixed size: their `size_bytes()` is 0.
//!
//! Invariant: the discriminants equal ONNX's numbers, so `to_onnx` is a cast.
//! Source: <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>, `TensorProto.DataType`.

use core::fmt;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32 = 1,
    /// Unsigned 8-bit integer.
    U8 = 2,
    /// Signed 8-bit integer.
    I8 = 3,
    /// Unsigned 16-bit integer.
    U16 = 4,
    /// Signed 16-bit integer.
    I16 = 5,
    /// Signed 32-bit integer.
    I32 = 6,
    /// Signed 64-bit integer.
    I64 = 7,
    /// A string of bytes, UTF-8 by convention; no fixed size.
    Str = 8,
    /// One byte, 0 or 1.
    Bool = 9,
    /// IEEE 754 binary16.
    F16 = 10,
    /// IEEE 754 binary64.
    F64 = 11,
    /// Unsigned 32-bit integer.
    U32 = 12,
    /// Unsigned 64-bit integer.
    U64 = 13,
    /// Two `f32`: real, imaginary.
    C64 = 14,
    /// Two `f64`: real, imaginary.
    C128 = 15,
    /// The upper half of an `f32`.
    Bf16 = 16,
    /// 8-bit float: 4 exponent bits, 3 mantissa bits, no infinities.
    F8E4M3FN = 17,
    /// As `F8E4M3FN` with bias 8, one NaN (0x80) and no negative zero.
    F8E4M3FNUZ = 18,
    /// 8-bit float: 5 exponent bits, 2 mantissa bits, IEEE-like.
    F8E5M2 = 19,
    /// As `F8E5M2` with bias 16, one NaN (0x80), no infinities and no negative zero.
    F8E5M2FNUZ = 20,
    /// Unsigned 4-bit integer, one per byte.
    U4 = 21,
    /// Signed 4-bit integer, one per byte, sign-extended.
    I4 = 22,
    /// 4-bit float: 2 exponent bits, 1 mantissa bit; its code in the low half of a byte.
    F4E2M1 = 23,
    /// 8-bit power of two: 8 exponent bits, no sign, no mantissa; 0xff is NaN.
    F8E8M0 = 24,
    /// Unsigned 2-bit integer, one per byte.
    U2 = 25,
    /// Signed 2-bit integer, one per byte, sign-extended.
    I2 = 26,
    /// 6-bit float: 2 exponent bits, 3 mantissa bits; its code in the low six bits of a byte.
    F6E2M3 = 27,
    /// 6-bit float: 3 exponent bits, 2 mantissa bits; its code in the low six bits of a byte.
    F6E3M2 = 28,
}

impl Dtype {
    /// Every element type, in the order of ONNX's numbers.
    pub const ALL: [Dtype; 28] = [
        Dtype::F32,
        Dtype::U8,
        Dtype::I8,
        Dtype::U16,
        Dtype::I16,
        Dtype::I32,
        Dtype::I64,
        Dtype::Str,
        Dtype::Bool,
        Dtype::F16,
        Dtype::F64,
        Dtype::U32,
        Dtype::U64,
        Dtype::C64,
        Dtype::C128,
        Dtype::Bf16,
        Dtype::F8E4M3FN,
        Dtype::F8E4M3FNUZ,
        Dtype::F8E5M2,
        Dtype::F8E5M2FNUZ,
        Dtype::U4,
        Dtype::I4,
        Dtype::F4E2M1,
        Dtype::F8E8M0,
        Dtype::U2,
        Dtype::I2,
        Dtype::F6E2M3,
        Dtype::F6E3M2,
    ];

    /// The type that ONNX numbers `data_type`; `None` for UNDEFINED and unknown numbers.
    pub const fn from_onnx(data_type: i32) -> Option<Dtype> {
        let mut i = 0;
        while i < Self::ALL.len() {
            if Self::ALL[i] as i32 == data_type {
                return Some(Self::ALL[i]);
            }
            i += 1;
        }
        None
    }

    /// ONNX's number for this type.
    pub const fn to_onnx(self) -> i32 {
        self as i32
    }

    /// Bytes that one element takes in memory (types narrower than a byte take one, strings 0).
    pub const fn size_bytes(self) -> usize {
        match self {
            Dtype::C128 => 16,
            Dtype::F64 | Dtype::I64 | Dtype::U64 | Dtype::C64 => 8,
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 | Dtype::U16 => 2,
            Dtype::Str => 0,
            _ => 1,
        }
    }

    /// Alignment that a typed slice of this type needs, in bytes.
    pub const fn align_bytes(self) -> usize {
        match self {
            Dtype::C128 => 8,
            Dtype::C64 => 4,
            Dtype::Str => 1,
            _ => self.size_bytes(),
        }
    }

    /// Bits that one element holds: what ONNX's packed encodings and hardware count.
    pub const fn bits(self) -> usize {
        match self {
            Dtype::U2 | Dtype::I2 => 2,
            Dtype::U4 | Dtype::I4 | Dtype::F4E2M1 => 4,
            Dtype::F6E2M3 | Dtype::F6E3M2 => 6,
            _ => self.size_bytes() * 8,
        }
    }

    /// A real floating-point type of any width.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Dtype::F32
                | Dtype::F64
                | Dtype::F16
                | Dtype::Bf16
                | Dtype::F8E4M3FN
                | Dtype::F8E4M3FNUZ
                | Dtype::F8E5M2
                | Dtype::F8E5M2FNUZ
                | Dtype::F8E8M0
                | Dtype::F4E2M1
                | Dtype::F6E2M3
                | Dtype::F6E3M2
        )
    }

    /// An 8-bit floating-point type.
    pub const fn is_float8(self) -> bool {
        self.is_float() && self.bits() == 8
    }

    /// An integer type of any width; `bool` is none.
    pub const fn is_int(self) -> bool {
        !self.is_float() && !self.is_complex() && !matches!(self, Dtype::Bool | Dtype::Str)
    }

    /// A type that holds negative numbers (complex numbers count as signed).
    pub const fn is_signed(self) -> bool {
        !matches!(
            self,
            Dtype::U8
                | Dtype::U16
                | Dtype::U32
                | Dtype::U64
                | Dtype::U4
                | Dtype::U2
                | Dtype::Bool
                | Dtype::F8E8M0
                | Dtype::Str
        )
    }

    /// A complex type.
    pub const fn is_complex(self) -> bool {
        matches!(self, Dtype::C64 | Dtype::C128)
    }

    /// Narrower than a byte: packed in ONNX files, unpacked in memory.
    pub const fn is_sub_byte(self) -> bool {
        self.bits() < 8 && !matches!(self, Dtype::Str)
    }

    /// The short name, as in ONNX's text form without spaces: `f32`, `i64`, `f8e4m3fn`.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::U8 => "u8",
            Dtype::I8 => "i8",
            Dtype::U16 => "u16",
            Dtype::I16 => "i16",
            Dtype::I32 => "i32",
            Dtype::I64 => "i64",
            Dtype::Str => "str",
            Dtype::Bool => "bool",
            Dtype::F16 => "f16",
            Dtype::F64 => "f64",
            Dtype::U32 => "u32",
            Dtype::U64 => "u64",
            Dtype::C64 => "c64",
            Dtype::C128 => "c128",
            Dtype::Bf16 => "bf16",
            Dtype::F8E4M3FN => "f8e4m3fn",
            Dtype::F8E4M3FNUZ => "f8e4m3fnuz",
            Dtype::F8E5M2 => "f8e5m2",
            Dtype::F8E5M2FNUZ => "f8e5m2fnuz",
            Dtype::U4 => "u4",
            Dtype::I4 => "i4",
            Dtype::F4E2M1 => "f4e2m1",
            Dtype::F8E8M0 => "f8e8m0",
            Dtype::U2 => "u2",
            Dtype::I2 => "i2",
            Dtype::F6E2M3 => "f6e2m3",
            Dtype::F6E3M2 => "f6e3m2",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_onnx(dtype.to_onnx()), Some(dtype));
        }
        for unknown in [-1, 0, 29, i32::MAX] {
            assert_eq!(Dtype::from_onnx(unknown), None);
        }
    }

    #[test]
    fn sizes_and_kinds() {
        for (dtype, size, bits, float, signed) in [
            (Dtype::F32, 4, 32, true, true),
            (Dtype::C128, 16, 128, false, true),
            (Dtype::U4, 1, 4, false, false),
            (Dtype::I2, 1, 2, false, true),
            (Dtype::F4E2M1, 1, 4, true, true),
            (Dtype::F8E8M0, 1, 8, true, false),
            (Dtype::F6E3M2, 1, 6, true, true),
            (Dtype::Str, 0, 0, false, false),
            (Dtype::Bool, 1, 8, false, false),
            (Dtype::Bf16, 2, 16, true, true),
        ] {
            assert_eq!((dtype.size_bytes(), dtype.bits()), (size, bits), "{dtype}");
            assert_eq!((dtype.is_float(), dtype.is_signed()), (float, signed), "{dtype}");
        }
    }
}
