//! Vectors of texts, trained by comparing texts with each other (Reimers & Gurevych 2019,
//! <https://arxiv.org/abs/1908.10084>).
//!
//! ```text
//! anchor     "how do I reset my password"    ─► encoder ─► pooling ─► a ┐
//! positive   "choose a new password here"    ─► encoder ─► pooling ─► p ├─ loss
//! negative   "change the name of a project"  ─► encoder ─► pooling ─► n ┘
//! ```
//!
//! A loss that compares rows with each other, as `multiple_negatives` does, is over all rows of a step: with several
//! micro-batches it is computed by [`JointLoss`], so that its negatives need no more memory.

mod batch;
mod config;
mod data;
mod evaluations;
mod loss;
mod model;
mod order;
mod pairs;
mod remarks;
mod report;
mod rows;
mod source;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::models::masked_lm::{MaskedLm, MaskedLmSpec};
use tealight_model::transformer::Transformer;
use tealight_model::{Mode, ModelConfig, ParamStore};

pub use batch::Batch;
pub use config::{Config, Prompts};
pub use evaluations::{RetrievalConfig, SimilarityConfig};
pub(crate) use loss::cosines;
pub use model::Model;
pub use pairs::{Pair, pairs};
pub use source::{DataConfig, Duplicates, Generated};

use crate::data::shown::on_one_line;
use crate::data::{DataFile, ShuffledOrder, Split};
use crate::error::{Error, Result};
use crate::inference::batches::Batching;
use crate::inference::check_finite;
use crate::inference::embed::Pooling;
use crate::task::context::TaskContext;
use crate::task::metrics::{Measures, Metrics, by_name};
use crate::task::parts::PATH;
use crate::task::report::Report;
use crate::task::sample::Sample;
use crate::task::table::thousands;
use crate::task::text::embedding_rows;
use crate::task::{
    self, Imitation, Inputs, JointLoss, Loss, RegisteredTask, RowMeanings, Task, TaskKind,
    TaskSettings as _,
};
use batch::{Group, Reading, Shape};
use data::{Data, Item};
use loss::{Sides, Targets};
use model::n_dense;
use order::{ApartOrder, Keys, Order};
use report::Named;

/// The task: rows of texts as token ids, and how their vectors are compared.
#[derive(Debug)]
pub struct Embed {
    config: Config,
    data: Data,
    order: Order,
    batch_size: usize,
    /// Batches of a step.
    micro_batches: u64,
    /// Rows of the token embedding.
    vocab_size: usize,
    /// The most tokens of a text, special ones included.
    seq_len: usize,
    /// The length of a vector.
    dim: usize,
    /// The length that the attention of the model requires.
    required_len: Option<usize>,
    /// Which texts share a forward pass of an evaluation.
    batching: Batching,
    /// Whether the texts of a batch are read in one shape.
    fixed_shapes: bool,
    device: Device,
    /// The scores of counting words, when they have been asked for.
    of_words: OnceLock<Named>,
}

impl TaskKind for Config {
    type Task = Embed;

    fn build(&self, context: &TaskContext<'_>) -> Result<Embed> {
        let TaskContext { seed, batch_size, micro_batches, model, device, kept, test, .. } =
            *context;
        self.validate()?;
        if kept.is_none() {
            model.refuse_vocabulary_output()?;
        }
        model.refuse_classifier_head()?;
        let dim = self.dim.unwrap_or(model.d_model);
        self.matryoshka.check_width(dim)?;
        if self.data.self_positive && model.dropout == 0. && test.is_none() {
            let message = "`task.data.self_positive` = true compares a text with itself, read with other dropout, and \
                           `model.dropout` = 0";
            return Err(Error::config(["model.dropout", "task.data.self_positive"], message));
        }
        let required_len = model.required_len();
        let seq_len = required_len.map_or(self.seq_len, |len| len.min(self.seq_len));
        let mut data = Data::new(self, seq_len, seed, kept, test.is_some())?;
        let vocab_size = embedding_rows(&data.tokenizer, self.vocab_size)?;
        let n = [batch_size, micro_batches as usize];
        let (order, note) = order(self, &data, seed, n, test.is_some())?;
        data.remarks.extend(note);
        Ok(Embed {
            config: self.clone(),
            data,
            order,
            batch_size,
            micro_batches,
            vocab_size,
            seq_len,
            dim,
            required_len,
            batching: if model.ignores_padding() { Batching::Padded } else { Batching::OneByOne },
            fixed_shapes: context.fixed_shapes,
            device: device.clone(),
            of_words: OnceLock::new(),
        })
    }
}

/// The order of the training rows, of which a step has so many batches of this size, and what a user should know about it.
///
/// # Errors
/// If a text is in so many rows that steps have less than half of their rows; or if a step has a single row to compare.
fn order(
    config: &Config,
    data: &Data,
    seed: u64,
    [batch_size, micro_batches]: [usize; 2],
    is_test: bool,
) -> Result<(Order, Option<String>)> {
    let n = batch_size * micro_batches;
    let n_rows = data.train.len();
    let is_compared = config.loss.settings().is_joint();
    let has_negatives = data.train.iter().any(|item| !item.negatives.is_empty());
    if is_compared && n == 1 && !has_negatives && !is_test {
        let message = format!(
            "`training.batch_size` = 1, and `task.loss.kind` = \"{}\" compares the rows of a step with each other",
            config.loss.kind()
        );
        return Err(Error::config(["training.batch_size", "task.loss.kind"], message));
    }
    if config.duplicates() != Duplicates::Wait || is_test {
        return Ok((Order::Shuffled(ShuffledOrder::new(seed, n_rows)), None));
    }
    let n_sources = data.texts.iter().map(|text| text.source + 1).max().unwrap_or(0);
    let keys = |item: &Item| {
        let source = |at: usize| data.texts[at].source;
        let mut own = vec![source(item.anchor), source(item.positive)];
        own.extend(item.group.map(|group| n_sources + group));
        own.sort_unstable();
        own.dedup();
        Keys { own, negatives: item.negatives.iter().map(|&at| source(at)).collect() }
    };
    let order = ApartOrder::new(seed, data.train.iter().map(keys).collect(), n);
    let (key, most) = order.most_frequent();
    // A step takes one of them, so on average it has no more rows than this.
    let on_average = n_rows / most.max(1);
    if most < 2 || n <= on_average {
        let note = format!("a step of {n} rows takes all {} rows", thousands(n_rows as u64));
        return Ok((Order::Apart(order), (n > n_rows).then_some(note)));
    }
    let shared = match data.texts.iter().find(|text| text.source == key) {
        Some(text) => format!("the text \"{}\"", on_one_line(&shortened(&text.plain))),
        None => "a group".to_owned(),
    };
    let rows = format!(
        "{} of {} rows of `{PATH}` have {shared} in common, and a step takes one of them",
        thousands(most as u64),
        thousands(n_rows as u64)
    );
    if 2 * on_average >= n {
        let note = format!("{rows}: of its {n} rows, some steps have about {on_average}");
        return Ok((Order::Apart(order), Some(note)));
    }
    let message = format!(
        "{rows}: it cannot have {n} rows. Lower `training.batch_size` to {}, or choose `task.data.duplicates` = \"mask\" or \
         \"keep\"",
        (on_average / micro_batches).max(1)
    );
    Err(Error::config(["task.data.duplicates", "training.batch_size", PATH], message))
}

/// The first characters of a text.
fn shortened(text: &str) -> String {
    const MAX: usize = 60;
    let shown: String = text.chars().take(MAX).collect();
    if text.chars().count() > MAX { format!("{shown}…") } else { shown }
}

impl Embed {
    /// The sizes that the model is built with.
    pub fn model_spec(&self) -> MaskedLmSpec {
        MaskedLmSpec {
            vocab_size: self.vocab_size,
            n_token_types: self.config.n_token_types,
            pad_id: self.data.tokenizer.special().pad,
            seq_len: self.config.seq_len,
            packed: false,
        }
    }

    fn reading(&self) -> Reading {
        Reading { pooling: self.config.pooling, normalize: self.config.normalize }
    }

    fn shape(&self) -> Shape<'_> {
        let width = if self.fixed_shapes { self.seq_len } else { self.required_len.unwrap_or(0) };
        Shape {
            width,
            one_group: self.fixed_shapes,
            pad: self.data.tokenizer.special().pad.unwrap_or(0),
            device: &self.device,
        }
    }

    /// The rows of a training batch.
    fn rows(&self, index: u64) -> Vec<&Item> {
        let rows = self.order.batch(index, self.micro_batches, self.batch_size);
        rows.into_iter().map(|row| &self.data.train[row]).collect()
    }

    /// What the loss needs to know of rows. Training may keep rows with a text in common apart; in an evaluation, such
    /// candidates are left out instead.
    fn targets(&self, rows: &[&Item], split: Split) -> Targets {
        let source = |at: usize| self.data.texts[at].source as u32;
        let duplicates = self.config.duplicates();
        Targets {
            anchors: rows.iter().map(|row| source(row.anchor)).collect(),
            groups: rows.iter().map(|row| row.group).collect(),
            labels: rows.iter().filter_map(|row| row.label).map(|label| label as f32).collect(),
            positives: rows.iter().map(|row| source(row.positive)).collect(),
            negatives: rows
                .iter()
                .flat_map(|row| row.negatives.iter().map(|&at| source(at)))
                .collect(),
            masks_duplicates: duplicates == Duplicates::Mask
                || (split == Split::Validation && duplicates == Duplicates::Wait),
        }
    }

    fn batch_of(&self, rows: &[&Item], split: Split) -> Result<Batch> {
        let ids = |at: usize| &*self.data.texts[at].ids;
        let anchors: Vec<&[u32]> = rows.iter().map(|row| ids(row.anchor)).collect();
        let positives: Vec<&[u32]> = rows.iter().map(|row| ids(row.positive)).collect();
        let negatives = rows.iter().flat_map(|row| row.negatives.iter().map(|&at| ids(at)));
        let negatives: Vec<&[u32]> = negatives.collect();
        Batch::new([&anchors, &positives, &negatives], self.targets(rows, split), self.shape())
    }

    /// The loss of vectors.
    fn loss_of(&self, sides: &Sides, targets: &Targets) -> Result<Loss> {
        let Config { loss, matryoshka, .. } = &self.config;
        let (sum, count) = matryoshka.loss(loss.settings(), sides, targets)?;
        Ok(Loss { sum, count, metrics: Measures::default() })
    }

    /// Held-out rows of a batch of an evaluation: those of a training step, which are compared with each other.
    fn evaluation_batch(&self) -> usize {
        self.batch_size * self.micro_batches as usize
    }

    /// The unit vectors of some texts by their places, `(n, d)` on the CPU.
    fn unit_vectors(&self, model: &Model, places: &[usize]) -> Result<Vectors> {
        let lens: Vec<usize> = places.iter().map(|&at| self.data.texts[at].ids.len()).collect();
        let mut rows: Vec<Vec<f32>> = vec![Vec::new(); places.len()];
        let reading = Reading { normalize: true, ..self.reading() };
        for batch in self.batching.batches(&lens) {
            let ids: Vec<Vec<u32>> =
                batch.iter().map(|&at| self.data.texts[places[at]].ids.clone()).collect();
            let shape =
                Shape { one_group: false, width: self.required_len.unwrap_or(0), ..self.shape() };
            let group = Group::new(&ids, shape)?;
            let vectors = group.vectors(model, reading, Mode::Eval)?;
            let vectors = vectors.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            for (&at, vector) in batch.iter().zip(vectors.to_vec2::<f32>()?) {
                check_finite(&vector)?;
                rows[at] = vector;
            }
        }
        let of_place = places.iter().copied().zip(0..).collect();
        let (n, d) = (rows.len(), rows.first().map_or(0, Vec::len));
        let tensor = Tensor::from_vec(rows.concat(), (n, d), &Device::Cpu)?;
        Ok(Vectors { rows, of_place, tensor })
    }

    /// The vectors of all texts of the evaluations, held-out rows included.
    fn evaluated_vectors(&self, model: &Model) -> Result<Vectors> {
        let Data { validation, evaluations, .. } = &self.data;
        let of_rows = validation.iter().flat_map(|item| {
            [item.anchor, item.positive].into_iter().chain(item.negatives.iter().copied())
        });
        let similarity = evaluations.similarity.iter().flat_map(|one| one.pairs.iter().flatten());
        let retrieval =
            evaluations.retrieval.iter().flat_map(|one| one.queries.iter().chain(&one.documents));
        let mut places: Vec<usize> = of_rows.chain(similarity.chain(retrieval).copied()).collect();
        places.sort_unstable();
        places.dedup();
        self.unit_vectors(model, &places)
    }
}

/// Unit vectors of texts.
struct Vectors {
    rows: Vec<Vec<f32>>,
    /// By place of a text, its row.
    of_place: BTreeMap<usize, usize>,
    /// `(n, d)`
    tensor: Tensor,
}

impl Vectors {
    /// The cosine of two texts.
    fn cosine(&self, a: usize, b: usize) -> f64 {
        let [a, b] = [a, b].map(|place| &self.rows[self.of_place[&place]]);
        a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    }

    /// The vectors of these texts, `(n, d)`.
    fn of(&self, places: &[usize]) -> Result<Tensor> {
        let rows: Vec<u32> = places.iter().map(|place| self.of_place[place] as u32).collect();
        Ok(self.tensor.index_select(&Tensor::new(rows, &Device::Cpu)?, 0)?)
    }
}

impl JointLoss<Model, Batch> for Embed {
    fn vectors(&self, model: &Model, batch: &Batch, mode: Mode) -> Result<Tensor> {
        if batch.n == 0 {
            return Ok(Tensor::zeros((0, self.dim), DType::F32, &self.device)?);
        }
        let sides = batch.sides(model, self.reading(), mode)?;
        let all: Vec<&Tensor> = sides.named().map(|(_, side)| side).collect();
        Ok(Tensor::cat(&all, 0)?)
    }

    fn loss(&self, batches: Range<u64>, vectors: &[Tensor]) -> Result<Loss> {
        let mut all: Vec<&Item> = Vec::new();
        let (mut anchors, mut positives, mut negatives) = (Vec::new(), Vec::new(), Vec::new());
        for (index, vectors) in batches.zip(vectors) {
            let rows = self.rows(index);
            let (n, n_texts) = (rows.len(), vectors.dim(0)?);
            anchors.push(vectors.narrow(0, 0, n)?);
            positives.push(vectors.narrow(0, n, n)?);
            if n_texts > 2 * n {
                negatives.push(vectors.narrow(0, 2 * n, n_texts - 2 * n)?);
            }
            all.extend(rows);
        }
        let sides = Sides {
            anchors: Tensor::cat(&anchors, 0)?,
            positives: Tensor::cat(&positives, 0)?,
            negatives: (!negatives.is_empty()).then(|| Tensor::cat(&negatives, 0)).transpose()?,
        };
        self.loss_of(&sides, &self.targets(&all, Split::Train))
    }
}

impl Imitation<Model, Batch> for Embed {
    fn outputs(&self, model: &Model, batch: &Batch, mode: Mode) -> Result<Option<Tensor>> {
        (batch.n > 0).then(|| self.vectors(model, batch, mode)).transpose()
    }

    fn loss_by_labels(&self, outputs: &Tensor, batch: &Batch) -> Result<Loss> {
        self.loss_of(&batch.as_sides(outputs)?, &batch.targets)
    }

    fn transformer<'a>(&self, model: &'a Model) -> &'a Transformer {
        &model.encoder
    }

    fn readings<'a>(&self, batch: &'a Batch, mode: Mode) -> Vec<task::Reading<'a>> {
        batch.readings(mode)
    }
}

impl Task for Embed {
    type Model = Model;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Model> {
        Ok(Model::build(config, &self.model_spec(), self.dim, vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        match split {
            Split::Train => self.batch_of(&self.rows(index), split),
            Split::Validation => {
                let mut batches = self.data.validation.chunks(self.evaluation_batch());
                let rows = batches.nth(index as usize).unwrap_or_default();
                self.batch_of(&rows.iter().collect::<Vec<_>>(), split)
            }
        }
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.data.validation.chunks(self.evaluation_batch()).len() as u64
    }

    fn seq_len(&self) -> usize {
        self.config.seq_len
    }

    fn row_meanings(&self, _config: &ModelConfig) -> RowMeanings<'_> {
        RowMeanings { tokenizer: Some(&self.data.tokenizer), ..RowMeanings::default() }
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        let is_first = self.config.pooling == Pooling::Cls;
        let n_dense = n_dense(config, self.dim) as f64;
        MaskedLm::estimate_encoder(config, &self.model_spec(), is_first)
            + Estimate::outside_blocks(n_dense, self.dim as f64)
    }

    fn n_tokens(&self, batch: &Batch) -> Option<u64> {
        Some(batch.n_tokens)
    }

    fn inputs<'a>(&self, batch: &'a Batch) -> Inputs<'a> {
        batch.inputs()
    }

    fn loss(&self, model: &Model, batch: &Batch, mode: Mode) -> Result<Loss> {
        if batch.n == 0 {
            return Loss::zero(&self.device);
        }
        self.loss_of(&batch.sides(model, self.reading(), mode)?, &batch.targets)
    }

    fn joint_loss(&self) -> Option<&dyn JointLoss<Model, Batch>> {
        self.config.loss.settings().is_joint().then_some(self)
    }

    fn imitation(&self) -> Option<&dyn Imitation<Model, Batch>> {
        Some(self)
    }

    fn remark(&self, metrics: &BTreeMap<String, f64>) -> Option<String> {
        report::remark(self, metrics)
    }

    fn samples(&self, model: &Model) -> Result<Vec<Sample>> {
        report::samples(self, model)
    }

    fn measure(&self, model: &Model) -> Result<Metrics> {
        let mut metrics = Metrics::default();
        for (name, value) in report::Scores::new(self, model)?.named() {
            metrics.add(name, value, 1.);
        }
        Ok(metrics)
    }
}

impl RegisteredTask for Embed {
    fn report(&self, model: &Model) -> Result<Report> {
        report::report(self, model)
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        by_name([
            ("vocab_size", self.vocab_size as u64),
            ("seq_len", self.config.seq_len as u64),
            ("n_train", self.data.train.len() as u64),
            ("n_validation", self.data.validation.len() as u64),
        ])
    }

    fn cost(&self, _: &Model, config: &ModelConfig, store: &ParamStore) -> Cost {
        let is_first = self.config.pooling == Pooling::Cls;
        MaskedLm::encoder_cost(config, &self.model_spec(), is_first, store)
    }

    fn notes(&self) -> Vec<String> {
        self.data.remarks.clone()
    }

    fn kept_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        self.data.tokenizer.files()
    }

    fn data_files(&self) -> Vec<DataFile> {
        self.data.files.clone()
    }
}
