//! The classes that a classifier gives to pictures, and the attention maps of a picture.

mod picture_maps;
mod preprocessing;

use candle_core::{Device, Tensor};
use tealight_model::Mode;
use tealight_model::models::image_classifier::ImageClassifier;
use tealight_model::patches::PictureSize;
use tealight_ops::device::tensor_of;
use tealight_ops::threads;

pub use picture_maps::{PictureMaps, Query};
pub(crate) use preprocessing::MAX_SIZE;
pub use preprocessing::{Preprocessing, Resize};

use super::labels::{Classified, Labels};
use super::{check_finite, probabilities};
use crate::data::images::{Picture, Table};
use crate::error::{Error, Result};

/// Numbers in one forward pass, and pictures at most.
const MAX_NUMBERS: usize = 1 << 20;
const MAX_PICTURES: usize = 256;

/// Writes pictures of one size as tensors.
#[derive(Clone, Debug)]
pub(crate) struct Pixels {
    pub(crate) size: PictureSize,
    pub(crate) table: Table,
    pub(crate) device: Device,
}

impl Pixels {
    /// Of pictures that are prepared so.
    pub(crate) fn new(preprocessing: &Preprocessing, device: &Device) -> Self {
        let (size, table) = (preprocessing.size(), preprocessing.normalisation().table());
        Self { size, table, device: device.clone() }
    }

    /// `(n, height, width, channels)` of pixels.
    pub(crate) fn tensor(&self, pictures: &[&[u8]]) -> Result<Tensor> {
        self.written(pictures.len(), &|at, numbers| self.table.write(pictures[at], numbers))
    }

    /// A tensor of `n` pictures, each written by a thread.
    pub(crate) fn written(
        &self,
        n: usize,
        write: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> Result<Tensor> {
        let PictureSize { height, width, channels } = self.size;
        let mut numbers = vec![0.; n * height * width * channels];
        let pictures = numbers.chunks_exact_mut(height * width * channels).enumerate();
        threads::map(pictures.collect(), &|(at, numbers)| write(at, numbers));
        Ok(tensor_of(numbers, (n, height, width, channels), &self.device)?)
    }

    /// Pictures in one forward pass.
    pub(crate) fn n_together(&self) -> usize {
        let PictureSize { height, width, channels } = self.size;
        (MAX_NUMBERS / (height * width * channels).max(1)).clamp(1, MAX_PICTURES)
    }
}

/// A classifier with what reads its pictures and names its outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PictureClassifier<'a> {
    /// Built without gradients.
    pub(crate) model: &'a ImageClassifier,
    pub(crate) labels: &'a Labels,
    pub(crate) pixels: &'a Pixels,
}

impl PictureClassifier<'_> {
    /// The labels of pictures, in their order: as the pipeline `image-classification` of `transformers`.
    ///
    /// # Errors
    /// If a picture has another size, or if the scores of the model are not finite.
    pub(crate) fn classify(&self, pictures: &[Picture]) -> Result<Vec<Classified>> {
        let mut classified = Vec::with_capacity(pictures.len());
        for pictures in pictures.chunks(self.pixels.n_together()) {
            let scores = self.scores(pictures)?;
            check_finite(scores.iter().flatten())?;
            let of_row = |row: &Vec<f64>| Classified::new(self.labels, row);
            classified.extend(scores.iter().map(of_row));
        }
        Ok(classified)
    }

    /// The probability of each class, for each picture.
    pub(crate) fn scores(&self, pictures: &[Picture]) -> Result<Vec<Vec<f64>>> {
        probabilities(&self.model.forward(&self.tensor(pictures)?, Mode::Eval)?)
    }

    /// Pictures of the model's size, normalised: `(n, height, width, channels)`.
    ///
    /// # Errors
    /// If a picture has another size.
    pub(crate) fn tensor(&self, pictures: &[Picture]) -> Result<Tensor> {
        let size = self.pixels.size;
        for picture in pictures {
            if picture.size != size {
                let message = format!(
                    "a picture has {} and {} channels, and the model reads {size} and {} channels",
                    picture.size, picture.size.channels, size.channels
                );
                return Err(Error::input(message));
            }
        }
        let pixels: Vec<&[u8]> = pictures.iter().map(|picture| &picture.pixels[..]).collect();
        self.pixels.tensor(&pixels)
    }
}
