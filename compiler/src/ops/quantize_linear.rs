//! QuantizeLinear and DequantizeLinear: per tensor, per axis, in blocks along an axis.
//!
//! <https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html>
//! <https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html>

use super::binary::memory_type;
use super::quant::{Arrangement, as_f32, limits, precision};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, LayoutRule, OpDef, flops_per_element, half, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Decode, Dequantize, Dtype, Operand, Precision, Quantize, QuantizeSmall, SmallFloat};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "QuantizeLinear", &[10, 13, 19, 21, 23, 24, 25, 28], infer_quantize, lower_quantize)
        .with_flops(flops_per_element)
        .with_layout(LayoutRule::Elementwise),
    OpDef::new("", "DequantizeLinear", &[10, 13, 19, 21, 23, 24, 25, 28], infer_dequantize, lower_dequantize)
        .with_flops(flops_per_element)
        .with_layout(LayoutRule::Elementwise),
    OpDef::new("com.microsoft", "QuantizeLinear", &[1], infer_quantize, lower_quantize).with_flops(flops_per_element),
    OpDef::new("com.microsoft", "DequantizeLinear", &[1], infer_dequantize, lower_dequantize)
        .with_flops(flops_per_element),
];

const SCALES: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::F8E8M0, Dtype::I32];

/// An attribute that names an element type; 0 and absence mean none.
fn dtype_attr(cx: &NodeView<'_>, name: &str) -> Result<Option<Dtype>> {
    let number = cx.int(name, 0)?;
    if number == 0 {
        return Ok(None);
    }
    let dtype = i32::try_from(number).ok().and_then(Dtype::from_onnx);
    dtype.map(Some).ok_or_else(|| wrong(format!("{number} is no element type")).at_attribute(name))
}

/// Whether a tensor can be quantised to this type.
fn is_code(dtype: Dtype) -> bool {
    limits(dtype).is_some() || (SmallFloat::of(dtype).is_some() && dtype != Dtype::F8E8M0)
}

fn infer_quantize(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I32])?;
    cx.expect_dtype(1, SCALES)?;
    Arrangement::of(cx, 1, 2)?;
    quotient_precision(cx)?;
    let asked = dtype_attr(cx, "output_dtype")?;
    let dtype = match (cx.opt_ty(2)?.map(|z| z.dtype), asked) {
        (Some(zero), Some(asked)) if zero != asked => {
            return Err(wrong(format!("{asked}, but the zero point is {zero}")).at_attribute("output_dtype"));
        }
        (Some(dtype), _) | (None, Some(dtype)) => dtype,
        (None, None) => Dtype::U8,
    };
    if !is_code(dtype) {
        return Err(wrong(format!("a tensor cannot be quantised to {dtype}")));
    }
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

/// The precision of the division by the scale.
fn quotient_precision(cx: &NodeView<'_>) -> Result<Precision> {
    match dtype_attr(cx, "precision")? {
        None => Ok(precision(cx.dtype(1)?)),
        Some(d @ (Dtype::F32 | Dtype::F16 | Dtype::Bf16)) => Ok(precision(d)),
        Some(other) => Err(wrong(format!("{other} is no precision of a division")).at_attribute("precision")),
    }
}

fn lower_quantize(cx: &mut LowerCx<'_>) -> Result<()> {
    let a = Arrangement::of(cx, 1, 2)?.physical(cx)?;
    let precision = quotient_precision(cx)?;
    let dtype = cx.out_ty(0)?.dtype;
    let (x, scale, zero) = (as_f32(cx, 0)?, as_f32(cx, 1)?, cx.opt(2)?);
    let y = cx.y(0)?;
    let ([outer, n, inner], block, [s_outer, s_n, s_inner]) = (a.dims, a.block, a.strides);
    if let Some(format) = SmallFloat::of(dtype) {
        let saturate = cx.int("saturate", 1)? != 0;
        let infinity_saturates = cx.version() >= 24;
        let d = QuantizeSmall {
            x,
            scale,
            zero,
            y,
            outer,
            n,
            inner,
            block,
            s_outer,
            s_n,
            s_inner,
            format,
            saturate,
            infinity_saturates,
            precision,
        };
        return cx.call(&[Dtype::F32, Dtype::U8], d);
    }
    let (lo, hi) = limits(dtype).ok_or_else(|| wrong(format!("a tensor cannot be quantised to {dtype}")))?;
    let d = Quantize { x, scale, zero, y, outer, n, inner, block, s_outer, s_n, s_inner, lo, hi, precision };
    cx.call(&[Dtype::F32, memory_type(dtype)], d)
}

fn infer_dequantize(cx: &mut InferCx<'_>) -> Result<()> {
    let x = cx.ty(0)?;
    if !is_code(x.dtype) && x.dtype != Dtype::I32 {
        return Err(wrong(format!("{x} cannot be dequantised")).at_input(0));
    }
    cx.expect_dtype(1, SCALES)?;
    if cx.has(2) {
        cx.expect_same_dtype(2, 0)?;
    }
    Arrangement::of(cx, 1, 2)?;
    let dtype = match dtype_attr(cx, "output_dtype")? {
        Some(dtype) => dtype,
        None => cx.dtype(1)?,
    };
    if !matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
        return Err(wrong(format!("a tensor cannot be dequantised to {dtype}")));
    }
    let shape = x.shape.clone();
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_dequantize(cx: &mut LowerCx<'_>) -> Result<()> {
    let a = Arrangement::of(cx, 1, 2)?.physical(cx)?;
    let dtype = cx.dtype(0)?;
    let scale = as_f32(cx, 1)?;
    let (x, zero, key) = match SmallFloat::of(dtype) {
        None => (cx.x(0)?, cx.opt(2)?, memory_type(dtype)),
        Some(format) => {
            let zero = if cx.has(2) { Some(decode(cx, 2, format)?) } else { None };
            (decode(cx, 0, format)?, zero, Dtype::F32)
        }
    };
    let y = half::y(cx, 0)?;
    let ([outer, n, inner], block, [s_outer, s_n, s_inner]) = (a.dims, a.block, a.strides);
    let d = Dequantize { x, scale, zero, y: y.at.clone(), outer, n, inner, block, s_outer, s_n, s_inner };
    cx.call(&[key, Dtype::F32], d)?;
    y.finish(cx)
}

fn decode(cx: &mut LowerCx<'_>, i: usize, format: SmallFloat) -> Result<Operand<Dim>> {
    let n = cx.ty(i)?.numel();
    let (x, y) = (cx.x(i)?, cx.scratch(n.clone() * Dim::Const(4)));
    cx.call(&[Dtype::U8, Dtype::F32], Decode { x, y: y.clone(), n, format })?;
    Ok(y)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;
    use kiln_kernels::Dtype;

    fn ints(dtype: Dtype, dims: &[usize], values: &[i64]) -> Tensor {
        let size = dtype.size_bytes();
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()[..size].to_vec()).collect();
        Tensor::new(dtype, dims.to_vec(), data.into()).unwrap()
    }

    fn f32s(dims: &[usize], values: &[f32]) -> Tensor {
        Tensor::from_f32s(dims, values)
    }

    #[test]
    fn rounds_to_even_and_saturates_to_every_type() {
        let x = f32s(&[8], &[-300.0, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 70000.0]);
        for (dtype, zero, want) in [
            (Dtype::U8, 128, [0, 126, 126, 128, 128, 130, 130, 255]),
            (Dtype::I8, 0, [-128, -2, -2, 0, 0, 2, 2, 127]),
            (Dtype::U16, 500, [200, 498, 498, 500, 500, 502, 502, 65535]),
            (Dtype::I16, -5, [-305, -7, -7, -5, -5, -3, -3, 32767]),
            (Dtype::U4, 3, [0, 1, 1, 3, 3, 5, 5, 15]),
            (Dtype::I4, 1, [-8, -1, -1, 1, 1, 3, 3, 7]),
            (Dtype::U2, 1, [0, 0, 0, 1, 1, 3, 3, 3]),
            (Dtype::I2, 0, [-2, -2, -2, 0, 0, 1, 1, 1]),
        ] {
            let y = case("", "QuantizeLinear", 25).input(x.clone()).constant(f32s(&[], &[1.0]));
            let y = y.constant(ints(dtype, &[], &[zero])).run().unwrap();
            assert_eq!((y[0].dtype(), y[0].to_ints().unwrap()), (dtype, want.to_vec()));
        }
    }

    #[test]
    fn axes_and_blocks() {
        let x = f32s(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
        let run = |scale: Tensor, attrs: &[(&str, i64)]| {
            let mut c = case("", "QuantizeLinear", 21).input(x.clone()).constant(scale);
            for (name, v) in attrs {
                c = c.attr(name, Attr::Int(*v));
            }
            c.run().map(|y| y[0].to_ints().unwrap())
        };
        assert_eq!(run(f32s(&[3], &[1., 2., 3.]), &[]).unwrap(), [1, 1, 1, 4, 2, 2]);
        assert_eq!(run(f32s(&[2], &[1., 2.]), &[("axis", -2)]).unwrap(), [1, 2, 3, 2, 2, 3]);
        let blocks = f32s(&[2, 2], &[1., 3., 2., 6.]);
        assert_eq!(run(blocks, &[("block_size", 2), ("axis", 1)]).unwrap(), [1, 2, 1, 2, 2, 1]);
        let blocks = f32s(&[1, 3], &[1., 2., 3.]);
        assert_eq!(run(blocks, &[("block_size", 5), ("axis", 0)]).unwrap(), [1, 1, 1, 4, 2, 2]);
        assert!(run(f32s(&[4], &[1.; 4]), &[]).is_err());
        assert!(run(f32s(&[2, 1], &[1.; 2]), &[]).is_err());
        assert!(run(f32s(&[2, 3], &[1.; 6]), &[("block_size", 2)]).is_err());
        assert!(run(f32s(&[3], &[1.; 3]), &[("axis", 2)]).is_err());
        assert!(run(f32s(&[], &[1.]), &[("block_size", -1)]).is_err());
    }

    #[test]
    fn the_scale_sets_the_precision() {
        // 2049 / 819 is just above 2.5; in f16 it is 2048 / 819 rounded, 2.5, and the tie goes to 2.
        let half = |bits: u16| Tensor::new(Dtype::F16, vec![1], bits.to_le_bytes().to_vec().into()).unwrap();
        let (x, scale) = (half(0x6800), half(0x6266)); // 2048, 819
        let y = case("", "QuantizeLinear", 19).input(x.clone()).constant(scale.clone()).run().unwrap();
        assert_eq!(y[0].to_ints().unwrap(), [2]);
        let y = case("", "QuantizeLinear", 23).input(x).constant(scale).attr("precision", Attr::Int(1));
        assert_eq!(y.run().unwrap()[0].to_ints().unwrap(), [3]);
    }

    #[test]
    fn small_floats() {
        let x = f32s(&[4], &[0.0, 1.0, 2.0, 100_000.0]);
        let zero = Tensor::new(Dtype::F8E4M3FN, vec![1], vec![0].into()).unwrap();
        for (saturate, last) in [(1, 0x7e), (0, 0x7f)] {
            let y = case("", "QuantizeLinear", 19).input(x.clone()).constant(f32s(&[1], &[2.0]));
            let y = y.constant(zero.clone()).attr("saturate", Attr::Int(saturate)).run().unwrap();
            assert_eq!(&y[0].data()[..], [0, 0x30, 0x38, last]);
            let back = case("", "DequantizeLinear", 19).input(y[0].clone()).constant(f32s(&[], &[2.0])).run_f32();
            assert_eq!(back[..3], [0.0, 1.0, 2.0]);
        }
    }

    #[test]
    fn dequantises_every_type() {
        for (dtype, x, zero) in [
            (Dtype::U8, [0, 200, 255], 128),
            (Dtype::I8, [-128, 0, 127], -3),
            (Dtype::U16, [0, 40000, 65535], 32768),
            (Dtype::I16, [-32768, 0, 32767], 7),
            (Dtype::I32, [-2147483648, 5, 16777217], 0),
            (Dtype::U4, [0, 8, 15], 8),
            (Dtype::I4, [-8, 0, 7], 1),
            (Dtype::U2, [0, 1, 3], 1),
            (Dtype::I2, [-2, 0, 1], 0),
        ] {
            let want: Vec<f32> = x.iter().map(|v| (v - zero) as f32 * 0.5).collect();
            let c = case("", "DequantizeLinear", 25).input(ints(dtype, &[3], &x)).constant(f32s(&[], &[0.5]));
            assert_eq!(c.constant(ints(dtype, &[], &[zero])).run_f32(), want, "{dtype}");
        }
        let x = ints(Dtype::I8, &[1, 2, 2], &[1, 2, 3, 4]);
        let c = case("", "DequantizeLinear", 13).input(x).constant(f32s(&[2], &[1., 10.]));
        assert_eq!(c.constant(ints(Dtype::I8, &[2], &[0, 1])).run_f32(), [1., 2., 20., 30.]);
    }

    #[test]
    fn refuses() {
        let x = ints(Dtype::I8, &[2], &[1, 2]);
        let c = case("", "DequantizeLinear", 13).input(x.clone()).constant(f32s(&[], &[1.]));
        assert!(c.constant(ints(Dtype::U8, &[], &[0])).infer().is_err());
        let c = case("", "DequantizeLinear", 13).input(x).constant(f32s(&[3], &[1.; 3]));
        assert!(c.infer().is_err());
        let c = case("", "QuantizeLinear", 21).input(f32s(&[1], &[1.])).constant(f32s(&[], &[1.]));
        assert!(c.attr("output_dtype", Attr::Int(1)).infer().is_err());
    }

    #[test]
    fn empty_tensors() {
        let y = case("", "QuantizeLinear", 13).input(f32s(&[0, 3], &[])).constant(f32s(&[3], &[1.; 3])).run().unwrap();
        assert_eq!(y[0].dims(), [0, 3]);
    }
}
