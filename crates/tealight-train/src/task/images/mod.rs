//! Classes of pictures (Dosovitskiy et al. 2021, <https://arxiv.org/abs/2010.11929>).
//!
//! The pictures come from files, or are drawn ([`crate::data::images`]). A run keeps the classes (`labels.json`), and
//! size, mean and deviation (`pictures.json`): its model is used without the pictures.

mod batch;
mod config;
mod illustrations;
mod report;

use std::collections::BTreeMap;
use std::slice;

use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::embedding::Input;
use tealight_model::models::image_classifier::{ImageClassifier, ImageClassifierSpec};
use tealight_model::transformer::Transformer;
use tealight_model::{Mask, Mode, ModelConfig, ParamStore};

pub use crate::data::images::augment;
pub use crate::data::images::source::SourceConfig;
pub use crate::data::images::{Colour, Filter, Fit, Picture};
pub use crate::inference::image_classifier::{PictureMaps, Preprocessing, Query, Resize};
pub use batch::Batch;
pub use config::Config;

use crate::data::cache::folder;
use crate::data::images::augment::Augmentation;
use crate::data::images::{Labelled, Normalisation, Pictures};
use crate::data::{DataFile, ShuffledOrder, Split};
use crate::error::{Error, Result};
use crate::inference::attention_map::AttentionMap;
use crate::inference::image_classifier::{PictureClassifier, Pixels};
use crate::inference::labels::{Labels, Objective};
use crate::inference::likeliest as most_likely;
use crate::inference::values;
use crate::task::context::TaskContext;
use crate::task::metrics::{Metrics, by_name};
use crate::task::report::Report;
use crate::task::sample::{N_SAMPLES, Sample, likeliest};
use crate::task::scores::{Frequencies, confusion, of_classes};
use crate::task::{
    Evaluated, Imitation, Inputs, Loss, Reading, RegisteredTask, RowMeanings, Task, TaskKind,
    TaskSettings,
};
use batch::Batches;

/// The task: pictures and their classes.
#[derive(Debug)]
pub struct Images {
    config: Config,
    labels: Labels,
    preprocessing: Preprocessing,
    batches: Batches,
    pictures: Pictures,
    /// How often each class occurs.
    frequencies: Frequencies,
    /// The order of the pictures in training.
    order: ShuffledOrder,
    /// How pictures are changed in training.
    augmentation: Augmentation,
    /// The positions of the model.
    n_positions: usize,
    batch_size: usize,
    /// Whether a trained model is tested.
    is_test: bool,
}

impl TaskKind for Config {
    type Task = Images;

    fn build(&self, context: &TaskContext<'_>) -> Result<Images> {
        let TaskContext { seed, kept, progress, batch_size, model, device, test, .. } = *context;
        self.validate()?;
        let cache = || folder(self.cache.as_deref());
        let progress = &mut |stage, done| progress(stage, done);
        let (labels, mut preparation) = (self.labels.as_deref(), self.preparation());
        let pictures = if test.is_some() {
            if let Some(run) = kept {
                let Preprocessing { height, width, colour, .. } = Preprocessing::read(run)?;
                (preparation.size, preparation.colour) = (Some([height, width]), Some(colour));
            }
            let kept = kept.filter(|_| labels.is_none()).map(Labels::read).transpose()?;
            let labels = labels.or(kept.as_ref().map(Labels::names)).unwrap_or_default();
            Pictures::open_test(&self.data, labels, preparation, seed, cache, progress)?
        } else {
            Pictures::open(&self.data, labels, preparation, seed, cache, progress)?
        };
        let preprocessing = if let Some(run) = kept.filter(|run| Preprocessing::is_in(run)) {
            Preprocessing::read(run)?
        } else {
            let (size, normalisation) = (pictures.size(), normalisation(self, &pictures)?);
            Preprocessing::new(self.fit, self.filter, size, normalisation)
        };
        let labels = Labels::new(Objective::Classes, pictures.labels().to_vec());
        let order = ShuffledOrder::new(seed, pictures.n(Split::Train));
        let augmentation = Augmentation::new(&self.augment, seed);
        let pixels = Pixels::new(&preprocessing, device);
        let batches = Batches { pixels, n_classes: labels.names().len() };
        let spec = spec(self, &labels, &preprocessing);
        // Patches that do not fit are refused when the model is built.
        let n_positions = spec.grid(model).map_or(0, |grid| grid.n_tokens());
        let frequencies = {
            let classes = |split| {
                (0..pictures.n(split)).map(|at| pictures.at(split, at).class as usize).collect()
            };
            let [train, held_out]: [Vec<usize>; 2] = [Split::Train, Split::Validation].map(classes);
            Frequencies::new(labels.names().len(), train, held_out)
        };
        Ok(Images {
            config: self.clone(),
            frequencies,
            labels,
            preprocessing,
            batches,
            pictures,
            order,
            augmentation,
            n_positions,
            batch_size,
            is_test: test.is_some(),
        })
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
        if index >= self.pictures.n(Split::Validation) {
            return None;
        }
        let Labelled { pixels, class, name } = self.pictures.at(Split::Validation, index);
        Some((Picture::new(self.batches.pixels.size, pixels.to_vec()), name, class))
    }

    /// `model` with what reads its pictures.
    fn classifier<'a>(&'a self, model: &'a ImageClassifier) -> PictureClassifier<'a> {
        PictureClassifier { model, labels: &self.labels, pixels: &self.batches.pixels }
    }

    /// A picture by its name, with the classes that the model gives it.
    fn sample(
        &self,
        model: &ImageClassifier,
        (picture, name, class): (Picture, &str, u32),
    ) -> Result<Sample> {
        let scores =
            self.classifier(model).scores(slice::from_ref(&picture))?.into_iter().flatten();
        Ok(Sample {
            input: name.to_owned(),
            truth: self.labels.names().get(class as usize).cloned().into_iter().collect(),
            candidates: vec![likeliest(self.labels.names().iter().cloned().zip(scores))],
            picture: Some(picture),
            ..Sample::default()
        })
    }

    /// The held-out pictures of batch `index` of an evaluation.
    fn held_out_batch(&self, index: u64) -> Vec<Labelled<'_>> {
        let pictures = &self.pictures;
        let (n, first) =
            (pictures.n(Split::Validation), index as usize * self.batches.pixels.n_together());
        let places = first.min(n)..n.min(first + self.batches.pixels.n_together());
        places.map(|at| pictures.at(Split::Validation, at)).collect()
    }

    fn training_batch(&self, index: u64) -> Result<Batch> {
        let Self { pictures, order, augmentation, .. } = self;
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
        self.pictures.n(split)
    }
}

fn spec(config: &Config, labels: &Labels, preprocessing: &Preprocessing) -> ImageClassifierSpec {
    ImageClassifierSpec {
        size: preprocessing.size(),
        n_classes: labels.names().len(),
        read_out: config.read_out,
    }
}

impl Imitation<ImageClassifier, Batch> for Images {
    fn outputs(
        &self,
        model: &ImageClassifier,
        batch: &Batch,
        mode: Mode,
    ) -> Result<Option<Tensor>> {
        Ok(Some(model.forward(&batch.pictures, mode)?.to_dtype(DType::F32)?))
    }

    fn loss_by_labels(&self, outputs: &Tensor, batch: &Batch) -> Result<Loss> {
        batch.loss(outputs, self.config.label_smoothing)
    }

    fn transformer<'a>(&self, model: &'a ImageClassifier) -> &'a Transformer {
        model.transformer()
    }

    fn readings<'a>(&self, batch: &'a Batch, mode: Mode) -> Vec<Reading<'a>> {
        vec![Reading { input: Input::Pictures(&batch.pictures), mask: Mask::none(), mode }]
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
        self.n_of(Split::Validation).div_ceil(self.batches.pixels.n_together()) as u64
    }

    fn seq_len(&self) -> usize {
        self.n_positions
    }

    fn row_meanings(&self, config: &ModelConfig) -> RowMeanings<'_> {
        let grid = self.model_spec().grid(config).ok();
        RowMeanings { labels: Some(&self.labels), grid, ..RowMeanings::default() }
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

    fn imitation(&self) -> Option<&dyn Imitation<ImageClassifier, Batch>> {
        Some(self)
    }

    fn evaluate_batch(&self, model: &ImageClassifier, batch: &Batch) -> Result<Evaluated> {
        let logits = model.forward(&batch.pictures, Mode::Eval)?;
        let outputs = values(&logits)?.iter().map(|row| most_likely(row) as f64).collect();
        Ok(Evaluated { measures: batch.loss(&logits, 0.)?.measures(), outputs })
    }

    fn score(&self, outputs: &[f64]) -> Metrics {
        let n = self.n_of(Split::Validation);
        let classes = (0..n).map(|at| self.pictures.at(Split::Validation, at).class as usize);
        let predicted = outputs.iter().map(|&class| class as usize);
        let confusion = confusion(self.labels.names().len(), classes.zip(predicted));
        let mut metrics = Metrics::default();
        for (name, value) in of_classes(&confusion, self.frequencies.rarest()) {
            metrics.add(name, value, 1.);
        }
        metrics
    }

    fn remark(&self, metrics: &BTreeMap<String, f64>) -> Option<String> {
        self.frequencies.no_better(metrics, self.labels.names())
    }

    fn attention_maps(&self, model: &ImageClassifier) -> Result<Vec<AttentionMap>> {
        match self.held_out(0) {
            Some((picture, ..)) => self.classifier(model).attention_maps(&picture),
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
        let (left_out, _) = self.pictures.left_out();
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
        self.pictures.files().to_vec()
    }

    fn notes(&self) -> Vec<String> {
        let pictures = &self.pictures;
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

    fn picture_maps(
        &self,
        model: &ImageClassifier,
        index: usize,
    ) -> Result<Option<(String, PictureMaps)>> {
        let Some((picture, name, _)) = self.held_out(index) else { return Ok(None) };
        let maps = self.classifier(model).picture_maps(picture, None)?;
        Ok(Some((name.to_owned(), maps)))
    }
}

#[cfg(test)]
mod tests;
