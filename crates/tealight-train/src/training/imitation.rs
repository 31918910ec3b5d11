//! The teacher of a session: a trained model, built by the task of the run, so that both give outputs for the same items.

use std::collections::BTreeMap;
use std::time::Instant;

use candle_core::DType;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tealight_model::{ModelConfig, ParamStore};
use tealight_ops::with_product_precision;

use super::session::Session;
use super::teacher::Teacher;
use crate::config::{Difference, flat};
use crate::data::text::tokenizer::Tokenizer;
use crate::data::{DataFile, Split};
use crate::error::{Error, Result};
use crate::inference::labels::Labels;
use crate::storage::tensors::fingerprint;
use crate::task::evaluate::{evaluate_batch, losses};
use crate::task::imitation::MODEL;
use crate::task::{RegisteredTask, RowMeanings, Task};
use crate::trained::TrainedModel;

/// The longest sequence of a task.
const SEQ_LEN: &str = "task.seq_len";
/// Settings of a task that give the outputs of its models their meaning.
const MEANINGS: [&str; 9] = [
    "task.dim",
    "task.objective",
    "task.read_out",
    "task.n_token_types",
    "task.pooling",
    "task.normalize",
    "task.colour",
    "task.mean",
    "task.deviation",
];

/// How the names of the parameters of the blocks, and of what they read, begin.
const BLOCKS: [&str; 3] = ["embedding.", "position.", "layer."];

/// The scores of a model on the validation split, and what they cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Its parameters.
    pub n_parameters: u64,
    /// Tokens per second of the evaluation; `None` if the task does not count tokens.
    pub tokens_per_second: Option<f64>,
    /// The metrics.
    pub metrics: BTreeMap<String, f64>,
}

impl<T: Task> Session<T> {
    /// Sets the teacher of the run (`[teacher]`), which `trained` is.
    ///
    /// # Errors
    /// If its outputs mean something else than those of the run's model: other tokens, labels, or settings of the task; or
    /// if it has no such outputs.
    pub fn learn_from(&mut self, trained: &TrainedModel) -> Result<()> {
        let Some(config) = self.config.teacher.clone() else { return Ok(()) };
        let kind = self.config.task.kind();
        let (model_config, task) = trained.settings_of(kind)?;
        if config.loss.settings().imitated().is_none() {
            check_both_sides(&self.config.model, &model_config)?;
        }
        let mut rows = self.task.row_meanings(&self.config.model);
        if config.loss.settings().imitated().is_some() {
            self.check_meanings(trained, &task)?;
        } else {
            // The head of the teacher is not compared.
            rows.labels = None;
        }
        check_rows(trained, &rows)?;
        let seq_len = self.task.seq_len();
        if let Some(longest) = model_config.max_seq_len.filter(|longest| *longest < seq_len) {
            let message = format!(
                "`{SEQ_LEN}` = {seq_len}, and `{MODEL}` = `{}` reads {longest} tokens at most",
                trained.origin.display()
            );
            return Err(Error::config([SEQ_LEN, MODEL], message));
        }
        let device = self.params.device();
        let precision = self.config.training.precision;
        let params =
            ParamStore::new(0, DType::F32, device).computing_in(precision.computes_in(device));
        self.task.build_model(&model_config, &params.trainable())?;
        let initialised = trained.initialise(&params, rows).map_err(|error| match error {
            Error::MisshapenTensor { name, expected, actual, .. } => {
                Error::MisshapenTensor { origin: "teacher", name, expected, actual }
            }
            other => other,
        })?;
        let is_needed = |name: &&String| {
            config.loss.settings().imitated().is_some()
                || BLOCKS.iter().any(|block| name.starts_with(block))
        };
        if let Some(name) = initialised.fresh.iter().find(is_needed) {
            return Err(refused(
                trained,
                &format!("has no parameter `{name}`, as a model of this task has"),
            ));
        }
        params.refresh()?;
        let model = self.task.build_model(&model_config, &params.without_gradients())?;
        let n_parameters = params.n_parameters() as u64;
        let weights = DataFile::new(MODEL, &config.model, fingerprint(&trained.weights)? as u64);
        let is_whole = initialised.fresh.is_empty();
        let teacher = Teacher { config, model, n_parameters, is_whole, weights };
        if let Some(imitation) = self.task.imitation() {
            let batch = self.task.batch(Split::Train, 0)?;
            teacher.check(imitation, &self.eval_model, &batch)?;
        }
        self.teacher = Some(teacher);
        Ok(())
    }

    /// The files that training reads: those of the data, and the teacher.
    pub fn files(&self) -> Vec<DataFile>
    where
        T: RegisteredTask,
    {
        let of_teacher = self.teacher.iter().map(|teacher| teacher.weights.clone());
        self.task.data_files().into_iter().chain(of_teacher).collect()
    }

    /// Refuses a teacher whose settings of the task give its outputs another meaning.
    fn check_meanings(&self, trained: &TrainedModel, task: &Value) -> Result<()> {
        let mut of_teacher = flat(&serde_json::json!({ "task": task }));
        of_teacher.retain(|key, value| MEANINGS.contains(&&**key) && !value.is_null());
        let mut own = self.config.settings();
        own.retain(|key, _| of_teacher.contains_key(key));
        let Some(first) = Difference::all(of_teacher, own).into_iter().next() else {
            return Ok(());
        };
        let message = format!(
            "outputs of `{MODEL}` = `{}` mean something else than those of this run: {}",
            trained.origin.display(),
            first.describe_difference()
        );
        Err(Error::config([&*first.key, MODEL], message))
    }

    /// The scores of the model on the validation split.
    ///
    /// # Errors
    /// Those of the data and of a forward pass.
    pub fn scores(&self) -> Result<Scores> {
        self.scores_of(&self.eval_model, self.params.n_parameters() as u64)
    }

    /// The scores of the teacher; `None` without one, or if it lacks the head of a model of this task.
    ///
    /// # Errors
    /// Those of the data and of a forward pass.
    pub fn scores_of_teacher(&self) -> Result<Option<Scores>> {
        let teacher = self.teacher.as_ref().filter(|teacher| teacher.is_whole);
        teacher.map(|teacher| self.scores_of(&teacher.model, teacher.n_parameters)).transpose()
    }

    fn scores_of(&self, model: &T::Model, n_parameters: u64) -> Result<Scores> {
        let precision = self.config.training.precision.of_products();
        with_product_precision(precision, || {
            let mut n_tokens = Some(0);
            for index in 0..self.task.n_evaluation_batches() {
                let of_batch = self.task.n_tokens(&self.task.batch(Split::Validation, index)?);
                n_tokens = n_tokens.zip(of_batch).map(|(a, b)| a + b);
            }
            if self.task.n_evaluation_batches() > 0 {
                // The first pass allocates.
                evaluate_batch(&*self.task, model, 0)?;
            }
            let started = Instant::now();
            let mut metrics = losses(&*self.task, model)?;
            let seconds = started.elapsed().as_secs_f64();
            metrics.merge(&self.task.measure(model)?);
            Ok(Scores {
                n_parameters,
                tokens_per_second: n_tokens.map(|n| n as f64 / seconds),
                metrics: metrics.means(),
            })
        })
    }
}

/// Refuses causal models, of which heads of attention would be compared.
fn check_both_sides(own: &ModelConfig, of_teacher: &ModelConfig) -> Result<()> {
    let causal = [(own.causal, "of this run"), (of_teacher.causal, "of the teacher")];
    let Some((_, whose)) = causal.into_iter().find(|(is_causal, _)| *is_causal) else {
        return Ok(());
    };
    let message = format!(
        "`teacher.loss.kind` = \"relations\" compares tokens with those on both sides, and `model.causal` = true {whose} \
         hides those behind"
    );
    Err(Error::config(["teacher.loss.kind", "model.causal"], message))
}

/// Refuses a teacher with other tokens, or without a label of the run.
fn check_rows(trained: &TrainedModel, rows: &RowMeanings<'_>) -> Result<()> {
    let (old_tokens, old_labels) = (&trained.readers.tokenizer, &trained.readers.labels);
    if let (Some(new), Some(old)) = (rows.tokenizer, old_tokens) {
        check_tokens(trained, new, old)?;
    }
    let (Some(new), Some(old)) = (rows.labels, old_labels) else { return Ok(()) };
    let lacks = |has: &Labels, name: &String| !has.names().contains(name);
    if let Some(name) = new.names().iter().find(|name| lacks(old, name)) {
        return Err(refused(trained, &format!("does not know the label \"{name}\" of this run")));
    }
    match old.names().iter().find(|name| lacks(new, name)) {
        None => Ok(()),
        Some(name) => {
            let rule = format!("has the label \"{name}\", which no text of this run has");
            Err(refused(trained, &rule))
        }
    }
}

/// Refuses a teacher whose tokens are others.
fn check_tokens(trained: &TrainedModel, new: &Tokenizer, old: &Tokenizer) -> Result<()> {
    let n = new.vocab_size().max(old.vocab_size()) as u32;
    let Some(id) = (0..n).find(|&id| new.token(id) != old.token(id)) else { return Ok(()) };
    let shown = |token: Option<String>| {
        token.map_or_else(|| "no token".to_owned(), |token| format!("`{token}`"))
    };
    let message = format!(
        "`{MODEL}` = `{}` reads other tokens than this run: id {id} is {} there and {} here. Without `task.tokenizer` the \
         run has the teacher's",
        trained.origin.display(),
        shown(old.token(id)),
        shown(new.token(id))
    );
    Err(Error::config([MODEL, "task.tokenizer"], message))
}

/// The error that a model cannot be the teacher.
fn refused(trained: &TrainedModel, rule: &str) -> Error {
    Error::config([MODEL], format!("`{MODEL}` = `{}` {rule}", trained.origin.display()))
}
