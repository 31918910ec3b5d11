//! Forecasting the weather: a window of days → how the next day is distributed.
//!
//! The rules that draw the weather, their exact limits and the baselines are in [`crate::weather`];
//! here they become a [`Task`].

mod report;
mod rollout;

use std::collections::BTreeMap;
use std::path::PathBuf;

use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};
use tealight_model::embedding::{Input, InputSpec};
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
use tealight_model::{Mask, Mode, ModelConfig, choice};
use tealight_ops::cross_entropy::cross_entropy;
use tealight_ops::rng::{Purpose, Stream};

pub use report::Report;
pub use rollout::{Decoding, Rollout, Sequence, rollout};

use super::{Loss, Split, Task};
use crate::Metrics;
use crate::data::ShuffledOrder;
use crate::error::{Error, Result};
use crate::evaluate::scalar;
use crate::weather::generator::{dotmod, markov, n_days, one_four_eight};
use crate::weather::{self, Distribution, Examples, Generator, N_CLASSES};

/// `[task] kind = "weather"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Days that the model sees, oldest first.
    pub window: usize,
    /// How a day is given to the model.
    pub input: InputKind,
    /// Where the forecast is read.
    pub read_out: ReadOut,
    /// Probability mass that the loss spreads over all kinds of weather (Szegedy et al. 2016).
    pub label_smoothing: f64,
    /// `[task.source]`: where the weather comes from.
    pub source: SourceConfig,
    /// `[task.regime]`: how much of it there is to learn from.
    pub regime: Regime,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 10,
            input: InputKind::Tokens,
            read_out: ReadOut::Mean,
            label_smoothing: 0.,
            source: SourceConfig::Markov(markov::Config::default()),
            regime: Regime::default(),
        }
    }
}

/// How a day is given to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// An id that is looked up in a table.
    Tokens,
    /// Three numbers, one of them 1, through a linear map.
    OneHot,
}

impl InputKind {
    /// Every kind of input with its name in the TOML and what it is.
    pub const ALL: [(Self, &'static str, &'static str); 2] = [
        (Self::Tokens, "tokens", "An id that is looked up in a table."),
        (Self::OneHot, "one_hot", "Three numbers, one of them 1, through a linear map."),
    ];
}

choice! {
    /// `[task.source]`: where the weather comes from.
    pub enum SourceConfig {
        /// Tomorrow depends on today alone.
        "markov" => Markov(markov::Config),
        /// Day 11 depends on days 1, 4 and 8, through a table.
        "one_four_eight" => OneFourEight(one_four_eight::Config),
        /// What was rare in the last 10 days is likely.
        "ten_days" => TenDays(n_days::TenDays),
        /// What was rare in the last 15 days is likely.
        "fifteen_days" => FifteenDays(n_days::FifteenDays),
        /// What was rare in the last n days is likely.
        "n_days" => NDays(n_days::Config),
        /// A weighted count of rainy days, modulo 3.
        "dotmod" => Dotmod(dotmod::Config),
        /// Lines of weather from a file: 🌧️☁️☀️.
        "file" => File(FileConfig),
    }
}

/// `[task.source] kind = "file"`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileConfig {
    /// A sequence on each line, oldest day first; `#` begins a comment. A relative path starts where
    /// the command is run.
    pub path: PathBuf,
}

choice! {
    /// `[task.regime]`: how much weather there is to learn from.
    pub enum Regime {
        /// New samples in every batch.
        "fresh" => Fresh(Fresh),
        /// A fixed number of examples, some of them held out.
        "examples" => Examples(Fixed),
    }
}

impl Default for Regime {
    fn default() -> Self {
        Self::Fresh(Fresh::default())
    }
}

/// `[task.regime] kind = "fresh"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fresh {
    /// Samples drawn for validation, the same throughout the run.
    pub n_validation: usize,
}

impl Default for Fresh {
    fn default() -> Self {
        Self { n_validation: 2000 }
    }
}

/// `[task.regime] kind = "examples"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fixed {
    /// Examples in all; of a file, all there are when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<usize>,
    /// Of these, the last so many are held out for validation.
    pub n_validation: usize,
}

impl Default for Fixed {
    fn default() -> Self {
        Self { n: None, n_validation: 500 }
    }
}

/// Examples drawn when the file does not say how many: as many as were published.
const N_EXAMPLES: usize = 5000;

/// Windows in one forward pass of an evaluation.
const EVALUATION_BATCH: usize = 1024;

/// The task: data, sizes, and how a batch is cut.
#[derive(Debug)]
pub struct Weather {
    config: Config,
    generator: Option<Box<dyn Generator>>,
    train: TrainingData,
    validation: Examples,
    batch_size: usize,
    device: Device,
    dtype: DType,
}

#[derive(Debug)]
enum TrainingData {
    Fresh(Stream),
    Fixed { examples: Examples, order: ShuffledOrder },
}

/// A batch on the device.
#[derive(Debug)]
pub struct Batch {
    inputs: Tensor,
    labels: Tensor,
}

impl Weather {
    /// Draws or reads the data that `config` describes.
    pub fn new(config: &Config, seed: u64, batch_size: usize, device: &Device) -> Result<Self> {
        check(config)?;
        let stream = Stream::new(seed, Purpose::Data);
        let generator = config.source.build()?;
        let (train, validation) = match &generator {
            Some(generator) => drawn(config, generator.as_ref(), seed, stream)?,
            None => read(config, seed)?,
        };
        Ok(Self {
            config: config.clone(),
            generator,
            train,
            validation,
            batch_size,
            device: device.clone(),
            dtype: DType::F32,
        })
    }

    /// The rule that draws the weather; `None` if it comes from a file.
    pub fn generator(&self) -> Option<&dyn Generator> {
        self.generator.as_deref()
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The examples that are not trained on.
    pub fn validation(&self) -> &Examples {
        &self.validation
    }

    /// The examples that are trained on; `None` if every batch is new.
    pub fn training_examples(&self) -> Option<&Examples> {
        match &self.train {
            TrainingData::Fresh(_) => None,
            TrainingData::Fixed { examples, .. } => Some(examples),
        }
    }

    /// How the day after each window is distributed, by `model`: `windows` holds rows of
    /// `window` days.
    pub fn forecast(
        &self,
        model: &Forecaster,
        windows: &[u8],
        window: usize,
    ) -> Result<Vec<Distribution>> {
        let mut forecasts = Vec::with_capacity(windows.len() / window);
        for rows in windows.chunks(EVALUATION_BATCH * window) {
            let ids = rows.iter().map(|&day| u32::from(day)).collect();
            let inputs = self.inputs(ids, (rows.len() / window, window))?;
            let logits = self.last(&self.logits(model, &inputs, Mode::Eval)?)?; // (batch, 3)
            let probabilities = tealight_ops::softmax::softmax(&logits.to_dtype(DType::F64)?)?;
            for row in probabilities.to_vec2::<f64>()? {
                forecasts.push([row[0], row[1], row[2]]);
            }
        }
        Ok(forecasts)
    }

    /// What a model of this task is built for.
    pub fn model_spec(&self) -> ForecasterSpec {
        ForecasterSpec {
            input: match self.config.input {
                InputKind::Tokens => InputSpec::Tokens { vocab_size: N_CLASSES, n_token_types: 0 },
                InputKind::OneHot => InputSpec::Features { n_features: N_CLASSES },
            },
            seq_len: self.config.window,
            n_classes: N_CLASSES,
            read_out: self.config.read_out,
        }
    }

    fn examples(&self, split: Split, index: u64) -> Examples {
        let start = index * self.batch_size as u64;
        match (split, &self.train) {
            (Split::Validation, _) => {
                let start = index as usize * EVALUATION_BATCH;
                let end = self.validation.len().min(start + EVALUATION_BATCH);
                self.validation.select(start..end)
            }
            (Split::Train, TrainingData::Fixed { examples, order }) => {
                examples.select(order.examples(start, self.batch_size))
            }
            (Split::Train, TrainingData::Fresh(stream)) => {
                let generator = self.generator.as_deref().expect("invariant: fresh is drawn");
                let stream = stream.fork(index);
                Examples::sample(generator, self.config.window, self.batch_size, stream)
            }
        }
    }

    /// Ids `(batch, seq_len)`, or one-hot `(batch, seq_len, 3)`.
    fn inputs(&self, ids: Vec<u32>, shape: (usize, usize)) -> Result<Tensor> {
        let ids = Tensor::from_vec(ids, shape, &self.device)?;
        Ok(match self.config.input {
            InputKind::Tokens => ids,
            InputKind::OneHot => {
                let identity = Tensor::eye(N_CLASSES, self.dtype, &self.device)?;
                tealight_ops::embedding::embedding(&identity, &ids)?
            }
        })
    }

    /// `(batch, 3)`, or `(batch, seq_len, 3)` when every position forecasts.
    fn logits(&self, model: &Forecaster, inputs: &Tensor, mode: Mode) -> Result<Tensor> {
        let input = match self.config.input {
            InputKind::Tokens => Input::tokens(inputs),
            InputKind::OneHot => Input::Features(inputs),
        };
        Ok(model.forward(&input, &Mask::none(), mode)?)
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

    fn build(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Forecaster> {
        Ok(Forecaster::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        let examples = self.examples(split, index);
        let (batch, window) = (examples.len(), examples.window());
        let every = self.config.read_out == ReadOut::EveryPosition;
        let (mut ids, mut labels) = (Vec::with_capacity(batch * window), Vec::new());
        for row in examples.days().chunks_exact(window + 1) {
            ids.extend(row[..window].iter().map(|&day| u32::from(day)));
            let targets = if every { &row[1..] } else { &row[window..] };
            labels.extend(targets.iter().map(|&day| u32::from(day)));
        }
        let inputs = self.inputs(ids, (batch, window))?;
        let labels = Tensor::from_vec(labels.clone(), labels.len(), &self.device)?;
        Ok(Batch { inputs, labels })
    }

    fn n_batches(&self, split: Split) -> u64 {
        match (split, &self.train) {
            (Split::Validation, _) => self.validation.len().div_ceil(EVALUATION_BATCH) as u64,
            (Split::Train, TrainingData::Fixed { examples, .. }) => {
                examples.len().div_ceil(self.batch_size) as u64
            }
            (Split::Train, TrainingData::Fresh(_)) => 1,
        }
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        let mut sizes = BTreeMap::from([
            ("n_classes".to_owned(), N_CLASSES as u64),
            ("seq_len".to_owned(), self.config.window as u64),
            ("n_validation".to_owned(), self.validation.len() as u64),
        ]);
        if let Some(examples) = self.training_examples() {
            sizes.insert("n_train".to_owned(), examples.len() as u64);
        }
        sizes
    }

    fn batch_size(&self) -> usize {
        self.batch_size
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
}

impl Weather {
    /// Accuracy and NLL of the forecast for the day after the window.
    fn measure(&self, logits: &Tensor, labels: &Tensor) -> Result<Metrics> {
        let logits = self.last(logits)?.contiguous()?;
        let (batch, _n_classes) = logits.dims2()?;
        let labels = labels.reshape((batch, ()))?;
        let (_batch, per_row) = labels.dims2()?;
        let labels = labels.narrow(1, per_row - 1, 1)?.squeeze(1)?.contiguous()?;
        let hits = logits.argmax(1)?.eq(&labels)?.to_dtype(DType::F32)?.sum_all()?;
        let mut metrics = Metrics::default();
        metrics.add("accuracy", scalar(&hits)?, batch as f64);
        metrics.add("nll", scalar(&cross_entropy(&logits, &labels, 0.)?)?, batch as f64);
        Ok(metrics)
    }
}

impl SourceConfig {
    /// The rule; `None` if the weather comes from a file.
    pub fn build(&self) -> Result<Option<Box<dyn Generator>>> {
        let generator: Box<dyn Generator> = match self {
            Self::Markov(config) => Box::new(config.build()?),
            Self::OneFourEight(config) => Box::new(config.build()?),
            Self::TenDays(preset) => Box::new(preset.build()),
            Self::FifteenDays(preset) => Box::new(preset.build()),
            Self::NDays(config) => Box::new(config.build()?),
            Self::Dotmod(config) => Box::new(config.build()?),
            Self::File(_) => return Ok(None),
        };
        Ok(Some(generator))
    }
}

fn check(config: &Config) -> Result<()> {
    let Config { window, label_smoothing, .. } = *config;
    if window == 0 {
        return Err(Error::config(["task.window"], "`task.window` = 0 must be positive"));
    }
    if !(0. ..1.).contains(&label_smoothing) {
        let key = "task.label_smoothing";
        let message = format!("`{key}` = {label_smoothing} must be at least 0 and less than 1");
        return Err(Error::config([key], message));
    }
    if let (SourceConfig::File(_), Regime::Fresh(_)) = (&config.source, &config.regime) {
        return Err(Error::config(
            ["task.regime.kind", "task.source.kind"],
            "`task.regime.kind` = \"fresh\" draws new samples, which a file cannot; \
             use \"examples\"",
        ));
    }
    Ok(())
}

/// What the streams of a generator are for.
const TRAIN: u64 = 0;
const VALIDATION: u64 = 1;

fn drawn(
    config: &Config,
    generator: &dyn Generator,
    seed: u64,
    stream: Stream,
) -> Result<(TrainingData, Examples)> {
    generator.check_window(config.window)?;
    let sample = |n, stream| Examples::sample(generator, config.window, n, stream);
    match &config.regime {
        Regime::Fresh(Fresh { n_validation }) => {
            at_least_one("task.regime.n_validation", *n_validation)?;
            let validation = sample(*n_validation, stream.fork(VALIDATION));
            Ok((TrainingData::Fresh(stream.fork(TRAIN)), validation))
        }
        Regime::Examples(fixed) => {
            let all = sample(fixed.n.unwrap_or(N_EXAMPLES), stream.fork(TRAIN));
            split(&all, fixed, seed)
        }
    }
}

fn read(config: &Config, seed: u64) -> Result<(TrainingData, Examples)> {
    let (SourceConfig::File(FileConfig { path }), Regime::Examples(fixed)) =
        (&config.source, &config.regime)
    else {
        unreachable!("invariant: `check` lets only fixed examples of a file pass");
    };
    if path.as_os_str().is_empty() {
        let message = "`task.source.path` is missing: the file with the weather";
        return Err(Error::config(["task.source.path"], message));
    }
    let sequences = weather::read(path, config.window + 1)?;
    let all = Examples::cut(&sequences, config.window);
    let n = fixed.n.unwrap_or(all.len());
    if n > all.len() {
        let message = format!("`task.regime.n` = {n}, but the file holds {} examples", all.len());
        return Err(Error::config(["task.regime.n", "task.source.path"], message));
    }
    split(&all.select(0..n), fixed, seed)
}

fn split(all: &Examples, fixed: &Fixed, seed: u64) -> Result<(TrainingData, Examples)> {
    let (n, n_validation) = (all.len(), fixed.n_validation);
    at_least_one("task.regime.n_validation", n_validation)?;
    if n_validation >= n {
        let message = format!(
            "`task.regime.n_validation` = {n_validation} leaves nothing to train on: \
             there are {n} examples"
        );
        return Err(Error::config(["task.regime.n_validation", "task.regime.n"], message));
    }
    let n_train = n - n_validation;
    let order = ShuffledOrder::new(seed, n_train);
    let examples = all.select(0..n_train);
    Ok((TrainingData::Fixed { examples, order }, all.select(n_train..n)))
}

fn at_least_one(key: &str, value: usize) -> Result<()> {
    if value == 0 {
        return Err(Error::config([key], format!("`{key}` = 0 must be positive")));
    }
    Ok(())
}
