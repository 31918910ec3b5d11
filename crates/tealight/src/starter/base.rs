//! Configurations that start from a trained model: what is left out comes from it.

use std::path::Path;

use anyhow::{Result, bail};
use tealight_train::trained::TrainedModel;

use super::ending::{Ending, TO_ZERO};
use super::{about, beginning, quoted, tenth};

/// The trained model that a configuration starts from.
pub(super) struct Base {
    /// As it was typed, in quotes.
    path: String,
    description: String,
    d_model: usize,
    /// The longest sequence that it reads; `None` if any length will do.
    max_seq_len: Option<usize>,
}

impl Base {
    /// Opens the model at `path`, which must be UTF-8.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let model = TrainedModel::open(path, None)?;
        let Some(typed) = path.to_str() else {
            bail!("`{}` is not UTF-8, as a configuration is", path.display());
        };
        Ok(Self {
            path: quoted(typed),
            description: model.description(),
            d_model: model.config.d_model,
            max_seq_len: model.config.max_seq_len,
        })
    }

    /// The longest sequence that suits the data, `wanted`, and the model.
    pub(super) fn seq_len(&self, wanted: usize) -> usize {
        self.max_seq_len.map_or(wanted, |most| most.min(wanted))
    }

    /// The first lines: what the configuration is for, and the model that it starts from.
    pub(super) fn beginning(&self, what: &str) -> String {
        let Self { path, description, .. } = self;
        format!(
            "{}init_from = {path} # {description}: its settings, tokenizer and parameters\n",
            beginning(what)
        )
    }

    /// The tables of a training that changes a trained model little: `epochs` times through `n` examples, which are
    /// `called` so.
    pub(super) fn ending(&self, n: f64, epochs: u64, called: &str) -> Ending {
        const BATCH_SIZE: u64 = 16;
        let steps = (epochs as f64 * n / BATCH_SIZE as f64).max(50.) as u64;
        Ending {
            adamw: format!(
                "lr = {:e}                      # small: what was learnt is to be kept\nweight_decay = 0.01",
                self.learning_rate()
            ),
            warmup_steps: tenth(steps),
            final_lr_ratio: TO_ZERO,
            steps,
            passes: format!("{epochs} times through the {called}, about {}", about(n)),
            batch_size: BATCH_SIZE,
            training: "layer_lr_decay = 0.9            # lower layers, which are more general, change less\n",
            selects: "small data are soon learnt by heart",
        }
    }

    /// 2 · 10⁻⁵ for a width of 1,024, more for narrower models; one digit.
    fn learning_rate(&self) -> f64 {
        let rate = (0.02 / self.d_model.max(1) as f64).clamp(1e-5, 1e-3);
        let unit = 10_f64.powf(rate.log10().floor());
        // The decimal digits of the quotient would be those of a product with 10⁻⁵.
        format!("{}e{}", (rate / unit).round(), unit.log10().round()).parse().unwrap_or(rate)
    }
}
