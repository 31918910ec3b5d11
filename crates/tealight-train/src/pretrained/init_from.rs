//! What a run that begins with a model takes from it: its `[model]`, its tokenizer, its sizes.

use serde::Serialize;
use tealight_model::ModelConfig;

use super::{Pretrained, Purpose};
use crate::config::{ConfigSource, to_resolved_toml};
use crate::error::{Error, Result};

/// The tasks that read text through a tokenizer.
const TEXT_TASKS: [&str; 3] = ["masked_lm", "causal_lm", "classify"];

#[derive(Serialize)]
struct Settings<'a> {
    model: &'a ModelConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskSettings>,
}

#[derive(Serialize)]
struct TaskSettings {
    vocab_size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_token_types: Option<usize>,
    tokenizer: TokenizerSettings,
}

#[derive(Serialize)]
struct TokenizerSettings {
    kind: &'static str,
    path: String,
}

impl Pretrained {
    /// `source` with what it leaves out taken from this model: `[model]` and, for a task that reads
    /// text, the tokenizer and the sizes that go with it.
    pub fn fill_in(&self, source: ConfigSource) -> Result<ConfigSource> {
        let table: toml::Table = source.deserialize()?;
        let kind = match table.get("task") {
            Some(toml::Value::Table(task)) => task.get("kind").and_then(toml::Value::as_str),
            Some(toml::Value::String(kind)) => Some(kind.as_str()),
            _ => None,
        };
        let reads_text = kind.is_some_and(|kind| TEXT_TASKS.contains(&kind));
        let task = if reads_text { Some(self.task_settings(kind)?) } else { None };
        // A model that fills masks may go on as another: what stands before its output layer goes then.
        let mut model = self.model.clone();
        if kind != Some("masked_lm") {
            model.lm_head = None;
        }
        let base = to_resolved_toml(&Settings { model: &model, task })?;
        Ok(source.filled_in(&format!("the model in {}", self.origin.display()), &base)?)
    }

    fn task_settings(&self, task: Option<&str>) -> Result<TaskSettings> {
        let (vocab_size, n_token_types) = match &self.purpose {
            Purpose::MaskedLm(spec) | Purpose::Encoder(spec) => {
                (spec.vocab_size, Some(spec.n_token_types))
            }
            Purpose::CausalLm(spec) => (spec.vocab_size, Some(0)),
            Purpose::Classifier(spec) => (spec.vocab_size, Some(spec.n_token_types)),
            Purpose::Seq2Seq { .. } | Purpose::Other(_) => {
                let message = format!(
                    "`init_from`: `{}` is {}, and its vocabulary is not one of text",
                    self.origin.display(),
                    self.purpose
                );
                return Err(Error::config(["init_from"], message));
            }
        };
        self.tokenizer()?;
        let path = std::path::absolute(&self.folder).map_err(Error::io("find", &self.folder))?;
        Ok(TaskSettings {
            vocab_size,
            n_token_types: n_token_types.filter(|_| task != Some("causal_lm")),
            tokenizer: TokenizerSettings { kind: "file", path: path.display().to_string() },
        })
    }
}
