//! A picture in memory, and the conversion between grey and colour.

use tealight_model::names;

pub use tealight_model::patches::PictureSize;

names! {
    /// `task.colour`: the channels of the pictures.
    pub enum Colour {
        /// One channel, the luma of ITU-R BT.601: .299 red + .587 green + .114 blue.
        "grey" => Grey,
        /// Three channels: red, green, blue.
        "rgb" => Rgb,
    }
}

impl Colour {
    /// The number of channels.
    pub fn channels(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb => 3,
        }
    }
}

/// The bytes of a picture of this size.
pub(crate) fn n_bytes(size: PictureSize) -> usize {
    size.height * size.width * size.channels
}

/// A picture of 8 bits per channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Its shape.
    pub size: PictureSize,
    /// `(height, width, channels)`, row by row.
    pub pixels: Vec<u8>,
}

impl Picture {
    /// A picture of these pixels.
    ///
    /// # Panics
    /// If the pixels are not of this size.
    pub fn new(size: PictureSize, pixels: Vec<u8>) -> Self {
        assert_eq!(pixels.len(), n_bytes(size), "invariant: a picture has all its pixels");
        Self { size, pixels }
    }

    /// The picture in this colour, as Pillow converts it.
    #[must_use]
    pub fn converted(self, colour: Colour) -> Self {
        let Self { size, pixels } = self;
        let pixels = match (size.channels, colour) {
            (3, Colour::Grey) => pixels.as_chunks().0.iter().copied().map(luma).collect(),
            (1, Colour::Rgb) => pixels.iter().flat_map(|&grey| [grey; 3]).collect(),
            _ => pixels,
        };
        Self { size: PictureSize { channels: colour.channels(), ..size }, pixels }
    }
}

/// The luma of a pixel, in 16 bits of fixed point.
pub(super) fn luma([red, green, blue]: [u8; 3]) -> u8 {
    let [red, green, blue] = [red, green, blue].map(u32::from);
    ((19_595 * red + 38_470 * green + 7_471 * blue + (1 << 15)) >> 16) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grey_is_the_luma_of_a_pixel_and_colour_repeats_it() {
        let size = PictureSize { height: 1, width: 3, channels: 3 };
        let picture = Picture::new(size, vec![255, 0, 0, 0, 255, 0, 0, 0, 255]);
        let grey = picture.converted(Colour::Grey);
        // Values of Pillow 13.0: Image.convert("L").
        assert_eq!((grey.size.channels, &grey.pixels[..]), (1, &[76, 150, 29][..]));
        let again = grey.clone().converted(Colour::Rgb);
        assert_eq!(again.pixels, [76, 76, 76, 150, 150, 150, 29, 29, 29]);
        assert_eq!(grey.clone().converted(Colour::Grey), grey);
    }
}
