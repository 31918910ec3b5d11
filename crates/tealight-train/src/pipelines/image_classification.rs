//! Classes of pictures, by a classifier.

use std::path::PathBuf;

use candle_core::Device;
use tealight_model::ModelSpec;
use tealight_model::models::image_classifier::ImageClassifier;

use super::Pipeline;
use crate::data::images::Picture;
use crate::error::{Error, Result};
use crate::inference::image_classifier::{PictureClassifier, PictureMaps, Pixels, Preprocessing};
use crate::inference::labels::{Classified, Labels};
use crate::trained::TrainedModel;

/// The number of classes that the pipeline of `transformers` gives, unless another is asked for.
pub const TOP_K: usize = 5;

/// A classifier of pictures with its labels and preprocessing.
#[derive(Debug)]
pub struct ImageClassification {
    model: ImageClassifier,
    labels: Labels,
    preprocessing: Preprocessing,
    pixels: Pixels,
}

/// A PNG or JPEG.
#[derive(Clone, Debug)]
pub enum Request {
    /// In a file.
    File(PathBuf),
    /// Its bytes.
    Bytes(Vec<u8>),
}

impl Pipeline for ImageClassification {
    const NAME: &'static str = "image-classification";
    type Request = Request;
    /// All classes with their scores, the likeliest first.
    type Answer = Classified;

    fn open(model: &TrainedModel, device: &Device) -> Result<Self> {
        let (Some(ModelSpec::ImageClassifier(spec)), Some(labels)) =
            (&model.spec, &model.readers.labels)
        else {
            return Err(model.wrong_kind("a classifier of pictures"));
        };
        let preprocessing = model.readers.preprocessing.as_ref().ok_or_else(|| {
            let rule =
                "it does not say how pictures are prepared: there is no `preprocessor_config.json`, and no \
                 `processor_config.json`";
            Error::unusable(&model.folder, &rule)
        })?;
        Ok(Self {
            model: model.build(device, |vb| ImageClassifier::build(&model.config, spec, vb))?,
            labels: labels.clone(),
            preprocessing: preprocessing.clone(),
            pixels: Pixels::new(preprocessing, device),
        })
    }

    fn answers(&self, requests: &[&Request]) -> Result<Vec<Classified>> {
        let pictures = requests.iter().map(|request| self.picture(request));
        self.classifier().classify(&pictures.collect::<Result<Vec<_>>>()?)
    }
}

impl ImageClassification {
    /// The picture as the model reads it, before it is normalised.
    ///
    /// # Errors
    /// If the file cannot be read, or is no picture.
    pub fn picture(&self, request: &Request) -> Result<Picture> {
        match request {
            Request::File(path) => self.preprocessing.open(path),
            Request::Bytes(bytes) => {
                let fault = |rule| Error::input(format!("the picture {rule}"));
                self.preprocessing.decode(bytes).map_err(fault)
            }
        }
    }

    /// The attention maps of a picture with a query: the patch in this row and column, counted from 0, or else the
    /// read-out.
    ///
    /// # Errors
    /// If it is no picture, or if there is no such patch.
    pub fn picture_maps(
        &self,
        request: &Request,
        patch: Option<[usize; 2]>,
    ) -> Result<PictureMaps> {
        self.classifier().picture_maps(self.picture(request)?, patch)
    }

    fn classifier(&self) -> PictureClassifier<'_> {
        let Self { model, labels, pixels, .. } = self;
        PictureClassifier { model, labels, pixels }
    }
}
