//! ImageDecoder: an encoded image as bytes of its pixels (feature `image`): baseline JPEG by the module `jpeg`, whose rounding
//! the operator's page states, everything else by the crate `image`. JPEG 2000, which that crate lacks, is a fault.
//!
//! In: the encoded file. Out: `[height, width, channels]`, one channel for grey, three for colours. The extents are planned
//! for: an image of another size is a fault. Decoding allocates; nothing else in this crate does.
//! Source: <https://onnx.ai/onnx/operators/onnx__ImageDecoder.html>

#[cfg(feature = "image")]
mod jpeg;
#[cfg(feature = "image")]
mod samples;

use crate::{Fault, Isa, kernel, param_enum};

param_enum! {
    /// The order of a pixel's channels.
    pub enum PixelFormat {
        /// Red, green, blue.
        Rgb,
        /// Blue, green, red.
        Bgr,
        /// Luminance alone.
        Grayscale,
    }
}

impl PixelFormat {
    /// Channels of a pixel.
    pub const fn channels(self) -> usize {
        match self {
            Self::Grayscale => 1,
            Self::Rgb | Self::Bgr => 3,
        }
    }
}

kernel! {
    /// `y` = the pixels of the image in the first `n` bytes of `x`.
    pub struct ImageDecode {
        operands { read x: T, write y: T }
        nums { n, height, width }
        params { format: PixelFormat }
    }
    entries { image_decode_u8 { T = u8 } }
    body = image_decode;
}

#[cfg(not(feature = "image"))]
fn image_decode(_: Isa, _: &ImageDecode, _: &[u8], _: &mut [u8]) -> Result<(), Fault> {
    Err(Fault::Unsupported)
}

#[cfg(feature = "image")]
fn image_decode(_: Isa, d: &ImageDecode, x: &[u8], y: &mut [u8]) -> Result<(), Fault> {
    let pixels = d.height.checked_mul(d.width).ok_or(Fault::Descriptor)?;
    let bytes = pixels.checked_mul(d.format.channels()).and_then(|n| y.get_mut(..n)).ok_or(Fault::Descriptor)?;
    let file = x.get(..d.n).ok_or(Fault::Descriptor)?;
    if JPEG_2000.iter().any(|signature| file.starts_with(signature)) {
        return Err(Fault::Unsupported);
    }
    // A file that cannot be decoded is an empty image, as the operator's page says.
    let Some(rgb) = jpeg::decode(file, d.width, d.height).or_else(|| decoded(file, d.width, d.height)) else {
        return if pixels == 0 { Ok(()) } else { Err(Fault::ShapeMismatch) };
    };
    for (pixel, y) in rgb.chunks_exact(3).zip(bytes.chunks_exact_mut(d.format.channels())) {
        match d.format {
            PixelFormat::Rgb => y.copy_from_slice(pixel),
            PixelFormat::Bgr => y.copy_from_slice(&[pixel[2], pixel[1], pixel[0]]),
            PixelFormat::Grayscale => y[0] = luminance([pixel[0], pixel[1], pixel[2]]),
        }
    }
    Ok(())
}

/// How JPEG 2000 files start: boxes, or the bare code stream.
#[cfg(feature = "image")]
const JPEG_2000: [&[u8]; 2] = [b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"];

/// The image as RGB, if it has the planned size. (A file may claim any: nothing larger is decoded.)
#[cfg(feature = "image")]
fn decoded(file: &[u8], width: usize, height: usize) -> Option<std::vec::Vec<u8>> {
    let (width, height) = (u32::try_from(width).ok()?, u32::try_from(height).ok()?);
    let mut reader = image::ImageReader::new(std::io::Cursor::new(file)).with_guessed_format().ok()?;
    let mut limits = image::Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(width), Some(height));
    reader.limits(limits);
    let image = reader.decode().ok()?;
    (image.width() == width && image.height() == height).then(|| image.into_rgb8().into_raw())
}

/// ITU-R 601 in 16-bit fixed point, rounded.
#[cfg(feature = "image")]
fn luminance([r, g, b]: [u8; 3]) -> u8 {
    let sum = 19595 * u32::from(r) + 38470 * u32::from(g) + 7471 * u32::from(b);
    ((sum + (1 << 15)) >> 16) as u8
}
