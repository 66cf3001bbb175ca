//! Conversion between element types.
//!
//! Float to float rounds once, to nearest, ties to even. Float to integer truncates; what the target does not hold is
//! undefined in ONNX and here: i32, i64 and u64 saturate, u32 keeps the low bits of the i64 value and narrower types those
//! of the i32 value (as x86 compilers do), NaN is 0.
//! Integer to integer keeps the low bits, so that targets are the unsigned types and a signed source extends its sign.
//! Integer to float rounds once. Types of a byte or less go through f32 (`Decode`, `Encode`) or through 8-bit integers.
//! <https://onnx.ai/onnx/operators/onnx__Cast.html>

use crate::half::f64_to_f32_odd;
use crate::small_float::encode_e8m0;
use crate::{Dtype, Elem, Fault, Isa, PowerRounding, SmallFloat, bf16, f16, kernel, simd_fn};

/// A conversion between two types.
trait CastTo<B> {
    fn cast(self) -> B;
}

macro_rules! casts {
    ($($a:ty => $($b:ty),+ : |$x:ident| $value:expr;)*) => { $($(impl CastTo<$b> for $a {
        #[inline(always)]
        fn cast(self) -> $b {
            let $x = self;
            ($value) as $b
        }
    })+)* };
}
casts! {
    u16 => u8: |x| x;
    u32 => u8, u16: |x| x;
    u64 => u8, u16, u32: |x| x;
    i8 => u16, u32, u64: |x| x;
    u8 => u16, u32, u64: |x| x;
    i16 => u32, u64: |x| x;
    u16 => u32, u64: |x| x;
    i32 => u64: |x| x;
    u32 => u64: |x| x;
    i8 => f32, f64: |x| x;
    u8 => f32, f64: |x| x;
    i16 => f32, f64: |x| x;
    u16 => f32, f64: |x| x;
    i32 => f32, f64: |x| x;
    u32 => f32, f64: |x| x;
    i64 => f32, f64: |x| x;
    u64 => f32, f64: |x| x;
    f32 => f64: |x| x;
    f64 => f32: |x| x;
    f16 => f32, f64: |x| x.to_f32();
    bf16 => f32, f64: |x| x.to_f32();
    f32 => i64, u64: |x| x;
    f64 => i64, u64: |x| x;
    f16 => i64, u64: |x| x.to_f32();
    bf16 => i64, u64: |x| x.to_f32();
    f32 => u8, u16, i32: |x| truncate(x);
    f32 => u32: |x| x as i64;
    f64 => u8, u16: |x| x as i32;
    f64 => i32: |x| x;
    f64 => u32: |x| x as i64;
    f16 => u8, u16, i32: |x| truncate(x.to_f32());
    f16 => u32: |x| x.to_f32() as i64;
    bf16 => u8, u16, i32: |x| truncate(x.to_f32());
    bf16 => u32: |x| x.to_f32() as i64;
}

/// `x as i32` in a form that becomes vector instructions.
#[inline(always)]
fn truncate(x: f32) -> i32 {
    const LIMIT: f32 = 2_147_483_648.0;
    let inside = if (-LIMIT..LIMIT).contains(&x) { x } else { 0.0 };
    // SAFETY: a finite value whose integer part i32 holds.
    let whole = unsafe { inside.to_int_unchecked::<i32>() };
    if x >= LIMIT {
        i32::MAX
    } else if x < -LIMIT {
        i32::MIN
    } else {
        whole
    }
}

macro_rules! casts_to_half {
    ($($t:ident),*) => { $(
        impl CastTo<$t> for f32 {
            #[inline(always)]
            fn cast(self) -> $t {
                $t::from_f32(self)
            }
        }
        impl CastTo<$t> for f64 {
            #[inline(always)]
            fn cast(self) -> $t {
                $t::from_f64(self)
            }
        }
        casts_to_half!(@small $t: i8, u8, i16, u16, i32, u32);
        casts_to_half!(@large $t: i64, u64);
    )* };
    (@small $t:ident: $($a:ident),*) => { $(impl CastTo<$t> for $a {
        #[inline(always)]
        fn cast(self) -> $t {
            $t::from_f64(f64::from(self))
        }
    })* };
    // What f64 cannot hold is cut off and leaves a last bit set, so that the rounding is still right.
    (@large $t:ident: $($a:ident),*) => { $(impl CastTo<$t> for $a {
        #[inline(always)]
        fn cast(self) -> $t {
            const CUT: $a = (1 << 11) - 1;
            let whole = if self >> 53 == 0 || self >> 53 == !0 { self } else {
                self & !CUT | <$a>::from(self & CUT != 0) << 11
            };
            $t::from_f64(whole as f64)
        }
    })* };
}
casts_to_half!(f16, bf16);

impl CastTo<bf16> for f16 {
    #[inline(always)]
    fn cast(self) -> bf16 {
        bf16::from_f32(self.to_f32())
    }
}

impl CastTo<f16> for bf16 {
    #[inline(always)]
    fn cast(self) -> f16 {
        f16::from_f32(self.to_f32())
    }
}

kernel! {
    /// `y = x` in another type.
    pub struct Cast {
        operands { read x: A, write y: B }
        nums { n }
    }
    entries {
        cast_u16_u8 { A = u16, B = u8 } cast_u32_u8 { A = u32, B = u8 } cast_u64_u8 { A = u64, B = u8 }
        cast_u32_u16 { A = u32, B = u16 } cast_u64_u16 { A = u64, B = u16 } cast_u64_u32 { A = u64, B = u32 }
        cast_i8_u16 { A = i8, B = u16 } cast_i8_u32 { A = i8, B = u32 } cast_i8_u64 { A = i8, B = u64 }
        cast_u8_u16 { A = u8, B = u16 } cast_u8_u32 { A = u8, B = u32 } cast_u8_u64 { A = u8, B = u64 }
        cast_i16_u32 { A = i16, B = u32 } cast_i16_u64 { A = i16, B = u64 }
        cast_u16_u32 { A = u16, B = u32 } cast_u16_u64 { A = u16, B = u64 }
        cast_i32_u64 { A = i32, B = u64 } cast_u32_u64 { A = u32, B = u64 }
        cast_i8_f32 { A = i8, B = f32 } cast_u8_f32 { A = u8, B = f32 }
        cast_i16_f32 { A = i16, B = f32 } cast_u16_f32 { A = u16, B = f32 }
        cast_i32_f32 { A = i32, B = f32 } cast_u32_f32 { A = u32, B = f32 }
        cast_i64_f32 { A = i64, B = f32 } cast_u64_f32 { A = u64, B = f32 }
        cast_i8_f64 { A = i8, B = f64 } cast_u8_f64 { A = u8, B = f64 }
        cast_i16_f64 { A = i16, B = f64 } cast_u16_f64 { A = u16, B = f64 }
        cast_i32_f64 { A = i32, B = f64 } cast_u32_f64 { A = u32, B = f64 }
        cast_i64_f64 { A = i64, B = f64 } cast_u64_f64 { A = u64, B = f64 }
        cast_i8_f16 { A = i8, B = f16 } cast_u8_f16 { A = u8, B = f16 }
        cast_i16_f16 { A = i16, B = f16 } cast_u16_f16 { A = u16, B = f16 }
        cast_i32_f16 { A = i32, B = f16 } cast_u32_f16 { A = u32, B = f16 }
        cast_i64_f16 { A = i64, B = f16 } cast_u64_f16 { A = u64, B = f16 }
        cast_i8_bf16 { A = i8, B = bf16 } cast_u8_bf16 { A = u8, B = bf16 }
        cast_i16_bf16 { A = i16, B = bf16 } cast_u16_bf16 { A = u16, B = bf16 }
        cast_i32_bf16 { A = i32, B = bf16 } cast_u32_bf16 { A = u32, B = bf16 }
        cast_i64_bf16 { A = i64, B = bf16 } cast_u64_bf16 { A = u64, B = bf16 }
        cast_f32_f64 { A = f32, B = f64 } cast_f32_f16 { A = f32, B = f16 } cast_f32_bf16 { A = f32, B = bf16 }
        cast_f64_f32 { A = f64, B = f32 } cast_f64_f16 { A = f64, B = f16 } cast_f64_bf16 { A = f64, B = bf16 }
        cast_f16_f32 { A = f16, B = f32 } cast_f16_f64 { A = f16, B = f64 } cast_f16_bf16 { A = f16, B = bf16 }
        cast_bf16_f32 { A = bf16, B = f32 } cast_bf16_f64 { A = bf16, B = f64 } cast_bf16_f16 { A = bf16, B = f16 }
        cast_f32_u8 { A = f32, B = u8 } cast_f32_u16 { A = f32, B = u16 } cast_f32_u32 { A = f32, B = u32 }
        cast_f32_u64 { A = f32, B = u64 } cast_f32_i32 { A = f32, B = i32 } cast_f32_i64 { A = f32, B = i64 }
        cast_f64_u8 { A = f64, B = u8 } cast_f64_u16 { A = f64, B = u16 } cast_f64_u32 { A = f64, B = u32 }
        cast_f64_u64 { A = f64, B = u64 } cast_f64_i32 { A = f64, B = i32 } cast_f64_i64 { A = f64, B = i64 }
        cast_f16_u8 { A = f16, B = u8 } cast_f16_u16 { A = f16, B = u16 } cast_f16_u32 { A = f16, B = u32 }
        cast_f16_u64 { A = f16, B = u64 } cast_f16_i32 { A = f16, B = i32 } cast_f16_i64 { A = f16, B = i64 }
        cast_bf16_u8 { A = bf16, B = u8 } cast_bf16_u16 { A = bf16, B = u16 } cast_bf16_u32 { A = bf16, B = u32 }
        cast_bf16_u64 { A = bf16, B = u64 } cast_bf16_i32 { A = bf16, B = i32 } cast_bf16_i64 { A = bf16, B = i64 }
    }
    body = cast;
}

fn cast<A: Elem + CastTo<B>, B: Elem>(isa: Isa, d: &Cast, x: &[A], y: &mut [B]) -> Result<(), Fault> {
    if x.len() != d.n || y.len() != d.n {
        return Err(Fault::Descriptor);
    }
    if const { matches!(A::DTYPE, Dtype::F32) || matches!(B::DTYPE, Dtype::F32) } {
        cast_on(isa, x, y);
    } else {
        cast_all(x, y);
    }
    Ok(())
}

#[inline(always)]
fn cast_all<A: Elem + CastTo<B>, B: Elem>(x: &[A], y: &mut [B]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = x.cast();
    }
}

simd_fn! {
    /// The loop for each instruction set, for what networks spend time on: to and from f32. No set changes a result.
    fn cast_on<S>[A: Elem + CastTo<B>, B: Elem][A, B](s, x: &[A], y: &mut [B]) {
        let _ = s;
        cast_all(x, y);
    }
}

kernel! {
    /// `y = x is not zero`, one byte per element.
    pub struct NonZeroMask {
        operands { read x: T, write y: Truth }
        nums { n }
    }
    entries {
        cast_u8_bool { T = u8, Truth = u8 } cast_u16_bool { T = u16, Truth = u8 }
        cast_u32_bool { T = u32, Truth = u8 } cast_u64_bool { T = u64, Truth = u8 }
        cast_f32_bool { T = f32, Truth = u8 } cast_f64_bool { T = f64, Truth = u8 }
        cast_f16_bool { T = f16, Truth = u8 } cast_bf16_bool { T = bf16, Truth = u8 }
    }
    body = non_zero;
}

fn non_zero<T: Elem>(_: Isa, d: &NonZeroMask, x: &[T], y: &mut [u8]) -> Result<(), Fault> {
    if x.len() != d.n || y.len() != d.n {
        return Err(Fault::Descriptor);
    }
    for (y, &x) in y.iter_mut().zip(x) {
        *y = (x != T::default()).into();
    }
    Ok(())
}

kernel! {
    /// The values of small-float codes.
    pub struct Decode {
        operands { read x: Code, write y: T }
        nums { n }
        params { format: SmallFloat }
    }
    entries { decode_f32 { Code = u8, T = f32 } }
    body = decode;
}

fn decode(_: Isa, d: &Decode, x: &[u8], y: &mut [f32]) -> Result<(), Fault> {
    if x.len() != d.n || y.len() != d.n {
        return Err(Fault::Descriptor);
    }
    for (y, &x) in y.iter_mut().zip(x) {
        *y = d.format.decode(x);
    }
    Ok(())
}

kernel! {
    /// Small-float codes of values; `rounding` is for `f8e8m0` alone.
    pub struct Encode {
        operands { read x: T, write y: Code }
        nums { n }
        params { format: SmallFloat, saturate: bool, infinity_saturates: bool, rounding: PowerRounding }
    }
    entries { encode_f32 { T = f32, Code = u8 } encode_f64 { T = f64, Code = u8 } }
    body = encode;
}

/// A float that becomes an f32 with the same rounding to any narrower format.
trait ToOdd: Copy {
    fn to_odd(self) -> f32;
}

impl ToOdd for f32 {
    fn to_odd(self) -> f32 {
        self
    }
}

impl ToOdd for f64 {
    fn to_odd(self) -> f32 {
        f64_to_f32_odd(self)
    }
}

fn encode<T: ToOdd>(_: Isa, d: &Encode, x: &[T], y: &mut [u8]) -> Result<(), Fault> {
    if x.len() != d.n || y.len() != d.n {
        return Err(Fault::Descriptor);
    }
    if d.format == SmallFloat::F8E8M0 {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = encode_e8m0(x.to_odd(), d.rounding, d.saturate);
        }
        return Ok(());
    }
    for (y, &x) in y.iter_mut().zip(x) {
        *y = d.format.encode(x.to_odd(), d.saturate, d.infinity_saturates);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to<A: CastTo<B>, B>(x: A) -> B {
        x.cast()
    }

    #[test]
    fn values() {
        for (x, byte, word, long) in [
            (1.9f32, 1u8, 1i32, 1i64),
            (-1.9, 255, -1, -1),
            (300.0, 44, 300, 300),
            (f32::NAN, 0, 0, 0),
            (1e30, 255, i32::MAX, i64::MAX),
            (-0.5, 0, 0, 0),
            (-2147483648.0, 0, i32::MIN, -2147483648),
            (f32::NEG_INFINITY, 0, i32::MIN, i64::MIN),
            (2147483520.0, 128, 2147483520, 2147483520),
        ] {
            assert_eq!((to::<_, u8>(x), to::<_, i32>(x), to::<_, i64>(x)), (byte, word, long), "{x}");
        }
        assert_eq!(to::<i8, u64>(-1), u64::MAX);
        assert_eq!(to::<u64, u8>(0x1ff), 0xff);
        assert_eq!(to::<i64, f32>(i64::MAX), 9.223372e18);
        assert_eq!(to::<i64, f16>(70000).to_bits(), 0x7c00);
        assert_eq!(to::<i64, f16>(2049).to_f32(), 2048.0);
        assert_eq!(to::<i32, bf16>(257).to_f32(), 256.0);
        // Just above the middle between two bf16: f64 rounds it to the middle, and that would go down to the even one.
        assert_eq!(to::<i64, bf16>((0x101 << 54) + 1).to_f32(), 2f32.powi(62) * (1.0 + 1.0 / 128.0));
        assert_eq!(to::<i64, bf16>(-(0x101 << 54) - 1).to_f32(), -(2f32.powi(62)) * (1.0 + 1.0 / 128.0));
        assert_eq!(to::<u64, bf16>((0x101 << 54) + 1).to_f32(), 2f32.powi(62) * (1.0 + 1.0 / 128.0));
    }
}
