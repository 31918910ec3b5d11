//! Configurations that start from a trained model: what is left out comes from it.

use std::path::Path;

use anyhow::{Result, bail};
use tealight_train::inference::labels::Labels;
use tealight_train::trained::TrainedModel;

use super::ending::{BEST_OF_FEW, Ending, TO_ZERO};
use super::machine::{Machine, Work};
use super::{about, beginning, quoted, tenth};

/// A training should end within this time, if [`MIN_STEPS`] do.
const SECONDS: f64 = 1800.;
/// Fewer steps teach a model little.
const MIN_STEPS: f64 = 500.;

/// The trained model that a configuration starts from.
pub(super) struct Base {
    /// As it was typed, in quotes.
    path: String,
    description: String,
    d_model: usize,
    n_layers: usize,
    is_causal: bool,
    /// The labels of a classifier.
    pub(super) labels: Option<Labels>,
    /// The longest sequence that it reads; `None` if any length will do.
    max_seq_len: Option<usize>,
    /// Why no class of `transformers` has its settings, if none has.
    not_exported: Option<String>,
}

impl Base {
    /// Opens the model at `path`, which must be UTF-8.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let model = TrainedModel::open(path, None)?;
        let Some(typed) = path.to_str() else {
            bail!("`{}` is not UTF-8, as a configuration is", path.display());
        };
        // Other reasons, such as a missing head, may not be those of what is trained from it.
        let reasons = model.hugging_face().err();
        Ok(Self {
            path: quoted(typed),
            not_exported: reasons.filter(|reasons| reasons.contains("`model.")),
            description: model.description(),
            d_model: model.config.d_model,
            n_layers: model.config.n_layers,
            is_causal: model.config.causal,
            labels: model.readers.labels,
            max_seq_len: model.config.max_seq_len,
        })
    }

    /// The line of how a class is read from a decoder; empty for an encoder, which reads the first token.
    pub(super) fn read_out(&self) -> &'static str {
        if self.is_causal {
            "read_out = \"mean\"               # of all tokens: in a decoder, the first knows nothing of the others\n"
        } else {
            ""
        }
    }

    /// Refuses a decoder, whose vectors of texts would be those of their last tokens.
    pub(super) fn check_encoder(&self, task: &str) -> Result<()> {
        if self.is_causal {
            let Self { path, description, .. } = self;
            bail!("the task `{task}` starts from an encoder, and {path} is {description}");
        }
        Ok(())
    }

    /// Refuses a model that reads the wrong positions for a language model.
    pub(super) fn check_causal(&self, wanted: bool) -> Result<()> {
        if self.is_causal == wanted {
            return Ok(());
        }
        let Self { path, description, .. } = self;
        let (task, start) =
            if wanted { ("causal_lm", "a decoder") } else { ("masked_lm", "an encoder") };
        bail!("the task `{task}` starts from {start}, and {path} is {description}")
    }

    /// The longest sequence that suits the data, `wanted`, and the model.
    pub(super) fn seq_len(&self, wanted: usize) -> usize {
        self.max_seq_len.map_or(wanted, |most| most.min(wanted))
    }

    /// The first lines: what the configuration is for, and the model that it starts from. `allow` are the settings that
    /// differ from its.
    pub(super) fn beginning(&self, what: &str, allow: &[&str]) -> String {
        let Self { path, description, .. } = self;
        let init_from = match allow {
            [] => path.clone(),
            allow => format!("{{ path = {path}, allow = {} }}", serde_json::json!(allow)),
        };
        let not_exported = self.not_exported.as_ref().map_or_else(String::new, |reasons| {
            let reasons = reasons.split_whitespace().collect::<Vec<_>>().join(" ");
            format!("# `tealight export` writes it for Tealight alone: {reasons}\n")
        });
        format!(
            "{}{not_exported}init_from = {init_from} # {description}: its settings, tokenizer and parameters\n",
            beginning(what)
        )
    }

    /// The tables of a training that changes a trained model little: `epochs` times through `n` examples, which are
    /// `called` so and have so many tokens on average; fewer times where this takes [`SECONDS`].
    pub(super) fn ending(&self, n: f64, epochs: u64, called: &str, n_tokens: f64) -> Ending {
        const BATCH_SIZE: u64 = 16;
        let Self { d_model, n_layers, .. } = *self;
        let work = Work { d_model, n_layers, n_tokens };
        let wanted = (epochs as f64 * n / BATCH_SIZE as f64).max(50.);
        let possible = (SECONDS / Machine::this().step(work, BATCH_SIZE)).max(MIN_STEPS);
        let steps = wanted.min(possible).round() as u64;
        let times = steps as f64 * BATCH_SIZE as f64 / n;
        let passes = if wanted <= possible {
            format!(
                "{epochs} times the about {} {called} of the data, but 50 steps at least",
                about(n)
            )
        } else {
            format!(
                "{times:.1} times the about {} {called} of the data: more would take too long here",
                about(n)
            )
        };
        let ending = Ending {
            adamw: format!(
                "lr = {:e}                      # small: what was learnt is to be kept\nweight_decay = 0.01",
                self.learning_rate()
            ),
            warmup_steps: tenth(steps),
            final_lr_ratio: TO_ZERO,
            steps,
            passes,
            batch_size: BATCH_SIZE,
            training: "layer_lr_decay = 0.9            # lower layers, which are more general, change less\n",
            select: BEST_OF_FEW,
            ..Ending::default()
        };
        ending.timed(work)
    }

    /// 5 · 10⁻⁵ for a width of 768, the largest rate of the authors of BERT (Devlin et al. 2018, A.3), and more for narrower
    /// models, for which Turc et al. 2019 try up to 3 · 10⁻⁴; one digit.
    fn learning_rate(&self) -> f64 {
        let rate = (0.04 / self.d_model.max(1) as f64).clamp(1e-5, 1e-3);
        let unit = 10_f64.powf(rate.log10().floor());
        // Read from text, because a product with 10⁻⁵ may have further digits.
        format!("{}e{}", (rate / unit).round(), unit.log10().round()).parse().unwrap_or(rate)
    }
}
