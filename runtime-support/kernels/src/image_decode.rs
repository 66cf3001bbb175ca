//! ImageDecoder: an encoded image as bytes of its pixels, by the crate `image` (feature `image`; JPEG 2000 is not among
//! its formats).
//!
//! In: the encoded file. Out: `[height, width, channels]`, one channel for grey, three for colours. The extents are planned
//! for: an image of another size is a fault. Decoding allocates; nothing else in this crate does.
//! Source: <https://onnx.ai/onnx/operators/onnx__ImageDecoder.html>

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
    Err(Fault::FeatureMissing)
}

#[cfg(feature = "image")]
fn image_decode(_: Isa, d: &ImageDecode, x: &[u8], y: &mut [u8]) -> Result<(), Fault> {
    let pixels = d.height.checked_mul(d.width).ok_or(Fault::Descriptor)?;
    let bytes = pixels.checked_mul(d.format.channels()).and_then(|n| y.get_mut(..n)).ok_or(Fault::Descriptor)?;
    let file = x.get(..d.n).ok_or(Fault::Descriptor)?;
    let (Ok(width), Ok(height)) = (u32::try_from(d.width), u32::try_from(d.height)) else {
        return Err(Fault::Descriptor);
    };
    // A file that cannot be decoded is an empty image, as the operator's page says.
    let Some(image) = decoded(file, width, height) else {
        return if pixels == 0 { Ok(()) } else { Err(Fault::ShapeMismatch) };
    };
    let same = image.width() == width && image.height() == height;
    if !same {
        return Err(Fault::ShapeMismatch);
    }
    let rgb = image.into_rgb8();
    for (pixel, y) in rgb.chunks_exact(3).zip(bytes.chunks_exact_mut(d.format.channels())) {
        match d.format {
            PixelFormat::Rgb => y.copy_from_slice(pixel),
            PixelFormat::Bgr => y.copy_from_slice(&[pixel[2], pixel[1], pixel[0]]),
            PixelFormat::Grayscale => y[0] = luminance([pixel[0], pixel[1], pixel[2]]),
        }
    }
    Ok(())
}

/// The image, if it is no larger than planned: a file may claim any size.
#[cfg(feature = "image")]
fn decoded(file: &[u8], width: u32, height: u32) -> Option<image::DynamicImage> {
    let mut reader = image::ImageReader::new(std::io::Cursor::new(file)).with_guessed_format().ok()?;
    let mut limits = image::Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(width), Some(height));
    reader.limits(limits);
    reader.decode().ok()
}

/// ITU-R 601 in 16-bit fixed point, rounded.
#[cfg(feature = "image")]
fn luminance([r, g, b]: [u8; 3]) -> u8 {
    let sum = 19595 * u32::from(r) + 38470 * u32::from(g) + 7471 * u32::from(b);
    ((sum + (1 << 15)) >> 16) as u8
}
