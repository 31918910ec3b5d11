//! From the content of a file to a picture of the size and colour that a model reads.

use super::decode::decode;
use super::picture::{Colour, Picture};
use super::resize::{Filter, Fit, check_proportions, resize};

/// The changes that are made to a decoded picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preparation {
    /// Rows and columns; the picture keeps its own when absent.
    pub size: Option<[usize; 2]>,
    /// How a picture of other proportions fits.
    pub fit: Fit,
    /// How it is resized.
    pub filter: Filter,
    /// Its channels; the picture keeps its own when absent.
    pub colour: Option<Colour>,
}

impl Preparation {
    /// Decodes a file and prepares its picture.
    ///
    /// # Errors
    /// The fault of the file, as the end of a sentence that begins with its name.
    pub fn decode(&self, bytes: &[u8]) -> Result<Picture, String> {
        let picture = decode(bytes)?;
        if let (Some([rows, columns]), Fit::Crop) = (self.size, self.fit) {
            check_proportions(picture.size, rows.max(columns))?;
        }
        Ok(self.prepare(picture))
    }

    /// Converts and resizes a picture.
    pub fn prepare(&self, picture: Picture) -> Picture {
        let picture = match self.colour {
            Some(colour) => picture.converted(colour),
            None => picture,
        };
        match self.size {
            Some(size) => resize(&picture, size, self.fit, self.filter),
            None => picture,
        }
    }
}
