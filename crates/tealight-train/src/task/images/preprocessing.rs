//! How files become what a trained model reads: kept with a run, so that the model is used without its data.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::config::Config;
use crate::data::images::{Colour, Filter, Fit, Normalisation, Picture, PictureSize, Preparation};
use crate::error::{Error, Result};
use crate::storage::files::{read_json, to_json};

/// The file that a run keeps it in.
const FILE: &str = "pictures.json";
const FORMAT_VERSION: u64 = 1;

/// The size of all pictures, and how others get it. Serialised as the file.
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
    /// Means of the channels, of pixels from 0 to 1.
    pub mean: Vec<f32>,
    /// Their standard deviations.
    pub deviation: Vec<f32>,
}

impl Preprocessing {
    /// For pictures of this size and normalisation; how others get it is as `config` says.
    pub fn new(config: &Config, size: PictureSize, normalisation: Normalisation) -> Self {
        let PictureSize { height, width, channels } = size;
        let colour = if channels == 1 { Colour::Grey } else { Colour::Rgb };
        let Normalisation { mean, deviation } = normalisation;
        let Config { fit, filter, .. } = *config;
        Self { format_version: FORMAT_VERSION, height, width, colour, fit, filter, mean, deviation }
    }

    /// That in the directory of a run.
    pub fn read(run: &Path) -> Result<Self> {
        let path = run.join(FILE);
        let read: Self = read_json(&path, FORMAT_VERSION)?;
        let n = read.colour.channels();
        if read.mean.len() != n || read.deviation.len() != n {
            return Err(Error::unusable(
                &path,
                &format!("`mean` and `deviation` have {n} numbers each"),
            ));
        }
        Ok(read)
    }

    /// Whether the directory of a run has one.
    pub(super) fn is_in(run: &Path) -> bool {
        run.join(FILE).is_file()
    }

    /// Name and content of the file that a run keeps it in.
    pub(super) fn file(&self) -> Result<(&'static str, Vec<u8>)> {
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

    /// The picture in a PNG or JPEG, in the size and colour that the model reads.
    ///
    /// # Errors
    /// If the file cannot be read, or is no picture.
    pub fn open(&self, path: &Path) -> Result<Picture> {
        let bytes = crate::storage::files::read(path)?;
        self.preparation().decode(&bytes).map_err(|rule| Error::unusable(path, &rule))
    }
}
