//! Classes of pictures (Dosovitskiy et al. 2021, <https://arxiv.org/abs/2010.11929>).
//!
//! The pictures come from files, or are drawn ([`crate::data::images`]). A run keeps the classes (`labels.json`), and
//! size, mean and deviation (`pictures.json`): its model is used without the pictures.

mod batch;
mod config;
mod illustrations;
mod picture_maps;
mod preprocessing;
mod report;

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use serde_json::json;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::models::image_classifier::{ImageClassifier, ImageClassifierSpec};
use tealight_model::patches::Grid;
use tealight_model::{Mode, ModelConfig, ParamStore};

pub use crate::data::images::augment;
pub use crate::data::images::source::SourceConfig;
pub use crate::data::images::{Colour, Filter, Fit, Picture};
pub use batch::Batch;
pub use config::Config;
pub use picture_maps::{PictureMaps, Query};
pub use preprocessing::{Preprocessing, Resize};

use crate::data::cache::folder;
use crate::data::images::augment::Augmentation;
use crate::data::images::{Labelled, Normalisation, Pictures};
use crate::data::{DataFile, ShuffledOrder, Split};
use crate::error::{Error, Result};
use crate::inference::{check_finite, probabilities};
use crate::task::attention_map::{AttentionMap, SequenceMaps};
use crate::task::context::TaskContext;
use crate::task::labels::{Classified, Labels, Objective};
use crate::task::metrics::by_name;
use crate::task::report::Report;
use crate::task::sample::{N_SAMPLES, Sample, likeliest};
use crate::task::{Inputs, Loss, RegisteredTask, Task, TaskKind, TaskSettings};
use batch::Batches;

/// Numbers in one forward pass of an evaluation, and pictures at most.
const EVALUATION_NUMBERS: usize = 1 << 20;
const EVALUATION_PICTURES: usize = 256;

/// The task: pictures and their classes.
#[derive(Debug)]
pub struct Images {
    config: Config,
    labels: Labels,
    preprocessing: Preprocessing,
    batches: Batches,
    /// `None` where a run is used without its data.
    data: Option<Data>,
    /// The positions of the model.
    n_positions: usize,
    batch_size: usize,
}

/// The pictures, their order in training, and how they are changed.
#[derive(Debug)]
struct Data {
    pictures: Pictures,
    order: ShuffledOrder,
    augmentation: Augmentation,
}

impl TaskKind for Config {
    type Task = Images;

    fn build(&self, context: &TaskContext<'_>) -> Result<Images> {
        let TaskContext { seed, kept, inference_only, progress, batch_size, .. } = *context;
        let (model, device) = (context.model, context.device);
        if let (Some(run), true) = (kept, inference_only) {
            let (labels, preprocessing) = (Labels::read(run)?, Preprocessing::read(run)?);
            return Ok(Images::without_data(self, labels, preprocessing, model, device));
        }
        self.validate()?;
        let pictures = Pictures::open(
            &self.data,
            self.labels.as_deref(),
            self.preparation(),
            seed,
            || folder(self.cache.as_deref()),
            &mut |stage, done| progress(stage, done),
        )?;
        let preprocessing = match kept.filter(|run| Preprocessing::is_in(run)) {
            Some(run) => Preprocessing::read(run)?,
            None => Preprocessing::new(self, pictures.size(), normalisation(self, &pictures)?),
        };
        let labels = Labels::new(Objective::Classes, pictures.labels().to_vec());
        let order = ShuffledOrder::new(seed, pictures.n(Split::Train));
        let augmentation = Augmentation::new(&self.augment, seed);
        let data = Some(Data { pictures, order, augmentation });
        let task = Images::without_data(self, labels, preprocessing, model, device);
        Ok(Images { data, batch_size, ..task })
    }
}

/// Mean and deviation as set, or those of the pictures to train on.
fn normalisation(config: &Config, pictures: &Pictures) -> Result<Normalisation> {
    let channels = pictures.size().channels;
    let given = |key: &str, values: &Option<Vec<f64>>| {
        let Some(values) = values else { return Ok(None) };
        if values.len() == channels {
            return Ok(Some(values.iter().map(|&value| value as f32).collect::<Vec<_>>()));
        }
        let message = format!(
            "`{key}` has {} numbers, and the pictures have {channels} channels",
            values.len()
        );
        Err(Error::config([key], message))
    };
    let (mean, deviation) =
        (given("task.mean", &config.mean)?, given("task.deviation", &config.deviation)?);
    Ok(match (mean, deviation) {
        (Some(mean), Some(deviation)) => Normalisation { mean, deviation },
        (mean, deviation) => {
            let found = pictures.normalisation();
            Normalisation {
                mean: mean.unwrap_or(found.mean),
                deviation: deviation.unwrap_or(found.deviation),
            }
        }
    })
}

impl Images {
    /// The task without pictures, for this `model`.
    pub(crate) fn without_data(
        config: &Config,
        labels: Labels,
        preprocessing: Preprocessing,
        model: &ModelConfig,
        device: &Device,
    ) -> Self {
        let batches = Batches {
            size: preprocessing.size(),
            n_classes: labels.names().len(),
            table: preprocessing.normalisation().table(),
            device: device.clone(),
        };
        let spec = spec(config, &labels, &preprocessing);
        // Patches that do not fit are refused when the model is built.
        let n_positions = spec.grid(model).map_or(0, |grid| grid.n_tokens());
        let (config, data, batch_size) = (config.clone(), None, 1);
        Self { config, labels, preprocessing, batches, data, n_positions, batch_size }
    }

    /// The classes in the order of the model's outputs.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// The preprocessing of picture files.
    pub fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    /// The sizes that the model is built with.
    pub fn model_spec(&self) -> ImageClassifierSpec {
        spec(&self.config, &self.labels, &self.preprocessing)
    }

    /// Held-out picture `index`: as the model reads it before it is normalised, with its name and class; `None` if
    /// there is none.
    pub fn held_out(&self, index: usize) -> Option<(Picture, &str, u32)> {
        let data = self.data.as_ref().filter(|data| index < data.pictures.n(Split::Validation))?;
        let Labelled { pixels, class, name } = data.pictures.at(Split::Validation, index);
        Some((Picture::new(self.batches.size, pixels.to_vec()), name, class))
    }

    /// Pictures of the model's size, normalised: `(n, height, width, channels)`.
    ///
    /// # Errors
    /// If a picture has another size.
    pub fn tensor(&self, pictures: &[Picture]) -> Result<Tensor> {
        for picture in pictures {
            if picture.size != self.batches.size {
                let message = format!(
                    "a picture has {} and {} channels, and the model reads {} and {} channels",
                    picture.size,
                    picture.size.channels,
                    self.batches.size,
                    self.batches.size.channels
                );
                return Err(Error::input(message));
            }
        }
        let pixels: Vec<&[u8]> = pictures.iter().map(|picture| &picture.pixels[..]).collect();
        self.batches.tensor(&pixels)
    }

    /// The labels that `model` gives to pictures, in their order: as the pipeline `image-classification` of
    /// `transformers`.
    ///
    /// # Errors
    /// If a picture has another size, or if the scores of the model are not finite.
    pub fn classify(
        &self,
        model: &ImageClassifier,
        pictures: &[Picture],
    ) -> Result<Vec<Classified>> {
        let mut classified = Vec::with_capacity(pictures.len());
        for pictures in pictures.chunks(self.evaluation_batch()) {
            let scores = self.scores(model, pictures)?;
            check_finite(scores.iter().flatten())?;
            let of_row =
                |row: &Vec<f64>| Classified::new(self.labels.names(), Objective::Classes, row);
            classified.extend(scores.iter().map(of_row));
        }
        Ok(classified)
    }

    /// The probability of each class, for each picture.
    fn scores(&self, model: &ImageClassifier, pictures: &[Picture]) -> Result<Vec<Vec<f64>>> {
        probabilities(&model.forward(&self.tensor(pictures)?, Mode::Eval)?)
    }

    /// A picture by its name, with the classes that the model gives it.
    fn sample(
        &self,
        model: &ImageClassifier,
        (picture, name, class): (Picture, &str, u32),
    ) -> Result<Sample> {
        let scores = self.scores(model, &[picture])?.into_iter().flatten();
        Ok(Sample {
            input: name.to_owned(),
            truth: self.labels.names().get(class as usize).cloned().into_iter().collect(),
            candidates: vec![likeliest(self.labels.names().iter().cloned().zip(scores))],
            ..Sample::default()
        })
    }

    fn evaluation_batch(&self) -> usize {
        let PictureNumbers(n) = PictureNumbers::of(&self.preprocessing);
        (EVALUATION_NUMBERS / n).clamp(1, EVALUATION_PICTURES)
    }

    /// The held-out pictures of batch `index` of an evaluation.
    fn held_out_batch(&self, index: u64) -> Vec<Labelled<'_>> {
        let Some(Data { pictures, .. }) = &self.data else { return Vec::new() };
        let (n, first) = (pictures.n(Split::Validation), index as usize * self.evaluation_batch());
        let places = first.min(n)..n.min(first + self.evaluation_batch());
        places.map(|at| pictures.at(Split::Validation, at)).collect()
    }

    fn training_batch(&self, index: u64) -> Result<Batch> {
        let Some(Data { pictures, order, augmentation }) = &self.data else {
            return self.batches.plain(&[]);
        };
        let first = index * self.batch_size as u64;
        let numbers = order.examples(first, self.batch_size);
        let chosen: Vec<_> = numbers.into_iter().map(|at| pictures.at(Split::Train, at)).collect();
        if self.config.augment == augment::Config::default() {
            return self.batches.plain(&chosen);
        }
        let places = first..first + self.batch_size as u64;
        self.batches.augmented(&chosen, places, augmentation, self.config.augment.mixes())
    }

    fn n_of(&self, split: Split) -> usize {
        self.data.as_ref().map_or(0, |data| data.pictures.n(split))
    }
}

/// The numbers of a picture.
struct PictureNumbers(usize);

impl PictureNumbers {
    fn of(preprocessing: &Preprocessing) -> Self {
        let size = preprocessing.size();
        Self((size.height * size.width * size.channels).max(1))
    }
}

fn spec(config: &Config, labels: &Labels, preprocessing: &Preprocessing) -> ImageClassifierSpec {
    ImageClassifierSpec {
        size: preprocessing.size(),
        n_classes: labels.names().len(),
        read_out: config.read_out,
    }
}

impl Task for Images {
    type Model = ImageClassifier;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<ImageClassifier> {
        Ok(ImageClassifier::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        match split {
            Split::Train => self.training_batch(index),
            Split::Validation => self.batches.plain(&self.held_out_batch(index)),
        }
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.n_of(Split::Validation).div_ceil(self.evaluation_batch()) as u64
    }

    fn seq_len(&self) -> usize {
        self.n_positions
    }

    fn grid(&self, config: &ModelConfig) -> Option<Grid> {
        self.model_spec().grid(config).ok()
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        ImageClassifier::estimate(config, &self.model_spec())
    }

    fn inputs<'a>(&self, batch: &'a Batch) -> Inputs<'a> {
        batch.inputs()
    }

    fn loss(&self, model: &ImageClassifier, batch: &Batch, mode: Mode) -> Result<Loss> {
        let smoothing = if mode == Mode::Eval { 0. } else { self.config.label_smoothing };
        batch.loss(&model.forward(&batch.pictures, mode)?, smoothing)
    }

    fn attention_maps(&self, model: &ImageClassifier) -> Result<Vec<AttentionMap>> {
        match self.held_out(0) {
            Some((picture, ..)) => self.attention_maps_of(model, &picture),
            None => Ok(Vec::new()),
        }
    }

    fn samples(&self, model: &ImageClassifier) -> Result<Vec<Sample>> {
        (0..N_SAMPLES)
            .filter_map(|index| self.held_out(index))
            .map(|held_out| self.sample(model, held_out))
            .collect()
    }
}

impl RegisteredTask for Images {
    fn report(&self, model: &ImageClassifier) -> Result<Report> {
        report::report(self, model)
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        let Preprocessing { height, width, .. } = self.preprocessing;
        let left_out = self.data.as_ref().map_or(0, |data| data.pictures.left_out().0);
        by_name([
            ("height", height as u64),
            ("width", width as u64),
            ("channels", self.preprocessing.colour.channels() as u64),
            ("n_classes", self.labels.names().len() as u64),
            ("n_train", self.n_of(Split::Train) as u64),
            ("n_validation", self.n_of(Split::Validation) as u64),
            ("n_left_out", left_out),
        ])
    }

    fn cost(&self, _: &ImageClassifier, config: &ModelConfig, store: &ParamStore) -> Cost {
        ImageClassifier::cost(config, &self.model_spec(), store)
    }

    fn kept_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        Ok(vec![self.labels.file()?, self.preprocessing.file()?])
    }

    fn data_files(&self) -> Vec<DataFile> {
        self.data.as_ref().map_or_else(Vec::new, |data| data.pictures.files().to_vec())
    }

    fn notes(&self) -> Vec<String> {
        let Some(Data { pictures, .. }) = &self.data else { return Vec::new() };
        let left_out = match pictures.left_out() {
            (1, Some(file)) => {
                Some(format!("1 file is left out, because it is no picture: {file}"))
            }
            (n @ 2.., Some(first)) => Some(format!(
                "{n} files are left out, because they are no pictures; the first: {first}"
            )),
            _ => None,
        };
        left_out.into_iter().chain(pictures.unused_share().map(str::to_owned)).collect()
    }

    fn attend(&self, model: &ImageClassifier, path: &str) -> Result<SequenceMaps> {
        let picture = self.preprocessing.open(Path::new(path))?;
        let maps = self.attention_maps_of(model, &picture)?;
        Ok(SequenceMaps { sequence: json!({ "picture": path }), maps })
    }
}

#[cfg(test)]
mod tests;
