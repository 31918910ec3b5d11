//! Forecasting the weather: a window of days → the distribution of the next day.
//!
//! The rules that draw the weather, their exact limits and the baselines are in [`crate::data::weather`].

mod config;
mod data;
mod report;
mod rollout;

use std::collections::BTreeMap;

use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use serde_json::json;
use tealight_model::cost::Cost;
use tealight_model::embedding::{Input, InputSpec};
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
use tealight_model::{Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::{cross_entropy, hits};
use tealight_ops::device::tensor_of;

pub use crate::data::weather::source::{FileConfig, SourceConfig};
pub use config::{Config, Fixed, Fresh, InputKind, Regime};
pub use rollout::{Decoding, Rollout, Sequence, rollout};

use crate::data::weather::{Distribution, Examples, N_CLASSES, format, parse};
use crate::data::{DataFile, Split};
use crate::error::{Error, Result};
use crate::inference::probabilities;
use crate::task::attention_map::{AttentionMap, SequenceMaps};
use crate::task::context::TaskContext;
use crate::task::metrics::{Measures, by_name};
use crate::task::report::Report;
use crate::task::sample::{N_SAMPLES, Sample, likeliest};
use crate::task::{Inputs, Loss, RegisteredTask, Task, TaskKind, TaskSettings};
use data::{Data, TrainingData};

/// Windows in one forward pass of an evaluation: 1024, or fewer if they are longer than 64 days, because the
/// memory of attention grows with the square of their length.
fn evaluation_batch(window: usize) -> usize {
    (1024 * 64 * 64 / (window * window)).clamp(1, 1024)
}

/// The task: windows of days and the days after them.
#[derive(Debug)]
pub struct Weather {
    /// The settings.
    pub config: Config,
    data: Data,
    batch_size: usize,
    device: Device,
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
        let TaskContext { seed, batch_size, device, .. } = *context;
        let data = Data::new(self, seed)?;
        Ok(Weather { config: self.clone(), data, batch_size, device: device.clone() })
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

    /// The exact distribution of the day after `history` by the rule that draws the weather. `None` if the weather
    /// comes from a file, or if the rule depends on more days.
    pub fn exact(&self, history: &[u8]) -> Option<Distribution> {
        let rule = self.data.generator.as_ref()?;
        (history.len() >= rule.memory()).then(|| rule.next(history))
    }

    /// The distribution of the day after each window by `model`. `windows (n, window)` holds days row by row.
    pub fn forecast(
        &self,
        model: &Forecaster,
        windows: &[u8],
        window: usize,
    ) -> Result<Vec<Distribution>> {
        let mut forecasts = Vec::with_capacity(windows.len() / window);
        for rows in windows.chunks(evaluation_batch(window) * window) {
            let ids = rows.iter().map(|&day| u32::from(day)).collect();
            let inputs = self.inputs(ids, (rows.len() / window, window))?;
            let logits = self.last(&self.logits(model, &inputs, Mode::Eval)?)?; // (batch, 3)
            forecasts.extend(probabilities(&logits)?.iter().map(|row| [row[0], row[1], row[2]]));
        }
        Ok(forecasts)
    }

    /// The attention maps of a window of days.
    fn attention_maps_of(&self, model: &Forecaster, days: &[u8]) -> Result<Vec<AttentionMap>> {
        let ids = days.iter().map(|&day| u32::from(day)).collect();
        let inputs = self.inputs(ids, (1, days.len()))?;
        let layers = model.attention_maps(&self.input(&inputs), &Mask::none())?;
        let days = days.iter().map(|&day| format(&[day]));
        let cls = (self.config.read_out == ReadOut::Cls).then(|| "[CLS]".to_owned());
        let positions: Vec<String> = cls.into_iter().chain(days).collect();
        Ok(AttentionMap::of_layers("layer", &positions, layers))
    }

    /// The last days that the model reads, of those that a user typed.
    fn window<'a>(&self, days: &'a [u8]) -> Result<&'a [u8]> {
        let Config { window, read_out, .. } = self.config;
        let n = days.len();
        if n == 0 {
            let message =
                "the sequence is empty; expected days: 🌧️ ☁️ ☀️ or the letters R C S, oldest first";
            return Err(Error::input(message));
        }
        // A model that forecasts at every position is trained on shorter windows, too.
        if n < window && read_out != ReadOut::EveryPosition {
            let message = format!("the sequence has {n} days, and the model requires {window}");
            return Err(Error::input(message));
        }
        Ok(&days[n.saturating_sub(window)..])
    }

    /// The sizes that the model is built with.
    pub fn model_spec(&self) -> ForecasterSpec {
        ForecasterSpec {
            input: match self.config.input {
                InputKind::Tokens => {
                    InputSpec::Tokens { vocab_size: N_CLASSES, n_token_types: 0, pad_id: None }
                }
                InputKind::OneHot => InputSpec::Features { n_features: N_CLASSES },
            },
            seq_len: self.config.window,
            n_classes: N_CLASSES,
            read_out: self.config.read_out,
        }
    }

    fn examples(&self, split: Split, index: u64) -> Examples {
        let start = index * self.batch_size as u64;
        match (split, &self.data.train) {
            (Split::Validation, _) => {
                let (n, validation) = (evaluation_batch(self.config.window), &self.data.validation);
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

    /// Ids `(batch, seq_len)`, or one-hot `(batch, seq_len, 3)`.
    fn inputs(&self, ids: Vec<u32>, shape: (usize, usize)) -> Result<Tensor> {
        let ids = tensor_of(ids, shape, &self.device)?;
        Ok(match self.config.input {
            InputKind::Tokens => ids,
            InputKind::OneHot => {
                let identity = Tensor::eye(N_CLASSES, DType::F32, &self.device)?;
                tealight_ops::embedding::embedding(&identity, &ids)?
            }
        })
    }

    /// `(batch, 3)`, or `(batch, seq_len, 3)` when every position forecasts.
    fn logits(&self, model: &Forecaster, inputs: &Tensor, mode: Mode) -> Result<Tensor> {
        Ok(model.forward(&self.input(inputs), &Mask::none(), mode)?)
    }

    fn input<'a>(&self, inputs: &'a Tensor) -> Input<'a> {
        match self.config.input {
            InputKind::Tokens => Input::tokens(inputs),
            InputKind::OneHot => Input::Features(inputs),
        }
    }

    /// The forecast for the day after the window: `(batch, 3)`.
    fn last(&self, logits: &Tensor) -> Result<Tensor> {
        if self.config.read_out != ReadOut::EveryPosition {
            return Ok(logits.clone());
        }
        let (_batch, seq_len, _n_classes) = logits.dims3()?;
        Ok(logits.narrow(1, seq_len - 1, 1)?.squeeze(1)?)
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
        let inputs = self.inputs(ids, (batch, window))?;
        let n_labels = labels.len();
        let labels = tensor_of(labels, n_labels, &self.device)?;
        Ok(Batch { inputs, labels })
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.data.validation.len().div_ceil(evaluation_batch(self.config.window)) as u64
    }

    fn seq_len(&self) -> usize {
        self.config.window
    }

    fn inputs<'a>(&self, Batch { inputs, labels }: &'a Batch) -> Inputs<'a> {
        Inputs { tensors: vec![inputs, labels], count: labels.elem_count() }
    }

    fn loss(&self, model: &Forecaster, batch: &Batch, mode: Mode) -> Result<Loss> {
        let logits = self.logits(model, &batch.inputs, mode)?;
        let rows = logits.flatten_to(D::Minus2)?; // (items, 3)
        let smoothing = if mode == Mode::Eval { 0. } else { self.config.label_smoothing };
        let sum = cross_entropy(&rows, &batch.labels, smoothing)?;
        let count = batch.labels.elem_count() as f64;
        let metrics = self.measure(&logits.detach(), &batch.labels)?;
        Ok(Loss { sum, count, metrics })
    }

    fn attention_maps(&self, model: &Forecaster) -> Result<Vec<AttentionMap>> {
        self.attention_maps_of(model, &self.data.validation.days[..self.config.window])
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

    fn attend(&self, model: &Forecaster, sequence: &str) -> Result<SequenceMaps> {
        let days = parse(sequence).map_err(|error| {
            Error::input(format!("cannot parse the sequence as weather: {error}"))
        })?;
        let days = self.window(&days)?;
        let sequence = json!({ "days": days, "emoji": format(days) });
        Ok(SequenceMaps { sequence, maps: self.attention_maps_of(model, days)? })
    }
}

impl Weather {
    /// Accuracy and NLL of the forecast for the day after the window.
    fn measure(&self, logits: &Tensor, labels: &Tensor) -> Result<Measures> {
        let logits = self.last(logits)?.contiguous()?;
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
