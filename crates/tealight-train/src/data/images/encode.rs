//! Writes a picture as PNG (RFC 2083).

use png::{BitDepth, ColorType, Encoder};

use super::picture::{Picture, PictureSize};

/// The content of a file with the pixels of `picture` as they are.
pub(crate) fn encode(picture: &Picture) -> Vec<u8> {
    let PictureSize { height, width, channels } = picture.size;
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(if channels == 1 { ColorType::Grayscale } else { ColorType::Rgb });
    encoder.set_depth(BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(&picture.pixels)?;
        writer.finish()
    });
    written.expect("invariant: a picture has all its pixels, and a Vec takes all bytes");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::images::decode;

    #[test]
    fn a_picture_is_read_back_as_it_was() {
        for channels in [1, 3] {
            let size = PictureSize { height: 2, width: 5, channels };
            let picture = Picture::new(size, (0..10 * channels as u8).collect());
            assert_eq!(decode(&encode(&picture)), Ok(picture));
        }
    }
}
