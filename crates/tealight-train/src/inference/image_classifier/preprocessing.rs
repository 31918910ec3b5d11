//! The preprocessing of picture files: resizes them and normalises their pixel values, as the model was trained. A run
//! keeps its settings, so that the model is used without its data.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::data::images::{
    Colour, Filter, Fit, Normalisation, Picture, PictureSize, Preparation, centre,
    check_proportions, decode, resize, with_shorter_side,
};
use crate::error::{Error, Result};
use crate::storage::files::{read_json, to_json};

/// The file that a run keeps it in.
const FILE: &str = "pictures.json";
const FORMAT_VERSION: u64 = 1;
/// The largest side of a picture: the number of patches grows with its square.
pub(crate) const MAX_SIZE: u64 = 1 << 12;

/// How a picture is resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resize {
    /// Not at all.
    Never,
    /// To these rows and columns, whatever its proportions.
    To([usize; 2]),
    /// So that its shorter side has this many pixels.
    ShorterSide(usize),
}

/// The size, the colours and the normalisation of all pictures, and how others are resized. Serialised as the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preprocessing {
    format_version: u64,
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// The channels.
    pub colour: Colour,
    /// How a picture of other proportions fits.
    pub fit: Fit,
    /// How pixels between pixels are computed.
    pub filter: Filter,
    /// How a picture is resized before `height` x `width` pixels are cut out of its middle, in models of `transformers`
    /// that differ from each `fit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<Resize>,
    /// Means of the channels, of pixels from 0 to 1.
    pub mean: Vec<f32>,
    /// Their standard deviations.
    pub deviation: Vec<f32>,
}

impl Preprocessing {
    /// For pictures of this size and normalisation; others are resized by `filter`, so that they `fit`.
    pub fn new(fit: Fit, filter: Filter, size: PictureSize, normalisation: Normalisation) -> Self {
        let PictureSize { height, width, channels } = size;
        let colour = if channels == 1 { Colour::Grey } else { Colour::Rgb };
        let Normalisation { mean, deviation } = normalisation;
        Self {
            format_version: FORMAT_VERSION,
            height,
            width,
            colour,
            fit,
            filter,
            resize: None,
            mean,
            deviation,
        }
    }

    /// As a model of `transformers` prepares pictures: resized, of the middle `size`. `resize` is `None` if they are
    /// stretched to that size.
    pub(crate) fn of_hugging_face(
        size: PictureSize,
        resize: Option<Resize>,
        filter: Filter,
        normalisation: Normalisation,
    ) -> Self {
        let fit = if resize.is_none() { Fit::Stretch } else { Fit::Crop };
        Self { resize, ..Self::new(fit, filter, size, normalisation) }
    }

    /// The preprocessing in the directory of a run.
    pub fn read(run: &Path) -> Result<Self> {
        let path = run.join(FILE);
        let read: Self = read_json(&path, FORMAT_VERSION)?;
        read.check().map_err(|rule| Error::unusable(&path, &rule))?;
        Ok(read)
    }

    /// Checks what a file can have wrong.
    fn check(&self) -> std::result::Result<(), String> {
        let Self { height, width, mean, deviation, .. } = self;
        for (key, side) in [("height", *height), ("width", *width)] {
            if !(1..=MAX_SIZE as usize).contains(&side) {
                return Err(format!("`{key}` = {side} must be from 1 to {MAX_SIZE}"));
            }
        }
        let sides = match self.resize {
            Some(Resize::To(sides)) => sides.to_vec(),
            Some(Resize::ShorterSide(side)) => vec![side],
            Some(Resize::Never) | None => Vec::new(),
        };
        if sides.iter().any(|side| !(1..=MAX_SIZE as usize).contains(side)) {
            return Err(format!("`resize` must be from 1 to {MAX_SIZE}"));
        }
        let n = self.colour.channels();
        if mean.len() != n || deviation.len() != n {
            return Err(format!("`mean` and `deviation` need {n} numbers each"));
        }
        let is_usable = mean.iter().chain(deviation).all(|value| value.is_finite())
            && deviation.iter().all(|&value| value > 0.);
        if is_usable {
            Ok(())
        } else {
            Err("`mean` and `deviation` must be finite, and `deviation` positive".to_owned())
        }
    }

    /// Whether the directory of a run has one.
    pub(crate) fn is_in(run: &Path) -> bool {
        run.join(FILE).exists()
    }

    /// Name and content of the file that a run keeps it in.
    pub(crate) fn file(&self) -> Result<(&'static str, Vec<u8>)> {
        Ok((FILE, to_json(Path::new(FILE), self)?))
    }

    /// The size of all pictures.
    pub fn size(&self) -> PictureSize {
        let Self { height, width, .. } = *self;
        PictureSize { height, width, channels: self.colour.channels() }
    }

    /// Mean and deviation.
    pub fn normalisation(&self) -> Normalisation {
        Normalisation { mean: self.mean.clone(), deviation: self.deviation.clone() }
    }

    /// What is done with a decoded picture.
    pub fn preparation(&self) -> Preparation {
        let Self { height, width, fit, filter, colour, .. } = *self;
        Preparation { size: Some([height, width]), fit, filter, colour: Some(colour) }
    }

    /// Decodes a file and prepares its picture.
    ///
    /// # Errors
    /// What is wrong with the file, as the end of a sentence that begins with its name.
    pub fn decode(&self, bytes: &[u8]) -> std::result::Result<Picture, String> {
        let Some(how) = self.resize else { return self.preparation().decode(bytes) };
        let picture = decode(bytes)?.converted(self.colour);
        let picture = match how {
            Resize::Never => picture,
            Resize::To(size) => resize(&picture, size, Fit::Stretch, self.filter),
            Resize::ShorterSide(n) => {
                check_proportions(picture.size, n)?;
                with_shorter_side(&picture, n, self.filter)
            }
        };
        centre(&picture, [self.height, self.width]).ok_or_else(|| {
            let (size, rows, columns) = (picture.size, self.height, self.width);
            format!("has {size} where the middle {rows} × {columns} is cut out")
        })
    }

    /// The picture in a PNG or JPEG, in the size and colour that the model reads.
    ///
    /// # Errors
    /// If the file cannot be read, or is no picture.
    pub fn open(&self, path: &Path) -> Result<Picture> {
        let bytes = crate::storage::files::read(path)?;
        self.decode(&bytes).map_err(|rule| Error::unusable(path, &rule))
    }
}
