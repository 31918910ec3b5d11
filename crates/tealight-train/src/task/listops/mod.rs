//! ListOps: the value of nested operations on digits, one of ten classes (Nangia & Bowman 2018,
//! <https://arxiv.org/abs/1804.06028>), at the lengths of the Long Range Arena (Tay et al. 2021,
//! <https://arxiv.org/abs/2011.04006>).
//!
//! ```text
//! [MAX 2 9 [MIN 4 7 ] 0 ]  →  9
//! ```
//!
//! The tokens are those of the Long Range Arena: an operator with its bracket, a digit, a closing bracket.
//! Its ids follow the iteration order of a Python set, which varies; here they follow [`expression`].
//! Expressions are drawn when a batch needs them, and not stored. A trained model can be tested on those of a file.

mod config;
pub mod expression;
mod file;
mod generator;
mod report;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::embedding::{Input, InputSpec};
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec};
use tealight_model::{Mode, ModelConfig, ParamStore};

pub use config::Config;
pub use generator::{Generator, Part};

use crate::data::{ShuffledOrder, Split};
use crate::error::Result;
use crate::inference::probabilities;
use crate::task::batch::Batch;
use crate::task::context::TaskContext;
use crate::task::metrics::by_name;
use crate::task::report::Report;
use crate::task::sample::{N_SAMPLES, Sample, likeliest};
use crate::task::{Inputs, Loss, RegisteredTask, Task, TaskKind};
use expression::{Expression, N_CLASSES, PAD, VOCAB_SIZE};

/// Tokens in one forward pass of an evaluation.
const EVALUATION_TOKENS: usize = 1 << 16;

/// The task: expressions and their values.
#[derive(Debug)]
pub struct ListOps {
    config: Config,
    generator: Generator,
    order: ShuffledOrder,
    validation: Vec<Expression>,
    /// Whether they are the expressions of a file that a trained model is tested on.
    is_test: bool,
    batch_size: usize,
    device: Device,
}

impl TaskKind for Config {
    type Task = ListOps;

    fn build(&self, context: &TaskContext<'_>) -> Result<ListOps> {
        let TaskContext { seed, batch_size, device, test, .. } = *context;
        let generator = Generator::new(self, seed)?;
        let validation = match test {
            Some(path) => file::read(path, self.max_length - 1)?,
            None => generator.expressions(Part::Validation, 0..self.n_validation),
        };
        let order = ShuffledOrder::new(seed, self.n_train);
        let (config, device) = (self.clone(), device.clone());
        let is_test = test.is_some();
        Ok(ListOps { config, generator, order, validation, is_test, batch_size, device })
    }
}

impl ListOps {
    /// The sizes that the model is built with.
    pub fn model_spec(&self) -> ForecasterSpec {
        ForecasterSpec {
            input: InputSpec::Tokens { vocab_size: VOCAB_SIZE, n_token_types: 0, pad_id: None },
            seq_len: self.seq_len(),
            n_classes: N_CLASSES,
            read_out: self.config.read_out,
        }
    }

    fn batch_of(&self, expressions: &[Expression]) -> Result<Batch> {
        let ids = |one: &Expression| one.tokens.iter().map(|&token| u32::from(token)).collect();
        let rows: Vec<Vec<u32>> = expressions.iter().map(ids).collect();
        let values = expressions.iter().map(|one| u32::from(one.value)).collect();
        Batch::new(&rows, values, u32::from(PAD), &self.device)
    }

    fn evaluation_batch(&self) -> usize {
        (EVALUATION_TOKENS / self.config.max_length).clamp(1, 1024)
    }
}

/// Logits `(batch, 10)` of the values.
fn logits(model: &Forecaster, batch: &Batch, mode: Mode) -> Result<Tensor> {
    Ok(model.forward(&Input::tokens(&batch.ids), &batch.mask, mode)?)
}

impl Task for ListOps {
    type Model = Forecaster;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Forecaster> {
        Ok(Forecaster::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        match split {
            Split::Train => {
                let places = self.order.examples(index * self.batch_size as u64, self.batch_size);
                self.batch_of(&self.generator.expressions(Part::Train, places))
            }
            Split::Validation => {
                let mut batches = self.validation.chunks(self.evaluation_batch());
                self.batch_of(batches.nth(index as usize).unwrap_or_default())
            }
        }
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.validation.chunks(self.evaluation_batch()).len() as u64
    }

    fn seq_len(&self) -> usize {
        self.config.max_length - 1
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        Estimate::single_stack(config, self.config.read_out.positions(self.seq_len()))
    }

    fn n_tokens(&self, batch: &Batch) -> Option<u64> {
        Some(batch.n_tokens)
    }

    fn inputs<'a>(&self, batch: &'a Batch) -> Inputs<'a> {
        batch.inputs()
    }

    fn loss(&self, model: &Forecaster, batch: &Batch, mode: Mode) -> Result<Loss> {
        batch.loss(&logits(model, batch, mode)?, 0.)
    }

    fn samples(&self, model: &Forecaster) -> Result<Vec<Sample>> {
        // The shortest of the first ones: long expressions cannot be looked at.
        let mut shortest: Vec<&Expression> = self.validation.iter().take(64).collect();
        shortest.sort_by_key(|expression| expression.tokens.len());
        shortest.truncate(N_SAMPLES);
        let shortest: Vec<Expression> = shortest.into_iter().cloned().collect();
        let forecasts = probabilities(&logits(model, &self.batch_of(&shortest)?, Mode::Eval)?)?;
        let sample = |(expression, forecast): (&Expression, Vec<f64>)| Sample {
            input: expression.text(),
            truth: vec![expression.value.to_string()],
            candidates: vec![likeliest((0..).map(|value: u8| value.to_string()).zip(forecast))],
            ..Sample::default()
        };
        Ok(shortest.iter().zip(forecasts).map(sample).collect())
    }
}

impl RegisteredTask for ListOps {
    fn report(&self, model: &Forecaster) -> Result<Report> {
        report::report(self, model)
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        let Config { n_train, n_validation, n_test, .. } = self.config;
        by_name([
            ("vocab_size", VOCAB_SIZE as u64),
            ("n_classes", N_CLASSES as u64),
            ("seq_len", self.seq_len() as u64),
            ("n_train", n_train as u64),
            ("n_validation", n_validation as u64),
            ("n_test", n_test as u64),
        ])
    }

    fn cost(&self, model: &Forecaster, config: &ModelConfig, store: &ParamStore) -> Cost {
        model.cost(config, store, self.seq_len())
    }
}
