//! What tasks have in common whose examples are drawn: symbols, with labels at some positions, and a known limit.
//!
//! `recall`, `markov_icl`, `state_tracking` and `copying` are such tasks: each says how an example is drawn and what is
//! known about it ([`Source`]), and lists further sources at other lengths or difficulties, which the report scores, too.
//! A causal model reads the symbols, and its output at a position with a label is a distribution over the classes.
//!
//! Training never sees an example twice: example i of a run is the i-th of the stream of its seed, task, part and length.

mod example;
mod file;
mod limits;
mod report;
mod scores;
mod source;

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{D, Device, Tensor};
use candle_nn::VarBuilder;
use serde_json::{Value, json};
use tealight_model::cost::{Cost, Estimate};
use tealight_model::embedding::{Input, InputSpec};
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
use tealight_model::{Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::{IGNORE_INDEX, cross_entropy, hits};
use tealight_ops::device::tensor_of;
use tealight_ops::embedding::embedding;
use tealight_ops::rng::Stream;

pub(super) use example::choose;
pub use example::{Example, Part};
pub(super) use limits::accuracy_of_bits;
pub use scores::Scores;
pub(super) use source::{Bits, Column, doubling, share};
pub use source::{Reference, Source};

use crate::checks::{at_most, check};
use crate::data::Split;
use crate::error::{Error, Result};
use crate::inference::values;
use crate::task::context::TaskContext;
use crate::task::metrics::by_name;
use crate::task::report::Report;
use crate::task::sample::{N_SAMPLES, Sample, likeliest};
use crate::task::{Inputs, Loss, RegisteredTask, Task};
use scores::{first_largest, log_softmax, probabilities};

/// Symbols in one forward pass of an evaluation.
const EVALUATION_SYMBOLS: usize = 1 << 15;
/// The most examples of a part.
const MAX_EXAMPLES: u64 = 1_000_000;
/// The longest example: the time of attention may grow with its square.
pub(super) const MAX_LENGTH: u64 = 1 << 16;

/// What the settings of these tasks have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) n_validation: usize,
    pub(super) n_test: usize,
}

impl Sizes {
    pub(super) fn check(self) -> Result<()> {
        let Self { n_validation, n_test } = self;
        for (key, value) in [("task.n_validation", n_validation), ("task.n_test", n_test)] {
            check(key, value, |value| value > 0, "must be positive")?;
            at_most(key, value as u64, MAX_EXAMPLES)?;
        }
        Ok(())
    }
}

/// Checks the names of `tests`: each is given and given once.
pub(super) fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let mut known = Vec::new();
    for (i, name) in names.into_iter().enumerate() {
        let key = format!("task.tests[{i}].name");
        if name.trim().is_empty() {
            return Err(Error::config([&key], format!("`{key}` is empty: each test has a name")));
        }
        if known.contains(&name) {
            let message = format!("`{key}` = \"{name}\" is the name of an earlier test, too");
            return Err(Error::config([&key], message));
        }
        known.push(name);
    }
    Ok(())
}

/// A task whose examples are drawn.
#[derive(Debug)]
pub struct DrawnTask {
    source: Arc<dyn Source>,
    /// Further sources that the report scores, by name.
    tests: Vec<(String, Arc<dyn Source>)>,
    seed: u64,
    /// The settings of the model, whose reach and state bound its scores.
    config: ModelConfig,
    validation: Vec<Example>,
    n_test: usize,
    /// Whether they are the examples of a file that a trained model is tested on.
    is_test: bool,
    batch_size: usize,
    device: Device,
}

/// A batch on the device.
#[derive(Debug)]
pub struct Batch {
    /// `(batch, longest)`
    ids: Tensor,
    /// `(batch·longest)`
    labels: Tensor,
    n_labels: usize,
}

impl DrawnTask {
    /// The task of `source`, whose report also scores `tests`.
    ///
    /// # Errors
    /// If the data that a trained model is tested on cannot be read.
    pub(super) fn new(
        context: &TaskContext<'_>,
        source: Arc<dyn Source>,
        tests: Vec<(String, Arc<dyn Source>)>,
        Sizes { n_validation, n_test }: Sizes,
    ) -> Result<Self> {
        let TaskContext { seed, batch_size, model, device, test, .. } = *context;
        let longest = longest(source.as_ref(), &tests);
        let validation = match test {
            Some(path) => file::read(path, source.as_ref(), longest)?,
            None => drawn(source.as_ref(), seed, Part::Validation, 0..n_validation as u64),
        };
        let (config, device, is_test) = (model.clone(), device.clone(), test.is_some());
        Ok(Self { source, tests, seed, config, validation, n_test, is_test, batch_size, device })
    }

    /// The sizes that the model is built with.
    pub fn model_spec(&self) -> ForecasterSpec {
        let vocab_size = self.source.vocab_size();
        ForecasterSpec {
            input: InputSpec::Tokens { vocab_size, n_token_types: 0, pad_id: None },
            seq_len: self.seq_len(),
            n_classes: self.source.n_classes(),
            read_out: ReadOut::EveryPosition,
        }
    }

    /// Shorter examples get symbols without labels behind them, which a causal model does not read before.
    fn batch_of(&self, examples: &[Example]) -> Result<Batch> {
        let (batch, len) =
            (examples.len(), examples.iter().map(|one| one.ids.len()).max().unwrap_or(0));
        let (mut ids, mut labels) = (Vec::new(), Vec::new());
        for example in examples {
            ids.extend_from_slice(&example.ids);
            labels.extend_from_slice(&example.labels);
            let rest = len - example.ids.len();
            ids.extend(std::iter::repeat_n(0, rest));
            labels.extend(std::iter::repeat_n(IGNORE_INDEX, rest));
        }
        let n_labels = labels.iter().filter(|&&label| label != IGNORE_INDEX).count();
        Ok(Batch {
            ids: tensor_of(ids, (batch, len), &self.device)?,
            labels: tensor_of(labels, batch * len, &self.device)?,
            n_labels,
        })
    }

    fn together(seq_len: usize) -> usize {
        (EVALUATION_SYMBOLS / seq_len.max(1)).clamp(1, 1024)
    }

    /// The logits of `model` at the labels of `examples`: for each label, those of its classes.
    fn logits_at_labels(&self, model: &Forecaster, examples: &[Example]) -> Result<Vec<Vec<f64>>> {
        let batch = self.batch_of(examples)?;
        let (_batch, len) = batch.ids.dims2()?;
        let places = examples.iter().enumerate().flat_map(|(row, example)| {
            example.labelled().map(move |label| (row * len + label.at) as u32)
        });
        let places: Vec<u32> = places.collect();
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let logits = logits(model, &batch, Mode::Eval)?.flatten_to(D::Minus2)?;
        values(&embedding(&logits, &Tensor::new(places, &self.device)?)?)
    }

    /// The scores of `model` on `examples` of `source`.
    ///
    /// # Errors
    /// If no model can have them.
    fn scores(
        &self,
        model: &Forecaster,
        source: &dyn Source,
        examples: &[Example],
    ) -> Result<Scores> {
        let mut scores = Scores::default();
        for chunk in examples.chunks(Self::together(source.seq_len())) {
            let rows = self.logits_at_labels(model, chunk)?;
            let mut rest = &rows[..];
            for example in chunk {
                let (own, others) = rest.split_at(example.labelled().count());
                scores.add(example, own, &source.best(example));
                rest = others;
            }
        }
        if !self.is_test {
            limits::check(&self.config, source, examples, &scores)?;
        }
        Ok(scores)
    }

    /// The test part of a source.
    fn test_part(&self, source: &dyn Source) -> Vec<Example> {
        drawn(source, self.seed, Part::Test, 0..self.n_test as u64)
    }
}

/// The length of the longest source.
fn longest(source: &dyn Source, tests: &[(String, Arc<dyn Source>)]) -> usize {
    let tests = tests.iter().map(|(_, test)| test.seq_len());
    tests.chain([source.seq_len()]).max().unwrap_or(0)
}

/// The examples `indices` of a part.
fn drawn(
    source: &dyn Source,
    seed: u64,
    part: Part,
    indices: impl Iterator<Item = u64>,
) -> Vec<Example> {
    let stream: Stream = example::stream(seed, source.kind(), part, source.seq_len());
    indices.map(|index| source.draw(stream.fork(index))).collect()
}

/// Logits `(batch, longest, n_classes)`.
fn logits(model: &Forecaster, batch: &Batch, mode: Mode) -> Result<Tensor> {
    Ok(model.forward(&Input::tokens(&batch.ids), &Mask::none(), mode)?)
}

impl Task for DrawnTask {
    type Model = Forecaster;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Forecaster> {
        Ok(Forecaster::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        match split {
            Split::Train => {
                let (first, n) = (index * self.batch_size as u64, self.batch_size as u64);
                let source = self.source.as_ref();
                self.batch_of(&drawn(source, self.seed, Part::Train, first..first + n))
            }
            Split::Validation => {
                let together = Self::together(self.source.seq_len());
                let mut batches = self.validation.chunks(together);
                self.batch_of(batches.nth(index as usize).unwrap_or_default())
            }
        }
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.validation.len().div_ceil(Self::together(self.source.seq_len())) as u64
    }

    fn seq_len(&self) -> usize {
        longest(self.source.as_ref(), &self.tests)
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        Estimate::single_stack(config, self.source.seq_len())
    }

    fn n_tokens(&self, batch: &Batch) -> Option<u64> {
        Some(batch.ids.elem_count() as u64)
    }

    fn inputs<'a>(&self, Batch { ids, labels, n_labels }: &'a Batch) -> Inputs<'a> {
        Inputs { tensors: vec![ids, labels], count: *n_labels as f64 }
    }

    fn loss(&self, model: &Forecaster, batch: &Batch, mode: Mode) -> Result<Loss> {
        let rows = logits(model, batch, mode)?.flatten_to(D::Minus2)?; // (batch·longest, n_classes)
        let sum = cross_entropy(&rows, &batch.labels, 0.)?;
        let hits = hits(&rows, &batch.labels)?;
        Ok(Loss::with_hits(sum, batch.n_labels, "accuracy", &hits))
    }

    /// The last label of each, of which everything before is shown.
    fn samples(&self, model: &Forecaster) -> Result<Vec<Sample>> {
        let examples = &self.validation[..self.validation.len().min(N_SAMPLES)];
        let mut rows = self.logits_at_labels(model, examples)?.into_iter();
        let mut samples = Vec::new();
        for example in examples {
            let n = example.labelled().count();
            let Some((label, row)) = example.labelled().zip(rows.by_ref().take(n)).last() else {
                continue;
            };
            let symbols = example.ids[..=label.at].iter().map(|&id| self.source.symbol(id));
            let classes = (0..).map(|class| self.source.class(class));
            samples.push(Sample {
                input: symbols.collect::<Vec<_>>().join(" "),
                truth: vec![self.source.class(label.class as u32)],
                candidates: vec![likeliest(classes.zip(probabilities(&row)))],
                ..Sample::default()
            });
        }
        Ok(samples)
    }
}

impl RegisteredTask for DrawnTask {
    fn report(&self, model: &Forecaster) -> Result<Report> {
        report::report(self, model)
    }

    /// For each label in its order, the likeliest class and ln of the probabilities of all classes.
    fn answers(&self, model: &Forecaster) -> Result<Option<Vec<Value>>> {
        let mut answers = Vec::with_capacity(self.validation.len());
        for chunk in self.validation.chunks(Self::together(self.seq_len())) {
            let mut rows = self.logits_at_labels(model, chunk)?.into_iter();
            for example in chunk {
                let own = rows.by_ref().take(example.labelled().count());
                let logs: Vec<_> = own.map(|row| log_softmax(&row)).collect();
                let predictions: Vec<_> = logs.iter().map(|row| first_largest(row)).collect();
                answers.push(json!({ "predictions": predictions, "log_probs": logs }));
            }
        }
        Ok(Some(answers))
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        by_name([
            ("vocab_size", self.source.vocab_size() as u64),
            ("n_classes", self.source.n_classes() as u64),
            ("seq_len", self.seq_len() as u64),
            ("n_validation", self.validation.len() as u64),
            ("n_test", self.n_test as u64),
        ])
    }

    fn cost(&self, model: &Forecaster, config: &ModelConfig, store: &ParamStore) -> Cost {
        model.cost(config, store, self.source.seq_len())
    }
}

/// What each source in the laws of `tests` and each task's own tests use.
#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Three symbols, two classes, no examples of its own.
    #[derive(Debug)]
    pub(in crate::task) struct Toy;

    impl Source for Toy {
        fn kind(&self) -> &'static str {
            "toy"
        }

        fn seq_len(&self) -> usize {
            3
        }

        fn vocab_size(&self) -> usize {
            3
        }

        fn n_classes(&self) -> usize {
            2
        }

        fn draw(&self, _stream: Stream) -> Example {
            Example::new(vec![0; 3])
        }

        fn symbol(&self, id: u32) -> String {
            id.to_string()
        }

        fn places(&self) -> (&'static str, Vec<[usize; 2]>) {
            ("position", vec![[1, 3]])
        }

        fn columns(&self) -> &'static [Column] {
            &[("accuracy", "accuracy")]
        }

        fn references(&self, _examples: &[Example]) -> Vec<Reference> {
            Vec::new()
        }

        fn within_reach(&self, _examples: &[Example], _reach: usize) -> Option<f64> {
            Some(0.5)
        }
    }

    /// The first `n` examples of the test part under seed 17.
    pub(in crate::task) fn examples(source: &dyn Source, n: u64) -> Vec<Example> {
        drawn(source, 17, Part::Test, 0..n)
    }

    /// FNV-1a of the bytes of all numbers as i32.
    pub(in crate::task) fn digest(numbers: impl Iterator<Item = i64>) -> String {
        let bytes = numbers.flat_map(|n| (n as i32).to_le_bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}")
    }

    /// That of the symbols of all examples, then of their labels.
    pub(in crate::task) fn digest_of(examples: &[Example]) -> String {
        let ids = examples.iter().flat_map(|one| one.ids.iter().map(|&id| i64::from(id)));
        digest(ids.chain(examples.iter().flat_map(|one| one.labels.iter().copied())))
    }

    #[test]
    fn names_of_tests_are_given_once() {
        check_names(["near", "far"]).unwrap();
        let error = |names: &[&str]| check_names(names.iter().copied()).unwrap_err().to_string();
        assert!(error(&["near", " "]).contains("`task.tests[1].name` is empty"));
        assert!(error(&["far", "far"]).contains("is the name of an earlier test"));
    }
}
