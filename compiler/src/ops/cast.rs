//! Cast, CastLike: every pair of number types; BitCast. No call where the bits already are the result.
//!
//! A conversion is one call, or two or three through f32 or an 8-bit integer for types of a byte or less.
//! <https://onnx.ai/onnx/operators/onnx__Cast.html>, <https://onnx.ai/onnx/operators/onnx__CastLike.html>,
//! <https://onnx.ai/onnx/operators/onnx__BitCast.html>

use super::binary::{expressions, memory_type};
use super::broadcast::result_extents;
use super::view::{NodeView, Result, wrong};
use super::{InferCx, LayoutRule, OpDef, flops_per_element, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Cast, Decode, Dtype, Encode, IntOp, NonZeroMask, Operand, PowerRounding, SmallFloat, UnaryInt};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "Cast", &[1, 6, 9, 13, 19, 21, 23, 24, 25, 28], infer, lower)
        .with_dims(dims)
        .with_flops(flops_per_element)
        .with_layout(LayoutRule::Elementwise),
    OpDef::new("", "CastLike", &[15, 19, 21, 23, 24, 25], infer, lower).with_dims(dims).with_flops(flops_per_element),
    OpDef::new("", "BitCast", &[26], infer_bits, lower_bits).with_layout(LayoutRule::Elementwise),
];

/// The target type.
fn target(cx: &NodeView<'_>) -> Result<Dtype> {
    if cx.node.op == "CastLike" {
        return cx.dtype(1);
    }
    // Opset 1 spells the type's name.
    if cx.version() < 6
        && let Ok(Some(name)) = cx.opt_text("to")
    {
        return Dtype::ALL
            .into_iter()
            .find(|&d| old_name(d) == Some(name))
            .ok_or_else(|| wrong(format!("unknown type {name}")).at_attribute("to"));
    }
    let to = cx.opt_int("to")?.ok_or_else(|| wrong("is missing").at_attribute("to"))?;
    let dtype = i32::try_from(to).ok().and_then(Dtype::from_onnx);
    dtype.ok_or_else(|| wrong(format!("unknown type {to}")).at_attribute("to"))
}

fn old_name(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::F32 => "FLOAT",
        Dtype::F64 => "DOUBLE",
        Dtype::F16 => "FLOAT16",
        Dtype::I8 => "INT8",
        Dtype::I16 => "INT16",
        Dtype::I32 => "INT32",
        Dtype::I64 => "INT64",
        Dtype::U8 => "UINT8",
        Dtype::U16 => "UINT16",
        Dtype::U32 => "UINT32",
        Dtype::U64 => "UINT64",
        Dtype::Bool => "BOOL",
        _ => return None,
    })
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let to = target(cx)?;
    for dtype in [cx.dtype(0)?, to] {
        if dtype == Dtype::Str {
            return Err(wrong("strings are not supported"));
        }
        if dtype.is_complex() {
            return Err(wrong(format!("no conversion from or to {dtype}")));
        }
    }
    Rules::of(cx)?;
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(to, shape));
    Ok(())
}

/// How values that do not fit a small float are treated.
#[derive(Clone, Copy)]
struct Rules {
    saturate: bool,
    infinity_saturates: bool,
    rounding: PowerRounding,
}

impl Rules {
    fn of(cx: &NodeView<'_>) -> Result<Self> {
        let rounding = match cx.text("round_mode", "up")? {
            "up" => PowerRounding::Up,
            "down" => PowerRounding::Down,
            "nearest" => PowerRounding::Nearest,
            other => {
                return Err(wrong(format!("expected up, down or nearest, found {other}")).at_attribute("round_mode"));
            }
        };
        Ok(Self { saturate: cx.int("saturate", 1)? != 0, infinity_saturates: cx.version() >= 24, rounding })
    }
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let (from, to) = (cx.dtype(0)?, target(cx)?);
    if same_bits(from, to) {
        return cx.view_of(0, 0);
    }
    let rules = Rules::of(cx)?;
    let n = result_extents(cx)?.into_iter().product();
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    convert(cx, rules, (from, x), (to, y), &n)
}

/// Bits of the integers of a type narrower than a byte.
fn narrow_bits(dtype: Dtype) -> Option<usize> {
    matches!(dtype, Dtype::I4 | Dtype::U4 | Dtype::I2 | Dtype::U2).then(|| dtype.bits())
}

/// Whether every value of `from` already lies in memory as the result.
fn same_bits(from: Dtype, to: Dtype) -> bool {
    if from == to {
        return true;
    }
    let whole = |d: Dtype| d.is_int() || d == Dtype::Bool;
    if !whole(from) || !whole(to) || from.size_bytes() != to.size_bytes() || to == Dtype::Bool {
        return false;
    }
    match (from, narrow_bits(to)) {
        (_, None) | (Dtype::Bool, _) => true,
        // Unsigned values below the target's range, or signed ones within it.
        (_, Some(bits)) => narrow_bits(from).is_some_and(|own| own < bits && (!from.is_signed() || to.is_signed())),
    }
}

/// The unsigned integer of a memory type's size.
fn unsigned(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::I8 => Dtype::U8,
        Dtype::I16 => Dtype::U16,
        Dtype::I32 => Dtype::U32,
        Dtype::I64 => Dtype::U64,
        other => other,
    }
}

/// The instantiation of [`Cast`] between two memory types.
fn cast_key(from: Dtype, to: Dtype) -> [Dtype; 2] {
    if from.is_float() {
        // 32- and 64-bit targets keep their sign; narrower ones keep low bits.
        let to = if to.size_bytes() < 4 && !to.is_float() { unsigned(to) } else { to };
        return [from, to];
    }
    if to.is_float() {
        return [from, to];
    }
    let widens = to.size_bytes() > from.size_bytes();
    [if widens { from } else { unsigned(from) }, unsigned(to)]
}

/// Adds the calls that convert `n` elements.
fn convert(
    cx: &mut LowerCx<'_>,
    rules: Rules,
    (from, x): (Dtype, Operand<Dim>),
    (to, y): (Dtype, Operand<Dim>),
    n: &Dim,
) -> Result<()> {
    if let Some(format) = SmallFloat::of(from) {
        let through = |cx: &mut LowerCx<'_>, wide: Operand<Dim>| {
            cx.call(&[Dtype::U8, Dtype::F32], Decode { x: x.clone(), y: wide, n: n.clone(), format })
        };
        if to == Dtype::F32 {
            return through(cx, y);
        }
        let wide = cx.scratch(n.clone() * Dim::Const(4));
        through(cx, wide.clone())?;
        return convert(cx, rules, (Dtype::F32, wide), (to, y), n);
    }
    let from = memory_type(from);
    if let Some(format) = SmallFloat::of(to) {
        if from != Dtype::F32 && from != Dtype::F64 {
            // Exact, or far beyond the target's range.
            let wide = cx.scratch(n.clone() * Dim::Const(4));
            convert(cx, rules, (from, x), (Dtype::F32, wide.clone()), n)?;
            return convert(cx, rules, (Dtype::F32, wide), (to, y), n);
        }
        let Rules { saturate, infinity_saturates, rounding } = rules;
        return cx
            .call(&[from, Dtype::U8], Encode { x, y, n: n.clone(), format, saturate, infinity_saturates, rounding });
    }
    if to == Dtype::Bool {
        return cx.call(&[unsigned(from), Dtype::U8], NonZeroMask { x, y, n: n.clone() });
    }
    let Some(bits) = narrow_bits(to) else { return cx.call(&cast_key(from, to), Cast { x, y, n: n.clone() }) };
    // To a byte first, then its low bits.
    let byte = memory_type(to);
    let x = if from.size_bytes() == 1 {
        x
    } else {
        cx.call(&cast_key(from, byte), Cast { x, y: y.clone(), n: n.clone() })?;
        y.clone()
    };
    let op = if bits == 4 { IntOp::Low4 } else { IntOp::Low2 };
    cx.call(&[byte], UnaryInt { x, y, n: n.clone(), op, a: 0.0, b: 0.0 })
}

/// Adds the calls that convert `n` elements between two types of whole bytes.
pub(super) fn convert_plain(
    cx: &mut LowerCx<'_>,
    from: (Dtype, Operand<Dim>),
    to: (Dtype, Operand<Dim>),
    n: &Dim,
) -> Result<()> {
    let rules = Rules { saturate: true, infinity_saturates: true, rounding: PowerRounding::Up };
    convert(cx, rules, from, to, n)
}

fn infer_bits(cx: &mut InferCx<'_>) -> Result<()> {
    let (from, to) = (cx.dtype(0)?, target(cx)?);
    if from == Dtype::Str || to == Dtype::Str {
        return Err(wrong("strings have no bits to keep"));
    }
    if from.bits() != to.bits() {
        return Err(wrong(format!("{from} has {} bits, {to} has {}", from.bits(), to.bits())));
    }
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(to, shape));
    Ok(())
}

/// A view, except where a type's memory form differs: sign extension below a byte, bytes that are truth values.
fn lower_bits(cx: &mut LowerCx<'_>) -> Result<()> {
    let (from, to) = (cx.dtype(0)?, target(cx)?);
    let extends = |d: Dtype| matches!(d, Dtype::I4 | Dtype::I2);
    let truth = to == Dtype::Bool && from != Dtype::Bool;
    if !truth && extends(from) == extends(to) {
        return cx.view_of(0, 0);
    }
    let n: Dim = result_extents(cx)?.into_iter().product();
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    if truth {
        return cx.call(&[Dtype::U8, Dtype::U8], NonZeroMask { x, y, n });
    }
    let op = if to.bits() == 4 { IntOp::Low4 } else { IntOp::Low2 };
    let byte = if extends(to) { Dtype::I8 } else { Dtype::U8 };
    cx.call(&[byte], UnaryInt { x, y, n, op, a: 0.0, b: 0.0 })
}

/// Integers keep their values in wide enough types.
fn dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    if cx.constant(0).is_some() || !matches!(target(cx).ok()?, Dtype::I64 | Dtype::I32 | Dtype::F32 | Dtype::F64) {
        return None;
    }
    expressions(cx, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    const TYPES: [Dtype; 25] = [
        Dtype::F32,
        Dtype::F64,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::I8,
        Dtype::I16,
        Dtype::I32,
        Dtype::I64,
        Dtype::U8,
        Dtype::U16,
        Dtype::U32,
        Dtype::U64,
        Dtype::Bool,
        Dtype::F8E4M3FN,
        Dtype::F8E4M3FNUZ,
        Dtype::F8E5M2,
        Dtype::F8E5M2FNUZ,
        Dtype::F8E8M0,
        Dtype::F4E2M1,
        Dtype::F6E2M3,
        Dtype::F6E3M2,
        Dtype::I4,
        Dtype::U4,
        Dtype::I2,
        Dtype::U2,
    ];

    fn cast(x: Tensor, to: Dtype) -> Tensor {
        let to = Attr::Int(to.to_onnx().into());
        case("", "Cast", 28).input(x).attr("to", to).run().unwrap().remove(0)
    }

    /// One, which every type holds, keeps its value on the way from any type to any other and back.
    #[test]
    fn every_pair() {
        let ones = Tensor::from_f32s(&[3], &[1.0; 3]);
        for from in TYPES {
            let x = cast(ones.clone(), from);
            for to in TYPES {
                let y = cast(x.clone(), to);
                assert_eq!((y.dtype(), y.dims()), (to, &[3][..]));
                assert_eq!(cast(y, Dtype::F32), ones, "{from} to {to}");
            }
        }
    }

    #[test]
    fn bits() {
        let x = Tensor::from_f32s(&[2], &[1.0, -0.0]);
        let bits = |x: Tensor, to: Dtype| case("", "BitCast", 26).input(x).attr("to", Attr::Int(to.to_onnx().into()));
        let y = bits(x.clone(), Dtype::I32).run().unwrap();
        assert_eq!(y[0], Tensor::from_i32s(&[2], &[0x3f80_0000, i32::MIN]));
        assert!(bits(x, Dtype::I64).infer().is_err());
        let nibbles = Tensor::new(Dtype::I4, vec![2], vec![0xffu8, 7].into()).unwrap();
        assert_eq!(bits(nibbles, Dtype::U4).run().unwrap()[0].data()[..], [15, 7]);
        let codes = Tensor::new(Dtype::F4E2M1, vec![2], vec![15u8, 7].into()).unwrap();
        assert_eq!(bits(codes, Dtype::I4).run().unwrap()[0].data()[..], [0xff, 7]);
    }

    #[test]
    fn values() {
        let x = Tensor::from_f32s(&[4], &[-9.0, 15.0, -1.5, 300.0]);
        for (to, want) in [
            (Dtype::I4, [7u8, 0xff, 0xff, 0xfc]),
            (Dtype::U4, [7, 15, 15, 12]),
            (Dtype::U2, [3, 3, 3, 0]),
            (Dtype::I8, [0xf7, 15, 0xff, 44]),
            (Dtype::Bool, [1, 1, 1, 1]),
            (Dtype::F8E4M3FN, [0xd1, 0x57, 0xbc, 0x79]),
        ] {
            assert_eq!(cast(x.clone(), to).data()[..], want, "{to}");
        }
        let x = Tensor::from_i64s(&[3], &[1_099_511_627_781, -129, 2_147_483_648]);
        assert_eq!(cast(x.clone(), Dtype::I32), Tensor::from_i32s(&[3], &[5, -129, i32::MIN]));
        assert_eq!(cast(x, Dtype::I8).data()[..], [5, 127, 0]);
        let like =
            case("", "CastLike", 19).input(Tensor::from_f32s(&[1], &[2.9])).input(Tensor::from_i64s(&[2], &[0, 0]));
        assert_eq!(like.run().unwrap()[0], Tensor::from_i64s(&[1], &[2]));
        let old = case("", "Cast", 1).input(Tensor::from_f32s(&[1], &[2.9])).attr("to", Attr::Str(b"INT32".to_vec()));
        assert_eq!(old.run().unwrap()[0], Tensor::from_i32s(&[1], &[2]));
        assert!(case("", "Cast", 13).input(Tensor::from_f32s(&[1], &[2.9])).infer().is_err());
        let none = case("", "Cast", 13).input(Tensor::from_f32s(&[1], &[2.9])).attr("to", Attr::Int(0));
        assert!(none.infer().is_err());
    }
}
