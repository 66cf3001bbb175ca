//! ImageDecoder. The kernel decodes with the feature `image` of `kiln`, which a module that has one requires.
//!
//! An image's size is in its file: what the model declares the result to be is planned for, and checked at run time.
//! <https://onnx.ai/onnx/operators/onnx__ImageDecoder.html>

use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, ImageDecode, PixelFormat};

// Never folded: this compiler may have been built without the feature.
pub(super) static OPS: &[OpDef] = &[OpDef::new("", "ImageDecoder", &[20], infer, lower).impure()];

fn format(cx: &NodeView<'_>) -> Result<PixelFormat> {
    Ok(match cx.text("pixel_format", "RGB")? {
        "RGB" => PixelFormat::Rgb,
        "BGR" => PixelFormat::Bgr,
        "Grayscale" => PixelFormat::Grayscale,
        other => return Err(wrong(format!("{other:?} is not supported")).at_attribute("pixel_format")),
    })
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::U8])?;
    cx.expect_rank(0, 1)?;
    let channels = Dim::from(format(cx)?.channels());
    let shape = cx.declared(0, 3).ok_or_else(|| {
        wrong("the size of an image is only known when it is decoded: declare the extents of the result").at_output(0)
    })?;
    if shape[2] != channels {
        return Err(wrong(format!("declared with {} channels, decoded with {channels}", shape[2])).at_output(0));
    }
    cx.set(0, tensor(Dtype::U8, shape));
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let y = cx.out_shape(0)?;
    let d = ImageDecode {
        x: cx.x(0)?,
        y: cx.y(0)?,
        n: cx.shape(0)?[0].clone(),
        height: y[0].clone(),
        width: y[1].clone(),
        format: format(cx)?,
    };
    cx.call(&[Dtype::U8], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor, TensorType};
    use crate::ops::testing::case;
    use crate::{exec, lower, passes};
    use kiln_kernels::{Dtype, isa::Isa};

    /// A picture of two pixels in the simplest format there is: red, and a dark green.
    const PNM: &[u8] = b"P6\n2 1\n255\n\xff\x00\x00\x00\x40\x01";

    fn decode(format: &str, dims: &[usize], file: &[u8]) -> Result<Vec<u8>, String> {
        let file = Tensor::from_u8s(&[file.len()], file);
        let c = case("", "ImageDecoder", 20).input(file.clone()).attr("pixel_format", Attr::Str(format.into()));
        let mut graph = c.graph();
        let id = graph.outputs[0].1;
        graph.value_mut(id).ty = Some(TensorType::fixed(Dtype::U8, dims).into());
        passes::infer(&mut graph).map_err(|e| e.to_string())?;
        let lowered = lower::lower(&graph).map_err(|e| e.to_string())?;
        let y = exec::run_unplanned(&graph, &lowered, &[&file.data()[..]], Isa::Scalar).map_err(|e| e.to_string())?;
        Ok(y[0].to_u8s().unwrap())
    }

    #[test]
    #[cfg(feature = "image")]
    fn pixels() {
        assert_eq!(decode("RGB", &[1, 2, 3], PNM).unwrap(), [255, 0, 0, 0, 64, 1]);
        assert_eq!(decode("BGR", &[1, 2, 3], PNM).unwrap(), [0, 0, 255, 1, 64, 0]);
        assert_eq!(decode("Grayscale", &[1, 2, 1], PNM).unwrap(), [76, 38]);
        // Another size than declared, larger or smaller, and no image at all.
        assert!(decode("RGB", &[1, 1, 3], PNM).is_err());
        assert!(decode("RGB", &[2, 2, 3], PNM).is_err());
        assert!(decode("RGB", &[1, 2, 3], b"P6\n2 1").is_err());
        assert!(decode("RGB", &[0, 0, 3], b"no image").unwrap().is_empty());
    }

    #[test]
    #[cfg(not(feature = "image"))]
    fn without_the_feature_it_is_a_fault() {
        assert!(decode("RGB", &[1, 2, 3], PNM).unwrap_err().contains("feature"));
    }

    #[test]
    fn refusals() {
        let undeclared = case("", "ImageDecoder", 20).input(Tensor::from_u8s(&[4], &[0; 4]));
        assert!(undeclared.infer().is_err());
        assert!(decode("YUV", &[1, 2, 3], PNM).is_err());
        assert!(decode("Grayscale", &[1, 2, 3], PNM).is_err());
    }
}
