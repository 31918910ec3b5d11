//! Pixels, such as those of a photo.

use std::fmt;

use tealight_train::task::images;
use tiny_skia::{Pixmap, PixmapRef, PremultipliedColorU8};

use super::colour::Colour;

/// A rectangle of pixels.
pub(super) struct Bitmap(Pixmap);

impl fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bitmap").field(&self.size()).finish()
    }
}

impl Bitmap {
    /// `width` x `height` pixels, row by row; no pixels at all become one white one.
    pub(super) fn new(width: usize, height: usize, pixels: impl Iterator<Item = Colour>) -> Self {
        let mut bitmap = Pixmap::new(width.max(1) as u32, height.max(1) as u32)
            .expect("invariant: a picture that was decoded fits into memory");
        for (pixel, Colour(red, green, blue)) in bitmap.pixels_mut().iter_mut().zip(pixels) {
            *pixel = PremultipliedColorU8::from_rgba(red, green, blue, u8::MAX)
                .expect("invariant: opaque pixels are premultiplied");
        }
        Self(bitmap)
    }

    /// A picture as it is.
    pub(super) fn from_picture(picture: &images::Picture) -> Self {
        Self::new(picture.size.width, picture.size.height, colours(picture))
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (u32, u32) {
        (self.0.width(), self.0.height())
    }

    pub(super) fn pixels(&self) -> PixmapRef<'_> {
        self.0.as_ref()
    }

    /// The content of a PNG file.
    pub(super) fn png(&self) -> Vec<u8> {
        self.0.encode_png().expect("invariant: a PNG is written into memory")
    }
}

/// The pixels of a picture, row by row.
pub(super) fn colours(picture: &images::Picture) -> impl Iterator<Item = Colour> {
    picture.pixels.chunks_exact(picture.size.channels).map(|pixel| match *pixel {
        [red, green, blue] => Colour(red, green, blue),
        _ => Colour(pixel[0], pixel[0], pixel[0]),
    })
}
