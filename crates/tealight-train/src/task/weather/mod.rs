//! Forecasting the weather: a window of days → the distribution of the next day.
//!
//! The rules that draw the weather, their exact limits and the baselines are in [`crate::data::weather`].

mod config;
mod data;
mod report;

use std::collections::BTreeMap;

use candle_core::{D, Device, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::Cost;
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
use tealight_model::{Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::{cross_entropy, hits};
use tealight_ops::device::tensor_of;

pub use crate::data::weather::source::{FileConfig, SourceConfig};
pub use config::{Config, Fixed, Fresh, InputKind, Regime};

use crate::data::weather::{Distribution, Examples, N_CLASSES, format};
use crate::data::{DataFile, Split};
use crate::error::Result;
use crate::inference::attention_map::AttentionMap;
use crate::inference::forecast::{DayForecaster, inputs, last, n_together};
use crate::task::context::TaskContext;
use crate::task::metrics::{Measures, by_name};
use crate::task::report::Report;
use crate::task::sample::{N_SAMPLES, Sample, likeliest};
use crate::task::{Inputs, Loss, RegisteredTask, Task, TaskKind, TaskSettings};
use data::{Data, TrainingData};

/// The task: windows of days and the days after them.
#[derive(Debug)]
pub struct Weather {
    /// The settings.
    pub config: Config,
    data: Data,
    batch_size: usize,
    device: Device,
    /// Whether a trained model is tested.
    is_test: bool,
}

/// A batch on the device.
#[derive(Debug)]
pub struct Batch {
    inputs: Tensor,
    labels: Tensor,
}

impl TaskKind for Config {
    type Task = Weather;

    fn build(&self, context: &TaskContext<'_>) -> Result<Weather> {
        self.validate()?;
        let TaskContext { seed, batch_size, device, test, .. } = *context;
        let is_test = test.is_some();
        let (config, data) = (self.clone(), Data::new(self, seed, is_test)?);
        Ok(Weather { config, data, batch_size, device: device.clone(), is_test })
    }
}

impl Weather {
    /// The training examples; `None` if every batch is new.
    pub fn training_examples(&self) -> Option<&Examples> {
        match &self.data.train {
            TrainingData::Fresh(_) => None,
            TrainingData::Fixed { examples, .. } => Some(examples),
        }
    }

    /// `model` with what encodes its days.
    fn forecaster<'a>(&'a self, model: &'a Forecaster) -> DayForecaster<'a> {
        DayForecaster { model, spec: self.config.spec(), device: &self.device }
    }

    /// The distribution of the day after each window by `model`. `windows (n, window)` holds days row by row.
    pub(super) fn forecast(
        &self,
        model: &Forecaster,
        windows: &[u8],
        window: usize,
    ) -> Result<Vec<Distribution>> {
        self.forecaster(model).forecast(windows, window)
    }

    /// The sizes that the model is built with.
    pub fn model_spec(&self) -> ForecasterSpec {
        self.config.spec()
    }

    fn examples(&self, split: Split, index: u64) -> Examples {
        let start = index * self.batch_size as u64;
        match (split, &self.data.train) {
            (Split::Validation, _) => {
                let (n, validation) = (n_together(self.config.window), &self.data.validation);
                let first = index as usize * n;
                validation.select(first..validation.len().min(first + n))
            }
            (Split::Train, TrainingData::Fixed { examples, order }) => {
                examples.select(order.examples(start, self.batch_size))
            }
            (Split::Train, TrainingData::Fresh(stream)) => {
                let generator = self.data.generator.as_deref().expect("invariant: fresh is drawn");
                let stream = stream.fork(index);
                Examples::sample(generator, self.config.window, self.batch_size, stream)
            }
        }
    }
}

impl Task for Weather {
    type Model = Forecaster;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Forecaster> {
        Ok(Forecaster::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        let examples = self.examples(split, index);
        let (batch, window) = (examples.len(), examples.window);
        let every = self.config.read_out == ReadOut::EveryPosition;
        let (mut ids, mut labels) = (Vec::with_capacity(batch * window), Vec::new());
        for row in examples.days.chunks_exact(window + 1) {
            ids.extend(row[..window].iter().map(|&day| u32::from(day)));
            let targets = if every { &row[1..] } else { &row[window..] };
            labels.extend(targets.iter().map(|&day| u32::from(day)));
        }
        let inputs = inputs(&self.config.spec(), ids, (batch, window), &self.device)?;
        let n_labels = labels.len();
        let labels = tensor_of(labels, n_labels, &self.device)?;
        Ok(Batch { inputs, labels })
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.data.validation.len().div_ceil(n_together(self.config.window)) as u64
    }

    fn seq_len(&self) -> usize {
        self.config.window
    }

    fn inputs<'a>(&self, Batch { inputs, labels }: &'a Batch) -> Inputs<'a> {
        Inputs { tensors: vec![inputs, labels], count: labels.elem_count() as f64 }
    }

    fn loss(&self, model: &Forecaster, batch: &Batch, mode: Mode) -> Result<Loss> {
        let logits = self.forecaster(model).logits(&batch.inputs, mode)?;
        let rows = logits.flatten_to(D::Minus2)?; // (items, 3)
        let smoothing = if mode == Mode::Eval { 0. } else { self.config.label_smoothing };
        let sum = cross_entropy(&rows, &batch.labels, smoothing)?;
        let count = batch.labels.elem_count() as f64;
        let metrics = self.measure(&logits.detach(), &batch.labels)?;
        Ok(Loss { sum, count, metrics })
    }

    fn attention_maps(&self, model: &Forecaster) -> Result<Vec<AttentionMap>> {
        self.forecaster(model).attention_maps(&self.data.validation.days[..self.config.window])
    }

    fn samples(&self, model: &Forecaster) -> Result<Vec<Sample>> {
        let examples = &self.data.validation;
        let examples = examples.select(0..examples.len().min(N_SAMPLES));
        let windows: Vec<u8> = examples.iter().flat_map(|(window, _)| window).copied().collect();
        let forecasts = self.forecast(model, &windows, examples.window)?;
        let days = (0..).map(|day: u8| format(&[day]));
        let sample = |((window, next), forecast): ((&[u8], u8), Distribution)| Sample {
            input: format(window),
            truth: vec![format(&[next])],
            candidates: vec![likeliest(days.clone().zip(forecast))],
            ..Sample::default()
        };
        Ok(examples.iter().zip(forecasts).map(sample).collect())
    }
}

impl RegisteredTask for Weather {
    fn report(&self, model: &Forecaster) -> Result<Report> {
        report::report(self, model)
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        let n_train = self.training_examples().map(|examples| ("n_train", examples.len() as u64));
        let sizes = [
            ("n_classes", N_CLASSES as u64),
            ("seq_len", self.config.window as u64),
            ("n_validation", self.data.validation.len() as u64),
        ];
        by_name(sizes.into_iter().chain(n_train))
    }

    fn cost(&self, model: &Forecaster, config: &ModelConfig, store: &ParamStore) -> Cost {
        model.cost(config, store, self.config.window)
    }

    fn data_files(&self) -> Vec<DataFile> {
        self.data.file.iter().cloned().collect()
    }
}

impl Weather {
    /// Accuracy and NLL of the forecast for the day after the window.
    fn measure(&self, logits: &Tensor, labels: &Tensor) -> Result<Measures> {
        let logits = last(&self.config.spec(), logits)?.contiguous()?;
        let (batch, _n_classes) = logits.dims2()?;
        let labels = labels.reshape((batch, ()))?;
        let (_batch, per_row) = labels.dims2()?;
        let labels = labels.narrow(1, per_row - 1, 1)?.squeeze(1)?.contiguous()?;
        let mut measures = Measures::default();
        measures.add("accuracy", &hits(&logits, &labels)?, batch as f64);
        measures.add("nll", &cross_entropy(&logits, &labels, 0.)?, batch as f64);
        Ok(measures)
    }
}
