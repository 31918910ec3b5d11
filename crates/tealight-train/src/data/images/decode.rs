//! Decodes PNG (RFC 2083) and JPEG (ITU-T T.81). The content decides which it is, not the name of the file.
//!
//! Palettes become colours, 16 bits per channel become 8, and transparency is dropped, as Pillow's conversion to RGB
//! does. An orientation in the metadata is not applied.

use std::io::Cursor;

use png::{ColorType, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::picture::{Picture, PictureSize, n_bytes};

/// The most pixels of a picture. A few hundred bytes can claim to be a picture that no memory holds.
const MAX_PIXELS: usize = 1 << 26;

/// The picture in the content of a file.
///
/// # Errors
/// What is wrong with it, as the end of a sentence that begins with its name.
pub fn decode(bytes: &[u8]) -> Result<Picture, String> {
    match bytes {
        [] => Err("is empty".to_owned()),
        [0x89, b'P', b'N', b'G', ..] => png(bytes).map_err(|error| broken("PNG", &error)),
        [0xFF, 0xD8, ..] => jpeg(bytes).map_err(|error| broken("JPEG", &error)),
        _ => Err("is neither a PNG nor a JPEG".to_owned()),
    }
}

fn broken(format: &str, error: &str) -> String {
    format!("is a broken {format}: {error}")
}

fn check_size(height: usize, width: usize) -> Result<(), String> {
    let n_pixels = height.checked_mul(width).filter(|n| (1..=MAX_PIXELS).contains(n));
    let rule = || format!("{width} x {height} pixels, and at most {MAX_PIXELS} are read");
    n_pixels.map(|_| ()).ok_or_else(rule)
}

fn png(bytes: &[u8]) -> Result<Picture, String> {
    let message = |error: png::DecodingError| error.to_string();
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(message)?;
    let (width, height) = reader.info().size();
    let (height, width) = (height as usize, width as usize);
    check_size(height, width)?;
    let n_bytes = reader.output_buffer_size().ok_or("it is too large")?;
    let mut pixels = vec![0; n_bytes];
    let frame = reader.next_frame(&mut pixels).map_err(message)?;
    // Reads to the end, so that a file that was cut off is noticed.
    reader.finish().map_err(message)?;
    pixels.truncate(frame.buffer_size());
    let (channels, pixels) = match frame.color_type {
        ColorType::Grayscale => (1, pixels),
        ColorType::GrayscaleAlpha => (1, without_alpha::<1, 2>(&pixels)),
        ColorType::Rgb => (3, pixels),
        ColorType::Rgba => (3, without_alpha::<3, 4>(&pixels)),
        ColorType::Indexed => return Err("its palette cannot be read".to_owned()),
    };
    Ok(Picture::new(PictureSize { height, width, channels }, pixels))
}

fn without_alpha<const N: usize, const M: usize>(pixels: &[u8]) -> Vec<u8> {
    pixels.as_chunks::<M>().0.iter().flat_map(|pixel| &pixel[..N]).copied().collect()
}

fn jpeg(bytes: &[u8]) -> Result<Picture, String> {
    let message = |error: zune_jpeg::errors::DecodeErrors| error.to_string();
    // Strict: a file that was cut off is an error, and not a picture with a grey part.
    let options = DecoderOptions::default().set_strict_mode(true);
    let mut decoder = JpegDecoder::new_with_options(Cursor::new(bytes), options);
    decoder.decode_headers().map_err(message)?;
    let is_grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let colour = if is_grey { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder.set_options(options.jpeg_set_out_colorspace(colour));
    let (width, height) = decoder.dimensions().ok_or("it has no size")?;
    check_size(height, width)?;
    let pixels = decoder.decode().map_err(message)?;
    let size = PictureSize { height, width, channels: if is_grey { 1 } else { 3 } };
    if pixels.len() != n_bytes(size) {
        return Err("its pixels are incomplete".to_owned());
    }
    Ok(Picture::new(size, pixels))
}
