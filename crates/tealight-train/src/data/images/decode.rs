//! Decodes PNG (RFC 2083) and JPEG (ITU-T T.81). The content decides which it is, not the name of the file.
//!
//! Palettes become colours, and transparency is dropped, as Pillow's conversion to RGB does. Of channels with 16 bits,
//! the upper 8 bits are kept; Pillow clips 16 bits of grey pictures at 255. The orientation in the metadata is applied,
//! as `transformers` does when it opens a picture.

use std::io::Cursor;

use png::{ColorType, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::orientation::{applied, of_exif};
use super::picture::{Picture, PictureSize, n_bytes};
use crate::data::panics;

/// The most pixels of a picture. A few hundred bytes can claim to be a picture that no memory holds.
const MAX_PIXELS: usize = 1 << 26;

/// The picture in the content of a file.
///
/// # Errors
/// The fault, as the end of a sentence that begins with the name of the file.
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

/// Refuses pictures that no memory may hold.
pub(super) fn check_size(height: usize, width: usize) -> Result<(), String> {
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
    let mut pixels = Vec::new();
    pixels.try_reserve_exact(n_bytes).map_err(|error| error.to_string())?;
    pixels.resize(n_bytes, 0);
    let frame = reader.next_frame(&mut pixels).map_err(message)?;
    // Reads to the end, so that a file that was cut off is noticed.
    reader.finish().map_err(message)?;
    let orientation = reader.info().exif_metadata.as_deref().map_or(1, of_exif);
    pixels.truncate(frame.buffer_size());
    let (channels, pixels) = match frame.color_type {
        ColorType::Grayscale => (1, pixels),
        ColorType::GrayscaleAlpha => (1, without_alpha::<1, 2>(pixels)),
        ColorType::Rgb => (3, pixels),
        ColorType::Rgba => (3, without_alpha::<3, 4>(pixels)),
        ColorType::Indexed => return Err("its palette cannot be read".to_owned()),
    };
    Ok(applied(Picture::new(PictureSize { height, width, channels }, pixels), orientation))
}

/// The first `N` of the `M` channels of each pixel, moved together in place.
fn without_alpha<const N: usize, const M: usize>(mut pixels: Vec<u8>) -> Vec<u8> {
    let n_pixels = pixels.len() / M;
    for at in 0..n_pixels {
        pixels.copy_within(at * M..at * M + N, at * N);
    }
    pixels.truncate(n_pixels * N);
    pixels
}

fn jpeg(bytes: &[u8]) -> Result<Picture, String> {
    if !ends(bytes) {
        return Err("it has no end: it was cut off".to_owned());
    }
    // Strict: data that are damaged are an error, and not a picture with a grey part.
    let options = DecoderOptions::default().set_strict_mode(true);
    let mut decoder = JpegDecoder::new_with_options(Cursor::new(bytes), options);
    // On some broken files zune-jpeg's numbers overflow: a panic where overflow is checked, as in debug builds.
    panics::caught("zune-jpeg", || decoder.decode_headers())?;
    let is_grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let colour = if is_grey { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder.set_options(options.jpeg_set_out_colorspace(colour));
    let (width, height) = decoder.dimensions().ok_or("it has no size")?;
    check_size(height, width)?;
    let pixels = panics::caught("zune-jpeg", || decoder.decode())?;
    let orientation = decoder.exif().map_or(1, |exif| of_exif(exif));
    let size = PictureSize { height, width, channels: if is_grey { 1 } else { 3 } };
    if pixels.len() != n_bytes(size) {
        return Err("its pixels are incomplete".to_owned());
    }
    Ok(applied(Picture::new(size, pixels), orientation))
}

/// Whether the marker of the end follows the last scan of a JPEG. A thumbnail in the metadata has an end of its own.
fn ends(jpeg: &[u8]) -> bool {
    let (scan, end) = ([0xFF, 0xDA], [0xFF, 0xD9]);
    let last = jpeg.windows(2).rposition(|marker| marker == scan);
    last.is_some_and(|at| jpeg[at..].windows(2).any(|marker| marker == end))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::data::images::encode;
    use crate::data::images::orientation::tests::exif;

    /// Written by Pillow: 3 x 5 pixels of grey 90.
    const GREY: &str = "ffd8ffe000104a46494600010100000100010000ffdb004300080606070605080707070909080a0c140d0c0b0b0c1912130f \
         141d1a1f1e1d1a1c1c20242e2720222c231c1c2837292c30313434341f27393d38323c2e333432ffc0000b08000300050101 \
         1100ffc40014000100000000000000000000000000000006ffc40014100100000000000000000000000000000000ffda0008 \
         010100003f0032ffd9";
    /// Written by Pillow: 3 x 5 pixels of (200, 100, 50), with colour at half the resolution.
    const RGB: &str = "ffd8ffe000104a46494600010100000100010000ffdb004300080606070605080707070909080a0c140d0c0b0b0c1912130f \
         141d1a1f1e1d1a1c1c20242e2720222c231c1c2837292c30313434341f27393d38323c2e333432ffdb0043010909090c0b0c \
         180d0d1832211c21323232323232323232323232323232323232323232323232323232323232323232323232323232323232 \
         3232323232323232ffc00011080003000503012200021101031101ffc4001500010100000000000000000000000000000003 \
         ffc40014100100000000000000000000000000000000ffc40014010100000000000000000000000000000006ffc400141101 \
         00000000000000000000000000000000ffda000c03010002110311003f009803460fffd9";

    fn bytes(hex: &str) -> Vec<u8> {
        let hex: String = hex.split_whitespace().collect();
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    /// A JPEG of 3 x 5 pixels, grey or in colour.
    pub(in crate::data::images) fn jpeg_of(colour: bool) -> Vec<u8> {
        bytes(if colour { RGB } else { GREY })
    }

    fn encoded(
        [height, width]: [usize; 2],
        colour: ColorType,
        depth: png::BitDepth,
        pixels: &[u8],
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
        encoder.set_color(colour);
        encoder.set_depth(depth);
        if colour == ColorType::Indexed {
            encoder.set_palette(vec![1, 2, 3, 200, 100, 50]);
        }
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(pixels).unwrap();
        writer.finish().unwrap();
        bytes
    }

    #[test]
    fn jpeg_is_decoded_in_its_colour() {
        let grey = decode(&jpeg_of(false)).unwrap();
        let size = PictureSize { height: 3, width: 5, channels: 1 };
        assert_eq!(grey, Picture::new(size, vec![90; 15]));
        let colour = decode(&jpeg_of(true)).unwrap();
        assert_eq!(colour.size, PictureSize { channels: 3, ..size });
        let near = |(byte, expected): (&u8, &i32)| (i32::from(*byte) - expected).abs() <= 2;
        assert!(colour.pixels.iter().zip([200, 100, 50].iter().cycle()).all(near), "{colour:?}");
    }

    #[test]
    fn the_orientation_in_the_metadata_is_applied() {
        let exif = exif(true, 6);
        let mut jpeg = jpeg_of(true);
        let segment = [b"Exif\0\0", &exif[..]].concat();
        let length = (segment.len() as u16 + 2).to_be_bytes();
        // After the marker of the start.
        jpeg.splice(2..2, [&[0xFF, 0xE1], &length[..], &segment].concat());
        assert_eq!(decode(&jpeg).unwrap().size, PictureSize { height: 5, width: 3, channels: 3 });

        let mut bytes = Vec::new();
        let mut info = png::Info::with_size(3, 1);
        info.exif_metadata = Some(exif.into());
        info.color_type = ColorType::Grayscale;
        info.bit_depth = png::BitDepth::Eight;
        let encoder = png::Encoder::with_info(&mut bytes, info).unwrap();
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&[1, 2, 3]).unwrap();
        writer.finish().unwrap();
        let size = PictureSize { height: 3, width: 1, channels: 1 };
        assert_eq!(decode(&bytes), Ok(Picture::new(size, vec![1, 2, 3])));
    }

    #[test]
    fn every_kind_of_png_becomes_grey_or_colour() {
        use png::BitDepth::{Eight, One, Sixteen};
        let decoded = |colour, depth, pixels: &[u8]| {
            let Picture { size, pixels } = decode(&encoded([1, 2], colour, depth, pixels)).unwrap();
            (size.channels, pixels)
        };
        let rgb = vec![1, 2, 3, 200, 100, 50];
        assert_eq!(decoded(ColorType::Grayscale, Eight, &[7, 9]), (1, vec![7, 9]));
        assert_eq!(decoded(ColorType::Grayscale, One, &[0b0100_0000]), (1, vec![0, 255]));
        assert_eq!(decoded(ColorType::Grayscale, Sixteen, &[7, 1, 9, 200]), (1, vec![7, 9]));
        assert_eq!(decoded(ColorType::GrayscaleAlpha, Eight, &[7, 0, 9, 255]), (1, vec![7, 9]));
        assert_eq!(decoded(ColorType::Rgb, Eight, &rgb), (3, rgb.clone()));
        let rgba = [1, 2, 3, 0, 200, 100, 50, 255];
        assert_eq!(decoded(ColorType::Rgba, Eight, &rgba), (3, rgb.clone()));
        assert_eq!(decoded(ColorType::Indexed, Eight, &[0, 1]), (3, rgb));
    }

    #[test]
    fn what_is_no_picture_says_why() {
        let size = PictureSize { height: 13, width: 17, channels: 3 };
        let whole = encode(&Picture::new(size, (0..13 * 17 * 3).map(|at| at as u8).collect()));
        let fault = |bytes: &[u8]| decode(bytes).unwrap_err();
        assert_eq!(fault(b""), "is empty");
        assert_eq!(fault(b"a text that is called .png"), "is neither a PNG nor a JPEG");
        for cut in [10, 30, whole.len() / 2, whole.len() - 13] {
            assert!(fault(&whole[..cut]).starts_with("is a broken PNG: "), "{cut}");
        }
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        assert!(fault(&flipped).starts_with("is a broken PNG: "));
        let jpeg = jpeg_of(true);
        for cut in [3, 100, jpeg.len() - 4] {
            assert!(fault(&jpeg[..cut]).starts_with("is a broken JPEG: "), "{cut}");
        }
    }

    #[test]
    fn a_header_that_claims_more_than_memory_holds_is_refused() {
        let size = PictureSize { height: 1, width: 1, channels: 1 };
        let mut bytes = encode(&Picture::new(size, vec![0]));
        bytes[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
        let mut crc = flate2::Crc::new();
        crc.update(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&crc.sum().to_be_bytes());
        let message = decode(&bytes).unwrap_err();
        assert!(message.contains("65536 x 65536 pixels, and at most"), "{message}");
    }
}
